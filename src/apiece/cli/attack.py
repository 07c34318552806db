"""apiece attack: what a record's budget does not protect it from, computed from plans."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import click

from apiece.cli._command import Command, columns, echo, numbers_from, option, refuse_given, warn
from apiece.errors import InputError

if TYPE_CHECKING:
    from apiece._types import Flags, Json
    from apiece.contract import Exposure

EXAMPLE = """
\b
Example (budget manipulation: all others are moved to smaller budgets):
  apiece attack --records 50000 --epsilon 8 --delta 1e-12 --others 2,4 \\
                --batch-size 128 --steps 1953 --strategy sample
Example (collusion: a share of the others asks for 2):
  apiece attack --records 50000 --epsilon 8 --delta 1e-12 --others 2 --shares 0.2,0.8 \\
                --batch-size 128 --steps 1953 --strategy sample --json
"""


@click.command(
    cls=Command, short_help="How far others' budgets can move one target's risk.", epilog=EXAMPLE
)
@option("--records", required=True)
@option("--epsilon", type=float, required=True, help="ε of the target and of all honest others.")
@option("--delta", type=float, required=True, help="δ of everyone.")
@option("--others", required=True, help="Budgets that the others turn to, as 2,4,8.")
@option("--shares", help="Shares of the others that collude, as 0.2,0.8.  [default: all]")
@option("--batch-size", required=True)
@option("--steps", required=True)
@option("--clip-norm")
@option("--strategy")
@option("--excess", help="Bound Δ̄ on everyone's excess risk; with --strategy hybrid.")
@option("--seed", type=int, default=0, help="Seed that draws the colluders; with --shares.")
@option("--json")
def command(others: str, shares: str | None, as_json: bool, **flags: Any) -> None:
    """Show how far a target's risk moves when the others change what they ask for.

    Nobody breaks a promise: the target is charged at most its own (ε, δ) in every row. The
    advantage is the largest TPR − FPR of any membership test, the excess the Δ-divergence from
    what a uniform plan with the same (ε, δ) would allow.
    """
    if shares is None:
        refuse_given(["seed"], "draws who colludes; give --shares too, or leave it out")
    decoys = numbers_from("--others", others)
    rows = _exposures(decoys, None if shares is None else numbers_from("--shares", shares), flags)
    document = {
        "attack": "budget manipulation" if shares is None else "collusion",
        **{name: flags[name] for name in ("strategy", "records", "epsilon", "delta")},
        "relation": rows[0].plan.relation,
        "rows": [row.to_dict() for row in rows],
    }
    echo(json.dumps(document) if as_json else table(document))


def _exposures(decoys: list[float], shares: list[float] | None, flags: Flags) -> list[Exposure]:
    import numpy as np

    from apiece import _check
    from apiece.assignment.front import strategy_named
    from apiece.budgets import Budgets
    from apiece.budgets.groups import doubts_of_values, refuse_absurd
    from apiece.contract import budget_manipulation, collusion

    size = _check.count("--records", flags["records"], least=2)
    for epsilon in (flags["epsilon"], *decoys):
        refuse_absurd(epsilon)
    keeps = flags["strategy"].lower() == "hybrid"
    if keeps and flags["excess"] is None:
        raise InputError("--excess: missing; hybrid keeps a bound Δ̄ on the excess, as 0.02")
    if flags["excess"] is not None and not keeps:
        raise InputError(
            f"--excess: {flags['strategy']} keeps no bound on the excess; leave it out, or give "
            "--strategy hybrid"
        )
    budgets = Budgets(np.full(size, flags["epsilon"]), flags["delta"], excess=flags["excess"])
    warn(doubts_of_values(budgets.groups))
    run = {
        "strategy": strategy_named(flags["strategy"]),
        "steps": flags["steps"],
        "expected_batch_size": flags["batch_size"],
        "clip_norm": flags["clip_norm"],
    }
    if shares is None:
        return budget_manipulation(budgets, 0, decoys=decoys, **run)
    generator = np.random.default_rng(flags["seed"])
    return collusion(budgets, 0, epsilons=decoys, shares=shares, generator=generator, **run)


def table(document: Json) -> str:
    """Return the rows as a table for people."""
    head = (
        f"{document['attack']}, {document['strategy']}: the target of {document['records']} asks "
        f"ε = {document['epsilon']:g} at δ = {document['delta']:g}"
    )
    heads = {
        "others": "others",
        "epsilon_spent": "ε\nspent",
        "advantage": "advantage",
        "excess": "excess",
        "sampling_probability": "chance\nto join",
        "noise_multiplier": "noise\nover clip",
    }
    rows = [
        [row[n] if isinstance(row[n], str) else f"{row[n]:.4g}" for n in heads]
        for row in document["rows"]
    ]
    return "\n".join([head, "", *columns([list(heads.values()), *rows])])
