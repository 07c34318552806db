"""Threshold: leave out the strictest records and train the rest at one budget."""

from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import numpy as np

from apiece import _check
from apiece._types import Floats
from apiece.assignment.request import Request, Strategy
from apiece.assignment.solve import find_uniform_noise
from apiece.errors import BudgetError, InfeasibleError
from apiece.plan import Plan

# How many τ are tried in each round of the search.
CANDIDATES = 8
# A noise multiplier is better only where it is smaller by this relative difference.
TIE = 1e-6


@dataclass(frozen=True, slots=True)
class Threshold(Strategy):
    """Records that ask for less than `epsilon` are left out (q = 0); the others train at τ.

    At a fixed batch size the noise on a mean gradient is S/B = z·c/B, so the best τ is the one with
    the smallest noise multiplier z(τ) at q = B / (records kept); a tie goes to the τ that keeps
    more records. It is sought from the budgets' distribution alone, among 8 of the distinct ε, then
    among 8 of those around the best, and so on. Where z(τ) has several valleys, one of the deepest
    seen is taken. That measure knows nothing of what the records left out would have taught.

    Attributes:
        epsilon: τ, or None for the best one.

    Raises:
        BudgetError: For a τ that is not positive.

    References:
        Boenisch et al. 2023, App. E.1.

    Example:
        >>> from apiece import Budgets, Threshold, assign
        >>> asked = Budgets([1.0] * 50 + [3.0] * 50, 1e-5)
        >>> plan = assign(asked, Threshold(2.0), steps=10, expected_batch_size=10, clip_norm=1.0)
        >>> plan.stages[0].sampling_probability.tolist()
        [0.0, 0.2]
    """

    name: ClassVar[str] = "threshold"
    epsilon: float | None = None

    def __post_init__(self) -> None:
        if self.epsilon is not None:
            _check.put(self, epsilon=partial(_check.positive, error=BudgetError))

    def plan(self, request: Request) -> Plan:
        """Return the plan in which the groups below τ have q = 0."""
        if self.epsilon is None:
            z, rates = _search_threshold(request)
        else:
            z, rates = _solve_threshold(request, self.epsilon)
        return request.one_stage(self.name, z * request.clip_norm, rates)


def _search_threshold(request: Request) -> tuple[float, Floats]:
    """Return noise multiplier and rates of the best τ: of a few, then of those beside the best."""
    epsilon = request.groups.epsilon
    records = request.groups.records
    levels = np.unique(epsilon)
    # How many records each τ keeps; some keep less than a batch.
    sizes = np.array([records[epsilon >= tau].sum() for tau in levels])
    levels = levels[sizes >= request.expected_batch_size]
    # Noise multiplier and rates by the index of their level.
    solved: dict[int, tuple[float, Floats]] = {}
    low = 0
    high = levels.size - 1
    # z(τ) falls with a looser budget and rises with the rate of fewer records: mostly a valley.
    while True:
        for index in np.unique(np.linspace(low, high, CANDIDATES).astype(int)).tolist():
            if index not in solved:
                solved[index] = _solve_threshold(request, float(levels[index]))
        indices = sorted(solved)
        best = indices[0]
        for index in indices[1:]:
            # Ascending: a tie stays with the lower τ, which keeps more records.
            if solved[index][0] < solved[best][0] * (1 - TIE):
                best = index
        rank = indices.index(best)
        low = indices[max(rank - 1, 0)]
        high = indices[min(rank + 1, len(indices) - 1)]
        if all(index in solved for index in range(low, high + 1)):
            return solved[best]


def _solve_threshold(request: Request, tau: float) -> tuple[float, Floats]:
    """Return the noise multiplier and each group's rate at a threshold."""
    groups = request.groups
    batch = request.expected_batch_size
    joins = groups.epsilon >= tau
    records = int(groups.records[joins].sum())
    if records < batch:
        # The message names the largest τ that keeps enough.
        order = np.argsort(-groups.epsilon, kind="stable")
        enough = np.cumsum(groups.records[order]) >= batch
        nearest = groups.epsilon[order][int(np.argmax(enough))]
        raise InfeasibleError(
            f"Threshold epsilon = {tau:g}: keeps {records} records, fewer than "
            f"expected_batch_size = {batch:g}; use at most {nearest:g}"
        )
    q = batch / records
    z = find_uniform_noise(request, request.target[joins], groups.delta[joins], q)
    return z, np.where(joins, q, 0.0)
