"""One step's dominating pair on a lattice of log-ratios, from above and from below.

On a lattice ℓ_k = offset + k·h a pair is one vector: Q-masses q_k, with P-masses e^{ℓ_k}·q_k.
Everything rests on two facts about the likelihood ratio r under Q: spreading r without moving its
mean gives a dominating pair, contracting r (a post-processing) a dominated one; both survive
composition and both directions of add/remove.

Above: the mass of each cell, and each atom, goes to the two ends of the cell, keeping its P- and
its Q-mass (connect the dots: Doroshenko, Ghazi, Kamath, Kumar, Manurangsi 2022). Outside the window
the two sides are told apart outright. The variance of the loss grows by at most h²/4, typically
h²/6.

Below: see `dominated`.
"""

from __future__ import annotations

import math

import numpy as np

from apiece.accounting.closed.forms import log_ratio
from apiece.accounting.lattice.cells import Cells, Lattice, cells, jump
from apiece.accounting.lattice.dominated import contract
from apiece.accounting.lattice.pairs import Pair, RunPair, Window
from apiece.numerics import UNIT


def discretise(pair: Pair, window: Window, step: float) -> tuple[Lattice, Lattice]:
    """Return a dominated and a dominating lattice pair of `pair` cut off at `window`."""
    if isinstance(pair, RunPair):
        under, over = pair.below, pair.above
        whole = under.window(0.0)
        lower = discretise(under, whole._replace(high=min(whole.high, window.high)), step)[0]
        return lower, discretise(over, window, step)[1]
    parts = cells(pair, window, step)
    return contract(pair, window, step, parts), _spread(pair, window, step, parts)


def dominating(pair: Pair, window: Window, step: float) -> Lattice:
    """Return the dominating one of `discretise` alone."""
    return _spread(pair, window, step, cells(pair, window, step))


def _spread(pair: Pair, window: Window, step: float, parts: Cells) -> Lattice:
    """Put each cell's mass, and each atom, on its two ends, keeping its mean."""
    offset = log_ratio(window.low, pair.probability)
    mass = np.zeros(parts.mass.size + 1)
    high = parts.mass * parts.share
    mass[:-1] = parts.mass - high
    mass[1:] += high
    for atom in pair.atoms:
        if atom.rho <= window.high:
            beyond = log_ratio(atom.rho, pair.probability) - offset
            cell = min(max(math.floor(beyond / step), 0), parts.mass.size - 1)
            share = min(max(math.expm1(beyond - cell * step) / math.expm1(step), 0.0), 1.0)
            mass[cell] += atom.q * (1 - share)
            mass[cell + 1] += atom.q * share
    rounding = pair.rounding(window) + 16 * UNIT
    rare = jump(pair, window)
    return Lattice(step, offset, mass, window.outside_p, window.outside_q, rounding, rare)
