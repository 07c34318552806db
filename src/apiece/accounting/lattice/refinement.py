"""Bounds around one δ: choose settings, compose, see whether they are close enough, refine."""

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
    Attempt,
    Attempts,
    Line,
    above_line,
    below_line,
    rare_losses,
)
from apiece.accounting.lattice.pairs import told_apart
from apiece.accounting.lattice.settings import Settings, settings_for
from apiece.errors import RangeError

_SECOND_CHANCE = 3.0  # times the gap wanted, up to which refining is given a second chance
_WIDEST = 10.0  # lattice steps beyond it tell nothing
_MOVES = 5  # times that the neighbourhood is moved to the ε found


def refined(leaves: Leaves, deltas: Floats, accuracy: Accuracy) -> Attempts:
    """Return bounds for the range of decreasing `deltas`, an odd number of them.

    The step is refined until the gap is what is wanted, the points run out, or refining does not
    help: near the gap wanted twice, as where few steps make δ it depends on how they happen to
    lie on the lattice.
    """
    settings = settings_for(leaves, deltas, accuracy, None)
    best: tuple[Attempt, ...] = ()
    moves, before, refine = 0, (math.inf, math.inf), True
    while True:
        try:
            found = _compose(leaves, deltas, settings, accuracy)
        except TooLongError as error:
            if settings.step > _WIDEST:
                raise RangeError(f"losses of {leaves!r} are past the numerical range") from None
            settings = settings._replace(step=1.05 * error.excess * settings.step)
            refine = False
            continue
        kept = Attempts((*best, found), close=False)
        lower, upper = kept.epsilon(deltas)
        if moves < _MOVES and _moved(settings, upper):
            known = np.where(np.isfinite(upper), upper, 2 * settings.reach)
            settings = settings_for(leaves, deltas, accuracy, known)
            best, moves, before, refine = (found,), moves + 1, (math.inf, math.inf), True
            continue
        gaps = np.minimum(upper, 1e300) - lower
        worst = float(np.max(gaps / np.minimum(accuracy.wanted(upper), 1e297)))
        stuck = worst > 0.8 * before[0 if worst < _SECOND_CHANCE else 1]
        if worst <= 1 or not refine or stuck:
            return Attempts(kept.attempts, close=worst <= 1)
        best = (found,) if worst < before[1] else best
        before, finer = (before[1], worst), min(0.7, max(0.1, math.sqrt(0.85 / worst)))
        settings = settings._replace(step=settings.step * finer)


def _moved(settings: Settings, found: Floats) -> bool:
    """Whether the ε found are so far from those of the settings that another would be better."""
    middle, last = float(found[found.size // 2]), float(found[-1])
    if not math.isfinite(middle):
        return False
    far = abs(middle - settings.epsilon) > min(0.2 * settings.epsilon, 2 * settings.spread)
    return far or last > settings.reach or 2 * last < settings.reach < math.inf


def _compose(leaves: Leaves, deltas: Floats, settings: Settings, accuracy: Accuracy) -> Attempt:
    """Compose both lattice pairs in both directions.

    In the add direction from below only where that can matter: where its upper bound is somewhere
    above the lower bound of the remove direction.
    """
    cells = max(
        (log_ratio(w.high, p.probability) - log_ratio(w.low, p.probability)) / settings.step
        for (p, _), w in zip(leaves, settings.windows, strict=True)
    )
    if cells > 2 * accuracy.points:
        raise TooLongError(cells / accuracy.points)
    if len(leaves) == 1:
        settings = settings._replace(step=aligned(leaves[0][0], settings.windows[0], settings.step))
    pairs = [
        (discretise(pair, window, settings.step), times)
        for (pair, times), window in zip(leaves, settings.windows, strict=True)
    ]
    lows, highs = ([(both[end], times) for both, times in pairs] for end in (0, 1))
    rare = rare_losses(highs, settings.rate, lows)
    above: list[Line] = []
    below: list[Line] = []
    for reverse, options in settings.directions(accuracy, jumps=rare is not None):
        upper = [side(high, times, reverse=reverse) for (_, high), times in pairs]
        outside = sum(
            times * (high.outside_q if reverse else high.outside_p) for (_, high), times in pairs
        )
        certain = told_apart(leaves, reverse=reverse)
        outside += certain.upper
        above.append(above_line(tail(upper, *options), outside, rare, reverse=reverse))
        if reverse and (above[1].epsilon(deltas, -1.0) <= below[0].epsilon(deltas, 0.0)).all():
            break
        lower = [side(low, times, reverse=reverse) for (low, _), times in pairs]
        rarely = None if reverse else rare
        below.append(below_line(tail(lower, *options), certain.lower, rarely))
    return Attempt(tuple(above), tuple(below))
