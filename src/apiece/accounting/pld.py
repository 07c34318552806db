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
from apiece.accounting.convolve import Tail, TooLongError, side, tail
from apiece.accounting.discretise import aligned, discretise
from apiece.accounting.gdp import GaussianProfile, NothingReleased
from apiece.accounting.grid import DEFAULT, Grid
from apiece.accounting.jumps import Jumps, jumps
from apiece.accounting.pairs import GaussianPair, LaplacePair, Pair
from apiece.accounting.region import Leaves, Region, choose, log_delta
from apiece.errors import RangeError, UnsupportedError
from apiece.mechanisms import Gaussian, Laplace, Mechanism, Sampled, flatten


def profile(mechanism: Mechanism, grid: Grid = DEFAULT) -> Profile:
    """Return bounds on the privacy profile of `mechanism`.

    Formal guarantee: lower ≤ exact ≤ upper at every ε ≥ 0 and δ in (0, 1), discretisation,
    truncation and round-off included, under add/remove adjacency, for steps chosen in advance or
    adaptively. The gap in ε is usually at most 0.1 % where ε ≥ 0.01. It is wider, as the bounds
    themselves show, where losses have heavy tails (sampling probabilities below about 1e-4 with
    noise multipliers below about 1): there the bound on round-off dominates, or the grid's
    `points` are used up. A coin before a composition has an upper bound only.

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


def _above(tail: Tail, outside: float, rare: Jumps | None, *, reverse: bool) -> _Line:
    """Return an upper bound: right at lattice points, between which δ is linear in e^ε."""
    start = tail.start + 2 * tail.exponent
    value = (tail.value + tail.error) * math.exp(tail.exponent) + outside
    if rare is not None:
        value += rare.above(start + tail.step * np.arange(value.size), reverse=reverse)
    return _Line(start, tail.step, np.minimum.accumulate(np.minimum(value, 1.0)))


def _below(tail: Tail, rare: Jumps | None) -> _Line:
    """Return a lower bound, in the same way."""
    start = tail.start - 2 * tail.exponent
    value = np.maximum((tail.value - tail.error) * math.exp(-tail.exponent), 0.0)
    if rare is not None:
        value += rare.below(start + tail.step * np.arange(value.size))
    value = np.maximum.accumulate(value[::-1])[::-1]
    return _Line(start, tail.step, value)


@dataclass(frozen=True, slots=True, eq=False)
class _Bracket:
    """Bounds of both directions around one δ."""

    above: tuple[_Line, _Line]
    below: tuple[_Line, _Line]

    def epsilon(self, delta: Floats) -> Bounds:
        """Bound ε(δ) ≥ 0 of the larger direction."""
        upper = np.maximum(*(line.epsilon(delta, line.start) for line in self.above))
        lower = np.maximum(*(line.epsilon(delta, 0.0) for line in self.below))
        return Bounds(np.maximum(lower, 0.0), np.maximum(upper, 0.0))

    def delta(self, epsilon: Floats) -> Bounds:
        """Bound δ(ε) of the larger direction."""
        upper = np.maximum(*(line.delta(epsilon, 1.0) for line in self.above))
        lower = np.maximum(*(line.delta(epsilon, 0.0) for line in self.below))
        return Bounds(np.clip(lower, 0.0, 1.0), np.clip(upper, 0.0, 1.0))


@dataclass(frozen=True, slots=True, eq=False)
class _Brackets:
    """What several brackets say together."""

    brackets: tuple[_Bracket, ...]

    def epsilon(self, delta: Floats) -> Bounds:
        """Bound ε(δ) by the tightest of all."""
        return _tightest([bracket.epsilon(delta) for bracket in self.brackets])

    def delta(self, epsilon: Floats) -> Bounds:
        """Bound δ(ε) by the tightest of all."""
        return _tightest([bracket.delta(epsilon) for bracket in self.brackets])


def _tightest(bounds: list[Bounds]) -> Bounds:
    lower = np.max([b.lower for b in bounds], axis=0)
    upper = np.min([b.upper for b in bounds], axis=0)
    if (lower > upper * (1 + 1e-9) + 1e-12).any():
        raise RangeError(
            "bounds contradict one another: past the numerical range; please report it"
        )
    return Bounds(np.minimum(lower, upper), upper)


_FIRST, _SPACING, _LAST = 1.0, 1.2, 13


def _mark(log_delta: Floats) -> Floats:
    """Return the number of the region in charge of each δ: equal steps in √(−2·log δ)."""
    reach = np.sqrt(-2 * np.minimum(log_delta, 0.0))
    return np.asarray(np.clip(np.round((reach - _FIRST) / _SPACING), 0.0, _LAST), dtype=np.float64)


@dataclass(frozen=True, slots=True, eq=False)
class Composition:
    """The profile of a composition of several steps.

    δ is divided into regions, each computed when first asked for and then kept; an answer depends
    on its region only, never on what was asked before.
    """

    leaves: Leaves
    grid: Grid = DEFAULT
    _brackets: dict[int, _Brackets] = field(default_factory=dict, repr=False)

    def epsilon(self, delta: Floats) -> Bounds:
        """Bound ε(δ)."""
        return self._answer(_mark(np.log(delta)), delta, _Brackets.epsilon)

    def delta(self, epsilon: Floats) -> Bounds:
        """Bound δ(ε) for ε ≥ 0."""
        estimate = log_delta(self.leaves, epsilon, self.grid.truncation)
        marks = _mark(estimate)
        first = self._answer(marks, epsilon, _Brackets.delta)
        # Where losses have heavy tails the estimate is far too high: look again where δ was found.
        found = np.maximum(marks, _mark(np.log(np.maximum(first.upper, 1e-300))))
        if (found == marks).all():
            return first
        return _tightest([first, self._answer(found, epsilon, _Brackets.delta)])

    def _answer(
        self, marks: Floats, values: Floats, ask: Callable[[_Brackets, Floats], Bounds]
    ) -> Bounds:
        lower, upper = np.empty(values.shape), np.empty(values.shape)
        for mark in np.unique(marks):
            here = marks == mark
            lower[here], upper[here] = ask(self._region(int(mark)), values[here])
        return Bounds(lower, upper)

    def _region(self, mark: int) -> _Brackets:
        if mark not in self._brackets:
            reach = _FIRST + _SPACING * (mark + np.array([-0.5, -0.25, 0.0, 0.25, 0.5]))
            self._brackets[mark] = bracket(self.leaves, np.exp(-(reach**2) / 2), self.grid)
        return self._brackets[mark]


_LOOKS = 5  # times that the neighbourhood is moved to the ε found


def bracket(leaves: Leaves, delta: Floats, grid: Grid) -> _Brackets:
    """Return bounds for δ from delta[0] to delta[4], around delta[2].

    The step is refined until the gap is what the grid wants, its points run out, or refining no
    longer helps.
    """
    around = float(delta[2]), float(delta[4])
    settings = (0.85 * grid.gap, grid.floor, grid.truncation)
    region = choose(leaves, around, *settings, None)
    kept = _Brackets(())
    looks, before, refine = 0, math.inf, True
    while True:
        try:
            found = _compose(leaves, region, grid)
        except TooLongError as error:
            if region.step > _WIDEST:
                raise RangeError(f"losses of {leaves!r} are past the numerical range") from None
            region = region._replace(step=1.05 * error.excess * region.step)
            refine = False
            continue
        kept = _Brackets((*kept.brackets[-1:], found))
        lower, upper = kept.epsilon(delta)
        if looks < _LOOKS and _moved(region, upper):
            deepest = upper[4] if np.isfinite(upper[4]) else 2 * region.reach
            region = choose(leaves, around, *settings, (float(upper[2]), float(deepest)))
            looks, refine = looks + 1, True
            continue
        wanted = np.where(upper < grid.floor, grid.floor / 50, grid.gap * upper)
        gaps = np.minimum(upper, 1e300) - lower
        worst = float(np.max(gaps / np.minimum(wanted, 1e297)))
        if worst <= 1 or not refine or worst > 0.8 * before:
            return kept
        before, finer = worst, min(0.7, max(0.1, math.sqrt(0.85 / worst)))
        region = region._replace(step=region.step * finer)


def _moved(region: Region, found: Floats) -> bool:
    """Whether the ε found are so far from those of the region that another would be better."""
    if not np.isfinite(found[2]):
        return False
    far = abs(found[2] - region.epsilon) > min(0.2 * region.epsilon, 2 * region.spread)
    return bool(far or found[4] > region.reach or 2 * found[4] < region.reach < math.inf)


_WIDEST = 10.0
_STEEPEST = 20.0  # largest tilt, in units of 1/step


def _compose(leaves: Leaves, region: Region, grid: Grid) -> _Bracket:
    """Compose both lattice pairs in both directions."""
    if len(leaves) == 1:
        region = region._replace(step=aligned(leaves[0][0], region.windows[0], region.step))
    pairs = [
        (discretise(pair, window, region.step), times)
        for (pair, times), window in zip(leaves, region.windows, strict=True)
    ]
    rare = jumps([(high, times) for (_, high), times in pairs], region.rate)
    until = 0.0 if rare is None else region.reach
    above, below = [], []
    for reverse, tilt in ((False, region.tilt), (True, region.reverse_tilt)):
        tilt = min(tilt, _STEEPEST / region.step)
        settings = (region.step, tilt, grid.wrap, grid.points, 0.0 if reverse else until)
        upper = [side(high, times, reverse=reverse) for (_, high), times in pairs]
        lower = [side(low, times, reverse=reverse) for (low, _), times in pairs]
        outside = sum(
            times * (high.outside_q if reverse else high.outside_p) for (_, high), times in pairs
        )
        above.append(_above(tail(upper, *settings), outside, rare, reverse=reverse))
        below.append(_below(tail(lower, *settings), None if reverse else rare))
    return _Bracket((above[0], above[1]), (below[0], below[1]))
