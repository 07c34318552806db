"""A pair on a lattice of log-ratios, from above and from below: one vector each.

All rests on two facts about the likelihood ratio r under Q: spreading r without moving its mean
gives a dominating pair, contracting r (a post-processing) a dominated one; both survive composition
and both directions of add/remove.

*Dominating.* The mass of each cell, and each atom, goes to the two ends of the cell, keeping its P-
and its Q-mass (connect the dots: Doroshenko, Ghazi, Kamath, Kumar, Manurangsi 2022). Outside the
window the worlds are told apart outright. The variance of the loss grows by at most h²/4.

*Dominated.* The profile H(t) = sup_A P(A) − t·Q(A) is replaced by the polygon with vertices at the
lattice whose k-th side lies under the tangent of H at a point t_k of the k-th cell, namely
y_k = min(tangent_{k−1}, tangent_k) at e^{ℓ_k}. It is convex and below H, so it is the profile of a
dominated pair; typically the variance shrinks by h²/12. In terms of masses: what lies between
consecutive tangent points is a cluster, which is gathered at its lattice point, and neighbours lend
what its mean lacks. Atoms at lattice points stay there.
"""

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from apiece._types import Floats, Reals
from apiece.accounting.exact import log_ratio
from apiece.accounting.lattice.pairs import AtomsPair, Pair, Window
from apiece.numerics.rounding import UNIT


class Jump(NamedTuple):
    """P- and Q-mass of log-ratios above `loss`, which are on no lattice."""

    p: float
    q: float
    loss: float


@dataclass(frozen=True, slots=True, eq=False)
class Lattice:
    """Q-masses at log-ratios offset + k·step, and the P- and Q-mass told apart outright."""

    # rounding bounds the relative error of each cell's P- and Q-mass, and of those of `jump`.

    step: float
    offset: float
    mass: Floats
    outside_p: float
    outside_q: float
    rounding: float
    jump: Jump


_ROUNDED = 16 * UNIT
_LEAST_CELLS = 4  # cells between atoms, so that what lies between has a lattice point of its own


class Cells(NamedTuple):
    """A pair, but for its atoms, in the cells of a lattice."""

    rho: Floats
    mass: Floats
    share: Floats
    """Where the mean of the ratio lies in each cell, from 0 at its left to 1 at its right end."""


def cut(pair: Pair, window: Window, loss: float) -> Window:
    """Return the window with all log-ratios of the pair above `loss` made jumps."""
    offset = log_ratio(window.low, pair.probability)
    if loss <= offset or loss >= log_ratio(window.high, pair.probability):
        return window
    high = float(inner(window.low, np.array([loss - offset]), pair.probability)[0])
    return window._replace(high=high) if window.low < high < window.high else window


def aligned(pair: Pair, window: Window, step: float) -> float:
    """Return about the largest step up to `step` that puts both atoms of a pair on a lattice."""
    # For pairs without atoms, `step`.
    if not pair.atoms:
        return step
    start = lowest_mean(pair, window, lowest_end(pair, window, step))
    span = log_ratio(window.high, pair.probability) - log_ratio(start, pair.probability)
    return span / max(math.ceil(span / step), _LEAST_CELLS) if span > 0 else step


def lowest_end(pair: Pair, window: Window, step: float) -> float:
    """Return up to which ρ mass is best gathered with the lowest atom of a pair."""
    # The atom alone is, unless most of what lies beside it is much lower than the next cells.
    edges = np.minimum(inner(window.low, step * np.arange(3), pair.probability), window.high)
    first, second = pair.masses(edges)[1]
    return float(edges[1]) if first > 4 * second else window.low


def lowest_mean(pair: Pair, window: Window, end: float) -> float:
    """Return the mean ratio, as a ρ, of all between the lower end of a window and `end`."""
    p1, q0 = pair.masses(np.array([window.low, end]))
    lowest = [atom for atom in pair.atoms if atom.rho <= window.low]
    p, q = p1[0] + sum(atom.p for atom in lowest), q0[0] + sum(atom.q for atom in lowest)
    return min(max(math.log(p / q) if p > 0 and q > 0 else window.low, window.low), end)


def jump(pair: Pair, window: Window) -> Jump:
    """Return what of a pair lies above the window, atoms included."""
    if window.top == window.high:
        return Jump(0.0, 0.0, math.inf)
    p1, q0 = pair.masses(np.array([np.nextafter(window.high, np.inf), window.top]))
    above = [atom for atom in pair.atoms if atom.rho > window.high]
    p_mass = float(p1[0]) + sum(atom.p for atom in above)
    q_mass = float(q0[0]) + sum(atom.q for atom in above)
    q = pair.probability
    return Jump((1 - q) * q_mass + q * p_mass, q_mass, log_ratio(window.high, q))


def inner(rho: float, offsets: Reals, probability: float) -> Floats:
    """Return the ρ whose log-ratios lie `offsets` ≥ 0 above that of `rho`."""
    if probability == 1:
        return np.asarray(rho + offsets, dtype=np.float64)
    scale = log_ratio(rho, probability) - math.log(probability)
    with np.errstate(divide="ignore"):
        grow = np.where(offsets < 30, np.log(np.expm1(np.minimum(offsets, 30))), offsets)
    return np.asarray(np.logaddexp(rho, scale + grow))


def cells(pair: Pair, window: Window, step: float) -> Cells:
    """Return the masses, but for atoms, of cells that cover the window from its lower end on."""
    q = pair.probability
    offset = log_ratio(window.low, q)
    count = max(math.ceil((log_ratio(window.high, q) - offset) / step * (1 - _ROUNDED)), 1)
    offsets = step * np.arange(count + 1)
    rho = inner(window.low, offsets, q)
    rho[-1] = max(rho[-1], window.high)  # rounding must not leave the window's end outside
    p1, q0 = pair.masses(np.minimum(rho, window.high) if window.high < window.top else rho)
    # The mean lies at a share s with s·q0·(r_{k+1} − r_k) = p − r_k·q0 = q·(p1 − e^ρ·q0).
    width = np.exp(offset + offsets[:-1]) * math.expm1(step)
    excess = q * (p1 - np.exp(rho[:-1]) * q0)
    share = np.full(count, 0.5)
    np.divide(excess, q0 * width, out=share, where=q0 * width > 0)
    return Cells(rho, q0, np.clip(share, 0.0, 1.0))


def dominating(pair: Pair, window: Window, step: float, parts: Cells) -> Lattice:
    """Return the dominating pair: each cell's mass, and each atom, on its two ends, mean kept."""
    offset = log_ratio(window.low, pair.probability)
    mass = np.zeros(parts.mass.size + 1)
    high = parts.mass * parts.share
    mass[:-1] = parts.mass - high
    mass[1:] += high
    for atom in pair.atoms:
        if atom.rho <= window.high:
            beyond = log_ratio(atom.rho, pair.probability) - offset
            cell = min(max(math.floor(beyond / step), 0), parts.mass.size - 1)
            share = min(max(math.expm1(beyond - cell * step) / math.expm1(step), 0.0), 1.0)
            mass[cell] += atom.q * (1 - share)
            mass[cell + 1] += atom.q * share
    rounding = pair.rounding(window) + 16 * UNIT
    rare = jump(pair, window)
    return Lattice(step, offset, mass, window.outside_p, window.outside_q, rounding, rare)


def discretise(pair: Pair, window: Window, step: float) -> tuple[Lattice, Lattice]:
    """Return a dominated and a dominating lattice pair of `pair` cut off at `window`."""
    parts = cells(pair, window, step)
    above = dominating(pair, window, step, parts)
    if pair.below is None:
        return dominated(pair, window, step, parts), above
    below = pair.below
    if isinstance(below, AtomsPair):  # its atoms lie elsewhere
        every = below.window(0.0)
        window = every._replace(high=min(every.high, window.high))
    return dominated(below, window, step, cells(below, window, step)), above


def dominated(pair: Pair, window: Window, step: float, parts: Cells) -> Lattice:
    """Gather the mass around each lattice point, its mean exactly there."""
    # The first lattice point is the mean of the first cluster; where there are atoms, such that the
    # topmost one is a lattice point too. The tangent points mirror the means of the cells, which
    # leaves no imbalance where the density is exponential or flat.
    q = pair.probability
    if pair.atoms:
        origin, touched, last = _between_atoms(pair, window, step)
    else:
        origin, touched, last = *_first_cluster(pair, window, step, parts), None
    shift = (log_ratio(origin, q) - log_ratio(window.low, q)) / step
    count = max(parts.mass.size - math.floor(shift), 2) if last is None else last + 1
    steps = step * np.arange(count)
    share = np.interp(shift + np.arange(count), np.arange(parts.share.size), parts.share)
    nodes, edges = inner(origin, steps, q), np.empty(2 * count)
    edges[0], edges[2::2] = window.low, nodes[1:]
    edges[1::2] = inner(origin, steps + _mirror(share, step), q)
    edges[1] = touched
    if last is not None:
        edges[-3] = window.high  # the topmost cluster is the atom alone
    edges[-1] = max(edges[-1], window.high)
    edges = np.maximum.accumulate(edges)
    if window.high < window.top:
        edges = np.minimum(edges, window.high)
    p, q0 = pair.masses(edges)
    held = np.zeros(count)
    for atom in pair.atoms:
        if atom.rho <= window.low or (last is not None and atom.rho <= window.high):
            held[0 if atom.rho <= window.low else -1] += atom.q
        elif atom.rho <= window.high:
            half = -1 if atom.rho > nodes[-1] else -2
            p[half], q0[half] = p[half] + atom.p, q0[half] + atom.q
    width = np.exp(log_ratio(origin, q) + steps) * (math.expm1(step) / q)
    mass = _balance(_Halves(p, q0, np.exp(nodes), held), width)
    rare, rounding = jump(pair, window), pair.rounding(window) + 128 * UNIT
    return Lattice(step, log_ratio(origin, q), mass, 0.0, 0.0, rounding, rare)


def _between_atoms(pair: Pair, window: Window, step: float) -> tuple[float, float, int | None]:
    """Return the mean of the first cluster, its upper end, and the number of the topmost point."""
    # The cluster is as wide as it takes for the topmost atom to be a lattice point. Where no width
    # does, or that atom is not in the window, there is no number.
    q = pair.probability
    start, top = log_ratio(window.low, q), log_ratio(window.high, q)
    touched = lowest_end(pair, window, step)
    origin = lowest_mean(pair, window, touched)
    near, rounded = (top - log_ratio(origin, q)) / step, 16 * UNIT * (top - start)
    for last in (round(near), math.floor(near)):
        wanted = top - last * step - start
        goal = float(inner(window.low, np.array([max(wanted, 0.0)]), q)[0])
        if window.high == window.top and last >= 2 and wanted >= -rounded:
            cluster = _gathered(pair, window, goal)
            if cluster is not None:
                return *cluster, last
    return origin, touched, None


def _gathered(pair: Pair, window: Window, goal: float) -> tuple[float, float] | None:
    """Return a mean near `goal` of all up to some ρ, and that ρ; None where there is none."""
    low, high = window.low, window.high
    if lowest_mean(pair, window, high) < goal:
        return None
    while True:
        middle = (low + high) / 2
        mean = lowest_mean(pair, window, middle)
        if abs(mean - goal) <= 2 * UNIT * abs(goal) or not low < middle < high:
            return mean, middle
        low, high = (low, middle) if mean > goal else (middle, high)


def _mirror(share: Reals, step: float) -> Floats:
    """Return how far above its cell's lower end the mirrored mean lies, in log-ratio."""
    return np.asarray(np.log1p((1 - share) * math.expm1(step)), dtype=np.float64)


def _first_cluster(pair: Pair, window: Window, step: float, parts: Cells) -> tuple[float, float]:
    """Return the mean of the first cluster, which becomes a lattice point, and its upper end."""
    # Where the mass rises steeply from cell to cell, all that is small is taken into it: a cluster
    # can borrow mass only from neighbours that are not much lighter.
    rising = (parts.mass[1:] > 4 * parts.mass[:-1]) | (parts.mass[:-1] == 0)
    begin = int(np.argmin(np.append(rising, False)))
    floor, q = log_ratio(window.low, pair.probability), pair.probability
    end = inner(window.low, step * begin + _mirror(parts.share[begin : begin + 1], step), q)[0]
    for repeat in (3, 2, 1, 0):
        end = min(end, window.high)
        p1, q0 = pair.masses(np.array([window.low, end]))
        mean = math.log(p1[0] / q0[0]) if q0[0] > 0 and p1[0] > 0 else window.low
        mean = min(max(mean, window.low), end)
        place = (log_ratio(mean, q) - floor) / step
        share = np.interp([place], np.arange(parts.share.size), parts.share)
        if repeat:
            end = max(inner(mean, _mirror(share, step), q)[0], mean)
    return mean, end


class _Halves:
    """Clusters of mass around nodes: a part at its node, a part below and a part above it."""

    def __init__(self, p: Floats, q: Floats, ratio: Floats, held: Floats) -> None:
        below_p, below_q = np.append(0.0, p[1::2]), np.append(0.0, q[1::2])
        self.held, self.below_q, self.above_q = held, below_q, q[0::2]
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

    def mass(self) -> Floats:
        """Return the Q-mass of each cluster."""
        return np.asarray(self.held + self.below_q + self.above_q)


def _balance(halves: _Halves, width: Floats) -> Floats:
    """Return the kinks of the polygon: cluster masses after neighbours lend what means lack."""
    # A cluster whose mean is too low takes mass from the node above, one whose mean is too high
    # from the node below, so that the total P-mass is unchanged. Where the lender has too little,
    # the polygon is not convex, and its convex hull is taken. The topmost cluster, if its mean is
    # too low, has no node above: it is trimmed.
    top = np.zeros(width.size, dtype=bool)
    top[-1] = halves.deficit[-1] > 0
    halves.trimmed(top)
    up = np.maximum(halves.deficit, 0.0) / width
    down = np.append(0.0, np.maximum(-halves.deficit[1:], 0.0) / width[:-1])
    mass = halves.mass() + up + down
    mass[1:] -= up[:-1]
    mass[:-1] -= down[1:]
    if _hull(mass, width):
        return np.asarray(mass)
    halves.trimmed(np.ones_like(top))
    return halves.mass()


def _hull(mass: Floats, width: Floats) -> bool:
    """Spread negative kinks onto their neighbours in place: the polygon's lower convex hull."""
    # Both masses are kept. Beside its nodes the polygon is max(P − t·Q, 0), which no profile is
    # below; how it ends there: `_lowered`. Return whether there is such a hull.
    if not (mass < 0).any():
        return True
    place = np.append(0.0, np.cumsum(width)).tolist()
    kinks, size = mass.tolist(), mass.size
    before, after = list(range(-1, size)), list(range(1, size + 1))  # of those alive
    todo = np.flatnonzero(mass < 0).tolist()
    while todo:
        node = todo.pop()
        kink = kinks[node]
        if not kink < 0:
            continue
        left, right = before[node], after[node]
        if left < 0 or right == size:
            end = _lowered(kinks, place, after if left < 0 else before, node)
            if end < 0:
                return False
            if left < 0:
                before[end] = -1
            else:
                after[end] = size
            todo += [end, after[end] if left < 0 else before[end]]
            continue
        share = (place[node] - place[left]) / (place[right] - place[left])
        kinks[node] = 0.0
        kinks[right] += share * kink
        kinks[left] += (1 - share) * kink
        after[left], before[right] = right, left
        todo += [left, right]
    mass[:] = kinks
    return True


def _lowered(kinks: list[float], place: list[float], inward: list[int], end: int) -> int:
    """Take away the nodes, from one end on, at which the polygon is not above max(P − t·Q, 0)."""
    # It is lowered to that at the next node, which is returned and is the end now; −1 where there
    # is none. Further inward nothing moves.
    node, total, height = end, 0.0, 0.0
    while height <= 0:
        total, kinks[node] = total + kinks[node], 0.0
        node, behind = inward[node], node
        if not 0 <= node < len(kinks):
            return -1
        height += total * abs(place[node] - place[behind])
    inner = inward[node]
    if not 0 <= inner < len(kinks):
        return -1
    borrowed = height / abs(place[node] - place[inner])
    kinks[node] += total + borrowed
    kinks[inner] -= borrowed
    return node
