"""apiece risk: how others' budgets move a target's risk, before anything is trained."""

from pathlib import Path
from typing import Any

import click
import numpy as np

from apiece import _check
from apiece._text import thousandths
from apiece._types import Flags, Json
from apiece.assignment.front import make_strategy
from apiece.budgets import Budgets
from apiece.budgets.groups import list_value_doubts, refuse_absurd
from apiece.cli._command import (
    Bar,
    Command,
    emit,
    format_table,
    make_dict,
    option,
    parse_numbers,
    parse_option,
    refuse_given,
    require_delta,
    warn,
)
from apiece.contract import budget_manipulation, collusion
from apiece.contract.exposure import RiskTable, risk_table
from apiece.errors import InputError

EXAMPLE = """
\b
Examples:
  apiece risk --records 50000 --epsilon 8 --delta 1e-5 --batch-size 128 --steps 1953 \\
              --others 2,8,32 --shares 0.2,0.8 --figure risk.png
  apiece risk --each --records 50000 --epsilon 8 --delta 1e-12 --others 2,4 \\
              --batch-size 128 --steps 1953 --strategy sample
  apiece risk --each --records 50000 --epsilon 8 --delta 1e-12 --others 2 --shares 0.2,0.8 \\
              --batch-size 128 --steps 1953 --strategy sample --json
"""
# The shares of the others in the table where none are given.
SHARES = [0.2, 0.4, 0.6, 0.8]
# Options of the table alone, and of the rows by --each alone.
TABLE_ONLY = ("option", "method", "figure")
EACH_ONLY = ("clip_norm", "excess", "seed")
# The columns of the rows, by their names in JSON.
HEADS = {
    "others": "others",
    "epsilon_spent": "ε\nspent",
    "advantage": "advantage",
    "excess": "excess",
    "sampling_probability": "chance\nto join",
    "noise_multiplier": "noise\nover clip",
}


@click.command(cls=Command, epilog=EXAMPLE)
@option("--each", "by_population", is_flag=True, help="Print a row for each population.")
@option("--records", required=True)
@option("--epsilon", type=float, required=True, help="ε of the target.")
@option("--delta", type=float)
@option(
    "--others",
    default="1,2,4,8,16,32",
    help="ε of the others, as 2,8,32: what a share asks for, or a cap on all.",
)
@option(
    "--shares",
    help="Shares of the others that ask for it.  [default: 0.2,0.4,0.6,0.8; all with --each]",
)
@option("--batch-size", required=True)
@option("--steps", required=True)
@option("--strategy")
@option("--option")
@option("--method", default="pld", help="Accounting method: pld or rdp.")
@option("--figure")
@option("--clip-norm", help="Mean clip norm; with --each.")
@option("--excess", help="Bound Δ̄ on everyone's excess risk; with --each and hybrid.")
@option("--seed", help="Seed that draws who colludes; with --each.")
@option("--json")
def command(by_population: bool, as_json: bool, figure: Path | None, **flags: Any) -> None:
    """Show how a target's risk moves with the others' choices, from plans alone.

    A share of the others asks for an ε of --others, the rest for the target's. --each prints a row
    for each population; without --shares everyone else is held to at most that ε, so that a larger
    one moves nobody. No promise is broken: the target spends at most its own (ε, δ) in every row.
    The advantage is the largest TPR − FPR of any membership test; the excess is the Δ-divergence
    from what a uniform plan with the same (ε, δ) would allow.
    """
    if by_population:
        refuse_given(TABLE_ONLY, "goes without --each; leave it out")
    else:
        refuse_given(EACH_ONLY, "goes with --each; add it")
    flags["delta"] = require_delta(flags["delta"])
    others = parse_numbers("--others", flags["others"])
    for epsilon in (flags["epsilon"], *others):
        refuse_absurd(epsilon)
    shares = None if flags["shares"] is None else parse_numbers("--shares", flags["shares"])
    if by_population:
        document = _measure_populations(others, shares, flags)
        emit(as_json, document, format_populations(document))
        return
    table = _measure_shares(others, shares or SHARES, flags)
    if figure is not None:
        from apiece.reporting import save
        from apiece.reporting.plots import risk_map

        save(risk_map(table), figure)
    emit(as_json, table.to_dict(), format_risks(table))


def _measure_shares(others: list[float], shares: list[float], flags: Flags) -> RiskTable:
    """Return the target's risk for each share and ε of the others; shows a bar."""
    options = make_dict("--option", map(parse_option, flags["option"]))
    with Bar(len(shares) * len(others)) as bar:
        table = risk_table(
            records=flags["records"],
            victim_epsilon=flags["epsilon"],
            delta=flags["delta"],
            shares=shares,
            epsilons=others,
            steps=flags["steps"],
            expected_batch_size=flags["batch_size"],
            strategy=make_strategy(flags["strategy"], **options),
            method=flags["method"],
            progress=lambda *_: bar.advance("plans"),
        )
    budgets = Budgets(np.full(flags["records"], flags["epsilon"]), flags["delta"])
    warn(list_value_doubts(budgets.groups))
    return table


def _measure_populations(others: list[float], shares: list[float] | None, flags: Flags) -> Json:
    """Return the target's risk in each population: all others move, or some of them."""
    if shares is None:
        refuse_given(["seed"], "draws who colludes; give --shares too, or leave it out")
    size = _check.count("--records", flags["records"], least=2)
    bounded = flags["strategy"].lower() == "hybrid"
    if bounded and flags["excess"] is None:
        raise InputError("--excess: missing; give the bound Δ̄ that hybrid keeps, as 0.02")
    if flags["excess"] is not None and not bounded:
        raise InputError(
            f"--excess: {flags['strategy']} keeps no bound on the excess; leave it out, or give "
            "--strategy hybrid"
        )
    budgets = Budgets(np.full(size, flags["epsilon"]), flags["delta"], excess=flags["excess"])
    warn(list_value_doubts(budgets.groups))
    settings = {
        "strategy": make_strategy(flags["strategy"]),
        "steps": flags["steps"],
        "expected_batch_size": flags["batch_size"],
        "clip_norm": flags["clip_norm"],
    }
    if shares is None:
        attack = "budget manipulation"
        exposures = budget_manipulation(budgets, 0, decoys=others, **settings)
    else:
        attack = "collusion"
        exposures = collusion(
            budgets, 0, epsilons=others, shares=shares, seed=flags["seed"], **settings
        )
    return {
        "attack": attack,
        "strategy": flags["strategy"],
        "records": flags["records"],
        "epsilon": flags["epsilon"],
        "delta": flags["delta"],
        "relation": exposures[0].plan.relation,
        "rows": [exposure.to_dict() for exposure in exposures],
    }


def format_populations(document: Json) -> str:
    """Return the populations as a table for people."""
    title = (
        f"{document['attack']}, {document['strategy']}: the target of {document['records']} asks "
        f"ε = {document['epsilon']:g} at δ = {document['delta']:g}"
    )
    rows = [list(HEADS.values())]
    for row in document["rows"]:
        values = [row[name] for name in HEADS]
        rows.append([value if isinstance(value, str) else f"{value:.4g}" for value in values])
    return "\n".join([title, "", *format_table(rows)])


def format_risks(table: RiskTable) -> str:
    """Return the table for people: advantage, and forward Δ in brackets, rounded up."""
    title = (
        f"{table.strategy}: advantage of an attacker on a record with epsilon = "
        f"{table.victim_epsilon:g}, delta = {table.delta:g}, and forward excess (in brackets)"
    )
    rows = [["share \\ others'", *(f"epsilon {epsilon:g}" for epsilon in table.epsilons)]]
    for share, advantages, excesses in zip(
        table.shares, table.advantage, table.forward, strict=True
    ):
        cells = [
            f"{thousandths(advantage)} ({thousandths(excess)})"
            for advantage, excess in zip(advantages, excesses, strict=True)
        ]
        rows.append([f"{share:g}", *cells])
    baseline = f"all alike: {thousandths(table.baseline)}"
    return "\n".join([title, *format_table(rows), baseline])
