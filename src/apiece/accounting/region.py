"""Where to look: tilt and lattice step for one δ, estimated from a coarse view of the pairs.

Nothing here affects soundness; a poor choice only widens the bounds.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from apiece.accounting.pairs import Floats, Pair, Window

_CELLS = 256


class Region(NamedTuple):
    """Settings for the neighbourhood of one δ: tilts of the two directions, step, windows."""

    delta: float
    tilt: float
    reverse_tilt: float
    step: float
    windows: tuple[Window, ...]


class _Coarse(NamedTuple):
    """A pair in few cells: log ratios, log Q-masses and the lowest log ratio."""

    ratio: Floats
    log_q: Floats
    floor: float
    times: int


def _coarse(pair: Pair, window: Window, times: int) -> _Coarse:
    edges = np.linspace(window.low, window.high, _CELLS + 1)
    p1, q0 = pair.masses(edges)
    keep = (q0 > 1e-290) & (p1 > 1e-290)
    p1, q0, q = p1[keep], q0[keep], pair.probability
    ratio = np.log1p(q * (p1 / q0 - 1)) if q < 1 else np.log(p1 / q0)
    floor = math.log1p(q * math.expm1(window.low)) if q < 1 else window.low
    return _Coarse(ratio, np.log(q0), floor, times)


def _cumulant(coarse: Sequence[_Coarse], tilts: Floats) -> Floats:
    """Return log E_Q[r^λ] of the composition at each λ."""
    total = np.zeros(tilts.size)
    for part in coarse:
        exponent = part.log_q + tilts[:, None] * part.ratio
        top = exponent.max(axis=1)
        total += part.times * (top + np.log(np.exp(exponent - top[:, None]).sum(axis=1)))
    return total


def _best_tilt(
    coarse: Sequence[_Coarse], log_delta: float, *, reverse: bool
) -> tuple[float, float]:
    """Return the order λ > 1 of the best Rényi conversion at δ, and its ε."""

    def epsilon(excess: Floats) -> Floats:
        tilts = 1 + excess
        moment = _cumulant(coarse, 1 - tilts if reverse else tilts)
        constant = excess * np.log(excess / tilts) - np.log(tilts)
        return np.asarray((moment + constant - log_delta) / excess)

    excess = np.geomspace(1e-5, 1e7, 41)
    for width in (0.3, 0.05):
        best = excess[int(np.argmin(epsilon(excess)))]
        excess = best * 10.0 ** np.linspace(-width, width, 11)
    values = epsilon(excess)
    return 1 + float(excess[int(np.argmin(values))]), float(values.min())


def _gaps(coarse: Sequence[_Coarse], tilt: float, steps: Floats) -> Floats:
    """Estimate upper − lower in ε for lattice steps: λ/2 times the variance that they differ by.

    tilt: λ in the remove direction, 1 − λ in the other one.

    Within a cell of a smooth density both bounds together move the variance by h²/4; near the
    lowest ratio, which is a lattice point, by no more than h·(distance from it).
    """
    total = np.zeros(steps.size)
    for part in coarse:
        exponent = part.log_q + tilt * part.ratio
        weight = np.exp(exponent - exponent.max())
        weight /= weight.sum()
        distance = np.maximum(part.ratio - part.floor, 0.0)
        moved = np.minimum(steps[:, None] / 4, distance) * steps[:, None]
        total += part.times * (moved @ weight)
    return total * max(tilt, 1 - tilt) / 2


def choose(
    leaves: Sequence[tuple[Pair, int]], delta: float, gap: float, floor: float, truncation: float
) -> Region:
    """Return the region of `delta` such that the bounds are likely `gap` apart."""
    times = sum(count for _, count in leaves)
    windows = tuple(pair.window(truncation * delta / times) for pair, _ in leaves)
    coarse = [
        _coarse(pair, window, count) for (pair, count), window in zip(leaves, windows, strict=True)
    ]
    tilt, epsilon = _best_tilt(coarse, math.log(delta), reverse=False)
    reverse_tilt, reverse_epsilon = _best_tilt(coarse, math.log(delta), reverse=True)
    wanted = gap * max(epsilon, reverse_epsilon, floor)
    steps = np.geomspace(1e-12, 1.0, 121)
    gaps = _gaps(coarse, tilt, steps)
    if reverse_epsilon > 0.9 * epsilon:
        gaps = np.maximum(gaps, _gaps(coarse, 1 - reverse_tilt, steps))
    step = float(np.exp(np.interp(math.log(wanted), np.log(gaps), np.log(steps))))
    return Region(delta, tilt, reverse_tilt, step, windows)


def log_delta(leaves: Sequence[tuple[Pair, int]], epsilon: Floats, truncation: float) -> Floats:
    """Estimate log δ(ε) by the best moment bound of either direction."""
    times = sum(count for _, count in leaves)
    coarse = [
        _coarse(pair, pair.window(truncation * 1e-15 / times), count) for pair, count in leaves
    ]
    excess = np.geomspace(1e-5, 1e7, 121)
    constant = excess * np.log(excess / (1 + excess)) - np.log1p(excess)
    moments = np.array([_cumulant(coarse, 1 + excess), _cumulant(coarse, -excess)])
    values = moments[:, None, :] + constant - epsilon[:, None] * excess
    return np.asarray(np.minimum(values.min(axis=2).max(axis=0), 0.0))
