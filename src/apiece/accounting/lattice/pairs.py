"""Dominating pairs of one step, as masses of intervals of the likelihood ratio.

A pair is P = (1−q)·Q + q·P₁ against Q. All work is done with the inner log-ratio ρ = log(dP₁/dQ),
in which the coin q does not occur; the ratio of the pair itself is 1 − q + q·e^ρ. A pair says how
much of P₁ and of Q lies between given values of ρ, each to a stated relative error.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import ClassVar, NamedTuple, Protocol

import numpy as np
from numpy.polynomial import chebyshev

from apiece._types import Bounds, Floats
from apiece.errors import RangeError
from apiece.mechanisms import Atoms, MixtureOfGaussians
from apiece.numerics.normal import place_of_tail, tail
from apiece.numerics.rounding import LARGEST_LOG_RATIO, UNIT

_LEAST_NOISE, _MOST_NOISE = 1e-6, 1e12
_LEAST_TAIL = 1e-300
_PAST = "past the numerical range"
_BESIDE, _NOTHING = 0.01, 1e-280


class Window(NamedTuple):
    """An interval of ρ and (bounds from above on) what lies outside it."""

    # outside_p is for the pair's P, coin included. What lies between high and top is a jump
    # (`truncation`); where nothing does, top is high.

    low: float
    high: float
    outside_p: float
    outside_q: float
    top: float


class Atom(NamedTuple):
    """A point of ρ that has P₁- and Q-mass of its own."""

    rho: float
    p: float
    q: float


NEITHER = (Bounds(0.0, 0.0), Bounds(0.0, 0.0))
"""No outcome that only one of the two worlds can have."""


def require_losses(of: str, largest: float) -> None:
    """Raise `RangeError` for losses whose exponentials near the end of floating-point numbers."""
    if not largest <= LARGEST_LOG_RATIO:
        raise RangeError(f"{of}: losses up to {largest:.0f} are {_PAST}; use more noise")


class Pair(Protocol):
    """One step's dominating pair."""

    @property
    def probability(self) -> float:
        """The coin q."""

    @property
    def atoms(self) -> tuple[Atom, ...]:
        """Atoms at the ends of the window, which `masses` leaves out."""

    @property
    def certain(self) -> tuple[Bounds, Bounds]:
        """Bounds on P-mass where Q has none and Q-mass where P has none, coin included."""

    @property
    def below(self) -> Pair | None:
        """Where this pair only dominates what is meant, a pair that it dominates."""

    def window(self, tail: float) -> Window:
        """Return an interval of ρ outside which P and Q have about `tail` or less."""

    def masses(self, edges: Floats) -> tuple[Floats, Floats]:
        """Return the P₁- and Q-mass, but for `atoms`, of each (edges[i], edges[i+1]]."""
        # The first one is closed.

    def rounding(self, window: Window) -> float:
        """Return a bound on the relative error of every mass, and of e^ρ at its ends."""


@dataclass(frozen=True, slots=True)
class GaussianPair:
    """N(1, z²) against N(0, z²) behind a coin: ρ = (2x − 1)/(2z²)."""

    noise_multiplier: float
    probability: float = 1.0
    atoms: ClassVar[tuple[Atom, ...]] = ()
    certain: ClassVar[tuple[Bounds, Bounds]] = NEITHER
    below: ClassVar[None] = None

    def window(self, tail: float) -> Window:
        """Cut both normals where the one that is larger there has `tail` left."""
        z = self.noise_multiplier
        if not _LEAST_NOISE <= z <= _MOST_NOISE:
            raise RangeError(
                f"noise_multiplier = {z!r}: {_PAST}; give one in [{_LEAST_NOISE:g}, "
                f"{_MOST_NOISE:g}]"
            )
        reach = float(place_of_tail(math.log(max(tail, _LEAST_TAIL))))
        low, high = (-z * reach - 0.5) / z**2, (z * reach + 0.5) / z**2
        q = self.probability
        require_losses(f"noise_multiplier = {z!r}, sampling_probability = {q!r}", high)
        return Window(low, high, 2.1 * tail, 2.1 * tail, high)

    def masses(self, edges: Floats) -> tuple[Floats, Floats]:
        """Difference of normal distribution functions, or quadrature where cells are narrow."""
        z = self.noise_multiplier
        at_q = edges * z + 0.5 / z
        return normal_masses(at_q - 1 / z), normal_masses(at_q)

    def rounding(self, window: Window) -> float:
        """A few hundred units, and the square of the argument of the exponential."""
        z = self.noise_multiplier
        reach = max(abs(window.low), abs(window.top)) * z + 0.5 / z
        return UNIT * (400 + 4 * reach**2)


@dataclass(frozen=True, slots=True)
class LaplacePair:
    """Laplace(1, b) against Laplace(0, b) behind a coin: ρ = (|x| − |x − 1|)/b in [−1/b, 1/b]."""

    scale: float
    probability: float = 1.0
    certain: ClassVar[tuple[Bounds, Bounds]] = NEITHER
    below: ClassVar[None] = None

    @property
    def atoms(self) -> tuple[Atom, ...]:
        """Outside [0, 1] the ratio of the densities is constant."""
        end = 1 / self.scale
        rare = math.exp(-end) / 2
        return Atom(-end, rare, 0.5), Atom(end, 0.5, rare)

    def window(self, tail: float) -> Window:
        """The loss is bounded: nothing lies outside."""
        what, end = f"noise_multiplier = {self.scale!r} of Laplace", 1 / self.scale
        if not self.scale <= _MOST_NOISE:
            raise RangeError(f"{what}: {_PAST}; give at most {_MOST_NOISE:g}")
        require_losses(what, end)
        return Window(-end, end, 0.0, 0.0, end)

    def masses(self, edges: Floats) -> tuple[Floats, Floats]:
        """An exponential density between the atoms."""
        end = 1 / self.scale
        x = np.clip((edges / end + 1) / 2, 0.0, 1.0)
        width = -np.expm1(-np.diff(x) * end) / 2
        return np.exp((x[1:] - 1) * end) * width, np.exp(-x[:-1] * end) * width

    def rounding(self, window: Window) -> float:
        """A few hundred units, and what the ends of the window may be off."""
        return UNIT * (400 + 64 * window.top)


@dataclass(frozen=True, slots=True, eq=False)
class AtomsPair:
    """A discrete pair: atoms at increasing ρ with Q-masses, and what lies outside them."""

    # On a lattice these atoms are as good as a density, so that `atoms` has none.

    log_ratio: Floats
    mass: Floats
    outside: tuple[float, float]
    error: float
    probability: float = 1.0
    certain: tuple[Bounds, Bounds] = NEITHER
    below: AtomsPair | None = None
    atoms: ClassVar[tuple[Atom, ...]] = ()

    def window(self, tail: float) -> Window:
        """All atoms but the outermost, of which P and Q have at most `tail` on either side."""
        p = self.mass * np.exp(self.log_ratio)
        larger = np.maximum(p, self.mass)
        first = int(np.searchsorted(np.cumsum(larger), tail))
        last = larger.size - int(np.searchsorted(np.cumsum(larger[::-1]), tail))
        if last - first < 2:
            first, last = 0, larger.size
        low, high = float(self.log_ratio[first]), float(self.log_ratio[last - 1])
        require_losses("a discrete step", high)
        q = self.probability
        p_out, q_out = (
            float(np.delete(m, np.s_[first:last]).sum()) * (1 + self.error) for m in (p, self.mass)
        )
        p_out = (1 - q) * q_out + q * p_out
        return Window(low, high, self.outside[0] + p_out, self.outside[1] + q_out, high)

    def masses(self, edges: Floats) -> tuple[Floats, Floats]:
        """Sum the atoms of each cell."""
        cell = np.searchsorted(edges, self.log_ratio, side="left") - 1
        cell[self.log_ratio == edges[0]] = 0
        keep = (cell >= 0) & (cell < edges.size - 1)
        size, cell, q = edges.size - 1, cell[keep], self.mass[keep]
        p = q * np.exp(self.log_ratio[keep])
        p_mass: Floats = np.bincount(cell, p, size).astype(np.float64)
        return p_mass, np.bincount(cell, q, size).astype(np.float64)

    def rounding(self, window: Window) -> float:
        """The inner computation's error and the sums."""
        return self.error + UNIT * (400 + self.mass.size)


def discrete_pair(atoms: Atoms) -> AtomsPair:
    """Return the pair of a discrete mechanism."""
    outside = (atoms.outside_p, atoms.outside_q)
    less, more = max(1 - atoms.error, 0.0), 1 + atoms.error
    only_p, only_q = (Bounds(c * less, min(c * more, 1.0)) for c in (atoms.only_p, atoms.only_q))
    points = several(atoms.log_ratio, atoms.mass)
    return AtomsPair(*points, outside, atoms.error, certain=(only_p, only_q))


def several(log_ratio: Floats, mass: Floats) -> tuple[Floats, Floats]:
    """Return atoms that are at least two, as a lattice has: one above whose mass is nothing."""
    # A single atom is then the lowest, which is always a lattice point.
    if log_ratio.size >= 2:
        return log_ratio, mass
    place, whole = float(log_ratio.sum()), float(mass.sum())
    return np.array([place, place + _BESIDE]), np.array([whole + _NOTHING, _NOTHING])


def told_apart(leaves: Sequence[tuple[Pair, int]], *, reverse: bool) -> Bounds:
    """Bound the chance that some step has an outcome that only one of the two worlds can have."""
    chances = []
    for end in (0, 1):
        spared = math.fsum(
            times * math.log1p(-pair.certain[reverse][end])
            if pair.certain[reverse][end] < 1
            else -math.inf
            for pair, times in leaves
        )
        chances.append(-math.expm1(spared))
    slack = 16 * UNIT
    return Bounds(chances[0] * (1 - slack), min(chances[1] * (1 + slack), 1.0))


NODES, WEIGHTS = np.polynomial.legendre.leggauss(4)
NARROW = 0.01


def normal_masses(edges: Floats) -> Floats:
    """Return the standard normal mass between consecutive `edges`, each to a few 100 units."""
    # Wide cells: a difference of distribution functions on the side where they are small. Cells
    # narrower than 0.01, where that cancels: Gauss–Legendre with four nodes, whose relative error
    # at |x| ≤ 20 is below 3e-7·(0.1)⁸.
    width = np.diff(edges)
    narrow = width < NARROW
    if narrow.all():
        return _quadrature(edges[:-1], width)
    beyond = tail(np.abs(edges))
    crosses = (edges[:-1] < 0) & (edges[1:] > 0)
    mass = np.where(crosses, 1 - beyond[:-1] - beyond[1:], np.abs(np.diff(beyond)))
    if narrow.any():
        mass[narrow] = _quadrature(edges[:-1][narrow], width[narrow])
    return mass


def _quadrature(left: Floats, width: Floats) -> Floats:
    middle = left + width / 2
    total = np.zeros_like(middle)
    for node, weight in zip(NODES, WEIGHTS, strict=True):
        total += weight * np.exp(-0.5 * (middle + node * width / 2) ** 2)
    return np.asarray(total * width * (0.5 / math.sqrt(2 * math.pi)))


_TURNS = 200
_END = 45.0  # standard deviations past which a normal has no mass left
_COUNT = 18  # Chebyshev nodes of a panel
_BLOCK = 2**13  # points at a time


# Several Gaussian shifts by secret coins: P₁ = Σ_j v_j·N(s_j, z²) against N(0, z²), the v_j given
# that some row joins. The log-ratio ρ(x) = log Σ_j v_j·exp((s_j·x − s_j²/2)/z²) rises in x, so an
# interval of ρ is one of x. Newton's method finds its ends; where one is off, ρ is by a few units,
# and a likelihood ratio that is off by a factor e^η is a mass that is.
# Sums of hundreds of terms at a million x take long, so e^ρ is taken from Chebyshev's polynomials
# on panels of x, at most 2/s long for the largest shift s. All terms are positive: at u + iv their
# sum is at most what it is at u, so in the ellipse of parameter 20 it is at most e^10.03 times what
# it is in the middle. Eighteen nodes miss 4·e^10.03·20⁻¹⁷/19 of that, 4e-19 (Theorem 8.2 of
# Trefethen 2013).
@dataclass(frozen=True, slots=True, eq=False)
class Series:
    """ρ on panels of x: its value in each panel's middle, and polynomials."""

    # terms, slopes: of e^ρ over its value in the middle, and of the derivative in x.

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
        top = exponent.max(axis=1)
        middle = top + np.log(np.exp(exponent - top[:, None]).sum(axis=1))
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
    below: MixturePair | None = field(default=None, repr=False)
    atoms: ClassVar[tuple[Atom, ...]] = ()
    certain: ClassVar[tuple[Bounds, Bounds]] = NEITHER

    def window(self, tail: float) -> Window:
        """Cut where each normal has at most `tail` left beyond."""
        reach = float(place_of_tail(math.log(max(tail, _LEAST_TAIL))))
        ends = np.array([-reach, float(self.shifts[-1]) + reach])
        low, high = self.series.ratio(ends)[0].tolist()
        require_losses("mixture of Gaussians", high)
        return Window(low, high, 2.1 * tail, 2.1 * tail, high)

    def masses(self, edges: Floats) -> tuple[Floats, Floats]:
        """Normal masses between the x at which the log-ratio is at the edges."""
        # In narrow cells by quadrature of the mixture's density, in wide ones shift by shift.
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


def mixture_pair(step: MixtureOfGaussians, probability: float = 1.0) -> MixturePair:
    """Return the pair of a step, itself behind a coin."""
    z, most = step.noise_multiplier, step.shifts[-1]
    if not _LEAST_NOISE <= z / most <= _MOST_NOISE:
        raise RangeError(
            f"noise_multiplier = {z!r} with shifts up to {most!r}: {_PAST}; give a quotient in "
            f"[{_LEAST_NOISE:g}, {_MOST_NOISE:g}]"
        )
    chances = np.array(step.chances)
    shifts = np.array(step.shifts) / z
    log_chances = np.log(chances) - math.log(math.fsum(step.chances))
    require_losses("mixture of Gaussians", shifts[-1] ** 2 / 2 + log_chances[-1])
    series = Series.of(shifts, log_chances)
    least, most = _joins(step.chances, probability)
    below = None if least == most else MixturePair(shifts, log_chances, least, series)
    return MixturePair(shifts, log_chances, most, series, below)


def _joins(chances: Sequence[float], probability: float) -> tuple[float, float]:
    """Return numbers between which the chance lies that some row joins, itself behind a coin."""
    # Up to one half the rounding of the product and of what is left of 1 is in that of the masses.
    product = min(math.fsum(chances), 1.0) * probability
    if product <= 0.5:
        return product, product
    exact = min(sum(map(Fraction, chances)), Fraction(1)) * Fraction(probability)
    least = math.nextafter(product, 0.0) if product > exact else product
    most = math.nextafter(product, math.inf) if product < exact else product
    return least, most
