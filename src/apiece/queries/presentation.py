"""How an answer is shown: names, order and choice of groups, from noisy numbers alone.

All of this is post-processing of what is released, which costs nobody anything.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from statistics import NormalDist
from typing import Any, Final

import numpy as np

from apiece._types import Floats, Json
from apiece.queries.estimates import DRAWS
from apiece.queries.quantiles import CONFIDENCE
from apiece.queries.question import Question
from apiece.queries.sql import Formula, Limit, Order, Statement

# The signs of HAVING.
_COMPARE: Final[dict[str, Callable[[float, float], bool]]] = {
    "=": operator.eq,
    "<>": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}


def present_groups(
    statement: Statement, questions: Sequence[Question], columns: Sequence[list[Json]]
) -> list[Json]:
    """Return the groups of an answer, as a statement shows them.

    Args:
        statement: What was asked.
        questions: The question of each statistic; all have the same groups.
        columns: Of each statistic the estimate of each group.
    """
    groups = []
    for number, labels in enumerate(questions[0].groups):
        estimates = [column[number] for column in columns]
        # All groups are answered, with their noise, before any is left out: HAVING chooses among
        # noisy numbers.
        groups.append(_name_parts(statement, labels, estimates))
    for limit in statement.limits:
        groups = [group for group in groups if _is_shown(group, limit)]
    # Later keys first: sorting keeps the order of equals.
    for order in reversed(statement.orders):
        groups.sort(key=_make_key(statement, order), reverse=order.descending)
    return groups if statement.shown is None else groups[: statement.shown]


def _name_parts(statement: Statement, labels: Json, estimates: Sequence[Json]) -> Json:
    """Return a group with its labels and its numbers, by name if there are several."""
    named = {statement.group_labels.get(name, name): value for name, value in labels.items()}
    # A single number stands beside the labels of its group; several go by their names.
    if statement.formulas is None and len(estimates) == 1:
        return named | estimates[0]
    if statement.formulas is None:
        return named | {"statistics": dict(zip(statement.labels, estimates, strict=True))}
    shown: Json = {}
    for name, formula in statement.formulas:
        if formula.statistic >= 0:
            shown[name] = estimates[formula.statistic]
        else:
            shown[name] = _calculate(formula, estimates)
    if len(shown) == 1:
        only: Json = next(iter(shown.values()))
        return named | only
    return named | {"statistics": shown}


def _calculate(formula: Formula, estimates: Sequence[Json]) -> Json:
    """Return arithmetic on noisy numbers, with an interval from their noise drawn again."""
    # The draws describe an interval, they hide nothing: their seed is fixed. Statistics of a
    # question have independent noise. A division by what is 0 has no number.
    generator = np.random.default_rng(0)
    draws = []
    for estimate in estimates:
        value = float(estimate.get("estimate", math.nan))
        low, high = estimate.get("interval", (value, value))
        # The deviation of a normal whose interval has this width. The first entry is the released
        # number itself, the others are draws around it.
        deviation = (high - low) / 2 / NormalDist().inv_cdf((1 + CONFIDENCE) / 2)
        draws.append(value + deviation * np.append(0.0, generator.normal(size=DRAWS)))
    values = _evaluate(formula, draws)
    value = float(values[0])
    finite = values[1:][np.isfinite(values[1:])]
    if not (math.isfinite(value) and finite.size):
        return {"estimate": None}
    tail = (1 - CONFIDENCE) / 2
    low, high = np.quantile(finite, [tail, 1 - tail])
    return {"estimate": value, "interval": [float(min(low, value)), float(max(high, value))]}


def _evaluate(formula: Formula, draws: Sequence[Floats]) -> Floats:
    """Return the numbers of a formula, one for each draw of the statistics."""
    if formula.statistic >= 0:
        return draws[formula.statistic]
    if not formula.sign:
        return np.full(DRAWS + 1, formula.number)
    # Of draws, (DRAWS + 1,) each. Overflow and invalid numbers are left in, and passed over by
    # whoever reads them.
    left, right = (_evaluate(part, draws) for part in formula.parts)
    with np.errstate(all="ignore"):
        match formula.sign:
            case "+":
                return np.asarray(left + right)
            case "-":
                return np.asarray(left - right)
            case "*":
                return np.asarray(left * right)
            case "/":
                return np.asarray(np.where(right == 0, np.nan, left / right))
    return np.asarray(np.round(left, int(right[0])))


def _estimate_of(group: Json, label: str) -> float:
    """Return the noisy number of a statistic of a group; of several numbers, the first."""
    estimates = group["statistics"][label] if "statistics" in group else group
    if "estimate" in estimates:
        value = estimates["estimate"]
        # A ratio without a number comes last in descending order, and is above no limit.
        return -math.inf if value is None else float(value)
    parts = estimates.get("bins") or list(estimates.get("quantiles", {}).values())
    return float(parts[0]["estimate"])


def _is_shown(group: Json, limit: Limit) -> bool:
    return _COMPARE[limit.sign](_estimate_of(group, limit.label), limit.number)


def _make_key(statement: Statement, order: Order) -> Callable[[Json], Any]:
    """Return the key by which groups are ordered: a statistic, or the group's own value."""

    def find_key(group: Json) -> Any:
        if order.label not in statement.group_labels.values():
            return (0, _estimate_of(group, order.label))
        value = group[order.label]
        # Numbers before texts, where a column has both.
        return (1, str(value)) if isinstance(value, str) else (0, value)

    return find_key
