"""From a mechanism to its privacy profile, by privacy-loss distributions.

A mechanism is flattened to independent steps; each becomes a dominating pair; pairs are put on a
lattice from above and from below (`dominating`) and composed (`convolution`) around the δ that is
asked for (`settings`). Plain Gaussians and single steps have closed forms.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import lru_cache

import numpy as np

from apiece._types import Floats
from apiece.accounting.bounds import Bounds, Profile, invert, tightest
from apiece.accounting.closed import forms
from apiece.accounting.closed.enumeration import DiscreteProfile, composed
from apiece.accounting.closed.gaussian import GaussianProfile, NothingReleased
from apiece.accounting.contour.profile import MANY, close, sampled_epsilon
from apiece.accounting.lattice.cells import log_ratio
from apiece.accounting.lattice.coins import run_pair
from apiece.accounting.lattice.estimates import Leaves
from apiece.accounting.lattice.grid import DEFAULT, UNIT, Grid
from apiece.accounting.lattice.interpolants import Brackets
from apiece.accounting.lattice.pairs import GaussianPair, LaplacePair, Pair, discrete_pair
from apiece.accounting.lattice.refinement import bracket
from apiece.accounting.lattice.settings import log_delta
from apiece.errors import RangeError, UnsupportedError
from apiece.mechanisms import (
    Atoms,
    Gaussian,
    Laplace,
    Mechanism,
    Sampled,
    atoms_of,
    flatten,
)


def profile(mechanism: Mechanism, grid: Grid = DEFAULT) -> Profile:
    """Return bounds on the privacy profile of `mechanism`.

    Formal guarantee: lower ≤ exact ≤ upper at every ε ≥ 0 and δ in (0, 1), discretisation,
    truncation and round-off included, under add/remove adjacency, for steps chosen in advance or
    adaptively.

    How close the bounds are is checked, not proved: for sampled Gaussian steps of one kind the gap
    in ε was at most 0.1 % wherever it was looked at with ε ≥ 0.01, sampling probabilities from 1e-6
    on, noise multipliers from 0.3 to 100, up to 1e6 steps and δ from 1e-12 on. Steps of different
    kinds, a coin before a composition, two or three Laplace steps of rare large losses, and δ at
    given ε (the advantage too) can be wider, by far in a few cases, as the bounds themselves show.

    Raises `RangeError` where the losses of a step are past the numerical range.
    """
    steps = flatten(mechanism)
    match steps:
        case ():
            return NothingReleased()
        case ((Gaussian(noise_multiplier), 1),):
            return GaussianProfile(noise_multiplier)
        case ((Sampled(Gaussian(noise_multiplier), probability), 1),):
            return OneSampledStep(noise_multiplier, probability)
        case ((Laplace(scale), 1),):
            return OneSampledStep(scale, 1.0, forms.laplace, _pure_laplace(scale, 1.0))
        case ((Sampled(Laplace(scale), probability), 1),):
            pure = _pure_laplace(scale, probability)
            return OneSampledStep(scale, probability, forms.laplace, pure)
        case _ if (atoms := _enumerated(steps)) is not None:
            return DiscreteProfile(atoms)
        case _:
            return Composition(tuple((_pair(step, grid), times) for step, times in steps), grid)


def _pure_laplace(scale: float, probability: float) -> float:
    """Return an ε that no loss of a Laplace step behind a coin exceeds: without one, the least."""
    end = 1 / scale
    if probability < 1:
        return log_ratio(end, probability) * (1 + 8 * UNIT)
    exact = end == math.inf or Fraction(end) * Fraction(scale) >= 1
    return end if exact else math.nextafter(end, math.inf)


_LEAST_PROBABILITY = 1e-250


def _enumerated(steps: Sequence[tuple[Mechanism, int]]) -> Atoms | None:
    """Return the atoms of a composition of discrete steps, if they are few."""
    parts = [(atoms_of(step), times) for step, times in steps]
    known = [(atoms, times) for atoms, times in parts if atoms is not None]
    return composed(known) if len(known) == len(parts) else None


@lru_cache(maxsize=64)
def _pair(step: Mechanism, grid: Grid) -> Pair:
    match step:
        case Sampled(_, q) if q < _LEAST_PROBABILITY:
            raise RangeError(
                f"sampling_probability = {q!r}: past the numerical range; give 0, or at least "
                f"{_LEAST_PROBABILITY:g}"
            )
        case Gaussian(z):
            return GaussianPair(z)
        case Laplace(scale):
            return LaplacePair(scale)
        case Sampled(Gaussian(z), q):
            return GaussianPair(z, q)
        case Sampled(Laplace(scale), q):
            return LaplacePair(scale, q)
        case _ if (atoms := atoms_of(step)) is not None:
            return discrete_pair(atoms)
        case Sampled(inner, q):
            leaves = tuple((_pair(part, grid), times) for part, times in flatten(inner))
            return run_pair(leaves, q, grid)
        case _:
            raise UnsupportedError(f"method 'pld': {step!r} is no step")


@dataclass(frozen=True)
class OneSampledStep:
    """The profile of one step behind a coin, from the closed form of the step.

    pure: an ε that no loss exceeds.
    """

    noise_multiplier: float
    probability: float
    form: Callable[[float, Floats], Bounds] = forms.gaussian
    pure: float = math.inf

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


_FIRST, _SPACING, _LAST = 1.0, 1.2, 16.6
_FINER = 4  # parts of a region that is too wide for one tilt


def _mark(log_delta: Floats, spacing: float) -> Floats:
    """Return the number of the region in charge of each δ: equal steps in √(−2·log δ)."""
    reach = np.clip(np.sqrt(-2 * np.minimum(log_delta, 0.0)), _FIRST, _LAST)
    return np.asarray(np.round((reach - _FIRST) / spacing), dtype=np.float64)


@dataclass(frozen=True, slots=True, eq=False)
class Composition:
    """The profile of a composition of several steps.

    A few ε of sampled Gaussian steps are found by contour integrals (`contour`). Else δ is divided
    into regions, each computed when first asked for and then kept; where one is too wide for close
    bounds, finer ones are added. An answer never depends on what was asked before.
    """

    leaves: Leaves
    grid: Grid = DEFAULT
    _brackets: dict[tuple[float, int], Brackets] = field(default_factory=dict, repr=False)

    def epsilon(self, delta: Floats) -> Bounds:
        """Bound ε(δ)."""
        match self.leaves:
            case ((GaussianPair(z, q), times),) if q < 1 and delta.size < MANY:
                some = [np.full(delta.shape, float(column)) for column in (z, q, times)]
                first = sampled_epsilon(some[0], some[1], some[2], delta, self.grid)
            case _:
                return self.by_lattice(delta)
        left = ~close(*first, self.grid)
        if left.any():
            known = Bounds(first.lower[left], first.upper[left])
            found = tightest([known, self.by_lattice(delta[left])])
            first.lower[left], first.upper[left] = found
        return first

    def by_lattice(self, delta: Floats) -> Bounds:
        """Bound ε(δ), by regions alone."""
        lower, upper = self._answer(np.log(delta), delta, Brackets.epsilon)
        return Bounds(np.minimum(lower, self._pure()), np.minimum(upper, self._pure()))

    def _pure(self) -> float:
        """Return an ε that no loss exceeds, ∞ where there is none."""
        tops = [(p.atoms[-1].rho if p.atoms else math.inf, p, times) for p, times in self.leaves]
        losses = (times * log_ratio(top, p.probability) for top, p, times in tops)
        return sum(losses) * (1 + 2 * (len(tops) + 2) * UNIT)

    def delta(self, epsilon: Floats) -> Bounds:
        """Bound δ(ε) for ε ≥ 0."""
        estimate = log_delta(self.leaves, epsilon, self.grid.truncation)
        first = self._answer(estimate, epsilon, Brackets.delta)
        # Where losses have heavy tails the estimate is far too high: look again where δ was found.
        found = np.minimum(estimate, np.log(np.maximum(first.upper, 1e-300)))
        if (_mark(found, _SPACING) == _mark(estimate, _SPACING)).all():
            return first
        return tightest([first, self._answer(found, epsilon, Brackets.delta)])

    def _answer(
        self, log_delta: Floats, values: Floats, ask: Callable[[Brackets, Floats], Bounds]
    ) -> Bounds:
        lower, upper = np.zeros(values.shape), np.full(values.shape, np.inf)
        open_ = np.ones(values.shape, dtype=bool)
        for spacing in (_SPACING, _SPACING / _FINER):
            marks = _mark(log_delta, spacing)
            for mark in np.unique(marks[open_]):
                here = open_ & (marks == mark)
                brackets = self._region(int(mark), spacing)
                bounds = ask(brackets, values[here])
                both = tightest([bounds, Bounds(lower[here], upper[here])])
                lower[here], upper[here] = both
                # a region is looked at in a few places; between them its bounds may be wider
                gap = np.minimum(upper[here], 1e300) - lower[here]
                wide = gap > 1.05 * self.grid.gap * upper[here]
                wide &= (ask is Brackets.epsilon) & (upper[here] >= self.grid.floor)
                open_[here] = wide | (not brackets.close)
        return Bounds(lower, upper)

    def _region(self, mark: int, spacing: float) -> Brackets:
        if (spacing, mark) not in self._brackets:
            reach = _FIRST + spacing * (mark + np.linspace(-0.5, 0.5, 9))
            finer = spacing < _SPACING
            grid = replace(self.grid, points=2 * self.grid.points) if finer else self.grid
            found = bracket(self.leaves, np.exp(-(reach**2) / 2), grid)
            self._brackets[spacing, mark] = found
        return self._brackets[spacing, mark]
