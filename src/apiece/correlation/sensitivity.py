"""How far one person moves C x, when and how often they take part being limited.

A person takes part in at most k of T steps, any two at least b apart, each time with a vector of
norm at most 1. The schedule does not depend on who is there; what the vectors are may depend on all
that was released before.
"""

import numpy as np

from apiece import _check
from apiece._types import Floats
from apiece.correlation.series import correlate_series
from apiece.correlation.strategies import NoiseStrategy
from apiece.errors import RangeError

# Steps, at most: coefficients, and what they come to, are held for each.
MOST_STEPS = 10**6

# A sum of n products of rounded numbers is off by at most about n·2⁻⁵³ of the sum of their sizes;
# twice that, and some for the square root, is the margin.
_MARGIN = 2.0**-52


def count_participations(steps: int, participations: int, separation: int) -> int:
    """Return how often a person can take part at most: `participations`, or as many as fit."""
    return min(participations, (steps - 1) // separation + 1)


def sensitivity_bound(
    strategy: NoiseStrategy, *, steps: int, participations: int, separation: int
) -> float:
    """Return an upper bound on ‖C u‖₂ over every schedule and all vectors u_t of norm at most 1.

    Three cases. With at most `separation` bands, columns of one person do not overlap, and the
    bound is √k·‖a‖, less what the end of the training cuts off. With coefficients that are not
    negative and never increase, the worst schedule is 1, 1 + b, 1 + 2b, … with all vectors alike.
    For any others it is the bound by absolute inner products of columns at each distance. The first
    two are attained, but for rounding upwards.

    Args:
        strategy: C.
        steps: T.
        participations: k, how many steps a person takes part in at most.
        separation: b, the least distance of two of them; 1 for no separation.

    Raises:
        InputError: For numbers that are not whole or below 1.
        RangeError: For more than 10⁶ steps.

    Guarantee:
        No schedule and no vectors move C u further, whatever the vectors follow from; arithmetic is
        rounded upwards.

    References:
        Kalinin and Lampert 2024, Theorem 2 (non-negative, non-increasing coefficients);
        Choquette-Choo et al. 2023, "Multi-epoch matrix factorization mechanisms", Theorem 2.

    Example:
        >>> from apiece.correlation.strategies import Banded
        >>> from apiece.correlation.sensitivity import sensitivity_bound
        >>> independent = Banded([1.0])
        >>> round(sensitivity_bound(independent, steps=100, participations=4, separation=25), 6)
        2.0
    """
    length = _check.count("steps", steps)
    if length > MOST_STEPS:
        raise RangeError(
            f"steps = {length}: correlated noise is accounted for over at most {MOST_STEPS} steps; "
            "give fewer"
        )
    separation = _check.count("separation", separation)
    times = _check.count("participations", participations)
    times = count_participations(length, times, separation)
    column = strategy.first_column(length)
    largest_lag = int(np.flatnonzero(column)[-1])
    is_falling = (column >= 0).all() and (np.diff(column) <= 0).all()
    if times == 1 or largest_lag < separation:
        # Each participation's column ends with the training; the earliest is the longest.
        norms = np.cumsum(column**2)
        ends = length - 1 - separation * np.arange(times)
        squared = float(norms[ends].sum())
    elif is_falling:
        total = sum_shifted(column, times, separation)
        squared = float(total @ total)
    else:
        squared = _bound_by_distances(np.abs(column), times, separation)
    rounding = (length + times + 8) * _MARGIN
    return float(np.sqrt(squared) * (1 + rounding))


def sum_shifted(column: Floats, times: int, separation: int) -> Floats:
    """Return the sum of the columns 1, 1 + b, 1 + 2b, …: the worst schedule's C u, (steps,)."""
    total = np.zeros_like(column)
    for start in range(0, times * separation, separation):
        total[start:] += column[: column.size - start]
    return total


def _bound_by_distances(sizes: Floats, times: int, separation: int) -> float:
    """Return a bound on ‖C u‖² from the sizes of the coefficients, whatever their signs.

    Two participations j < l are at least (l − j)·b apart, and at a distance d the inner product of
    two columns is at most Σ_t |a_t|·|a_{t+d}|; the largest from a distance on bounds all beyond.
    """
    products = correlate_series(sizes, sizes, sizes.size)
    # From the back, the largest so far. A transform's rounding is of the size of the largest.
    from_back = np.maximum.accumulate(products[::-1])
    rounding = sizes.size * _MARGIN * products[0]
    beyond = from_back[::-1] + rounding
    squared = times * beyond[0]
    # Of k participations, k − gap pairs are `gap` apart, each of which counts twice in the square.
    for gap in range(1, times):
        distance = gap * separation
        if distance < beyond.size:
            squared += 2 * (times - gap) * beyond[distance]
    return float(squared)
