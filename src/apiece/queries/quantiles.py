"""Quantiles by the exponential mechanism, drawn exactly, on a grid of decimal numbers.

The score of a grid point is minus the number of rows by which the quantile misses it: a point
covers the ranks from the rows below it to those not above it, and the quantile of level q of n rows
has rank q·n. One row more or less moves every score by at most max(q, 1 − q). A point is drawn with
its prior weight times e^(−η·|score|/2Δ), Δ = r·max(q, 1 − q) for r rows a person. The loss of a
person with k of those rows then has a range of at most η·k/r (Dong, Durfee, Rogers 2020), and no
count is needed.

The prior is public: an even share for each of several grids, of steps 10^k, 10^(k−1), … Data that
are whole numbers sit on points that a coarse grid holds, so that such a point weighs about as much
as all the finer ones up to the next; data that are not find their place on the finest.
"""

from __future__ import annotations

import decimal
import math
from bisect import bisect_right
from dataclasses import dataclass
from itertools import accumulate

import numpy as np
import numpy.typing as npt

from apiece._types import Json
from apiece.queries.noise import Bits

Ints = npt.NDArray[np.int64]

CONFIDENCE = 0.95
# Points of all groups' grids, at most: rows cannot make an answer outgrow the memory.
POINTS = 2**22
STEPS: tuple[int, ...] = tuple(10**k for k in range(7))  # of each grid, in finest ones
LEVEL_BITS = 30  # a level is rounded to this many
FURTHEST = 100  # scores end here, in nats, so that the least weight is known
WEIGHT_BITS = 256
# Whole weights are within 2^(1−256)·e^100 < 2^−110 of the exponentials, in proportion, so the loss
# of a draw is off by less than this, which is taken from η.
ROUNDED = decimal.Decimal(2.0**-100)
_EXACT = decimal.Context(prec=90)


@dataclass(frozen=True, slots=True)
class Grid:
    """`size` multiples of 10^exponent from the multiple `first` on, and their prior weights.

    Its points are numbered from 0. grids: how many there are, each ten times as coarse.
    """

    first: int
    size: int
    exponent: int
    grids: int

    @classmethod
    def between(cls, low: float, high: float, groups: int = 1) -> Grid:
        """Return the grid within a column's declared bounds, as they are written in decimals.

        The more groups are declared the coarser it is, with 10^grids to 10^(grids + 1) points.
        """
        grids = max(math.floor(math.log10(POINTS / groups)) - 1, 1)
        exponent = math.floor(math.log10(high - low)) - grids
        step = decimal.Decimal(1).scaleb(exponent)
        first = math.ceil(decimal.Decimal(repr(float(low))) / step)
        last = math.floor(decimal.Decimal(repr(float(high))) / step)
        return cls(first, last - first + 1, exponent, grids)

    def value(self, point: int) -> float:
        """Return the number that a point is: the float nearest to its decimals."""
        return float(decimal.Decimal(self.first + point).scaleb(self.exponent))

    def shares(self) -> list[int]:
        """Return what a point weighs for each of the grids it is on, the finest first."""
        whole = 1 << 64
        return [whole // max(self._held(k, 0, self.size - 1), 1) for k in range(self.grids)]

    def prior(self, first: int, last: int) -> int:
        """Return the weight of the points from `first` to `last`, both of them in."""
        return sum(share * self._held(k, first, last) for k, share in enumerate(self.shares()))

    def pick(self, first: int, last: int, at: int) -> int:
        """Return the point in which the weight `at` falls, of those from `first` to `last`."""
        for k, share in enumerate(self.shares()):
            held = share * self._held(k, first, last)
            if at < held:
                least = -(-(self.first + first) // STEPS[k])  # the first multiple that is in
                return (least + at // share) * STEPS[k] - self.first
            at -= held
        raise AssertionError("the weight lies in the range")

    def _held(self, k: int, first: int, last: int) -> int:
        """Return how many of the points from `first` to `last` are on the grid 10^k as coarse."""
        return (self.first + last) // STEPS[k] + -(self.first + first) // STEPS[k] + 1


@dataclass(frozen=True, slots=True, repr=False)
class Runs:
    """Stretches of the grid that score alike: (first, last) points and by how much they miss.

    missed: in units of 2^−30 rows.
    """

    first: Ints
    last: Ints
    missed: Ints

    @classmethod
    def of(cls, grid: Grid, points: Ints, counts: Ints, level: float) -> Runs:
        """Return the runs of a table: `counts` of rows on some `points` of the grid, in order."""
        q = round(level * 2**LEVEL_BITS)
        upto = np.cumsum(counts, dtype=np.int64)
        target = q * int(upto[-1]) if upto.size else 0
        between = np.concatenate([[0], upto])  # rows below each of the gaps
        gap_first = np.concatenate([[0], points + 1])
        gap_last = np.concatenate([points - 1, [grid.size - 1]])
        gap_missed = np.abs((between << LEVEL_BITS) - target)
        below, not_above = between[:-1] << LEVEL_BITS, upto << LEVEL_BITS
        missed = np.maximum(np.maximum(below - target, target - not_above), 0)
        first = np.concatenate([points, gap_first])
        last = np.concatenate([points, gap_last])
        kept = first <= last
        return cls(first[kept], last[kept], np.concatenate([missed, gap_missed])[kept])


def weights(grid: Grid, runs: Runs, level: float, eta: float, rows: int) -> list[int]:
    """Return each run's weight, a whole number: the exponential mechanism of range η."""
    return [
        prior * fall
        for prior, fall in zip(
            (
                grid.prior(*ends)
                for ends in zip(runs.first.tolist(), runs.last.tolist(), strict=True)
            ),
            _falls(runs.missed, level, eta, rows),
            strict=True,
        )
    ]


def _falls(missed: Ints, level: float, eta: float, rows: int) -> list[int]:
    """Return e^(−η·missed/2Δ) in units of 2^−256."""
    q = round(level * 2**LEVEL_BITS)
    most = decimal.Decimal(2 * rows * max(q, 2**LEVEL_BITS - q))
    rate = _EXACT.divide(_EXACT.subtract(decimal.Decimal(eta), ROUNDED), most)
    scores, places = np.unique(missed, return_inverse=True)
    unit, furthest = decimal.Decimal(2**WEIGHT_BITS), decimal.Decimal(FURTHEST)
    least = int(_EXACT.multiply(_EXACT.exp(-furthest), unit))
    falls = []
    for score in scores.tolist():
        nats = _EXACT.multiply(rate, decimal.Decimal(score))
        falls.append(least if nats >= furthest else int(_EXACT.multiply(_EXACT.exp(-nats), unit)))
    return [falls[place] for place in places.tolist()]


def draw(grid: Grid, runs: Runs, weighted: list[int], bits: Bits) -> int:
    """Return a point of the grid, drawn exactly in proportion to the runs' whole weights."""
    ends = list(accumulate(weighted))
    width = ends[-1].bit_length()
    while (at := bits(width)) >= ends[-1]:
        pass
    run = bisect_right(ends, at)
    first, last = int(runs.first[run]), int(runs.last[run])
    within = at - (ends[run - 1] if run else 0)
    return grid.pick(first, last, within // (weighted[run] // grid.prior(first, last)))


def rank_margin(grid: Grid, level: float, eta: float, rows: int, confidence: float) -> float:
    """Return how many rows at most lie between the drawn point and the quantile, with confidence.

    Some point is the quantile's, with score 0; those that miss it by more than t have less than
    e^(−η·t/2Δ) of all the prior.
    """
    least = min(grid.shares()) / grid.prior(0, grid.size - 1)
    most = rows * max(level, 1 - level) * (1 + 2.0**-LEVEL_BITS)
    return 2 * most / eta * (math.log(1 / least) - math.log(1 - confidence))


def quantile(
    grid: Grid, counts: dict[int, int], level: float, eta: float, rows: int, bits: Bits
) -> Json:
    """Return a drawn quantile, its grid's step, and by how many rows it may miss.

    Args:
        grid: Between the column's declared bounds.
        counts: Rows by the number of their point.
        level: Of the quantile, in (0, 1).
        eta: The range of the loss of whoever brings all of `rows`; at least 2^−40.
        rows: That a person brings at most.
        bits: Of the draw.
    """
    points: Ints = np.array(sorted(counts), dtype=np.int64)
    held: Ints = np.array([counts[point] for point in points.tolist()], dtype=np.int64)
    runs = Runs.of(grid, points, held, level)
    drawn = draw(grid, runs, weights(grid, runs, level, eta, rows), bits)
    return {
        "estimate": grid.value(drawn),
        "resolution": grid.value(1) - grid.value(0),
        "rank_margin": rank_margin(grid, level, eta, rows, CONFIDENCE),
    }
