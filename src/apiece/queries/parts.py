"""Parts of a request: each statistic with its share of the budget, its noise and its charge.

Several statistics are one mechanism. With δ > 0 each is a Gaussian, or what a Gaussian dominates,
and their μ² add up to that of (ε, δ); with δ = 0 their ε add up. A person pays for the sum of what
their own rows cost in each.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from scipy.special import log_ndtr

from apiece import _check
from apiece._types import Floats
from apiece.accounting.slack import gaussian_of_bounded_range, gaussian_of_laplace
from apiece.errors import InputError
from apiece.filters.convert import gaussian_mu
from apiece.queries.discovery import Discovery
from apiece.queries.noise import BITS, SLACK
from apiece.queries.quantiles import count_draws
from apiece.queries.question import Question

# The same of a few operations on the μ of an exponential mechanism.
FINE_SLACK: Final = 2.0**-50


@dataclass(frozen=True, slots=True)
class Part:
    """A statistic with its noise, fixed before a row is read."""

    question: Question
    # The ε that Laplace noise or the exponential mechanism may cost; 0 for Gaussian noise.
    epsilon: float
    # The noise's scale over the largest norm that a person adds.
    multiplier: float
    # The noise's standard deviation, of Laplace noise its scale, in units of the features.
    scale: float

    @property
    def pure(self) -> bool:
        """Whether there is no δ in it: Laplace noise, or the exponential mechanism."""
        return self.epsilon > 0

    @property
    def norm_power(self) -> int:
        """The power of the norm that the noise hides: 1 or 2."""
        return 1 if self.pure or self.question.is_distinct else 2

    @property
    def grid(self) -> float:
        """A step of the sums, in units of the features: whole rows where they are ranked."""
        return 1.0 if self.question.grid else math.ldexp(self.scale, -BITS)

    @property
    def largest_mu(self) -> float:
        """μ of the Gaussian that the person with the largest contribution is charged as."""
        if not self.pure:
            return 1 / self.multiplier
        # The norm that the mechanism hides with ε: all rows that a person may bring, or ε scales of
        # the Laplace noise.
        if self.question.grid:
            largest_norm = float(self.question.rows)
        else:
            largest_norm = self.scale * self.epsilon
        return float(self.mu(np.array(largest_norm)))

    def mu(self, norms: Floats) -> Floats:
        """Return the μ that the answer costs people whose contributions have these norms."""
        if not self.pure:
            return np.asarray(norms / self.scale)
        if self.question.grid is None:
            return gaussian_of_laplace(norms / self.scale)
        # A person with k of the rows that may be brought moves the scores of each draw so that its
        # loss has a range of ε·k/rows over the draws; draws compose as Gaussians do.
        draws = count_draws(self.question.query)
        ranges = norms * (self.epsilon / (self.question.rows * draws))
        mu_of_draw = gaussian_of_bounded_range(ranges)
        return np.asarray(mu_of_draw * math.sqrt(draws) * (1 + FINE_SLACK))


def square_mu(mu: Floats) -> Floats:
    """Return the μ² that an answer is charged, rounded up."""
    return np.asarray(mu * mu * (1 + SLACK))


def make_parts(
    questions: Sequence[Question],
    epsilon: float,
    delta: float,
    shares: Sequence[float] | None = None,
) -> tuple[Part, ...]:
    """Return the parts of a request for several questions, which together cost (ε, δ) at most.

    Args:
        questions: One a statistic.
        epsilon: Of the request.
        delta: Of the request; 0 where no part has Gaussian noise.
        shares: Share of each statistic, in proportion; by default such that each sum has the same
            noise, relative to its column's bounds.

    Raises:
        InputError: For an ε that leaves a statistic without noise, or without a budget.
    """
    mu = float(gaussian_mu(epsilon, delta)) if delta else 0.0
    if len(questions) == 1:
        (question,) = questions
        if question.is_discovery:
            scale = Discovery.from_budget(question.rows, epsilon, delta).scale
            return (Part(question, 0.0, scale, scale),)
        # A quantile needs no δ, and has the whole of ε.
        if question.grid is not None or not delta:
            return (_make_pure(question, epsilon, epsilon, delta),)
        return (_make_gaussian(question, mu, epsilon, delta),)
    # The shares add up to a little less than 1, so that roundings never make the parts cost more
    # than the whole. With δ they divide μ², else ε.
    weights = list(shares) if shares else [_weigh(question, delta) for question in questions]
    total = math.fsum(weights)
    parts = []
    for question, weight in zip(questions, weights, strict=True):
        share = weight / total * (1 - SLACK)
        if not delta:
            parts.append(_make_pure(question, epsilon * share, epsilon, delta))
        elif question.grid is not None:
            own = _find_range(mu * math.sqrt(share), count_draws(question.query))
            parts.append(_make_pure(question, own, epsilon, delta))
        else:
            parts.append(_make_gaussian(question, mu * math.sqrt(share), epsilon, delta))
    return tuple(parts)


def check_shares(shares: Sequence[float] | None, count: int) -> tuple[float, ...] | None:
    """Return the shares of so many statistics, or raise `InputError`; None for those by default."""
    if shares is None:
        return None
    if len(shares) != count:
        raise InputError(
            f"split: {len(shares)} shares for {count} statistics; give one each, as in "
            f"{','.join(['1'] * count)}"
        )
    return tuple(_check.positive("split", share) for share in shares)


def _weigh(question: Question, delta: float) -> float:
    """Return the share of a statistic, in proportion, with which all sums have the same noise."""
    if question.grid is not None:
        draws = count_draws(question.query)
        return float(question.rows * draws if not delta else question.rows**2 * draws)
    # A sum's noise is its norm over its μ, or its ε: it is the same for all sums where shares of μ²
    # are as their squared norms, and shares of ε as their norms.
    norm, _ = question.sensitivity(2 if delta else 1)
    return norm**2 if delta else norm


def _find_range(mu: float, draws: int) -> float:
    """Return the range of the losses of all draws that a Gaussian of μ dominates, rounded down."""
    each = mu / math.sqrt(draws) * (1 - SLACK)
    # A pure ε costs μ = −2Φ⁻¹(1/(1 + e^ε)), and a range of η what ε = η/2 costs.
    half = float(log_ndtr(each / 2) - log_ndtr(-each / 2))
    eta = 2 * half * (1 - SLACK)
    # The formula is the inverse but for roundings; the loop makes sure, by the function that
    # charges.
    while float(gaussian_of_bounded_range(eta)) > each:
        eta *= 1 - 2.0**-20
    return eta * draws


def _make_pure(question: Question, share: float, epsilon: float, delta: float) -> Part:
    """Return a part with Laplace noise, or an exponential mechanism, that costs `share` of ε."""
    multiplier, scale = _calibrate_noise(question, share, 1, epsilon, delta)
    return Part(question, share, multiplier, scale)


def _make_gaussian(question: Question, mu: float, epsilon: float, delta: float) -> Part:
    """Return a part with Gaussian noise that costs at most μ."""
    multiplier, scale = _calibrate_noise(question, mu, 2, epsilon, delta)
    return Part(question, 0.0, multiplier, scale)


def _calibrate_noise(
    question: Question, mu: float, power: int, epsilon: float, delta: float
) -> tuple[float, float]:
    """Return the noise multiplier and the noise's scale in units of the features.

    `mu` is the μ of Gaussian noise (power 2), or the ε of Laplace noise (power 1).
    """
    # Gaussian noise hides what a person adds by its ℓ2 norm, Laplace noise (δ = 0) by its ℓ1 norm.
    # Rounding to the grid adds up to `steps` grid steps to the norm. The grid is a fraction of the
    # noise, so the scale solves scale · mu = norm + steps · grid, with grid = scale · 2^−BITS.
    norm, steps = question.sensitivity(power)
    rounding = math.ldexp(steps, -BITS)
    if not mu > 2 * rounding:
        raise InputError(
            f"epsilon = {epsilon:g}, delta = {delta:g}: too small for the grid of the noise with "
            f"{question.rows} rows per person; give a larger epsilon or fewer rows"
        )
    scale = norm / (mu - rounding) * (1 + SLACK)
    if not scale / norm > 2.0**-20:
        raise InputError(f"epsilon = {epsilon:g}: gives no privacy; give a smaller one")
    return 1 / mu, scale
