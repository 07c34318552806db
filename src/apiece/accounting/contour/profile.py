"""Bounds on ε(δ) of thousands of sampled Gaussian compositions, some hundred at a time.

All settings are chosen by array operations, coarsely at first; entries whose bounds do not lie as
close as is wanted are looked at again, with more nodes, and with losses cut where heavy tails
would otherwise spoil every tilt (`truncation`). None of this affects soundness.

Where many δ share a mechanism, one integral answers for all in a region of δ (`epsilon_curves`):
it bounds δ at some hundred ε from above, and between them the profile, which is convex in e^ε, lies
below the chords.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import NamedTuple, TypeAlias

import numpy as np
from scipy.special import ndtri_exp

from apiece._types import Floats, Mask
from apiece.accounting.accuracy import DEFAULT, Accuracy
from apiece.accounting.arrays import Places, runs
from apiece.accounting.bounds import Bounds, nothing_known, tightest
from apiece.accounting.contour.integral import Aim, Contour, contour
from apiece.accounting.contour.moments import nodes_needed
from apiece.accounting.contour.windows import OUTSIDE, cut, whole
from apiece.numerics import LARGEST_LOG_RATIO, UNIT

_COUNTS = (40, 56, 80, 112, 160, 224, 320, 448, 640)  # of nodes
_ANGLE = 0.6  # at which so many are chosen
_CUT_COUNT = 1792  # of nodes of windows that are cut
_ATTEMPTS, _POINTS = 2, (200, 900)  # of a contour, at each attempt
_LOG_ROUGH = math.log(1e-6)  # of δ, that a smoothed contour may be off for each cause
_CHUNK = 2**14  # numbers in an array
MANY = 32
"""Values of δ from which on one curve for all of them is quicker."""
FEWEST = 2
"""Steps from which on there is something to compose."""

Sides: TypeAlias = list[tuple[Contour, Floats]]
Stage: TypeAlias = tuple[tuple[int, int], int]
_WIDTH = 1.5  # of regions of δ, in √(2·log(1/δ))
_REGIONS = ((0, 5), (5, 11))  # which are asked about δ together: down to 6e-13, and all others
_ROOT = 9  # of the number of a curve's nodes; the chords are then some 5e-5 of ε above it


@dataclass(frozen=True, slots=True)
class SampledGaussians:
    """The profile of `times` sampled Gaussian steps of one kind.

    Many ε at once, of many mechanisms: `epsilon_bounds`. δ is bounded by integrals around some δ;
    they are made when first asked for and then kept.
    """

    noise_multiplier: float
    probability: float
    times: int
    accuracy: Accuracy = DEFAULT
    _kept: dict[Stage, list[Contour]] = field(default_factory=dict, repr=False, compare=False)

    @np.errstate(all="ignore")
    def delta(self, epsilon: Floats) -> Bounds:
        """Bound δ(ε), by the closest of some integrals; by more of them where that is not close."""
        lower, upper = np.zeros(epsilon.shape), np.ones(epsilon.shape)
        for stage in product(_REGIONS, range(_ATTEMPTS)):
            open_ = np.flatnonzero(~self.accuracy.resolved(Bounds(lower, upper)))
            sides = self._integrals(stage) if open_.size else []
            rows = _CHUNK * 8 // max([1, *(one.y.size for one in sides)]) + 1
            for some in np.split(open_, range(rows, open_.size, rows)) if sides else ():
                low, high = _larger([one.delta(epsilon[None, some]) for one in sides])
                lower[some] = np.maximum(lower[some], low.max(axis=0))
                upper[some] = np.minimum(upper[some], high.min(axis=0))
        return tightest([Bounds(lower, upper)])

    def _integrals(self, stage: Stage) -> list[Contour]:
        """Return integrals around the middle of some regions of δ, in both directions."""
        if stage not in self._kept:
            (first, end), attempt = stage
            number = np.arange(float(first), float(end))
            mechanism = np.array([self.noise_multiplier, self.probability, float(self.times)])
            middle, least = (_delta_at(number + share) for share in (0.5, 1.0))
            columns = np.stack([*np.repeat(mechanism[:, None], number.size, axis=1), middle, least])
            count = _needed(columns[:3], least, attempt)
            if not count.any():
                return self._kept.setdefault(stage, [])
            sides = _sides(columns[:, count > 0], int(count.max()), attempt, self.accuracy)
            self._kept[stage] = [one for one, _ in sides]
        return self._kept[stage]

    def epsilon(self, delta: Floats) -> Bounds:
        """Bound ε(δ)."""
        mechanism = (self.noise_multiplier, self.probability, float(self.times))
        z, q, times = (np.full(delta.shape, value) for value in mechanism)
        return epsilon_bounds(z, q, times, delta, self.accuracy)


def epsilon_bounds(
    z: Floats, q: Floats, times: Floats, delta: Floats, accuracy: Accuracy = DEFAULT
) -> Bounds:
    """Return bounds on ε(δ) of `times` ≥ 16 sampled Gaussian steps with 0 < q < 1; (K,) arrays.

    Where this cannot tell, the bounds are 0 and ∞; also where many δ share a mechanism, whose
    curve on the lattice answers for all of them quicker.
    """
    order = np.lexsort((z, q, times))
    _, sizes = runs(np.stack([z, q, times])[:, order])
    few = np.empty(order.size, dtype=bool)
    few[order] = np.repeat(sizes, sizes) < MANY
    lower, upper = nothing_known(delta)
    lower[few], upper[few] = _each(np.stack([z, q, times, delta])[:, few], accuracy)
    return Bounds(lower, upper)


@np.errstate(all="ignore")
def epsilon_curves(columns: Floats, accuracy: Accuracy = DEFAULT) -> Floats:
    """Return upper bounds on ε for columns (z, q, T, δ) as of `epsilon_bounds`, by curves.

    Equal mechanisms lie side by side. An entry's bound depends on nothing but the entry: on its
    mechanism's curve in the region of its δ, but for rounding. ∞ where that is not close enough.
    """
    region = np.floor(np.sqrt(-2 * np.log(columns[3])) / _WIDTH)
    order = np.lexsort((region, *columns[2::-1]))
    keys = np.stack([*columns[:3], region])[:, order]
    starts, sizes = runs(keys)
    upper = np.full(order.size, np.inf)
    for some, curves in _curves(keys[:, starts], accuracy):
        for place, epsilon, delta in zip(some, curves.epsilon, curves.delta, strict=True):
            here = order[starts[place] : starts[place] + sizes[place]]
            upper[here] = _on_chords(epsilon, delta, columns[3, here])
    return upper


class _Curves(NamedTuple):
    """Ascending ε, and upper bounds on δ there that do not rise; a row a curve."""

    epsilon: Floats
    delta: Floats


def _curves(keys: Floats, accuracy: Accuracy) -> Iterator[tuple[Places, _Curves]]:
    """Yield places of columns (z, q, T, region) and their curves, where these are close enough."""
    most, middle, least = (_delta_at(keys[3] + share) for share in (0.0, 0.5, 1.0))
    columns, todo = np.stack([*keys[:3], middle, least]), np.ones(middle.size, dtype=bool)
    for attempt in range(_ATTEMPTS):
        for some, count in _chunks(keys[:3], least, todo, attempt):
            sides = _sides(columns[:, some], count, attempt, accuracy)
            close, curves = _curve(sides, most[some, None], least[some, None], accuracy)
            yield some[close], _Curves(curves.epsilon[close], curves.delta[close])
            todo[some] &= ~close


def _delta_at(region: Floats) -> Floats:
    """Return the δ at which a region begins, or ends."""
    return np.clip(np.exp(-((_WIDTH * region) ** 2) / 2), 1e-300, 1 - 2.0**-20)


def _curve(sides: Sides, most: Floats, least: Floats, accuracy: Accuracy) -> tuple[Mask, _Curves]:
    """Return which curves between two δ are close enough, and all of them."""
    start, end = (_larger([one.epsilon(delta, at) for one, at in sides]) for delta in (most, least))
    good = accuracy.reached(start) & accuracy.reached(end)
    low, high = np.where(good, start.lower, 0.0), np.where(good, end.upper, 1.0)
    step = (high - low) / (_ROOT**2 - 1)
    (epsilon, forward), (_, backward) = (one.deltas(low, step, _ROOT) for one, _ in sides)
    bounds = _larger([forward, backward]).upper
    return good[:, 0], _Curves(epsilon, np.minimum.accumulate(bounds, axis=1))


def _on_chords(epsilon: Floats, bound: Floats, delta: Floats) -> Floats:
    """Return ε at which a profile below a curve's chords, straight in e^ε, is at most each δ."""
    after = np.searchsorted(-bound, -delta)  # the first node whose bound is at most δ
    last = np.minimum(after, bound.size - 1)
    before = np.maximum(last - 1, 0)
    with np.errstate(all="ignore"):
        left = (delta - bound[last]) / (bound[before] - bound[last]) * (1 - 4 * UNIT)
    left = np.where((last > before) & (left >= 0), left, 0.0)  # ∞ before: at the node itself
    width = epsilon[last] - epsilon[before]
    found = epsilon[last] + np.log1p(-left * -np.expm1(-width))
    found += 8 * UNIT * (epsilon[last] + np.exp(np.minimum(width, 700.0)))
    return np.where(after < bound.size, np.minimum(found, epsilon[last]), np.inf)


@np.errstate(all="ignore")
def _each(columns: Floats, accuracy: Accuracy) -> Bounds:
    """Return the bounds of each column (z, q, T, δ), on its own."""
    delta = columns[3]
    lower, upper = nothing_known(delta)
    todo = np.ones(delta.size, dtype=bool)
    for attempt in range(_ATTEMPTS):
        for some, count in _chunks(columns[:3], delta, todo, attempt):
            sides = _sides(columns[:, some][[0, 1, 2, 3, 3]], count, attempt, accuracy)
            found = _larger([one.epsilon(delta[some, None], guess) for one, guess in sides])
            lower[some] = np.maximum(lower[some], found.lower[:, 0])
            upper[some] = np.minimum(upper[some], found.upper[:, 0])
        todo &= ~accuracy.reached(Bounds(lower, upper))
    return tightest([Bounds(lower, upper)])


def _chunks(
    mechanism: Floats, delta: Floats, todo: Mask, attempt: int
) -> Iterator[tuple[Places, int]]:
    """Yield places of similar entries still to do, some at a time, and how many nodes they need."""
    z, q, _ = mechanism
    size = _needed(mechanism, delta, attempt)
    todo = todo & (size > 0)
    for count in np.unique(size[todo]).tolist():
        here = np.flatnonzero(todo & (size == count))
        here = here[np.lexsort((q[here], z[here]))]
        rows = max(_CHUNK // count, 1)
        for some in np.split(here, range(rows, here.size, rows)):
            yield some, count


def _needed(mechanism: Floats, delta: Floats, attempt: int) -> Places:
    """Return how many nodes each entry needs; 0 where its losses are past the numerical range."""
    z, _, times = mechanism
    reach = _window(times, delta)
    if attempt:
        size = np.full(z.shape, _CUT_COUNT)
    else:
        needed = nodes_needed(z, 2 * reach + 1 / z, np.log(1e-12 / times), _ANGLE)
        size = np.take(_COUNTS, np.searchsorted(_COUNTS, needed), mode="clip")
    return np.where((reach + 1 / z) / z < LARGEST_LOG_RATIO, size, 0)


def _window(times: Floats, delta: Floats) -> Floats:
    """Return how many standard deviations windows reach."""
    return np.asarray(-ndtri_exp(np.log(OUTSIDE * delta / times)))


def _sides(columns: Floats, count: int, attempt: int, accuracy: Accuracy) -> Sides:
    """Return both directions' integrals around δ, and about the ε that belong to it.

    columns: z, q, T, δ, and the smallest δ that they are asked at, which windows and cuts are
    chosen for.
    """
    z, q, times, delta, least = columns[:, :, None]
    windows = np.stack([z, q, times, least, _window(times, least)])
    forward, outside, share = (cut if attempt else whole)(windows, count)
    aim = Aim(_POINTS[1], _LOG_ROUGH, accuracy) if attempt else Aim(_POINTS[0])
    return [
        contour(forward, times, delta, outside, share, aim),
        contour(forward.reversed(), times, delta, outside, np.ones_like(share), aim),
    ]


def _larger(sides: Sequence[Bounds]) -> Bounds:
    """Return the bounds of the larger direction; 0 and ∞ where one of them is not known."""
    lower, upper = (np.maximum(*ends) for ends in zip(*sides, strict=True))
    good = np.isfinite(upper) & np.isfinite(lower)
    return Bounds(np.where(good, lower, 0.0), np.where(good, upper, np.inf))
