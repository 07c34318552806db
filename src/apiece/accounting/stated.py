"""The profile of what others state as (ε, δ), in closed form."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from apiece._types import Bounds, Floats
from apiece.mechanisms import Stated
from apiece.mechanisms.algebra import NormalForm

# What a few operations on doubles are off by at most, in proportion.
_SLACK = 1e-14


@dataclass(frozen=True)
class StatedProfile:
    """δ(t) = δ + (1 − δ)·(e^ε − e^t)₊/(1 + e^ε), the largest profile with δ(ε) ≤ δ."""

    # From ε on it is δ itself. Source: Kairouz, Oh, Viswanath 2017, Theorem 3.3.

    stated: float
    slack: float

    def delta(self, epsilon: Floats) -> Bounds:
        """Return δ at each ε, from below and from above."""
        excess = self._excess(epsilon)
        value = self.slack + (1 - self.slack) * excess
        # The difference loses digits near ε, but none of what it is compared with.
        error = np.where(excess > 0, _SLACK, 0.0)
        lower = np.maximum(value - error, self.slack)
        return Bounds(lower, np.minimum(value + error, 1.0))

    def _excess(self, epsilon: Floats) -> Floats:
        """Return (e^ε − e^t)₊/(1 + e^ε)."""
        gap = np.minimum(epsilon - self.stated, 0.0)
        # Both divided by e^ε, whatever its size.
        odds = 1 + math.exp(-self.stated)
        return np.asarray(-np.expm1(gap) / odds)

    def epsilon(self, delta: Floats) -> Bounds:
        """Return ε at each δ, from below and from above; ∞ below the stated δ."""
        # e^t = e^ε − (1 + e^ε)·(d − δ)/(1 − δ), so that t = ε + log(1 − (1 + e^−ε)·share).
        share = np.maximum(delta - self.slack, 0.0) / (1 - self.slack)
        shrink = (1 + math.exp(-self.stated)) * share
        with np.errstate(divide="ignore", invalid="ignore"):
            fall = np.log1p(-np.minimum(shrink, 1.0))
        value = np.maximum(self.stated + fall, 0.0)
        # Near 0 the logarithm is steep: its error is that of the share over what is left.
        remainder = np.maximum(1 - shrink, 1e-300)
        rounding = _SLACK * (1 + self.stated) + _SLACK / remainder
        error = np.where(share > 0, rounding, 0.0)
        lower = np.maximum(value - error, 0.0)
        # The statement holds at its ε exactly: rounding never takes the bound past it.
        upper = np.minimum(value + error, self.stated)
        # The largest profile never falls below the stated δ.
        unreachable = delta < self.slack
        lower = np.where(unreachable, np.inf, lower)
        return Bounds(lower, np.where(unreachable, np.inf, upper))


def match_stated(steps: NormalForm) -> StatedProfile | None:
    """Return the profile of one statement alone."""
    match steps:
        case ((Stated(epsilon, delta), 1),):
            return StatedProfile(epsilon, delta)
    return None
