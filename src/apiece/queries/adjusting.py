"""Answers made fit for publication: rounded, and consistent with each other.

Both are post-processing of what is released, and cost nobody anything. An interval stays that of
the noisy number.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, Final

import numpy as np

from apiece._types import Floats, Json
from apiece.errors import InputError
from apiece.queries.fields import FIELDS, labels_of

# Numbers of all answers together that are made consistent, at most.
CELLS: Final = 5000


def list_rows(group: Json) -> list[tuple[str, str, Json]]:
    """Return the numbers of a group: statistic, part of it (a bin, a level, a name), estimate."""
    if "statistics" not in group:
        return [("", part, estimate) for part, estimate in _list_parts(group)]
    return [
        (statistic, part, estimate)
        for statistic, numbers in group["statistics"].items()
        for part, estimate in _list_parts(numbers)
    ]


def _list_parts(numbers: Json) -> list[tuple[str, Json]]:
    if "bins" in numbers:
        names = [f"{low!r} to {high!r}" for low, high in pairwise(numbers["edges"])]
        return list(zip(names, numbers["bins"], strict=True))
    # A regression and several quantiles have named parts; anything else is one number.
    parts = numbers.get("coefficients") or numbers.get("quantiles")
    return [("", numbers)] if parts is None else list(parts.items())


def make_rows(groups: Sequence[Json], query: str, *, rounded: bool) -> list[Json]:
    """Return one row a number: the group's values, its statistic and part, estimate, low, high.

    A value that was found has no number, and its row no more than the value. Raises `InputError`
    where a grouping column has the name of another column of the row.
    """
    rows = []
    for group in groups:
        if not FIELDS & group.keys():
            rows.append(labels_of(group, query))
            continue
        for statistic, part, estimate in list_rows(group):
            row: Json = {}
            if statistic:
                row["statistic"] = statistic
            if part:
                row["part"] = part
            low, high = estimate.get("interval", (math.nan, math.nan))
            value = estimate["estimate"]
            numbers = [math.nan if value is None else float(value), float(low), float(high)]
            if rounded:
                numbers = round_estimate(*numbers)
            row |= dict(zip(("estimate", "low", "high"), numbers, strict=True))
            labels = labels_of(group, query)
            # One of the two would be lost.
            clash = labels.keys() & row.keys()
            if clash:
                raise InputError(
                    f"answer: its table has a column {min(clash)!r} of its own; read the groups, "
                    "or ask in SQL, where AS gives the column another name"
                )
            rows.append(labels | row)
    return rows


def round_estimate(estimate: float, low: float, high: float) -> list[float]:
    """Return a number and its interval as a table prints them: to two digits of the half width.

    The interval is rounded outwards, so that it covers what it covered.
    """
    half = (high - low) / 2
    if not 0 < half < math.inf:
        return [estimate, low, high]
    # The second digit of the half width is the last that is shown.
    digits = 1 - math.floor(math.log10(half))
    step = 10.0**-digits
    return [
        round(estimate, digits),
        round(math.floor(low / step) * step, digits),
        round(math.ceil(high / step) * step, digits),
    ]


def make_consistent(answers: Sequence[tuple[str, list[Json]]]) -> list[list[Json]]:
    """Return the groups of answers of counts or sums, non-negative, with margins that add up.

    The finest answer has all grouping columns; a group of another answer is the sum of the finest
    groups that have its values. The least-squares solution weighs each number by its noise.

    Args:
        answers: The query and the groups of each.

    Raises:
        InputError: For an answer of other numbers, grouping columns that the finest lacks, and
            answers none of which has a group.
    """
    with_groups = [answer for answer in answers if answer[1]]
    if not with_groups:
        raise InputError("consistent: no answer has a group; give answers with numbers")
    # The answer with the most columns; that it has all of them is checked group by group. Another
    # one may have as many groups, where a column has one value.
    question, finest = max(with_groups, key=lambda answer: len(labels_of(answer[1][0], answer[0])))
    cells = [labels_of(group, question) for group in finest]
    # One equation for each number of each answer: the sum of the finest groups that are in its
    # group is the number, both multiplied by 1 over the half width of its interval.
    rows: list[Floats] = []
    targets: list[float] = []
    for query, numbers in answers:
        for group in numbers:
            labels = labels_of(group, query)
            if not set(labels) <= set(cells[0]):
                extra = sorted(set(labels) - set(cells[0]))
                raise InputError(
                    f"consistent: no answer has all grouping columns (one lacks {extra[0]!r}); "
                    "give one that is grouped by all of them"
                )
            estimate, weight = _read_count(query, group)
            member = [all(cell[name] == label for name, label in labels.items()) for cell in cells]
            rows.append(np.array(member, dtype=np.float64) * weight)
            targets.append(estimate * weight)
    if len(rows) * len(cells) > CELLS**2:
        raise InputError(f"consistent: {len(rows)} numbers; give at most {CELLS} in all")
    solution = _solve_nonnegative(np.array(rows), np.array(targets))
    adjusted = []
    for query, numbers in answers:
        groups = []
        for group in numbers:
            labels = labels_of(group, query)
            # Every number becomes the sum of its finest cells, so that all answers agree.
            total = sum(
                value
                for cell, value in zip(cells, solution.tolist(), strict=True)
                if all(cell[name] == label for name, label in labels.items())
            )
            groups.append({**group, "estimate": float(total)})
        adjusted.append(groups)
    return adjusted


def _read_count(query: str, group: Json) -> tuple[float, float]:
    """Return a group's number, and one over its half width."""
    interval: Any = group.get("interval")
    if group.get("estimate") is None or interval is None:
        raise InputError(
            f"consistent: {query!r} is not one count or sum of each group; give such answers"
        )
    low, high = interval
    # A number without noise has an interval of width 0, and a weight that is large and finite.
    return float(group["estimate"]), 2 / max(high - low, 1e-300)


def _solve_nonnegative(matrix: Floats, target: Floats) -> Floats:
    """Return the non-negative least-squares solution."""
    from scipy.optimize import nnls

    solution, _ = nnls(matrix, target)
    return np.asarray(solution)
