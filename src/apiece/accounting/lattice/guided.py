"""Upper bounds on ε for thousands of similar mechanisms, each in one look.

`privacy_curve` looks several times, at a lattice pair from above and one from below, to know how
far its bounds lie apart. Where ε is already known to be about some value, as it is when a plan is
verified against its budgets, one look from above is enough. Mechanisms are taken in runs of
similar ones: the first of a run decides how fine a lattice is needed, by refining until that
changes nothing, and the others scale it. None of this affects soundness: every number returned is
an upper bound, and where the look was at the wrong place it is taken again.
"""

from __future__ import annotations

import math
import os
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from apiece._types import Floats
from apiece.accounting.accuracy import DEFAULT
from apiece.accounting.batch import epsilons, require_batch
from apiece.accounting.choose import privacy_curve
from apiece.accounting.closed.forms import log_ratio
from apiece.accounting.lattice.cells import cut
from apiece.accounting.lattice.convolution import TooLongError, side, tail
from apiece.accounting.lattice.dominating import dominating
from apiece.accounting.lattice.interpolants import Line, above_line
from apiece.accounting.lattice.pairs import GaussianPair
from apiece.accounting.lattice.refinement import STEEPEST
from apiece.accounting.lattice.settings import Region, choose
from apiece.accounting.lattice.truncation import jumps
from apiece.accounting.renyi import divergences
from apiece.accounting.renyi import profile as rdp
from apiece.errors import RangeError
from apiece.mechanisms import Gaussian, Repeated, Sampled

_RUN = 16  # similar mechanisms that share one choice of settings
_WIDEST = 1.3  # of a range of δ looked at at once, in √(2·log(1/δ))
_MOVED = 0.05  # a look this far from where ε was expected is taken again
_SETTLED = 8e-4  # relative change of ε at which refining stops
_FINER = 0.6
_SIMILAR = 0.3  # relative distance in ε over which settings are scaled
_SPACING = 0.1  # between orders, of their log
_SOUGHT = 5  # values of δ around whose best orders closer looks are taken
_CLOSER = ((0.1, 16), (0.0133, 12))  # how far around, and how many orders


class _Curve(NamedTuple):
    """One look: an upper bound on ε(δ) of both directions, and the settings that gave it.

    cut: losses above it were taken for jumps.
    """

    lines: tuple[Line, Line]
    region: Region
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


def upper_epsilons(
    *,
    noise_multiplier: Floats,
    sampling_probability: Floats,
    steps: npt.NDArray[np.int64],
    delta: Floats,
    expected: Floats,
    method: str = "pld",
) -> Floats:
    """Return upper bounds on ε(δ) of sampled Gaussian steps, for arrays of one length.

    expected: about what each ε is, NaN where unknown; it decides where to look, never whether a
    bound holds. Equal mechanisms share a computation, so there may be millions of entries, with
    some hundreds of distinct mechanisms. Usually less than 0.1 % above the truth, as
    `privacy_curve`; the result depends on the arguments only.
    """
    require_batch(method)
    columns = (steps, sampling_probability, noise_multiplier)
    order = np.lexsort((*columns[::-1],))
    new = np.zeros(order.size, dtype=bool)
    new[:1] = True
    for column in columns:
        ordered = column[order]
        new[1:] |= ordered[1:] != ordered[:-1]
    if method == "pld" and new.all():  # no curve to share: contours are quicker
        bounds = epsilons(
            noise_multiplier=noise_multiplier,
            sampling_probability=sampling_probability,
            steps=steps,
            delta=delta,
        )
        return np.asarray(bounds.upper)
    members = np.split(order, np.flatnonzero(new)[1:])
    out = np.empty(delta.shape)
    account = _run_pld if method == "pld" else _run_rdp

    def run(start: int) -> None:
        some = members[start : start + _RUN]
        entries = [
            _Entry(
                float(noise_multiplier[m[0]]),
                float(sampling_probability[m[0]]),
                int(steps[m[0]]),
                delta[m],
                expected[m],
            )
            for m in some
        ]
        for m, found in zip(some, account(entries), strict=True):
            out[m] = found

    starts = range(0, len(members), _RUN)
    if method == "pld" or len(starts) == 1:  # small arrays: threads would wait for each other
        for start in starts:
            run(start)
    else:
        with ThreadPoolExecutor(max_workers=min(4, os.cpu_count() or 1)) as pool:
            list(pool.map(run, starts))
    return out


def _run_pld(entries: list[_Entry]) -> list[Floats]:
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
            found[here], like[part] = _look(some, float(middles[part]), like[part])
        out.append(found)
    return out


def _look(entry: _Entry, delta: float, like: _Curve | None) -> tuple[Floats, _Curve | None]:
    """Return the bounds of one mechanism around one δ, and the curve that others can follow."""
    if entry.q == 1 or entry.steps == 1:
        return _whole(entry), like
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
            beyond = float(found.max()) > curve.region.reach
            if abs(_ratio(expected, found) - 1) <= _MOVED and not beyond:
                return found, like
            like = None if beyond or curve is like else like
            expected = found
    except (RangeError, TooLongError):
        pass
    return _whole(entry), None


def _ratio(expected: Floats, found: Floats) -> float:
    """Return how much larger ε is expected to be; 1 where nothing is, or nothing is spent."""
    known = (expected > 0) & (found > 0) & np.isfinite(expected) & np.isfinite(found)
    return float(np.median(expected[known] / found[known])) if known.any() else 1.0


def _whole(entry: _Entry) -> Floats:
    """Return the bounds by the whole privacy curve; slower, for what one look cannot do."""
    step = Gaussian(entry.z) if entry.q == 1 else Sampled(Gaussian(entry.z), entry.q)
    curve = privacy_curve(Repeated(step, entry.steps))
    return np.asarray(curve.epsilon(entry.delta).upper)


def _chosen(entry: _Entry, delta: float, expected: Floats | None) -> Region:
    """Return settings for an entry's δ, of which those near `delta` matter most."""
    order = np.argsort(-entry.delta, kind="stable")
    middle = int(np.argmin(np.abs(np.log(entry.delta[order] / delta))))
    some = order[[0, middle, -1]]
    leaves = ((GaussianPair(entry.z, entry.q), entry.steps),)
    return choose(leaves, entry.delta[some], DEFAULT, None if expected is None else expected[some])


def _similar(entry: _Entry, like: _Curve, ratio: float) -> Region:
    """Return settings for a mechanism whose losses are larger by `ratio`; orders are smaller."""
    old, pair = like.region, GaussianPair(entry.z, entry.q)
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
        finer = _at(entry, curve.region._replace(step=curve.region.step * _FINER))
        before, after = curve.epsilon(entry.delta), finer.epsilon(entry.delta)
        curve = finer
        if abs(_ratio(before, after) - 1) <= _SETTLED:
            break
    return curve


def _at(entry: _Entry, region: Region) -> _Curve:
    """Return the upper bounds of one look, in both directions."""
    pair, window, step = GaussianPair(entry.z, entry.q), region.windows[0], region.step
    high = dominating(pair, window, step)
    rare = jumps([(high, entry.steps)], region.rate)
    lines = []
    for reverse, tilt, wrap, until in (
        (False, region.tilt, region.wrap, 0.0 if rare is None else region.reach),
        (True, region.reverse_tilt, DEFAULT.wrap, 0.0),
    ):
        outside = entry.steps * (high.outside_q if reverse else high.outside_p)
        parts = [side(high, entry.steps, reverse=reverse)]
        found = tail(parts, step, min(tilt, STEEPEST / step), wrap, DEFAULT.points, until)
        lines.append(above_line(found, outside, rare, reverse=reverse))
    return _Curve((lines[0], lines[1]), region, log_ratio(window.high, entry.q))


def _run_rdp(entries: list[_Entry]) -> list[Floats]:
    """Return the bounds by the best of some orders; near the best, of many.

    ε has a sharp least value at the order where the divergence takes off, so a close look pays.
    """
    high = 2 + 2 * max(max(12 * e.z, e.z**2 * math.log(1 / e.q)) for e in entries)
    count = math.ceil(math.log(high / 1e-3) / _SPACING) + 1
    orders = np.tile(1 + np.geomspace(1e-3, high, count), (len(entries), 1))
    z, q, t = (np.array([e[k] for e in entries])[:, None] for k in range(3))
    sought = [np.quantile(e.delta, np.linspace(0, 1, _SOUGHT)) for e in entries]
    tried: list[tuple[Floats, Floats]] = [(orders, t * divergences.sampled_gaussian(z, q, orders))]
    for width, points in _CLOSER:
        rows = zip(*tried[-1], sought, strict=True)
        orders = np.array([_closer(*row, width, points) for row in rows])
        tried.append((orders, t * divergences.sampled_gaussian(z, q, orders)))
    out = []
    for row, entry in enumerate(entries):
        orders, divergence = (np.concatenate([pair[k][row] for pair in tried[1:]]) for k in (0, 1))
        orders, first = np.unique(orders, return_index=True)
        profile = rdp.RenyiProfile(orders, divergence[first])
        out.append(np.asarray(profile.epsilon(entry.delta).upper))
    return out


def _closer(orders: Floats, divergence: Floats, delta: Floats, width: float, points: int) -> Floats:
    """Return orders around the best one at each δ."""
    best = rdp.epsilon_at(divergence, orders, delta[:, None]).argmin(axis=1)
    around = np.log(orders - 1)[best][:, None] + np.linspace(-width, width, points)
    return np.asarray(1 + np.exp(around)).ravel()
