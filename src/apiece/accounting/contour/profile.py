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
from apiece.accounting.bounds import DEFAULT, find_runs, nothing_known, tightest
from apiece.accounting.contour.integral import Aim, Contour, build_contour
from apiece.accounting.contour.moments import (
    OUTSIDE,
    discretise_cut_windows,
    discretise_windows,
    estimate_node_count,
)
from apiece.numerics.normal import invert_log_tail
from apiece.numerics.roots import Places
from apiece.numerics.rounding import LARGEST_LOG_RATIO, UNIT

# Numbers of nodes that windows get, the least that resolves them.
_COUNTS = (40, 56, 80, 112, 160, 224, 320, 448, 640)
# Angle θ at which that number is chosen.
_ANGLE = 0.6
# Number of nodes of windows that are cut.
_CUT_COUNT = 1792
# Attempts at an integral, and the points of a contour, at most, at each of them.
_ATTEMPTS = 2
_POINTS = (250, 900)
# Log of the relative error of δ, for each cause, that a smoothed contour is made for.
_LOG_ROUGH = math.log(1e-6)
# Numbers in an array. Of larger ones numpy reuses memory, and rounds otherwise.
_CHUNK = 2**14
MANY = 32
"""Values of δ from which on one curve for all of them is quicker."""
FEWEST_STEPS = 2
"""Steps from which on there is something to compose."""

Sides: TypeAlias = list[tuple[Contour, Floats]]
"""The integrals of both directions, each with the ε around which they are made."""
Stage: TypeAlias = tuple[tuple[int, int], int]
"""Regions of δ, the first and the one past the last, and the number of the attempt."""
Spans: TypeAlias = tuple[Places, Places]
"""For each entry, where its own mechanism's rows start in shared integrals, and how many."""


class SharedIntegrals(NamedTuple):
    """Integrals that are made together for several mechanisms, and the rows of one of them."""

    sides: Sides
    # The first of the mechanism's rows, and how many it has.
    start: int
    size: int


# Width of a region of δ, in √(2·log(1/δ)).
_WIDTH = 1.5
# Regions asked about δ together: down to δ of 4e-5, of 6e-13, and all others.
_REGIONS = ((0, 3), (3, 5), (5, 11))
# Root of the number of a curve's nodes; its chords are then some 5e-5 of ε above it.
_ROOT = 9


@dataclass(frozen=True, slots=True)
class SampledGaussians:
    """The profile of `times` sampled Gaussian steps of one kind."""

    # Many ε at once, of many mechanisms: `epsilon_bounds`. δ is bounded by integrals around some δ;
    # they are made when first asked for and stay in `integrals`.

    noise_multiplier: float
    probability: float
    times: int
    integrals: dict[Stage, SharedIntegrals] = field(default_factory=dict, repr=False, compare=False)

    def delta(self, epsilon: Floats) -> Bounds:
        """Bound δ(ε)."""
        return delta_bounds([self], epsilon, np.zeros(epsilon.shape, dtype=np.intp))

    def columns(self, stage: Stage) -> tuple[Floats, int]:
        """Return columns (z, q, T, δ, least δ) of a stage, around the middle of regions of δ.

        The second is how many nodes they need; 0 where losses are past the numerical range.
        """
        (start, end), attempt = stage
        number = np.arange(float(start), float(end))
        mechanism = np.array([self.noise_multiplier, self.probability, float(self.times)])
        middle = _delta_at(number + 0.5)
        smallest = _delta_at(number + 1.0)
        mechanisms = np.repeat(mechanism[:, None], number.size, axis=1)
        columns = np.stack([*mechanisms, middle, smallest])
        count = _choose_node_counts(columns[:3], smallest, attempt)
        in_range = columns[:, count > 0]
        return in_range, int(count.max())

    def epsilon(self, delta: Floats) -> Bounds:
        """Bound ε(δ)."""
        mechanism = (self.noise_multiplier, self.probability, float(self.times))
        columns = [np.full(delta.shape, value) for value in mechanism]
        return epsilon_bounds(np.stack([*columns, delta]))


@np.errstate(all="ignore")
def delta_bounds(profiles: Sequence[SampledGaussians], epsilon: Floats, owner: Places) -> Bounds:
    """Return bounds on δ at each ε, of the mechanism with its owner's number in `profiles`."""
    # By the nearest integral, by the second and by more of them where that is not close. They are
    # made for all mechanisms together, and are what each would have alone.
    lower = np.zeros(epsilon.shape)
    upper = np.ones(epsilon.shape)
    stages = product(_REGIONS, range(_ATTEMPTS))
    for stage, turn in product(stages, range(2)):
        unresolved = np.flatnonzero(~DEFAULT.resolved(Bounds(lower, upper)))
        owners, member = np.unique(owner[unresolved], return_inverse=True)
        open_profiles = [profiles[k] for k in owners]
        for part, sides, spans in _share_integrals(open_profiles, stage, member):
            entries = unresolved[part]
            bounds = [_evaluate_nearest(*side, spans, turn, epsilon[entries]) for side in sides]
            # Each integral's bounds are true on their own, so that the closest of all ends stay.
            low, high = _larger_direction(bounds)
            lower[entries] = np.maximum(lower[entries], low)
            upper[entries] = np.minimum(upper[entries], high)
    return tightest([Bounds(lower, upper)])


def _share_integrals(
    profiles: Sequence[SampledGaussians], stage: Stage, member: Places
) -> Iterator[tuple[Places, Sides, Spans]]:
    """Yield parts of `member`, their integrals, and which rows of these are each entry's own.

    `member` says, for each entry, which of the profiles is its own.
    """
    missing = {id(profile): profile for profile in profiles if stage not in profile.integrals}
    _make_integrals(list(missing.values()), stage)
    integrals = [profile.integrals[stage] for profile in profiles]
    # Mechanisms whose integrals were made together hold the same list, which is used once.
    distinct = {id(shared.sides): shared.sides for shared in integrals if shared.size}
    for sides in distinct.values():
        # A mechanism of other integrals has no row in these.
        spans = [
            (shared.start, shared.size) if shared.sides is sides else (0, 0) for shared in integrals
        ]
        start, size = np.array(spans)[member].T
        entries = np.flatnonzero(size)
        # As many entries at a time as keep arrays small.
        longest = max(contour.y.shape[1] for contour, _ in sides)
        rows = _CHUNK * 4 // longest + 1
        for part in np.split(entries, range(rows, entries.size, rows)):
            yield part, sides, (start[part], size[part])


def _make_integrals(profiles: Sequence[SampledGaussians], stage: Stage) -> None:
    """Make the integrals of a stage; some mechanisms' at a time, of as many nodes."""
    columns = [profile.columns(stage) for profile in profiles]
    counts = np.array([count for _, count in columns], dtype=np.intp)
    # Mechanisms with as many nodes share arrays; those with none have nothing to integrate.
    for count in np.unique(counts).tolist():
        members = np.flatnonzero(counts == count)
        regions = columns[members[0]][0].shape[1]
        rows = max(_CHUNK // count // regions, 1) if count else members.size
        for part in np.split(members, range(rows, members.size, rows)):
            parts = [columns[k][0] for k in part]
            sizes = [part_columns.shape[1] for part_columns in parts]
            sides: Sides = []
            if count:
                sides = _build_sides(np.concatenate(parts, axis=1), count, stage[1])
            starts = np.cumsum([0, *sizes]).tolist()
            # `starts` ends with the total, which begins no mechanism's rows.
            for k, start, size in zip(part, starts, sizes, strict=False):
                profiles[k].integrals[stage] = SharedIntegrals(sides, start, size)


def epsilon_bounds(columns: Floats) -> Bounds:
    """Return bounds on ε(δ) for columns (z, q, T, δ) of T ≥ 2 sampled Gaussian steps, 0 < q < 1."""
    # Where this cannot tell, the bounds are 0 and ∞; also where many δ share a mechanism, whose
    # curve on the lattice answers for all of them quicker.
    # Equal mechanisms come to lie side by side, and their runs are counted.
    order = np.lexsort(columns[:3])
    _, sizes = find_runs(columns[:3, order])
    unshared = np.empty(order.size, dtype=bool)
    unshared[order] = np.repeat(sizes, sizes) < MANY
    lower, upper = nothing_known(columns[3])
    lower[unshared], upper[unshared] = _bound_columns(columns[:, unshared])
    return Bounds(lower, upper)


@np.errstate(all="ignore")
def epsilon_curves(columns: Floats) -> Floats:
    """Return upper bounds on ε for columns (z, q, T, δ) as of `epsilon_bounds`, by curves."""
    # Equal mechanisms lie side by side. An entry's bound depends on nothing but the entry: on its
    # mechanism's curve in the region of its δ, but for rounding. ∞ where that is not close enough.
    # √(2·log(1/δ)) is about the quantile of a normal tail of δ: regions are evenly wide in it.
    quantile = np.sqrt(-2 * np.log(columns[3]))
    region = np.floor(quantile / _WIDTH)
    order = np.lexsort((region, *columns[2::-1]))
    keys = np.stack([*columns[:3], region])
    keys = keys[:, order]
    starts, sizes = find_runs(keys)
    # One curve for each mechanism and region.
    upper = np.full(order.size, np.inf)
    for numbers, *curves in _build_curves(keys[:, starts]):
        for number, epsilon, delta in zip(numbers, *curves, strict=True):
            entries = order[starts[number] : starts[number] + sizes[number]]
            upper[entries] = _read_off_chords(epsilon, delta, columns[3, entries])
    return upper


def _build_curves(keys: Floats) -> Iterator[tuple[Places, Floats, Floats]]:
    """Yield numbers of columns (z, q, T, region), and the curves there that are close enough.

    A curve is a row of ascending ε, and one of upper bounds on δ there, which do not rise.
    """
    largest = _delta_at(keys[3] + 0.0)
    middle = _delta_at(keys[3] + 0.5)
    smallest = _delta_at(keys[3] + 1.0)
    columns = np.stack([*keys[:3], middle, smallest])
    todo = np.ones(middle.size, dtype=bool)
    for attempt in range(_ATTEMPTS):
        for numbers, count in _cut_chunks(keys[:3], smallest, todo, attempt):
            sides = _build_sides(columns[:, numbers], count, attempt)
            close, epsilon, delta = _build_curve(
                sides, largest[numbers, None], smallest[numbers, None]
            )
            yield numbers[close], epsilon[close], delta[close]
            todo[numbers] &= ~close


def _delta_at(region: Floats) -> Floats:
    """Return the δ at which a region begins; at a number and a half, its middle."""
    quantile = _WIDTH * region
    delta = np.exp(-(quantile**2) / 2)
    return np.clip(delta, 1e-300, 1 - 2.0**-20)


def _build_curve(sides: Sides, largest: Floats, smallest: Floats) -> tuple[Mask, Floats, Floats]:
    """Return which curves between two δ are close enough, and all of them."""
    start = _larger_direction([contour.epsilon(largest, guess) for contour, guess in sides])
    end = _larger_direction([contour.epsilon(smallest, guess) for contour, guess in sides])
    # Nodes are spread evenly between the ε of the largest and of the smallest δ.
    good = DEFAULT.reached(start) & DEFAULT.reached(end)
    # An end that is not known gets any finite grid; its curve is not used.
    low = np.where(good, start.lower, 0.0)
    high = np.where(good, end.upper, 1.0)
    step = (high - low) / (_ROOT**2 - 1)
    (forward, _), (backward, _) = sides
    epsilon, forward_bounds = forward.deltas(low, step, _ROOT)
    _, backward_bounds = backward.deltas(low, step, _ROOT)
    upper = _larger_direction([forward_bounds, backward_bounds]).upper
    # A profile falls, so that a bound at one ε holds at every larger one.
    return good[:, 0], epsilon, np.minimum.accumulate(upper, axis=1)


def _read_off_chords(epsilon: Floats, bound: Floats, delta: Floats) -> Floats:
    """Return ε at which a profile below a curve's chords, straight in e^ε, is at most each δ."""
    # The first node whose bound is at most δ; there is none where it is past the last one.
    # Bounds fall along a curve: negated, they ascend as the search needs.
    crossed = np.searchsorted(-bound, -delta)
    high = np.minimum(crossed, bound.size - 1)
    low = np.maximum(high - 1, 0)
    # How far the chord has risen from its upper end; rounded down, which gives a larger ε.
    with np.errstate(all="ignore"):
        rise = delta - bound[high]
        full_rise = bound[low] - bound[high]
        share = rise / full_rise * (1 - 4 * UNIT)
    # Where the lower node has no bound: at the upper node itself.
    share = np.where((high > low) & (share >= 0), share, 0.0)
    # In t = e^ε, t = t_high − share·(t_high − t_low) = t_high·(1 − share·(1 − e^{−width})).
    largest = epsilon[high]
    width = largest - epsilon[low]
    shrinkage = -np.expm1(-width)
    crossing = largest + np.log1p(-share * shrinkage)
    # Near share 1 the logarithm has a slope of up to e^width.
    steepness = np.exp(np.minimum(width, 700.0))
    crossing += 8 * UNIT * (largest + steepness)
    crossing = np.minimum(crossing, largest)
    return np.where(crossed < bound.size, crossing, np.inf)


@np.errstate(all="ignore")
def _bound_columns(columns: Floats) -> Bounds:
    """Return the bounds on ε of each column (z, q, T, δ), on its own."""
    delta = columns[3]
    lower, upper = nothing_known(delta)
    todo = np.ones(delta.size, dtype=bool)
    for attempt in range(_ATTEMPTS):
        for entries, count in _cut_chunks(columns[:3], delta, todo, attempt):
            # The δ asked about is the least one too.
            sides = _build_sides(columns[:, entries][[0, 1, 2, 3, 3]], count, attempt)
            part = delta[entries, None]
            bounds = _larger_direction([contour.epsilon(part, guess) for contour, guess in sides])
            low = bounds.lower[:, 0]
            high = bounds.upper[:, 0]
            lower[entries] = np.maximum(lower[entries], low)
            upper[entries] = np.minimum(upper[entries], high)
        todo &= ~DEFAULT.reached(Bounds(lower, upper))
    return tightest([Bounds(lower, upper)])


def _cut_chunks(
    mechanism: Floats, delta: Floats, todo: Mask, attempt: int
) -> Iterator[tuple[Places, int]]:
    """Yield numbers of similar entries to do, some at a time, and how many nodes they need."""
    z, q, _ = mechanism
    size = _choose_node_counts(mechanism, delta, attempt)
    todo = todo & (size > 0)
    for count in np.unique(size[todo]).tolist():
        entries = np.flatnonzero(todo & (size == count))
        # Like with like, so that those made together take about as many points.
        entries = entries[np.lexsort((q[entries], z[entries]))]
        rows = max(_CHUNK // count, 1)
        for part in np.split(entries, range(rows, entries.size, rows)):
            yield part, count


def _choose_node_counts(mechanism: Floats, delta: Floats, attempt: int) -> Places:
    """Return how many nodes each entry needs; 0 where its losses are past the numerical range."""
    z, _, times = mechanism
    reach = _window_reach(times, delta)
    if attempt:
        size = np.full(z.shape, _CUT_COUNT)
    else:
        # The errors of T steps add up: this is each step's share of 1e-12.
        needed = estimate_node_count(z, 2 * reach + 1 / z, np.log(1e-12 / times), _ANGLE)
        size = np.take(_COUNTS, np.searchsorted(_COUNTS, needed), mode="clip")
    # The largest ρ of the window, at its upper end, is what e^ρ has to hold.
    return np.where((reach + 1 / z) / z < LARGEST_LOG_RATIO, size, 0)


def _window_reach(times: Floats, delta: Floats) -> Floats:
    """Return how many standard deviations windows reach."""
    return np.asarray(invert_log_tail(np.log(OUTSIDE * delta / times)))


def _build_sides(columns: Floats, count: int, attempt: int) -> Sides:
    """Return both directions' integrals around δ, and about the ε that belong to it.

    Columns are (z, q, T, δ, least δ): the smallest δ that they are asked at, which windows and cuts
    are chosen for.
    """
    z, q, times, delta, smallest = columns[:, :, None]
    windows = np.stack([z, q, times, smallest, _window_reach(times, smallest)])
    if attempt:
        forward, outside, share = discretise_cut_windows(windows, count)
        aim = Aim(_POINTS[1], _LOG_ROUGH, DEFAULT)
    else:
        forward, outside, share = discretise_windows(windows, count)
        aim = Aim(_POINTS[0])
    # Jumps add nothing from below in the add direction: all of δ is made within the windows.
    full_share = np.ones_like(share)
    return [
        build_contour(forward, times, delta, outside, share, aim),
        build_contour(forward.reverse(), times, delta, outside, full_share, aim),
    ]


def _evaluate_nearest(
    contour: Contour, centres: Floats, spans: Spans, turn: int, epsilon: Floats
) -> Bounds:
    """Bound each δ(ε) by the nearest of its own integrals; at a turn 1 by the second.

    `centres` holds the ε around which the integrals are made.
    """
    start, size = spans
    # Each entry's own rows; who has fewer has the last one again.
    last_number = size[:, None] - 1
    number = np.minimum(np.arange(size.max()), last_number)
    rows = start[:, None] + number
    own_centres = centres[rows, 0]
    distance = np.abs(own_centres - epsilon[:, None])
    nearest = np.argsort(distance, axis=1, kind="stable")
    rank = min(turn, rows.shape[1] - 1)
    choice = nearest[:, [rank]]
    row = np.take_along_axis(rows, choice, axis=1)[:, 0]
    own_contours = contour.rows(row)
    lower, upper = own_contours.delta(epsilon[:, None])
    return Bounds(lower[:, 0], upper[:, 0])


def _larger_direction(sides: Sequence[Bounds]) -> Bounds:
    """Return the bounds of the larger direction; 0 and ∞ where one of them is not known."""
    lower, upper = (np.maximum(*ends) for ends in zip(*sides, strict=True))
    good = np.isfinite(upper) & np.isfinite(lower)
    return Bounds(np.where(good, lower, 0.0), np.where(good, upper, np.inf))
