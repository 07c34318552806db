"""Quantiles by the exponential mechanism, drawn exactly, on a grid of decimal numbers.

The score of a grid point is minus the number of rows by which the quantile misses it: a point
covers the ranks from the rows below it to those not above it, and the quantile of level q of n rows
has rank q·n. One row more or less moves every score by at most max(q, 1 − q). A point is drawn with
its prior weight times e^(−η·|score|/2Δ), Δ = r·max(q, 1 − q) for r rows a person. The loss of a
person with k of those rows then has a range of at most η·k/r (Dong, Durfee, Rogers 2020).

Several levels are drawn as a tree (Kaplan, Schnapp, Stemmer 2022): the middle one first, the others
from the rows on its sides, so that m levels cost ⌈log2(m + 1)⌉ draws. Many rows may lie on the
point that divides them, so an outcome is a point and a slice of its c rows: slice j of S covers
their ranks from ⌊c·j/S⌋ to ⌊c·(j+1)/S⌋, at least one, and ⌊c·(j+1)/S⌋ rows go to the left.

The prior is public: three quarters are even on the finest grid, the rest on coarser ones of steps
10, 100, …, on which whole numbers lie; with `log`, numbers of few digits near zero weigh more.
"""

from __future__ import annotations

import decimal
import math
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from apiece._text import lossless
from apiece._types import Json
from apiece.queries.grammar import ParsedQuery
from apiece.queries.noise import Bits

Ints = npt.NDArray[np.int64]

# Confidence of the intervals of an answer.
CONFIDENCE: Final = 0.95
# Points of all groups' grids, at most: rows cannot make an answer outgrow the memory.
POINTS: Final = 2**22
# A level, and a rank, are whole numbers of 2^−30 rows.
LEVEL_BITS: Final = 30
# Slices of a point that divides the rows: more than rows lie on it.
SLICES = 2**40
# Multiples of a step on each side of 0 in a window of the prior by `log`.
DIGITS: Final = 10**3
# Where scores end, in nats, so that the least weight is known.
FURTHEST: Final = 100
# Weights are in units of 2^−256.
WEIGHT_BITS: Final = 256
# Whole weights are within 2^(1−256)·e^100 < 2^−110 of the exponentials, in proportion, so the loss
# of a draw is off by less than this, which is taken from η.
ROUNDED: Final = decimal.Decimal(2.0**-100)
# What the floats of a share of η may be off by; a share is smaller by it than η over the draws.
_SHARE_SLACK: Final = 2.0**-50
# Points in the coarsest grid of a prior, at least.
_COARSEST: Final = 100
# Weights of a point in the prior are in units of 2^−64.
_PRIOR_BITS: Final = 64
# Arithmetic on decimals of 170 digits, whoever calls.
_EXACT: Final = decimal.Context(prec=170)


class Piece(NamedTuple):
    """A part of a prior: each multiple of `step` from `low` to `high` weighs `share`."""

    step: int
    low: int
    high: int
    share: int

    def overlap(self, low: int, high: int) -> tuple[int, int]:
        """Return the lowest multiple from `low` to `high`, in steps, and how many there are."""
        # Rounded up to a multiple from the lower end, and down from the upper one.
        start = -(-max(low, self.low) // self.step)
        count = max(min(high, self.high) // self.step - start + 1, 0)
        return start, count


@dataclass(frozen=True, slots=True)
class Grid:
    """`size` multiples of 10^exponent, with prior weights; the multiple `origin` is the point 0."""

    origin: int
    size: int
    exponent: int
    pieces: tuple[Piece, ...]

    @classmethod
    def from_bounds(cls, low: float, high: float, groups: int = 1, *, log: bool = False) -> Grid:
        """Return the finest grid within a column's declared bounds, as they are in decimals."""
        limit = max(POINTS // groups, 10)
        lower = decimal.Decimal(repr(float(low)))
        upper = decimal.Decimal(repr(float(high)))
        # This exponent is too fine by one or just fine enough; the loop makes the grid coarser
        # until it is small enough.
        exponent = math.floor(math.log10((high - low) / limit))
        while True:
            step = decimal.Decimal(1).scaleb(exponent)
            low_multiple = math.ceil(lower / step)
            high_multiple = math.floor(upper / step)
            width = high_multiple - low_multiple
            if width < limit:
                return cls.from_points(low_multiple, width + 1, exponent, log=log)
            exponent += 1

    @classmethod
    def from_points(cls, origin: int, size: int, exponent: int, *, log: bool = False) -> Grid:
        """Return the grid of `size` multiples of 10^exponent from `origin` on, with its prior."""
        end = origin + size - 1
        # Steps 1, 10, 100, … as long as a hundred of their multiples lie on the grid.
        digits = len(str(_COARSEST)) - 1
        steps = [10**k for k in range(max(len(str(size)) - digits, 1))]
        # The finest grid has three times what all coarser ones have together.
        finest = 3 * max(len(steps) - 1, 1)
        windows = [(step, origin, end, finest if step == 1 else 1) for step in steps]
        # For each step a window of its first multiples around 0: numbers of up to three digits
        # weigh more there.
        if log:
            for step in steps:
                reach = step * DIGITS
                windows.append((step, max(origin, -reach), min(end, reach), len(steps)))
        pieces = []
        for step, low, high, weight in windows:
            _, count = Piece(step, low, high, 0).overlap(low, high)
            if count:
                # A piece shares its weight among its multiples, in whole units, rounded down.
                pieces.append(Piece(step, low, high, (weight << _PRIOR_BITS) // count))
        return cls(origin, size, exponent, tuple(pieces))

    def value(self, point: int) -> float:
        """Return the number that a point is: the float nearest to its decimals."""
        return float(decimal.Decimal(self.origin + point).scaleb(self.exponent))

    @property
    def step(self) -> float:
        """The distance of neighbouring points."""
        # Not the difference of two points' floats, which far from zero is 0 or a multiple of it.
        return float(decimal.Decimal(1).scaleb(self.exponent))

    def prior(self, low: int, high: int) -> int:
        """Return the prior weight of the points from `low` to `high`, both of them in."""
        total = 0
        for piece in self.pieces:
            _, count = piece.overlap(low + self.origin, high + self.origin)
            total += piece.share * count
        return total

    def pick(self, low: int, high: int, weight: int) -> int:
        """Return the point of those from `low` to `high` in which a cumulative weight falls."""
        for piece in self.pieces:
            start, count = piece.overlap(low + self.origin, high + self.origin)
            # A point may lie in several pieces. Taken one after the other, they give it the sum of
            # its shares.
            if weight < piece.share * count:
                return (start + weight // piece.share) * piece.step - self.origin
            weight -= piece.share * count
        raise AssertionError("the weight lies in the range")

    @property
    def lowest_share(self) -> float:
        """The share of the prior, in (0, 1], that each point has at least."""
        # The first piece is the finest grid, on which every point lies.
        return self.pieces[0].share / self.prior(0, self.size - 1)


@dataclass(frozen=True, slots=True, repr=False)
class Segment:
    """Some of a table's rows: `counts` on `points`, in order, of those from `low` to `high`."""

    points: Ints
    counts: Ints
    low: int
    high: int

    @property
    def rows(self) -> int:
        """How many rows there are."""
        return int(self.counts.sum())

    def with_rows(self, point: int, count: int) -> Segment:
        """Return the segment with `count` more rows on one of its points."""
        points, positions = np.unique(np.append(self.points, point), return_inverse=True)
        counts = np.zeros(points.size, np.int64)
        np.add.at(counts, positions, np.append(self.counts, count))
        return Segment(points, counts, self.low, self.high)

    def divide(self, point: int, slice_number: int) -> tuple[Segment, Segment]:
        """Return the rows up to and with a slice of a point, and those beyond it."""
        left_counts = self.counts * (self.points < point)
        on_point = self.points == point
        left_counts[on_point] = [
            int(count) * (slice_number + 1) // SLICES for count in self.counts[on_point]
        ]
        right_counts = self.counts - left_counts
        left = left_counts > 0
        right = right_counts > 0
        return (
            Segment(self.points[left], left_counts[left], self.low, point),
            Segment(self.points[right], right_counts[right], point, self.high),
        )


@dataclass(frozen=True, slots=True, repr=False)
class Stretch:
    """Outcomes that score alike: the points from `low` to `high`, or slices of one point.

    Each point has the slices from `slice_start` on, `slice_count` of them; `missed` is by how much
    an outcome misses the quantile's rank, in 2^−30 rows.
    """

    low: int
    high: int
    slice_start: int
    slice_count: int
    missed: int


def yield_stretches(segment: Segment, target: int, limit: int, slices: int) -> Iterator[Stretch]:
    """Yield all outcomes of a segment, in order, as stretches that score alike.

    `target` is the quantile's rank, and `limit` the largest miss that is told from a larger one,
    both in 2^−30 rows. Outcomes that miss by `limit` or more are one stretch on each side.
    """
    # Runs of points that cover the same ranks, from `rank_low` to `rank_high`: points with rows
    # have the odd indices, the gaps before, between and after them the even ones.
    ranks = np.concatenate([[0], np.cumsum(segment.counts, dtype=np.int64)]) << LEVEL_BITS
    low = np.empty(2 * segment.points.size + 1, np.int64)
    high = np.empty_like(low)
    rank_low = np.empty_like(low)
    rank_high = np.empty_like(low)
    low[0::2] = np.append(segment.low, segment.points + 1)
    high[0::2] = np.append(segment.points - 1, segment.high)
    rank_low[0::2] = ranks
    rank_high[0::2] = ranks
    low[1::2] = segment.points
    high[1::2] = segment.points
    rank_low[1::2] = ranks[:-1]
    rank_high[1::2] = ranks[1:]
    # How far the target lies outside of the ranks that a run covers. It falls towards the target
    # and rises behind it, so that what is near is one range of runs.
    missed = np.maximum(np.maximum(rank_low - target, target - rank_high), 0)
    near = np.flatnonzero(missed < limit)
    begin = int(near[0])
    end = int(near[-1])
    if segment.low < low[begin]:
        yield Stretch(segment.low, int(low[begin]) - 1, 0, slices, limit)
    for run in range(begin, end + 1):
        ends = int(low[run]), int(high[run])
        rows = int(rank_high[run] - rank_low[run]) >> LEVEL_BITS
        # A leaf of the tree needs no slices: nothing is divided there.
        if slices > 1 and rows:
            yield from _yield_slices(ends, rows, target - int(rank_low[run]), limit, slices)
        elif ends[0] <= ends[1]:
            yield Stretch(*ends, 0, slices, int(missed[run]))
    if high[end] < segment.high:
        yield Stretch(int(high[end]) + 1, segment.high, 0, slices, limit)


def _yield_slices(
    ends: tuple[int, int], rows: int, target: int, limit: int, slices: int
) -> Iterator[Stretch]:
    """Yield the slices of one point with rows; `target` counts from its first row on."""
    # Slices that cover the same rows are of one kind and score alike. The kinds that miss by less
    # than `limit` lie between `begin` and `end`, with a few more.
    count = min(rows, slices)
    low_row = (target - limit) >> LEVEL_BITS
    high_row = ((target + limit) >> LEVEL_BITS) + 1
    begin = min(max(low_row * count // rows - 1, 0), count)
    end = max(min(high_row * count // rows + 2, count), begin)

    def start_of(kind: int) -> int:
        """Return the first slice of a kind."""
        return -(-kind * slices // count)

    if begin:
        yield Stretch(*ends, 0, start_of(begin), limit)
    for kind in range(begin, end):
        low = kind * rows // count << LEVEL_BITS
        high = (kind + 1) * rows // count << LEVEL_BITS
        missed = min(max(low - target, target - high, 0), limit)
        start = start_of(kind)
        yield Stretch(*ends, start, start_of(kind + 1) - start, missed)
    if end < count:
        start = start_of(end)
        yield Stretch(*ends, start, slices - start, limit)


@dataclass(frozen=True, slots=True, repr=False)
class Law:
    """The exponential mechanism on a segment: each outcome of a stretch weighs prior · decay."""

    grid: Grid
    stretches: list[Stretch]
    # e^(−rate · missed) of each stretch, in units of 2^−256.
    decays: list[int]
    # Of all outcomes of each stretch together.
    weights: list[int]

    @classmethod
    def from_segment(
        cls, grid: Grid, segment: Segment, target: int, rate: decimal.Decimal, slices: int = 1
    ) -> Law:
        """Return the law of a quantile whose rank is `target`; a miss of one weighs e^−rate."""
        # Beyond this miss a weight is e^−100, however far the outcome is.
        limit = int(_EXACT.divide(decimal.Decimal(FURTHEST), rate)) + 1
        stretches = list(yield_stretches(segment, target, limit, slices))
        decays = compute_decays([stretch.missed for stretch in stretches], rate)
        weights = [
            grid.prior(stretch.low, stretch.high) * stretch.slice_count * decay
            for stretch, decay in zip(stretches, decays, strict=True)
        ]
        return cls(grid, stretches, decays, weights)

    def draw(self, bits: Bits) -> tuple[int, int]:
        """Return a point and a slice of it, drawn exactly in proportion to their weights."""
        ends = list(accumulate(self.weights))
        # Uniform numbers of as many bits as the sum has, until one is below it: one or two tries on
        # average.
        width = ends[-1].bit_length()
        while (weight := bits(width)) >= ends[-1]:
            pass
        index = bisect_right(ends, weight)
        stretch = self.stretches[index]
        before_stretch = ends[index - 1] if index else 0
        # Within a stretch the weight counts decays: of each point its prior, of that each slice.
        outcome = (weight - before_stretch) // self.decays[index]
        prior, slice_number = divmod(outcome, stretch.slice_count)
        point = self.grid.pick(stretch.low, stretch.high, prior)
        return point, stretch.slice_start + slice_number


def compute_decays(misses: Sequence[int], rate: decimal.Decimal) -> list[int]:
    """Return e^(−rate·m) for each miss m, in 2^−30 rows, in units of 2^−256."""
    # A product of the factors e^(−rate·2^k) of the bits k that m has. Factors have twice the bits
    # of a weight: 60 squares leave them right to 2^−300, in proportion.
    bits = 2 * WEIGHT_BITS
    one = 1 << bits
    # A plain "-rate" would be rounded to the 28 digits of whoever calls.
    decay_of_one = _EXACT.exp(_EXACT.minus(rate))
    factors = [int(_EXACT.multiply(decay_of_one, decimal.Decimal(one)))]
    for _ in range(max(misses).bit_length()):
        factors.append(factors[-1] ** 2 >> bits)
    decays = []
    for miss in misses:
        product = one
        remainder = miss
        while remainder:
            lowest_bit = remainder & -remainder
            product = product * factors[lowest_bit.bit_length() - 1] >> bits
            remainder ^= lowest_bit
        decays.append(product >> WEIGHT_BITS)
    return decays


def quantize_level(level: float) -> int:
    """Return a level in units of 2^−30, neither 0 nor 1."""
    return min(max(round(level * (1 << LEVEL_BITS)), 1), (1 << LEVEL_BITS) - 1)


def compute_rate(level: float, eta: float, rows: int) -> decimal.Decimal:
    """Return how fast weights fall with what is missed, in nats per 2^−30 rows.

    `eta` is the range of the loss of whoever brings all of `rows`, in this draw.
    """
    # rate = η/(2Δ), with Δ = r·max(q, 1 − q) in the unit of the misses.
    quantized = quantize_level(level)
    twice_sensitivity = 2 * rows * max(quantized, 2**LEVEL_BITS - quantized)
    available = _EXACT.subtract(decimal.Decimal(eta), ROUNDED)
    return _EXACT.divide(available, decimal.Decimal(twice_sensitivity))


def count_draws(query: ParsedQuery) -> int:
    """Return how many draws a row takes part in: a tree's depth, or an interval's three."""
    return 3 if query.aggregate == "interval" else len(query.numbers).bit_length()


def draw_quantiles(
    grid: Grid, segment: Segment, levels: Sequence[float], eta: float, rows: int, bits: Bits
) -> list[int]:
    """Return a drawn point of the grid for each level, in order, from all rows of a group.

    `eta` is the range of the loss, at least 2^−40, of whoever brings all of `rows`, in all draws.
    """
    # A row is on one side of each point that is drawn, so it takes part in one draw a depth.
    share = eta / len(levels).bit_length() * (1 - _SHARE_SLACK)
    points = [0] * len(levels)

    def draw_between(segment: Segment, begin: int, end: int, low: float, high: float) -> None:
        """Draw the levels from `begin` to `end`, which are those between `low` and `high`."""
        if begin == end:
            return
        middle = (begin + end) // 2
        # Within the rows between two quantiles, the level is its share of the way from one to the
        # other.
        level = (levels[middle] - low) / (high - low)
        target = quantize_level(level) * segment.rows
        is_leaf = end - begin == 1
        rate = compute_rate(level, share, rows)
        law = Law.from_segment(grid, segment, target, rate, 1 if is_leaf else SLICES)
        points[middle], slice_number = law.draw(bits)
        if not is_leaf:
            left, right = segment.divide(points[middle], slice_number)
            draw_between(left, begin, middle, low, levels[middle])
            draw_between(right, middle + 1, end, levels[middle], high)

    draw_between(segment, 0, len(levels), 0.0, 1.0)
    return points


def draw_interval(
    grid: Grid, segment: Segment, level: float, eta: float, rows: int, bits: Bits
) -> tuple[int, int, int]:
    """Return the lower end, a point and the upper end of an interval that covers a quantile.

    `eta` is the range of the loss of whoever brings all of `rows`, in all three draws.
    """
    share = eta / 3 * (1 - _SHARE_SLACK)
    rate = compute_rate(level, share, rows)
    target = quantize_level(level) * segment.rows
    # An end is drawn for a rank that is further out by the rank margin of a draw, and one row. As
    # many rows that are nobody's lie on the last point there, so that there is such a rank.
    margin = rank_margin(grid, level, share, rows, (1 + CONFIDENCE) / 2)
    extra = math.ceil(margin) + 1
    below = segment.with_rows(segment.low, extra)
    above = segment.with_rows(segment.high, extra)
    # With the extra rows below, the rank `target` lies `extra` rows further down.
    lower, _ = Law.from_segment(grid, below, target, rate).draw(bits)
    middle, _ = Law.from_segment(grid, segment, target, rate).draw(bits)
    upper, _ = Law.from_segment(grid, above, target + (extra << LEVEL_BITS), rate).draw(bits)
    low = min(lower, upper)
    high = max(lower, upper)
    return low, min(max(low, middle), high), high


def rank_margin(
    grid: Grid, level: float, eta: float, rows: int, confidence: float, slices: int = 1
) -> float:
    """Return how many rows at most lie between a drawn point and the quantile, with confidence."""
    # Some point is the quantile's, with score 0; those that miss it by more than t have less than
    # e^(−η·t/2Δ) of all the prior. Of a point in slices, one slice at least has score 0.
    sensitivity = rows * max(level, 1 - level) * (1 + 2.0**-LEVEL_BITS)
    nats = -math.log(grid.lowest_share) - math.log(1 - confidence) + math.log(slices)
    return 2 * sensitivity / eta * nats


def level_margins(
    grid: Grid, levels: Sequence[float], eta: float, rows: int, confidence: float
) -> list[float]:
    """Return how many rows at most lie between each drawn point and its quantile.

    All hold together with the confidence, on every table. The levels are drawn as a tree, as by
    `draw_quantiles`, and `eta` is the range of the loss in all draws.
    """
    # A draw between two points aims at a rank that lies between theirs in the right proportion, so
    # that it is off by at most the larger of their errors, and misses its aim by its own margin.
    # The errors of the draws add up. A point that divides the rows does so within one row of what
    # it covers.
    if len(levels) == 1:
        return [rank_margin(grid, levels[0], eta, rows, confidence)]
    share = eta / len(levels).bit_length() * (1 - _SHARE_SLACK)
    own_confidence = 1 - (1 - confidence) / len(levels)
    margins = [0.0] * len(levels)

    def add_margins(begin: int, end: int, low: float, high: float, off: float) -> None:
        """Set the margins from `begin` to `end`, between two points that are off by `off`."""
        if begin == end:
            return
        middle = (begin + end) // 2
        level = (levels[middle] - low) / (high - low)
        slices = 1 if end - begin == 1 else SLICES
        own = rank_margin(grid, level, share, rows, own_confidence, slices)
        margins[middle] = off + own
        below = off + own + 1
        add_margins(begin, middle, low, levels[middle], below)
        add_margins(middle + 1, end, levels[middle], high, below)

    add_margins(0, len(levels), 0.0, 1.0, 0.0)
    return margins


def describe_group(
    grid: Grid, segment: Segment, query: ParsedQuery, eta: float, rows: int, bits: Bits
) -> Json:
    """Return the part of an answer about one group's quantiles, which are drawn here.

    Args:
        grid: Of the column that is asked for.
        segment: All rows of the group.
        query: With its levels, in order.
        eta: Range of the loss of whoever brings all of `rows`, in all draws.
        rows: Of a person, at most.
        bits: Source of randomness.
    """
    levels = query.numbers
    if query.aggregate == "interval":
        ends = draw_interval(grid, segment, levels[0], eta, rows, bits)
        low, point, high = map(grid.value, ends)
        return {"estimate": point, "interval": [low, high], "resolution": grid.step}
    values = [grid.value(p) for p in draw_quantiles(grid, segment, levels, eta, rows, bits)]
    margins = level_margins(grid, levels, eta, rows, CONFIDENCE)
    if len(levels) == 1:
        group = {"estimate": values[0], "resolution": grid.step, "rank_margin": margins[0]}
        # In SQL min and max are quantiles too, and which ones is said.
        return group | {"level": levels[0]} if query.is_sql else group
    # Every digit of a level is in its name: two levels that agree in six digits are two.
    names = map(lossless, levels)
    estimates = [
        {"estimate": value, "rank_margin": margin}
        for value, margin in zip(values, margins, strict=True)
    ]
    return {"quantiles": dict(zip(names, estimates, strict=True)), "resolution": grid.step}
