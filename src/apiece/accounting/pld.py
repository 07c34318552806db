"""From a mechanism to its privacy profile, by privacy-loss distributions.

A mechanism is flattened to independent steps; each becomes a dominating pair; pairs are put on a
lattice from above and from below (`discretise`) and composed (`convolve`) around the δ that is
asked for (`region`). Plain Gaussians and single sampled steps have closed forms.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from apiece.accounting import closed, nested
from apiece.accounting.bounds import Bounds, Floats, Profile, invert
from apiece.accounting.convolve import Tail, side, tail
from apiece.accounting.discretise import discretise
from apiece.accounting.gdp import GaussianProfile, NothingReleased
from apiece.accounting.grid import DEFAULT, Grid
from apiece.accounting.pairs import GaussianPair, LaplacePair, Pair
from apiece.accounting.region import Region, choose, log_delta
from apiece.errors import UnsupportedError
from apiece.mechanisms import Gaussian, Laplace, Mechanism, Sampled, flatten

Leaves = tuple[tuple[Pair, int], ...]


def profile(mechanism: Mechanism, grid: Grid = DEFAULT) -> Profile:
    """Return bounds on the privacy profile of `mechanism`.

    Formal guarantee: lower ≤ exact ≤ upper at every ε ≥ 0 and δ in (0, 1), discretisation,
    truncation and round-off included, under add/remove adjacency, for steps chosen in advance or
    adaptively. The gap in ε is at most 0.1 % where ε ≥ 0.01, unless the grid's `points` are used
    up.

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
        case _ if any(nested.is_nested(step) for step, _ in steps):
            return nested.profile(steps)
        case _:
            return Composition(tuple((_pair(step), times) for step, times in steps), grid)


def _pair(step: Mechanism) -> Pair:
    match step:
        case Gaussian(z):
            return GaussianPair(z)
        case Laplace(scale):
            return LaplacePair(scale)
        case Sampled(Gaussian(z), q):
            return GaussianPair(z, q)
        case Sampled(Laplace(scale), q):
            return LaplacePair(scale, q)
        case _:
            raise UnsupportedError(f"method 'pld': {step!r}: a coin before a composition")


@dataclass(frozen=True)
class OneSampledStep:
    """The profile of one sampled Gaussian step, in closed form."""

    noise_multiplier: float
    probability: float

    def delta(self, epsilon: Floats) -> Bounds:
        """Bound the larger of both directions."""

        def inner(log_ratio: Floats) -> Bounds:
            return closed.gaussian(self.noise_multiplier, log_ratio)

        one = closed.sampled_remove(inner, self.probability, epsilon)
        other = closed.sampled_add(inner, self.probability, epsilon)
        return Bounds(np.maximum(one.lower, other.lower), np.maximum(one.upper, other.upper))

    def epsilon(self, delta: Floats) -> Bounds:
        """Bound ε(δ) by inverting the closed form."""
        return invert(self.delta, delta)


@dataclass(frozen=True, slots=True, eq=False)
class _Line:
    """A decreasing bound on one direction's δ(ε), linear in e^ε between lattice points."""

    start: float
    step: float
    value: Floats

    def delta(self, epsilon: Floats, before: float) -> Floats:
        """Return the bound at ε; `before` left of the lattice, its last value to the right."""
        position = (epsilon - self.start) / self.step
        left = np.clip(np.floor(position), 0, self.value.size - 2).astype(np.intp)
        share = np.expm1(self.step * np.clip(position - left, 0, 1)) / math.expm1(self.step)
        value = self.value[left] * (1 - share) + self.value[left + 1] * share
        return np.asarray(np.where(epsilon < self.start, before, value), dtype=np.float64)

    def epsilon(self, delta: Floats, before: float) -> Floats:
        """Return where the bound meets δ: `before` where it starts below, ∞ where never below."""
        right = np.searchsorted(-self.value, -delta, side="left")
        inside = np.clip(right, 1, self.value.size - 1)
        high, low = self.value[inside - 1], self.value[inside]
        fall = np.where(high > low, high - low, 1.0)
        share = np.clip((high - delta) / fall, 0, 1)
        found = self.start + self.step * (inside - 1)
        found = found + np.log1p(share * math.expm1(self.step))
        found = np.where(right == 0, before, found)
        return np.asarray(np.where(right == self.value.size, np.inf, found), dtype=np.float64)


def _above(tail: Tail, outside: float) -> _Line:
    """Return an upper bound: right at lattice points, between which δ is linear in e^ε."""
    value = (tail.value + tail.error) * math.exp(tail.exponent) + outside
    return _Line(tail.start + 2 * tail.exponent, tail.step, np.minimum.accumulate(value))


def _below(tail: Tail) -> _Line:
    """Return a lower bound, in the same way."""
    value = np.maximum((tail.value - tail.error) * math.exp(-tail.exponent), 0.0)
    value = np.maximum.accumulate(value[::-1])[::-1]
    return _Line(tail.start - 2 * tail.exponent, tail.step, value)


@dataclass(frozen=True, slots=True, eq=False)
class _Bracket:
    """Bounds of both directions around one δ."""

    above: tuple[_Line, _Line]
    below: tuple[_Line, _Line]

    def epsilon(self, delta: Floats) -> Bounds:
        """Bound ε(δ) ≥ 0 of the larger direction."""
        upper = np.maximum(*(line.epsilon(delta, line.start) for line in self.above))
        lower = np.maximum(*(line.epsilon(delta, 0.0) for line in self.below))
        return Bounds(np.maximum(np.minimum(lower, upper), 0.0), np.maximum(upper, 0.0))

    def delta(self, epsilon: Floats) -> Bounds:
        """Bound δ(ε) of the larger direction."""
        upper = np.maximum(*(line.delta(epsilon, 1.0) for line in self.above))
        lower = np.maximum(*(line.delta(epsilon, 0.0) for line in self.below))
        return Bounds(np.clip(lower, 0.0, 1.0), np.clip(upper, 0.0, 1.0))


_FIRST, _SPACING = 1.0, 1.2


def _mark(log_delta: Floats) -> Floats:
    """Return the number of the region in charge of each δ: equal steps in √(−2·log δ)."""
    reach = np.sqrt(-2 * np.minimum(log_delta, 0.0))
    return np.asarray(np.maximum(np.round((reach - _FIRST) / _SPACING), 0.0), dtype=np.float64)


@dataclass(frozen=True, slots=True, eq=False)
class Composition:
    """The profile of a composition of several steps.

    δ is divided into regions, each computed when first asked for and then kept; an answer depends
    on its region only, never on what was asked before.
    """

    leaves: Leaves
    grid: Grid = DEFAULT
    _brackets: dict[int, _Bracket] = field(default_factory=dict, repr=False)

    def epsilon(self, delta: Floats) -> Bounds:
        """Bound ε(δ)."""
        return self._answer(_mark(np.log(delta)), delta, _Bracket.epsilon)

    def delta(self, epsilon: Floats) -> Bounds:
        """Bound δ(ε) for ε ≥ 0."""
        estimate = log_delta(self.leaves, epsilon, self.grid.truncation)
        return self._answer(_mark(estimate), epsilon, _Bracket.delta)

    def _answer(
        self, marks: Floats, values: Floats, ask: Callable[[_Bracket, Floats], Bounds]
    ) -> Bounds:
        lower, upper = np.empty(values.shape), np.empty(values.shape)
        for mark in np.unique(marks):
            here = marks == mark
            lower[here], upper[here] = ask(self._region(int(mark)), values[here])
        return Bounds(lower, upper)

    def _region(self, mark: int) -> _Bracket:
        if mark not in self._brackets:
            reach = _FIRST + _SPACING * mark
            self._brackets[mark] = bracket(self.leaves, math.exp(-(reach**2) / 2), self.grid)
        return self._brackets[mark]


def bracket(leaves: Leaves, delta: float, grid: Grid) -> _Bracket:
    """Return bounds around δ, refined until they are `grid.gap` apart there or points run out."""
    gap = grid.gap * 0.7
    around = np.minimum(delta * np.array([0.1, 1.0, 10.0]), 0.5)
    region = choose(leaves, delta, gap, grid.floor, grid.truncation)
    while True:
        found = _compose(leaves, region, grid.wrap)
        lower, upper = found.epsilon(around)
        worst = float(np.max((upper - lower) / np.maximum(upper, grid.floor)))
        longest = max(line.value.size for line in (*found.above, *found.below))
        finer = min(0.7, math.sqrt(gap / max(worst, 1e-300)))
        if worst <= grid.gap or longest / finer > grid.points:
            return found
        region = region._replace(step=region.step * finer)


def _compose(leaves: Leaves, region: Region, wrap: float) -> _Bracket:
    """Compose both lattice pairs in both directions."""
    pairs = [
        (discretise(pair, window, region.step), times)
        for (pair, times), window in zip(leaves, region.windows, strict=True)
    ]
    above, below = [], []
    for reverse, tilt in ((False, region.tilt), (True, region.reverse_tilt)):
        upper = [side(high, times, reverse=reverse) for (_, high), times in pairs]
        lower = [side(low, times, reverse=reverse) for (low, _), times in pairs]
        outside = sum(
            times * (high.outside_q if reverse else high.outside_p) for (_, high), times in pairs
        )
        above.append(_above(tail(upper, region.step, tilt, wrap), outside))
        below.append(_below(tail(lower, region.step, tilt, wrap)))
    return _Bracket((above[0], above[1]), (below[0], below[1]))
