"""Runs: the law of how often a mechanism is run before the best of its outputs is released."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from apiece import _check
from apiece._types import Floats
from apiece.errors import InputError, RangeError

MOST_RUNS = 10_000
"""The largest mean of a number of runs."""
# The least shape: nearer to −1 the mean hardly moves with the rate.
_LEAST_SHAPE = -1 + 1e-3
# Runs of which the chances are computed before a draw asks for more.
_FIRST_RUNS = 64


@dataclass(frozen=True, slots=True)
class Runs:
    """A random number K ≥ 1 of runs: truncated negative binomial, or truncated Poisson.

    With f(t) = E[t^K] and u in [0, 1], f′(1 − u) = E[K]·(1 + ru)^{−(shape + 1)}, and
    E[K]·e^{−ru} for Poisson; `rate` is r, which follows from the mean. Shape 1 is the geometric
    law, shape 0 the logarithmic one. A larger shape is more concentrated about the mean, and costs
    more privacy.

    Attributes:
        mean: E[K], above 1, at most 10,000.
        shape: η, at least −0.999; None for Poisson, the limit of large shapes.

    Raises:
        InputError: For values out of bounds.
        RangeError: For a mean that at this shape takes a rate beyond floating-point numbers.

    References:
        Papernot and Steinke 2022, Definition 1; Liu and Talwar 2019.

    Example:
        >>> from apiece.mechanisms import Runs
        >>> geometric = Runs(40)
        >>> round(geometric.rate, 6), round(geometric.chance_of_top(0.05), 2)
        (39.0, 0.68)
        >>> [round(Runs(40, shape).chance_of_top(0.05), 2) for shape in (0, 1, None)]
        [0.46, 0.68, 0.86]
    """

    mean: float
    shape: float | None = 1.0
    rate: float = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        _check.put(self, mean=_check.positive)
        if not 1 < self.mean <= MOST_RUNS:
            raise InputError(
                f"mean = {self.mean:g} runs: must be above 1 and at most {MOST_RUNS:g}; one run "
                "needs no selection"
            )
        if self.shape is not None:
            _check.put(self, shape=_check.finite)
            if not _LEAST_SHAPE <= self.shape <= 1000:
                raise InputError(
                    f"shape = {self.shape:g}: must be from {_LEAST_SHAPE:g} to 1000, or None "
                    "for Poisson"
                )
        # E[K] grows with r from 1 on.
        low = 0.0
        # The upper end is doubled until it is enough.
        high = 2.0
        while _mean(high, self.shape) < self.mean:
            high *= 2
            if high == math.inf:
                raise RangeError(
                    f"mean = {self.mean:g} runs at shape = {self.shape:g}: past the numerical "
                    "range; give a larger shape or fewer runs"
                )
        # By bisection, down to neighbouring numbers.
        while low < (middle := (low + high) / 2) < high:
            if _mean(middle, self.shape) < self.mean:
                low = middle
            else:
                high = middle
        # The lower of two neighbours, whose mean misses the one asked by rounding alone.
        object.__setattr__(self, "rate", low)

    def decay(self, u: Floats) -> Floats:
        """Return log(f′(1)/f′(1 − u)) for u ≥ 0: 0 at 0, growing and concave.

        Args:
            u: How far below the best outputs, as a chance.
        """
        if self.shape is None:
            return np.asarray(self.rate * u)
        return np.asarray((self.shape + 1) * np.log1p(self.rate * u))

    def law(self, most: int) -> Floats:
        """Return P(K = 1), …, P(K = most).

        Args:
            most: At least 1.
        """
        k = np.arange(1, most)
        r = self.rate
        # By logarithms: the first of these chances may be below all numbers, and the sum is not.
        # `ratio` is P(K = k + 1)/P(K = k).
        if self.shape is None:
            log_first = math.log(r) - r - math.log(-math.expm1(-r))
            ratio = r / (k + 1)
        else:
            log_first = math.log(self.mean) - (self.shape + 1) * math.log1p(r)
            # r/(1 + r) is 1 − γ.
            ratio = r / (1 + r) * (k + self.shape) / (k + 1)
        log_products = np.cumsum(np.log(ratio))
        log_growth = np.concatenate(([0.0], log_products))
        return np.asarray(np.exp(log_first + log_growth))

    def chance_of_top(self, share: float) -> float:
        """Return 1 − f(1 − share): the chance that a run is among the best `share` of all.

        Args:
            share: In (0, 1).

        Raises:
            InputError: For other shares.
        """
        share = _check.probability("share", share, low_open=True, high_open=True)
        r = self.rate
        eta = self.shape
        if eta is None:
            return math.expm1(-r * share) / math.expm1(-r)
        log_all = math.log1p(r)
        log_below = math.log1p(r) - math.log1p(r * share)
        if eta == 0:
            return 1 - log_below / log_all
        # f(1 − s) = ((1 + rs)^{−η}·(1 + r)^η − 1)/((1 + r)^η − 1), of which powers may be infinite.
        a = eta * log_below
        b = eta * log_all
        if eta < 0:
            return 1 - math.expm1(a) / math.expm1(b)
        # e^a and e^b taken out of numerator and denominator: nothing grows past the range.
        scale = math.exp(a - b)
        return 1 - scale * math.expm1(-a) / math.expm1(-b)

    def draw(self, uniform: Callable[[], float]) -> int:
        """Return a number of runs, which stays secret.

        Args:
            uniform: Returns a number in [0, 1), from the operating system for a release.
        """
        # By inverting the distribution function, of as many runs as it takes.
        chance = uniform()
        longest = _FIRST_RUNS
        distribution = self.law(longest).cumsum()
        # The sum of so many chances may stay below the draw, by rounding too: there is an end to
        # it.
        while not distribution[-1] > chance and longest < 100 * MOST_RUNS:
            longest *= 4
            distribution = self.law(longest).cumsum()
        runs = int(np.searchsorted(distribution, chance, side="right")) + 1
        return min(runs, longest)


def _mean(rate: float, shape: float | None) -> float:
    """Return E[K] of a rate r = (1 − γ)/γ: η·r/(1 − (1 + r)^{−η}), and its limits."""
    if shape is None:
        return -rate / math.expm1(-rate)
    if shape == 0:
        return rate / math.log1p(rate)
    return shape * rate / -math.expm1(-shape * math.log1p(rate))
