"""How an answer is shown: names, order and choice of groups, from noisy numbers alone.

All of this is post-processing of what is released, which costs nobody anything.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any, Final

from apiece._types import Json
from apiece.queries.question import Question
from apiece.queries.sql import Limit, Order, Statement

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
        groups.append(_name_parts(statement, labels, estimates))
    for limit in statement.limits:
        groups = [group for group in groups if _is_shown(statement, group, limit)]
    # Later keys first: sorting keeps the order of equals.
    for order in reversed(statement.orders):
        groups.sort(key=_make_key(statement, order), reverse=order.descending)
    return groups if statement.shown is None else groups[: statement.shown]


def _name_parts(statement: Statement, labels: Json, estimates: Sequence[Json]) -> Json:
    """Return a group with its labels and its estimates, by name if there are several."""
    named = {statement.group_labels.get(name, name): value for name, value in labels.items()}
    if len(estimates) == 1:
        return named | estimates[0]
    return named | {"statistics": dict(zip(statement.labels, estimates, strict=True))}


def _estimate_of(statement: Statement, group: Json, label: str) -> float:
    """Return the noisy number of a statistic of a group; of several numbers, the first."""
    estimates = group["statistics"][label] if "statistics" in group else group
    if "estimate" in estimates:
        return float(estimates["estimate"])
    parts = estimates.get("bins") or list(estimates.get("quantiles", {}).values())
    return float(parts[0]["estimate"])


def _is_shown(statement: Statement, group: Json, limit: Limit) -> bool:
    return _COMPARE[limit.sign](_estimate_of(statement, group, limit.label), limit.number)


def _make_key(statement: Statement, order: Order) -> Callable[[Json], Any]:
    """Return the key by which groups are ordered: a statistic, or the group's own value."""

    def find_key(group: Json) -> Any:
        if order.label in statement.labels:
            return (0, _estimate_of(statement, group, order.label))
        value = group[order.label]
        # Numbers before texts, where a column has both.
        return (1, str(value)) if isinstance(value, str) else (0, value)

    return find_key
