"""Bounds on ε(δ) of thousands of sampled Gaussian compositions, some hundred at a time.

All settings are chosen by array operations, coarsely at first; entries whose bounds do not lie as
close as is wanted are looked at again, with more nodes, and with losses cut where heavy tails
would otherwise spoil every tilt (`lattice.truncation`). None of this affects soundness.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.special import ndtr, ndtri_exp

from apiece._types import Floats
from apiece.accounting.accuracy import DEFAULT, Accuracy
from apiece.accounting.bounds import Bounds, nothing_known, tightest
from apiece.accounting.contour.integral import Beside, contour
from apiece.accounting.contour.moments import ANGLES, Steps, log_ratio, nodes_needed
from apiece.accounting.lattice.pairs import LARGEST_LOG_RATIO

_OUTSIDE = 1e-6  # share of δ that may be told apart outright, on either side
_COUNTS = (40, 56, 80, 112, 160, 224, 320, 448, 640, 900)  # of nodes
_COARSE = 112  # nodes for estimates
_POINTS = (200, 600)  # of a contour, at each look
_CHUNK = 2**14  # numbers in an array
MANY = 32
"""Values of δ from which on one curve for all of them is quicker."""
FEWEST = 16
"""Steps from which on the integrand falls fast enough."""
_SURELY = 25.0  # e^{−this}: chance that a jump is taken back, at most
_SHARE = 1e-5  # of δ that jumps taken back may add
_MARGIN = 1.02  # by which jumps begin above the ε expected
_LEAST_SHARE = 0.05  # of δ, that what is no jump is taken for
_SLACK = 1e-12  # relative error of normal tails
_RATES = np.geomspace(1e-2, 1e7, 40)
_EXCESS = np.geomspace(1e-2, 1e6, 40)


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
    new = np.append(True, (np.diff(np.stack([z, q, times])[:, order], axis=1) != 0).any(axis=0))
    start = np.flatnonzero(new[: order.size])
    sizes = np.diff(np.append(start, order.size))
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
        reach = -ndtri_exp(np.log(_OUTSIDE * delta / times))
        todo = (reach + 1 / z) / z < LARGEST_LOG_RATIO
        columns = np.stack([z, q, times, delta, reach])
        for look, angle in enumerate(ANGLES):
            needed = nodes_needed(z, 2 * reach + 1 / z, np.log(1e-12 / times), angle)
            size = np.minimum(np.searchsorted(_COUNTS, needed), len(_COUNTS) - 1)
            for number in np.unique(size[todo]):
                here = np.flatnonzero(todo & (size == number))
                here = here[np.lexsort((q[here], z[here]))]
                rows = max(_CHUNK // _COUNTS[number], 1)
                for some in np.split(here, range(rows, here.size, rows)):
                    found = _look(columns[:, some, None], _COUNTS[number], look)
                    lower[some] = np.maximum(lower[some], found.lower)
                    upper[some] = np.minimum(upper[some], found.upper)
            todo &= ~accuracy.reached(Bounds(lower, upper))
    return tightest([Bounds(lower, upper)])


def _look(columns: Floats, count: int, look: int) -> Bounds:
    """Return the bounds of the larger direction, for (K, 1) columns (z, q, T, δ, reach)."""
    z, q, times, delta, reach = columns
    low, high = -reach, reach + 1 / z
    forward = Steps.of(z, q, low, high, count)
    outside = times * ndtr(low) * (1 + _SLACK)
    beside = _told(forward, times, outside)
    share = np.ones_like(z)
    if look:
        forward, beside, share = _cut(forward, times, delta, outside, count)
    backward = forward.reversed()
    found = []
    for steps, part in ((forward, share), (backward, np.ones_like(z))):
        integral, guess = contour(steps, times, delta, beside, part, _POINTS[look])
        found.append(integral.epsilon(delta, guess))
    lower, upper = (np.maximum(*ends)[:, 0] for ends in zip(*found, strict=True))
    good = np.isfinite(upper) & np.isfinite(lower)
    return Bounds(np.where(good, lower, 0.0), np.where(good, upper, np.inf))


def _tails(steps: Steps, high: Floats) -> tuple[Floats, Floats]:
    """Return the P- and the Q-mass of one step above u = `high`."""
    above = ndtr(-high)
    return (1 - steps.q) * above + steps.q * ndtr(1 / steps.z - high), above


def _told(steps: Steps, times: Floats, outside: Floats) -> Beside:
    """Return what lies beside whole windows, all of it told apart outright."""
    p, q = (times * tail * (1 + _SLACK) for tail in _tails(steps, steps.edge[:, -1:]))
    none = np.zeros_like(p)
    return Beside(outside, (none, p), (none, q), none + 1, none + np.inf)


def _cut(
    steps: Steps, times: Floats, delta: Floats, outside: Floats, count: int
) -> tuple[Steps, Beside, Floats]:
    """Return the steps cut above about ε(δ), what is beside them, and their share of δ."""
    coarse = Steps.of(steps.z, steps.q, steps.edge[:, :1], steps.edge[:, -1:], _COARSE)
    epsilon, fall, rate = _estimate(coarse, times, delta)
    loss = _MARGIN * epsilon + fall
    high = np.minimum(_place(steps, loss), steps.edge[:, -1:])
    kept = Steps.of(steps.z, steps.q, steps.edge[:, :1], high, count)

    # P(J) = 1 − (1 − p)^T, less at most what is outside
    tails, inside = _tails(kept, high), np.maximum(1 - outside, 0.0)
    p, q = (
        tuple(
            -np.expm1(times * np.log1p(-tail * factor)) * factor
            for factor in (1 - _SLACK, 1 + _SLACK)
        )
        for tail in tails
    )
    beyond = log_ratio(high, kept.z, kept.q) * (1 - _SLACK) - _SLACK
    law = kept.weights(-rate)
    body = law.log_total + np.log1p(kept.error(-rate, np.zeros_like(rate), law)[0])
    rest = np.log(tails[1]) - rate * beyond
    log_fall = np.log(times) + rest + times * np.maximum(np.logaddexp(body, rest), 0.0) + 1e-9
    jumps = p[0] - np.exp(epsilon) * q[1]
    share = np.clip(1 - jumps / delta, _LEAST_SHARE, 1.0)
    return (
        kept,
        Beside(outside, (p[0] * inside, p[1]), (q[0] * inside, q[1]), rate, log_fall),
        share,
    )


def _estimate(steps: Steps, times: Floats, delta: Floats) -> tuple[Floats, Floats, Floats]:
    """Return about ε(δ) from the chance of jumps and the moments of what is none; and their fall.

    The fall is by how much losses above a jump hardly ever fall, with the rate of that bound.
    """
    exponent = steps.log_base[:, None, :] + (1 + _EXCESS[:, None]) * steps.ratio[:, None, :]
    top = exponent.max(axis=2, keepdims=True)
    sums = np.cumsum(np.exp(exponent - top), axis=2)
    body = np.where(sums > 1e-290, times[:, :, None] * (top + np.log(sums)), np.inf)
    body += (_EXCESS * np.log(_EXCESS / (1 + _EXCESS)) - np.log1p(_EXCESS))[:, None]
    falling = steps.log_base[:, None, :] - _RATES[:, None] * steps.ratio[:, None, :]
    moments = np.exp(falling).sum(axis=2)
    moments = times * np.maximum(np.log(moments), 0.0)
    high = ((body[:, :, -1] - np.log(delta)) / _EXCESS).min(axis=1, keepdims=True)
    fall = _fall(steps, times, delta, high, moments)[0]
    low, high = np.full_like(delta, np.log(1e-6)), np.log(high)
    for _ in range(14):
        middle = (low + high) / 2
        epsilon = np.exp(middle)
        cell = np.maximum((steps.ratio <= epsilon + fall).sum(axis=1) - 1, 0)
        here = np.take_along_axis(body, cell[:, None, None], axis=2)[:, :, 0]
        bound = np.exp((here - _EXCESS * epsilon).min(axis=1, keepdims=True))
        above = steps.node[np.arange(cell.size), cell][:, None]
        more = times * _tails(steps, above)[0] + bound > delta
        low, high = np.where(more, middle, low), np.where(more, high, middle)
    epsilon = np.exp(high)
    return epsilon, *_fall(steps, times, delta, epsilon, moments)


def _fall(
    steps: Steps, times: Floats, delta: Floats, epsilon: Floats, moments: Floats
) -> tuple[Floats, Floats]:
    """Return the least fall that matters little to the bound by jumps from ε plus it on."""
    most = ((_SURELY + moments) / _RATES).min(axis=1, keepdims=True)
    falls = most * np.linspace(0.04, 1.0, 25)
    surely = falls[:, :, None] * _RATES - moments[:, None, :]
    jumps = times * _tails(steps, _place(steps, epsilon + falls))[1]
    needed = np.log(jumps) + epsilon - np.log(_SHARE * delta)
    enough = surely.max(axis=2) >= np.minimum(needed, _SURELY)
    first = np.where(enough.any(axis=1), enough.argmax(axis=1), -1)
    row = np.arange(first.size)
    rate = _RATES[surely[row, first].argmax(axis=1)]
    return falls[row, first][:, None], rate[:, None]


def _place(steps: Steps, loss: Floats) -> Floats:
    """Return the u where the loss of one step is `loss`."""
    z, q = steps.z, steps.q
    return np.asarray(z * (np.log((np.expm1(loss) + q) / q) + 0.5 / z**2))
