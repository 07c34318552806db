"""apiece withdraw: a person leaves, and learns what became of their data."""

from textwrap import fill

import click

from apiece._text import plain, shown
from apiece.cli._command import Command, emit, option
from apiece.cli.ledger import account_of, receipt_text

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
