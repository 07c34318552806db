"""How one step's pair lies in the cells of a lattice of log-ratios, and a pair that dominates it.

All that the lattice does rests on two facts about the likelihood ratio r under Q: spreading r
without moving its mean gives a dominating pair, contracting r (a post-processing) a dominated one
(`dominated`); both survive composition and both directions of add/remove.

Here the mass of each cell, and each atom, goes to the two ends of the cell, keeping its P- and its
Q-mass (connect the dots: Doroshenko, Ghazi, Kamath, Kumar, Manurangsi 2022). Outside the window the
two sides are told apart outright. The variance of the loss grows by at most h²/4, typically h²/6.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from apiece._types import Floats
from apiece.accounting.closed.forms import log_ratio
from apiece.accounting.lattice.masses import Jump, Lattice
from apiece.accounting.lattice.pairs import Pair, Window
from apiece.numerics import UNIT

_ROUNDED = 16 * UNIT
_FEWEST = 4  # cells between atoms, so that what lies between has a lattice point of its own


class Cells(NamedTuple):
    """A pair, but for its atoms, in the cells of a lattice."""

    rho: Floats
    mass: Floats
    share: Floats
    """Where the mean of the ratio lies in each cell, from 0 at its left to 1 at its right end."""


def cut(pair: Pair, window: Window, loss: float) -> Window:
    """Return the window with all log-ratios of the pair above `loss` made jumps."""
    offset = log_ratio(window.low, pair.probability)
    if loss <= offset or loss >= log_ratio(window.high, pair.probability):
        return window
    high = float(inner(window.low, np.array([loss - offset]), pair.probability)[0])
    return window._replace(high=high) if window.low < high < window.high else window


def aligned(pair: Pair, window: Window, step: float) -> float:
    """Return about the largest step up to `step` that puts both atoms of a pair on a lattice.

    For pairs without atoms, `step`.
    """
    if not pair.atoms:
        return step
    start = lowest_mean(pair, window, lowest_end(pair, window, step))
    span = log_ratio(window.high, pair.probability) - log_ratio(start, pair.probability)
    return span / max(math.ceil(span / step), _FEWEST) if span > 0 else step


def lowest_end(pair: Pair, window: Window, step: float) -> float:
    """Return up to which ρ mass is best gathered with the lowest atom of a pair.

    The atom alone is, unless most of what lies beside it is much lower than the next cells.
    """
    edges = np.minimum(inner(window.low, step * np.arange(3), pair.probability), window.high)
    first, second = pair.masses(edges)[1]
    return float(edges[1]) if first > 4 * second else window.low


def lowest_mean(pair: Pair, window: Window, end: float) -> float:
    """Return the mean ratio, as a ρ, of all between the lower end of a window and `end`."""
    p1, q0 = pair.masses(np.array([window.low, end]))
    lowest = [atom for atom in pair.atoms if atom.rho <= window.low]
    p, q = p1[0] + sum(atom.p for atom in lowest), q0[0] + sum(atom.q for atom in lowest)
    return min(max(math.log(p / q) if p > 0 and q > 0 else window.low, window.low), end)


def jump(pair: Pair, window: Window) -> Jump:
    """Return what of a pair lies above the window, atoms included."""
    if window.top == window.high:
        return Jump(0.0, 0.0, math.inf)
    p1, q0 = pair.masses(np.array([np.nextafter(window.high, np.inf), window.top]))
    above = [atom for atom in pair.atoms if atom.rho > window.high]
    p_mass = float(p1[0]) + sum(atom.p for atom in above)
    q_mass = float(q0[0]) + sum(atom.q for atom in above)
    q = pair.probability
    return Jump((1 - q) * q_mass + q * p_mass, q_mass, log_ratio(window.high, q))


def inner(rho: float, offsets: npt.NDArray[np.floating[Any]], probability: float) -> Floats:
    """Return the ρ whose log-ratios lie `offsets` ≥ 0 above that of `rho`."""
    if probability == 1:
        return np.asarray(rho + offsets, dtype=np.float64)
    scale = log_ratio(rho, probability) - math.log(probability)
    with np.errstate(divide="ignore"):
        grow = np.where(offsets < 30, np.log(np.expm1(np.minimum(offsets, 30))), offsets)
    return np.asarray(np.logaddexp(rho, scale + grow))


def cells(pair: Pair, window: Window, step: float) -> Cells:
    """Return the masses, but for atoms, of cells that cover the window from its lower end on."""
    q = pair.probability
    offset = log_ratio(window.low, q)
    count = max(math.ceil((log_ratio(window.high, q) - offset) / step * (1 - _ROUNDED)), 1)
    offsets = step * np.arange(count + 1)
    rho = inner(window.low, offsets, q)
    rho[-1] = max(rho[-1], window.high)  # rounding must not leave the window's end outside
    p1, q0 = pair.masses(np.minimum(rho, window.high) if window.high < window.top else rho)
    # The mean lies at a share s with s·q0·(r_{k+1} − r_k) = p − r_k·q0 = q·(p1 − e^ρ·q0).
    width = np.exp(offset + offsets[:-1]) * math.expm1(step)
    excess = q * (p1 - np.exp(rho[:-1]) * q0)
    share = np.full(count, 0.5)
    np.divide(excess, q0 * width, out=share, where=q0 * width > 0)
    return Cells(rho, q0, np.clip(share, 0.0, 1.0))


def dominating(pair: Pair, window: Window, step: float, parts: Cells) -> Lattice:
    """Return the dominating pair: each cell's mass, and each atom, on its two ends, mean kept."""
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
