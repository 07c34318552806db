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
from apiece.assignment import Correlated, Strategy, compare
from apiece.assignment.front import COMPARED, Compared, make_plan, make_strategy
from apiece.assignment.request import NOISES
from apiece.assignment.unspent import describe_shortfall
from apiece.budgets import Budgets
from apiece.budgets.frames import apply_cap
from apiece.budgets.groups import describe_cap, list_doubts, refuse_absurd
from apiece.cli._command import (
    DIALECT,
    NUMBER_OR_NAME,
    PATH,
    Command,
    Output,
    add_table_options,
    emit,
    format_table,
    make_dialect,
    make_dict,
    make_flag,
    option,
    parse_groups,
    parse_option,
    read_plan,
    refuse_given,
    require_delta,
    warn,
)
from apiece.errors import InputError, unknown
from apiece.plan import Plan
from apiece.plan.parts import UNSPENT
from apiece.prospects.gains import (
    MeasuredGain,
    PredictedGain,
    explain_missing,
    measured_gain,
    predicted_gain,
    relative_noise,
)

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
# The heads of a group's columns beyond those that every plan has, by their names in JSON.
HEADS = {
    "delta": "δ",
    "sampling_probability": "chance\nto join",
    "times": "steps\njoined",
    "clip_norm": "clip\nnorm",
    "noise_multiplier": "noise\nover clip",
}


# The largest number of groups that a table has all of.
MAX_ROWS = 20
# How many of the first and of the last groups a table of more has.
END_ROWS = 10
# How many times less noise than under one budget for all is nothing to speak of.
EQUAL_NOISE = 1.05
# Points of accuracy; where not even the upper gains reached so many, there is nothing to gain.
SMALL_GAIN = 0.5


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
@add_table_options
@option("--levels")
@option("--no-limit-cap")
@option("--batch-size")
@option("--steps")
@option("--clip-norm")
@option("--strategy")
@option("--option")
@option("--method", default="pld", help="Accounting method: pld or rdp.")
@option("--noise", default="independent", help="independent, correlated (fixed batches) or cyclic.")
@option("--separation", type=int, help="Steps between two of one record; with correlated noise.")
@option("--bands", type=int, help="Bands of correlated noise: one copy of the model each.")
@option("--buffers", type=int, help="Copies of the model that correlated noise remembers.")
@option("--momentum", type=float, help="Of the optimizer; with correlated noise.")
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
        plan = _make_plan(flags)
    if out is not None:
        write(out, plan.to_json(indent=2) + "\n", PLAN)
    if gaussian:
        _print_gaussians(plan, as_json)
    else:
        emit(as_json, plan.to_dict(), format_plan(plan))


def _make_plan(flags: Flags) -> Plan:
    """Return the plan that the flags describe; doubts about it are warnings."""
    budgets, strategy, settings = _read_request(flags)
    plan = make_plan(budgets, strategy, **settings)
    if flags["person"] is not None:
        plan = replace(plan, unit="person")
    if flags["no_limit_cap"] is not None:
        plan = replace(plan, notes=(*plan.notes, describe_cap(flags["no_limit_cap"])))
    warnings = list_doubts(plan.budget_groups)
    shortfall = describe_shortfall(plan)
    if shortfall is not None:
        warnings = [*warnings, shortfall]
    warn(warnings)
    return plan


def _print_gaussians(plan: Plan, as_json: bool) -> None:
    """Print each group's μ, slack and regret: numbers that add up, as squares, over trainings."""
    documents = []
    rows = [["group", "ε\nspent", "μ", "slack", "regret"]]
    for g, (group, spent) in enumerate(zip(plan.groups, plan.epsilon_spent, strict=True)):
        gaussian = plan.gaussian(g)
        documents.append(
            {
                "name": group.name,
                "epsilon": group.epsilon,
                "delta": group.delta,
                **asdict(gaussian),
            }
        )
        numbers = (float(spent), gaussian.mu, gaussian.slack, gaussian.regret)
        rows.append([group.name, *(rounded_up(number, 3) for number in numbers)])
    emit(as_json, {"groups": documents}, "\n".join(format_table(rows)))


def _read_request(flags: Flags) -> tuple[Budgets, Strategy, Flags]:
    """Return the budgets, the strategy, and the other arguments of `assign` and `compare`."""
    options = make_dict("--option", map(parse_option, flags["option"]))
    flags["delta"] = require_delta(flags["delta"])
    for name in ("batch_size", "steps"):
        if flags[name] is None:
            raise InputError(f"{make_flag(name)}: missing; give it, or --from a plan")
    budgets = read_budgets(flags)
    refuse_absurd(float(budgets.epsilon.max()))
    settings = {
        "steps": flags["steps"],
        "clip_norm": flags["clip_norm"],
        "method": flags["method"],
        "expected_batch_size": flags["batch_size"],
        "noise": _read_noise(flags),
    }
    return budgets, make_strategy(flags["strategy"], **options), settings


def _read_noise(flags: Flags) -> Correlated | None:
    """Return the correlated noise that the flags describe; None for independent noise."""
    kind = flags["noise"]
    if kind not in NOISES:
        raise unknown("noise", kind, NOISES)
    if kind == "independent":
        refuse_given(
            ("separation", "bands", "buffers", "momentum"),
            "is of correlated noise; add --noise correlated",
        )
        return None
    return Correlated(
        separation=flags["separation"],
        bands=flags["bands"],
        buffers=flags["buffers"],
        momentum=flags["momentum"] or 0.0,
        sampled=kind == "cyclic",
    )


def _compare(flags: Flags, parameters: int | None, classes: int | None, as_json: bool) -> None:
    """Print strategies side by side, the one of --strategy with its options among them."""
    if classes is not None and parameters is None:
        raise InputError("--parameters: missing; --classes needs it")
    budgets, chosen, settings = _read_request(flags)
    rows = compare(budgets, _list_strategies(chosen), **settings)
    warn(list_doubts(budgets.groups))
    # Noise over signal says how much noise a training has for its size; how much it disturbs
    # depends on the number of parameters too.
    noises = {}
    if parameters is not None:
        noises = {
            row.strategy: relative_noise(row.noise_over_signal, flags["steps"], parameters)
            for row in rows
            if row.noise_over_signal is not None
        }
    # What was measured and is predicted stands against one strict budget for all.
    baseline = noises.get("uniform")
    gain = None if baseline is None else measured_gain(baseline)
    predicted = {}
    if baseline is not None and gain is not None and classes is not None:
        predicted = {
            name: predicted_gain(baseline, noise, classes, strategy=name)
            for name, noise in noises.items()
            if name != "uniform"
        }
    document = {
        "strategies": [row.to_dict() for row in rows],
        "relative_noise": baseline,
        "measured_gain": None if gain is None else asdict(gain),
        "predicted_gain": {
            name: None if prediction is None else asdict(prediction)
            for name, prediction in predicted.items()
        },
    }
    comparison = format_comparison(rows)
    prospect = describe_prospect(rows, baseline, gain, predicted)
    emit(as_json, document, f"{comparison}\n\n{prospect}")


def _list_strategies(chosen: Strategy) -> list[Strategy | str]:
    """Return the strategies to compare, with the one chosen in the place of its name."""
    strategies: list[Strategy | str] = []
    for strategy in COMPARED:
        name = strategy if isinstance(strategy, str) else strategy.name
        strategies.append(chosen if name == chosen.name else strategy)
    if chosen not in strategies:
        strategies.append(chosen)
    return strategies


def format_comparison(compared: Sequence[Compared]) -> str:
    """Return strategies side by side, less than 80 columns wide, and the objections to each."""
    rows = [["strategy", "noise\nover signal", "less than\nuniform", "unspent", "largest\nexcess"]]
    for row in compared:
        if row.noise_over_signal is None:
            rows.append([row.strategy, *["–"] * 4])
            continue
        reduction = "–" if row.below_uniform is None else f"{row.below_uniform:.3g} x"
        excess = "–" if row.excess is None else rounded_up(row.excess)
        unspent = f"{100 * (row.unspent or 0.0):.3g} %"
        noise = f"{row.noise_over_signal:.4g}"
        rows.append([row.strategy, noise, reduction, unspent, excess])
    lines = format_table(rows)
    objections = [f"{row.strategy}: {row.objection}" for row in compared if row.objection]
    if objections:
        lines += ["", *map(plain, objections)]
    return "\n".join(lines)


def describe_prospect(
    rows: Sequence[Compared],
    noise: float | None,
    gain: MeasuredGain | None,
    predicted: Mapping[str, PredictedGain | None],
) -> str:
    """Return what so much less noise has been seen to bring; "nothing here" is an answer.

    Args:
        rows: The strategies.
        noise: The relative noise of a training under uniform; None where it is not known.
        gain: What was measured at that noise.
        predicted: What each strategy is predicted to gain.
    """
    # The individual strategy with the least noise counts, against the better of one budget for all.
    reductions = {row.strategy: row.below_uniform or 0.0 for row in rows if row.objection is None}
    # Rounded as in the table: strategies that are equal there are named together.
    rounded = {name: float(f"{factor:.3g}") for name, factor in reductions.items()}
    least_noise = max(rounded.values(), default=0.0)
    tied = [name for name, factor in rounded.items() if factor == least_noise] or ["uniform"]
    best = tied[0]
    one_budget = max(reductions.get("uniform", 0.0), reductions.get("threshold", 0.0))
    if reductions.get(best, 0.0) < EQUAL_NOISE * one_budget:
        text = "Nothing here: one budget for all has as little noise, within 5 %."
    elif noise is None:
        verb = "have" if len(tied) > 1 else "has"
        text = (
            f"{' and '.join(tied)} {verb} the least noise; with --parameters this says what that "
            "has brought."
        )
    elif gain is None:
        text = f"Noise {noise:.2g} of the signal under uniform: nothing was measured there."
    else:
        text = _describe_gain(gain, noise)
        # Beside the best, the best with correlated noise, where that is asked for.
        correlated = [name for name in predicted if ", " in name and reductions.get(name)]
        shown = [best, *sorted(correlated, key=reductions.__getitem__, reverse=True)[:1]]
        for name in dict.fromkeys(shown):
            if name in predicted:
                text += f" {_describe_prediction(name, predicted[name])}"
    return "\n".join(wrap(text, 79))


def _describe_prediction(strategy: str, prediction: PredictedGain | None) -> str:
    """Return a prediction with its interval, or why there is none, in words."""
    if prediction is None:
        return f"No prediction for {strategy}: {explain_missing(strategy)}."
    if prediction.level is None:
        chance = "by the interval found for sampled batches"
    else:
        chance = (
            f"with a chance of {100 * prediction.level:.0f} % or more, if your data is like the "
            f"{prediction.data_sets} data sets measured"
        )
    return (
        f"Predicted: {strategy} {prediction.points:+.1f} points over uniform; "
        f"{prediction.low:+.1f} to {prediction.high:+.1f} {chance}. Where they were not fitted, "
        f"such intervals held {prediction.inside} of {prediction.trainings} trainings, and "
        f"predictions erred by {prediction.error:.1f} points, “no gain” by "
        f"{prediction.error_of_none:.1f}."
    )


def _describe_gain(gain: MeasuredGain, noise: float) -> str:
    """Return what was measured at a noise, in words."""
    verdict = "Nothing here" if max(gain.over_uniform) < SMALL_GAIN else "Measured"
    low_noise, high_noise = gain.noise
    uniform_low, uniform_high = gain.over_uniform
    one_low, one_high = gain.over_one_budget
    return (
        f"{verdict}: in {gain.trainings} trainings with noise of {low_noise:g} to {high_noise:g} "
        f"of the signal under uniform (here {noise:.2g}), sample gained {uniform_low:+.1f} to "
        f"{uniform_high:+.1f} points of accuracy over uniform and {one_low:+.1f} to "
        f"{one_high:+.1f} over the better of uniform and threshold (the middle 80 %; "
        "docs/results/when-it-pays.md)."
    )


def read_budgets(flags: Flags) -> Budgets:
    """Return the budgets that the flags of a command describe: a table's, or those of groups."""
    delta = flags["delta"]
    excess = flags["excess"]
    cap = flags["no_limit_cap"]
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
            dialect=make_dialect(flags),
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
    groups = [
        (name, apply_cap(epsilon, cap), share)
        for name, epsilon, share in parse_groups(flags["groups"])
    ]
    budgets = Budgets.from_groups(groups, flags["records"], delta)
    return budgets if excess is None else budgets.bounded(excess)


def format_plan(plan: Plan) -> str:
    """Return the plan as a table for people, 80 columns wide; of many groups the first and last."""
    data = plan.to_dict()
    groups = data["groups"]
    deltas = {group["delta"] for group in groups}
    names = []
    if len(deltas) > 1:
        names.append("delta")
    # A plan of several stages has these numbers for each of them, and no table can show all.
    if "stages" not in data:
        share = "times" if plan.has_fixed_steps else "sampling_probability"
        names += [share, "clip_norm", "noise_multiplier"]
    rows = [_format_group(group, names) for group in groups]
    if len(rows) > MAX_ROWS:
        rows = [*rows[:END_ROWS], ["…"] * len(rows[0]), *rows[-END_ROWS:]]
    heads = [f"{plan.unit}s", "ε\nasked", "ε\nspent", *(HEADS[name] for name in names)]
    rows.insert(0, ["group", *heads, "advan-\ntage", "excess"])
    title = (
        f"{plan.strategy}: {plan.records} {plan.unit}s, {plan.steps} steps, relation "
        f"{plan.relation}"
    )
    if len(deltas) == 1:
        title += f", δ = {groups[0]['delta']:.6g}"
    lines = [title, _describe_stages(plan), "", *format_table(rows)]
    if not (plan.epsilon_spent <= plan.budget_groups.epsilon).all():
        lines += ["", "! BROKEN: spends more than was asked"]
    if (plan.spent_share < UNSPENT).any():
        lines += ["", "* spends less than 95 % of what it asked"]
    if plan.notes:
        lines += ["", *plan.notes]
    if not plan.releasable:
        lines += ["", "NOT FOR RELEASE:", *(f"  {objection}" for objection in plan.objections)]
    return "\n".join(lines)


def _describe_stages(plan: Plan) -> str:
    """Return noise and batch size of a plan of one stage, or how several are combined."""
    if len(plan.stages) > 1:
        return f"{len(plan.stages)} stages, combined by: {plan.combine}"
    stage = plan.stages[0]
    return (
        f"noise stddev {stage.noise_stddev:.6g} on the sum, expected batch size "
        f"{stage.expected_batch_size:g}"
    )


def _format_group(group: Json, names: list[str]) -> list[str]:
    """Return the cells of one group, with its numbers of these names."""
    asked, spent = format_budget(group["epsilon"], group["epsilon_spent"])
    if group["epsilon_spent"] > group["epsilon"]:
        spent += "!"
    elif group["spent_share"] < UNSPENT:
        spent += "*"
    return [
        group["name"],
        str(group["records"]),
        asked,
        spent,
        *(_format_number(group[name], round_up=False) for name in names),
        _format_number(group["advantage"], round_up=True),
        _format_number(group["excess"], round_up=True),
    ]


def _format_number(value: object, *, round_up: bool) -> str:
    """Return a number in four digits, or in three and rounded up where it is an upper bound."""
    if not isinstance(value, float):
        return "–" if value is None else plain(value)
    return rounded_up(value, 3) if round_up else f"{value:.4g}"


def format_budget(asked: float, spent: float) -> tuple[str, str]:
    """Return ε asked, and ε spent rounded up, in as many digits as tell which is larger.

    >>> format_budget(0.5, 0.49991), format_budget(0.5, 0.500001), format_budget(0.50004, 0.50003)
    (('0.5', '0.5'), ('0.5', '0.5001'), ('0.50004', '0.50003'))
    """
    # Seventeen digits tell any two floats apart.
    for digits in range(4, 18):
        asked_text = f"{asked:.{digits}g}"
        spent_text = rounded_up(spent, digits)
        if (float(spent_text) > float(asked_text)) == (spent > asked):
            break
    return asked_text, spent_text
