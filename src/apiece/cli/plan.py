"""apiece plan: from budgets to a verified plan."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from textwrap import wrap
from typing import Any

import click

from apiece._files import PLAN, write
from apiece._text import plain, rounded_up
from apiece._types import Flags, Json
from apiece.assignment import (
    Compared,
    MeasuredGain,
    PredictedGain,
    compare,
    measured_gain,
    predicted_gain,
    relative_noise,
)
from apiece.assignment.front import COMPARED, make_plan, make_strategy
from apiece.assignment.unspent import describe_shortfall
from apiece.budgets import Budgets
from apiece.budgets.frames import capped
from apiece.budgets.groups import cap_note, doubts, refuse_absurd
from apiece.cli._command import (
    DIALECT,
    NUMBER_OR_NAME,
    PATH,
    Command,
    Output,
    columns,
    dialect_from,
    emit,
    flag_of,
    groups_from,
    needed_delta,
    once,
    option,
    parse_option,
    read_plan,
    refuse_given,
    table_options,
    warn,
)
from apiece.errors import InputError
from apiece.plan import Plan
from apiece.plan.parts import UNSPENT

EXAMPLE = """
\b
Example:
  apiece plan --records 50000 --groups strict:1:0.34,medium:2:0.43,weak:3:0.23 \\
              --delta 1e-5 --batch-size 1024 --steps 1465 --clip-norm 0.4 --strategy sample
  apiece plan --data people.csv --epsilon consent_epsilon --delta 1e-5 \\
              --batch-size 512 --steps 1000 --clip-norm 1 --strategy scale --json
  apiece plan --records 50000 --groups strict:1:0.5,weak:3:0.5 --delta 1e-5 \\
              --batch-size 1024 --steps 1465 --compare --parameters 2570 --classes 10
"""
HEADS = {
    "delta": "δ",
    "sampling_probability": "chance\nto join",
    "clip_norm": "clip\nnorm",
    "noise_multiplier": "noise\nover clip",
}


@click.command(cls=Command, epilog=EXAMPLE)
@option("--records", help="Number of records; with --groups.")
@option("--groups")
@option("--data", help="CSV or Parquet file with a budget column.")
@option("--epsilon", help="Budget column; with --data.")
@option("--delta", type=NUMBER_OR_NAME, help="One δ for all, or the column of each record's δ.")
@option(
    "--excess",
    type=NUMBER_OR_NAME,
    help="One bound Δ̄ on the excess risk for all, or the column of each record's.",
)
@option("--ids", help="Column of unique record ids; with --data.")
@option("--person", help="Column of persons' ids; with --data. A person may have several rows.")
@table_options
@option("--levels")
@option("--no-limit-cap")
@option("--batch-size")
@option("--steps")
@option("--clip-norm")
@option("--strategy")
@option("--option")
@option("--method", default="pld", help="Accounting method: pld or rdp.")
@option("--from", "source", type=PATH, help="Read a plan's JSON file and verify it.")
@option("--gaussian", is_flag=True, help="Print each group's μ, with its slack and regret.")
@option("--compare", "compared", is_flag=True, help="Compare several strategies in a table.")
@option("--parameters", type=int, help="Number of parameters of the model; with --compare.")
@option("--classes", type=int, help="Number of classes; with --compare and --parameters.")
@option("--out", type=Output(PLAN), help="Write the plan's JSON here.")
@option("--json")
def command(
    source: Path | None,
    out: Path | None,
    as_json: bool,
    compared: bool,
    parameters: int | None,
    classes: int | None,
    gaussian: bool,
    **flags: Any,
) -> None:
    """Turn budgets into a verified plan: rates, clip norms and noise that keep each promise."""
    if compared:
        if source is not None or out is not None:
            raise InputError("--compare: makes several plans; leave --from and --out out")
        refuse_given(["gaussian"], "prints one plan; leave it out, or --compare")
        _compare(flags, parameters, classes, as_json)
        return
    if parameters is not None or classes is not None:
        raise InputError("--parameters, --classes: are for --compare; add it, or leave them out")
    if source is not None:
        refuse_given(flags, "a plan read by --from has its own; leave it out")
        plan = read_plan(source)
    else:
        budgets, strategy, how = _asked(flags)
        plan = make_plan(budgets, strategy, **how)
        if flags["person"] is not None:
            plan = replace(plan, unit="person")
        if (cap := flags["no_limit_cap"]) is not None:
            plan = replace(plan, notes=(*plan.notes, cap_note(cap)))
        short = describe_shortfall(plan)
        warn([*doubts(plan.budget_groups), *([] if short is None else [short])])
    if out is not None:
        write(out, plan.to_json(indent=2) + "\n", PLAN)
    if gaussian:
        _print_gaussians(plan, as_json)
    else:
        emit(as_json, plan.to_dict(), table(plan))


def _print_gaussians(plan: Plan, as_json: bool) -> None:
    """Print each group's μ, slack and regret: numbers that add up, as squares, over trainings."""
    groups, rows = [], [["group", "ε\nspent", "μ", "slack", "regret"]]
    for k, (group, spent) in enumerate(zip(plan.groups, plan.epsilon_spent, strict=True)):
        gaussian, asked = plan.gaussian(k), {"epsilon": group.epsilon, "delta": group.delta}
        groups.append({"name": group.name, **asked, **asdict(gaussian)})
        numbers = (float(spent), gaussian.mu, gaussian.slack, gaussian.regret)
        rows.append([group.name, *(rounded_up(each, 3) for each in numbers)])
    emit(as_json, {"groups": groups}, "\n".join(columns(rows)))


def _asked(flags: Flags) -> tuple[Budgets, Any, Flags]:
    """Return the budgets, the strategy, and the other arguments of `assign` and `compare`."""
    options = once("--option", map(parse_option, flags["option"]))
    flags["delta"] = needed_delta(flags["delta"])
    for name in ("batch_size", "steps"):
        if flags[name] is None:
            raise InputError(f"{flag_of(name)}: missing; give it, or --from a plan")
    budgets = budgets_from(flags)
    refuse_absurd(float(budgets.epsilon.max()))
    how = {name: flags[name] for name in ("steps", "clip_norm", "method")}
    how["expected_batch_size"] = flags["batch_size"]
    return budgets, make_strategy(flags["strategy"], **options), how


def _compare(flags: Flags, parameters: int | None, classes: int | None, as_json: bool) -> None:
    """Print what each strategy makes of the budgets, the given one with its options among them."""
    if classes is not None and parameters is None:
        raise InputError("--parameters: missing; --classes needs it")
    budgets, given, how = _asked(flags)
    strategies = [
        given if given.name == (each if isinstance(each, str) else each.name) else each
        for each in COMPARED
    ]
    rows = compare(budgets, strategies if given in strategies else [*strategies, given], **how)
    warn(doubts(budgets.groups))
    noises = {
        row.strategy: relative_noise(row.noise_over_signal, flags["steps"], parameters)
        for row in rows
        if parameters is not None and row.noise_over_signal is not None
    }
    base = noises.get("uniform")
    gain = None if base is None else measured_gain(base)
    predicted = {
        name: predicted_gain(base, noise, classes)
        for name, noise in noises.items()
        if base is not None and classes is not None and gain is not None
    }
    document = {
        "strategies": [row.to_dict() for row in rows],
        "relative_noise": base,
        "measured_gain": None if gain is None else asdict(gain),
        "predicted_gain": {n: None if p is None else asdict(p) for n, p in predicted.items()},
    }
    emit(as_json, document, f"{comparison(rows)}\n\n{prospect(rows, base, gain, predicted)}")


def comparison(compared: Sequence[Compared]) -> str:
    """Return strategies side by side, less than 80 columns wide, and what there is against each."""
    rows = [["strategy", "noise\nover signal", "less than\nuniform", "unspent", "largest\nexcess"]]
    for each in compared:
        if each.noise_over_signal is None:
            rows.append([each.strategy, *["–"] * 4])
            continue
        less = "–" if each.below_uniform is None else f"{each.below_uniform:.3g} x"
        excess = "–" if each.excess is None else rounded_up(each.excess)
        unspent = f"{100 * (each.unspent or 0.0):.3g} %"
        rows.append([each.strategy, f"{each.noise_over_signal:.4g}", less, unspent, excess])
    against = [f"{each.strategy}: {each.objection}" for each in compared if each.objection]
    return "\n".join([*columns(rows), *([""] if against else []), *map(plain, against)])


def prospect(
    rows: Sequence[Compared],
    noise: float | None,
    gain: MeasuredGain | None,
    predicted: Mapping[str, PredictedGain | None],
) -> str:
    """Return what so much less noise has been seen to bring; "nothing here" is an answer."""
    # The individual strategy with the least noise counts, against the better of one budget for all.
    less = {row.strategy: row.below_uniform or 0.0 for row in rows if row.objection is None}
    # As the table shows them: who is equal there is named together.
    shown = {name: float(f"{times:.3g}") for name, times in less.items()}
    tied = [name for name, times in shown.items() if times == max(shown.values())] or ["uniform"]
    best, all_best = tied[0], " and ".join(tied)
    one = max(less.get("uniform", 0.0), less.get("threshold", 0.0))
    if less.get(best, 0.0) < 1.05 * one:
        told = "Nothing here: one budget for all has as little noise, within 5 %."
    elif noise is None:
        have = "have" if tied[1:] else "has"
        told = (
            f"{all_best} {have} the least noise; with --parameters this says what that has brought."
        )
    elif gain is None:
        told = f"Noise {noise:.2g} of the signal under uniform: nothing was measured there."
    else:
        over, beside = gain.over_uniform, gain.over_one_budget
        told = (
            f"{'Nothing here' if max(over) < 0.5 else 'Measured'}: in {gain.trainings} trainings "
            f"with noise of {gain.noise[0]:g} to {gain.noise[1]:g} of the signal under uniform "
            f"(here {noise:.2g}), sample gained {over[0]:+.1f} to {over[1]:+.1f} points of "
            f"accuracy over uniform and {beside[0]:+.1f} to {beside[1]:+.1f} over the better of "
            "uniform and threshold (the middle 80 %; docs/results/when-it-pays.md)."
        )
        if (guess := predicted.get(best)) is not None:
            told += (
                f" Predicted: {best} {guess.points:+.1f} points over uniform. On data sets held "
                f"back such predictions erred by {guess.error:.1f} points, “no gain” by "
                f"{guess.error_of_none:.1f}."
            )
    return "\n".join(wrap(told, 79))


def budgets_from(flags: Flags) -> Budgets:
    """Return the budgets that the flags of a command describe."""
    delta, excess, cap = flags["delta"], flags["excess"], flags["no_limit_cap"]
    if flags["data"] is not None:
        if flags["groups"] is not None or flags["records"] is not None:
            raise InputError("--data: budgets are given twice; leave out --groups and --records")
        if flags["epsilon"] is None:
            raise InputError("--epsilon: missing; give the name of the budget column of --data")
        return Budgets.from_frame(
            flags["data"],
            epsilon=flags["epsilon"],
            delta=delta,
            ids=flags["ids"],
            person=flags["person"],
            excess=excess,
            levels=flags["levels"],
            no_limit_cap=cap,
            dialect=dialect_from(flags),
        )
    if flags["person"] is not None:
        raise InputError("--person: is a column of --data; give the table, or leave it out")
    refuse_given(
        ("epsilon", "ids", "levels", *DIALECT), "is for a table; give --data, or leave it out"
    )
    if flags["groups"] is None or flags["records"] is None:
        raise InputError("budgets: none given; give --records and --groups, or --data")
    if isinstance(delta, str) or isinstance(excess, str):
        raise InputError(f"--delta, --excess = {delta!r}, {excess!r}: give numbers with --groups")
    groups = [(n, capped(e, cap), share) for n, e, share in groups_from(flags["groups"])]
    budgets = Budgets.from_groups(groups, flags["records"], delta)
    return budgets if excess is None else budgets.bounded(excess)


def table(plan: Plan) -> str:
    """Return the plan as a table for people, 80 columns wide; of many groups the first and last."""
    data = plan.to_dict()
    groups, deltas = data["groups"], {group["delta"] for group in data["groups"]}
    names = [] if "stages" in data else list(HEADS)[1:]
    names = (["delta"] if len(deltas) > 1 else []) + names
    rows = [_row(group, names) for group in groups]
    if len(rows) > 20:
        rows = [*rows[:10], ["…"] * len(rows[0]), *rows[-10:]]
    heads = [f"{plan.unit}s", "ε\nasked", "ε\nspent", *(HEADS[name] for name in names)]
    shown = columns([["group", *heads, "advan-\ntage", "excess"], *rows])
    one = f", δ = {groups[0]['delta']:.6g}" if len(deltas) == 1 else ""
    many = f"{plan.records} {plan.unit}s, {plan.steps} steps"
    head = [f"{plan.strategy}: {many}, relation {plan.relation}{one}"]
    if len(plan.stages) > 1:
        head.append(f"{len(plan.stages)} stages, combined by: {plan.combine}")
    else:
        stage = plan.stages[0]
        head.append(
            f"noise stddev {stage.noise_stddev:.6g} on the sum, expected batch size "
            f"{stage.expected_batch_size:g}"
        )
    notes = ["", *plan.notes] if plan.notes else []
    if (plan.spent_share < UNSPENT).any():
        notes = ["", "* spends less than 95 % of what it asked", *notes]
    if not (plan.epsilon_spent <= plan.budget_groups.epsilon).all():
        notes = ["", "! BROKEN: spends more than was asked", *notes]
    if not plan.releasable:
        notes += ["", "NOT FOR RELEASE:", *(f"  {objection}" for objection in plan.objections)]
    return "\n".join([*head, "", *shown, *notes])


def _row(group: Json, names: list[str]) -> list[str]:
    """Return the cells of one group."""
    asked, spent = budget_cells(group["epsilon"], group["epsilon_spent"])
    broken = group["epsilon_spent"] > group["epsilon"]
    mark = "!" if broken else "*" if group["spent_share"] < UNSPENT else ""
    cells = [group["name"], str(group["records"]), asked, spent + mark]
    cells += [_cell(group[name], up=False) for name in names]
    return [*cells, _cell(group["advantage"], up=True), _cell(group["excess"], up=True)]


def _cell(value: object, *, up: bool) -> str:
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
