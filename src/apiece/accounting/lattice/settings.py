"""Settings of a composition: tilt, lattice step and cut for some δ, from a coarse view of pairs.

Nothing here affects soundness; a poor choice only widens the bounds.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from apiece._types import Floats
from apiece.accounting.bounds import Precision
from apiece.accounting.lattice.discretise import cut_window
from apiece.accounting.lattice.pairs import Pair, Window
from apiece.accounting.truncation import (
    MARGIN,
    Points,
    estimate_epsilon,
    find_slightest_fall,
    log_conversion,
)

Leaves = tuple[tuple[Pair, int], ...]
"""The pairs of a composition, and how many steps each stands for."""
# Cells of a coarse pair.
_CELLS = 384
# A cell with less mass than this, under P₁ or Q, is left out.
_LEAST_MASS = 1e-290
# Accepted loss in the log of the round-off error.
_NEAR_BEST = 0.7


class CoarsePair(NamedTuple):
    """A pair in few cells, and its lowest log-ratio."""

    cells: Points
    floor: float

    @property
    def largest(self) -> float:
        """The largest absolute log-ratio."""
        return float(np.abs(self.cells.ratio).max())

    def shares(self, tilt: float) -> tuple[Floats, Floats]:
        """Return each cell's log-ratio, and its share of the law tilted by λ."""
        log_shares = self.cells.log_shares(np.array([tilt]))
        exponent = log_shares[0, 0]
        weight = np.exp(exponent - exponent.max())
        return self.cells.ratio[0], weight / weight.sum()


def coarsen(leaves: Leaves, windows: tuple[Window, ...]) -> list[CoarsePair]:
    """Return each pair of a composition, cut off at its window, in a few hundred cells."""
    return [
        _coarsen_pair(pair, times, window)
        for (pair, times), window in zip(leaves, windows, strict=True)
    ]


def _coarsen_pair(pair: Pair, times: int, window: Window) -> CoarsePair:
    """Return a pair in a few hundred cells, its atoms in the first and the last of them."""
    # (cells + 1,), even in ρ.
    edges = np.linspace(window.low, window.high, _CELLS + 1)
    p1, q0 = pair.masses(edges)
    for atom in pair.atoms:
        if atom.rho <= window.high:
            cell = -1 if atom.rho > edges[-2] else 0
            p1[cell] += atom.p
            q0[cell] += atom.q
    # Cells of hardly any mass have no ratio to rely on.
    heavy = (q0 > _LEAST_MASS) & (p1 > _LEAST_MASS)
    p1 = p1[heavy]
    q0 = q0[heavy]
    q = pair.probability
    # Behind a coin a ratio r becomes 1 + q·(r − 1).
    if q < 1:
        ratio = np.log1p(q * (p1 / q0 - 1))
        floor = math.log1p(q * math.expm1(window.low))
    else:
        ratio = np.log(p1 / q0)
        floor = window.low
    # Over how much the losses of a cell are spread.
    width = np.gradient(ratio) if ratio.size > 1 else np.zeros_like(ratio)
    count = np.array([[float(times)]])
    points = Points.of(ratio[None], width[None], np.log(q0)[None], count)
    return CoarsePair(points, floor)


def cumulant(coarse: Sequence[CoarsePair], tilts: Floats) -> Floats:
    """Return log E_Q[r^λ] of the composition at each λ."""
    moments = [part.cells.log_moments(tilts) for part in coarse]
    return np.asarray(sum(moment[0] for moment in moments))


def _minimise(objective: Callable[[Floats], Floats]) -> tuple[float, float]:
    """Return the λ > 1 that minimises `objective`, a function of λ − 1, and its least value."""
    # On a coarse grid of magnitudes, then twice closer around the best.
    excess = np.geomspace(1e-5, 1e7, 41)
    for width in (0.3, 0.05):
        best = excess[int(np.argmin(objective(excess)))]
        excess = best * 10.0 ** np.linspace(-width, width, 11)
    values = objective(excess)
    number = int(np.argmin(values))
    return 1 + float(excess[number]), float(values.min())


def renyi_tilt(
    coarse: Sequence[CoarsePair], log_delta: float, *, reverse: bool
) -> tuple[float, float]:
    """Return the order λ of the best Rényi conversion at δ, and its ε."""

    # Of r^{1−λ} under Q, in the add direction, which is r^{−(λ − 1)}.
    def epsilon(excess: Floats) -> Floats:
        moment = cumulant(coarse, -excess if reverse else 1 + excess)
        return np.asarray((moment + log_conversion(excess) - log_delta) / excess)

    return _minimise(epsilon)


def quietest_tilt(
    coarse: Sequence[CoarsePair], epsilons: Floats, deltas: Floats
) -> tuple[float, float]:
    """Return the λ at which an error in the tilted masses matters least to δ(ε), and how much.

    The second is the log of its largest effect in units of δ, over all pairs of ε and δ.
    """

    def error(excess: Floats) -> Floats:
        log_scales = excess[:, None] * epsilons + np.log(deltas)
        log_scale = log_scales.min(axis=1)
        # 1/(λ(λ − 1)): what e^{−λℓ}·(e^ℓ − e^ε)₊ integrates to, but for its scale.
        log_sum = np.log(excess * (1 + excess))
        return np.asarray(cumulant(coarse, 1 + excess) - log_scale - log_sum)

    # The least tilt that is nearly as good: with heavy tails a larger one takes the mass far away.
    best, smallest_error = _minimise(error)
    accepted = smallest_error + _NEAR_BEST
    excess = np.geomspace(1e-6, 1.0, 121) * (best - 1)
    good = int(np.argmax(error(excess) <= accepted))
    return 1 + float(excess[good]), accepted


def tilted_deviation(coarse: Sequence[CoarsePair], tilt: float) -> float:
    """Return the standard deviation of the tilted composition."""
    variance = 0.0
    for part in coarse:
        ratio, weight = part.shares(tilt)
        # By einsum: the threads of BLAS cost more than they bring.
        mean = float(np.einsum("i,i->", weight, ratio))
        times = float(part.cells.times[0, 0])
        variance += times * float(np.einsum("i,i->", weight, (ratio - mean) ** 2))
    return math.sqrt(variance)


def estimate_gaps(coarse: Sequence[CoarsePair], tilt: float, steps: Floats) -> Floats:
    """Estimate upper − lower in ε for lattice steps: λ/2 times the variance that they differ by.

    `tilt` is λ in the remove direction, 1 − λ in the other one.
    """
    # Within a cell of a smooth density both bounds together move the variance by h²/4; near the
    # lowest ratio, which is a lattice point, by no more than h·(distance from it).
    total = np.zeros(steps.size)
    for part in coarse:
        ratio, weight = part.shares(tilt)
        distance = np.maximum(ratio - part.floor, 0.0)
        step = steps[:, None]
        moved = np.minimum(step / 4, distance) * step
        total += part.cells.times[0, 0] * np.einsum("ij,j->i", moved, weight)
    return total * max(tilt, 1 - tilt) / 2


# Points of a first look.
_GLANCE = 2**15
# Largest |λ − 1| times the largest loss.
_LARGEST_EXPONENT = 2000.0
# The least δ that is resolved.
_LEAST_DELTA = 1e-60
# Largest lattice step: beyond it errors are no longer of second order in the step.
_COARSEST = 0.25
# Share of the gap wanted that is aimed at.
_AIM = 0.85
# Largest tilt times the lattice step.
_LARGEST_TILT = 20.0


class TailOptions(NamedTuple):
    """What `convolution.tail` takes beside its parts, by the names of its parameters."""

    step: float
    tilt: float
    wrap: float
    points: int
    until: float


class Settings(NamedTuple):
    """Settings for the neighbourhood of one δ: tilts of the two directions, step, windows."""

    # About the ε that they were chosen for.
    epsilon: float
    # About the standard deviation of the tilted composition.
    deviation: float
    # The ε up to which leaving out the jumps is as good as exact, ∞ where there are none.
    reach: float
    # The θ of the bound on jumps that are taken back.
    rate: float
    tilt: float
    reverse_tilt: float
    step: float
    # Tilted mass that may be lost on either side.
    wrap: float
    windows: tuple[Window, ...]

    def directions(self, accuracy: Precision, *, jumps: bool) -> Iterator[tuple[bool, TailOptions]]:
        """Yield, for remove and add, whether it is the latter, and the options of `tail`."""
        largest_tilt = _LARGEST_TILT / self.step
        tilt = min(self.tilt, largest_tilt)
        until = self.reach if jumps else 0.0
        yield False, TailOptions(self.step, tilt, self.wrap, accuracy.points, until)
        reverse_tilt = min(self.reverse_tilt, largest_tilt)
        yield True, TailOptions(self.step, reverse_tilt, accuracy.wrap, accuracy.points, 0.0)


def choose_settings(
    leaves: Leaves, deltas: Floats, accuracy: Precision, known: Floats | None
) -> Settings:
    """Return the settings for a region of decreasing `deltas`; the middle one matters most.

    `known` is what ε is known to be about at each. Where it is not known the best Rényi conversion
    stands in, and the step stays so large that a first look is cheap.
    """
    delta = _middle(deltas)
    times = sum(count for _, count in leaves)
    # What all steps together leave out is a share of δ.
    tail = accuracy.truncation * delta / times
    windows = tuple(pair.window(tail) for pair, _ in leaves)
    coarse = coarsen(leaves, windows)
    reverse_tilt, backward = renyi_tilt(coarse, math.log(delta), reverse=True)
    if known is None:
        tilt, epsilon, deepest = _glance(coarse, deltas, backward)
    else:
        tilt = None
        epsilon = _middle(known)
        deepest = float(known[-1])
    reach = math.inf
    rate = 1.0
    # Large losses that are rare are cut off the windows, and bounded by themselves.
    jumps = _choose_jumps(leaves, windows, coarse, deepest, deltas[-1:, None])
    if jumps is not None:
        windows, rate = jumps
        reach = MARGIN * deepest
        coarse = coarsen(leaves, windows)
        # The tilt of a glance is one for windows that are not cut.
        tilt = None
    wrap = accuracy.wrap
    if tilt is None:
        if known is None:
            tilt, wrap = _choose_tilt(coarse, np.array([epsilon]), np.array([delta]), accuracy)
        else:
            tilt, wrap = _choose_tilt(coarse, known, deltas, accuracy)
    # Bounded losses have finite ε at every order; larger ones would ask for needlessly fine steps.
    widest = max(part.largest for part in coarse)
    largest_tilt = 1 + _LARGEST_EXPONENT / widest
    tilt = min(tilt, largest_tilt)
    reverse_tilt = min(reverse_tilt, largest_tilt)
    add_matters = known is None and backward > 0.9 * epsilon
    gap = _AIM * accuracy.gap * max(epsilon, accuracy.floor)
    step = _choose_step(coarse, tilt, reverse_tilt if add_matters else None, gap)
    deviation = tilted_deviation(coarse, tilt)
    if known is None:
        # A window of 16 deviations in `_GLANCE` points.
        step = max(step, 16 * deviation / _GLANCE)
    # The lattice must have points between the largest ε expected and the jumps.
    # With two points there a chord never reaches from one to the other.
    step = min(step, reach * (MARGIN - 1) / 2)
    return Settings(epsilon, deviation, reach, rate, tilt, reverse_tilt, step, wrap, windows)


def _middle(values: Floats) -> float:
    """Return the middle one of an odd number of values: that of the δ that matters most."""
    return float(values[values.size // 2])


def _choose_tilt(
    coarse: Sequence[CoarsePair], epsilons: Floats, deltas: Floats, accuracy: Precision
) -> tuple[float, float]:
    """Return the tilt of the remove direction, and the tilted mass that may be lost at it.

    `epsilons` are about those of `deltas`.
    """
    # Below the floor bounds need not be close, but the middle ε counts in any case.
    matter = epsilons >= min(accuracy.floor, _middle(epsilons))
    tilt, log_effect = quietest_tilt(coarse, epsilons[matter], deltas[matter])
    # What is lost then moves δ by no more than the share of it that may be left out.
    log_wrap = math.log(accuracy.truncation) - log_effect
    return tilt, math.exp(min(log_wrap, math.log(accuracy.wrap)))


def _choose_jumps(
    leaves: Leaves,
    windows: tuple[Window, ...],
    coarse: Sequence[CoarsePair],
    deepest: float,
    delta: Floats,
) -> tuple[tuple[Window, ...], float] | None:
    """Return windows cut where jumps begin, and the θ of their bound; None where none are cut.

    `deepest` is about the largest ε of the region, at `delta`.
    """
    # What P alone can show is no jump: then there are none.
    if any(certain.upper > 0 for pair, _ in leaves for certain in pair.certain):
        return None
    cells = [part.cells for part in coarse]
    largest = max(float(points.ratio[0, -1]) for points in cells)
    if not largest > deepest > 0:
        return None
    slack, rates = find_slightest_fall(cells, np.array([[deepest]]), delta)
    loss = MARGIN * deepest + float(slack[0, 0])
    cut = tuple(
        cut_window(pair, window, loss) for (pair, _), window in zip(leaves, windows, strict=True)
    )
    return None if cut == windows else (cut, float(rates[0, 0]))


def _glance(
    coarse: Sequence[CoarsePair], deltas: Floats, backward: float
) -> tuple[float | None, float, float]:
    """Return a tilt, or None where moments say little, and about ε at the middle and the last δ.

    `backward` is the ε of the add direction at the middle δ.
    """
    delta = _middle(deltas)
    tilt, forward = renyi_tilt(coarse, math.log(delta), reverse=False)
    epsilon = max(forward, backward)
    cells = [part.cells for part in coarse]
    largest_loss = max(float(points.ratio[0, -1]) for points in cells)
    if not largest_loss > epsilon > 0:
        return tilt, epsilon, epsilon

    # Losses beyond ε are likely to make δ: chances of jumps tell more than moments.
    def estimate(delta: float) -> float:
        forward = estimate_epsilon(cells, np.array([[delta]]))
        return max(float(forward[0, 0]), backward)

    return None, estimate(delta), estimate(float(deltas[-1]))


def _choose_step(
    coarse: Sequence[CoarsePair], tilt: float, reverse_tilt: float | None, gap: float
) -> float:
    """Return a lattice step whose gap in ε is about `gap`.

    `reverse_tilt` is None where the add direction does not matter.
    """
    steps = np.geomspace(1e-12, 1.0, 121)
    # Gaps grow with the step: the step is read off their curve, in logarithms.
    estimates = estimate_gaps(coarse, tilt, steps)
    if reverse_tilt is not None:
        reverse_estimates = estimate_gaps(coarse, 1 - reverse_tilt, steps)
        estimates = np.maximum(estimates, reverse_estimates)
    log_gaps = np.log(np.maximum(estimates, 1e-300))
    log_step = np.interp(math.log(gap), log_gaps, np.log(steps))
    return min(float(np.exp(log_step)), _COARSEST, 1 / tilt)


def estimate_log_delta(leaves: Leaves, epsilon: Floats, truncation: float) -> Floats:
    """Estimate log δ(ε) by the best moment bound of either direction."""
    times = sum(count for _, count in leaves)
    windows = tuple(pair.window(truncation * _LEAST_DELTA / times) for pair, _ in leaves)
    coarse = coarsen(leaves, windows)
    excess = np.geomspace(1e-5, 1e7, 121)
    moments = np.array([cumulant(coarse, 1 + excess), cumulant(coarse, -excess)])
    constants = moments[:, None, :] + log_conversion(excess)
    values = constants - epsilon[:, None] * excess
    # The least over orders, the larger of both directions.
    log_delta = values.min(axis=2).max(axis=0)
    return np.asarray(np.minimum(log_delta, 0.0))
