"""Upper bounds on ε where it is known about how large it is: one composition a mechanism.

A profile on the lattice is composed several times, from above and from below, to find the place to
look at and to know how far its bounds lie apart. Where ε is already known to be about some value,
as it is when a plan is verified against its budgets, one composition from above is enough.
Mechanisms are taken in runs of similar ones: the first of a run decides how fine a lattice is
needed, by refining until that changes nothing, and the others scale it. None of this affects
soundness: every number returned is an upper bound, and where a guess was far off it is taken again.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from apiece._types import Floats
from apiece.accounting.accuracy import DEFAULT
from apiece.accounting.closed.forms import log_ratio
from apiece.accounting.lattice.convolution import TooLongError, side, tail
from apiece.accounting.lattice.dominating import cells, cut, dominating
from apiece.accounting.lattice.interpolants import Line, above_line, rare_losses
from apiece.accounting.lattice.pairs import GaussianPair
from apiece.accounting.lattice.settings import Settings, settings_for
from apiece.errors import RangeError

_RUN = 16  # similar mechanisms that share one choice of settings
_WIDEST = 1.3  # of a range of δ looked at at once, in √(2·log(1/δ))
_MOVED = 0.05  # a composition this far from where ε was expected is taken again
_SETTLED = 8e-4  # relative change of ε at which refining stops
_FINER = 0.6
_SIMILAR = 0.3  # relative distance in ε over which settings are scaled


class _Curve(NamedTuple):
    """One look: an upper bound on ε(δ) of both directions, and the settings that gave it.

    cut: losses above it were taken for jumps.
    """

    lines: tuple[Line, Line]
    settings: Settings
    cut: float

    def epsilon(self, delta: Floats) -> Floats:
        """Return the larger direction's bound."""
        bounds = [line.epsilon(delta, line.start) for line in self.lines]
        return np.asarray(np.maximum(np.maximum(*bounds), 0.0))


class _Entry(NamedTuple):
    """One mechanism with the δ's it is asked at and what ε is expected to be there."""

    z: float
    q: float
    steps: int
    delta: Floats
    expected: Floats


def guided_upper(columns: Floats, starts: Sequence[int], expected: Floats) -> Floats:
    """Return upper bounds on ε for columns (z, q, T, δ) of sampled Gaussian steps, T ≥ 2, q < 1.

    Equal mechanisms lie side by side and begin at `starts`. expected: about what each ε is, NaN
    where unknown; it decides where to look, never whether a bound holds. ∞ where one composition
    cannot tell. Usually less than 0.1 % above the truth.
    """
    ends = [*starts[1:], columns.shape[1]]
    entries = []
    for a, b in zip(starts, ends, strict=True):
        z, q, times = columns[:3, a].tolist()
        entries.append(_Entry(z, q, int(times), columns[3, a:b], expected[a:b]))
    runs = (entries[k : k + _RUN] for k in range(0, len(entries), _RUN))
    return np.concatenate([found for run in runs for found in _run(run)])


def _run(entries: list[_Entry]) -> list[Floats]:
    """Return the bounds of similar mechanisms, δ by ranges."""
    lowest = min(float(e.delta.min()) for e in entries)
    highest = max(float(e.delta.max()) for e in entries)
    reach = np.sqrt(-2 * np.log([highest, lowest]))
    count = max(1, math.ceil((reach[1] - reach[0]) / _WIDEST))
    edges = np.linspace(reach[0], reach[1], count + 1)
    middles = np.exp(-(((edges[1:] + edges[:-1]) / 2) ** 2) / 2)
    like: list[_Curve | None] = [None] * count
    out = []
    for entry in entries:
        found = np.empty(entry.delta.shape)
        place = np.searchsorted(edges[1:-1], np.sqrt(-2 * np.log(entry.delta)))
        for part in np.unique(place):
            here = place == part
            some = entry._replace(delta=entry.delta[here], expected=entry.expected[here])
            found[here], like[part] = _attempt(some, float(middles[part]), like[part])
        out.append(found)
    return out


def _attempt(entry: _Entry, delta: float, like: _Curve | None) -> tuple[Floats, _Curve | None]:
    """Return the bounds of one mechanism around one δ, and the curve that others can follow.

    ∞ where one composition cannot tell.
    """
    try:
        expected = entry.expected
        if np.isnan(expected).any():
            expected = _at(entry, _chosen(entry, delta, None)).epsilon(entry.delta)
        for _ in range(4):
            ratio = math.inf if like is None else _ratio(expected, like.epsilon(entry.delta))
            if like is None or not abs(ratio - 1) < _SIMILAR:
                curve = like = _refined(entry, delta, expected)
            else:
                curve = _at(entry, _similar(entry, like, ratio))
            found = curve.epsilon(entry.delta)
            if not np.isfinite(found).all():
                break
            beyond = float(found.max()) > curve.settings.reach
            if abs(_ratio(expected, found) - 1) <= _MOVED and not beyond:
                return found, like
            like = None if beyond or curve is like else like
            expected = found
    except (RangeError, TooLongError):
        pass
    return np.full(entry.delta.shape, np.inf), None


def _ratio(expected: Floats, found: Floats) -> float:
    """Return how much larger ε is expected to be; 1 where nothing is, or nothing is spent."""
    known = (expected > 0) & (found > 0) & np.isfinite(expected) & np.isfinite(found)
    return float(np.median(expected[known] / found[known])) if known.any() else 1.0


def _chosen(entry: _Entry, delta: float, expected: Floats | None) -> Settings:
    """Return settings for an entry's δ, of which those near `delta` matter most."""
    order = np.argsort(-entry.delta, kind="stable")
    middle = int(np.argmin(np.abs(np.log(entry.delta[order] / delta))))
    some = order[[0, middle, -1]]
    leaves = ((GaussianPair(entry.z, entry.q), entry.steps),)
    return settings_for(
        leaves, entry.delta[some], DEFAULT, None if expected is None else expected[some]
    )


def _similar(entry: _Entry, like: _Curve, ratio: float) -> Settings:
    """Return settings for a mechanism whose losses are larger by `ratio`; orders are smaller."""
    old, pair = like.settings, GaussianPair(entry.z, entry.q)
    window = pair.window(DEFAULT.truncation * float(entry.delta.min()) / entry.steps)
    if old.reach < math.inf:
        window = cut(pair, window, like.cut * ratio)
    return old._replace(
        reach=old.reach * ratio,
        rate=old.rate / ratio,
        tilt=1 + (old.tilt - 1) / ratio,
        reverse_tilt=1 + (old.reverse_tilt - 1) / ratio,
        step=old.step * ratio,
        windows=(window,),
    )


def _refined(entry: _Entry, delta: float, expected: Floats) -> _Curve:
    """Return the curve of a mechanism around δ on a lattice that is fine enough."""
    curve = _at(entry, _chosen(entry, delta, expected))
    for _ in range(8):
        finer = _at(entry, curve.settings._replace(step=curve.settings.step * _FINER))
        before, after = curve.epsilon(entry.delta), finer.epsilon(entry.delta)
        curve = finer
        if abs(_ratio(before, after) - 1) <= _SETTLED:
            break
    return curve


def _at(entry: _Entry, settings: Settings) -> _Curve:
    """Return the upper bounds of one look, in both directions."""
    pair, window, step = GaussianPair(entry.z, entry.q), settings.windows[0], settings.step
    high = dominating(pair, window, step, cells(pair, window, step))
    rare = rare_losses([(high, entry.steps)], settings.rate)
    lines = []
    for reverse, options in settings.directions(DEFAULT, jumps=rare is not None):
        outside = entry.steps * (high.outside_q if reverse else high.outside_p)
        found = tail([side(high, entry.steps, reverse=reverse)], *options)
        lines.append(above_line(found, outside, rare, reverse=reverse))
    return _Curve((lines[0], lines[1]), settings, log_ratio(window.high, entry.q))
