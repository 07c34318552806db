"""apiece plan: from budgets to a verified plan."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from apiece._files import PLAN, write
from apiece._text import plain, rounded_up
from apiece.assignment import STRATEGIES, Compared, assign, compare
from apiece.assignment.front import COMPARED, strategy_named
from apiece.budgets import Budgets
from apiece.budgets.frames import capped
from apiece.budgets.groups import cap_note, doubts, refuse_absurd
from apiece.cli._command import (
    DIALECT,
    Command,
    Output,
    columns,
    dialect_from,
    echo,
    groups_from,
    number_or_name,
    once,
    parse_option,
    read_text,
    refuse_given,
    table_options,
    warn,
)
from apiece.errors import InputError
from apiece.plan import Plan
from apiece.plan.parts import UNSPENT

if TYPE_CHECKING:
    from apiece._types import Flags, Json

EXAMPLE = """
\b
Example:
  apiece plan --records 50000 --groups strict:1:0.34,medium:2:0.43,weak:3:0.23 \\
              --delta 1e-5 --batch-size 1024 --steps 1465 --clip-norm 0.4 --strategy sample
  apiece plan --data people.csv --epsilon consent_epsilon --delta 1e-5 \\
              --batch-size 512 --steps 1000 --clip-norm 1 --strategy scale --json
  apiece plan --records 50000 --groups strict:1:0.5,weak:3:0.5 --delta 1e-5 \\
              --batch-size 1024 --steps 1465 --compare
"""
HEADS = {
    "delta": "δ",
    "sampling_probability": "chance\nto join",
    "clip_norm": "clip\nnorm",
    "noise_multiplier": "noise\nover clip",
}


@click.command(cls=Command, short_help="Turn budgets into a verified plan.", epilog=EXAMPLE)
@click.option("--records", type=int, help="Number of records; with --groups.")
@click.option("--groups", help="name:epsilon:share,… with shares that sum to 1, or counts.")
@click.option(
    "--data", type=click.Path(path_type=Path), help="CSV or Parquet with a budget column."
)
@click.option("--epsilon", help="Name of the budget column; with --data.")
@click.option("--delta", help="One δ for all, or the name of a column.")
@click.option("--excess", help="One bound Δ̄ on the excess risk for all, or a column's name.")
@click.option("--ids", help="Name of the column with unique record ids; with --data.")
@click.option("--person", help="Column of persons' ids, who may have several rows; with --data.")
@table_options
@click.option("--no-limit-cap", type=float, help="The ε that 'no limit' and inf are read as.")
@click.option("--batch-size", type=float, help="Expected batch size.")
@click.option("--steps", type=int, help="Number of updates.")
@click.option("--clip-norm", type=float, default=1.0, show_default=True, help="Mean clip norm.")
@click.option("--strategy", default="sample", show_default=True, help=", ".join(STRATEGIES))
@click.option("--option", multiple=True, help="name=value, an option of the strategy; repeatable.")
@click.option("--method", default="pld", show_default=True, help="Accounting: pld or rdp.")
@click.option(
    "--from", "source", type=click.Path(path_type=Path), help="Read a plan's JSON, verify it."
)
@click.option("--gaussian", is_flag=True, help="Each group's μ, with its slack and regret.")
@click.option("--compare", "compared", is_flag=True, help="A table of several strategies.")
@click.option("--out", type=Output(PLAN), help="Write the plan's JSON here.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
def command(
    source: Path | None,
    out: Path | None,
    as_json: bool,
    compared: bool,
    gaussian: bool,
    **flags: Any,
) -> None:
    """Turn budgets into a verified plan: rates, clip norms and noise that keep each promise."""
    if compared:
        if source is not None or out is not None:
            raise InputError("--compare: makes several plans; leave --from and --out out")
        _compare(flags, as_json)
        return
    if source is not None:
        refuse_given(flags, "a plan that is read with --from has its own; leave it out")
        plan = Plan.from_json(read_text(source))
    else:
        plan = _assign(flags)
        warn(doubts(plan.budget_groups))
    if out is not None:
        write(out, plan.to_json(indent=2) + "\n", PLAN)
    if gaussian:
        echo(json.dumps(summaries(plan)) if as_json else summary_table(plan))
    elif as_json:
        echo(plan.to_json())
    else:
        echo(table(plan))


def summaries(plan: Plan) -> Json:
    """Return each group's μ, slack and regret."""
    return {
        "groups": [
            {"name": group.name, "epsilon": group.epsilon, "delta": group.delta}
            | asdict(plan.gaussian(k))
            for k, group in enumerate(plan.groups)
        ]
    }


def summary_table(plan: Plan) -> str:
    """Return each group's μ as a table: numbers that add up, as squares, over trainings."""
    rows = [["group", "ε\nspent", "μ", "slack", "regret"]]
    for k, (group, spent) in enumerate(zip(plan.groups, plan.epsilon_spent, strict=True)):
        found = plan.gaussian(k)
        numbers = (float(spent), found.mu, found.slack, found.regret)
        rows.append([group.name, *(rounded_up(each, 3) for each in numbers)])
    return "\n".join(columns(rows))


def _compare(flags: Flags, as_json: bool) -> None:
    """Print what each strategy makes of the budgets, the given one with its options among them."""
    budgets = _budgets(flags)
    given = strategy_named(flags["strategy"], **_options(flags))
    strategies = [given if name == given.name else name for name in COMPARED]
    found = compare(
        budgets,
        strategies if given in strategies else [*strategies, given],
        steps=flags["steps"],
        expected_batch_size=flags["batch_size"],
        clip_norm=flags["clip_norm"],
        method=flags["method"],
    )
    warn(doubts(budgets.groups))
    if as_json:
        echo(json.dumps({"strategies": [each.to_dict() for each in found]}, allow_nan=False))
    else:
        echo(comparison(found))


def comparison(found: Sequence[Compared]) -> str:
    """Return strategies side by side, less than 80 columns wide, and what there is against each."""
    noises = [each.noise_over_signal for each in found]
    least = min((noise for noise in noises if noise is not None), default=None)
    rows = [["strategy", "noise\nover signal", "to the\nleast", "unspent", "largest\nexcess"]]
    for each, noise in zip(found, noises, strict=True):
        if noise is None or least is None:
            rows.append([each.strategy, *["–"] * 4])
            continue
        excess = "–" if each.excess is None else rounded_up(each.excess)
        unspent = f"{100 * (each.unspent or 0.0):.3g} %"
        rows.append([each.strategy, f"{noise:.4g}", f"{noise / least:.3g} x", unspent, excess])
    against = [f"{each.strategy}: {each.objection}" for each in found if each.objection]
    return "\n".join([*columns(rows), *([""] if against else []), *map(plain, against)])


def _options(flags: Flags) -> Flags:
    return once("--option", map(parse_option, flags["option"]))


def _budgets(flags: Flags) -> Budgets:
    for name in ("delta", "batch_size", "steps"):
        if flags[name] is None:
            raise InputError(f"--{name.replace('_', '-')}: missing; give it, or --from a plan")
    budgets = budgets_from(flags)
    refuse_absurd(float(budgets.epsilon.max()))
    return budgets


def _assign(flags: Flags) -> Plan:
    options, budgets = _options(flags), _budgets(flags)
    plan = assign(
        budgets,
        strategy_named(flags["strategy"], **options),
        steps=flags["steps"],
        expected_batch_size=flags["batch_size"],
        clip_norm=flags["clip_norm"],
        method=flags["method"],
    )
    plan = replace(plan, unit="record" if flags["person"] is None else "person")
    cap = flags["no_limit_cap"]
    return plan if cap is None else replace(plan, notes=(*plan.notes, cap_note(cap)))


def budgets_from(flags: Flags) -> Budgets:
    """Return the budgets that the flags of a command describe."""
    delta, excess = number_or_name(flags["delta"]), number_or_name(flags.get("excess"))
    if flags["data"] is not None:
        if flags["groups"] is not None or flags["records"] is not None:
            raise InputError("--data: budgets are given twice; drop --groups and --records")
        if flags["epsilon"] is None:
            raise InputError("--epsilon: missing; give the name of the budget column of --data")
        return Budgets.from_frame(
            flags["data"],
            epsilon=flags["epsilon"],
            delta=delta,
            ids=flags["ids"],
            person=flags["person"],
            excess=excess,
            no_limit_cap=flags["no_limit_cap"],
            dialect=dialect_from(flags),
        )
    if flags["person"] is not None:
        raise InputError("--person: a column of --data; give the table, or drop it")
    refuse_given(("epsilon", "ids", *DIALECT), "of a table; --groups have none; leave it out")
    if flags["groups"] is None or flags["records"] is None:
        raise InputError("budgets: none given; give --records and --groups, or --data")
    if isinstance(delta, str) or isinstance(excess, str):
        raise InputError(f"--delta, --excess = {delta!r}, {excess!r}: give numbers with --groups")
    cap = flags["no_limit_cap"]
    groups = [(n, capped(e, cap), share) for n, e, share in groups_from(flags["groups"])]
    budgets = Budgets.from_groups(groups, flags["records"], delta)
    return budgets if excess is None else budgets.bounded(excess)


def table(plan: Plan) -> str:
    """Return the plan as a table for people, 80 columns wide; of many groups the first and last."""
    data = plan.to_dict()
    groups = data["groups"]
    single, deltas = "stages" not in data, {group["delta"] for group in groups}
    names = ["sampling_probability", "clip_norm", "noise_multiplier"] if single else []
    names = (["delta"] if len(deltas) > 1 else []) + names
    rows = [_row(group, names) for group in groups]
    if len(rows) > 20:
        rows = [*rows[:10], ["…"] * len(rows[0]), *rows[-10:]]
    heads = [f"{plan.unit}s", "ε\nasked", "ε\nspent", *(HEADS[name] for name in names)]
    shown = columns([["group", *heads, "advan-\ntage", "excess"], *rows])
    one = f", δ = {groups[0]['delta']:.6g}" if len(deltas) == 1 else ""
    return "\n".join([*_head(plan, one), "", *shown, *_foot(plan)])


def _row(group: Json, names: list[str]) -> list[str]:
    """Return the cells of one group."""
    asked, spent = budget_cells(group["epsilon"], group["epsilon_spent"])
    broken = group["epsilon_spent"] > group["epsilon"]
    mark = "!" if broken else "*" if group["spent_share"] < UNSPENT else ""
    cells = [group["name"], str(group["records"]), asked, spent + mark]
    cells += [_cell(group[name], up=False) for name in names]
    return [*cells, _cell(group["advantage"], up=True), _cell(group["excess"], up=True)]


def _cell(value: Any, *, up: bool) -> str:
    """Return a number in four digits, or in three and rounded up where it is an upper bound."""
    if not isinstance(value, float):
        return "–" if value is None else plain(value)
    return rounded_up(value, 3) if up else f"{value:.4g}"


def budget_cells(asked: float, spent: float) -> tuple[str, str]:
    """Return ε asked, and ε spent rounded up, in as many digits as tell which is larger.

    >>> budget_cells(0.5, 0.49991), budget_cells(0.5, 0.500001), budget_cells(0.50004, 0.50003)
    (('0.5', '0.5'), ('0.5', '0.5001'), ('0.50004', '0.50003'))
    """
    for digits in range(4, 18):
        asks, spends = f"{asked:.{digits}g}", rounded_up(spent, digits)
        if (float(spends) > float(asks)) == (spent > asked):
            break
    return asks, spends


def _head(plan: Plan, delta: str) -> list[str]:
    many = f"{plan.records} {plan.unit}s"
    first = f"{plan.strategy}: {many}, {plan.steps} steps, relation {plan.relation}{delta}"
    if len(plan.stages) > 1:
        return [first, f"{len(plan.stages)} stages, combined by: {plan.combine}"]
    stage = plan.stages[0]
    return [
        first,
        f"noise stddev {stage.noise_stddev:.6g} on the sum, expected batch size "
        f"{stage.expected_batch_size:g}",
    ]


def _foot(plan: Plan) -> list[str]:
    notes = ["", *plan.notes] if plan.notes else []
    if (plan.spent_share < UNSPENT).any():
        notes = ["", "* spends less than 95 % of what it asked", *notes]
    if not (plan.epsilon_spent <= plan.budget_groups.epsilon).all():
        notes = ["", "! BROKEN: spends more than was asked", *notes]
    if plan.releasable:
        return notes
    return [*notes, "", "NOT FOR RELEASE:", *(f"  {objection}" for objection in plan.objections)]
