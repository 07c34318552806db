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
        # The first ratio is the least one: mostly none is near 0 and none has to be searched for.
        low = np.flatnonzero(y < near) if y[0] < near else _NO_INDEX
        low_bits = (y[low] / near).view(np.int64) - _BITS_OF_ONE
        # The bits count doublings in units of 2⁻⁵². Times the cells of a doubling, over 2⁵², they
        # are the cell's number; shifted in two parts, the product fits into 64 bits.
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
        # Below the centre cell c becomes −1 − c, so that numbers ascend with the ratio.
        cell ^= below
        cell[low] = low_cell + self.split
        return cell

    def number(self, y: float) -> int:
        """Return the cell of a ratio in units."""
        cells = self.numbers(np.array([y]), np.empty(1))
        return int(cells[0])

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
    smallest = math.exp((-0.5 / z - _REACH) / z)
    largest = math.exp((0.5 / z + _REACH) / z)
    low = grid.number(smallest / grid.unit)
    high = grid.number(largest / grid.unit)
    ends = grid.starts(low, high + 1)
    ends = ends[ends > smallest]
    # log L is normal with mean ∓1/(2z²) under Q and P; in standard deviations, 1/z.
    log_ends = np.log(ends) * z
    # The first cell reaches down to 0 and the last one has no upper end.
    log = np.concatenate(([-np.inf], log_ends, [np.inf]))
    q = normal_masses(log + 0.5 / z)
    p = normal_masses(log - 0.5 / z)
    return _place_atoms(q, p, ends, upper, 0.0)


def _mean_law(one: Ratio, a: int, other: Ratio, b: int, grid: RatioCells, upper: bool) -> Ratio:
    """Return the law of (a·M + b·M')/(a + b) for independent M and M', in the cells of a grid."""
    # Their shares of the mean, in units of the grid.
    one_weight = a / (a + b) / grid.unit
    other_weight = b / (a + b) / grid.unit
    one_part = WeightedRatios(one.ratio * one_weight, one.mass)
    other_part = WeightedRatios(other.ratio * other_weight, other.mass)
    # The least sum of positive ratios: what is less, with a ratio of 0, joins the first cell.
    one_bottom = min(one_part.ratio[one_part.ratio > 0])
    other_bottom = min(other_part.ratio[other_part.ratio > 0])
    bottom = float(one_bottom + other_bottom)
    top = float(one_part.ratio[-1] + other_part.ratio[-1])
    low = grid.number(bottom)
    high = grid.number(top)
    q = np.zeros(high - low + 1)
    p = np.zeros(high - low + 1)
    longest = one_part.ratio.size + other_part.ratio.size
    work = np.empty((4, max(_SUMS_AT_ONCE, longest)))
    sums = _CellSums(q, p, grid, bottom, low, work)
    other_doublings = None if one is other else _coarsening(a).bit_length()
    _add_pairs(sums, one_part, other_part, other_doublings, upper)
    ends = grid.starts(low + 1, high + 1)
    # P-masses were added up with ratios in units of the grid.
    p *= grid.unit
    q, p, ends = _merge_outer_cells(q, p, ends)
    # A mean is infinite where one of both is, and P weighs each by its share.
    lost = (a * one.lost + b * other.lost) / (a + b)
    return _place_atoms(q, p, ends, upper, lost)


def _add_pairs(
    sums: _CellSums,
    one: WeightedRatios,
    other: WeightedRatios,
    other_doublings: int | None,
    upper: bool,
) -> None:
    """Add the sums of all pairs of one ratio of each to the cells.

    `other_doublings` is how far out ratios of `other` stay as they are, in doublings of the unit;
    None where both are one law.
    """
    # Pairs by the block of the larger of both. Beside a ratio that is far off, where cells are
    # wide, smaller ones are spread or contracted too, to about half of that width.
    grid = sums.grid
    doublings = 2.0 ** np.arange(_CLOSE_DOUBLINGS, 1024)
    far = grid.centre / grid.unit + doublings - 1
    close = int(np.searchsorted(one.ratio, far[0]))
    starts = [0.0, *one.ratio[_CLOSE_ROWS:close:_CLOSE_ROWS]]
    largest = max(one.ratio[-1], other.ratio[-1])
    starts += far[: np.searchsorted(far, largest)].tolist()
    borders = [*starts, math.inf]
    one_cuts = np.searchsorted(one.ratio, borders).tolist()
    other_cuts = np.searchsorted(other.ratio, borders).tolist()
    # What lies below the block.
    one_below = one.rows(slice(0))
    other_below = other.rows(slice(0))
    for block, start in enumerate(starts):
        one_block = one.rows(slice(one_cuts[block], one_cuts[block + 1]))
        other_block = other.rows(slice(other_cuts[block], other_cuts[block + 1]))
        if start > far[0]:
            one_below = _halve_atoms(one_below, upper)
        if other_doublings is None:
            # What is smaller stands for both orders of a pair.
            # (M, M') and (M', M) have one sum.
            twice = WeightedRatios(one_below.ratio, 2 * one_below.mass)
            sums.add(one_block, _join(twice, one_block))
        else:
            if start > far[other_doublings]:
                other_below = _halve_atoms(other_below, upper)
            sums.add(one_block, _join(other_below, other_block))
            sums.add(other_block, one_below)
            other_below = _join(other_below, other_block)
        one_below = _join(one_below, one_block)


def _merge_outer_cells(q: Floats, p: Floats, ends: Floats) -> tuple[Floats, Floats, Floats]:
    """Return masses and ends of cells, all that is hardly there within the first and the last."""
    larger = np.maximum(q, p)
    mass_up_to = np.cumsum(larger)
    mass_down_to = np.cumsum(larger[::-1])
    low_count = int(np.searchsorted(mass_up_to, _TAIL))
    high_count = int(np.searchsorted(mass_down_to, _TAIL))
    # Cells up to `start` become one, and those from `end` on; at least one cell lies between.
    start = min(low_count, max(larger.size - 2, 0))
    end = max(larger.size - high_count, start + 2)

    def merge(mass: Floats) -> Floats:
        low = mass[: start + 1].sum()
        high = mass[end:].sum()
        return np.array([low, *mass[start + 1 : end], high])

    return merge(q), merge(p), ends[start:end]


def _join(one: WeightedRatios, other: WeightedRatios) -> WeightedRatios:
    """Return the ratios of both, one after the other."""
    ratio = np.concatenate([one.ratio, other.ratio])
    mass = np.concatenate([one.mass, other.mass])
    return WeightedRatios(ratio, mass)


def _halve_atoms(atoms: WeightedRatios, upper: bool) -> WeightedRatios:
    """Return about half as many atoms, spread (`upper`) or contracted, their means kept."""
    ratio = atoms.ratio
    mass = atoms.mass
    if upper:
        # Every other atom goes to its two neighbours, by the lever rule. Of an even number the last
        # one stays alone.
        end = ratio.size - 1 + ratio.size % 2
        odd = mass[1:end:2]
        even = mass[:end:2].copy()
        low = ratio[: end - 2 : 2]
        middle = ratio[1:end:2]
        high = ratio[2:end:2]
        gap = high - low
        even[1:] += odd * ((middle - low) / gap)
        even[:-1] += odd * ((high - middle) / gap)
        return _join(WeightedRatios(ratio[:end:2], even), atoms.rows(slice(end, None)))
    # Each two neighbours become one atom at their mean. Of an odd number the last one stays.
    end = ratio.size // 2 * 2
    low_mass = mass[0:end:2]
    high_mass = mass[1:end:2]
    total = low_mass + high_mass
    low_moment = low_mass * ratio[0:end:2]
    high_moment = high_mass * ratio[1:end:2]
    mean = (low_moment + high_moment) / total
    return _join(WeightedRatios(mean, total), atoms.rows(slice(end, None)))


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
        if not other.ratio.size:
            return
        rows = max(self.work.shape[1] // other.ratio.size, 1)
        for start in range(0, one.ratio.size, rows):
            part = one.rows(slice(start, start + rows))
            shape = (part.ratio.size, other.ratio.size)
            count = part.ratio.size * other.ratio.size
            # A table of pairs, a row a ratio of `one`, in arrays that are used again and again.
            total, mass, y, spare = self.work[:, :count]
            np.add.outer(part.ratio, other.ratio, out=total.reshape(shape))
            np.multiply.outer(part.mass, other.mass, out=mass.reshape(shape))
            # What is less than the first cell's sums joins them.
            np.maximum(total, self.bottom, out=y)
            cell = self.grid.numbers(y, spare)
            cell -= self.low
            q_mass = np.bincount(cell, mass, self.q.size)
            np.add(self.q, q_mass, out=self.q)
            # P has the ratio as its density under Q.
            mass *= total
            p_mass = np.bincount(cell, mass, self.p.size)
            np.add(self.p, p_mass, out=self.p)


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
    # A mass q of mean m between a and b puts q·(m − a)/(b − a) on b; q·m is its P-mass.
    nodes = np.append(0.0, ends)
    inner_q = q[:-1]
    above_low_end = p[:-1] - nodes[:-1] * inner_q
    high = np.clip(above_low_end / np.diff(nodes), 0.0, inner_q)
    mass = np.append(inner_q - high, q[-1:])
    mass[1:] += high
    # The last cell has no upper end: what its P-mass has too much there goes to infinity.
    outer_p = p[-1]
    outer_q = q[-1]
    excess = float(outer_p - nodes[-1] * outer_q)
    beyond = max(excess, 0.0) + 64 * UNIT * float(outer_p)
    return Ratio(nodes[mass > 0], mass[mass > 0], lost + beyond)


def _build_outcomes(step: Allocated, *, upper: bool) -> Outcomes:
    """Return a law as a pair of worlds; what only one of them can show is left out of it."""
    ratio, mass, lost = build_ratio_law(step, upper=upper)
    at_zero = float(mass[ratio == 0].sum())
    # Each of n ratios brings its own relative error (`_ROUNDING`).
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
