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

    step: float
    offset: float
    mass: Floats
    outside_p: float
    outside_q: float
    # A bound on the relative error of each cell's P- and Q-mass, and of those of `jump`.
    rounding: float
    jump: Jump


# Relative rounding of a count of cells: a quotient within it of a whole number is that number.
_ROUNDED = 16 * UNIT
# Cells between atoms, at least, so that what lies between has a lattice point of its own.
_LEAST_CELLS = 4


class Cells(NamedTuple):
    """A pair, but for its atoms, in the cells of a lattice."""

    rho: Floats
    mass: Floats
    share: Floats
    """Where the mean of the ratio lies in each cell, from 0 at its left to 1 at its right end."""


def cut_window(pair: Pair, window: Window, loss: float) -> Window:
    """Return the window with all log-ratios of the pair above `loss` made jumps."""
    offset = log_ratio(window.low, pair.probability)
    if loss <= offset or loss >= log_ratio(window.high, pair.probability):
        return window
    distance = np.array([loss - offset])
    high = float(shift_rho(window.low, distance, pair.probability)[0])
    return window._replace(high=high) if window.low < high < window.high else window


def align_step(pair: Pair, window: Window, step: float) -> float:
    """Return about the largest step up to `step` that puts both atoms of a pair on a lattice.

    For pairs without atoms, `step`.
    """
    if not pair.atoms:
        return step
    start = lowest_mean(pair, window, lowest_end(pair, window, step))
    span = log_ratio(window.high, pair.probability) - log_ratio(start, pair.probability)
    if not span > 0:
        return step
    return span / max(math.ceil(span / step), _LEAST_CELLS)


def lowest_end(pair: Pair, window: Window, step: float) -> float:
    """Return up to which ρ mass is best gathered with the lowest atom of a pair."""
    # The atom alone is, unless most of what lies beside it is much lower than the next cells.
    two_cells = shift_rho(window.low, step * np.arange(3), pair.probability)
    edges = np.minimum(two_cells, window.high)
    _, (low_mass, high_mass) = pair.masses(edges)
    return float(edges[1]) if low_mass > 4 * high_mass else window.low


def lowest_mean(pair: Pair, window: Window, end: float) -> float:
    """Return the mean ratio, as a ρ, of all between the lower end of a window and `end`."""
    p1, q0 = pair.masses(np.array([window.low, end]))
    atoms = [atom for atom in pair.atoms if atom.rho <= window.low]
    p = p1[0] + sum(atom.p for atom in atoms)
    q = q0[0] + sum(atom.q for atom in atoms)
    mean = math.log(p / q) if p > 0 and q > 0 else window.low
    return min(max(mean, window.low), end)


def measure_jump(pair: Pair, window: Window) -> Jump:
    """Return the masses of a pair above the window, atoms included."""
    if window.top == window.high:
        return Jump(0.0, 0.0, math.inf)
    # `masses` takes the first of these intervals as closed: the window's own end is not in it.
    start = np.nextafter(window.high, np.inf)
    beyond = np.array([start, window.top])
    p1, q0 = pair.masses(beyond)
    atoms = [atom for atom in pair.atoms if atom.rho > window.high]
    p_mass = float(p1[0]) + sum(atom.p for atom in atoms)
    q_mass = float(q0[0]) + sum(atom.q for atom in atoms)
    q = pair.probability
    return Jump((1 - q) * q_mass + q * p_mass, q_mass, log_ratio(window.high, q))


def shift_rho(rho: float, offsets: Reals, probability: float) -> Floats:
    """Return the ρ whose log-ratios lie `offsets` ≥ 0 above that of `rho`."""
    # With R = 1 − q + q·e^ρ, e^ρ' = e^ρ + (R/q)·(e^offset − 1): a sum of positive terms.
    if probability == 1:
        return np.asarray(rho + offsets, dtype=np.float64)
    scale = log_ratio(rho, probability) - math.log(probability)
    with np.errstate(divide="ignore"):
        log_expm1 = np.log(np.expm1(np.minimum(offsets, 30)))
        growth = np.where(offsets < 30, log_expm1, offsets)
    return np.asarray(np.logaddexp(rho, scale + growth))


def cut_cells(pair: Pair, window: Window, step: float) -> Cells:
    """Return the masses, but for atoms, of cells that cover the window from its lower end on."""
    q = pair.probability
    offset = log_ratio(window.low, q)
    width = log_ratio(window.high, q) - offset
    count = max(math.ceil(width / step * (1 - _ROUNDED)), 1)
    offsets = step * np.arange(count + 1)
    rho = shift_rho(window.low, offsets, q)
    # Rounding must not leave the window's end outside.
    rho[-1] = max(rho[-1], window.high)
    # Where mass above the window is a jump, none of it is in the last cell.
    edges = np.minimum(rho, window.high) if window.high < window.top else rho
    p1, q0 = pair.masses(edges)
    # The mean lies at a share s with s·q0·(r_{k+1} − r_k) = p − r_k·q0 = q·(p1 − e^ρ·q0).
    low_ratio = np.exp(offset + offsets[:-1])
    ratio_width = low_ratio * math.expm1(step)
    low_inner_ratio = np.exp(rho[:-1])
    excess = q * (p1 - low_inner_ratio * q0)
    full_excess = q0 * ratio_width
    share = np.full(count, 0.5)
    np.divide(excess, full_excess, out=share, where=full_excess > 0)
    return Cells(rho, q0, np.clip(share, 0.0, 1.0))


def build_dominating(pair: Pair, window: Window, step: float, parts: Cells) -> Lattice:
    """Return the dominating pair: each cell's mass, and each atom, on its two ends, mean kept."""
    offset = log_ratio(window.low, pair.probability)
    mass = np.zeros(parts.mass.size + 1)
    highest_cell = parts.mass.size - 1
    high = parts.mass * parts.share
    mass[:-1] = parts.mass - high
    mass[1:] += high
    for atom in pair.atoms:
        if atom.rho <= window.high:
            beyond = log_ratio(atom.rho, pair.probability) - offset
            cell = min(max(math.floor(beyond / step), 0), highest_cell)
            # The lever rule for ratios, which are straight in e^{log-ratio}.
            lever = math.expm1(beyond - cell * step) / math.expm1(step)
            share = min(max(lever, 0.0), 1.0)
            mass[cell] += atom.q * (1 - share)
            mass[cell + 1] += atom.q * share
    rounding = pair.rounding(window) + 16 * UNIT
    jump = measure_jump(pair, window)
    return Lattice(step, offset, mass, window.outside_p, window.outside_q, rounding, jump)


def discretise(pair: Pair, window: Window, step: float) -> tuple[Lattice, Lattice]:
    """Return a dominated and a dominating lattice pair of `pair` cut off at `window`."""
    parts = cut_cells(pair, window, step)
    above = build_dominating(pair, window, step, parts)
    if pair.below is None:
        return build_dominated(pair, window, step, parts), above
    below = pair.below
    if isinstance(below, AtomsPair):
        # Its atoms lie elsewhere: it has a window of its own.
        all_atoms = below.window(0.0)
        window = all_atoms._replace(high=min(all_atoms.high, window.high))
    return build_dominated(below, window, step, cut_cells(below, window, step)), above


def build_dominated(pair: Pair, window: Window, step: float, parts: Cells) -> Lattice:
    """Gather the mass around each lattice point, its mean exactly there."""
    # The first lattice point is the mean of the first cluster; where there are atoms, such that the
    # topmost one is a lattice point too. The tangent points mirror the means of the cells, which
    # leaves no imbalance where the density is exponential or flat.
    q = pair.probability
    if pair.atoms:
        origin, first_end, top_number = _fit_between_atoms(pair, window, step)
    else:
        origin, first_end = _gather_first_cluster(pair, window, step, parts)
        top_number = None
    origin_loss = log_ratio(origin, q)
    # How far the dominated lattice lies above the dominating one, in cells.
    shift = (origin_loss - log_ratio(window.low, q)) / step
    if top_number is None:
        count = max(parts.mass.size - math.floor(shift), 2)
    else:
        count = top_number + 1
    number = np.arange(count)
    offsets = step * number
    cells = np.arange(parts.share.size)
    # Where means lie in the cells beside each lattice point, by the cells that were cut.
    share = np.interp(shift + number, cells, parts.share)
    nodes = shift_rho(origin, offsets, q)
    # Nodes and tangent points take turns: what lies between is a half of a cluster.
    edges = np.empty(2 * count)
    edges[0] = window.low
    edges[2::2] = nodes[1:]
    edges[1::2] = shift_rho(origin, offsets + _mirror_share(share, step), q)
    edges[1] = first_end
    if top_number is not None:
        # The topmost cluster is the atom alone.
        edges[-3] = window.high
    edges[-1] = max(edges[-1], window.high)
    edges = np.maximum.accumulate(edges)
    if window.high < window.top:
        edges = np.minimum(edges, window.high)
    p, q0 = pair.masses(edges)
    at_node = np.zeros(count)
    for atom in pair.atoms:
        if atom.rho <= window.low:
            at_node[0] += atom.q
        elif atom.rho <= window.high and top_number is not None:
            at_node[-1] += atom.q
        elif atom.rho <= window.high:
            # An atom that is no lattice point joins the half of a cluster that it lies in.
            half = -1 if atom.rho > nodes[-1] else -2
            p[half] += atom.p
            q0[half] += atom.q
    # Distances of nodes in e^ρ: of the ratio, over q.
    width = np.exp(origin_loss + offsets) * (math.expm1(step) / q)
    mass = _balance_clusters(_Halves(p, q0, np.exp(nodes), at_node), width)
    jump = measure_jump(pair, window)
    rounding = pair.rounding(window) + 128 * UNIT
    return Lattice(step, origin_loss, mass, 0.0, 0.0, rounding, jump)


def _fit_between_atoms(pair: Pair, window: Window, step: float) -> tuple[float, float, int | None]:
    """Return the mean of the first cluster, its upper end, and the number of the topmost point.

    The cluster is as wide as it takes for the topmost atom to be a lattice point. Where no width
    does, or that atom is not in the window, there is no number.
    """
    q = pair.probability
    start = log_ratio(window.low, q)
    top = log_ratio(window.high, q)
    first_end = lowest_end(pair, window, step)
    origin = lowest_mean(pair, window, first_end)
    points = (top - log_ratio(origin, q)) / step
    rounding = 16 * UNIT * (top - start)
    # The nearest number of cells first, then the one that leaves more to the first cluster.
    for top_number in (round(points), math.floor(points)):
        offset = top - top_number * step - start
        distance = np.array([max(offset, 0.0)])
        goal = float(shift_rho(window.low, distance, q)[0])
        if window.high == window.top and top_number >= 2 and offset >= -rounding:
            cluster = _gather_to_mean(pair, window, goal)
            if cluster is not None:
                return *cluster, top_number
    return origin, first_end, None


def _gather_to_mean(pair: Pair, window: Window, goal: float) -> tuple[float, float] | None:
    """Return a mean near `goal` of all up to some ρ, and that ρ; None where there is none."""
    # The mean of all up to ρ rises with ρ: by bisection, down to neighbouring numbers.
    low = window.low
    high = window.high
    if lowest_mean(pair, window, high) < goal:
        return None
    tolerance = 2 * UNIT * abs(goal)
    while True:
        middle = (low + high) / 2
        mean = lowest_mean(pair, window, middle)
        if abs(mean - goal) <= tolerance or not low < middle < high:
            return mean, middle
        if mean > goal:
            high = middle
        else:
            low = middle


def _mirror_share(share: Reals, step: float) -> Floats:
    """Return how far above its cell's lower end the mirrored mean lies, in log-ratio."""
    ratio_rise = (1 - share) * math.expm1(step)
    return np.asarray(np.log1p(ratio_rise), dtype=np.float64)


def _gather_first_cluster(
    pair: Pair, window: Window, step: float, parts: Cells
) -> tuple[float, float]:
    """Return the mean of the first cluster, which becomes a lattice point, and its upper end."""
    # Where the mass rises steeply from cell to cell, all that is small is taken into it: a cluster
    # can borrow mass only from neighbours that are not much lighter.
    low_mass = parts.mass[:-1]
    high_mass = parts.mass[1:]
    rising = (high_mass > 4 * low_mass) | (low_mass == 0)
    first_cell = int(np.argmin(np.append(rising, False)))
    q = pair.probability
    floor = log_ratio(window.low, q)
    mirrored = _mirror_share(parts.share[first_cell : first_cell + 1], step)
    end = shift_rho(window.low, step * first_cell + mirrored, q)[0]
    cells = np.arange(parts.share.size)
    # The end follows from the cell that the mean lies in, and the mean from the end: three rounds.
    for rounds_left in (3, 2, 1, 0):
        end = min(end, window.high)
        (p1,), (q0,) = pair.masses(np.array([window.low, end]))
        has_both = q0 > 0 and p1 > 0
        mean = math.log(p1 / q0) if has_both else window.low
        mean = min(max(mean, window.low), end)
        position = (log_ratio(mean, q) - floor) / step
        share = np.interp([position], cells, parts.share)
        if rounds_left:
            end = max(shift_rho(mean, _mirror_share(share, step), q)[0], mean)
    return mean, end


class _Halves:
    """Clusters of mass around nodes: a part at its node, a part below and a part above it."""

    # below, above: how far the ratio's mean in each half is from the node, times the half's mass.
    # deficit: the P-mass that a cluster lacks, positive, or has too much, for its mean to be at
    # the node.

    def __init__(self, p: Floats, q: Floats, ratio: Floats, at_node: Floats) -> None:
        # Masses between edges take turns: even ones lie above their node, odd ones below the next.
        below_p = np.append(0.0, p[1::2])
        below_q = np.append(0.0, q[1::2])
        above_p = p[0::2]
        above_q = q[0::2]
        self.at_node = at_node
        self.below_q = below_q
        self.above_q = above_q
        self.below = np.maximum(ratio * below_q - below_p, 0.0)
        self.above = np.maximum(above_p - ratio * above_q, 0.0)
        # The first cluster has its mean at its node by construction.
        self.below[0] = 0.0
        self.above[0] = 0.0
        difference = self.below - self.above
        # What rounding alone can make.
        tiny = np.abs(difference) <= 64 * UNIT * (above_p + below_p)
        self.deficit = np.where(tiny, 0.0, difference)

    def trim(self, where: npt.NDArray[np.bool_]) -> None:
        """Drop, in the clusters `where`, just so much mass that the mean is at the node."""
        self._trim_half(where, self.below, self.above, self.below_q)
        self._trim_half(where, self.above, self.below, self.above_q)
        self.deficit[where] = 0.0

    def _trim_half(
        self, where: npt.NDArray[np.bool_], moment: Floats, opposite: Floats, mass: Floats
    ) -> None:
        """Scale a half's mass down where its moment exceeds that of the opposite half."""
        heavy = where & (moment > opposite) & (self.deficit != 0)
        mass[heavy] *= opposite[heavy] / moment[heavy]

    def mass(self) -> Floats:
        """Return the Q-mass of each cluster."""
        return np.asarray(self.at_node + self.below_q + self.above_q)


def _balance_clusters(halves: _Halves, width: Floats) -> Floats:
    """Return the kinks of the polygon: cluster masses after neighbours lend what means lack."""
    # A cluster whose mean is too low takes mass from the node above, one whose mean is too high
    # from the node below, so that the total P-mass is unchanged. Where the lender has too little,
    # the polygon is not convex, and its convex hull is taken. The topmost cluster, if its mean is
    # too low, has no node above: it is trimmed.
    top = np.zeros(width.size, dtype=bool)
    top[-1] = halves.deficit[-1] > 0
    halves.trim(top)
    from_above = np.maximum(halves.deficit, 0.0) / width
    surplus = np.maximum(-halves.deficit[1:], 0.0)
    from_below = np.append(0.0, surplus / width[:-1])
    mass = halves.mass() + from_above + from_below
    mass[1:] -= from_above[:-1]
    mass[:-1] -= from_below[1:]
    if _take_hull(mass, width):
        return np.asarray(mass)
    halves.trim(np.ones_like(top))
    return halves.mass()


def _take_hull(mass: Floats, width: Floats) -> bool:
    """Spread negative kinks onto their neighbours in place: the polygon's lower convex hull.

    Return whether there is such a hull.
    """
    # Both masses are kept. Beside its nodes the polygon is max(P − t·Q, 0), which no profile is
    # below; how it ends there: `_lower_end`.
    if not (mass < 0).any():
        return True
    position = np.append(0.0, np.cumsum(width)).tolist()
    kinks = mass.tolist()
    size = mass.size
    # The neighbours of each node among those that are left: −1 and `size` beside the ends.
    previous = list(range(-1, size))
    following = list(range(1, size + 1))
    todo = np.flatnonzero(mass < 0).tolist()
    while todo:
        node = todo.pop()
        kink = kinks[node]
        if not kink < 0:
            continue
        # A node at an end has no neighbour beyond it: the end itself is lowered.
        low = previous[node]
        high = following[node]
        if low < 0:
            end = _lower_end(kinks, position, following, node)
            if end < 0:
                return False
            previous[end] = -1
            todo += [end, following[end]]
            continue
        if high == size:
            end = _lower_end(kinks, position, previous, node)
            if end < 0:
                return False
            following[end] = size
            todo += [end, previous[end]]
            continue
        # By the lever rule, both sums of kinks and of kinks times position stay.
        width_below = position[node] - position[low]
        share = width_below / (position[high] - position[low])
        kinks[node] = 0.0
        kinks[high] += share * kink
        kinks[low] += (1 - share) * kink
        following[low] = high
        previous[high] = low
        todo += [low, high]
    mass[:] = kinks
    return True


def _lower_end(kinks: list[float], position: list[float], inward: list[int], end: int) -> int:
    """Take away the nodes, from one end on, at which the polygon is not above max(P − t·Q, 0).

    It is lowered to that at the next node, which is returned and is the end now; −1 where there is
    none. Further inward nothing moves.
    """
    node = end
    # Of all kinks passed, and the polygon's height above the line beyond the end.
    total = 0.0
    height = 0.0
    while height <= 0:
        total += kinks[node]
        kinks[node] = 0.0
        behind = node
        node = inward[node]
        if not 0 <= node < len(kinks):
            return -1
        height += total * abs(position[node] - position[behind])
    neighbour = inward[node]
    if not 0 <= neighbour < len(kinks):
        return -1
    # The slope that the lowered end takes from the next piece inward.
    slope = height / abs(position[node] - position[neighbour])
    kinks[node] += total + slope
    kinks[neighbour] -= slope
    return node
