"""Where one sampled Gaussian step's window ends, and what lies outside it: told apart, or jumps."""

from __future__ import annotations

import numpy as np
from scipy.special import ndtr

from apiece._types import Floats
from apiece.accounting.contour.moments import Steps, loss_at, place_of
from apiece.accounting.truncation import (
    MARGIN,
    Jumps,
    Points,
    Remainder,
    about_epsilon,
    remainder,
    slightest_fall,
)

OUTSIDE = 1e-6
"""Share of δ that may be told apart outright, on either side."""
_COARSE = 112  # nodes for estimates
_PANELS = 32  # of a window that is cut
_LEAST_SHARE = 0.05  # of δ, that what is no jump is taken for
_SLACK = 1e-12  # relative error of normal tails


def whole(columns: Floats, count: int) -> tuple[Steps, Remainder, Floats]:
    """Return the steps of (K, 1) columns (z, q, T, δ, reach), what is outside, and 1.

    count: of nodes. The windows reach so many standard deviations beyond both means; all that
    lies above them is told apart outright.
    """
    z, q, times, _, reach = columns
    steps = Steps.of(z, q, -reach, reach + 1 / z, count)
    p, q = (times * tail * (1 + _SLACK) for tail in _tails(steps, steps.edge[:, -1:]))
    none = np.zeros_like(p)
    outside = _below(times, reach)
    return steps, Remainder(outside, (none, p), (none, q), none + 1, none + np.inf), none + 1


def cut(columns: Floats, count: int) -> tuple[Steps, Remainder, Floats]:
    """Return the same with windows that end a little above ε(δ), and all above them called jumps.

    The third is about the share of δ that the steps within their windows make.
    """
    z, q, times, delta, reach = columns
    coarse = Steps.of(z, q, -reach, reach + 1 / z, _COARSE)
    points = [Points.of(coarse.ratio, np.zeros((1, 1)), coarse.log_base, times)]
    epsilon = about_epsilon(points, delta)
    fall, rate = slightest_fall(points, epsilon, delta)
    loss = MARGIN * epsilon + fall
    high = np.minimum(place_of(loss, z, q), reach + 1 / z)
    steps = Steps.of(z, q, -reach, high, count, _PANELS)

    outside = _below(times, reach)
    inside = np.maximum(1 - outside, 0.0)
    beyond = loss_at(high, z, q) * (1 - _SLACK) - _SLACK
    law = steps.weights(-rate)
    body = law.log_total + np.log1p(steps.error(-rate, np.zeros_like(rate), law)[0])
    jumps = Jumps(*_tails(steps, high), beyond, times, body)
    rest = remainder([jumps], rate, _SLACK, inside=(inside, inside), outside=outside)
    rare = rest.p[0] - np.exp(epsilon) * rest.q[1]
    return steps, rest, np.clip(1 - rare / delta, _LEAST_SHARE, 1.0)


def _below(times: Floats, reach: Floats) -> Floats:
    """Return a bound on the chance that some step's outcome lies below its window."""
    return np.asarray(times * ndtr(-reach) * (1 + _SLACK))


def _tails(steps: Steps, high: Floats) -> tuple[Floats, Floats]:
    """Return the P- and the Q-mass of one step above u = `high`."""
    above = ndtr(-high)
    return (1 - steps.q) * above + steps.q * ndtr(1 / steps.z - high), above
