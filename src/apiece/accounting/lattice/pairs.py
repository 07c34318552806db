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
from apiece.mechanisms.atoms import Atoms
from apiece.mechanisms.mixture import MixtureOfGaussians
from apiece.numerics.normal import invert_log_tail, tail
from apiece.numerics.rounding import LARGEST_LOG_RATIO, UNIT

# Noise multipliers for which all numbers stay within the range of floating-point numbers.
_LEAST_NOISE = 1e-6
_MOST_NOISE = 1e12
_LEAST_TAIL = 1e-300
_PAST = "past the numerical range"
# Where an atom is put beside a single one, in ρ, and its mass, which is nothing.
_BESIDE = 0.01
_NO_MASS = 1e-280


class Window(NamedTuple):
    """An interval of ρ and (bounds from above on) what lies outside it."""

    low: float
    high: float
    # Of the pair's P, coin included.
    outside_p: float
    outside_q: float
    # What lies between high and top is a jump (`truncation`); where nothing does, top is high.
    top: float


class Atom(NamedTuple):
    """A point of ρ that has P₁- and Q-mass of its own."""

    rho: float
    p: float
    q: float


NO_CERTAINTY = (Bounds(0.0, 0.0), Bounds(0.0, 0.0))
"""No outcome that only one of the two worlds can have."""


def require_losses(subject: str, largest: float) -> None:
    """Raise `RangeError` for losses whose exponentials near the end of floating-point numbers."""
    if not largest <= LARGEST_LOG_RATIO:
        raise RangeError(f"{subject}: losses up to {largest:.0f} are {_PAST}; use more noise")


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
    certain: ClassVar[tuple[Bounds, Bounds]] = NO_CERTAINTY
    below: ClassVar[None] = None

    def window(self, tail: float) -> Window:
        """Cut both normals where the one that is larger there has `tail` left."""
        z = self.noise_multiplier
        if not _LEAST_NOISE <= z <= _MOST_NOISE:
            raise RangeError(
                f"noise_multiplier = {z!r}: {_PAST}; give one in [{_LEAST_NOISE:g}, "
                f"{_MOST_NOISE:g}]"
            )
        reach = float(invert_log_tail(math.log(max(tail, _LEAST_TAIL))))
        low = (-z * reach - 0.5) / z**2
        high = (z * reach + 0.5) / z**2
        q = self.probability
        require_losses(f"noise_multiplier = {z!r}, sampling_probability = {q!r}", high)
        # Beyond each end either normal has at most `tail`; the tenth covers rounding.
        return Window(low, high, 2.1 * tail, 2.1 * tail, high)

    def masses(self, edges: Floats) -> tuple[Floats, Floats]:
        """Return differences of normal distribution functions, or quadrature in narrow cells."""
        z = self.noise_multiplier
        # x/z at the edges: standard normal under Q, shifted by 1/z under P₁.
        u = edges * z + 0.5 / z
        return normal_masses(u - 1 / z), normal_masses(u)

    def rounding(self, window: Window) -> float:
        """Return a few hundred units, and the square of the argument of the exponential."""
        z = self.noise_multiplier
        largest_rho = max(abs(window.low), abs(window.top))
        reach = largest_rho * z + 0.5 / z
        return UNIT * (400 + 4 * reach**2)


@dataclass(frozen=True, slots=True)
class LaplacePair:
    """Laplace(1, b) against Laplace(0, b) behind a coin: ρ = (|x| − |x − 1|)/b in [−1/b, 1/b]."""

    scale: float
    probability: float = 1.0
    certain: ClassVar[tuple[Bounds, Bounds]] = NO_CERTAINTY
    below: ClassVar[None] = None

    @property
    def atoms(self) -> tuple[Atom, ...]:
        """The two ends: outside [0, 1] the ratio of the densities is constant."""
        end = 1 / self.scale
        rare = math.exp(-end) / 2
        return Atom(-end, rare, 0.5), Atom(end, 0.5, rare)

    def window(self, tail: float) -> Window:
        """Return the whole range of losses: nothing lies outside."""
        subject = f"scale = {self.scale!r} of Laplace"
        end = 1 / self.scale
        if not self.scale <= _MOST_NOISE:
            raise RangeError(f"{subject}: {_PAST}; give at most {_MOST_NOISE:g}")
        require_losses(subject, end)
        return Window(-end, end, 0.0, 0.0, end)

    def masses(self, edges: Floats) -> tuple[Floats, Floats]:
        """Return masses of the exponential density between the atoms."""
        end = 1 / self.scale
        x = np.clip((edges / end + 1) / 2, 0.0, 1.0)
        # ∫ e^{−x/b}/(2b) dx over a cell, but for its value at the cell's likelier end.
        exponent = np.diff(x) * end
        share = -np.expm1(-exponent) / 2
        low = x[:-1]
        high = x[1:]
        p1 = np.exp((high - 1) * end) * share
        q = np.exp(-low * end) * share
        return p1, q

    def rounding(self, window: Window) -> float:
        """Return a few hundred units, and the error of the ends of the window."""
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
    certain: tuple[Bounds, Bounds] = NO_CERTAINTY
    below: AtomsPair | None = None
    atoms: ClassVar[tuple[Atom, ...]] = ()

    def window(self, tail: float) -> Window:
        """Leave out the outermost atoms, of which P and Q have at most `tail` on either side."""
        p = self.mass * np.exp(self.log_ratio)
        larger = np.maximum(p, self.mass)
        mass_up_to = np.cumsum(larger)
        mass_down_to = np.cumsum(larger[::-1])
        start = int(np.searchsorted(mass_up_to, tail))
        end = larger.size - int(np.searchsorted(mass_down_to, tail))
        # A lattice has two points at least.
        if end - start < 2:
            start = 0
            end = larger.size
        low = float(self.log_ratio[start])
        high = float(self.log_ratio[end - 1])
        require_losses("a discrete step", high)
        # The atoms that the window leaves out.
        outer = np.ones(larger.size, dtype=bool)
        outer[start:end] = False
        # Rounded up, each mass being known to `error`.
        outer_p1 = p[outer].sum()
        outer_q = self.mass[outer].sum()
        p1_out = float(outer_p1) * (1 + self.error)
        q_out = float(outer_q) * (1 + self.error)
        q = self.probability
        p_out = (1 - q) * q_out + q * p1_out
        outside_p, outside_q = self.outside
        return Window(low, high, outside_p + p_out, outside_q + q_out, high)

    def masses(self, edges: Floats) -> tuple[Floats, Floats]:
        """Sum the atoms of each cell."""
        size = edges.size - 1
        # Cells are open below, but for the first.
        cell = np.searchsorted(edges, self.log_ratio, side="left") - 1
        cell[self.log_ratio == edges[0]] = 0
        within = (cell >= 0) & (cell < size)
        cell = cell[within]
        q = self.mass[within]
        p = q * np.exp(self.log_ratio[within])
        p_mass: Floats = np.bincount(cell, p, size).astype(np.float64)
        q_mass: Floats = np.bincount(cell, q, size).astype(np.float64)
        return p_mass, q_mass

    def rounding(self, window: Window) -> float:
        """Return the atoms' own error, and that of the sums."""
        return self.error + UNIT * (400 + self.mass.size)


def discrete_pair(atoms: Atoms) -> AtomsPair:
    """Return the pair of a discrete mechanism."""
    outside = (atoms.outside_p, atoms.outside_q)

    def bound_chance(chance: float) -> Bounds:
        """Bound a chance that is known to the atoms' relative error."""
        lower = chance * max(1 - atoms.error, 0.0)
        return Bounds(lower, min(chance * (1 + atoms.error), 1.0))

    certain = (bound_chance(atoms.only_p), bound_chance(atoms.only_q))
    log_ratio, mass = pad_atoms(atoms.log_ratio, atoms.mass)
    return AtomsPair(log_ratio, mass, outside, atoms.error, certain=certain)


def pad_atoms(log_ratio: Floats, mass: Floats) -> tuple[Floats, Floats]:
    """Return atoms that are at least two, as a lattice has: one above whose mass is nothing."""
    # A single atom is then the lowest, which is always a lattice point.
    if log_ratio.size >= 2:
        return log_ratio, mass
    rho = float(log_ratio.sum())
    total = float(mass.sum())
    padded_ratio = np.array([rho, rho + _BESIDE])
    padded_mass = np.array([total + _NO_MASS, _NO_MASS])
    return padded_ratio, padded_mass


def bound_certainty(leaves: Sequence[tuple[Pair, int]], *, reverse: bool) -> Bounds:
    """Bound the chance that some step has an outcome that only one of the two worlds can have."""
    lower = _any_certain([(pair.certain[reverse].lower, times) for pair, times in leaves])
    upper = _any_certain([(pair.certain[reverse].upper, times) for pair, times in leaves])
    slack = 16 * UNIT
    return Bounds(lower * (1 - slack), min(upper * (1 + slack), 1.0))


def _any_certain(chances: Sequence[tuple[float, int]]) -> float:
    """Return 1 − Π (1 − chance)^times."""
    logs = []
    for chance, times in chances:
        # A step that surely has one leaves no chance of none.
        log_none = times * math.log1p(-chance) if chance < 1 else -math.inf
        logs.append(log_none)
    return -math.expm1(math.fsum(logs))


# Gauss–Legendre with four nodes, and the width of a cell up to which it is used.
_RULE = np.polynomial.legendre.leggauss(4)
_NARROW = 0.01


def normal_masses(edges: Floats) -> Floats:
    """Return the standard normal mass between consecutive `edges`, each to a few 100 units."""
    # Wide cells: a difference of distribution functions on the side where they are small. Cells
    # narrower than 0.01, where that cancels: Gauss–Legendre with four nodes, whose relative error
    # at |x| ≤ 20 is below 3e-7·(0.1)⁸.
    width = np.diff(edges)
    narrow = width < _NARROW
    if narrow.all():
        return _quadrature(edges[:-1], width)
    # Tails, on the side of 0 that each edge lies on.
    beyond = tail(np.abs(edges))
    is_below = edges < 0
    is_above = edges > 0
    crosses = is_below[:-1] & is_above[1:]
    mass_around_zero = 1 - beyond[:-1] - beyond[1:]
    mass = np.where(crosses, mass_around_zero, np.abs(np.diff(beyond)))
    if narrow.any():
        mass[narrow] = _quadrature(edges[:-1][narrow], width[narrow])
    return mass


def _quadrature(left: Floats, width: Floats) -> Floats:
    """Return the standard normal mass of narrow cells."""
    middle = left + width / 2
    total = np.zeros_like(middle)
    for node, weight in zip(*_RULE, strict=True):
        x = middle + node * width / 2
        total += weight * np.exp(-0.5 * x**2)
    # The rule's interval has length 2, which is where the half comes from.
    scale = 0.5 / math.sqrt(2 * math.pi)
    return np.asarray(total * width * scale)


# Turns of Newton's method, at most.
_TURNS = 200
# Standard deviations past which a normal has no mass left.
_END = 45.0
# Chebyshev nodes of a panel.
_COUNT = 18
# Points at a time.
_BLOCK = 2**13


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

    # Of a panel, in x.
    width: float
    # ρ in the middle of each panel.
    middle: Floats
    # Chebyshev's coefficients of e^ρ over its value in the middle, and of the derivative in x.
    terms: Floats
    slopes: Floats

    @classmethod
    def of(cls, shifts: Floats, log_chances: Floats) -> Series:
        """Return the series of a mixture; shifts in standard deviations."""
        largest_shift = float(shifts[-1])
        width = min(1.0, 2 / largest_shift)
        panels = math.ceil((2 * _END + largest_shift) / width)
        centre = -_END + width * (np.arange(panels) + 0.5)
        exponent = log_chances - shifts**2 / 2 + np.multiply.outer(centre, shifts)
        top = exponent.max(axis=1)
        terms_over_top = np.exp(exponent - top[:, None])
        middle = top + np.log(terms_over_top.sum(axis=1))
        nodes = chebyshev.chebpts1(_COUNT)
        growth = np.exp(np.multiply.outer(shifts, nodes * width / 2))
        values = np.exp(exponent - middle[:, None]) @ growth
        # By the discrete orthogonality of Chebyshev's polynomials at these nodes.
        polynomials = chebyshev.chebvander(nodes, _COUNT - 1)
        terms = polynomials.T @ values.T * (2 / _COUNT)
        terms[0] /= 2
        return cls(width, middle, terms, chebyshev.chebder(terms) * (2 / width))

    @property
    def centre(self) -> Floats:
        """The middles of the panels."""
        number = np.arange(self.middle.size)
        return np.asarray(-_END + self.width * (number + 0.5))

    def ratio(self, x: Floats) -> tuple[Floats, Floats]:
        """Return ρ and its derivative at x between the ends."""
        ratio = np.empty(x.size)
        slope = np.empty(x.size)
        for start in range(0, x.size, _BLOCK):
            block = slice(start, start + _BLOCK)
            position = (x[block] + _END) / self.width
            highest_panel = self.middle.size - 1
            panel = np.clip(position.astype(np.intp), 0, highest_panel)
            # t is in [−1, 1] within a panel. Its series is of e^ρ over that of its middle, so that
            # ρ' is derivative over value.
            t = 2 * (position - panel) - 1
            value = chebyshev.chebval(t, self.terms[:, panel], tensor=False)
            derivative = chebyshev.chebval(t, self.slopes[:, panel], tensor=False)
            ratio[block] = self.middle[panel] + np.log(value)
            slope[block] = derivative / value
        return ratio, slope


@dataclass(frozen=True, slots=True, eq=False)
class MixturePair:
    """Σ_j v_j·N(s_j, 1) against N(0, 1) behind a coin; shifts in standard deviations, ascending."""

    shifts: Floats
    log_chances: Floats
    probability: float
    series: Series = field(repr=False)
    below: MixturePair | None = field(default=None, repr=False)
    atoms: ClassVar[tuple[Atom, ...]] = ()
    certain: ClassVar[tuple[Bounds, Bounds]] = NO_CERTAINTY

    def window(self, tail: float) -> Window:
        """Cut where each normal has at most `tail` left beyond."""
        reach = float(invert_log_tail(math.log(max(tail, _LEAST_TAIL))))
        largest_shift = float(self.shifts[-1])
        ends = np.array([-reach, largest_shift + reach])
        low, high = self.series.ratio(ends)[0].tolist()
        require_losses("mixture of Gaussians", high)
        return Window(low, high, 2.1 * tail, 2.1 * tail, high)

    def masses(self, edges: Floats) -> tuple[Floats, Floats]:
        """Return normal masses between the x at which the log-ratio is at the edges."""
        # In narrow cells by quadrature of the mixture's density, in wide ones shift by shift.
        x = self._invert_ratio(edges)
        narrow = np.diff(x) < _NARROW
        p1 = np.zeros(narrow.size)
        start = x[:-1][narrow]
        width = np.diff(x)[narrow]
        for node, weight in zip(*_RULE, strict=True):
            point = start + width / 2 * (1 + node)
            rho, _ = self.series.ratio(point)
            p1[narrow] += weight * np.exp(rho - point**2 / 2)
        p1[narrow] *= width * (0.5 / math.sqrt(2 * math.pi))
        # Both ends of each wide cell; of the masses between all of them, every other is a cell's.
        wide = ~narrow
        cell_ends = np.stack([x[:-1], x[1:]], axis=1)
        ends = cell_ends[wide].ravel()
        for shift, log_chance in zip(self.shifts, self.log_chances, strict=True):
            if ends.size:
                masses = normal_masses(ends - shift)[::2]
                p1[wide] += math.exp(log_chance) * masses
        return p1, normal_masses(x)

    def rounding(self, window: Window) -> float:
        """Return a few hundred units, the square of the exponent's argument, and the error of ρ."""
        reach = float(self.shifts[-1]) + _END
        mass_rounding = UNIT * (400 + 4 * reach**2)
        return mass_rounding + 12 * self._slack(reach)

    def _slack(self, reach: float) -> float:
        """Return some units of the largest exponent up to |x|: a fourth of what ρ may be off."""
        top = float(self.shifts[-1])
        smallest_log = float(self.log_chances.min())
        largest = top * reach + top**2 / 2 - smallest_log
        return 8 * UNIT * (16 + largest + self.shifts.size)

    def _invert_ratio(self, rho: Floats) -> Floats:
        """Return the x with log-ratio `rho`, but for where no normal has any mass."""
        start = -_END
        end = float(self.shifts[-1]) + _END
        ends = np.array([start, end])
        low, high = self.series.ratio(ends)[0]
        rho = np.clip(rho, low, high)
        # Newton's method, from straight lines between the middles of panels.
        x = np.interp(rho, self.series.middle, self.series.centre)
        slack = self._slack(end) / 2
        for _ in range(_TURNS):
            value, slope = self.series.ratio(x)
            x = np.clip(x - (value - rho) / slope, start, end)
            if (np.abs(value - rho) <= slack).all():
                # Rounding can have exchanged neighbours.
                return np.maximum.accumulate(x)
        raise RangeError("mixture of Gaussians: its log-ratio cannot be inverted; use more noise")


def mixture_pair(step: MixtureOfGaussians, probability: float = 1.0) -> MixturePair:
    """Return the pair of a step, itself behind a coin."""
    z = step.noise_multiplier
    largest_shift = step.shifts[-1]
    if not _LEAST_NOISE <= z / largest_shift <= _MOST_NOISE:
        raise RangeError(
            f"noise_multiplier = {z!r} with shifts up to {largest_shift!r}: {_PAST}; give a "
            f"quotient in [{_LEAST_NOISE:g}, {_MOST_NOISE:g}]"
        )
    chances = np.array(step.chances)
    shifts = np.array(step.shifts) / z
    log_total = math.log(math.fsum(step.chances))
    log_chances = np.log(chances) - log_total
    # The log of the largest shift's term at its own peak, x = s.
    peak = shifts[-1] ** 2 / 2 + log_chances[-1]
    require_losses("mixture of Gaussians", peak)
    series = Series.of(shifts, log_chances)
    lower, upper = _bound_join_chance(step.chances, probability)
    # Where the chance is no floating-point number, one pair is rounded up and one down.
    below = None if lower == upper else MixturePair(shifts, log_chances, lower, series)
    return MixturePair(shifts, log_chances, upper, series, below)


def _bound_join_chance(chances: Sequence[float], probability: float) -> tuple[float, float]:
    """Return numbers between which the chance lies that some row joins, itself behind a coin."""
    # Up to one half the rounding of the product and of what is left of 1 is in that of the masses.
    product = min(math.fsum(chances), 1.0) * probability
    if product <= 0.5:
        return product, product
    exact = min(sum(map(Fraction, chances)), Fraction(1)) * Fraction(probability)
    lower = math.nextafter(product, 0.0) if product > exact else product
    upper = math.nextafter(product, math.inf) if product < exact else product
    return lower, upper
