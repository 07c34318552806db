"""One step's dominating pair on a lattice of log-ratios, from above and from below.

On a lattice ℓ_k = offset + k·h a pair is one vector: Q-masses q_k, with P-masses e^{ℓ_k}·q_k.
Everything rests on two facts about the likelihood ratio r under Q: spreading r without moving its
mean gives a dominating pair, contracting r (a post-processing) a dominated one; both survive
composition and both directions of add/remove.

Above: each cell's mass goes to the two ends of the cell, keeping its P- and its Q-mass (connect
the dots: Doroshenko, Ghazi, Kamath, Kumar, Manurangsi 2022). Outside the window the two sides are
told apart outright. The variance of the loss grows by at most h²/4, typically h²/6.

Below: the profile H(t) = sup_A P(A) − t·Q(A) is replaced by the polygon with vertices at the
lattice whose k-th side lies under the tangent of H at a point t_k of the k-th cell, namely
y_k = min(tangent_{k−1}, tangent_k) at e^{ℓ_k}. It is convex and below H, so it is the profile of a
dominated pair. Typically the variance shrinks by h²/12.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from apiece.accounting.grid import UNIT
from apiece.accounting.pairs import Floats, LaplacePair, Pair, RunPair, Window


class Jump(NamedTuple):
    """P- and Q-mass of log-ratios above `loss`, which are on no lattice."""

    p: float
    q: float
    loss: float


@dataclass(frozen=True, slots=True, eq=False)
class Lattice:
    """Q-masses at log-ratios offset + k·step, and the P- and Q-mass told apart outright.

    rounding bounds the relative error of each cell's P- and Q-mass, and of those of `jump`.
    """

    step: float
    offset: float
    mass: Floats
    outside_p: float
    outside_q: float
    rounding: float
    jump: Jump


class _Cells(NamedTuple):
    rho: Floats
    mass: Floats
    share: Floats
    """Where the mean of the ratio lies in each cell, from 0 at its left to 1 at its right end."""


def discretise(pair: Pair, window: Window, step: float) -> tuple[Lattice, Lattice]:
    """Return a dominated and a dominating lattice pair of `pair` cut off at `window`."""
    if isinstance(pair, RunPair):
        under, over = pair.below, pair.above
        whole = under.window(0.0)
        lower = discretise(under, whole._replace(high=min(whole.high, window.high)), step)[0]
        return lower, discretise(over, window, step)[1]
    offset = log_ratio(window.low, pair.probability)
    cells = _cells(pair, window, step, offset)
    above = _spread(pair, window, step, offset, cells)
    return _contract(pair, window, step, cells), above


def dominating(pair: Pair, window: Window, step: float) -> Lattice:
    """Return the dominating one of `discretise` alone."""
    offset = log_ratio(window.low, pair.probability)
    return _spread(pair, window, step, offset, _cells(pair, window, step, offset))


def cut(pair: Pair, window: Window, loss: float) -> Window:
    """Return the window with all log-ratios of the pair above `loss` made jumps."""
    offset = log_ratio(window.low, pair.probability)
    if loss <= offset or loss >= log_ratio(window.high, pair.probability):
        return window
    high = float(_inner(window.low, np.array([loss - offset]), pair.probability)[0])
    return window._replace(high=high) if window.low < high < window.high else window


def _jump(pair: Pair, window: Window) -> Jump:
    if window.top == window.high:
        return Jump(0.0, 0.0, math.inf)
    p1, q0 = pair.masses(np.array([np.nextafter(window.high, np.inf), window.top]))
    q = pair.probability
    p = (1 - q) * q0[0] + q * p1[0]
    return Jump(float(p), float(q0[0]), log_ratio(window.high, q))


def log_ratio(rho: float, probability: float) -> float:
    """Return log(1 − q + q·e^ρ)."""
    if probability == 1:
        return rho
    if rho < 1:
        return math.log1p(probability * math.expm1(rho))
    return float(np.logaddexp(math.log1p(-probability), math.log(probability) + rho))


def _inner(rho: float, offsets: npt.NDArray[np.floating[Any]], probability: float) -> Floats:
    """Return the ρ whose log-ratios lie `offsets` ≥ 0 above that of `rho`."""
    if probability == 1:
        return np.asarray(rho + offsets, dtype=np.float64)
    scale = log_ratio(rho, probability) - math.log(probability)
    with np.errstate(divide="ignore"):
        grow = np.where(offsets < 30, np.log(np.expm1(np.minimum(offsets, 30))), offsets)
    return np.asarray(np.logaddexp(rho, scale + grow))


def _cells(pair: Pair, window: Window, step: float, offset: float) -> _Cells:
    q = pair.probability
    reach = log_ratio(window.high, q) - offset
    count = max(math.ceil(reach / step * (1 + 1e-12) - 1e-9), 1)
    offsets = step * np.arange(count + 1)
    rho = _inner(window.low, offsets, q)
    p1, q0 = pair.masses(np.minimum(rho, window.high) if window.high < window.top else rho)
    # The mean lies at a share s with s·q0·(r_{k+1} − r_k) = p − r_k·q0 = q·(p1 − e^ρ·q0).
    width = np.exp(offset + offsets[:-1]) * math.expm1(step)
    excess = q * (p1 - np.exp(rho[:-1]) * q0)
    share = np.full(count, 0.5)
    np.divide(excess, q0 * width, out=share, where=q0 * width > 0)
    return _Cells(rho, q0, np.clip(share, 0.0, 1.0))


def _spread(pair: Pair, window: Window, step: float, offset: float, cells: _Cells) -> Lattice:
    """Put each cell's mass on its two ends, keeping its mean."""
    mass = np.zeros(cells.mass.size + 1)
    high = cells.mass * cells.share
    mass[:-1] = cells.mass - high
    mass[1:] += high
    rounding = pair.rounding(window) + 16 * UNIT
    jump = _jump(pair, window)
    return Lattice(step, offset, mass, window.outside_p, window.outside_q, rounding, jump)


def _contract(pair: Pair, window: Window, step: float, cells: _Cells) -> Lattice:
    """Gather the mass around each lattice point, its mean exactly there.

    The first lattice point is the mean of the first cluster. The tangent points mirror the means
    of the cells, which leaves no imbalance where the density is exponential or flat.
    """
    q = pair.probability
    fits = _fits(pair, window, step)
    origin, touched = _first_cluster(pair, window, step, cells)
    if fits:
        origin, touched = window.low, float(np.nextafter(window.low, np.inf))
    shift = (log_ratio(origin, q) - log_ratio(window.low, q)) / step
    count = cells.mass.size - math.floor(shift) + fits
    steps = step * np.arange(count)
    share = np.interp(shift + np.arange(count), np.arange(cells.share.size), cells.share)
    nodes, edges = _inner(origin, steps, q), np.empty(2 * count)
    edges[0], edges[2::2] = window.low, nodes[1:]
    edges[1::2] = _inner(origin, steps + _mirror(share, step), q)
    edges[1] = touched
    if fits:
        edges[-3] = np.nextafter(min(window.high, edges[-2]), -np.inf)
    edges[-1] = max(edges[-1], window.high)
    edges = np.maximum.accumulate(edges)
    if window.high < window.top:
        edges = np.minimum(edges, window.high)
    p, q0 = pair.masses(edges)
    offset = log_ratio(origin, q)
    width = np.exp(offset + steps) * (math.expm1(step) / q)
    mass = _balance(_Halves(p, q0, np.exp(nodes)), width)
    jump, rounding = _jump(pair, window), pair.rounding(window) + 128 * UNIT
    return Lattice(step, offset, mass, 0.0, 0.0, rounding, jump)


def aligned(pair: Pair, window: Window, step: float) -> float:
    """Return the largest step up to `step` that divides the losses of a pair with atoms at both
    ends, so that both are lattice points; for other pairs, `step`."""
    if not isinstance(pair, LaplacePair):
        return step
    span = log_ratio(window.high, pair.probability) - log_ratio(window.low, pair.probability)
    return span / math.ceil(span / step)


def _fits(pair: Pair, window: Window, step: float) -> bool:
    return (
        isinstance(pair, LaplacePair)
        and window.high == window.top
        and abs(aligned(pair, window, step * (1 + 1e-9)) / step - 1) < 1e-8
    )


def _mirror(share: npt.NDArray[np.floating[Any]], step: float) -> Floats:
    """Return how far above its cell's lower end the mirrored mean lies, in log-ratio."""
    return np.asarray(np.log1p((1 - share) * math.expm1(step)), dtype=np.float64)


def _first_cluster(pair: Pair, window: Window, step: float, cells: _Cells) -> tuple[float, float]:
    """Return the mean of the first cluster, which becomes a lattice point, and its upper end.

    Where the mass rises steeply from cell to cell, all that is small is taken into it: a cluster
    can borrow mass only from neighbours that are not much lighter.
    """
    rising = (cells.mass[1:] > 4 * cells.mass[:-1]) | (cells.mass[:-1] == 0)
    begin = int(np.argmin(np.append(rising, False)))
    floor, q = log_ratio(window.low, pair.probability), pair.probability
    end = _inner(window.low, step * begin + _mirror(cells.share[begin : begin + 1], step), q)[0]
    for repeat in (3, 2, 1, 0):
        p1, q0 = pair.masses(np.array([window.low, end]))
        mean = math.log(p1[0] / q0[0]) if q0[0] > 0 and p1[0] > 0 else window.low
        mean = min(max(mean, window.low), end)
        place = (log_ratio(mean, q) - floor) / step
        share = np.interp([place], np.arange(cells.share.size), cells.share)
        if repeat:
            end = max(_inner(mean, _mirror(share, step), q)[0], mean)
    return mean, end


class _Halves:
    """Clusters of mass around nodes, each in a part below and a part above its node."""

    def __init__(self, p: Floats, q: Floats, ratio: Floats) -> None:
        below_p, below_q = np.append(0.0, p[1::2]), np.append(0.0, q[1::2])
        self.below_q, self.above_q = below_q, q[0::2]
        self.below = np.maximum(ratio * below_q - below_p, 0.0)
        self.above = np.maximum(p[0::2] - ratio * q[0::2], 0.0)
        self.below[0] = self.above[0] = 0.0
        tiny = np.abs(self.below - self.above) <= 64 * UNIT * (p[0::2] + below_p)
        self.deficit = np.where(tiny, 0.0, self.below - self.above)

    def trimmed(self, where: npt.NDArray[np.bool_]) -> None:
        """Drop, in the clusters `where`, just so much mass that the mean is at the node."""
        for side, other, mass in (
            (self.below, self.above, self.below_q),
            (self.above, self.below, self.above_q),
        ):
            cut = where & (side > other) & (self.deficit != 0)
            mass[cut] *= other[cut] / side[cut]
        self.deficit[where] = 0.0


def _balance(halves: _Halves, width: Floats) -> Floats:
    """Return the kinks of the polygon: cluster masses after neighbours lend what means lack.

    A cluster whose mean is too low takes mass from the node above, one whose mean is too high from
    the node below, so that the total P-mass is unchanged. Where the lender has too little, the
    polygon is not convex, and its convex hull is taken. At the ends, where that has no neighbour,
    the borrower is trimmed instead.
    """
    ends = np.zeros(width.size, dtype=bool)
    ends[-1] = halves.deficit[-1] > 0
    for _ in range(50):
        halves.trimmed(ends)
        up = np.maximum(halves.deficit, 0.0) / width
        down = np.append(0.0, np.maximum(-halves.deficit[1:], 0.0) / width[:-1])
        mass = halves.below_q + halves.above_q + up + down
        mass[1:] -= up[:-1]
        mass[:-1] -= down[1:]
        stuck = _hull(mass, width)
        if stuck is None:
            return np.asarray(mass)
        ends[stuck] = True
        ends |= np.convolve(mass < 0, np.ones(3), "same") > 0
    halves.trimmed(np.ones_like(ends))
    return np.asarray(halves.below_q + halves.above_q)


def _hull(mass: Floats, width: Floats) -> slice | None:
    """Spread negative kinks onto their neighbours in place: the polygon's lower convex hull.

    Where an end would have to move, return it; `mass` is then of no use.
    """
    if not (mass < 0).any():
        return None
    place = np.append(0.0, np.cumsum(width))
    alive = np.ones(mass.size, dtype=bool)
    todo = [int(k) for k in np.flatnonzero(mass < 0)]
    while todo:
        node = todo.pop()
        if not (alive[node] and mass[node] < 0):
            continue
        left, right = node - 1, node + 1
        while left >= 0 and not alive[left]:
            left -= 1
        while right < mass.size and not alive[right]:
            right += 1
        if left < 0 or right == mass.size:
            return slice(2) if left < 0 else slice(-2, None)
        share = (place[node] - place[left]) / (place[right] - place[left])
        mass[right] += share * mass[node]
        mass[left] += (1 - share) * mass[node]
        mass[node], alive[node] = 0.0, False
        todo += [left, right]
    return None
