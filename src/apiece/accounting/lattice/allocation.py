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
from typing import NamedTuple

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
_RARE = 1e-19  # and in pairs that are not summed
_REACH = 8.5  # standard deviations of log L
_UNIT, _MANY = 0.45, 190.0  # of a grid: in standard deviations of M, and cells by reach of log L
_AHEAD, _LARGEST = 2.0, 0.5  # the centre, in standard deviations of the last M; the largest unit
_FEW = 8  # cells to each doubling of small ratios
_AT_ONCE = 1 << 15  # sums at a time: they stay in the cache
_NONE = np.zeros(0, dtype=np.intp)
_ONE = int(np.float64(1).view(np.int64))
# A cell adds up to 2¹⁵ masses one after the other, and blocks of these; a product of two masses has
# the errors of both, so that a mean of n has at most n times this, as a relative error.
_ROUNDING = 2 * _AT_ONCE * UNIT


class Ratio(NamedTuple):
    """Atoms of a likelihood ratio: ratios, Q-masses, and the P-mass at infinity."""

    ratio: Floats
    mass: Floats
    lost: float


class Grid:
    """Cells in y = |M − centre|/unit + 1: `many` of one width from each power of two to the next.

    Below `near` they lie so in M itself, `few` from each power of two to the next, down to 0.
    """

    # So the number of a cell is read off the bits of a float: no logarithm is taken.

    def __init__(self, centre: float, unit: float, many: int, few: int) -> None:
        self.centre, self.unit, self.many, self.few = centre, unit, many, few
        self.near, self.split = 0.0, -(1 << 40)  # none so far
        low = self.starts(cell := self.number(0.0), cell + 1)
        self.near = min(few * float(low[1] - low[0]), centre / 2)
        self.split = self.number(self.near)  # the cell that starts there

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

    def number(self, ratio: float) -> int:
        """Return the cell of a ratio."""
        return int(self.numbers(np.array([ratio / self.unit]), np.empty(1))[0])

    def starts(self, first: int, last: int) -> Floats:
        """Return where the cells of two numbers and those between them start."""
        number = np.arange(first, last + 1)
        far = self.unit * np.copysign(_y(np.abs(number), self.many) - 1, number)
        deep = self.near * _y(np.minimum(number - self.split, 0), self.few)
        return np.where(number > self.split, self.centre + far, deep)


def _y(number: npt.NDArray[np.int64], many: int) -> Floats:
    """Return where cells start, `many` of one width from each power of two to the next."""
    return np.asarray(((-(-(number << 32) // many) << 20) + _ONE).view(np.float64))


@lru_cache(maxsize=256)
def law(step: Allocated, *, upper: bool) -> Ratio:
    """Return a law that the ratio of `step` contracts to, or (upper) that it spreads to."""
    z, n = step.noise_multiplier, step.steps
    if not (0.5 / z + _REACH) / z <= LARGEST_LOG_RATIO / 2:
        raise RangeError(f"noise_multiplier = {z!r}: past the numerical range; use more noise")
    grid = _grid(z, 1, n)
    total, m = _one(z, grid, upper), 1
    for bit in bin(n)[3:]:
        total, m = _mean(total, m, total, m, _grid(z, 2 * m, n), upper), 2 * m
        if bit == "1":  # one more: its own width weighs little among so many
            more = _one(z, _coarse(grid, m), upper)
            total, m = _mean(total, m, more, 1, _grid(z, m + 1, n), upper), m + 1
    return total


def _grid(z: float, m: int, n: int) -> Grid:
    """Return the cells for a mean of m on the way to n."""
    # Narrow beside the standard deviation, near 1 and a little above, and beside the distance from
    # there for rare large ratios. Widths matter to how close bounds are and not to whether they
    # hold. Long tails have fewer cells to each doubling, since there are so many doublings; few
    # steps are quick, and have more.
    many = int(_MANY * (1 + 2 / n) / math.sqrt((0.5 / z + _REACH) / z))
    ahead = min(_AHEAD * _deviation(z, n), 1.0)
    return Grid(1 + ahead, min(_UNIT * _deviation(z, m), _LARGEST), max(many, 16), _FEW)


def _coarse(grid: Grid, m: int) -> Grid:
    """Return the cells of a single ratio, by its own grid, where it is added to m others."""
    return Grid(1.0, grid.unit * math.sqrt(m) / 4, grid.many // 4, grid.few // 4)


def _deviation(z: float, m: int) -> float:
    """Return the standard deviation of a mean of m."""
    with np.errstate(over="ignore"):
        return math.sqrt(float(np.expm1(1 / z**2)) / m)


def _one(z: float, grid: Grid, upper: bool) -> Ratio:
    """Return the law of a single lognormal ratio."""
    first, last = math.exp((-0.5 / z - _REACH) / z), math.exp((0.5 / z + _REACH) / z)
    ends = grid.starts(grid.number(first), grid.number(last) + 1)
    ends = ends[ends > first]
    log = np.concatenate(([-np.inf], np.log(ends) * z, [np.inf]))
    return _atoms(normal_masses(log + 0.5 / z), normal_masses(log - 0.5 / z), ends, upper, 0.0)


def _mean(one: Ratio, a: int, other: Ratio, b: int, grid: Grid, upper: bool) -> Ratio:
    """Return the law of (a·M + b·M')/(a + b) for independent M and M', in the cells of a grid."""
    left, right = one.ratio * (a / (a + b)), other.ratio * (b / (a + b))
    bottom, top = float(min(left[left > 0]) + min(right[right > 0])), float(left[-1] + right[-1])
    low, high = grid.number(bottom), grid.number(top)
    q, p = np.zeros(high - low + 1), np.zeros(high - low + 1)
    # Of two alike, what one has before the other stands for both orders. Pairs beyond `stop` have,
    # with their row, next to no mass: it goes to 0 and infinity (upper), or into the first cell.
    alike, weight = one is other, other.mass * (1 + (one is other))
    above_q, above_p = (
        np.append(np.cumsum(part[::-1])[::-1], 0.0) for part in (weight, weight * right)
    )
    above = -np.maximum(above_q, (a + b) / b * above_p)
    left, right = left / grid.unit, right / grid.unit
    spare, row, rare_q, rare_p = np.empty((4, max(_AT_ONCE, right.size))), 0, 0.0, 0.0
    while row < left.size:
        first = row if alike else 0
        end = min(row + max(_AT_ONCE // (right.size - first), 1), left.size)
        some, mass = left[row:end], one.mass[row:end]
        has_q, has_p = float(mass.sum()), float((mass * some).sum()) * grid.unit
        share = _RARE * (end - row) / left.size
        stop = int(np.searchsorted(above, -share / max(has_q, (a + b) / a * has_p)))
        stop = max(stop, end if alike else 1)
        rare_q += has_q * above_q[stop]
        rare_p += has_q * above_p[stop] + has_p * above_q[stop]
        if alike:
            weight[row:end] = mass
        _add(q, p, (some, mass), (right[first:stop], weight[first:stop]), grid, bottom, spare)
        row = end
    ends = grid.starts(low + 1, high + 1)
    p *= grid.unit
    # all that is hardly there, becomes part of the first and last cell
    larger = np.maximum(q, p)
    first = min(int(np.searchsorted(np.cumsum(larger), _TAIL)), max(larger.size - 2, 0))
    last = larger.size - int(np.searchsorted(np.cumsum(larger[::-1]), _TAIL))
    last = max(last, first + 2)
    lost = (a * one.lost + b * other.lost) / (a + b)
    q, p = (np.array([m[: first + 1].sum(), *m[first + 1 : last], m[last:].sum()]) for m in (q, p))
    q[0] += rare_q
    lost, p[0] = (lost + rare_p, p[0]) if upper else (lost, p[0] + rare_p)
    return _atoms(q, p, ends[first:last], upper, lost)


def _add(
    q: Floats,
    p: Floats,
    one: tuple[Floats, Floats],
    other: tuple[Floats, Floats],
    grid: Grid,
    bottom: float,
    spare: Floats,
) -> None:
    """Add the sums of two sets of ratios in units, with masses, to the cells from that of `bottom` on."""
    shape, count = (one[0].size, other[0].size), one[0].size * other[0].size
    total, mass, place, free = spare[:, :count]
    np.add.outer(one[0], other[0], out=total.reshape(shape))
    np.multiply.outer(one[1], other[1], out=mass.reshape(shape))
    np.maximum(total, bottom / grid.unit, out=place)
    cell = grid.numbers(place, free)
    cell -= grid.number(bottom)
    q += np.bincount(cell, mass, q.size)
    mass *= total
    p += np.bincount(cell, mass, p.size)


def _atoms(q: Floats, p: Floats, ends: Floats, upper: bool, lost: float) -> Ratio:
    """Return the law of cells by their Q- and P-masses: from 0 on, up to each end, and beyond."""
    if not upper:
        return Ratio(*_merged(p[q > 0] / q[q > 0], q[q > 0]), lost)
    nodes = np.append(0.0, ends)
    high = np.clip((p[:-1] - nodes[:-1] * q[:-1]) / np.diff(nodes), 0.0, q[:-1])
    mass = np.append(q[:-1] - high, q[-1])
    mass[1:] += high
    beyond = max(float(p[-1] - nodes[-1] * q[-1]), 0.0) + 64 * UNIT * float(p[-1])
    return Ratio(nodes[mass > 0], mass[mass > 0], lost + beyond)


def _merged(ratio: Floats, mass: Floats) -> tuple[Floats, Floats]:
    """Return atoms in increasing order; rounding can have left two at one place or reversed."""
    order = np.argsort(ratio, kind="stable")
    return ratio[order], mass[order]


def _outcomes(step: Allocated, *, upper: bool) -> Outcomes:
    """Return a law as a pair of worlds; what only one of them can show is left out of it."""
    ratio, mass, lost = law(step, upper=upper)
    apart, error = float(mass[ratio == 0].sum()), (step.steps + 16) * _ROUNDING
    ratio, mass = ratio[ratio > 0], mass[ratio > 0]
    return Outcomes(np.log(ratio), ratio * mass, mass, 0.0, 0.0, lost, apart, error)


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
