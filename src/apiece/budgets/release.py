"""The budget histogram, released with discrete noise, so that a plan can be made from it."""

from __future__ import annotations

import functools
import math
import secrets
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt

from apiece import _check
from apiece.budgets import discrete
from apiece.budgets.groups import Floats, Integers, excess_array
from apiece.budgets.records import Budgets
from apiece.errors import BudgetError, InfeasibleError, unknown

NOISES = ("gaussian", "laplace")


@dataclass(frozen=True, slots=True, eq=False)
class BudgetHistogram:
    """A differentially private histogram of budgets over levels that were public before.

    level_epsilon, level_delta, level_excess: the levels; counts: noisy, one a level, negative
    ones set to 0. epsilon, delta: what the release itself costs every record, on top of what a
    plan made from it spends. noise: "gaussian" or "laplace", both discrete.
    """

    level_epsilon: Floats
    level_delta: Floats
    level_excess: Floats | None
    counts: Integers
    epsilon: float
    delta: float
    noise: str

    def budgets(self) -> Budgets:
        """Return a population with the released counts, to make a plan from.

        Its records stand for nobody; `place` says which of its groups a real record belongs to.
        Raises `InfeasibleError` where no level has a positive count.
        """
        kept = self.counts > 0
        if not kept.any():
            raise InfeasibleError(
                "histogram: every released count is 0; release it with a larger epsilon or "
                "fewer levels"
            )
        index = np.repeat(np.flatnonzero(kept), self.counts[kept])
        excess = None if self.level_excess is None else self.level_excess[index]
        return Budgets(self.level_epsilon[index], self.level_delta[index], excess=excess)

    def place(self, budgets: Budgets) -> Integers:
        """Return, for each real record, its group in `self.budgets().groups`; −1: left out.

        The group with the largest ε among those whose ε, δ and Δ̄ are all at most the record's:
        never a larger budget than it asked. A record below every group takes no part.
        """
        groups = self.budgets().groups
        return _place(budgets, groups.epsilon, groups.delta, groups.excess)


def release_histogram(
    budgets: Budgets,
    levels: npt.ArrayLike,
    *,
    epsilon: float,
    delta: float | None = None,
    level_delta: npt.ArrayLike | None = None,
    level_excess: npt.ArrayLike | None = None,
    noise: str = "gaussian",
    below: discrete.Below = secrets.randbelow,
) -> BudgetHistogram:
    """Return the counts of records at each public level of ε, with discrete noise.

    levels: values of ε, chosen without looking at the data. level_delta: one δ for all levels or
    one a level; the smallest δ asked if all records ask the same, else it must be given.
    level_excess: likewise for Δ̄. A record is counted at the highest level that does not exceed
    its ε, δ or Δ̄; below all levels it is not counted. epsilon, delta: the guarantee of the
    release under add/remove (each record is in one count at most): discrete Gaussian noise for
    (ε, δ), or discrete Laplace of scale 1/ε, which has δ = 0. below: where randomness comes
    from; the system's cryptographic generator unless a test replaces it.

    Raises `BudgetError` for values out of bounds, levels that repeat, or missing δ's.
    Source: Boenisch et al. 2023 §3.1; Canonne, Kamath, Steinke 2020.
    """
    if noise not in NOISES:
        raise unknown("noise", noise, NOISES)
    cost = _check.positive("epsilon", epsilon, error=BudgetError)
    at = _levels(budgets, levels, level_delta, level_excess)
    if noise == "laplace":
        spent_delta = 0.0
        # rounded up, so that the noise is not below 1/ε
        scale = Fraction(math.ceil(Fraction(10**9) / Fraction(cost)), 10**9)
        draw = functools.partial(discrete.laplace, scale, below)
    else:
        if delta is None:
            raise BudgetError("delta: missing; discrete Gaussian noise needs one")
        spent_delta = float(_check.positive_array("delta", delta, below=1, error=BudgetError))
        variance = gaussian_variance(cost, spent_delta)
        draw = functools.partial(discrete.gaussian, variance, below)
    exact = np.bincount(_place(budgets, *at) + 1, minlength=at[0].size + 1)[1:]
    counts = np.array([int(count) + draw() for count in exact], dtype=np.int64)
    return BudgetHistogram(*at, np.maximum(counts, 0), cost, spent_delta, noise)


def gaussian_variance(epsilon: float, delta: float) -> Fraction:
    """Return a variance of discrete Gaussian noise, to 1 %, that keeps (ε, δ) on a count."""
    low, high = 1e-3, 1.0
    while discrete.gaussian_delta(Fraction(high), epsilon) > delta:
        low, high = high, high * 4
        if high > 1e8:
            raise BudgetError(
                f"epsilon, delta = {epsilon:g}, {delta:g}: too small for a histogram; ask for more"
            )
    while high / low > 1.01:
        middle = math.sqrt(low * high)
        if discrete.gaussian_delta(Fraction(middle), epsilon) > delta:
            low = middle
        else:
            high = middle
    return Fraction(high).limit_denominator(10**6) + Fraction(1, 10**6)


def _levels(
    budgets: Budgets, levels: npt.ArrayLike, delta: npt.ArrayLike | None, excess: Any
) -> tuple[Floats, Floats, Floats | None]:
    epsilon = np.atleast_1d(_check.positive_array("levels", levels, error=BudgetError))
    if delta is None:
        if not (budgets.delta == budgets.delta[0]).all():
            raise BudgetError("level_delta: missing; records ask different δ, so give the levels'")
        delta = float(budgets.delta[0])
    deltas = _check.positive_array("level_delta", delta, below=1, error=BudgetError)
    bounds = None if excess is None else excess_array(excess)
    if budgets.excess is not None and bounds is None:
        raise BudgetError("level_excess: missing; the records ask for bounds, so give the levels'")
    columns = [np.broadcast_to(deltas, epsilon.shape)]
    columns += [] if bounds is None else [np.broadcast_to(bounds, epsilon.shape)]
    order = np.lexsort([*columns[::-1], epsilon])
    rows = np.stack([epsilon, *columns], axis=1)[order]
    if len(np.unique(rows, axis=0)) < len(rows):
        raise BudgetError("levels: two are the same; give each level once")
    return rows[:, 0], rows[:, 1], None if bounds is None else rows[:, 2]


def _place(budgets: Budgets, epsilon: Floats, delta: Floats, excess: Floats | None) -> Integers:
    """Return the last level, in order of ε, that is at most each record's budget; else −1."""
    index = np.full(len(budgets), -1, dtype=np.int64)
    for level in range(epsilon.size):
        fits = (budgets.epsilon >= epsilon[level]) & (budgets.delta >= delta[level])
        if excess is not None and budgets.excess is not None:
            fits &= budgets.excess >= excess[level]
        index[fits] = level
    return index
