"""A coin before a whole composition: its loss distribution, atom by atom, from below and above.

The composition's lattice pairs (`dominating`) are composed as ever, but here every mass is wanted,
not δ at one ε. One tilt tells the masses near its mean; so several are taken, and each mass is read
off where its error, |error of w|·E[r^λ]·e^{−λℓ}, is least. Masses less their errors are a part of
a dominated pair, masses plus their errors contain a dominating one, and with a coin in front both
are pairs like any other: a loss ℓ becomes log(1 − π + π·e^ℓ) under the same Q.

Source: Balle, Barthe, Gaboardi 2018, Theorem 2 (a coin in front).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from operator import attrgetter

import numpy as np
from scipy import fft

from apiece._types import Bounds, Floats
from apiece.accounting.accuracy import Accuracy
from apiece.accounting.lattice.convolution import (
    NEGLIGIBLE,
    Side,
    convolve,
    moment,
    reach,
    side,
    tilt_part,
)
from apiece.accounting.lattice.dominated import discretise
from apiece.accounting.lattice.estimates import Leaves, gaps, renyi_tilt, view
from apiece.accounting.lattice.pairs import NEITHER, AtomsPair, Window, several, told_apart
from apiece.errors import RangeError
from apiece.numerics import UNIT

_LEAST_DELTA = 1e-17  # δ down to which masses are to be told
_USUAL = 1e-6  # δ by which the lattice step is chosen
_INNER_SHARE = 0.2  # of the gap wanted that the inner lattice may take
_TILTS = 11
_POINTS = 2**18
_WIDEST = 10.0  # lattice steps beyond it tell nothing
_WRAP = 1e-20  # tilted mass outside the transform
_LARGEST_EXPONENT = 2000.0
_NO_RATIO = 40.0  # nats below 1 − π, at which π·e^ρ is nothing beside it


def run_pair(leaves: Leaves, probability: float, accuracy: Accuracy) -> AtomsPair:
    """Return the pair of a composition behind one coin.

    What only P can show tells the worlds apart behind the coin too, π times as often. What only Q
    can show does not: there the ratio is 1 − π, an atom like any other. Raises `RangeError` where
    its losses are past the numerical range.
    """
    times = sum(count for _, count in leaves)
    windows = tuple(pair.window(accuracy.truncation * _LEAST_DELTA / times) for pair, _ in leaves)
    tilts, step = _settings(leaves, windows, accuracy)
    while True:
        lattices = [
            (discretise(pair, window, step), count)
            for (pair, count), window in zip(leaves, windows, strict=True)
        ]
        low, high = _window([side(pair[1], n, reverse=False) for pair, n in lattices], step, tilts)
        if high - low < _POINTS:
            break
        step *= 1.05 * (high - low) / _POINTS
        if step > _WIDEST:
            raise RangeError(
                f"a coin before a composition of {times} steps: past the numerical range; use "
                "fewer steps or more noise"
            )
    only_p, only_q = (told_apart(leaves, reverse=reverse) for reverse in (False, True))
    certain = Bounds(*(probability * end for end in only_p)), NEITHER[1]
    lowest = math.log1p(-probability) - _NO_RATIO
    ends = []
    for end in (0, 1):
        parts = [side(pair[end], count, reverse=False) for pair, count in lattices]
        loss, mass, relative, lost = _masses(parts, step, tilts, upper=end == 1)
        if only_q.upper > 0:
            loss = np.append(min(lowest, loss.min(initial=0.0) - 1), loss)
            mass = np.append(only_q[end], mass)
        out_p, out_q = (
            end * (lost + sum(count * outside(pair[1]) for pair, count in lattices))
            for outside in (attrgetter("outside_p"), attrgetter("outside_q"))
        )
        outside = (1 - probability) * out_q + probability * out_p, out_q
        points = several(loss, mass)
        ends.append(AtomsPair(*points, outside, relative + 16 * UNIT, probability, certain))
    return replace(ends[1], below=ends[0])


def _settings(
    leaves: Leaves, windows: tuple[Window, ...], accuracy: Accuracy
) -> tuple[Floats, float]:
    """Return the tilts by which all masses are told, and a lattice step."""
    coarse = view(leaves, windows)
    widest = 1 + _LARGEST_EXPONENT / max(part.largest for part in coarse)
    add, remove = (
        min(renyi_tilt(coarse, math.log(_LEAST_DELTA), reverse=reverse)[0], widest)
        for reverse in (True, False)
    )
    usual, epsilon = renyi_tilt(coarse, math.log(_USUAL), reverse=False)
    steps = np.geomspace(1e-9, 0.25, 60).astype(np.float64)
    wanted = _INNER_SHARE * accuracy.gap * max(epsilon, accuracy.floor)
    fine = max(int(np.searchsorted(gaps(coarse, usual, steps), wanted)) - 1, 0)
    return np.union1d(np.linspace(1 - add, remove, _TILTS), [0.0, 1.0]), float(steps[fine])


def _masses(
    parts: Sequence[Side], step: float, tilts: Floats, *, upper: bool
) -> tuple[Floats, Floats, float, float]:
    """Return the composition's losses, their Q-masses less (or with) their absolute errors, the
    relative error that is left, and a bound on the P- and on the Q-mass beyond the losses."""
    low, high = _window(parts, step, tilts)
    size = fft.next_fast_len(high - low + 1, real=True)
    start = sum(p.times * p.offset for p in parts)
    loss = np.asarray(start + step * np.arange(low, high + 1), dtype=np.float64)
    mass, error = np.zeros(loss.size), np.full(loss.size, np.inf)
    faint = 2 * _WRAP + sum(p.times * p.log_mass.size for p in parts) * NEGLIGIBLE
    relative = lost = 0.0
    for tilt in map(float, tilts):
        tilted = [tilt_part(part, step, tilt) for part in parts]
        weight, noise = convolve(tilted, parts, size)
        weight = np.roll(weight, -(low % size))[: loss.size]
        log_moment, rounding = moment(parts, tilted, tilt)
        with np.errstate(over="ignore"):
            scale = np.exp(log_moment - tilt * loss)
        better = (noise + faint) * scale < error
        mass[better] = weight[better] * scale[better]
        error[better] = (noise + faint) * scale[better]
        most = abs(log_moment) + float(np.abs(tilt * loss).max())
        relative = max(relative, rounding + 8 * UNIT * most)
        if tilt in (tilts[0], tilts[-1]):
            lost += min(_WRAP * _stands_for(log_moment, tilt, loss), 1.0)
    mass = np.maximum(mass + error if upper else mass - error, 0.0)
    return loss[mass > 0], mass[mass > 0], relative, lost


def _window(parts: Sequence[Side], step: float, tilts: Floats) -> tuple[int, int]:
    """Return lattice indices outside which no tilt leaves more than `_WRAP` on either side."""
    ends = [
        reach([tilt_part(part, step, float(tilt)) for part in parts], parts, -math.log(_WRAP))
        for tilt in tilts
    ]
    return min(low for low, _ in ends), max(high for _, high in ends)


def _stands_for(log_moment: float, tilt: float, loss: Floats) -> float:
    """Return the most P- or Q-mass that a unit of tilted mass beyond the losses stands for.

    Above them for a tilt over 1, below them for one under 0, where that falls with the distance.
    """
    end = float(loss[-1] if tilt > 1 else loss[0])
    return math.exp(min(log_moment + max((1 - tilt) * end, -tilt * end), 700.0))
