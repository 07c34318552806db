"""How many rows a person may bring to a step, where the rows themselves have to say: released."""

from __future__ import annotations

import secrets

import numpy as np
import numpy.typing as npt

from apiece import _check
from apiece._types import Integers
from apiece.budgets import discrete
from apiece.budgets.release import laplace_scale
from apiece.errors import BudgetError, InfeasibleError, InputError


def release_rows_per_person(
    rows: npt.ArrayLike,
    levels: npt.ArrayLike,
    *,
    epsilon: float,
    share: float = 0.9,
    below: discrete.Below = secrets.randbelow,
) -> int:
    """Return a number of rows that about a share of the persons do not exceed, to be made public.

    Each person is counted once, at the least level that is not below their number of rows, or at
    the last; every count gets discrete Laplace noise. What the release costs comes on top of what a
    plan spends: lower everyone's ε by it before the plan is made.

    Args:
        rows: (P,), how many rows each person has: data about them.
        levels: Increasing whole numbers, chosen without looking at the rows.
        epsilon: The guarantee of the release.
        share: Of the persons, in (0, 1).
        below: Where randomness comes from: the system's cryptographic generator, unless a test
            replaces it.

    Returns:
        One of the levels.

    Raises:
        BudgetError: For an ε that is not positive, or too small for a count to say anything.
        InputError: For levels that are not increasing or not positive, numbers of rows below 1, and
            a share out of bounds.
        InfeasibleError: Where no released count is positive.

    Guarantee:
        (ε, 0)-DP under add/remove of a person with all their rows: one count moves by 1, and
        nothing else does.

    References:
        Canonne, Kamath, Steinke 2020 (discrete noise).

    Example:
        >>> random = np.random.default_rng(0)
        >>> rows = random.integers(1, 7, 4000)
        >>> release_rows_per_person(rows, [1, 2, 5, 10], epsilon=0.1, share=0.7)
        5
        >>> from apiece import Budgets
        >>> budgets = Budgets([2.0] * 4000, 1e-5)
        >>> plan_from = budgets.lowered_to(budgets.epsilon - 0.1)
    """
    cost = _check.positive("epsilon", epsilon, error=BudgetError)
    part = _check.probability("share", share, low_open=True, high_open=True)
    exact = _counted(rows, _whole("levels", levels))
    scale = laplace_scale(cost)
    counts = [max(count + discrete.laplace(scale, below), 0) for count in exact.tolist()]
    total = sum(counts)
    if not total:
        raise InfeasibleError(
            "rows_per_person: every released count is 0; release it with a larger epsilon or "
            "fewer levels"
        )
    reached = np.flatnonzero(np.cumsum(counts) >= part * total)[0]
    return int(np.asarray(levels)[reached])


def _counted(rows: npt.ArrayLike, levels: Integers) -> Integers:
    """Return how many persons there are at each level; each person is in one count."""
    if (np.diff(levels) <= 0).any():
        raise InputError("levels: must increase; give each once, the least first")
    place = np.searchsorted(levels, _whole("rows", rows))
    return np.bincount(np.minimum(place, levels.size - 1), minlength=levels.size)


def _whole(name: str, values: npt.ArrayLike) -> Integers:
    found = np.asarray(values)
    if found.ndim != 1 or not found.size or found.dtype.kind not in "iu" or found.min() < 1:
        raise InputError(f"{name}: must be a list of whole numbers of at least 1")
    return found.astype(np.int64)
