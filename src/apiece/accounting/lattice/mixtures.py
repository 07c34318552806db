"""The pair of several Gaussian shifts by secret coins.

P₁ = Σ_j v_j·N(s_j, z²) against N(0, z²), where the v_j are the chances given that some row joins.
The log-ratio ρ(x) = log Σ_j v_j·exp((s_j·x − s_j²/2)/z²) rises in x, so that an interval of ρ is
one of x. The ends of these intervals are found by Newton's method; where one is off, ρ there is off
by a few units, and a likelihood ratio that is off by a factor e^η is a mass that is.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from scipy.special import logsumexp, ndtri_exp

from apiece._types import Bounds, Floats
from apiece.accounting.lattice.pairs import NEITHER, Atom, Window, normal_masses
from apiece.errors import RangeError
from apiece.mechanisms import MixtureOfGaussians
from apiece.numerics import LARGEST_LOG_RATIO, UNIT

_LEAST_TAIL = 1e-300
_LEAST, _MOST = 1e-6, 1e12
_TURNS = 200


@dataclass(frozen=True, slots=True, eq=False)
class MixturePair:
    """Σ_j v_j·N(s_j, 1) against N(0, 1) behind a coin; shifts in standard deviations, ascending."""

    shifts: Floats
    log_chances: Floats
    probability: float
    atoms: ClassVar[tuple[Atom, ...]] = ()
    certain: ClassVar[tuple[Bounds, Bounds]] = NEITHER

    def window(self, tail: float) -> Window:
        """Cut where each normal has at most `tail` left beyond."""
        reach = -float(ndtri_exp(math.log(max(tail, _LEAST_TAIL))))
        low, high = self._rho(np.array([-reach, float(self.shifts[-1]) + reach])).tolist()
        if not high <= LARGEST_LOG_RATIO:
            raise RangeError(
                f"mixture of Gaussians: losses up to {high:.0f} are past the numerical range; use "
                "more noise"
            )
        return Window(low, high, 2.1 * tail, 2.1 * tail, high)

    def masses(self, edges: Floats) -> tuple[Floats, Floats]:
        """Normal masses between the x at which the log-ratio is at the edges."""
        x = self._x(edges)
        p1 = np.zeros(edges.size - 1)
        for shift, log_chance in zip(self.shifts, self.log_chances, strict=True):
            p1 += math.exp(log_chance) * normal_masses(x - shift)
        return p1, normal_masses(x)

    def rounding(self, window: Window) -> float:
        """A few hundred units, the square of the exponential's argument, and what ρ may be off."""
        reach = float(self.shifts[-1]) + 40.0
        return UNIT * (400 + 4 * reach**2) + 2 * self._slack(np.array(reach))

    def _slack(self, x: Floats) -> float:
        """Return a bound on the error of ρ up to |x|: some units of the largest exponent."""
        top = float(self.shifts[-1])
        largest = top * float(np.abs(x).max()) + top**2 / 2 - float(self.log_chances.min())
        return 8 * UNIT * (16 + largest + self.shifts.size)

    def _rho(self, x: Floats) -> Floats:
        exponents = self.log_chances + np.multiply.outer(x, self.shifts) - self.shifts**2 / 2
        return np.asarray(logsumexp(exponents, axis=-1))

    def _x(self, rho: Floats) -> Floats:
        """Return where the log-ratio is `rho`: from the right, Newton falls onto a convex curve."""
        start = (rho - self.log_chances[:, None]) / self.shifts[:, None] + self.shifts[:, None] / 2
        x = np.asarray(start.min(axis=0))
        for _ in range(_TURNS):
            exponents = self.log_chances + np.multiply.outer(x, self.shifts) - self.shifts**2 / 2
            value = logsumexp(exponents, axis=-1)
            slope = np.exp(exponents - value[:, None]) @ self.shifts
            step = (value - rho) / slope
            x = x - step
            if (np.abs(value - rho) <= self._slack(x) / 2).all():
                return np.maximum.accumulate(x)
        raise RangeError("mixture of Gaussians: its log-ratio cannot be inverted; use more noise")


def mixture_pair(step: MixtureOfGaussians, probability: float = 1.0) -> MixturePair:
    """Return the pair of a step, itself behind a coin."""
    z, most = step.noise_multiplier, step.shifts[-1]
    if not _LEAST <= z / most <= _MOST:
        raise RangeError(
            f"noise_multiplier = {z!r} with shifts up to {most!r}: past the numerical range; give "
            f"a quotient in [{_LEAST:g}, {_MOST:g}]"
        )
    chances = np.array(step.chances)
    total = math.fsum(step.chances)
    joins = min(total, 1.0) * probability
    return MixturePair(np.array(step.shifts) / z, np.log(chances) - math.log(total), joins)
