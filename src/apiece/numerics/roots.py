"""Roots of monotone conditions: what is returned was seen to hold, so it errs to the safe side."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from apiece._types import Floats, Mask


def halfway(a: Floats, b: Floats) -> Floats:
    """Return the arithmetic mean."""
    return np.asarray((a + b) / 2)


def geometric(a: Floats, b: Floats) -> Floats:
    """Return the geometric mean of positive numbers.

    Args:
        a: Numbers.
        b: Numbers of the same shape.

    Example:
        >>> float(geometric(np.float64(1.0), np.float64(4.0)))
        2.0
    """
    return np.asarray(np.sqrt(a * b))


def narrowed(
    holds: Callable[[Floats], Mask],
    inside: npt.ArrayLike,
    outside: npt.ArrayLike,
    *,
    rounds: int,
    middle: Callable[[Floats, Floats], Floats] = halfway,
) -> tuple[Floats, Floats]:
    """Return the ends (inside, outside) of many brackets, bisected at once, of one shape.

    Stops early where no bracket has a float left between its ends.

    Args:
        holds: One truth value an entry, which turns once between the ends: true at `inside`, false
            at `outside`, whichever of the two is larger. Scalars are arrays of one entry without
            dimensions.
        inside: Where it holds.
        outside: Where it does not.
        rounds: How often each bracket is halved, at most.
        middle: Of two ends; the arithmetic mean unless given.

    Guarantee:
        Each `inside` returned is the one given or was evaluated and held; each `outside` is the one
        given or did not hold. That needs no monotony: where `holds` turns several times, one of the
        turns is found. A NaN holds nowhere.

    Example:
        >>> low, high = narrowed(lambda x: x * x <= 2, 1.0, 2.0, rounds=60)
        >>> float(low) ** 2 <= 2 < float(high) ** 2
        True
    """
    first, last = np.broadcast_arrays(
        np.asarray(inside, dtype=np.float64), np.asarray(outside, dtype=np.float64)
    )
    for _ in range(rounds):
        between = middle(first, last)
        if np.all((between == first) | (between == last)):
            break
        good = holds(between)
        first, last = np.where(good, between, first), np.where(good, last, between)
    return first, last


def last_true(holds: Callable[[float], bool], *, most: float, rounds: int) -> float:
    """Return the largest number seen to hold: 0, 1, 2, 4, … up to `most`, then by bisection.

    Returns 0 also where nothing holds.

    Args:
        holds: A condition; it is called at 0 first, then always above the last number that held, so
            it may narrow down what it looks at.
        most: Where doubling ends.
        rounds: How often the last bracket is halved.

    Example:
        >>> round(last_true(lambda x: x * x <= 2, most=64, rounds=40), 6)
        1.414214
    """
    if not holds(0.0):
        return 0.0
    low, high = 0.0, 1.0
    while high < most and holds(high):
        low, high = high, 2 * high
    found, _ = narrowed(lambda x: np.asarray(holds(float(x))), low, high, rounds=rounds)
    return float(found)
