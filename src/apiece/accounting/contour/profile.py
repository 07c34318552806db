"""Bounds on ε(δ) of thousands of sampled Gaussian compositions, some hundred at a time.

All settings are chosen by array operations, coarsely at first; entries whose bounds do not lie as
close as is wanted are looked at again, with more nodes, and with losses cut where heavy tails
would otherwise spoil every tilt (`truncation`). None of this affects soundness.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.special import ndtri_exp

from apiece._types import Floats
from apiece.accounting.accuracy import DEFAULT, Accuracy
from apiece.accounting.arrays import runs
from apiece.accounting.bounds import Bounds, nothing_known, tightest
from apiece.accounting.contour.integral import contour
from apiece.accounting.contour.moments import ANGLES, nodes_needed
from apiece.accounting.contour.windows import OUTSIDE, cut, whole
from apiece.numerics import LARGEST_LOG_RATIO

_COUNTS = (40, 56, 80, 112, 160, 224, 320, 448, 640, 900, 1280, 1800, 2560)  # of nodes
_POINTS = (200, 600)  # of a contour, at each attempt
_CHUNK = 2**14  # numbers in an array
MANY = 32
"""Values of δ from which on one curve for all of them is quicker."""
FEWEST = 16
"""Steps from which on the integrand falls fast enough."""


@dataclass(frozen=True, slots=True)
class SampledGaussians:
    """The profile of `times` sampled Gaussian steps of one kind; it says nothing of δ at given ε.

    Many profiles at once: `epsilon_bounds`.
    """

    noise_multiplier: float
    probability: float
    times: int
    accuracy: Accuracy = DEFAULT

    def delta(self, epsilon: Floats) -> Bounds:
        """Return 0 and 1."""
        return Bounds(np.zeros(epsilon.shape), np.ones(epsilon.shape))

    def epsilon(self, delta: Floats) -> Bounds:
        """Bound ε(δ)."""
        mechanism = (self.noise_multiplier, self.probability, float(self.times))
        z, q, times = (np.full(delta.shape, value) for value in mechanism)
        return epsilon_bounds(z, q, times, delta, self.accuracy)


def epsilon_bounds(
    z: Floats, q: Floats, times: Floats, delta: Floats, accuracy: Accuracy = DEFAULT
) -> Bounds:
    """Return bounds on ε(δ) of `times` ≥ 16 sampled Gaussian steps with 0 < q < 1; (K,) arrays.

    Where this cannot tell, the bounds are 0 and ∞; also where many δ share a mechanism, whose
    curve on the lattice answers for all of them quicker.
    """
    order = np.lexsort((z, q, times))
    _, sizes = runs(np.stack([z, q, times])[:, order])
    few = np.empty(order.size, dtype=bool)
    few[order] = np.repeat(sizes, sizes) < MANY
    lower, upper = nothing_known(delta)
    lower[few], upper[few] = _each(np.stack([z, q, times, delta])[:, few], accuracy)
    return Bounds(lower, upper)


def _each(columns: Floats, accuracy: Accuracy) -> Bounds:
    """Return the bounds of each column (z, q, T, δ), on its own."""
    z, q, times, delta = columns
    lower, upper = nothing_known(delta)
    with np.errstate(all="ignore"):
        reach = -ndtri_exp(np.log(OUTSIDE * delta / times))
        todo = (reach + 1 / z) / z < LARGEST_LOG_RATIO
        columns = np.stack([z, q, times, delta, reach])
        for attempt, angle in enumerate(ANGLES):
            needed = nodes_needed(z, 2 * reach + 1 / z, np.log(1e-12 / times), angle)
            size = np.minimum(np.searchsorted(_COUNTS, needed), len(_COUNTS) - 1)
            for number in np.unique(size[todo]):
                here = np.flatnonzero(todo & (size == number))
                here = here[np.lexsort((q[here], z[here]))]
                rows = max(_CHUNK // _COUNTS[number], 1)
                for some in np.split(here, range(rows, here.size, rows)):
                    found = _attempt(columns[:, some, None], _COUNTS[number], attempt)
                    lower[some] = np.maximum(lower[some], found.lower)
                    upper[some] = np.minimum(upper[some], found.upper)
            todo &= ~accuracy.reached(Bounds(lower, upper))
    return tightest([Bounds(lower, upper)])


def _attempt(columns: Floats, count: int, attempt: int) -> Bounds:
    """Return the bounds of the larger direction, for (K, 1) columns (z, q, T, δ, reach)."""
    times, delta = columns[2:4]
    forward, outside, share = (cut if attempt else whole)(columns, count)
    found = []
    for steps, part in ((forward, share), (forward.reversed(), np.ones_like(share))):
        integral, guess = contour(steps, times, delta, outside, part, _POINTS[attempt])
        found.append(integral.epsilon(delta, guess))
    lower, upper = (np.maximum(*ends)[:, 0] for ends in zip(*found, strict=True))
    good = np.isfinite(upper) & np.isfinite(lower)
    return Bounds(np.where(good, lower, 0.0), np.where(good, upper, np.inf))
