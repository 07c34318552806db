"""apiece withdraw: a person leaves, and learns what became of their data."""

from __future__ import annotations

from textwrap import fill
from typing import TYPE_CHECKING

import click

from apiece._text import percent, plain, shown
from apiece.cli._command import Command, emit, format_bullets, format_table, option
from apiece.errors import DataError

if TYPE_CHECKING:
    from apiece.ledger import Ledger
    from apiece.ledger.reports import Receipt

EXAMPLE = """
\b
Examples:
  apiece withdraw people.db ann
  apiece withdraw people.db ann --json
"""


@click.command(cls=Command, epilog=EXAMPLE)
@click.argument("ledger")
@click.argument("person")
@option("--json")
def command(ledger: str, person: str, as_json: bool) -> None:
    """Take PERSON out of all that follows, and print for them what cannot be undone.

    From now on no answer or batch charged to LEDGER has their rows; trainings under way leave them
    out at their next step. It is final. --json prints the event for other systems. Both are data
    about a person.
    """
    from apiece.ledger import Ledger
    from apiece.ledger.reports import CANNOT

    opened = Ledger.open(ledger, create=False)
    head = opened.head()
    # Withdrawing again changes nothing, and gives the same lineage.
    lineage = opened.withdraw([find_account(opened, person)])
    # The head moves on with what is written.
    recorded_before = lineage.head == head
    (event,) = lineage.events()
    (receipt,) = lineage.receipts
    withdrawal = f"{plain(person)} withdrew on {receipt.withdrawn}."
    if recorded_before:
        withdrawal += " That was recorded already, and nothing changes."
    spent = f"ε = {shown(receipt.told)} at δ = {shown(receipt.delta)}"
    paragraphs = [
        withdrawal,
        "From now on no answer and no batch of a training that charges this ledger has this "
        "person's rows in it. A query still reads them, to leave them out; an audit asks none.",
        f"All that was charged together tells about this person at most {spent}; the budget was "
        f"ε = {shown(receipt.epsilon)}.",
        *CANNOT,
    ]
    lines = [*(fill(paragraph, 78) for paragraph in paragraphs), "", format_receipt(receipt)]
    emit(as_json, {**event, "recorded_before": recorded_before}, "\n".join(lines))


def find_account(ledger: Ledger, person: str) -> int | str:
    """Return the id that a text stands for; raise `DataError` where it can be nobody's."""
    from apiece.ledger.codec import parse_id

    account = parse_id(person, ledger.id_kind)
    if account is None:
        raise DataError(
            f"PERSON {person!r}: has no account; give a whole number, as this ledger's ids are"
        )
    return account


def format_receipt(receipt: Receipt) -> str:
    """Return a receipt for its person to read."""
    from apiece.contract import explain

    promise = f"ε = {shown(receipt.epsilon)} at δ = {shown(receipt.delta)}"
    if receipt.rho is not None:
        promise = f"ρ = {shown(receipt.rho)}, which is {promise},"
    lines = [f"Receipt of {plain(receipt.person)}: {promise} for all analyses together", ""]
    if receipt.charges:
        rows = [["analysis", "when", "of the\nbudget", "of the\nslack", "result"]]
        for charge in receipt.charges:
            result = f"{charge.released} released" if charge.committed else "not yet"
            share = percent(charge.share)
            slack = percent(charge.slack)
            rows.append([charge.analysis, charge.at, share, slack, result])
        rows.append(["together", "", percent(receipt.spent), percent(receipt.slack), ""])
        lines += [*format_table(rows), ""]
    if receipt.slack:
        lines += ["The slack is the part of δ for results that are no plain Gaussian sums.", ""]
    lines += [
        receipt.left,
        "",
        "What the whole budget means:",
        *format_bullets(explain(receipt.epsilon, receipt.delta).sentences),
        "",
        f"History {receipt.head.number}:{receipt.head.digest}",
        "covers every charge above.",
    ]
    return "\n".join(lines)
