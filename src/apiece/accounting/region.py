"""Where to look: tilt and lattice step for one δ, estimated from a coarse view of the pairs.

Nothing here affects soundness; a poor choice only widens the bounds.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from apiece.accounting.discretise import cut
from apiece.accounting.pairs import Floats, Pair, Window

Leaves = tuple[tuple[Pair, int], ...]
_CELLS = 384
_NEARLY = 0.7  # accepted loss in the log of the round-off error
_GLANCE = 2**15  # points of a first look
_STEEPEST = 2000.0
_FAINTEST = 1e-60  # no smaller δ is resolved
_SURELY = 25.0  # bits, base e, by which a fall below the jumps is unlikely
_COARSEST = 0.25  # steps beyond it leave the regime where errors are of second order


class Region(NamedTuple):
    """Settings for the neighbourhood of one δ: tilts of the two directions, step, windows.

    epsilon: the ε that they were chosen for. spread: about the standard deviation of the tilted
    composition. reach: the ε up to which leaving out the jumps is as good as exact; rate: the θ
    of their bound.
    """

    delta: float
    epsilon: float
    spread: float
    reach: float
    rate: float
    tilt: float
    reverse_tilt: float
    step: float
    windows: tuple[Window, ...]


class _Coarse(NamedTuple):
    """A pair in few cells: log ratios, log Q-masses and the lowest log ratio."""

    ratio: Floats
    width: Floats
    log_q: Floats
    floor: float
    times: int

    def tilted(self, tilt: Floats | float) -> Floats:
        """Return the log of each cell's share of E_Q[r^λ], its ratios spread evenly."""
        spread = np.abs(tilt) * self.width
        # exact at orders 0 and 1, since the mean of each cell is
        excess = np.abs(tilt * (tilt - 1)) * self.width**2 / 24
        return np.asarray(self.log_q + tilt * self.ratio + np.minimum(spread / 2, excess))


def _coarse(pair: Pair, window: Window, times: int) -> _Coarse:
    edges = np.linspace(window.low, window.high, _CELLS + 1)
    p1, q0 = pair.masses(edges)
    keep = (q0 > 1e-290) & (p1 > 1e-290)
    p1, q0, q = p1[keep], q0[keep], pair.probability
    ratio = np.log1p(q * (p1 / q0 - 1)) if q < 1 else np.log(p1 / q0)
    floor = math.log1p(q * math.expm1(window.low)) if q < 1 else window.low
    return _Coarse(ratio, np.gradient(ratio), np.log(q0), floor, times)


def _cumulant(coarse: Sequence[_Coarse], tilts: Floats) -> Floats:
    """Return log E_Q[r^λ] of the composition at each λ."""
    total = np.zeros(tilts.size)
    for part in coarse:
        exponent = part.tilted(tilts[:, None])
        top = exponent.max(axis=1)
        total += part.times * (top + np.log(np.exp(exponent - top[:, None]).sum(axis=1)))
    return total


def _search(objective: Callable[[Floats], Floats]) -> tuple[float, float]:
    """Return the λ > 1 that minimises `objective`, a function of λ − 1, and its least value."""
    excess = np.geomspace(1e-5, 1e7, 41)
    for width in (0.3, 0.05):
        best = excess[int(np.argmin(objective(excess)))]
        excess = best * 10.0 ** np.linspace(-width, width, 11)
    values = objective(excess)
    return 1 + float(excess[int(np.argmin(values))]), float(values.min())


def _tilt_for_delta(
    coarse: Sequence[_Coarse], log_delta: float, *, reverse: bool
) -> tuple[float, float]:
    """Return the order λ of the best Rényi conversion at δ, and its ε."""

    def epsilon(excess: Floats) -> Floats:
        moment = _cumulant(coarse, -excess if reverse else 1 + excess)
        constant = excess * np.log(excess / (1 + excess)) - np.log1p(excess)
        return np.asarray((moment + constant - log_delta) / excess)

    return _search(epsilon)


def _tilt_for_epsilon(coarse: Sequence[_Coarse], epsilon: float) -> float:
    """Return the λ at which round-off in the tilted masses is least in δ(ε)."""

    def error(excess: Floats) -> Floats:
        moment = _cumulant(coarse, 1 + excess)
        return np.asarray(moment - excess * epsilon - np.log(excess * (1 + excess)))

    # The least tilt that is nearly as good: with heavy tails a larger one takes the mass far away.
    best, least = _search(error)
    excess = np.geomspace(1e-6, 1.0, 121) * (best - 1)
    good = error(excess) <= least + _NEARLY
    return 1 + float(excess[int(np.argmax(good))])


def _spread(coarse: Sequence[_Coarse], tilt: float) -> float:
    """Return the standard deviation of the tilted composition."""
    variance = 0.0
    for part in coarse:
        exponent = part.tilted(tilt)
        weight = np.exp(exponent - exponent.max())
        weight /= weight.sum()
        mean = float(weight @ part.ratio)
        variance += part.times * float(weight @ (part.ratio - mean) ** 2)
    return math.sqrt(variance)


def _gaps(coarse: Sequence[_Coarse], tilt: float, steps: Floats) -> Floats:
    """Estimate upper − lower in ε for lattice steps: λ/2 times the variance that they differ by.

    tilt: λ in the remove direction, 1 − λ in the other one.

    Within a cell of a smooth density both bounds together move the variance by h²/4; near the
    lowest ratio, which is a lattice point, by no more than h·(distance from it).
    """
    total = np.zeros(steps.size)
    for part in coarse:
        exponent = part.tilted(tilt)
        weight = np.exp(exponent - exponent.max())
        weight /= weight.sum()
        distance = np.maximum(part.ratio - part.floor, 0.0)
        moved = np.minimum(steps[:, None] / 4, distance) * steps[:, None]
        total += part.times * (moved @ weight)
    return total * max(tilt, 1 - tilt) / 2


def _fall(coarse: Sequence[_Coarse]) -> tuple[float, float]:
    """Return by how much the total loss all but surely never falls, and the rate of the bound."""
    rates = np.geomspace(1e-4, 1e10, 85)
    falls = (_SURELY + np.maximum(_cumulant(coarse, -rates), 0.0)) / rates
    best = int(np.argmin(falls))
    return float(falls[best]), float(rates[best])


def _with_jumps(coarse: Sequence[_Coarse], delta: float, fall: float, most: float) -> float:
    """Return about ε(δ), at most `most`, from the moments of what is no jump and the jumps."""
    low, high = math.log(1e-9), math.log(most)
    for _ in range(14):
        middle = (low + high) / 2
        epsilon = math.exp(middle)
        body, jump = [], 0.0
        for part in coarse:
            keep = part.ratio <= epsilon + fall
            body.append(
                _Coarse(
                    part.ratio[keep], part.width[keep], part.log_q[keep], part.floor, part.times
                )
            )
            jump += part.times * float(np.exp(part.log_q + part.ratio)[~keep].sum())
        excess = np.geomspace(1e-5, 1e9, 57)
        constant = excess * np.log(excess / (1 + excess)) - np.log1p(excess)
        moment = _cumulant(body, 1 + excess) + constant - excess * epsilon
        if jump + math.exp(min(float(moment.min()), 0.0)) > delta:
            low = middle
        else:
            high = middle
    return math.exp(high)


def choose(
    leaves: Leaves,
    deltas: tuple[float, float],
    gap: float,
    floor: float,
    truncation: float,
    known: tuple[float, float] | None,
) -> Region:
    """Return the region of deltas[0] such that the bounds are likely `gap` apart.

    deltas[1] ≤ deltas[0] is the smallest δ that will be asked there. known: what ε is known to be
    about at both. Where it is not known the best Rényi conversion stands in, and the step is kept
    so large that a first look is cheap.
    """
    delta = deltas[0]
    times = sum(count for _, count in leaves)
    windows = tuple(pair.window(truncation * delta / times) for pair, _ in leaves)
    coarse = [
        _coarse(pair, window, count) for (pair, count), window in zip(leaves, windows, strict=True)
    ]
    reverse_tilt, backward = _tilt_for_delta(coarse, math.log(delta), reverse=True)
    if known is None:
        tilt, forward = _tilt_for_delta(coarse, math.log(delta), reverse=False)
        epsilon = deepest = max(forward, backward)
    else:
        epsilon, deepest = known
        tilt = math.nan
    reach, rate = math.inf, 1.0
    if max(float(part.ratio[-1]) for part in coarse) > epsilon > 0:
        fall, rate = _fall(coarse)
        if known is None:
            most = _tilt_for_delta(coarse, math.log(deltas[1]), reverse=False)[1]
            epsilon, deepest = (max(_with_jumps(coarse, d, fall, most), backward) for d in deltas)
        reach = deepest * 1.02
        cuts = tuple(
            cut(pair, window, reach + fall)
            for (pair, _), window in zip(leaves, windows, strict=True)
        )
        if cuts == windows:
            reach = math.inf
        else:
            windows, tilt = cuts, math.nan
            coarse = [
                _coarse(pair, window, count)
                for (pair, count), window in zip(leaves, windows, strict=True)
            ]
    if math.isnan(tilt):
        tilt = _tilt_for_epsilon(coarse, epsilon)
    # Bounded losses have finite ε at every order; larger ones would ask for needlessly fine steps.
    widest = max(float(np.abs(part.ratio).max()) for part in coarse)
    tilt, reverse_tilt = (min(t, 1 + _STEEPEST / widest) for t in (tilt, reverse_tilt))
    steps = np.geomspace(1e-12, 1.0, 121)
    gaps = _gaps(coarse, tilt, steps)
    if known is None and backward > 0.9 * epsilon:
        gaps = np.maximum(gaps, _gaps(coarse, 1 - reverse_tilt, steps))
    wanted = gap * max(epsilon, floor)
    step = float(np.exp(np.interp(math.log(wanted), np.log(gaps), np.log(steps))))
    step = min(step, _COARSEST, 1 / tilt)
    spread = _spread(coarse, tilt)
    if known is None:
        step = max(step, 16 * spread / _GLANCE)
    return Region(delta, epsilon, spread, reach, rate, tilt, reverse_tilt, step, windows)


def log_delta(leaves: Leaves, epsilon: Floats, truncation: float) -> Floats:
    """Estimate log δ(ε) by the best moment bound of either direction."""
    times = sum(count for _, count in leaves)
    coarse = [
        _coarse(pair, pair.window(truncation * _FAINTEST / times), count) for pair, count in leaves
    ]
    excess = np.geomspace(1e-5, 1e7, 121)
    constant = excess * np.log(excess / (1 + excess)) - np.log1p(excess)
    moments = np.array([_cumulant(coarse, 1 + excess), _cumulant(coarse, -excess)])
    values = moments[:, None, :] + constant - epsilon[:, None] * excess
    return np.asarray(np.minimum(values.min(axis=2).max(axis=0), 0.0))
