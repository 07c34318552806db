"""apiece risk: how others' budgets move a victim's risk, before anything is trained."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from apiece._text import aligned
from apiece.cli._command import Bar, Command, echo, numbers_from, once, option, parse_option, warn

if TYPE_CHECKING:
    from apiece.contract.exposure import RiskTable

EXAMPLE = """
\b
Example:
  apiece risk --records 50000 --epsilon 8 --delta 1e-5 --batch-size 128 --steps 1953 \\
              --others 2,8,32 --shares 0.2,0.8 --figure risk.png
"""


@click.command(
    cls=Command, short_help="A target's risk as the others' choices vary.", epilog=EXAMPLE
)
@option("--records", required=True)
@option("--epsilon", type=float, required=True, help="ε of the victim.")
@option("--delta", type=float, required=True, help="δ of everyone.")
@option("--batch-size", required=True)
@option("--steps", required=True)
@option("--others", default="1,2,4,8,16,32", help="ε of the others, as 2,8,32.")
@option("--shares", default="0.2,0.4,0.6,0.8", help="Shares of the others, as 0.2,0.8.")
@option("--strategy")
@option("--option")
@option("--method", default="pld", help="Accounting method: pld or rdp.")
@option("--figure")
@option("--json")
def command(as_json: bool, figure: Path | None, **flags: Any) -> None:
    """Show a victim's advantage and Δ, from plans alone, as the others' choices vary."""
    import numpy as np

    from apiece.assignment.front import strategy_named
    from apiece.budgets import Budgets
    from apiece.budgets.groups import doubts_of_values, refuse_absurd
    from apiece.contract.exposure import risk_table

    options = once("--option", map(parse_option, flags["option"]))
    others = numbers_from("--others", flags["others"])
    for epsilon in (flags["epsilon"], *others):
        refuse_absurd(epsilon)
    shares = numbers_from("--shares", flags["shares"])
    strategy = strategy_named(flags["strategy"], **options)
    with Bar(len(shares) * len(others)) as bar:
        table = risk_table(
            records=flags["records"],
            victim_epsilon=flags["epsilon"],
            delta=flags["delta"],
            shares=shares,
            epsilons=others,
            steps=flags["steps"],
            expected_batch_size=flags["batch_size"],
            strategy=strategy,
            method=flags["method"],
            progress=lambda *_: bar.advance("plans"),
        )
    alike = Budgets(np.full(flags["records"], flags["epsilon"]), flags["delta"])
    warn(doubts_of_values(alike.groups))
    if figure is not None:
        from apiece.reporting import save
        from apiece.reporting.plots import risk_map

        save(risk_map(table), figure)
    echo(json.dumps(table.to_dict(), allow_nan=False) if as_json else text_of(table))


def text_of(table: RiskTable) -> str:
    """Return the table for people: advantage, and forward Δ in brackets, rounded up."""
    head = ["share \\ others'", *(f"epsilon {e:g}" for e in table.epsilons)]
    rows = [
        [f"{share:g}", *(f"{_up(a)} ({_up(d)})" for a, d in zip(*pair, strict=True))]
        for share, *pair in zip(table.shares, table.advantage, table.forward, strict=True)
    ]
    first = (
        f"{table.strategy}: advantage of an attacker on a record with epsilon = "
        f"{table.victim_epsilon:g}, delta = {table.delta:g}, and forward excess (in brackets)"
    )
    return "\n".join([first, *aligned([head, *rows]), f"all alike: {_up(table.baseline)}"])


def _up(value: float) -> str:
    """Return three decimals, rounded up, as an upper bound must be."""
    return f"{-(-value * 1000 // 1) / 1000:.3f}"
