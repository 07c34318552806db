"""Bounds around one δ: choose a region, compose, look whether they are close enough, refine."""

from __future__ import annotations

import math

import numpy as np

from apiece._types import Floats
from apiece.accounting.accuracy import Accuracy
from apiece.accounting.closed.forms import log_ratio
from apiece.accounting.lattice.convolution import TooLongError, side, tail
from apiece.accounting.lattice.dominated import discretise
from apiece.accounting.lattice.dominating import aligned
from apiece.accounting.lattice.estimates import Leaves
from apiece.accounting.lattice.interpolants import (
    Bracket,
    Brackets,
    Line,
    above_line,
    below_line,
    rare_losses,
)
from apiece.accounting.lattice.pairs import told_apart
from apiece.accounting.lattice.settings import Region, choose
from apiece.errors import RangeError

_NEARLY = 3.0  # times the gap wanted, up to which refining is given a second chance
_LOOKS = 5  # times that the neighbourhood is moved to the ε found


def bracket(leaves: Leaves, deltas: Floats, accuracy: Accuracy) -> Brackets:
    """Return bounds for the range of decreasing `deltas`, an odd number of them.

    The step is refined until the gap is what is wanted, the points run out, or refining does not
    help: near the gap wanted twice, as where few steps make δ it depends on how they happen to
    lie on the lattice.
    """
    region = choose(leaves, deltas, accuracy, None)
    best: tuple[Bracket, ...] = ()
    looks, before, refine = 0, (math.inf, math.inf), True
    while True:
        try:
            found = _compose(leaves, deltas, region, accuracy)
        except TooLongError as error:
            if region.step > _WIDEST:
                raise RangeError(f"losses of {leaves!r} are past the numerical range") from None
            region = region._replace(step=1.05 * error.excess * region.step)
            refine = False
            continue
        kept = Brackets((*best, found), close=False)
        lower, upper = kept.epsilon(deltas)
        if looks < _LOOKS and _moved(region, upper):
            known = np.where(np.isfinite(upper), upper, 2 * region.reach)
            region = choose(leaves, deltas, accuracy, known)
            best, looks, before, refine = (found,), looks + 1, (math.inf, math.inf), True
            continue
        gaps = np.minimum(upper, 1e300) - lower
        worst = float(np.max(gaps / np.minimum(accuracy.wanted(upper), 1e297)))
        stuck = worst > 0.8 * before[0 if worst < _NEARLY else 1]
        if worst <= 1 or not refine or stuck:
            return Brackets(kept.brackets, close=worst <= 1)
        best = (found,) if worst < before[1] else best
        before, finer = (before[1], worst), min(0.7, max(0.1, math.sqrt(0.85 / worst)))
        region = region._replace(step=region.step * finer)


def _moved(region: Region, found: Floats) -> bool:
    """Whether the ε found are so far from those of the region that another would be better."""
    middle, last = float(found[found.size // 2]), float(found[-1])
    if not math.isfinite(middle):
        return False
    far = abs(middle - region.epsilon) > min(0.2 * region.epsilon, 2 * region.spread)
    return far or last > region.reach or 2 * last < region.reach < math.inf


_WIDEST = 10.0
STEEPEST = 20.0  # largest tilt, in units of 1/step


def _compose(leaves: Leaves, deltas: Floats, region: Region, accuracy: Accuracy) -> Bracket:
    """Compose both lattice pairs in both directions.

    In the add direction from below only where that can matter: where its upper bound is somewhere
    above the lower bound of the remove direction.
    """
    cells = max(
        (log_ratio(w.high, p.probability) - log_ratio(w.low, p.probability)) / region.step
        for (p, _), w in zip(leaves, region.windows, strict=True)
    )
    if cells > 2 * accuracy.points:
        raise TooLongError(cells / accuracy.points)
    if len(leaves) == 1:
        region = region._replace(step=aligned(leaves[0][0], region.windows[0], region.step))
    pairs = [
        (discretise(pair, window, region.step), times)
        for (pair, times), window in zip(leaves, region.windows, strict=True)
    ]
    lows, highs = ([(both[end], times) for both, times in pairs] for end in (0, 1))
    rare = rare_losses(highs, region.rate, lows)
    until = 0.0 if rare is None else region.reach
    above: list[Line] = []
    below: list[Line] = []
    for reverse, tilt, wrap, end in (
        (False, region.tilt, region.wrap, until),
        (True, region.reverse_tilt, accuracy.wrap, 0.0),
    ):
        settings = (region.step, min(tilt, STEEPEST / region.step), wrap, accuracy.points, end)
        upper = [side(high, times, reverse=reverse) for (_, high), times in pairs]
        outside = sum(
            times * (high.outside_q if reverse else high.outside_p) for (_, high), times in pairs
        )
        certain = told_apart(leaves, reverse=reverse)
        outside += certain.upper
        above.append(above_line(tail(upper, *settings), outside, rare, reverse=reverse))
        if reverse and (above[1].epsilon(deltas, -1.0) <= below[0].epsilon(deltas, 0.0)).all():
            break
        lower = [side(low, times, reverse=reverse) for (low, _), times in pairs]
        rarely = None if reverse else rare
        below.append(below_line(tail(lower, *settings), certain.lower, rarely))
    return Bracket(tuple(above), tuple(below))
