"""apiece risk: how others' budgets move a victim's risk, before anything is trained."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click
import numpy as np

from apiece._files import FIGURE
from apiece.assignment.front import strategy_named
from apiece.budgets import Budgets
from apiece.budgets.groups import doubts_of_values, refuse_absurd
from apiece.cli._command import Bar, Command, Output, echo, parse_option, warn
from apiece.contract.exposure import RiskTable, risk_table
from apiece.errors import InputError

EXAMPLE = """
\b
Example:
  apiece risk --records 50000 --epsilon 8 --delta 1e-5 --batch-size 128 --steps 1953 \\
              --others 2,8,32 --shares 0.2,0.8 --figure risk.png
"""


@click.command(
    cls=Command, short_help="A target's risk as the others' choices vary.", epilog=EXAMPLE
)
@click.option("--records", type=int, required=True, help="Number of records.")
@click.option("--epsilon", type=float, required=True, help="What the victim asks.")
@click.option("--delta", type=float, required=True, help="δ of everyone.")
@click.option("--batch-size", type=float, required=True, help="Expected batch size.")
@click.option("--steps", type=int, required=True, help="Number of updates.")
@click.option("--others", default="1,2,4,8,16,32", show_default=True, help="ε of the others.")
@click.option("--shares", default="0.2,0.4,0.6,0.8", show_default=True, help="Their shares.")
@click.option("--strategy", default="sample", show_default=True, help="How plans are made.")
@click.option("--option", multiple=True, help="name=value, an option of the strategy; repeatable.")
@click.option("--method", default="pld", show_default=True, help="Accounting: pld or rdp.")
@click.option("--figure", type=Output(FIGURE), help="Draw it here (.png, .svg or .pdf).")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
def command(as_json: bool, figure: Path | None, **flags: Any) -> None:
    """Show a victim's advantage and Δ, from plans alone, as the others' choices vary."""
    options = dict(parse_option(text) for text in flags["option"])
    others = _numbers("--others", flags["others"])
    for epsilon in (flags["epsilon"], *others):
        refuse_absurd(epsilon)
    rows = _numbers("--shares", flags["shares"])
    strategy = strategy_named(flags["strategy"], **options)
    with Bar(len(rows) * len(others)) as bar:
        table = risk_table(
            records=flags["records"],
            victim_epsilon=flags["epsilon"],
            delta=flags["delta"],
            shares=rows,
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


def _numbers(flag: str, text: str) -> list[float]:
    try:
        return [float(part) for part in text.split(",")]
    except ValueError:
        raise InputError(f"{flag} = {text!r}: must be numbers with commas, as in 2,8,32") from None


def text_of(table: RiskTable) -> str:
    """Return the table for people: advantage, and forward Δ in brackets, rounded up."""
    head = ["share \\ others'", *(f"epsilon {e:g}" for e in table.epsilons)]
    rows = [
        [f"{share:g}", *(f"{_up(a)} ({_up(d)})" for a, d in zip(*pair, strict=True))]
        for share, *pair in zip(table.shares, table.advantage, table.forward, strict=True)
    ]
    widths = [max(len(row[i]) for row in [head, *rows]) for i in range(len(head))]
    lines = [
        "  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True))
        for row in [head, *rows]
    ]
    first = (
        f"{table.strategy}: advantage of an attacker on a record with epsilon = "
        f"{table.victim_epsilon:g}, delta = {table.delta:g}, and forward excess (in brackets)"
    )
    return "\n".join([first, *lines, f"all alike: {_up(table.baseline)}"])


def _up(value: float) -> str:
    """Return three decimals, rounded up, as an upper bound must be."""
    return f"{-(-value * 1000 // 1) / 1000:.3f}"
