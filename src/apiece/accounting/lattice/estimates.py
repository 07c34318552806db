"""A coarse view of a composition, in a few hundred cells a pair: estimates to choose settings by.

Nothing here affects soundness; a poor estimate only widens the bounds.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from apiece._types import Floats
from apiece.accounting.lattice.pairs import Pair, Window
from apiece.accounting.truncation import Points, log_conversion

Leaves = tuple[tuple[Pair, int], ...]
_CELLS = 384
_NEAR_BEST = 0.7  # accepted loss in the log of the round-off error


class CoarsePair(NamedTuple):
    """A pair in few cells, and its lowest log-ratio."""

    cells: Points
    floor: float

    @property
    def largest(self) -> float:
        """The largest absolute log-ratio."""
        return float(np.abs(self.cells.ratio).max())

    def tilted(self, tilt: float) -> tuple[Floats, Floats]:
        """Return each cell's log-ratio, and its share of the law tilted by λ."""
        exponent = self.cells.tilted(np.array([tilt]))[0, 0]
        weight = np.exp(exponent - exponent.max())
        return self.cells.ratio[0], weight / weight.sum()


def view(leaves: Leaves, windows: tuple[Window, ...]) -> list[CoarsePair]:
    """Return each pair of a composition, cut off at its window, in a few hundred cells."""
    return [_view(*leaf, window) for leaf, window in zip(leaves, windows, strict=True)]


def _view(pair: Pair, times: int, window: Window) -> CoarsePair:
    edges = np.linspace(window.low, window.high, _CELLS + 1)
    p1, q0 = pair.masses(edges)
    for atom in pair.atoms:
        if atom.rho <= window.high:
            cell = -1 if atom.rho > edges[-2] else 0
            p1[cell], q0[cell] = p1[cell] + atom.p, q0[cell] + atom.q
    keep = (q0 > 1e-290) & (p1 > 1e-290)
    p1, q0, q = p1[keep], q0[keep], pair.probability
    ratio = np.log1p(q * (p1 / q0 - 1)) if q < 1 else np.log(p1 / q0)
    floor = math.log1p(q * math.expm1(window.low)) if q < 1 else window.low
    width = np.gradient(ratio) if ratio.size > 1 else np.zeros_like(ratio)
    many = np.array([[float(times)]])
    return CoarsePair(Points.of(ratio[None], width[None], np.log(q0)[None], many), floor)


def cumulant(coarse: Sequence[CoarsePair], tilts: Floats) -> Floats:
    """Return log E_Q[r^λ] of the composition at each λ."""
    return np.asarray(sum(part.cells.log_moments(tilts)[0] for part in coarse))


def _search(objective: Callable[[Floats], Floats]) -> tuple[float, float]:
    """Return the λ > 1 that minimises `objective`, a function of λ − 1, and its least value."""
    excess = np.geomspace(1e-5, 1e7, 41)
    for width in (0.3, 0.05):
        best = excess[int(np.argmin(objective(excess)))]
        excess = best * 10.0 ** np.linspace(-width, width, 11)
    values = objective(excess)
    return 1 + float(excess[int(np.argmin(values))]), float(values.min())


def renyi_tilt(
    coarse: Sequence[CoarsePair], log_delta: float, *, reverse: bool
) -> tuple[float, float]:
    """Return the order λ of the best Rényi conversion at δ, and its ε."""

    def epsilon(excess: Floats) -> Floats:
        moment = cumulant(coarse, -excess if reverse else 1 + excess)
        return np.asarray((moment + log_conversion(excess) - log_delta) / excess)

    return _search(epsilon)


def quietest_tilt(
    coarse: Sequence[CoarsePair], epsilons: Floats, deltas: Floats
) -> tuple[float, float]:
    """Return the λ at which an error in the tilted masses matters least to δ(ε), and how much.

    The second is the log of its largest effect in units of δ, over all pairs of ε and δ.
    """

    def error(excess: Floats) -> Floats:
        reach = (excess[:, None] * epsilons + np.log(deltas)).min(axis=1)
        return np.asarray(cumulant(coarse, 1 + excess) - reach - np.log(excess * (1 + excess)))

    # The least tilt that is nearly as good: with heavy tails a larger one takes the mass far away.
    best, least = _search(error)
    excess = np.geomspace(1e-6, 1.0, 121) * (best - 1)
    good = int(np.argmax(error(excess) <= least + _NEAR_BEST))
    return 1 + float(excess[good]), least + _NEAR_BEST


def spread(coarse: Sequence[CoarsePair], tilt: float) -> float:
    """Return the standard deviation of the tilted composition."""
    variance = 0.0
    for part in coarse:
        ratio, weight = part.tilted(tilt)
        mean = float(np.einsum("i,i->", weight, ratio))  # BLAS's threads cost more
        times = float(part.cells.times[0, 0])
        variance += times * float(np.einsum("i,i->", weight, (ratio - mean) ** 2))
    return math.sqrt(variance)


def gaps(coarse: Sequence[CoarsePair], tilt: float, steps: Floats) -> Floats:
    """Estimate upper − lower in ε for lattice steps: λ/2 times the variance that they differ by.

    tilt: λ in the remove direction, 1 − λ in the other one.

    Within a cell of a smooth density both bounds together move the variance by h²/4; near the
    lowest ratio, which is a lattice point, by no more than h·(distance from it).
    """
    total = np.zeros(steps.size)
    for part in coarse:
        ratio, weight = part.tilted(tilt)
        distance = np.maximum(ratio - part.floor, 0.0)
        moved = np.minimum(steps[:, None] / 4, distance) * steps[:, None]
        total += part.cells.times[0, 0] * np.einsum("ij,j->i", moved, weight)
    return total * max(tilt, 1 - tilt) / 2
