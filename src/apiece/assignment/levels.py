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

from apiece._types import Floats, Mask
from apiece.accounting.batch import upper_epsilons
from apiece.assignment.request import Request
from apiece.assignment.solve import noise
from apiece.errors import RangeError
from apiece.numerics.roots import safe_end

LADDER = 40  # more distinct budgets than this are planned on a ladder
STEP = 3.4e-3  # of log ε between rungs
MARGIN = 6e-4  # of log ε, below a budget: what the accountant's bounds vary by
NODES = {"pld": 28, "rdp": 160}  # Rényi's ε bends sharply in q, and costs little
DELTAS = 13
NEARLY = 1e-6  # relative distance of δ's that are looked at as one: the smallest
FINE = 1000  # points of a table between nodes
START, LEAST = float(np.log(0.01)), float(np.log(1e-12))  # of log q
TALL, UNLIKE = 0.3, 8.0  # of log ε between nodes, and times the usual rise: a jump
CELLS = (256, 24)  # a population is summed up by so many cells in ε and in δ

Mechanisms = Callable[[Floats], tuple[Floats, Floats]]
"""From a growing parameter x to noise multipliers and sampling probabilities; ε grows in x."""


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
        x, y = np.log(self.epsilon), _reach(self.delta)
        cell = np.zeros(x.size, dtype=np.int64)
        for values, count in ((x, CELLS[0]), (y, CELLS[1])):
            low, high = float(values.min()), float(values.max())
            width = (high - low) / count or 1.0
            place = np.minimum((values - low) / width, count - 1).astype(np.int64)
            cell = cell * count + place
        share = np.bincount(cell, self.share).astype(np.float64)
        taken = share > 0
        means = [np.bincount(cell, self.share * values)[taken] / share[taken] for values in (x, y)]
        # a mean's rounding must not make one δ into several that hardly differ
        delta = np.clip(np.exp(-(means[1] ** 2) / 2), self.delta.min(), self.delta.max())
        return Population(np.exp(means[0]), delta, share[taken])


def many(request: Request) -> bool:
    """Whether there are too many distinct budgets to solve for each."""
    return len(request.groups) > LADDER


def noise_levels(request: Request, probability: float) -> Floats:
    """Return a safe noise multiplier for each group at one sampling probability."""
    low, high = extremes(request, probability)  # of all z that anybody needs

    def mechanisms(x: Floats) -> tuple[Floats, Floats]:
        # ε falls with z: the ladder is climbed in −log z, so that ε grows
        return np.exp(-x), np.full(x.shape, probability)

    everyone = Population.of(request)
    ladder = Ladder.between(
        request, everyone, mechanisms, -np.log(high * 1.02), -np.log(low * 0.98)
    )
    return np.exp(-ladder.place(everyone))


def rate_ladder(request: Request, people: Population, multiplier: float) -> Ladder:
    """Return the ladder of log sampling probabilities at one noise multiplier, for `people`."""

    def mechanisms(x: Floats) -> tuple[Floats, Floats]:
        return np.full(x.shape, multiplier), np.exp(x)

    def excess(log_q: float, epsilon: float, delta: float) -> float:
        spent = _spent(request, mechanisms, np.array([log_q]), np.array([delta]))
        return float(np.log(spent[0, 0] / epsilon))

    least = float(people.epsilon.min()) * 0.98, float(people.delta.min())
    most = float(people.epsilon.max()) * 1.02, float(people.delta.max())
    bottom = near_end(lambda log_q: -excess(log_q, *least), safe=LEAST, unsafe=0.0)
    if np.isnan(bottom):
        raise RangeError("sampling probability: below 1e-12 for the strictest budget")
    top = near_end(lambda log_q: excess(log_q, *most), safe=0.0, unsafe=bottom)
    return Ladder.between(request, people, mechanisms, bottom, 0.0 if np.isnan(top) else top)


def near_end(room: Callable[[float], float], *, safe: float, unsafe: float) -> float:
    """Return log q beyond where ε meets a budget, but not far; NaN where `safe` is not beyond."""
    # ε grows about as q, or as log q where it is large.
    return safe_end(room, START, safe, unsafe, slope=1.0, tolerance=0.1, narrow=1e-3)


def extremes(request: Request, probability: float) -> tuple[float, float]:
    """Return noise multipliers at one rate that no group's own lies outside of."""
    # Those of the largest ε with the largest δ, and of the smallest with the smallest.
    groups = request.groups
    epsilon = np.array([request.target.max(), request.target.min()])
    delta = np.array([groups.delta.max(), groups.delta.min()])
    low, high = noise(request, epsilon, delta, probability)
    return float(low), float(high)


def _spent(request: Request, mechanisms: Mechanisms, x: Floats, delta: Floats) -> Floats:
    """Return ε at each x (rows) and δ (columns)."""
    # Equal mechanisms lie side by side, so that one curve answers for all δ.
    z, q = (np.repeat(values, delta.size) for values in mechanisms(x))
    spent = upper_epsilons(
        noise_multiplier=z,
        sampling_probability=q,
        steps=np.full(z.shape, request.steps),
        delta=np.tile(delta, x.size),
        method=request.method,
    )
    return np.maximum(spent.reshape(x.size, delta.size), 1e-12)


@dataclass(frozen=True, slots=True, eq=False)
class Ladder:
    """Mechanisms of one growing parameter x, and where a budget is spent on it."""

    nodes: Floats  # values of x
    deltas: Floats  # a few
    log_epsilon: Floats  # at each node (rows) and δ (columns), growing along both

    @classmethod
    def between(
        cls, request: Request, people: Population, mechanisms: Mechanisms, low: float, high: float
    ) -> Ladder:
        """Return the ladder from x = low to high."""
        nodes = np.linspace(low, high, NODES[request.method])  # between them ε is interpolated
        deltas = _spread(people.delta)
        rows = np.log(_spent(request, mechanisms, nodes, deltas))
        # Bounds may wobble by their precision: made monotone, an ε has one place.
        return cls(nodes, deltas, np.maximum.accumulate(rows, axis=0))

    def estimate(self, people: Population) -> Floats:
        """Return where each budget would be spent, by interpolation in ε and in δ."""
        from scipy.ndimage import map_coordinates

        target = np.log(people.epsilon) - MARGIN  # placed below what is asked
        heights = np.linspace(float(target.min()) - 1e-6, float(target.max()) + 1e-6, FINE)
        places = self._places(heights)
        rows = (target - heights[0]) / (heights[1] - heights[0])
        low, high = _reach(self.deltas[[0, -1]])
        width = (high - low) / max(places.shape[1] - 1, 1) or 1.0
        columns = (_reach(people.delta) - low) / width
        return np.asarray(map_coordinates(places, [rows, columns], order=1, mode="nearest"))

    def _places(self, heights: Floats) -> Floats:
        """Return x at values of log ε (rows) and evenly spread δ (columns)."""
        from scipy.interpolate import CubicSpline, PchipInterpolator

        x = np.linspace(self.nodes[0], self.nodes[-1], max(FINE, 4 * self.nodes.size))
        above = np.minimum(np.searchsorted(self.nodes, x), self.nodes.size - 1)
        jumps = _unlike(np.diff(self.log_epsilon, axis=0, prepend=self.log_epsilon[:1]))
        sharp = self.nodes.size >= 100 or jumps.any()  # a cubic spline would swing there
        log_epsilon = (PchipInterpolator if sharp else CubicSpline)(self.nodes, self.log_epsilon)(x)
        # who would be placed within a jump is placed before it
        log_epsilon = np.where(jumps[above], self.log_epsilon[above], log_epsilon)
        if self.deltas.size > 1:
            reach = _reach(self.deltas)
            between = np.linspace(reach[0], reach[-1], 4 * DELTAS)
            column = np.searchsorted(reach, between)
            jumps = _unlike(np.abs(np.diff(log_epsilon, axis=1)), axis=None)
            filled = PchipInterpolator(reach, log_epsilon, axis=1)(between)
            within = jumps[:, np.maximum(column - 1, 0)]  # the stricter δ's ε is taken there
            log_epsilon = np.where(within, log_epsilon[:, column], filled)
        log_epsilon = np.maximum.accumulate(log_epsilon, axis=0)
        return np.array([np.interp(heights, column, x) for column in log_epsilon.T]).T

    def place(self, people: Population) -> Floats:
        """Return each budget's rung: the highest that is not above its estimate."""
        rungs = self._rungs()
        index = np.searchsorted(rungs, self.estimate(people), side="right") - 1
        return np.asarray(rungs[np.maximum(index, 0)])

    def _rungs(self) -> Floats:
        """Return values of x between which log ε moves by at most STEP, at any δ."""
        # The steepest δ decides each rung: all others then move by less.
        fine = np.linspace(self.nodes[0], self.nodes[-1], 4 * FINE)
        height = np.zeros(fine.size)
        for j in range(self.deltas.size):
            rise = np.diff(np.interp(fine, self.nodes, self.log_epsilon[:, j]))
            height[1:] = np.maximum(height[1:], np.maximum(rise, 1e-9))
        climbed = np.cumsum(height)
        count = int(np.ceil(climbed[-1] / STEP)) + 1
        return np.interp(np.linspace(0, climbed[-1], count), climbed, fine)


def _unlike(rise: Floats, axis: int | None = 0) -> Mask:
    """Return which rises are jumps beside the others of their column, or (None) beside all."""
    return np.asarray(rise > np.maximum(TALL, UNLIKE * np.median(rise, axis=axis)))


def _reach(delta: Floats) -> Floats:
    """Return √(2·log(1/δ)), in which ε is nearly linear."""
    return np.asarray(np.sqrt(-2 * np.log(delta)))


def _spread(delta: Floats) -> Floats:
    """Return δ's that span those asked."""
    low, high = float(delta.min()), float(delta.max())
    if high <= low * (1 + NEARLY):
        return np.array([low])
    start, end = _reach(np.array([high, low]))
    return np.asarray(np.exp(-(np.linspace(start, end, DELTAS) ** 2) / 2))
