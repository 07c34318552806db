"""Settings of a composition: tilt, lattice step and cut for some δ, from a coarse view of pairs.

Nothing here affects soundness; a poor choice only widens the bounds.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple, TypeAlias

import numpy as np

from apiece._types import Floats
from apiece.accounting.bounds import Precision
from apiece.accounting.lattice.discretise import cut
from apiece.accounting.lattice.pairs import Pair, Window
from apiece.accounting.truncation import (
    MARGIN,
    Points,
    estimate_epsilon,
    find_slightest_fall,
    log_conversion,
)

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
        exponent = self.cells.log_shares(np.array([tilt]))[0, 0]
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
    """Return the λ at which an error in the tilted masses matters least to δ(ε), and how much."""
    # The second is the log of its largest effect in units of δ, over all pairs of ε and δ.

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
    """Estimate upper − lower in ε for lattice steps: λ/2 times the variance that they differ by."""
    # tilt: λ in the remove direction, 1 − λ in the other one. Within a cell of a smooth density
    # both bounds together move the variance by h²/4; near the lowest ratio, which is a lattice
    # point, by no more than h·(distance from it).
    total = np.zeros(steps.size)
    for part in coarse:
        ratio, weight = part.tilted(tilt)
        distance = np.maximum(ratio - part.floor, 0.0)
        moved = np.minimum(steps[:, None] / 4, distance) * steps[:, None]
        total += part.cells.times[0, 0] * np.einsum("ij,j->i", moved, weight)
    return total * max(tilt, 1 - tilt) / 2


_GLANCE = 2**15  # points of a first look
_LARGEST_EXPONENT = 2000.0
_LEAST_DELTA = 1e-60  # no smaller δ is resolved
_COARSEST = 0.25  # steps beyond it leave the regime where errors are of second order
_AIM = 0.85  # share of the gap wanted that is aimed at
_LARGEST_TILT = 20.0  # in units of 1/step

Options: TypeAlias = tuple[float, float, float, int, float]


class Settings(NamedTuple):
    """Settings for the neighbourhood of one δ: tilts of the two directions, step, windows."""

    # epsilon: the ε that they were chosen for. spread: about the standard deviation of the tilted
    # composition. reach: the ε up to which leaving out the jumps is as good as exact, ∞ where there
    # are none; rate: the θ of their bound. wrap: tilted mass that may be lost.

    epsilon: float
    spread: float
    reach: float
    rate: float
    tilt: float
    reverse_tilt: float
    step: float
    wrap: float
    windows: tuple[Window, ...]

    def directions(self, accuracy: Precision, *, jumps: bool) -> Iterator[tuple[bool, Options]]:
        """Yield, for remove and add, whether it is the latter, and the options of `tail`."""
        for reverse, tilt, wrap, until in (
            (False, self.tilt, self.wrap, self.reach if jumps else 0.0),
            (True, self.reverse_tilt, accuracy.wrap, 0.0),
        ):
            tilt = min(tilt, _LARGEST_TILT / self.step)
            yield reverse, (self.step, tilt, wrap, accuracy.points, until)


def settings_for(
    leaves: Leaves, deltas: Floats, accuracy: Precision, known: Floats | None
) -> Settings:
    """Return the region of decreasing `deltas`, of which the middle one matters most."""
    # The bounds are likely to be as close as is wanted. known: what ε is known to be about at each.
    # Where it is not known the best Rényi conversion stands in, and the step is kept so large that
    # a first look is cheap.
    delta, times = float(deltas[deltas.size // 2]), sum(count for _, count in leaves)
    windows = tuple(pair.window(accuracy.truncation * delta / times) for pair, _ in leaves)
    coarse = view(leaves, windows)
    reverse_tilt, backward = renyi_tilt(coarse, math.log(delta), reverse=True)
    if known is None:
        tilt, epsilon, deepest = _glance(coarse, deltas, backward)
    else:
        tilt, epsilon, deepest = math.nan, float(known[known.size // 2]), float(known[-1])
    reach, rate = math.inf, 1.0
    # what jumps are reckoned from
    whole = not any(only.upper > 0 for pair, _ in leaves for only in pair.certain)
    cells = [part.cells for part in coarse]
    if whole and max(float(part.ratio[0, -1]) for part in cells) > deepest > 0:
        slack, rates = find_slightest_fall(cells, np.array([[deepest]]), deltas[-1:, None])
        rate, loss = float(rates[0, 0]), MARGIN * deepest + float(slack[0, 0])
        every = zip(leaves, windows, strict=True)
        kept = tuple(cut(pair, window, loss) for (pair, _), window in every)
        if kept != windows:
            reach, windows, coarse = MARGIN * deepest, kept, view(leaves, kept)
            tilt = math.nan
    wrap = accuracy.wrap
    if math.isnan(tilt):
        at, of = (known, deltas) if known is not None else (np.array([epsilon]), np.array([delta]))
        matter = at >= min(accuracy.floor, epsilon)
        tilt, log_effect = quietest_tilt(coarse, at[matter], of[matter])
        wrap = math.exp(min(math.log(accuracy.truncation) - log_effect, math.log(wrap)))
    # Bounded losses have finite ε at every order; larger ones would ask for needlessly fine steps.
    widest = max(part.largest for part in coarse)
    tilt, reverse_tilt = (min(t, 1 + _LARGEST_EXPONENT / widest) for t in (tilt, reverse_tilt))
    both = known is None and backward > 0.9 * epsilon
    wanted = _AIM * accuracy.gap * max(epsilon, accuracy.floor)
    step = _step(coarse, tilt, reverse_tilt if both else math.nan, wanted)
    wide = spread(coarse, tilt)
    if known is None:
        step = max(step, 16 * wide / _GLANCE)
    # the lattice must have points between the largest ε expected and the jumps
    step = min(step, reach * (MARGIN - 1) / 2)
    return Settings(epsilon, wide, reach, rate, tilt, reverse_tilt, step, wrap, windows)


def _glance(
    coarse: Sequence[CoarsePair], deltas: Floats, backward: float
) -> tuple[float, float, float]:
    """Return a tilt (or NaN) and about ε at the middle and at the last of `deltas`."""
    delta, last = float(deltas[deltas.size // 2]), float(deltas[-1])
    tilt, forward = renyi_tilt(coarse, math.log(delta), reverse=False)
    epsilon = max(forward, backward)
    cells = [part.cells for part in coarse]
    if not max(float(part.ratio[0, -1]) for part in cells) > epsilon > 0:
        return tilt, epsilon, epsilon
    middle, deepest = (
        max(float(estimate_epsilon(cells, np.array([[at]]))[0, 0]), backward)
        for at in (delta, last)
    )
    return math.nan, middle, deepest


def _step(coarse: Sequence[CoarsePair], tilt: float, reverse_tilt: float, wanted: float) -> float:
    """Return a lattice step whose gap in ε is about `wanted` in the directions given."""
    steps = np.geomspace(1e-12, 1.0, 121)
    gap = gaps(coarse, tilt, steps)
    if not math.isnan(reverse_tilt):
        gap = np.maximum(gap, gaps(coarse, 1 - reverse_tilt, steps))
    known = np.log(np.maximum(gap, 1e-300))
    step = float(np.exp(np.interp(math.log(wanted), known, np.log(steps))))
    return min(step, _COARSEST, 1 / tilt)


def log_delta(leaves: Leaves, epsilon: Floats, truncation: float) -> Floats:
    """Estimate log δ(ε) by the best moment bound of either direction."""
    times = sum(count for _, count in leaves)
    windows = tuple(pair.window(truncation * _LEAST_DELTA / times) for pair, _ in leaves)
    coarse = view(leaves, windows)
    excess = np.geomspace(1e-5, 1e7, 121)
    moments = np.array([cumulant(coarse, 1 + excess), cumulant(coarse, -excess)])
    values = moments[:, None, :] + log_conversion(excess) - epsilon[:, None] * excess
    return np.asarray(np.minimum(values.min(axis=2).max(axis=0), 0.0))
