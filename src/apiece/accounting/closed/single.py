"""One step, behind a coin or without: exact, by a change of variables in the step's own formula."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from apiece._types import Floats
from apiece.accounting.bounds import Bounds, invert
from apiece.accounting.closed import forms


@dataclass(frozen=True)
class OneStep:
    """The profile of one step behind a coin, from the closed form of the step."""

    noise_multiplier: float
    probability: float
    form: Callable[[float, Floats], Bounds] = forms.gaussian

    def delta(self, epsilon: Floats) -> Bounds:
        """Bound the larger of both directions."""

        def inner(log_ratio: Floats) -> Bounds:
            return self.form(self.noise_multiplier, log_ratio)

        one = forms.sampled_remove(inner, self.probability, epsilon)
        other = forms.sampled_add(inner, self.probability, epsilon)
        return Bounds(np.maximum(one.lower, other.lower), np.maximum(one.upper, other.upper))

    def epsilon(self, delta: Floats) -> Bounds:
        """Bound ε(δ) by inverting the closed form."""
        return invert(self.delta, delta)
