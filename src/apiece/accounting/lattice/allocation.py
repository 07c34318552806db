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

from apiece._types import Bounds, Floats
from apiece.accounting.bounds import Inverted
from apiece.accounting.exact import DiscreteProfile, Outcomes
from apiece.accounting.lattice.pairs import AtomsPair, normal_masses
from apiece.errors import RangeError
from apiece.mechanisms import Allocated
from apiece.numerics.rounding import LARGEST_LOG_RATIO, UNIT

_TAIL = 1e-16  # mass, under P and Q, that a law may have outside its cells
_REACH = 8.5  # standard deviations of log L
_WIDTH, _RELATIVE = 0.018, 0.012  # of a cell: in standard deviations of M, and to its distance
_FEW, _GROWTH = 16, 0.125  # fewer steps are quick; widths grow by this power of n, as ε falls
_SPAN = 9.0  # standard deviations of M below 1 that cells reach
_AT_ONCE = 1 << 15  # sums at a time: they stay in the cache
_LOWEST = 1e-3  # of a grid's unit, where its first cell ends at least
# A cell adds up to 2¹⁵ masses one after the other, and blocks of these; a product of two masses has
# the errors of both, so that a mean of n has at most n times this, as a relative error.
_ROUNDING = 2 * _AT_ONCE * UNIT


class Ratio(NamedTuple):
    """Atoms of a likelihood ratio: ratios, Q-masses, and the P-mass at infinity."""

    ratio: Floats
    mass: Floats
    lost: float


class GrowingCells(NamedTuple):
    """Cells whose ends, plus `shift`, grow by the factor e^step."""

    shift: float
    step: float


@lru_cache(maxsize=256)
def law(step: Allocated, *, upper: bool) -> Ratio:
    """Return a law that the ratio of `step` contracts to, or (upper) that it spreads to."""
    z, n = step.noise_multiplier, step.steps
    if not (0.5 / z + _REACH) / z <= LARGEST_LOG_RATIO / 2:
        raise RangeError(f"noise_multiplier = {z!r}: past the numerical range; use more noise")
    one = _one(z, _grid(z, 1, n), upper)
    total, m = one, 1
    for bit in bin(n)[3:]:
        total, m = _mean(total, m, total, m, _grid(z, 2 * m, n), upper), 2 * m
        if bit == "1":  # one more: its own width weighs little among so many
            more = one if n < _FEW else _one(z, _coarse(z, m), upper)
            total, m = _mean(total, m, more, 1, _grid(z, m + 1, n), upper), m + 1
    return total


def _grid(z: float, m: int, n: int) -> GrowingCells:
    """Return the cells for a mean of m on the way to n."""
    # Narrow beside the standard deviation near 1 and, for the sake of rare large ratios, beside
    # their distance. Widths matter to how close bounds are and not to whether they hold.
    with np.errstate(over="ignore"):
        spread = math.sqrt(float(np.expm1(1 / z**2)) / m)
    if n < _FEW:
        return GrowingCells(0.0, _WIDTH * math.sqrt(math.log1p(spread**2)))
    width = _WIDTH * n**_GROWTH * spread
    unit = max(min(_SPAN * spread, 1.0), width / _RELATIVE)
    return GrowingCells(unit - 1, min(width / unit, _RELATIVE))


def _coarse(z: float, m: int) -> GrowingCells:
    """Return the cells of a single ratio that is added to m others."""
    with np.errstate(over="ignore"):
        width = _WIDTH * math.sqrt(float(np.expm1(1 / z**2)) * m)
    return GrowingCells(max(width / (4 * _RELATIVE) - 1, 0.0), 4 * _RELATIVE)


def _one(z: float, grid: GrowingCells, upper: bool) -> Ratio:
    """Return the law of a single lognormal ratio."""
    first, last = (np.exp(-0.5 / z**2 - _REACH / z), np.exp(0.5 / z**2 + _REACH / z))
    start, (shift, step) = float(first), grid
    if not start + shift > 0:
        start = _LOWEST * (1 + shift) - shift
    count = max(math.ceil(math.log((float(last) + shift) / (start + shift)) / step), 2)
    ends = (start + shift) * np.exp(step * np.arange(count + 1)) - shift
    log = np.log(np.maximum(ends, float(first))) * z
    log = np.concatenate(([-np.inf], log, [np.inf]))
    return _atoms(normal_masses(log + 0.5 / z), normal_masses(log - 0.5 / z), ends, upper, 0.0)


def _mean(one: Ratio, a: int, other: Ratio, b: int, grid: GrowingCells, upper: bool) -> Ratio:
    """Return the law of (a·M + b·M')/(a + b) for independent M and M', in the cells of a grid."""
    shift, step = grid
    left, right = one.ratio * (a / (a + b)) + shift, other.ratio * (b / (a + b))
    bottom = max(float(left[0] + right[0]), _LOWEST * (1 + shift))
    cells = int(math.log(float(left[-1] + right[-1]) / bottom) / step) + 2
    q, p, rows = np.zeros(cells), np.zeros(cells), max(_AT_ONCE // right.size, 1)
    for start in range(0, left.size, rows):
        some = slice(start, start + rows)
        total = np.add.outer(left[some], right).ravel()
        mass = np.multiply.outer(one.mass[some], other.mass).ravel()
        place = np.log(np.maximum(total, bottom) / bottom)
        cell = (place * (1 / step)).astype(np.int32)
        q += np.bincount(cell, mass, cells)
        p += np.bincount(cell, mass * (total - shift), cells)
    ends = bottom * np.exp(step * np.arange(1, cells + 1)) - shift
    # all that is hardly there, and what is below 0, becomes part of the first and the last cell
    larger = np.maximum(q, p)
    first = max(int(np.searchsorted(np.cumsum(larger), _TAIL)), int(np.argmax(ends > 0)))
    last = cells - int(np.searchsorted(np.cumsum(larger[::-1]), _TAIL))
    last = max(last, first + 2)
    lost = (a * one.lost + b * other.lost) / (a + b)
    q, p = (np.array([m[: first + 1].sum(), *m[first + 1 : last], m[last:].sum()]) for m in (q, p))
    return _atoms(q, p, ends[first:last], upper, lost)


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
