"""Quantiles by the exponential mechanism, drawn exactly, on a grid of decimal numbers.

The score of a grid point is minus the number of rows by which the quantile misses it: a point
covers the ranks from the rows below it to those not above it, and the quantile of level q of n rows
has rank q·n. One row more or less moves every score by at most max(q, 1 − q). A point is drawn with
its prior weight times e^(−η·|score|/2Δ), Δ = r·max(q, 1 − q) for r rows a person. The loss of a
person with k of those rows then has a range of at most η·k/r (Dong, Durfee, Rogers 2020).

Several levels are drawn as a tree (Kaplan, Schnapp, Stemmer 2022): the middle one first, the others
from the rows on its sides, so that m levels cost ⌈log2(m + 1)⌉ draws. Many rows may lie on the
point that divides them, so a place is a point and a slice of its c rows: slice j of S covers their
ranks from ⌊c·j/S⌋ to ⌊c·(j+1)/S⌋, at least one, and ⌊c·(j+1)/S⌋ rows go to the left.

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

CONFIDENCE: Final = 0.95
# Points of all groups' grids, at most: rows cannot make an answer outgrow the memory.
POINTS: Final = 2**22
LEVEL_BITS: Final = 30  # a level is rounded to this many
SLICES = 2**40  # of a point that divides the rows: more than rows lie on it
DIGITS: Final = 10**3  # numbers of a window of the prior by `log`
FURTHEST: Final = 100  # scores end here, in nats, so that the least weight is known
WEIGHT_BITS: Final = 256
# Whole weights are within 2^(1−256)·e^100 < 2^−110 of the exponentials, in proportion, so the loss
# of a draw is off by less than this, which is taken from η.
ROUNDED: Final = decimal.Decimal(2.0**-100)
_EXACT: Final = decimal.Context(prec=170)


class Piece(NamedTuple):
    """A part of a prior: each multiple of `step` from `low` to `high` weighs `share`."""

    step: int
    low: int
    high: int
    share: int

    def held(self, first: int, last: int) -> tuple[int, int]:
        """Return the first multiple from `first` to `last`, in steps, and how many there are."""
        least = -(-max(first, self.low) // self.step)
        return least, max(min(last, self.high) // self.step - least + 1, 0)


@dataclass(frozen=True, slots=True)
class Grid:
    """`size` multiples of 10^exponent from the multiple `first` on, and their prior weights."""

    first: int  # which is the point 0
    size: int
    exponent: int
    pieces: tuple[Piece, ...]

    @classmethod
    def between(cls, low: float, high: float, groups: int = 1, *, log: bool = False) -> Grid:
        """Return the finest grid within a column's declared bounds, as they are in decimals."""
        most = max(POINTS // groups, 10)
        least, end = (decimal.Decimal(repr(float(x))) for x in (low, high))
        exponent = math.floor(math.log10((high - low) / most))
        while True:
            step = decimal.Decimal(1).scaleb(exponent)
            first, last = math.ceil(least / step), math.floor(end / step)
            if last - first < most:
                return cls.of(first, last - first + 1, exponent, log=log)
            exponent += 1

    @classmethod
    def of(cls, first: int, size: int, exponent: int, *, log: bool = False) -> Grid:
        """Return a grid with its prior: coarser grids have a hundred points at least."""
        last = first + size - 1
        steps = [10**k for k in range(max(len(str(size)) - 2, 1))]
        finest = 3 * max(len(steps) - 1, 1)
        windows = [(step, first, last, finest if step == 1 else 1) for step in steps]
        if log:
            reach = [(step, step * DIGITS) for step in steps]
            windows += [(s, max(first, -r), min(last, r), len(steps)) for s, r in reach]
        pieces = []
        for step, low, high, weight in windows:
            _, held = Piece(step, low, high, 0).held(low, high)
            if held:
                pieces.append(Piece(step, low, high, (weight << 64) // held))
        return cls(first, size, exponent, tuple(pieces))

    def value(self, point: int) -> float:
        """Return the number that a point is: the float nearest to its decimals."""
        return float(decimal.Decimal(self.first + point).scaleb(self.exponent))

    @property
    def step(self) -> float:
        """The distance of neighbouring points."""
        # Not the difference of two points' floats, which far from zero is 0 or a multiple of it.
        return float(decimal.Decimal(1).scaleb(self.exponent))

    def prior(self, first: int, last: int) -> int:
        """Return the weight of the points from `first` to `last`, both of them in."""
        first, last = first + self.first, last + self.first
        return sum(piece.share * piece.held(first, last)[1] for piece in self.pieces)

    def pick(self, first: int, last: int, at: int) -> int:
        """Return the point in which the weight `at` falls, of those from `first` to `last`."""
        for piece in self.pieces:
            least, count = piece.held(first + self.first, last + self.first)
            if at < piece.share * count:
                return (least + at // piece.share) * piece.step - self.first
            at -= piece.share * count
        raise AssertionError("the weight lies in the range")

    @property
    def least(self) -> float:
        """Return the least share of the prior that a point may have."""
        return self.pieces[0].share / self.prior(0, self.size - 1)


@dataclass(frozen=True, slots=True, repr=False)
class Segment:
    """Some of a table's rows: `counts` on `points`, in order, of those from `first` to `last`."""

    points: Ints
    counts: Ints
    first: int
    last: int

    @property
    def rows(self) -> int:
        """Return how many rows there are."""
        return int(self.counts.sum())

    def with_rows(self, point: int, count: int) -> Segment:
        """Return the part with more rows on one of its points."""
        points, place = np.unique(np.append(self.points, point), return_inverse=True)
        counts = np.zeros(points.size, np.int64)
        np.add.at(counts, place, np.append(self.counts, count))
        return Segment(points, counts, self.first, self.last)

    def divided(self, point: int, part: int) -> tuple[Segment, Segment]:
        """Return the rows up to a slice of a point, and those beyond it."""
        at = self.counts * (self.points < point)
        here = self.points == point
        at[here] = [int(count) * (part + 1) // SLICES for count in self.counts[here]]
        left, right = at > 0, self.counts > at
        return (
            Segment(self.points[left], at[left], self.first, point),
            Segment(self.points[right], (self.counts - at)[right], point, self.last),
        )


@dataclass(frozen=True, slots=True, repr=False)
class Stretch:
    """Places that score alike: points, or slices of one point. missed: in 2^−30 rows."""

    first: int
    last: int
    part: int
    parts: int
    missed: int


def stretches(part: Segment, target: int, most: int, slices: int) -> Iterator[Stretch]:
    """Yield all places of a part, in order; `target` is the quantile's rank in 2^−30 rows."""
    # What misses it by `most` or more is one stretch on each side.
    upto = np.concatenate([[0], np.cumsum(part.counts, dtype=np.int64)]) << LEVEL_BITS
    first = np.empty(2 * part.points.size + 1, np.int64)
    last, low, high = (np.empty_like(first) for _ in range(3))
    first[0::2] = np.append(part.first, part.points + 1)
    last[0::2] = np.append(part.points - 1, part.last)
    low[0::2] = high[0::2] = upto
    first[1::2] = last[1::2] = part.points
    low[1::2], high[1::2] = upto[:-1], upto[1:]
    missed = np.maximum(np.maximum(low - target, target - high), 0)
    near = np.flatnonzero(missed < most)
    begin, end = int(near[0]), int(near[-1])
    if part.first < first[begin]:
        yield Stretch(part.first, int(first[begin]) - 1, 0, slices, most)
    for at in range(begin, end + 1):
        ends, lowest, count = (int(first[at]), int(last[at])), int(low[at]), int(high[at] - low[at])
        if slices == 1 or not count:
            if ends[0] <= ends[1]:
                yield Stretch(*ends, 0, slices, int(missed[at]))
        else:
            yield from _sliced(ends, count >> LEVEL_BITS, target - lowest, most, slices)
    if last[end] < part.last:
        yield Stretch(int(last[end]) + 1, part.last, 0, slices, most)


def _sliced(
    ends: tuple[int, int], rows: int, target: int, most: int, slices: int
) -> Iterator[Stretch]:
    """Yield stretches of slices of one point; target: from its first row on."""
    count = min(rows, slices)
    from_row, to_row = (target - most) >> LEVEL_BITS, ((target + most) >> LEVEL_BITS) + 1
    begin = min(max(from_row * count // rows - 1, 0), count)
    end = max(min(to_row * count // rows + 2, count), begin)

    def slice_of(each: int) -> int:
        return -(-each * slices // count)

    if begin:
        yield Stretch(*ends, 0, slice_of(begin), most)
    for each in range(begin, end):
        low, high = (i * rows // count << LEVEL_BITS for i in (each, each + 1))
        missed = min(max(low - target, target - high, 0), most)
        yield Stretch(*ends, slice_of(each), slice_of(each + 1) - slice_of(each), missed)
    if end < count:
        yield Stretch(*ends, slice_of(end), slices - slice_of(end), most)


@dataclass(frozen=True, slots=True, repr=False)
class Law:
    """The exponential mechanism on a part: every place of a stretch weighs prior · fall."""

    grid: Grid
    places: list[Stretch]
    falls: list[int]
    weights: list[int]

    @classmethod
    def of(
        cls, grid: Grid, part: Segment, target: int, rate: decimal.Decimal, slices: int = 1
    ) -> Law:
        """Return that of a target in 2^−30 rows; a miss of one weighs e^−rate."""
        most = int(_EXACT.divide(decimal.Decimal(FURTHEST), rate)) + 1
        places = list(stretches(part, target, most, slices))
        fallen = falls([place.missed for place in places], rate)
        weights = [
            grid.prior(place.first, place.last) * place.parts * fall
            for place, fall in zip(places, fallen, strict=True)
        ]
        return cls(grid, places, fallen, weights)

    def draw(self, bits: Bits) -> tuple[int, int]:
        """Return a point and a slice of it, drawn exactly in proportion to their weights."""
        ends = list(accumulate(self.weights))
        width = ends[-1].bit_length()
        while (at := bits(width)) >= ends[-1]:
            pass
        number = bisect_right(ends, at)
        place, within = self.places[number], at - (ends[number - 1] if number else 0)
        weight, part = divmod(within // self.falls[number], place.parts)
        return self.grid.pick(place.first, place.last, weight), place.part + part


def falls(missed: Sequence[int], rate: decimal.Decimal) -> list[int]:
    """Return e^(−rate·m) for each m, in units of 2^−256: of each bit of m a factor, multiplied."""
    bits = 2 * WEIGHT_BITS  # of factors: 60 squares leave them right to 2^−300, in proportion
    one = 1 << bits
    # A plain "-rate" would be rounded to the 28 digits of whoever calls.
    factors = [int(_EXACT.multiply(_EXACT.exp(_EXACT.minus(rate)), decimal.Decimal(one)))]
    for _ in range(max(missed).bit_length()):
        factors.append(factors[-1] ** 2 >> bits)
    result = []
    for each in missed:
        product = one
        while each:
            low = each & -each
            product = product * factors[low.bit_length() - 1] >> bits
            each ^= low
        result.append(product >> WEIGHT_BITS)
    return result


def whole(level: float) -> int:
    """Return a level in units of 2^−30, neither 0 nor 1."""
    return min(max(round(level * (1 << LEVEL_BITS)), 1), (1 << LEVEL_BITS) - 1)


def rate_of(level: float, eta: float, rows: int) -> decimal.Decimal:
    """Return how fast weights fall with what is missed, in 2^−30 rows, at a range of η."""
    q = whole(level)
    most = decimal.Decimal(2 * rows * max(q, 2**LEVEL_BITS - q))
    return _EXACT.divide(_EXACT.subtract(decimal.Decimal(eta), ROUNDED), most)


def draws(query: ParsedQuery) -> int:
    """Return of how many draws a row is in: of a tree's depth, or an interval's three."""
    return 3 if query.aggregate == "interval" else len(query.numbers).bit_length()


def quantiles(
    grid: Grid, part: Segment, levels: Sequence[float], eta: float, rows: int, bits: Bits
) -> list[int]:
    """Return a drawn point of a grid for each level, in order; part: all rows."""
    # eta: the range of the loss, at least 2^−40, of whoever brings all of `rows`, in all draws.
    each = eta / len(levels).bit_length() * (1 - 2.0**-50)
    drawn = [0] * len(levels)

    def answer(part: Segment, begin: int, end: int, low: float, high: float) -> None:
        if begin == end:
            return
        middle = (begin + end) // 2
        level = (levels[middle] - low) / (high - low)
        target, alone = whole(level) * part.rows, end - begin == 1
        law = Law.of(grid, part, target, rate_of(level, each, rows), 1 if alone else SLICES)
        drawn[middle], at = law.draw(bits)
        if not alone:
            left, right = part.divided(drawn[middle], at)
            answer(left, begin, middle, low, levels[middle])
            answer(right, middle + 1, end, levels[middle], high)

    answer(part, 0, len(levels), 0.0, 1.0)
    return drawn


def interval(
    grid: Grid, part: Segment, level: float, eta: float, rows: int, bits: Bits
) -> tuple[int, int, int]:
    """Return the ends of an interval that covers a quantile, and a point in it: three draws."""
    # An end is drawn for a rank that is further out by the rank margin of a draw, and one row. As
    # many rows that are nobody's lie on the last point there, so that there is such a rank.
    each = eta / 3 * (1 - 2.0**-50)
    rate, target = rate_of(level, each, rows), whole(level) * part.rows
    out = math.ceil(rank_margin(grid, level, each, rows, (1 + CONFIDENCE) / 2)) + 1
    below, above = (part.with_rows(point, out) for point in (part.first, part.last))
    asked = (below, target), (part, target), (above, target + (out << LEVEL_BITS))
    low, middle, high = (Law.of(grid, rows, at, rate).draw(bits)[0] for rows, at in asked)
    low, high = min(low, high), max(low, high)
    return low, min(max(low, middle), high), high


def rank_margin(grid: Grid, level: float, eta: float, rows: int, confidence: float) -> float:
    """Return how many rows at most lie between a drawn point and the quantile, with confidence."""
    # Some point is the quantile's, with score 0; those that miss it by more than t have less than
    # e^(−η·t/2Δ) of all the prior.
    most = rows * max(level, 1 - level) * (1 + 2.0**-LEVEL_BITS)
    return 2 * most / eta * (-math.log(grid.least) - math.log(1 - confidence))


def describe_group(
    grid: Grid, part: Segment, query: ParsedQuery, eta: float, rows: int, bits: Bits
) -> Json:
    """Return what an answer says of one group's quantiles, which are drawn here.

    Args:
        grid: Of the column that is asked for.
        part: All rows of the group.
        query: With its levels, in order.
        eta: Range of the loss of whoever brings all of `rows`, in all draws.
        rows: Of a person, at most.
        bits: Source of randomness.
    """
    levels = query.numbers
    about = {"resolution": grid.step}
    if query.aggregate == "interval":
        low, point, high = map(grid.value, interval(grid, part, levels[0], eta, rows, bits))
        return {"estimate": point, "interval": [low, high], **about}
    points = list(map(grid.value, quantiles(grid, part, levels, eta, rows, bits)))
    if len(levels) == 1:
        margin = rank_margin(grid, levels[0], eta, rows, CONFIDENCE)
        return {"estimate": points[0], **about, "rank_margin": margin}
    # Under the whole level: two levels that agree in six digits are two.
    estimates = [{"estimate": point} for point in points]
    named = dict(zip(map(lossless, levels), estimates, strict=True))
    return {"quantiles": named, **about}
