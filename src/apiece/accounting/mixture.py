"""One step of several Gaussian shifts by secret coins, in closed form.

In units of the noise the pair is P = (1 − J)·N(0, 1) + Σ c_j·N(s_j, 1), J = Σ c_j, against
Q = N(0, 1). The ratio r(x) = 1 − J + Σ c_j·exp(s_j·x − s_j²/2) rises with x, so the best tests are
half-lines. With Φ̄ = 1 − Φ,

    remove, x > a:  Σ c_j·(Φ̄(a − s_j) − Φ̄(a)) − (e^ε − 1)·Φ̄(a)            at r(a) = e^ε,
    add, x < b:     e^ε·Σ c_j·(Φ(b) − Φ(b − s_j)) − (e^ε − 1)·Φ(b)          at r(b) = e^(−ε).

Any half-line gives a lower bound. Where the end of the best one is known to a factor e^κ in r, no
half-line gains more than what lies between, on which r is within that factor of e^ε: the gain is
second order in κ, and however rare the shifts are the bounds keep their digits.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from apiece._types import Bounds, Floats
from apiece.accounting.bounds import Inverted
from apiece.errors import RangeError
from apiece.mechanisms.mixture import MixtureOfGaussians
from apiece.numerics.normal import density, log_tail, tail
from apiece.numerics.rounding import LARGEST_LOG_RATIO, UNIT

# Newton's method stops after so many turns, wherever it is: how far off it is is in the bounds.
_TURNS = 60
# Relative error of a normal's mass, its argument's rounding included (|argument| ≤ 40).
_MASS = 2.0**-39
# Below this width a difference of tails loses digits, and Gauss–Legendre with four nodes does not.
_NARROW = 0.01
# How near, in the logarithm of r, the end of a half-line has to be known; mostly it is to 1e-13.
_NEAR = 1e-3
# An upper bound never goes below it.
_SMALLEST = 1e-300
# Numbers in an array.
_AT_ONCE = 1 << 20
_RULE = np.polynomial.legendre.leggauss(4)


@dataclass(frozen=True, eq=False)
class MixtureProfile(Inverted):
    """The profile of one step of a mixture of Gaussians, exact up to rounding.

    Attributes:
        shifts: s_j, in standard deviations of the noise, ascending.
        chances: c_j, a coin before the step included.
        left: 1 − J, the chance that nothing is added, to a relative error of 2⁻⁵².
    """

    shifts: Floats
    chances: Floats
    left: float

    @classmethod
    def of(cls, step: MixtureOfGaussians, probability: float = 1.0) -> MixtureProfile:
        """Return the profile of a step, itself behind a coin.

        Raises:
            RangeError: For losses past the numerical range.
        """
        shifts = np.array(step.shifts) / step.noise_multiplier
        if not (shifts[0] > 0 and shifts[-1] ** 2 <= LARGEST_LOG_RATIO):
            raise RangeError(
                f"noise_multiplier = {step.noise_multiplier!r} with shifts from "
                f"{step.shifts[0]!r} to {step.shifts[-1]!r}: past the numerical range; use more "
                "noise"
            )
        # 1 − J exactly, before it is rounded: hardly anything may be left of 1.
        total = sum(map(Fraction, step.chances))
        joins = min(total, Fraction(1)) * Fraction(probability)
        chances = np.array(step.chances) * probability / max(float(total), 1.0)
        return cls(shifts, chances, float(1 - joins))

    @np.errstate(all="ignore")
    def delta(self, epsilon: Floats) -> Bounds:
        """Bound the larger of both directions, for ε ≥ 0."""
        lower = np.empty(epsilon.size)
        upper = np.empty(epsilon.size)
        rows = max(_AT_ONCE // self.shifts.size, 1)
        for start in range(0, epsilon.size, rows):
            part = slice(start, start + rows)
            remove = self._remove(epsilon[part])
            add = self._add(epsilon[part])
            lower[part] = np.maximum(remove.lower, add.lower)
            upper[part] = np.maximum(remove.upper, add.upper)
        return Bounds(np.clip(lower, 0.0, 1.0), np.clip(upper, _SMALLEST, 1.0))

    @property
    def _joins(self) -> float:
        """J, to a few units."""
        return math.fsum(self.chances)

    def _remove(self, epsilon: Floats) -> Bounds:
        """Bound P(x > a) − e^ε·Q(x > a) for the best a; it is at most J."""
        # The end a is where Σ c_j·exp(s_j·a − s_j²/2) = e^ε − 1 + J.
        growth = np.expm1(np.minimum(epsilon, 30.0))
        near = np.log(growth + self._joins)
        shrinkage = -self.left * np.exp(-epsilon)
        far = epsilon + np.log1p(shrinkage)
        log_target = np.where(epsilon < 30, near, far)
        end, off = self._end(log_target, UNIT * (16 + np.abs(log_target)))
        gain = self._masses(end) @ self.chances
        fall = np.exp(_log_expm1(epsilon) + log_tail(end))
        # What a better end can gain: between this end and it r is within a factor e^off of e^ε.
        farthest = end - off / self.shifts[0]
        missed = np.exp(log_target + _log_expm1(off) + log_tail(farthest))
        lower = gain * (1 - _MASS) - fall * (1 + _MASS)
        upper = gain * (1 + _MASS) - fall * (1 - _MASS)
        upper = upper + missed * (1 + _MASS)
        # Where the end may be far off, J is all that is known.
        highest = self._joins * (1 + _MASS)
        return Bounds(lower, np.where(off < _NEAR, np.minimum(upper, highest), highest))

    def _add(self, epsilon: Floats) -> Bounds:
        """Bound Q(x < b) − e^ε·P(x < b) for the best b; it is at most 1 − (1 − J)·e^ε."""
        # The end b is where Σ c_j·exp(s_j·b − s_j²/2) = share·e^(−ε), share = 1 − (1 − J)·e^ε.
        # Past ε = 700 the bound is what it is there, and the lower one 0.
        capped = np.minimum(epsilon, 700.0)
        grow = np.exp(capped)
        # Where the chances are small the share is written as J − (1 − J)·(e^ε − 1), which then
        # keeps its digits.
        rare = self._joins <= 0.5
        if rare:
            share = self._joins - self.left * np.expm1(capped)
            share_error = 8 * UNIT * self._joins
        else:
            share = 1 - self.left * grow
            share_error = 8 * UNIT
        positive_share = np.maximum(share, share_error)
        log_share = np.log(positive_share)
        log_target = log_share - capped
        rounding = UNIT * (16 + np.abs(log_target))
        spread = rounding + np.log1p(2 * share_error / positive_share)
        end, off = self._end(log_target, spread)
        # Q(x < b)·share either way: as e^ε·P less (e^ε − 1)·Q, or as it stands.
        if rare:
            gain = grow * (self._masses(end) @ self.chances)
            lower_gain = gain
            upper_gain = gain
            fall = np.exp(_log_expm1(capped) + log_tail(-end))
        else:
            below_end = tail(-end)
            lower_gain = np.maximum(share - share_error, 0.0) * below_end
            upper_gain = np.maximum(share + share_error, 0.0) * below_end
            shifted_tails = tail(self.shifts - end[:, None])
            fall = grow * (shifted_tails @ self.chances)
        # What a better end can gain, as in the other direction.
        farthest = -end - off / self.shifts[0]
        missed = np.exp(log_share + _log_expm1(off) + log_tail(farthest))
        lower = lower_gain * (1 - _MASS) - fall * (1 + _MASS)
        upper = upper_gain * (1 + _MASS) - fall * (1 - _MASS)
        upper = upper + missed * (1 + _MASS)
        highest = np.maximum(share + share_error, 0.0)
        return Bounds(
            np.where(epsilon > 700, 0.0, lower),
            np.where(off < _NEAR, np.minimum(upper, highest), highest),
        )

    def _end(self, log_target: Floats, spread: Floats) -> tuple[Floats, Floats]:
        """Return x with log Σ c_j·exp(s_j·x − s_j²/2) near a target, and how near it surely is.

        Args:
            log_target: Known to `spread`.
            spread: Above 0.
        """
        constant = np.log(self.chances) - self.shifts**2 / 2
        # No term exceeds the sum. From this side Newton's method never leaves it: the logarithm of
        # the sum is convex in x.
        by_term = (log_target[:, None] - constant) / self.shifts
        x = by_term.min(axis=1)
        for turn in range(_TURNS):
            linear = self.shifts * x[:, None]
            exponent = constant + linear
            top = exponent.max(axis=1)
            # Each term's share of the sum, by which the slope of its logarithm is a mean of s_j.
            share = np.exp(exponent - top[:, None])
            total = share.sum(axis=1)
            share /= total[:, None]
            gap = top + np.log(total) - log_target
            sizes = np.abs(constant) + np.abs(linear)
            mean_size = (share * sizes).sum(axis=1)
            rounding = 8 * UNIT * (8 + np.abs(log_target) + mean_size)
            close = np.abs(gap) <= rounding
            if turn == _TURNS - 1 or close.all():
                break
            x = np.where(close, x, x - gap / (share @ self.shifts))
        return x, np.abs(gap) + rounding + spread

    def _masses(self, end: Floats) -> Floats:
        """Return the normal mass between end − s_j and end, one row an end."""
        low = end[:, None] - self.shifts
        high = np.broadcast_to(end[:, None], low.shape)
        beyond_low = tail(np.abs(low))
        beyond_high = tail(np.abs(high))
        mass = np.abs(beyond_low - beyond_high)
        # Across 0 the tails lie on different sides.
        crosses = (low < 0) & ~(high <= 0)
        mass = np.where(crosses, 1 - beyond_low - beyond_high, mass)
        narrow = self.shifts < _NARROW
        if narrow.any():
            width = self.shifts[narrow]
            total = np.zeros((end.size, width.size))
            for node, weight in zip(*_RULE, strict=True):
                point = end[:, None] - width * (1 - node) / 2
                total += weight / 2 * density(point)
            mass[:, narrow] = total * width
        return mass


def _log_expm1(x: Floats) -> Floats:
    """Return log(e^x − 1) for x ≥ 0, −∞ at 0."""
    near = np.log(np.expm1(np.minimum(x, 30.0)))
    return np.asarray(np.where(x < 30, near, x))
