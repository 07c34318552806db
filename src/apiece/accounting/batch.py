"""Provisional: many records at once, by a loop over RDP (an upper bound, looser than PLD).

Whatever the method named, the bound is the one by RDP, which holds for all.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from apiece.accounting.bounds import Bounds
from apiece.accounting.curve import privacy_curve
from apiece.mechanisms import Composed, Gaussian, Repeated, Sampled

Floats = npt.NDArray[np.float64]


def _epsilon(z: float, q: float, steps: float, delta: float) -> float:
    mechanism = Repeated(Sampled(Gaussian(float(z)), float(q)), int(steps)) if q else Composed()
    return float(privacy_curve(mechanism, method="rdp").epsilon(float(delta)).upper)


def epsilons(
    *,
    noise_multiplier: npt.ArrayLike,
    sampling_probability: npt.ArrayLike,
    steps: npt.ArrayLike,
    delta: npt.ArrayLike,
    method: str = "pld",
) -> Bounds:
    """Return bounds on ε for arrays of parameters, broadcast against one another."""
    upper = np.vectorize(_epsilon)(noise_multiplier, sampling_probability, steps, delta)
    return Bounds(np.zeros_like(upper), upper)


def _safe_end(spent: Callable[[float], float], epsilon: float, low: float, high: float) -> float:
    """Return the end of a bracket where the decreasing `spent` is at most `epsilon`."""
    for _ in range(40):
        middle = (low * high) ** 0.5
        low, high = (low, middle) if spent(middle) <= epsilon else (middle, high)
        if high / low < 1 + 1e-4:
            break
    return high


def noise_multipliers(
    *,
    epsilon: npt.ArrayLike,
    delta: npt.ArrayLike,
    sampling_probability: npt.ArrayLike,
    steps: npt.ArrayLike,
    method: str = "pld",
) -> Floats:
    """Return, for each entry, the smallest noise multiplier known to keep (ε, δ)."""

    def solve(e: float, d: float, q: float, t: float) -> float:
        return _safe_end(lambda z: _epsilon(z, q, t, d), e, 0.05, 1e4)

    return np.asarray(np.vectorize(solve)(epsilon, delta, sampling_probability, steps))


def sampling_probabilities(
    *,
    epsilon: npt.ArrayLike,
    delta: npt.ArrayLike,
    noise_multiplier: npt.ArrayLike,
    steps: npt.ArrayLike,
    method: str = "pld",
) -> Floats:
    """Return, for each entry, the largest sampling probability known to keep (ε, δ), at most 1."""

    def solve(e: float, d: float, z: float, t: float) -> float:
        if _epsilon(z, 1.0, t, d) <= e:
            return 1.0
        return 1 / _safe_end(lambda r: _epsilon(z, 1 / r, t, d), e, 1.0, 1e8)

    return np.asarray(np.vectorize(solve)(epsilon, delta, noise_multiplier, steps))
