"""Groups that nobody declared: which values a column has, told where enough people have them.

A person spreads a weight of 1 over their values, at most so many of them as the schema says that
they bring rows: 1/√k on each of k. A value is told where its noisy weight exceeds a threshold. Of
values that others have too the person moves a Gaussian sum by at most 1; a value of theirs alone is
told with a chance that the threshold makes small. So a person is charged as a Gaussian with a
slack: μ = 1/σ, and s = k·Φ̄((τ − 1/√k)/σ), for their own k.

Weights may be smaller, each by the person's own account: then μ = w/σ, and s = k·Φ̄((τ − w/√k)/σ).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

import numpy as np
from scipy.special import log_ndtr, ndtri_exp

from apiece._types import Floats, Integers
from apiece.errors import InputError
from apiece.filters.convert import distinct, gaussian_budget
from apiece.queries.noise import BITS, SLACK

# The share of δ for values that one person alone has; the Gaussian has the rest.
SLACK_SHARE: Final = 0.1


@dataclass(frozen=True, slots=True)
class Discovery:
    """A threshold and its noise, fixed before a row is read."""

    # Values of a person that count, at most.
    values: int
    # Standard deviation of the noise, in units of a person's whole weight.
    scale: float
    # The noisy weight that a value must exceed to be told, in steps of the noise's grid.
    threshold: int

    @classmethod
    def from_budget(cls, values: int, epsilon: float, delta: float) -> Discovery:
        """Return the least threshold that is (ε, δ)-DP, for so many values a person.

        Raises:
            InputError: Where δ is 0, or ε too small or large for the grid of the noise.
        """
        if not delta > 0:
            raise InputError(
                "delta = 0: values that nobody declared are told with a chance of telling one of a "
                "single person; give a delta, such as 1e-6"
            )
        slack = delta * SLACK_SHARE
        # μ² of the Gaussian that has what the slack leaves of (ε, δ).
        mu = math.sqrt(float(gaussian_budget(epsilon, delta, slack))) * (1 - SLACK)
        if not mu > 2.0**-BITS:
            raise InputError(f"epsilon = {epsilon:g}: too small; give a larger one")
        scale = 1 / mu
        if not scale > 2.0**-20:
            raise InputError(f"epsilon = {epsilon:g}: gives no privacy; give a smaller one")
        # Someone with k values of their own has k chances, each at a weight of 1/√k: the threshold
        # must do for every k.
        threshold = max(_find_threshold(k, scale, slack) for k in range(1, values + 1))
        steps = math.ceil(threshold * (1 + SLACK) / math.ldexp(scale, -BITS)) + 1
        return cls(values, scale, steps)

    @property
    def grid(self) -> float:
        """A step of the noise's grid, in units of a person's whole weight."""
        return math.ldexp(self.scale, -BITS)

    def weigh(self, budget: Floats, share: float) -> Floats:
        """Return weights, at most 1, with which nobody pays more than a share of their account.

        Args:
            budget: (people,) μ² of each account.
            share: In (0, 1].
        """
        # μ is w/σ. Twice the margin that costs are rounded up by is left below the share.
        mu = np.sqrt(np.maximum(budget, 0.0) * share) * (1 - 2 * SLACK)
        return np.asarray(np.minimum(mu * self.scale, 1.0))

    def count_steps(self, counts: Integers, weights: Floats | float = 1.0) -> Integers:
        """Return what people with so many values and such weights add to each, in steps."""
        parts = np.asarray(weights) / (np.sqrt(counts) * self.grid)
        return np.floor(parts * (1 - SLACK)).astype(np.int64)

    def costs(self, counts: Integers, steps: Integers) -> tuple[Floats, Floats]:
        """Return μ² and slack of people with so many values and steps on each, rounded up."""
        (kinds, steps_of_kinds), index = distinct(counts, steps)
        losses = []
        slacks = []
        for count, added in zip(kinds.tolist(), steps_of_kinds.tolist(), strict=True):
            # The ℓ2 norm of `count` equal parts over σ, which is 2^BITS steps.
            mu = math.sqrt(count) * added / 2.0**BITS
            losses.append(mu * mu * (1 + SLACK))
            # The noise is rounded to the grid, so half a step less is exceeded as well.
            deviations = (self.threshold - added - 0.5) / 2.0**BITS
            slacks.append(count * math.exp(float(log_ndtr(-deviations))) * (1 + SLACK))
        return np.array(losses)[index], np.array(slacks)[index]


def _find_threshold(count: int, scale: float, slack: float) -> float:
    """Return the threshold that one of `count` values of a single person passes with `slack`."""
    deviations = -float(ndtri_exp(math.log(slack / count)))
    return 1 / math.sqrt(count) + scale * deviations
