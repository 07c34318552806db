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

# Mass, under P and Q, that a law may have outside its cells.
_TAIL = 1e-16
# Standard deviations of log L that a single ratio's law reaches to either side of its mean.
_REACH = 8.5
_MOST_NOISE = 1e12
# Width of the cells beside the centre, in standard deviations of M, and the largest width.
_UNIT_IN_DEVIATIONS = 0.9
_LARGEST_UNIT = 0.5
# Cells from one power of two to the next: this over the root of the reach of log L, within bounds.
_CELLS_BY_REACH = 228.0
_FEWEST_CELLS_A_DOUBLING = 16
_MOST_CELLS_A_DOUBLING = 72
# The same for ratios near 0.
_SMALL_CELLS_A_DOUBLING = 8
# How far above 1 the centre lies, in standard deviations of the last M.
_CENTRE_IN_DEVIATIONS = 1.0
# Doublings of the unit within which no pair of ratios is made coarser.
_CLOSE_DOUBLINGS = 2
# Ratios of one block within these doublings.
_CLOSE_ROWS = 128
# Sums in one array: so many stay in the processor's cache.
_SUMS_AT_ONCE = 1 << 15
_NO_INDEX = np.zeros(0, dtype=np.intp)
# The bits of the number 1, from which the number of a cell is counted.
_BITS_OF_ONE = int(np.float64(1).view(np.int64))
# A cell adds up to 2¹⁵ masses one after the other, and some hundred blocks of these, which went
# through a few operations each and up to a thousand halvings; a product of two masses has the
# errors of both, so that a mean of n has at most n times this, as a relative error.
_ROUNDING = 2 * _SUMS_AT_ONCE * UNIT


class WeightedRatios(NamedTuple):
    """Ratios in increasing order, and their masses."""

    ratio: Floats
    mass: Floats

    def rows(self, rows: slice) -> WeightedRatios:
        """Return the ratios of a slice."""
        return WeightedRatios(self.ratio[rows], self.mass[rows])


class Ratio(NamedTuple):
    """Atoms of a likelihood ratio: ratios, Q-masses, and the P-mass at infinity."""

    ratio: Floats
    mass: Floats
    lost: float


class RatioCells:
    """Cells in y = |M − centre|/unit + 1, as many of one width from each power of two to the next.

    Below `near` they lie so in M itself, from each power of two to the next, down to 0.
    """

    # The exponent and the leading bits of a float say in which of these cells it lies, so that the
    # number of a cell is read off the bits: no logarithm is taken.

    def __init__(
        self, centre: float, unit: float, doubling_cells: int, small_doubling_cells: int
    ) -> None:
        self.centre = centre
        self.unit = unit
        self.doubling_cells = doubling_cells
        self.small_doubling_cells = small_doubling_cells
        # Until both are known, no ratio counts as near 0.
        self.near = 0.0
        self.split = -(1 << 40)
        cell = self.number(0.0)
        low = self.starts(cell, cell + 1)
        # Below this ratio, cells by doublings of M are narrower than the one that 0 lies in.
        split_ratio = min(small_doubling_cells * float(low[1] - low[0]), centre / 2)
        self.split = self.number(split_ratio / unit) + 1
        self.near = float(self.starts(self.split, self.split)[0])

    def numbers(self, y: Floats, spare: Floats) -> npt.NDArray[np.int64]:
        """Return the cells of ratios in units, of which the first is least, in place of them.

        `spare` is an array of their size that is written over.
        """
        near = self.near / self.unit
        low = np.flatnonzero(y < near) if y[0] < near else _NO_INDEX
        low_bits = (y[low] / near).view(np.int64) - _BITS_OF_ONE
        low_cell = (low_bits >> 20) * self.small_doubling_cells >> 32
        y -= self.centre / self.unit
        below = spare.view(np.int64)
        cell = y.view(np.int64)
        # The sign bit, spread over the word: −1 below the centre, where numbers are negative.
        np.right_shift(cell, 63, out=below)
        np.abs(y, out=y)
        y += 1.0
        cell -= _BITS_OF_ONE
        cell >>= 20
        cell *= self.doubling_cells
        cell >>= 32
        cell ^= below
        cell[low] = low_cell + self.split
        return cell

    def number(self, y: float) -> int:
        """Return the cell of a ratio in units."""
        return int(self.numbers(np.array([y]), np.empty(1))[0])

    def starts(self, first: int, last: int) -> Floats:
        """Return the ratios at which the cells of two numbers, and those between them, start."""
        number = np.arange(first, last + 1)
        distance = _cell_starts(np.abs(number), self.doubling_cells) - 1
        far = self.unit * np.copysign(distance, number)
        near = self.near * _cell_starts(
            np.minimum(number - self.split, 0), self.small_doubling_cells
        )
        return np.where(number >= self.split, self.centre + far, near)


def _cell_starts(number: npt.NDArray[np.int64], doubling_cells: int) -> Floats:
    """Return the y at which cells start, as many from each power of two to the next."""
    # Rounded up in the division, so that a start lies in its own cell.
    bits = -(-(number << 32) // doubling_cells) << 20
    return np.asarray((bits + _BITS_OF_ONE).view(np.float64))


@lru_cache(maxsize=256)
def build_ratio_law(step: Allocated, *, upper: bool) -> Ratio:
    """Return a law that the ratio of `step` contracts to, or (`upper`) that it spreads to."""
    z = step.noise_multiplier
    n = step.steps
    if not (0.5 / z + _REACH) / z <= LARGEST_LOG_RATIO / 2:
        raise RangeError(f"noise_multiplier = {z!r}: past the numerical range; use more noise")
    if z > _MOST_NOISE:
        raise RangeError(
            f"noise_multiplier = {z!r}: past the numerical range; give at most {_MOST_NOISE:g}"
        )
    grid = _choose_grid(z, 1, n)
    law = _single_ratio_law(z, grid, upper)
    m = 1
    # The binary digits of n after the first: each doubles the mean, a 1 adds one ratio more.
    for bit in bin(n)[3:]:
        law = _mean_law(law, m, law, m, _choose_grid(z, 2 * m, n), upper)
        m *= 2
        if bit == "1":
            # Its own width weighs little among so many, so that coarse cells do.
            single = _single_ratio_law(z, _coarsen_grid(grid, m), upper)
            law = _mean_law(law, m, single, 1, _choose_grid(z, m + 1, n), upper)
            m += 1
    return law


def _choose_grid(z: float, m: int, n: int) -> RatioCells:
    """Return the cells for a mean of m on the way to a mean of n."""
    # Narrow beside the standard deviation, near 1 and a little above, and beside the distance from
    # there for rare large ratios. Widths matter to how close bounds are and not to whether they
    # hold. Long tails have fewer cells to each doubling, since there are so many doublings; few
    # steps are quick, and have more.
    log_reach = (0.5 / z + _REACH) / z
    cells_by_reach = min(_CELLS_BY_REACH / math.sqrt(log_reach), _MOST_CELLS_A_DOUBLING)
    cells = int(cells_by_reach * (1 + 4 / n))
    above_one = min(_CENTRE_IN_DEVIATIONS * _mean_deviation(z, n), 1.0)
    unit = min(_UNIT_IN_DEVIATIONS * _mean_deviation(z, m), _LARGEST_UNIT)
    doubling_cells = max(cells, _FEWEST_CELLS_A_DOUBLING)
    return RatioCells(1 + above_one, unit, doubling_cells, _SMALL_CELLS_A_DOUBLING)


def _coarsen_grid(grid: RatioCells, m: int) -> RatioCells:
    """Return the cells of a single ratio, by its own grid, where it is added to m others."""
    doubling_cells = max(grid.doubling_cells // _coarsening(m), 4)
    small_doubling_cells = max(grid.small_doubling_cells // _coarsening(m), 2)
    return RatioCells(1.0, grid.unit, doubling_cells, small_doubling_cells)


def _coarsening(m: int) -> int:
    """Return how many times wider cells of one ratio of m + 1 may be: √(m + 1)."""
    # What one of m + 1 weighs falls by m + 1, and its variance in the mean with the square.
    return math.isqrt(m + 1)


def _mean_deviation(z: float, m: int) -> float:
    """Return the standard deviation of a mean of m ratios."""
    with np.errstate(over="ignore"):
        variance = float(np.expm1(1 / z**2))
        return math.sqrt(variance / m)


def _single_ratio_law(z: float, grid: RatioCells, upper: bool) -> Ratio:
    """Return the law of a single lognormal ratio, in the cells of a grid."""
    first = math.exp((-0.5 / z - _REACH) / z)
    last = math.exp((0.5 / z + _REACH) / z)
    low = grid.number(first / grid.unit)
    high = grid.number(last / grid.unit)
    ends = grid.starts(low, high + 1)
    ends = ends[ends > first]
    # log L is normal with mean ∓1/(2z²) under Q and P; in standard deviations, 1/z.
    log = np.concatenate(([-np.inf], np.log(ends) * z, [np.inf]))
    q = normal_masses(log + 0.5 / z)
    p = normal_masses(log - 0.5 / z)
    return _place_atoms(q, p, ends, upper, 0.0)


def _mean_law(one: Ratio, a: int, other: Ratio, b: int, grid: RatioCells, upper: bool) -> Ratio:
    """Return the law of (a·M + b·M')/(a + b) for independent M and M', in the cells of a grid."""
    left = WeightedRatios(one.ratio * (a / (a + b) / grid.unit), one.mass)
    right = WeightedRatios(other.ratio * (b / (a + b) / grid.unit), other.mass)
    # The least sum of positive ratios: what is less, with a ratio of 0, joins the first cell.
    left_bottom = min(left.ratio[left.ratio > 0])
    right_bottom = min(right.ratio[right.ratio > 0])
    bottom = float(left_bottom + right_bottom)
    low = grid.number(bottom)
    high = grid.number(float(left.ratio[-1] + right.ratio[-1]))
    q = np.zeros(high - low + 1)
    p = np.zeros(high - low + 1)
    work = np.empty((4, max(_SUMS_AT_ONCE, left.ratio.size + right.ratio.size)))
    sums = _CellSums(q, p, grid, bottom, low, work)
    _add_pairs(sums, left, right, None if one is other else _coarsening(a).bit_length(), upper)
    ends = grid.starts(low + 1, high + 1)
    p *= grid.unit
    q, p, ends = _merge_outer_cells(q, p, ends)
    lost = (a * one.lost + b * other.lost) / (a + b)
    return _place_atoms(q, p, ends, upper, lost)


def _add_pairs(
    sums: _CellSums,
    left: WeightedRatios,
    right: WeightedRatios,
    right_doublings: int | None,
    upper: bool,
) -> None:
    """Add the sums of all pairs of a left and a right ratio to the cells.

    `right_doublings` is how far out right ratios stay as they are, in doublings of the unit; None
    where both sides are one law.
    """
    # Pairs by the block of the larger of both. Beside a ratio that is far off, where cells are
    # wide, smaller ones are spread or contracted too, to about half of that width.
    grid = sums.grid
    far = grid.centre / grid.unit + 2.0 ** np.arange(_CLOSE_DOUBLINGS, 1024) - 1
    close = int(np.searchsorted(left.ratio, far[0]))
    starts = [0.0, *left.ratio[_CLOSE_ROWS:close:_CLOSE_ROWS]]
    blocks = max(np.searchsorted(far, side.ratio[-1]) for side in (left, right))
    starts += far[:blocks].tolist()
    left_cuts = np.searchsorted(left.ratio, [*starts, math.inf]).tolist()
    right_cuts = np.searchsorted(right.ratio, [*starts, math.inf]).tolist()
    # What lies below the block: of the left side, and of the right one.
    left_below = left.rows(slice(0))
    right_below = right.rows(slice(0))
    for block, start in enumerate(starts):
        left_block = left.rows(slice(left_cuts[block], left_cuts[block + 1]))
        right_block = right.rows(slice(right_cuts[block], right_cuts[block + 1]))
        if start > far[0]:
            left_below = _halve_atoms(left_below, upper)
        if right_doublings is None:
            # What is smaller stands for both orders of a pair.
            twice = WeightedRatios(left_below.ratio, 2 * left_below.mass)
            sums.add(left_block, _join(twice, left_block))
        else:
            if start > far[right_doublings]:
                right_below = _halve_atoms(right_below, upper)
            sums.add(left_block, _join(right_below, right_block))
            sums.add(right_block, left_below)
            right_below = _join(right_below, right_block)
        left_below = _join(left_below, left_block)


def _merge_outer_cells(q: Floats, p: Floats, ends: Floats) -> tuple[Floats, Floats, Floats]:
    """Return masses and ends of cells, all that is hardly there within the first and the last."""
    larger = np.maximum(q, p)
    first = min(int(np.searchsorted(np.cumsum(larger), _TAIL)), max(larger.size - 2, 0))
    last = larger.size - int(np.searchsorted(np.cumsum(larger[::-1]), _TAIL))
    last = max(last, first + 2)

    def merge(mass: Floats) -> Floats:
        low = mass[: first + 1].sum()
        high = mass[last:].sum()
        return np.array([low, *mass[first + 1 : last], high])

    return merge(q), merge(p), ends[first:last]


def _join(one: WeightedRatios, other: WeightedRatios) -> WeightedRatios:
    """Return the ratios of both, one after the other."""
    return WeightedRatios(
        np.concatenate([one.ratio, other.ratio]), np.concatenate([one.mass, other.mass])
    )


def _halve_atoms(atoms: WeightedRatios, upper: bool) -> WeightedRatios:
    """Return about half as many atoms, spread (`upper`) or contracted, their means kept."""
    ratio = atoms.ratio
    mass = atoms.mass
    if upper:
        # Every other atom goes to its two neighbours, by the lever rule. Of an even number the last
        # one stays alone.
        last = ratio.size - 1 + ratio.size % 2
        odd = mass[1:last:2]
        even = mass[:last:2].copy()
        left = ratio[: last - 2 : 2]
        middle = ratio[1:last:2]
        right = ratio[2:last:2]
        gap = right - left
        even[1:] += odd * ((middle - left) / gap)
        even[:-1] += odd * ((right - middle) / gap)
        return _join(WeightedRatios(ratio[:last:2], even), atoms.rows(slice(last, None)))
    # Each two neighbours become one atom at their mean. Of an odd number the last one stays.
    last = ratio.size // 2 * 2
    left_mass = mass[0:last:2]
    right_mass = mass[1:last:2]
    total = left_mass + right_mass
    mean = (left_mass * ratio[0:last:2] + right_mass * ratio[1:last:2]) / total
    return _join(WeightedRatios(mean, total), atoms.rows(slice(last, None)))


class _CellSums(NamedTuple):
    """Q- and P-masses of cells from number `low` on, to which sums of two ratios are added."""

    # Ratios are in units of the grid; those below `bottom` are put into the first cell. `work` has
    # four rows, which every block of sums writes over.

    q: Floats
    p: Floats
    grid: RatioCells
    bottom: float
    low: int
    work: Floats

    def add(self, one: WeightedRatios, other: WeightedRatios) -> None:
        """Add the sums of all pairs of one ratio of each."""
        rows = max(self.work.shape[1] // max(other.ratio.size, 1), 1)
        for start in range(0, one.ratio.size if other.ratio.size else 0, rows):
            part = one.rows(slice(start, start + rows))
            shape = (part.ratio.size, other.ratio.size)
            count = part.ratio.size * other.ratio.size
            total, mass, y, spare = self.work[:, :count]
            np.add.outer(part.ratio, other.ratio, out=total.reshape(shape))
            np.multiply.outer(part.mass, other.mass, out=mass.reshape(shape))
            np.maximum(total, self.bottom, out=y)
            cell = self.grid.numbers(y, spare)
            cell -= self.low
            np.add(self.q, np.bincount(cell, mass, self.q.size), out=self.q)
            # P has the ratio as its density under Q.
            mass *= total
            np.add(self.p, np.bincount(cell, mass, self.p.size), out=self.p)


def _place_atoms(q: Floats, p: Floats, ends: Floats, upper: bool, lost: float) -> Ratio:
    """Return the law of cells by their Q- and P-masses: from 0 on, up to each end, and beyond."""
    if not upper:
        # Each cell contracts to its mean. Rounding can have left two atoms at one place, or
        # reversed.
        mass = q[q > 0]
        ratio = p[q > 0] / mass
        order = np.argsort(ratio, kind="stable")
        return Ratio(ratio[order], mass[order], lost)
    # Each cell is spread to its two ends, its mean kept.
    nodes = np.append(0.0, ends)
    above_low_end = p[:-1] - nodes[:-1] * q[:-1]
    high = np.clip(above_low_end / np.diff(nodes), 0.0, q[:-1])
    mass = np.append(q[:-1] - high, q[-1])
    mass[1:] += high
    # The last cell has no upper end: what its P-mass has too much there goes to infinity.
    beyond = max(float(p[-1] - nodes[-1] * q[-1]), 0.0) + 64 * UNIT * float(p[-1])
    return Ratio(nodes[mass > 0], mass[mass > 0], lost + beyond)


def _build_outcomes(step: Allocated, *, upper: bool) -> Outcomes:
    """Return a law as a pair of worlds; what only one of them can show is left out of it."""
    ratio, mass, lost = build_ratio_law(step, upper=upper)
    at_zero = float(mass[ratio == 0].sum())
    error = (step.steps + 16) * _ROUNDING
    positive = ratio > 0
    ratio = ratio[positive]
    mass = mass[positive]
    return Outcomes(np.log(ratio), ratio * mass, mass, 0.0, 0.0, lost, at_zero, error)


@dataclass(frozen=True, eq=False)
class AllocatedProfile(Inverted):
    """The profile of one of n Gaussian steps, by sums over the atoms of both laws."""

    step: Allocated

    def delta(self, epsilon: Floats) -> Bounds:
        """Bound the larger of both directions."""
        contracted = DiscreteProfile(_build_outcomes(self.step, upper=False))
        low = contracted.delta(epsilon)
        spread = DiscreteProfile(_build_outcomes(self.step, upper=True))
        high = spread.delta(epsilon)
        return Bounds(low.lower, high.upper)


def allocated_pair(step: Allocated, probability: float = 1.0) -> AtomsPair:
    """Return the dominating pair of a step, itself behind a coin, and one that it dominates."""

    def make_pair(upper: bool, below: AtomsPair | None) -> AtomsPair:
        outcomes = _build_outcomes(step, upper=upper)
        outside_p = (1 - probability) * outcomes.outside_q + probability * outcomes.outside_p
        return AtomsPair(
            outcomes.loss,
            outcomes.q,
            (outside_p, outcomes.outside_q),
            outcomes.error,
            probability,
            below=below,
        )

    return make_pair(True, make_pair(False, None))
