"""One of n Gaussian steps, drawn at random: the law of its likelihood ratio, from both sides.

Under Q the ratio is M = (L₁ + … + L_n)/n with independent lognormal L = e^{N(−1/(2z²), 1/z²)}, and
both directions are convex functions of it: E_Q(M − e^ε)₊ and E_Q(1 − e^ε·M)₊. So atoms that spread
M without moving its mean bound δ(ε) from above, and atoms that contract it from below, under any
composition.

M is built by doubling: a mean of 2m is a mean of two means of m. After each doubling the sums fall
into cells; a cell is known by its mass and its mean, and goes to its two ends (spread) or to its
mean (contracted). All terms are positive, so that masses keep their digits however small they are.
Above the last cell a spread would reach infinity: that P-mass tells the worlds apart outright.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from apiece._types import Bounds, Floats
from apiece.accounting.bounds import Inverted
from apiece.accounting.exact import DiscreteProfile, Outcomes
from apiece.accounting.lattice.pairs import AtomsPair, normal_masses
from apiece.errors import RangeError
from apiece.mechanisms import Allocated
from apiece.numerics.rounding import LARGEST_LOG_RATIO, UNIT

_TAIL = 1e-16  # mass, under P and Q, that a law may have outside its cells
_REACH = 8.5  # standard deviations of log L
_MOST_NOISE = 1e12
_UNIT = 0.9  # of a grid: in standard deviations of M
_MANY, _MOST = 228.0, 72  # cells to each doubling: by the root of the reach of log L, and at most
_AHEAD, _LARGEST = 1.0, 0.5  # the centre, in standard deviations of the last M; the largest unit
_CELLS_A_DOUBLING = 8  # cells to each doubling of small ratios
_NEAR, _ROWS = 2, 128  # doublings of the unit without coarser pairs; ratios of a block there
_AT_ONCE = 1 << 15  # sums at a time: they stay in the cache
_NONE = np.zeros(0, dtype=np.intp)
_ONE = int(np.float64(1).view(np.int64))
# A cell adds up to 2¹⁵ masses one after the other, and some hundred blocks of these, which went
# through a few operations each and up to a thousand halvings; a product of two masses has the
# errors of both, so that a mean of n has at most n times this, as a relative error.
_ROUNDING = 2 * _AT_ONCE * UNIT


Weighed: TypeAlias = tuple[Floats, Floats]
"""Ratios in increasing order and their masses."""


class Ratio(NamedTuple):
    """Atoms of a likelihood ratio: ratios, Q-masses, and the P-mass at infinity."""

    ratio: Floats
    mass: Floats
    lost: float


class RatioCells:
    """Cells in y = |M − centre|/unit + 1: `many` of one width from each power of two to the next.

    Below `near` they lie so in M itself, `few` from each power of two to the next, down to 0.
    """

    # So the number of a cell is read off the bits of a float: no logarithm is taken.

    def __init__(self, centre: float, unit: float, many: int, few: int) -> None:
        self.centre, self.unit, self.many, self.few = centre, unit, many, few
        self.near, self.split = 0.0, -(1 << 40)  # none so far
        low = self.starts(cell := self.number(0.0), cell + 1)
        self.split = self.number(min(few * float(low[1] - low[0]), centre / 2) / unit) + 1
        self.near = float(self.starts(self.split, self.split)[0])

    def numbers(self, y: Floats, spare: Floats) -> npt.NDArray[np.int64]:
        """Return the cells of ratios in units, of which the first is least, in place of them."""
        near = self.near / self.unit
        low = np.flatnonzero(y < near) if y[0] < near else _NONE
        deep = (((y[low] / near).view(np.int64) - _ONE) >> 20) * self.few >> 32
        y -= self.centre / self.unit
        below, cell = spare.view(np.int64), y.view(np.int64)
        np.right_shift(cell, 63, out=below)  # −1 below the centre, where numbers are negative
        np.abs(y, out=y)
        y += 1.0
        cell -= _ONE
        cell >>= 20
        cell *= self.many
        cell >>= 32
        cell ^= below
        cell[low] = deep + self.split
        return cell

    def number(self, y: float) -> int:
        """Return the cell of a ratio in units."""
        return int(self.numbers(np.array([y]), np.empty(1))[0])

    def starts(self, first: int, last: int) -> Floats:
        """Return where the cells of two numbers and those between them start."""
        number = np.arange(first, last + 1)
        far = self.unit * np.copysign(_y(np.abs(number), self.many) - 1, number)
        deep = self.near * _y(np.minimum(number - self.split, 0), self.few)
        return np.where(number >= self.split, self.centre + far, deep)


def _y(number: npt.NDArray[np.int64], many: int) -> Floats:
    """Return where cells start, `many` of one width from each power of two to the next."""
    return np.asarray(((-(-(number << 32) // many) << 20) + _ONE).view(np.float64))


@lru_cache(maxsize=256)
def law(step: Allocated, *, upper: bool) -> Ratio:
    """Return a law that the ratio of `step` contracts to, or (upper) that it spreads to."""
    z, n = step.noise_multiplier, step.steps
    if not (0.5 / z + _REACH) / z <= LARGEST_LOG_RATIO / 2:
        raise RangeError(f"noise_multiplier = {z!r}: past the numerical range; use more noise")
    if z > _MOST_NOISE:
        raise RangeError(
            f"noise_multiplier = {z!r}: past the numerical range; give at most {_MOST_NOISE:g}"
        )
    grid = _grid(z, 1, n)
    total, m = _one(z, grid, upper), 1
    for bit in bin(n)[3:]:
        total, m = _mean(total, m, total, m, _grid(z, 2 * m, n), upper), 2 * m
        if bit == "1":  # one more: its own width weighs little among so many
            more = _one(z, _coarse(grid, m), upper)
            total, m = _mean(total, m, more, 1, _grid(z, m + 1, n), upper), m + 1
    return total


def _grid(z: float, m: int, n: int) -> RatioCells:
    """Return the cells for a mean of m on the way to n."""
    # Narrow beside the standard deviation, near 1 and a little above, and beside the distance from
    # there for rare large ratios. Widths matter to how close bounds are and not to whether they
    # hold. Long tails have fewer cells to each doubling, since there are so many doublings; few
    # steps are quick, and have more.
    many = int(min(_MANY / math.sqrt((0.5 / z + _REACH) / z), _MOST) * (1 + 4 / n))
    ahead = min(_AHEAD * _deviation(z, n), 1.0)
    return RatioCells(
        1 + ahead, min(_UNIT * _deviation(z, m), _LARGEST), max(many, 16), _CELLS_A_DOUBLING
    )


def _coarse(grid: RatioCells, m: int) -> RatioCells:
    """Return the cells of a single ratio, by its own grid, where it is added to m others."""
    return RatioCells(
        1.0, grid.unit, max(grid.many // _coarser(m), 4), max(grid.few // _coarser(m), 2)
    )


def _coarser(m: int) -> int:
    """Return how much wider they are: what one of m + 1 weighs, its variance falls by m + 1."""
    return math.isqrt(m + 1)


def _deviation(z: float, m: int) -> float:
    """Return the standard deviation of a mean of m."""
    with np.errstate(over="ignore"):
        return math.sqrt(float(np.expm1(1 / z**2)) / m)


def _one(z: float, grid: RatioCells, upper: bool) -> Ratio:
    """Return the law of a single lognormal ratio."""
    first, last = math.exp((-0.5 / z - _REACH) / z), math.exp((0.5 / z + _REACH) / z)
    ends = grid.starts(grid.number(first / grid.unit), grid.number(last / grid.unit) + 1)
    ends = ends[ends > first]
    log = np.concatenate(([-np.inf], np.log(ends) * z, [np.inf]))
    return _atoms(normal_masses(log + 0.5 / z), normal_masses(log - 0.5 / z), ends, upper, 0.0)


def _mean(one: Ratio, a: int, other: Ratio, b: int, grid: RatioCells, upper: bool) -> Ratio:
    """Return the law of (a·M + b·M')/(a + b) for independent M and M', in the cells of a grid."""
    units = (a / (a + b) / grid.unit, b / (a + b) / grid.unit)
    left, right = ((law.ratio * u, law.mass) for law, u in zip((one, other), units, strict=True))
    bottom = float(min(left[0][left[0] > 0]) + min(right[0][right[0] > 0]))
    low, high = grid.number(bottom), grid.number(float(left[0][-1] + right[0][-1]))
    q, p = np.zeros(high - low + 1), np.zeros(high - low + 1)
    # Pairs by the block of the larger of both. Beside a ratio that is far off, where cells are
    # wide, smaller ones are spread or contracted too, to about half of that width.
    far = grid.centre / grid.unit + 2.0 ** np.arange(_NEAR, 1024) - 1
    starts = [0.0, *left[0][_ROWS : np.searchsorted(left[0], far[0]) : _ROWS]]
    starts += far[: max(np.searchsorted(far, r[0][-1]) for r in (left, right))].tolist()
    cuts = [np.searchsorted(r[0], [*starts, math.inf]).tolist() for r in (left, right)]
    work = np.empty((4, max(_AT_ONCE, left[0].size + right[0].size)))
    sums = _Sums(q, p, grid, bottom, low, work)
    below, under = ((side[0][:0], side[1][:0]) for side in (left, right))
    for block, start in enumerate(starts):
        some, more = (
            (side[0][cut[block] : cut[block + 1]], side[1][cut[block] : cut[block + 1]])
            for side, cut in zip((left, right), cuts, strict=True)
        )
        if start > far[0]:
            below = _halved(*below, upper)
        if one is other:  # what is smaller stands for both orders
            sums.add(some, _joined((below[0], 2 * below[1]), some))
        else:
            if start > far[_coarser(a).bit_length()]:
                under = _halved(*under, upper)
            sums.add(some, _joined(under, more))
            sums.add(more, below)
            under = _joined(under, more)
        below = _joined(below, some)
    ends = grid.starts(low + 1, high + 1)
    p *= grid.unit
    # all that is hardly there becomes part of the first and the last cell
    larger = np.maximum(q, p)
    first = min(int(np.searchsorted(np.cumsum(larger), _TAIL)), max(larger.size - 2, 0))
    last = larger.size - int(np.searchsorted(np.cumsum(larger[::-1]), _TAIL))
    last = max(last, first + 2)
    lost = (a * one.lost + b * other.lost) / (a + b)
    q, p = (np.array([m[: first + 1].sum(), *m[first + 1 : last], m[last:].sum()]) for m in (q, p))
    return _atoms(q, p, ends[first:last], upper, lost)


def _joined(one: Weighed, other: Weighed) -> Weighed:
    return np.concatenate([one[0], other[0]]), np.concatenate([one[1], other[1]])


def _halved(ratio: Floats, mass: Floats, upper: bool) -> Weighed:
    """Return every other atom, the others' masses on their neighbours; or (lower) pairs' means."""
    last = ratio.size - 1 + ratio.size % 2  # of an even number the last one stays alone
    odd, even = mass[1:last:2], mass[:last:2].copy()
    if upper:
        gap = ratio[2:last:2] - ratio[: last - 2 : 2]
        even[1:] += odd * ((ratio[1:last:2] - ratio[: last - 2 : 2]) / gap)
        even[:-1] += odd * ((ratio[2:last:2] - ratio[1:last:2]) / gap)
        return _joined((ratio[:last:2], even), (ratio[last:], mass[last:]))
    last = ratio.size // 2 * 2
    total = mass[0:last:2] + mass[1:last:2]
    mean = (mass[0:last:2] * ratio[0:last:2] + mass[1:last:2] * ratio[1:last:2]) / total
    return _joined((mean, total), (ratio[last:], mass[last:]))


class _Sums(NamedTuple):
    """Q- and P-masses of cells from number `low` on, to which sums of two ratios are added."""

    # Ratios are in units of the grid; those below `bottom` are put into the first cell.

    q: Floats
    p: Floats
    grid: RatioCells
    bottom: float
    low: int
    work: Floats

    def add(self, one: Weighed, other: Weighed) -> None:
        """Add the sums of each of one with each of the other."""
        rows = max(self.work.shape[1] // max(other[0].size, 1), 1)
        for start in range(0, one[0].size if other[0].size else 0, rows):
            ratio, weight = (part[start : start + rows] for part in one)
            shape, count = (ratio.size, other[0].size), ratio.size * other[0].size
            total, mass, place, free = self.work[:, :count]
            np.add.outer(ratio, other[0], out=total.reshape(shape))
            np.multiply.outer(weight, other[1], out=mass.reshape(shape))
            np.maximum(total, self.bottom, out=place)
            cell = self.grid.numbers(place, free)
            cell -= self.low
            np.add(self.q, np.bincount(cell, mass, self.q.size), out=self.q)
            mass *= total
            np.add(self.p, np.bincount(cell, mass, self.p.size), out=self.p)


def _atoms(q: Floats, p: Floats, ends: Floats, upper: bool, lost: float) -> Ratio:
    """Return the law of cells by their Q- and P-masses: from 0 on, up to each end, and beyond."""
    if not upper:
        # Rounding can have left two atoms at one place, or reversed.
        ratio, mass = p[q > 0] / q[q > 0], q[q > 0]
        order = np.argsort(ratio, kind="stable")
        return Ratio(ratio[order], mass[order], lost)
    nodes = np.append(0.0, ends)
    high = np.clip((p[:-1] - nodes[:-1] * q[:-1]) / np.diff(nodes), 0.0, q[:-1])
    mass = np.append(q[:-1] - high, q[-1])
    mass[1:] += high
    beyond = max(float(p[-1] - nodes[-1] * q[-1]), 0.0) + 64 * UNIT * float(p[-1])
    return Ratio(nodes[mass > 0], mass[mass > 0], lost + beyond)


def _outcomes(step: Allocated, *, upper: bool) -> Outcomes:
    """Return a law as a pair of worlds; what only one of them can show is left out of it."""
    ratio, mass, lost = law(step, upper=upper)
    at_zero, error = float(mass[ratio == 0].sum()), (step.steps + 16) * _ROUNDING
    ratio, mass = ratio[ratio > 0], mass[ratio > 0]
    return Outcomes(np.log(ratio), ratio * mass, mass, 0.0, 0.0, lost, at_zero, error)


@dataclass(frozen=True, eq=False)
class AllocatedProfile(Inverted):
    """The profile of one of n Gaussian steps, by sums over the atoms of both laws."""

    step: Allocated

    def delta(self, epsilon: Floats) -> Bounds:
        """Bound the larger of both directions."""
        low, high = (
            DiscreteProfile(_outcomes(self.step, upper=upper)).delta(epsilon)
            for upper in (False, True)
        )
        return Bounds(low.lower, high.upper)


def allocated_pair(step: Allocated, probability: float = 1.0) -> AtomsPair:
    """Return the dominating pair of a step, itself behind a coin, and one that it dominates."""

    def pair(upper: bool, below: AtomsPair | None) -> AtomsPair:
        loss, _, q, *_, out_p, out_q, error = _outcomes(step, upper=upper)
        outside = (1 - probability) * out_q + probability * out_p, out_q
        return AtomsPair(loss, q, outside, error, probability, below=below)

    return pair(True, pair(False, None))
