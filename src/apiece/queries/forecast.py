"""How wide an answer will be, before anybody pays: from public numbers, or from made-up rows.

The noise of counts, sums and histograms is public, and so is the width of their intervals. That of
a mean, a spread or a quantile depends on the rows: it is found on made-up ones, as many as the
asker says, spread evenly over the declared bounds.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from apiece import _check
from apiece._types import Floats
from apiece.errors import InputError
from apiece.queries.estimates import estimate
from apiece.queries.parts import Part
from apiece.queries.quantiles import CONFIDENCE, count_draws, level_margins, rank_margin
from apiece.queries.question import MOMENTS, Question, list_moments

# Statistics whose intervals are as wide whatever the rows are.
EXACT: Final = ("count", "distinct", "sum", "histogram")
# The least and largest ε that are tried.
_LEAST: Final = 1e-6
_MOST: Final = 1e4
# What is left between an ε that is enough and one that is not, in proportion.
_CLOSE: Final = 1e-3
_WITHIN: Final = re.compile(r"\s*[±+]?-?\s*([0-9]*\.?[0-9]+(?:[eE][-+]?[0-9]+)?)\s*(%?)\s*")


@dataclass(frozen=True, slots=True)
class Width:
    """Half the width of a statistic's 95 % interval in one group.

    Attributes:
        margin: Half the width, in the unit of the statistic.
        rows: The made-up rows of a group for which it holds; None where it holds for all.

    Example:
        >>> from apiece.queries.forecast import Width
        >>> Width(12.5, None).margin
        12.5
    """

    margin: float
    rows: int | None


def forecast_width(part: Part, rows: int) -> Width:
    """Return half the width of the interval that a statistic's answer will have in one group.

    Args:
        part: The statistic with its noise.
        rows: Made-up rows of a group, for statistics whose width depends on rows.
    """
    # Where bounds differ by group, the widest.
    question = part.question.widest
    aggregate = question.query.aggregate
    if question.grid is not None:
        return Width(_forecast_quantile(part, rows), rows)
    sums = _make_sums(question, rows)
    answer = estimate(question, sums, part.scale, part.pure)
    if aggregate == "histogram":
        answer = answer["bins"][0]
    if aggregate == "regression":
        # Of several numbers, the widest.
        answer = max(answer["coefficients"].values(), key=_margin_of)
    return Width(_margin_of(answer), None if aggregate in EXACT else rows)


def _margin_of(answer: dict[str, list[float]]) -> float:
    low, high = answer["interval"]
    return (high - low) / 2


def _make_sums(question: Question, rows: int) -> Floats:
    """Return the sums of a group of made-up rows, even between the bounds of each column."""
    cells = question.cell_count
    if question.query.aggregate not in MOMENTS:
        return np.full((cells, 1), rows / cells)
    # Of a scaled column that is even in [−1, 1]: the mean of x is 0, that of x² is 1/3.
    means = []
    for product in list_moments(question.query):
        # Columns are taken as independent: the mean of a product is that of its powers' means, 1/(p
        # + 1) of an even power p and 0 of an odd one.
        powers = [product.count(name) for name in dict.fromkeys(product)]
        means.append(math.prod(0.0 if power % 2 else 1 / (power + 1) for power in powers))
    return np.array([means]) * rows


def _forecast_quantile(part: Part, rows: int) -> float:
    """Return by how much a quantile of even rows is missed, with confidence, in its own unit."""
    question = part.question
    grid = question.grid
    assert grid is not None
    (measure,) = question.measures
    levels = question.query.numbers
    # Made-up rows are even between the bounds: a share of the rows is as large a share of the
    # range.
    if question.query.aggregate == "interval":
        share = part.epsilon / count_draws(question.query)
        margin = rank_margin(grid, levels[0], share, question.rows, CONFIDENCE)
    else:
        # Of several levels the one that may be missed by most.
        margin = max(level_margins(grid, levels, part.epsilon, question.rows, CONFIDENCE))
    width = measure.high - measure.low
    return min(margin / rows, 1.0) * width


def range_of(part: Part, rows: int) -> float:
    """Return the number of which a percentage is meant: the rows of a group, or a column's range.

    Of a sum it is the sum of so many of the largest values.
    """
    question = part.question.widest
    match question.query.aggregate:
        case "count" | "distinct" | "histogram":
            return float(rows)
        case "sum":
            return rows * question.measures[0].largest
        case "correlation":
            return 2.0
        case "variance" | "sample_variance":
            return (2 * question.measures[0].half) ** 2
        case "covariance" | "sample_covariance":
            return 4 * question.measures[0].half * question.measures[1].half
    return 2 * question.measures[0].half


def read_within(text: str) -> tuple[float, bool]:
    """Return the number of "50" or "±2%", and whether it is a percentage; raise `InputError`."""
    match = _WITHIN.fullmatch(text)
    if match is None or not float(match[1]) > 0:
        raise InputError(f"within = {text!r}: give half the width, as in '50' or '2%'")
    number = float(match[1])
    return (number / 100, True) if match[2] else (number, False)


def find_least_epsilon(
    make_parts: Callable[[float], Sequence[Part]], within: str, rows: int
) -> float:
    """Return the least ε, to a thousandth, with which every statistic's interval is narrow enough.

    Args:
        make_parts: ε → the statistics with their noise.
        within: Half the width: a number, or a percentage of `range_of`.
        rows: Made-up rows of a group.

    Raises:
        InputError: Where no ε that gives privacy is enough.
    """
    _check.count("rows", rows)
    target, is_share = read_within(within)

    def is_enough(epsilon: float) -> bool:
        for part in make_parts(epsilon):
            limit = target * range_of(part, rows) if is_share else target
            if not forecast_width(part, rows).margin <= limit:
                return False
        return True

    low = _LEAST
    high = _LEAST
    # Widths fall as ε rises: first a factor of 4 at a time until one is enough, then by halves of
    # the logarithm between the last two.
    while high < _MOST and not _try(is_enough, high):
        low = high
        high *= 4
    if not _try(is_enough, high):
        raise InputError(
            f"within = {within!r}: no ε below {_MOST:g} is enough for {rows} rows a group; give a "
            "wider interval, fewer groups or more rows"
        )
    while high / low > 1 + _CLOSE:
        middle = math.sqrt(low * high)
        if _try(is_enough, middle):
            high = middle
        else:
            low = middle
    return high


def _try(is_enough: Callable[[float], bool], epsilon: float) -> bool:
    try:
        return is_enough(epsilon)
    except InputError:
        # Too small an ε for the grid of the noise.
        return False
