"""The pair of several Gaussian shifts by secret coins.

P₁ = Σ_j v_j·N(s_j, z²) against N(0, z²), where the v_j are the chances given that some row joins.
The log-ratio ρ(x) = log Σ_j v_j·exp((s_j·x − s_j²/2)/z²) rises in x, so that an interval of ρ is
one of x. The ends of these intervals are found by Newton's method; where one is off, ρ there is off
by a few units, and a likelihood ratio that is off by a factor e^η is a mass that is.

Sums of hundreds of terms at a million x take long, so e^ρ is taken from Chebyshev's polynomials on
panels of x, at most 2/s long for the largest shift s. All terms are positive: at u + iv their sum
is at most what it is at u, so in the ellipse of parameter 20 it is at most e^10.03 times what it is
in the middle. Eighteen nodes miss 4·e^10.03·20⁻¹⁷/19 of that, 4e-19 (Trefethen 2013, Theorem 8.2).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np
from numpy.polynomial import chebyshev
from scipy.special import logsumexp, ndtri_exp

from apiece._types import Bounds, Floats
from apiece.accounting.lattice.pairs import (
    NARROW,
    NEITHER,
    NODES,
    WEIGHTS,
    Atom,
    Window,
    normal_masses,
)
from apiece.errors import RangeError
from apiece.mechanisms import MixtureOfGaussians
from apiece.numerics import LARGEST_LOG_RATIO, UNIT

_LEAST_TAIL = 1e-300
_LEAST, _MOST = 1e-6, 1e12
_TURNS = 200
_END = 45.0  # standard deviations past which a normal has no mass left
_COUNT = 18  # Chebyshev nodes of a panel
_BLOCK = 2**13  # points at a time


@dataclass(frozen=True, slots=True, eq=False)
class Series:
    """ρ on panels of x: its value in each panel's middle, and polynomials.

    terms, slopes: of e^ρ over its value in the middle, and of the derivative in x.
    """

    width: float
    middle: Floats
    terms: Floats
    slopes: Floats

    @classmethod
    def of(cls, shifts: Floats, log_chances: Floats) -> Series:
        """Return the series of a mixture; shifts in standard deviations."""
        top = float(shifts[-1])
        width = min(1.0, 2 / top)
        centre = -_END + width * (np.arange(math.ceil((2 * _END + top) / width)) + 0.5)
        exponent = log_chances - shifts**2 / 2 + np.multiply.outer(centre, shifts)
        middle = np.asarray(logsumexp(exponent, axis=1))
        nodes = chebyshev.chebpts1(_COUNT)
        nearby = np.exp(np.multiply.outer(shifts, nodes * width / 2))
        values = np.exp(exponent - middle[:, None]) @ nearby
        terms = chebyshev.chebvander(nodes, _COUNT - 1).T @ values.T * (2 / _COUNT)
        terms[0] /= 2
        return cls(width, middle, terms, chebyshev.chebder(terms) * (2 / width))

    @property
    def centre(self) -> Floats:
        """The middles of the panels."""
        return np.asarray(-_END + self.width * (np.arange(self.middle.size) + 0.5))

    def ratio(self, x: Floats) -> tuple[Floats, Floats]:
        """Return ρ and its derivative at x between the ends."""
        ratio, rise = np.empty(x.size), np.empty(x.size)
        for start in range(0, x.size, _BLOCK):
            some = slice(start, start + _BLOCK)
            place = (x[some] + _END) / self.width
            panel = np.clip(place.astype(np.intp), 0, self.middle.size - 1)
            t = 2 * (place - panel) - 1
            value = chebyshev.chebval(t, self.terms[:, panel], tensor=False)
            ratio[some] = self.middle[panel] + np.log(value)
            rise[some] = chebyshev.chebval(t, self.slopes[:, panel], tensor=False) / value
        return ratio, rise


@dataclass(frozen=True, slots=True, eq=False)
class MixturePair:
    """Σ_j v_j·N(s_j, 1) against N(0, 1) behind a coin; shifts in standard deviations, ascending."""

    shifts: Floats
    log_chances: Floats
    probability: float
    series: Series = field(repr=False)
    atoms: ClassVar[tuple[Atom, ...]] = ()
    certain: ClassVar[tuple[Bounds, Bounds]] = NEITHER

    def window(self, tail: float) -> Window:
        """Cut where each normal has at most `tail` left beyond."""
        reach = -float(ndtri_exp(math.log(max(tail, _LEAST_TAIL))))
        ends = np.array([-reach, float(self.shifts[-1]) + reach])
        low, high = self.series.ratio(ends)[0].tolist()
        if not high <= LARGEST_LOG_RATIO:
            raise _past(high)
        return Window(low, high, 2.1 * tail, 2.1 * tail, high)

    def masses(self, edges: Floats) -> tuple[Floats, Floats]:
        """Normal masses between the x at which the log-ratio is at the edges.

        In narrow cells by quadrature of the mixture's density, in wide ones shift by shift.
        """
        x = self._x(edges)
        narrow = np.diff(x) < NARROW
        p1, left, width = np.zeros(narrow.size), x[:-1][narrow], np.diff(x)[narrow]
        for node, weight in zip(NODES, WEIGHTS, strict=True):
            at = left + width / 2 * (1 + node)
            p1[narrow] += weight * np.exp(self.series.ratio(at)[0] - at**2 / 2)
        p1[narrow] *= width * (0.5 / math.sqrt(2 * math.pi))
        ends = np.stack([x[:-1], x[1:]], axis=1)[~narrow].ravel()
        for shift, log_chance in zip(self.shifts, self.log_chances, strict=True):
            if ends.size:
                p1[~narrow] += math.exp(log_chance) * normal_masses(ends - shift)[::2]
        return p1, normal_masses(x)

    def rounding(self, window: Window) -> float:
        """A few hundred units, the square of the exponential's argument, and what ρ may be off."""
        reach = float(self.shifts[-1]) + _END
        return UNIT * (400 + 4 * reach**2) + 12 * self._slack(reach)

    def _slack(self, reach: float) -> float:
        """Return some units of the largest exponent up to |x|: a fourth of what ρ may be off."""
        top = float(self.shifts[-1])
        largest = top * reach + top**2 / 2 - float(self.log_chances.min())
        return 8 * UNIT * (16 + largest + self.shifts.size)

    def _x(self, rho: Floats) -> Floats:
        """Return where the log-ratio is `rho`, but for where no normal has any mass."""
        first, last = -_END, float(self.shifts[-1]) + _END
        low, high = self.series.ratio(np.array([first, last]))[0]
        rho = np.clip(rho, low, high)
        x = np.interp(rho, self.series.middle, self.series.centre)
        slack = self._slack(last) / 2
        for _ in range(_TURNS):
            value, slope = self.series.ratio(x)
            x = np.clip(x - (value - rho) / slope, first, last)
            if (np.abs(value - rho) <= slack).all():
                return np.maximum.accumulate(x)
        raise RangeError("mixture of Gaussians: its log-ratio cannot be inverted; use more noise")


def _past(loss: float) -> RangeError:
    return RangeError(
        f"mixture of Gaussians: losses up to {loss:.0f} are past the numerical range; use more "
        "noise"
    )


def mixture_pair(step: MixtureOfGaussians, probability: float = 1.0) -> MixturePair:
    """Return the pair of a step, itself behind a coin."""
    z, most = step.noise_multiplier, step.shifts[-1]
    if not _LEAST <= z / most <= _MOST:
        raise RangeError(
            f"noise_multiplier = {z!r} with shifts up to {most!r}: past the numerical range; give "
            f"a quotient in [{_LEAST:g}, {_MOST:g}]"
        )
    chances, shifts = np.array(step.chances), np.array(step.shifts) / z
    total = math.fsum(step.chances)
    joins = min(total, 1.0) * probability
    log_chances = np.log(chances) - math.log(total)
    if not shifts[-1] ** 2 / 2 + log_chances[-1] <= LARGEST_LOG_RATIO:
        raise _past(shifts[-1] ** 2 / 2 + log_chances[-1])
    return MixturePair(shifts, log_chances, joins, Series.of(shifts, log_chances))
