"""apiece withdraw: a person leaves, and learns what became of their data."""

from __future__ import annotations

from textwrap import fill
from typing import TYPE_CHECKING

import click

from apiece._text import percent, plain, shown
from apiece.cli._command import Command, emit, format_bullets, format_table, option
from apiece.errors import DataError

if TYPE_CHECKING:
    from apiece.ledger import Ledger, Receipt

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
    before = opened.head()
    lineage = opened.withdraw([account_of(opened, person)])
    again = lineage.head == before  # nothing was written
    (event,), (receipt,) = lineage.events(), lineage.receipts
    told = f"ε = {shown(receipt.told)} at δ = {shown(receipt.delta)}"
    said = [
        f"{plain(person)} withdrew on {receipt.withdrawn}."
        + " That was recorded already, and nothing changes." * again,
        "From now on no answer and no batch of a training that charges this ledger has this "
        "person's rows in it. A query still reads them, to leave them out; an audit asks none.",
        f"All that was charged together tells about this person at most {told}; the budget was "
        f"ε = {shown(receipt.epsilon)}.",
        *CANNOT,
    ]
    lines = [*(fill(each, 78) for each in said), "", receipt_text(receipt)]
    emit(as_json, {**event, "recorded_before": again}, "\n".join(lines))


def account_of(ledger: Ledger, person: str) -> int | str:
    """Return the id that a text stands for. Raises `DataError` where it can be nobody's."""
    from apiece.ledger.codec import read_id

    whose = read_id(person, ledger.id_kind)
    if whose is None:
        raise DataError(
            f"PERSON {person!r}: has no account; give a whole number, as this ledger's ids are"
        )
    return whose


def receipt_text(receipt: Receipt) -> str:
    """Return a receipt for its person to read."""
    from apiece.contract import explain

    promise = f"ε = {shown(receipt.epsilon)} at δ = {shown(receipt.delta)}"
    lines = [f"Receipt of {plain(receipt.person)}: {promise} for all analyses together", ""]
    if receipt.charges:
        rows = [["analysis", "when", "of the\nbudget", "of the\nslack", "result"]]
        for c in receipt.charges:
            result = f"{c.released} released" if c.committed else "not yet"
            rows.append([c.analysis, c.at, percent(c.share), percent(c.slack), result])
        rows.append(["together", "", percent(receipt.spent), percent(receipt.slack), ""])
        lines += [*format_table(rows), ""]
    if receipt.slack:
        lines += ["The slack is the part of δ for results that are no plain Gaussian sums.", ""]
    lines += [receipt.left, "", "What the whole budget means:"]
    lines += [*format_bullets(explain(receipt.epsilon, receipt.delta).sentences), ""]
    lines += [f"History {receipt.head.number}:{receipt.head.digest}", "covers every charge above."]
    return "\n".join(lines)
