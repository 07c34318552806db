"""Many distinct budgets: everyone's parameter on a ladder of levels, close enough to lose little.

With more distinct budgets than can each have a curve of its own, parameters are taken from a
ladder on which ε moves by at most 0.34 % from rung to rung. Where a record stands is found by
interpolation, a margin below its budget. Since all records on a rung share one mechanism, the
curves of some hundred rungs then recompute every record's ε when the plan is verified; if
any exceeds its budget the plan is made anew with a larger margin (see `assign`). So interpolation
decides how much is spent, never whether a promise holds.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from apiece._types import Floats, Integers, Mask
from apiece.accounting.batch import upper_epsilons
from apiece.assignment.request import Request
from apiece.assignment.solve import solve_noise
from apiece.errors import RangeError
from apiece.numerics.roots import safe_end

# The largest number of distinct budgets that are planned without a ladder.
LADDER = 40
# The distance of log ε between rungs.
STEP = 3.4e-3
# How far of log ε below its budget a record is placed: what the accountant's bounds vary by.
MARGIN = 6e-4
# How many mechanisms are accounted for; Rényi's ε bends sharply in q, and costs little.
NODES = {"pld": 28, "rdp": 160}
# The number of nodes from which on an accountant's ε is taken to bend sharply.
SHARP_NODES = 100
# How many δ span those asked.
DELTAS = 13
# The relative distance of δ's that are looked at as one: the smallest.
NEARLY = 1e-6
# How many points a table has between nodes.
FINE = 1000
# The log q at which a search for the end of a ladder starts.
START_LOG_RATE = float(np.log(0.01))
# The smallest log q on a ladder.
MIN_LOG_RATE = float(np.log(1e-12))
# The rise of log ε between nodes above which it may be a jump.
JUMP = 0.3
# How many times the usual rise a jump is at least.
JUMP_RATIO = 8.0
# By how many cells of ε a population is summarized.
EPSILON_CELLS = 256
# By how many cells of δ a population is summarized.
DELTA_CELLS = 24

# From a growing parameter x to noise multipliers and sampling probabilities; ε grows in x.
Mechanisms = Callable[[Floats], tuple[Floats, Floats]]


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Population:
    """Budgets with the share of the records that has each; all of them, or a summary."""

    epsilon: Floats
    delta: Floats
    share: Floats

    @classmethod
    def of(cls, request: Request) -> Population:
        """Return the budgets that everyone is aimed at."""
        return cls(request.target, request.groups.delta, request.share)

    def summary(self) -> Population:
        """Return the means of the budgets in cells of a fine grid, to search with."""
        # log q and log z are nearly lines in these, so that means of a cell stand for its members.
        log_epsilon = np.log(self.epsilon)
        reach = _compute_reach(self.delta)
        # One number a cell: that of ε times the cells of δ, and that of δ.
        row = _assign_cells(log_epsilon, EPSILON_CELLS)
        cell = row * DELTA_CELLS + _assign_cells(reach, DELTA_CELLS)
        share = np.bincount(cell, self.share).astype(np.float64)
        occupied = share > 0
        share = share[occupied]
        mean_log_epsilon = np.bincount(cell, self.share * log_epsilon)[occupied] / share
        mean_reach = np.bincount(cell, self.share * reach)[occupied] / share
        # A mean's rounding must not make one δ into several that hardly differ.
        delta = np.clip(_invert_reach(mean_reach), self.delta.min(), self.delta.max())
        return Population(np.exp(mean_log_epsilon), delta, share)


def _assign_cells(values: Floats, count: int) -> Integers:
    """Return the cell of each value, of `count` equal ones between the least and the largest."""
    low = float(values.min())
    high = float(values.max())
    # All in one cell where all values are equal.
    width = (high - low) / count or 1.0
    return np.minimum((values - low) / width, count - 1).astype(np.int64)


def needs_ladder(request: Request) -> bool:
    """Whether there are too many distinct budgets to solve for each."""
    return len(request.groups) > LADDER


def find_noise_levels(request: Request, probability: float) -> Floats:
    """Return a safe noise multiplier for each group at one sampling probability."""
    low, high = find_noise_range(request, probability)

    def make_mechanisms(x: Floats) -> tuple[Floats, Floats]:
        # ε falls with z: the ladder is climbed in −log z, so that ε grows.
        return np.exp(-x), np.full(x.shape, probability)

    everyone = Population.of(request)
    # A little wider than the range, so that interpolation does not end at an extreme budget.
    bottom = -np.log(high * 1.02)
    top = -np.log(low * 0.98)
    ladder = Ladder.between(request, everyone, make_mechanisms, bottom, top)
    return np.exp(-ladder.place(everyone))


def make_rate_ladder(request: Request, people: Population, multiplier: float) -> Ladder:
    """Return the ladder of log sampling probabilities at one noise multiplier, for `people`."""

    def make_mechanisms(x: Floats) -> tuple[Floats, Floats]:
        return np.full(x.shape, multiplier), np.exp(x)

    def compute_excess(log_q: float, epsilon: float, delta: float) -> float:
        spent = _account(request, make_mechanisms, np.array([log_q]), np.array([delta]))
        return float(np.log(spent[0, 0] / epsilon))

    # A little wider than the budgets, so that interpolation does not end at an extreme one.
    strictest = (float(people.epsilon.min()) * 0.98, float(people.delta.min()))
    loosest = (float(people.epsilon.max()) * 1.02, float(people.delta.max()))
    # The lowest rung is safe for the strictest budget, and the highest beyond the loosest.
    bottom = find_ladder_end(
        lambda log_q: -compute_excess(log_q, *strictest), safe=MIN_LOG_RATE, unsafe=0.0
    )
    if np.isnan(bottom):
        raise RangeError("sampling probability: below 1e-12 for the strictest budget")
    top = find_ladder_end(lambda log_q: compute_excess(log_q, *loosest), safe=0.0, unsafe=bottom)
    if np.isnan(top):
        top = 0.0
    return Ladder.between(request, people, make_mechanisms, bottom, top)


def find_ladder_end(room: Callable[[float], float], *, safe: float, unsafe: float) -> float:
    """Return log q beyond where ε meets a budget, but not far; NaN where `safe` is not beyond."""
    # ε grows about as q, or as log q where it is large.
    return safe_end(room, START_LOG_RATE, safe, unsafe, slope=1.0, tolerance=0.1, narrow=1e-3)


def find_noise_range(request: Request, probability: float) -> tuple[float, float]:
    """Return noise multipliers at one rate that no group's own lies outside of."""
    # Those of the largest ε with the largest δ, and of the smallest with the smallest.
    groups = request.groups
    epsilon = np.array([request.target.max(), request.target.min()])
    delta = np.array([groups.delta.max(), groups.delta.min()])
    low, high = solve_noise(request, epsilon, delta, probability)
    return float(low), float(high)


def _account(request: Request, make_mechanisms: Mechanisms, x: Floats, delta: Floats) -> Floats:
    """Return an upper bound on ε at each x (rows) and δ (columns)."""
    # Equal mechanisms lie side by side, so that one curve answers for all δ.
    z, q = (np.repeat(values, delta.size) for values in make_mechanisms(x))
    spent = upper_epsilons(
        noise_multiplier=z,
        sampling_probability=q,
        steps=np.full(z.shape, request.steps),
        delta=np.tile(delta, x.size),
        method=request.method,
    )
    # Above 0, since logarithms are taken.
    return np.maximum(spent.reshape(x.size, delta.size), 1e-12)


@dataclass(frozen=True, slots=True, eq=False)
class Ladder:
    """Mechanisms of one growing parameter x, and where a budget is spent on it."""

    # Values of x at which ε is computed; between them it is interpolated.
    nodes: Floats
    # A few δ, falling.
    deltas: Floats
    # At each node (rows) and δ (columns), growing along both.
    log_epsilon: Floats

    @classmethod
    def between(
        cls,
        request: Request,
        people: Population,
        make_mechanisms: Mechanisms,
        low: float,
        high: float,
    ) -> Ladder:
        """Return the ladder from x = low to high."""
        nodes = np.linspace(low, high, NODES[request.method])
        deltas = _span_deltas(people.delta)
        rows = np.log(_account(request, make_mechanisms, nodes, deltas))
        # Bounds may wobble by their precision: made monotone, an ε is met at one x.
        return cls(nodes, deltas, np.maximum.accumulate(rows, axis=0))

    def estimate(self, people: Population) -> Floats:
        """Return the x at which each budget would be spent, by interpolation in ε and in δ."""
        from scipy.ndimage import map_coordinates

        # Below what is asked, by what bounds vary by.
        target = np.log(people.epsilon) - MARGIN
        # Heights of log ε, evenly spread, against which a budget's place is found by index.
        heights = np.linspace(float(target.min()) - 1e-6, float(target.max()) + 1e-6, FINE)
        table = self._invert(heights)
        # Positions in the table, in steps of it, as `map_coordinates` takes them.
        rows = (target - heights[0]) / (heights[1] - heights[0])
        low, high = _compute_reach(self.deltas[[0, -1]])
        width = (high - low) / max(table.shape[1] - 1, 1) or 1.0
        columns = (_compute_reach(people.delta) - low) / width
        return np.asarray(map_coordinates(table, [rows, columns], order=1, mode="nearest"))

    def _invert(self, heights: Floats) -> Floats:
        """Return x at values of log ε (rows) and evenly spread reaches of δ (columns)."""
        x = np.linspace(self.nodes[0], self.nodes[-1], max(FINE, 4 * self.nodes.size))
        log_epsilon = self._interpolate_nodes(x)
        if self.deltas.size > 1:
            log_epsilon = self._interpolate_deltas(log_epsilon)
        log_epsilon = np.maximum.accumulate(log_epsilon, axis=0)
        # (heights, columns of δ).
        return np.array([np.interp(heights, column, x) for column in log_epsilon.T]).T

    def _interpolate_nodes(self, x: Floats) -> Floats:
        """Return log ε at each x (rows) and the ladder's δ (columns)."""
        from scipy.interpolate import CubicSpline, PchipInterpolator

        jumps = _find_jumps(np.diff(self.log_epsilon, axis=0, prepend=self.log_epsilon[:1]))
        # A cubic spline would swing beside a sharp bend.
        sharp = self.nodes.size >= SHARP_NODES or jumps.any()
        interpolator = PchipInterpolator if sharp else CubicSpline
        log_epsilon = interpolator(self.nodes, self.log_epsilon)(x)
        # A budget within a jump is placed before it: all of a jump has the ε of its upper end.
        upper_node = np.minimum(np.searchsorted(self.nodes, x), self.nodes.size - 1)
        return np.where(jumps[upper_node], self.log_epsilon[upper_node], log_epsilon)

    def _interpolate_deltas(self, log_epsilon: Floats) -> Floats:
        """Return log ε at the same rows and evenly spread reaches of δ (columns)."""
        from scipy.interpolate import PchipInterpolator

        reach = _compute_reach(self.deltas)
        reaches = np.linspace(reach[0], reach[-1], 4 * DELTAS)
        upper_column = np.searchsorted(reach, reaches)
        jumps = _find_jumps(np.abs(np.diff(log_epsilon, axis=1)), axis=None)
        interpolated = PchipInterpolator(reach, log_epsilon, axis=1)(reaches)
        # Within a jump the stricter δ's ε is taken, which is the larger.
        within_jump = jumps[:, np.maximum(upper_column - 1, 0)]
        return np.where(within_jump, log_epsilon[:, upper_column], interpolated)

    def place(self, people: Population) -> Floats:
        """Return each budget's rung: the highest that is not above its estimate."""
        rungs = self._make_rungs()
        index = np.searchsorted(rungs, self.estimate(people), side="right") - 1
        return np.asarray(rungs[np.maximum(index, 0)])

    def _make_rungs(self) -> Floats:
        """Return values of x between which log ε moves by at most STEP, at any δ."""
        x = np.linspace(self.nodes[0], self.nodes[-1], 4 * FINE)
        # The steepest δ decides each rung: all others then move by less.
        rise = np.zeros(x.size)
        for column in self.log_epsilon.T:
            column_rise = np.diff(np.interp(x, self.nodes, column))
            rise[1:] = np.maximum(rise[1:], np.maximum(column_rise, 1e-9))
        height = np.cumsum(rise)
        count = int(np.ceil(height[-1] / STEP)) + 1
        return np.interp(np.linspace(0, height[-1], count), height, x)


def _find_jumps(rises: Floats, axis: int | None = 0) -> Mask:
    """Return which rises are jumps beside the others of their column, or (None) beside all."""
    usual = np.median(rises, axis=axis)
    return np.asarray(rises > np.maximum(JUMP, JUMP_RATIO * usual))


def _compute_reach(delta: Floats) -> Floats:
    """Return √(2·log(1/δ)), in which ε is nearly linear."""
    return np.asarray(np.sqrt(-2 * np.log(delta)))


def _invert_reach(reach: Floats) -> Floats:
    """Return the δ of a reach."""
    return np.asarray(np.exp(-(reach**2) / 2))


def _span_deltas(delta: Floats) -> Floats:
    """Return δ's from the largest to the smallest of those asked."""
    low = float(delta.min())
    high = float(delta.max())
    if high <= low * (1 + NEARLY):
        return np.array([low])
    start, end = _compute_reach(np.array([high, low]))
    return _invert_reach(np.linspace(start, end, DELTAS))
