"""The greatest power of any test at some rate of false positives, from a privacy profile.

It is at most δ(ε) + e^ε·α and, by the mirrored test, 1 − e^{−ε}(1 − δ(ε) − α), at every ε ≥ 0.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from apiece._types import Floats
from apiece.accounting.bounds import Bounds, Profile, ascending

ROUNDING = 2.0**-51
"""Of the few operations between a profile and an answer."""
_NODES = np.concatenate(([0.0], np.geomspace(1e-7, 45.0, 240)))
_RATES = 4096


def least_form(epsilon: Floats, delta: Floats, rates: Floats | float) -> Floats:
    """Return the lesser of both bounds on the power at each ε, from upper bounds on δ(ε)."""
    mirror = 1 - (1 - delta - rates) * np.exp(-epsilon) + ROUNDING
    return np.asarray(np.minimum(delta + np.exp(epsilon) * rates, mirror))


def greatest_power(profile: Profile, rates: Floats) -> Floats:
    """Return the least of both bounds over ε ≥ 0, one a rate; never below the truth."""
    least, spare = max(float(rates.min()), 1e-15), max(float(1 - rates.max()), 1e-15)

    def enough(epsilon: Floats, delta: Bounds) -> bool:
        # Past here a larger ε lowers neither form by more than one part in 1e9.
        last = float(delta.upper[-1])
        return last <= 1e-9 * min(least * math.exp(float(epsilon[-1])), spare)

    nodes, bounds = ascending(profile.delta, _NODES, enough)
    power = np.empty(rates.size)
    for start in range(0, rates.size, _RATES):
        part = rates[start : start + _RATES, None]
        values = least_form(nodes, bounds.upper, part)
        best = values.argmin(axis=1)
        power[start : start + _RATES] = _refine(profile, part, nodes, best, values.min(axis=1))
    return np.maximum(np.minimum(power * (1 + 4 * ROUNDING), 1.0), rates)


def _refine(
    profile: Profile, rates: Floats, nodes: Floats, best: npt.NDArray[np.intp], power: Floats
) -> Floats:
    """Improve `power` by evaluations between the neighbours of each best node."""
    low = nodes[np.maximum(best - 1, 0)]
    high = nodes[np.minimum(best + 1, nodes.size - 1)]
    steps = np.linspace(0.0, 1.0, 12)
    for _ in range(4):
        epsilon = low[:, None] + (high - low)[:, None] * steps
        delta = profile.delta(epsilon.ravel()).upper.reshape(epsilon.shape)
        values = least_form(epsilon, delta, rates)
        at = values.argmin(axis=1)
        power = np.minimum(power, values.min(axis=1))
        rows = np.arange(at.size)
        low = epsilon[rows, np.maximum(at - 1, 0)]
        high = epsilon[rows, np.minimum(at + 1, steps.size - 1)]
    return power
