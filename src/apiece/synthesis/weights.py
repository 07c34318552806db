"""Each person's weight, and the one account a budget from which measurements and choices are paid.

A person of weight w moves a weighted marginal by at most w, which Gaussian noise of standard
deviation σ hides at μ = w/σ. The same person moves the scores of a choice by w, so that the
exponential mechanism has a range of η·w for them, and is charged as the Gaussian that stands for
it. With weights in proportion to the μ of what people asked, all of them are spent at once.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

import numpy as np

from apiece._types import Floats, Mask
from apiece.accounting.slack import gaussian_of_bounded_range
from apiece.errors import BudgetError
from apiece.filters import Costs, GaussianFilter
from apiece.filters.convert import ULP
from apiece.numerics.normal import log_tail

# What a search for noise or a range leaves of a budget, in proportion, so that rounding never
# keeps anybody out.
_MARGIN: Final = 2.0**-30
# What is left in an account that has a slack, in proportion, for the units that it counts in.
_FOR_UNITS: Final = 2.0**-20


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Weights:
    """The distinct budgets of people, as limits of μ², and the weight of each in (0, 1].

    Attributes:
        epsilon: (groups,) ε of each distinct budget.
        delta: (groups,) δ of each.
        limit: (groups,) The largest μ² that keeps the promise, rounded down.
        weight: (groups,) √(limit / largest limit), rounded down.
        slack: The share of δ that accounts keep for other charges.
    """

    epsilon: Floats
    delta: Floats
    limit: Floats
    weight: Floats
    slack: float = 0.0

    @classmethod
    def from_budgets(cls, epsilon: Floats, delta: Floats, slack: float = 0.0) -> Weights:
        """Return the weights of distinct budgets.

        Args:
            epsilon: (groups,) Positive.
            delta: (groups,) In (0, 1).
            slack: The share of δ that accounts keep for what is no Gaussian, and is not spent here.

        Raises:
            BudgetError: For budgets out of bounds.
        """
        # μ² at which a Gaussian keeps (ε, δ), the slack taken off δ.
        limit = np.atleast_1d(GaussianFilter(epsilon, delta, slack=slack).limit)
        if slack > 0:
            # An account of a ledger counts in whole units, rounded against whoever charges it.
            limit = limit * (1 - _FOR_UNITS)
        # Rounded down by more than the errors of the quotient and the root together.
        weight = np.sqrt(limit / limit.max()) * (1 - 4 * ULP)
        return cls(np.atleast_1d(epsilon), np.atleast_1d(delta), limit, weight, slack)


@dataclass(eq=False, repr=False)
class Account:
    """What each distinct budget has spent, in μ², and what noise it still pays for.

    A charge comes before what it pays for, and whoever cannot pay is left out of that.

    Args:
        weights: Of the budgets.
        spent: (groups,) μ² that was spent before; nothing by default.
    """

    weights: Weights
    spent: Floats | None = field(default=None)
    _filter: GaussianFilter = field(init=False)
    # What the filter allows beyond the limits; it is spent from the beginning.
    _beyond: Floats = field(init=False)

    def __post_init__(self) -> None:
        weights = self.weights
        self._filter = GaussianFilter(weights.epsilon, weights.delta, slack=weights.slack)
        filter_limit = np.atleast_1d(self._filter.limit)
        # What the filter would allow beyond the weights' limits is spent at once, so that remaining
        # is right.
        self._beyond = np.maximum(filter_limit - weights.limit, 0.0)
        self._filter.admit_costs(Costs.fixed(self._beyond))
        # The μ² of a checkpoint, charged again in one sum.
        if self.spent is not None:
            spent = np.asarray(self.spent, np.float64)
            if not self._filter.admit_costs(Costs.fixed(spent)).all():
                raise BudgetError("spent: is above the limit of a budget; begin anew")

    def charge_measurement(self, noise_stddev: float) -> Mask:
        """Charge a weighted marginal with Gaussian noise; return the budgets that take part."""
        return self._filter.admit(self.weights.weight, noise_stddev)

    def charge_choice(self, loss_range: float) -> Mask:
        """Charge a choice of range η for weight 1; return the budgets that take part."""
        return self._filter.admit_costs(Costs.fixed(self._cost_choice(loss_range)))

    @property
    def spending(self) -> Floats:
        """μ² that each budget has spent, rounded up."""
        # The difference is rounded up: a little less is subtracted than was put in.
        subtracted = self._beyond * (1 - 4 * ULP)
        return np.asarray(np.maximum(self._filter.spent - subtracted, 0.0))

    @property
    def share_spent(self) -> float:
        """The largest share of a budget that is spent, in [0, 1]."""
        return float((self.spending / self.weights.limit).max())

    def affords(self, noise_stddev: float, loss_range: float, rounds: int) -> bool:
        """Return whether every budget pays for so many rounds of a choice and a measurement."""
        round_cost = self._cost_measurement(noise_stddev) + self._cost_choice(loss_range)
        # A little more than the sum, so that `affords` never says yes to what a charge refuses.
        needed = rounds * round_cost * (1 + _MARGIN)
        return bool((needed <= self._filter.remaining).all())

    def divide(self, rounds: int, choice_share: float) -> tuple[float, float]:
        """Return noise σ and range η with which what is left pays for so many rounds.

        Args:
            rounds: How many.
            choice_share: The share of each round that the choice takes, in (0, 1).
        """
        weight = self.weights.weight
        # What is left, in equal parts.
        round_budget = self._filter.remaining / rounds * (1 - _MARGIN)
        # One range and one noise for all: the budget that pays for least decides each.
        ranges = _range_of_gaussian(np.sqrt(round_budget * choice_share)) / weight
        loss_range = float(ranges.min() * (1 - _MARGIN))
        # The measurement gets what the choice leaves of the round.
        measurement_budget = round_budget - self._cost_choice(loss_range)
        # μ = w/σ, so that σ = w/√budget.
        stddevs = weight / np.sqrt(measurement_budget)
        noise_stddev = float(stddevs.max() * (1 + _MARGIN))
        return noise_stddev, loss_range

    def _cost_measurement(self, noise_stddev: float) -> Floats:
        return np.asarray((self.weights.weight / noise_stddev) ** 2)

    def _cost_choice(self, loss_range: float) -> Floats:
        """Return μ² of a choice for each budget, rounded up."""
        # Rounded up, as everything that is charged is.
        ranges = loss_range * self.weights.weight * (1 + 2 * ULP)
        mu = gaussian_of_bounded_range(ranges)
        return np.asarray(mu * mu * (1 + 4 * ULP))


def _range_of_gaussian(mu: Floats) -> Floats:
    """Return the range η whose choice costs about μ: the inverse of −2·Φ⁻¹(1/(1 + e^(η/2)))."""
    # With p = Φ(−μ/2): e^(η/2) = (1 − p)/p.
    # Both tails in logarithms, which stay exact where p is tiny.
    return np.asarray(2 * (log_tail(-mu / 2) - log_tail(mu / 2)))
