"""Bounds on ε(δ) of thousands of sampled Gaussian compositions, some hundred at a time.

All settings are chosen by array operations, coarsely at first; entries whose bounds do not lie as
close as is wanted are looked at again, with more nodes, and with losses cut where heavy tails
would otherwise spoil every tilt (`truncation`). None of this affects soundness.

Where many δ share a mechanism, one integral answers for all in a region of δ (`epsilon_curves`):
it bounds δ at some hundred ε from above, and between them the profile, which is convex in e^ε, lies
below the chords.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import NamedTuple, TypeAlias

import numpy as np

from apiece._types import Bounds, Floats, Mask
from apiece.accounting.bounds import DEFAULT, nothing_known, runs, tightest
from apiece.accounting.contour.integral import Aim, Contour, contour
from apiece.accounting.contour.moments import OUTSIDE, cut, nodes_needed, whole
from apiece.numerics.normal import place_of_tail
from apiece.numerics.roots import Places
from apiece.numerics.rounding import LARGEST_LOG_RATIO, UNIT

_COUNTS = (40, 56, 80, 112, 160, 224, 320, 448, 640)  # of nodes
_ANGLE = 0.6  # at which so many are chosen
_CUT_COUNT = 1792  # of nodes of windows that are cut
_ATTEMPTS, _POINTS = 2, (250, 900)  # of a contour, at each attempt
_LOG_ROUGH = math.log(1e-6)  # of δ, that a smoothed contour may be off for each cause
_CHUNK = 2**14  # numbers in an array: of larger ones numpy reuses memory, and rounds otherwise
MANY = 32
"""Values of δ from which on one curve for all of them is quicker."""
FEWEST = 2
"""Steps from which on there is something to compose."""

Sides: TypeAlias = list[tuple[Contour, Floats]]
Stage: TypeAlias = tuple[tuple[int, int], int]
Own: TypeAlias = tuple[Places, Places]  # the first of the rows that are one's own, and how many


class SharedIntegrals(NamedTuple):
    """Integrals that are made together for several mechanisms, and which of them are one's own."""

    sides: Sides
    first: int
    size: int


_WIDTH = 1.5  # of regions of δ, in √(2·log(1/δ))
_REGIONS = ((0, 3), (3, 5), (5, 11))  # asked about δ together: down to 4e-5, 6e-13, all others
_ROOT = 9  # of the number of a curve's nodes; the chords are then some 5e-5 of ε above it


@dataclass(frozen=True, slots=True)
class SampledGaussians:
    """The profile of `times` sampled Gaussian steps of one kind."""

    # Many ε at once, of many mechanisms: `epsilon_bounds`. δ is bounded by integrals around some δ;
    # they are made when first asked for and then kept.

    noise_multiplier: float
    probability: float
    times: int
    kept: dict[Stage, SharedIntegrals] = field(default_factory=dict, repr=False, compare=False)

    def delta(self, epsilon: Floats) -> Bounds:
        """Bound δ(ε)."""
        return delta_bounds([self], epsilon, np.zeros(epsilon.shape, dtype=np.intp))

    def around(self, stage: Stage) -> tuple[Floats, int]:
        """Return columns (z, q, T, δ, least δ) of a stage, around the middle of regions of δ."""
        # And how many nodes they need; 0 where losses are past the numerical range.
        (first, end), attempt = stage
        number = np.arange(float(first), float(end))
        mechanism = np.array([self.noise_multiplier, self.probability, float(self.times)])
        middle, least = (_delta_at(number + share) for share in (0.5, 1.0))
        columns = np.stack([*np.repeat(mechanism[:, None], number.size, axis=1), middle, least])
        count = _needed(columns[:3], least, attempt)
        return columns[:, count > 0], int(count.max())

    def epsilon(self, delta: Floats) -> Bounds:
        """Bound ε(δ)."""
        mechanism = (self.noise_multiplier, self.probability, float(self.times))
        return epsilon_bounds(np.stack([*(np.full(delta.shape, m) for m in mechanism), delta]))


@np.errstate(all="ignore")
def delta_bounds(of: Sequence[SampledGaussians], epsilon: Floats, owner: Places) -> Bounds:
    """Return bounds on δ at each ε, of the mechanism at this place in `of`."""
    # By the nearest integral, by the second and by more of them where that is not close. They are
    # made for all mechanisms together, and are what each would have alone.
    lower, upper = np.zeros(epsilon.shape), np.ones(epsilon.shape)
    for stage, turn in product(product(_REGIONS, range(_ATTEMPTS)), range(2)):
        open_ = np.flatnonzero(~DEFAULT.resolved(Bounds(lower, upper)))
        asked, place = np.unique(owner[open_], return_inverse=True)
        for here, sides, rows in _made([of[k] for k in asked], stage, place):
            some = open_[here]
            low, high = _larger([_near(*side, rows, turn, epsilon[some]) for side in sides])
            lower[some] = np.maximum(lower[some], low)
            upper[some] = np.minimum(upper[some], high)
    return tightest([Bounds(lower, upper)])


def _made(
    of: Sequence[SampledGaussians], stage: Stage, place: Places
) -> Iterator[tuple[Places, Sides, Own]]:
    """Yield parts of `place`, the integrals of these mechanisms, and which are each one's own."""
    # Those that are missing are made together.
    _make(list({id(one): one for one in of if stage not in one.kept}.values()), stage)
    kept = [one.kept[stage] for one in of]
    for sides in {id(each.sides): each.sides for each in kept if each.size}.values():
        own = np.array([(k.first, k.size) if k.sides is sides else (0, 0) for k in kept])[place]
        here = np.flatnonzero(own[:, 1])
        many = _CHUNK * 4 // max(one.y.shape[1] for one, _ in sides) + 1
        for some in np.split(here, range(many, here.size, many)):
            yield some, sides, (own[some, 0], own[some, 1])


def _make(of: Sequence[SampledGaussians], stage: Stage) -> None:
    """Make the integrals of a stage; some mechanisms' at a time, of as many nodes."""
    around = [one.around(stage) for one in of]
    counts = np.array([count for _, count in around], dtype=np.intp)
    for count in np.unique(counts).tolist():
        here = np.flatnonzero(counts == count)
        regions = around[here[0]][0].shape[1]
        many = max(_CHUNK // count // regions, 1) if count else here.size
        for some in np.split(here, range(many, here.size, many)):
            columns = [around[k][0] for k in some]
            sizes = [each.shape[1] for each in columns]
            sides: Sides = []
            if count:
                sides = _sides(np.concatenate(columns, axis=1), count, stage[1])
            for k, first, size in zip(some, np.cumsum([0, *sizes]).tolist(), sizes, strict=False):
                of[k].kept[stage] = SharedIntegrals(sides, first, size)


def epsilon_bounds(columns: Floats) -> Bounds:
    """Return bounds on ε(δ) for columns (z, q, T, δ) of T ≥ 2 sampled Gaussian steps, 0 < q < 1."""
    # Where this cannot tell, the bounds are 0 and ∞; also where many δ share a mechanism, whose
    # curve on the lattice answers for all of them quicker.
    order = np.lexsort(columns[:3])
    _, sizes = runs(columns[:3, order])
    few = np.empty(order.size, dtype=bool)
    few[order] = np.repeat(sizes, sizes) < MANY
    lower, upper = nothing_known(columns[3])
    lower[few], upper[few] = _each(columns[:, few])
    return Bounds(lower, upper)


@np.errstate(all="ignore")
def epsilon_curves(columns: Floats) -> Floats:
    """Return upper bounds on ε for columns (z, q, T, δ) as of `epsilon_bounds`, by curves."""
    # Equal mechanisms lie side by side. An entry's bound depends on nothing but the entry: on its
    # mechanism's curve in the region of its δ, but for rounding. ∞ where that is not close enough.
    region = np.floor(np.sqrt(-2 * np.log(columns[3])) / _WIDTH)
    order = np.lexsort((region, *columns[2::-1]))
    keys = np.stack([*columns[:3], region])[:, order]
    starts, sizes = runs(keys)
    upper = np.full(order.size, np.inf)
    for some, *curves in _curves(keys[:, starts]):
        for place, epsilon, delta in zip(some, *curves, strict=True):
            here = order[starts[place] : starts[place] + sizes[place]]
            upper[here] = _on_chords(epsilon, delta, columns[3, here])
    return upper


def _curves(keys: Floats) -> Iterator[tuple[Places, Floats, Floats]]:
    """Yield places of columns (z, q, T, region), and the curves there that are close enough."""
    # A curve is a row of ascending ε, and one of upper bounds on δ there, which do not rise.
    most, middle, least = (_delta_at(keys[3] + share) for share in (0.0, 0.5, 1.0))
    columns, todo = np.stack([*keys[:3], middle, least]), np.ones(middle.size, dtype=bool)
    for attempt in range(_ATTEMPTS):
        for some, count in _chunks(keys[:3], least, todo, attempt):
            sides = _sides(columns[:, some], count, attempt)
            close, epsilon, delta = _curve(sides, most[some, None], least[some, None])
            yield some[close], epsilon[close], delta[close]
            todo[some] &= ~close


def _delta_at(region: Floats) -> Floats:
    """Return the δ at which a region begins, or ends."""
    return np.clip(np.exp(-((_WIDTH * region) ** 2) / 2), 1e-300, 1 - 2.0**-20)


def _curve(sides: Sides, most: Floats, least: Floats) -> tuple[Mask, Floats, Floats]:
    """Return which curves between two δ are close enough, and all of them."""
    start, end = (_larger([one.epsilon(delta, at) for one, at in sides]) for delta in (most, least))
    good = DEFAULT.reached(start) & DEFAULT.reached(end)
    low, high = np.where(good, start.lower, 0.0), np.where(good, end.upper, 1.0)
    step = (high - low) / (_ROOT**2 - 1)
    (epsilon, forward), (_, backward) = (one.deltas(low, step, _ROOT) for one, _ in sides)
    bounds = _larger([forward, backward]).upper
    return good[:, 0], epsilon, np.minimum.accumulate(bounds, axis=1)


def _on_chords(epsilon: Floats, bound: Floats, delta: Floats) -> Floats:
    """Return ε at which a profile below a curve's chords, straight in e^ε, is at most each δ."""
    after = np.searchsorted(-bound, -delta)  # the first node whose bound is at most δ
    last = np.minimum(after, bound.size - 1)
    before = np.maximum(last - 1, 0)
    with np.errstate(all="ignore"):
        left = (delta - bound[last]) / (bound[before] - bound[last]) * (1 - 4 * UNIT)
    left = np.where((last > before) & (left >= 0), left, 0.0)  # ∞ before: at the node itself
    width = epsilon[last] - epsilon[before]
    at = epsilon[last] + np.log1p(-left * -np.expm1(-width))
    at += 8 * UNIT * (epsilon[last] + np.exp(np.minimum(width, 700.0)))
    return np.where(after < bound.size, np.minimum(at, epsilon[last]), np.inf)


@np.errstate(all="ignore")
def _each(columns: Floats) -> Bounds:
    """Return the bounds of each column (z, q, T, δ), on its own."""
    delta = columns[3]
    lower, upper = nothing_known(delta)
    todo = np.ones(delta.size, dtype=bool)
    for attempt in range(_ATTEMPTS):
        for some, count in _chunks(columns[:3], delta, todo, attempt):
            sides = _sides(columns[:, some][[0, 1, 2, 3, 3]], count, attempt)
            bounds = _larger([one.epsilon(delta[some, None], guess) for one, guess in sides])
            lower[some] = np.maximum(lower[some], bounds.lower[:, 0])
            upper[some] = np.minimum(upper[some], bounds.upper[:, 0])
        todo &= ~DEFAULT.reached(Bounds(lower, upper))
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
    return np.asarray(place_of_tail(np.log(OUTSIDE * delta / times)))


def _sides(columns: Floats, count: int, attempt: int) -> Sides:
    """Return both directions' integrals around δ, and about the ε that belong to it."""
    # columns: z, q, T, δ, and the smallest δ that they are asked at, which windows and cuts are
    # chosen for.
    z, q, times, delta, least = columns[:, :, None]
    windows = np.stack([z, q, times, least, _window(times, least)])
    forward, outside, share = (cut if attempt else whole)(windows, count)
    aim = Aim(_POINTS[1], _LOG_ROUGH, DEFAULT) if attempt else Aim(_POINTS[0])
    return [
        contour(forward, times, delta, outside, share, aim),
        contour(forward.reversed(), times, delta, outside, np.ones_like(share), aim),
    ]


def _near(one: Contour, about: Floats, rows: Own, turn: int, epsilon: Floats) -> Bounds:
    """Bound each δ(ε) by the nearest of its own integrals; at a turn 1 by the second."""
    # about: the ε around which they are made.
    first, size = rows
    own = first[:, None] + np.minimum(np.arange(size.max()), size[:, None] - 1)
    far = np.argsort(np.abs(about[own, 0] - epsilon[:, None]), axis=1, kind="stable")
    row = np.take_along_axis(own, far[:, [min(turn, own.shape[1] - 1)]], axis=1)[:, 0]
    return Bounds(*(end[:, 0] for end in one.rows(row).delta(epsilon[:, None])))


def _larger(sides: Sequence[Bounds]) -> Bounds:
    """Return the bounds of the larger direction; 0 and ∞ where one of them is not known."""
    lower, upper = (np.maximum(*ends) for ends in zip(*sides, strict=True))
    good = np.isfinite(upper) & np.isfinite(lower)
    return Bounds(np.where(good, lower, 0.0), np.where(good, upper, np.inf))
