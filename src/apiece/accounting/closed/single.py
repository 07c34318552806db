"""One step, behind a coin or without: exact, by a change of variables in the step's own formula."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from apiece._types import Floats
from apiece.accounting.bounds import Bounds, invert
from apiece.accounting.closed import forms
from apiece.numerics import UNIT


@dataclass(frozen=True)
class OneStep:
    """The profile of one step behind a coin, from the closed form of the step.

    pure: an ε that no loss exceeds.
    """

    noise_multiplier: float
    probability: float
    form: Callable[[float, Floats], Bounds] = forms.gaussian
    pure: float = math.inf

    @classmethod
    def laplace(cls, scale: float, probability: float) -> OneStep:
        """Return the profile of a Laplace step, whose losses are bounded."""
        return cls(scale, probability, forms.laplace, _pure_laplace(scale, probability))

    def delta(self, epsilon: Floats) -> Bounds:
        """Bound the larger of both directions."""

        def inner(log_ratio: Floats) -> Bounds:
            return self.form(self.noise_multiplier, log_ratio)

        one = forms.sampled_remove(inner, self.probability, epsilon)
        other = forms.sampled_add(inner, self.probability, epsilon)
        return Bounds(np.maximum(one.lower, other.lower), np.maximum(one.upper, other.upper))

    def epsilon(self, delta: Floats) -> Bounds:
        """Bound ε(δ) by inverting the closed form."""
        lower, upper = invert(self.delta, delta)
        return Bounds(np.minimum(lower, self.pure), np.minimum(upper, self.pure))


def _pure_laplace(scale: float, probability: float) -> float:
    """Return an ε that no loss of a Laplace step behind a coin exceeds: without one, the least."""
    end = 1 / scale
    if probability < 1:
        return forms.log_ratio(end, probability) * (1 + 8 * UNIT)
    # the quotient may have been rounded down
    exact = end == math.inf or Fraction(end) * Fraction(scale) >= 1
    return end if exact else math.nextafter(end, math.inf)
