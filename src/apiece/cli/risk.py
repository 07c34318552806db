"""apiece risk: how others' budgets move a target's risk, before anything is trained.

`apiece attack` is the same command with a row for each population, as of `--each`.
"""

from pathlib import Path
from typing import Any

import click
import numpy as np

from apiece import _check
from apiece._text import thousandths
from apiece._types import Flags, Json
from apiece.assignment.front import make_strategy
from apiece.budgets import Budgets
from apiece.budgets.groups import doubts_of_values, refuse_absurd
from apiece.cli._command import (
    Bar,
    Command,
    columns,
    emit,
    needed_delta,
    numbers_from,
    once,
    option,
    parse_option,
    refuse_given,
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
  apiece attack --records 50000 --epsilon 8 --delta 1e-12 --others 2 --shares 0.2,0.8 \\
                --batch-size 128 --steps 1953 --strategy sample --json
"""
HEADS = {
    "others": "others",
    "epsilon_spent": "ε\nspent",
    "advantage": "advantage",
    "excess": "excess",
    "sampling_probability": "chance\nto join",
    "noise_multiplier": "noise\nover clip",
}


@click.command(cls=Command, epilog=EXAMPLE)
@option("--each", is_flag=True, help="Print a row for each population, as apiece attack does.")
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
def command(each: bool, as_json: bool, figure: Path | None, **flags: Any) -> None:
    """Show how a target's risk moves with the others' choices, from plans alone.

    A share of the others asks for an ε of --others, the rest for the target's. --each, or apiece
    attack, prints a row for each population; without --shares everyone else is held to at most that
    ε, so that a larger one moves nobody. No promise is broken: the target spends at most its own
    (ε, δ) in every row. The advantage is the largest TPR − FPR of any membership test; the excess
    is the Δ-divergence from what a uniform plan with the same (ε, δ) would allow.
    """
    each = each or click.get_current_context().info_name == "attack"
    beside = ("option", "method", "figure") if each else ("clip_norm", "excess", "seed")
    refuse_given(
        beside, "goes without --each; leave it out" if each else "goes with --each; add it"
    )
    flags["delta"] = needed_delta(flags["delta"])
    others = numbers_from("--others", flags["others"])
    for epsilon in (flags["epsilon"], *others):
        refuse_absurd(epsilon)
    shares = None if flags["shares"] is None else numbers_from("--shares", flags["shares"])
    if each:
        document = _populations(others, shares, flags)
        emit(as_json, document, rows_of(document))
        return
    table = _table(others, shares or [0.2, 0.4, 0.6, 0.8], flags)
    if figure is not None:
        from apiece.reporting import save
        from apiece.reporting.plots import risk_map

        save(risk_map(table), figure)
    emit(as_json, table.to_dict(), text_of(table))


def _table(others: list[float], shares: list[float], flags: Flags) -> RiskTable:
    options = once("--option", map(parse_option, flags["option"]))
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
    alike = Budgets(np.full(flags["records"], flags["epsilon"]), flags["delta"])
    warn(doubts_of_values(alike.groups))
    return table


def _populations(others: list[float], shares: list[float] | None, flags: Flags) -> Json:
    """Return the target's risk in each population: all others move, or some of them."""
    if shares is None:
        refuse_given(["seed"], "draws who colludes; give --shares too, or leave it out")
    size = _check.count("--records", flags["records"], least=2)
    keeps = flags["strategy"].lower() == "hybrid"
    if keeps and flags["excess"] is None:
        raise InputError("--excess: missing; give the bound Δ̄ that hybrid keeps, as 0.02")
    if flags["excess"] is not None and not keeps:
        raise InputError(
            f"--excess: {flags['strategy']} keeps no bound on the excess; leave it out, or give "
            "--strategy hybrid"
        )
    budgets = Budgets(np.full(size, flags["epsilon"]), flags["delta"], excess=flags["excess"])
    warn(doubts_of_values(budgets.groups))
    run = {
        "strategy": make_strategy(flags["strategy"]),
        "steps": flags["steps"],
        "expected_batch_size": flags["batch_size"],
        "clip_norm": flags["clip_norm"],
    }
    if shares is None:
        rows = budget_manipulation(budgets, 0, decoys=others, **run)
    else:
        generator = np.random.default_rng(flags["seed"])
        rows = collusion(budgets, 0, epsilons=others, shares=shares, generator=generator, **run)
    return {
        "attack": "budget manipulation" if shares is None else "collusion",
        **{name: flags[name] for name in ("strategy", "records", "epsilon", "delta")},
        "relation": rows[0].plan.relation,
        "rows": [row.to_dict() for row in rows],
    }


def rows_of(document: Json) -> str:
    """Return the populations as a table for people."""
    head = (
        f"{document['attack']}, {document['strategy']}: the target of {document['records']} asks "
        f"ε = {document['epsilon']:g} at δ = {document['delta']:g}"
    )
    rows = [
        [row[n] if isinstance(row[n], str) else f"{row[n]:.4g}" for n in HEADS]
        for row in document["rows"]
    ]
    return "\n".join([head, "", *columns([list(HEADS.values()), *rows])])


def text_of(table: RiskTable) -> str:
    """Return the table for people: advantage, and forward Δ in brackets, rounded up."""
    head = ["share \\ others'", *(f"epsilon {e:g}" for e in table.epsilons)]
    rows = [
        [
            f"{share:g}",
            *(f"{thousandths(a)} ({thousandths(d)})" for a, d in zip(*pair, strict=True)),
        ]
        for share, *pair in zip(table.shares, table.advantage, table.forward, strict=True)
    ]
    first = (
        f"{table.strategy}: advantage of an attacker on a record with epsilon = "
        f"{table.victim_epsilon:g}, delta = {table.delta:g}, and forward excess (in brackets)"
    )
    return "\n".join([first, *columns([head, *rows]), f"all alike: {thousandths(table.baseline)}"])
