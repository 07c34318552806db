"""Many distinct budgets: everyone's parameter on a ladder of levels, close enough to lose little.

With more distinct budgets than can each have a curve of its own, parameters are taken from a
ladder on which ε moves by at most 0.34 % from rung to rung. Where a record stands is found by
interpolation, a margin below its budget. Since all records on a rung share one mechanism, the
exact curves of some hundred rungs then recompute every record's ε when the plan is verified; if
any exceeds its budget the plan is made anew with a larger margin (see `assign`). So interpolation
decides how much is spent, never whether a promise holds.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from apiece.accounting import privacy_curve
from apiece.assignment.request import Floats, Request
from apiece.assignment.solve import MANY, noise
from apiece.errors import RangeError
from apiece.mechanisms import Gaussian, Mechanism, Repeated, Sampled

STEP = 3.4e-3  # of log ε between rungs
NODES = 24
DELTAS = 3


def many(request: Request) -> bool:
    """Whether there are too many distinct budgets to solve for each."""
    return len(request.groups) > MANY


def noise_levels(request: Request, probability: float) -> Floats:
    """Return a safe noise multiplier for each group at one sampling probability."""
    low, high = extremes(request, probability)

    def mechanism(log_z: float) -> Mechanism:
        return run(float(np.exp(log_z)), probability, request.steps)

    # ε falls with z: the ladder is climbed in −log z, so that ε grows
    ladder = Ladder(request, lambda x: mechanism(-x), -np.log(high * 1.02), -np.log(low * 0.98))
    return np.exp(-ladder.place())


def rate_levels(request: Request, multiplier: float, *, on_rungs: bool) -> Floats:
    """Return a sampling probability for each group at one noise multiplier.

    on_rungs: as a plan needs them; else between rungs too, to search with.
    """

    def mechanism(log_q: float) -> Mechanism:
        return run(multiplier, float(np.exp(log_q)), request.steps)

    bottom, top = _lowest_rate(request, mechanism), _highest_rate(request, mechanism)
    ladder = Ladder(request, mechanism, bottom, top)
    return np.exp(ladder.place() if on_rungs else ladder.estimate())


def run(z: float, q: float, steps: int) -> Mechanism:
    """Return `steps` updates with one noise multiplier and rate."""
    return Repeated(Gaussian(z) if q >= 1 else Sampled(Gaussian(z), q), steps)


def extremes(request: Request, probability: float) -> tuple[float, float]:
    """Return noise multipliers at one rate that no group's own lies outside of.

    Those of the largest ε with the largest δ, and of the smallest with the smallest.
    """
    groups = request.groups
    epsilon = np.array([groups.epsilon.max(), groups.epsilon.min()])
    delta = np.array([groups.delta.max(), groups.delta.min()])
    low, high = noise(request, epsilon, delta, probability)
    return float(low), float(high)


def _lowest_rate(request: Request, mechanism: Callable[[float], Mechanism]) -> float:
    """Return log q at which every budget is kept, by steps of a factor 4."""
    epsilon, delta = request.groups.epsilon, request.groups.delta
    log_q = np.log(request.mean_probability)
    while True:
        curve = privacy_curve(mechanism(log_q), method=request.method)
        if float(curve.epsilon(float(delta.min())).upper) <= epsilon.min() * 0.98:
            return float(log_q)
        log_q -= np.log(1.5)
        if log_q < np.log(1e-12):
            raise RangeError("sampling probability: below 1e-12 for the strictest budget")


def _highest_rate(request: Request, mechanism: Callable[[float], Mechanism]) -> float:
    """Return log q at which every budget is exceeded, or 0, by steps of a factor 1.5."""
    epsilon, delta = float(request.groups.epsilon.max()), float(request.groups.delta.max())
    log_q = float(np.log(request.mean_probability))
    while log_q < 0:
        curve = privacy_curve(mechanism(log_q), method=request.method)
        if float(curve.epsilon(delta).upper) >= epsilon * 1.02:
            return log_q
        log_q += float(np.log(1.5))
    return 0.0


class Ladder:
    """Mechanisms of one growing parameter x, and where each group may stand on it.

    mechanism: of a value of x, with ε growing in x; low, high: the ends of x.
    """

    def __init__(
        self, request: Request, mechanism: Callable[[float], Mechanism], low: float, high: float
    ) -> None:
        self.request, self.mechanism = request, mechanism
        self.epsilon, self.delta = request.groups.epsilon, request.groups.delta
        self.nodes = np.linspace(low, high, NODES)
        self.deltas = _spread(self.delta)
        rows = [np.log(self._spent(x, self.deltas)) for x in self.nodes]
        self.log_epsilon = np.maximum.accumulate(np.array(rows), axis=0)

    def _spent(self, x: float, delta: Floats) -> Floats:
        curve = privacy_curve(self.mechanism(float(x)), method=self.request.method)
        return np.asarray(np.maximum(curve.epsilon(delta).upper, 1e-12))

    def estimate(self) -> Floats:
        """Return where each group's ε would be spent, by interpolation in ε and in δ."""
        from scipy.interpolate import PchipInterpolator

        target = np.log(self.epsilon) - self.request.margin
        reach = _reach(self.deltas)
        places = np.empty((self.deltas.size, target.size))
        for j in range(self.deltas.size):
            rises = np.append(True, np.diff(self.log_epsilon[:, j]) > 1e-9)
            curve = PchipInterpolator(self.log_epsilon[rises, j], self.nodes[rises])
            ends = self.log_epsilon[rises, j][[0, -1]]
            places[j] = curve(np.clip(target, *ends))
        if self.deltas.size == 1:
            return np.asarray(places[0])
        weights = _lagrange(reach, _reach(self.delta))
        found = (weights * places).sum(axis=0)
        return np.asarray(np.clip(found, self.nodes[0], self.nodes[-1]))

    def place(self) -> Floats:
        """Return each group's rung: the highest that is not above its estimate."""
        rungs = self._rungs()
        index = np.searchsorted(rungs, self.estimate(), side="right") - 1
        return np.asarray(rungs[np.maximum(index, 0)])

    def _rungs(self) -> Floats:
        """Return values of x between which log ε moves by at most STEP, at any δ."""
        fine = np.linspace(self.nodes[0], self.nodes[-1], 40 * NODES)
        height = np.zeros(fine.size)
        for j in range(self.deltas.size):
            rise = np.diff(np.interp(fine, self.nodes, self.log_epsilon[:, j]))
            height[1:] = np.maximum(height[1:], np.maximum(rise, 1e-9))
        climbed = np.cumsum(height)
        count = int(np.ceil(climbed[-1] / STEP)) + 1
        return np.interp(np.linspace(0, climbed[-1], count), climbed, fine)


def _reach(delta: Floats) -> Floats:
    """Return √(2·log(1/δ)), in which ε is nearly linear."""
    return np.asarray(np.sqrt(-2 * np.log(delta)))


def _spread(delta: Floats) -> Floats:
    """Return up to three δ's that span those asked."""
    low, high = float(delta.min()), float(delta.max())
    if low == high:
        return np.array([low])
    start, end = _reach(np.array([low, high]))
    return np.asarray(np.exp(-(np.linspace(start, end, DELTAS) ** 2) / 2))


def _lagrange(nodes: Floats, at: Floats) -> Floats:
    """Return the weights of each node in the interpolating polynomial at each point."""
    weights = np.ones((nodes.size, at.size))
    for j in range(nodes.size):
        for k in range(nodes.size):
            if k != j:
                weights[j] *= (at - nodes[k]) / (nodes[j] - nodes[k])
    return weights
