"""The Gaussian's privacy profile δ(ε, μ), from both sides, and the safe ends of its inverses.

With μ the mean's shift in standard deviations, δ = Φ(μ/2 − ε/μ) − e^ε·Φ(−μ/2 − ε/μ), the same in
both directions. Source: Balle and Wang 2018, Theorem 8; Dong, Roth, Su 2022, Corollary 1.
"""

import math
from typing import Final

import numpy as np
import numpy.typing as npt

from apiece._types import Bounds, Floats, Mask
from apiece.numerics.normal import density, mills, quantile
from apiece.numerics.roots import bisect, geometric

# Relative error of the two tails, eight units in the last place: mills and exp are good to a few.
_ROUNDING: Final = 2.0**-49
_ULP: Final = 2.0**-52
# Argument of a normal tail, which is 0 or 1 long before.
_FARTHEST: Final = 1e100
# Below it the exponential loses digits; an upper bound stays above it.
_SMALLEST: Final = 1e-300
# A μ of 0 stands for this one.
_LEAST_MU: Final = 1e-150
# In units of 1 + √ε, a μ at which δ is 1.
_TOP: Final = 1e35
# How near, relative, a few steps come to μ, nearly always.
_NEAR: Final = 1e-9


def gaussian_delta(mu: npt.ArrayLike, epsilon: npt.ArrayLike) -> Bounds:
    """Return lower ≤ δ(ε) ≤ upper of μ-Gaussian differential privacy; arrays broadcast."""
    mu = np.asarray(mu, dtype=np.float64)
    epsilon = np.asarray(epsilon, dtype=np.float64)
    with np.errstate(over="ignore"):
        return gaussian_profile(mu / 2, epsilon / mu, epsilon)


def gaussian_profile(half: npt.ArrayLike, centre: npt.ArrayLike, epsilon: Floats) -> Bounds:
    """Return bounds on δ(ε), given μ/2 and ε/μ, each rounded at most twice."""
    # Computed as φ(a)·(R(a) − R(b)) with Mills ratio R(x) = Φ(−x)/φ(x), a = ε/μ − μ/2 and b = ε/μ +
    # μ/2, which loses no digits in the tail.
    half = np.minimum(half, _FARTHEST)
    centre = np.clip(centre, -_FARTHEST, _FARTHEST)
    a = centre - half
    b = centre + half
    # For x ≥ 0 the tail Φ(−x) is φ(x)·R(x), else 1 − φ(x)·R(−x); and e^ε·φ(b) = φ(a).
    tail_a, tail_b = density(a) * mills(np.abs([a, b]))
    first = np.where(a >= 0, tail_a, 1 - tail_a)
    second = tail_b
    if np.any(b < 0):
        second = np.where(b >= 0, tail_b, np.exp(np.minimum(epsilon, 0.0)) - tail_b)
    exact = first - second
    # The argument of exp is off by its own rounding, a·|δa| with |δa| ≤ 2⁻⁵³·(|centre| + half).
    argument_sizes = 1 + np.abs(a) * (np.abs(centre) + half)
    relative = _ROUNDING * argument_sizes + _ROUNDING * np.abs(epsilon)
    error = relative * (first + second)
    upper = np.clip(exact + error, _SMALLEST, 1.0)
    return Bounds(np.clip(exact - error - _SMALLEST, 0.0, upper), upper)


def gaussian_epsilon_above(mu: npt.ArrayLike, delta: npt.ArrayLike) -> Floats:
    """Return the least ε found with which μ-Gaussian differential privacy is (ε, δ)-DP."""
    # 0 where mu is 0 or δ(0) ≤ delta. Arrays broadcast.
    mu, positive_mu, delta = _broadcast_mu(mu, delta)

    def is_private(epsilon: Floats) -> Mask:
        return np.asarray(gaussian_delta(positive_mu, epsilon).upper <= delta)

    epsilon, _ = bisect(is_private, _sufficient_epsilon(positive_mu, delta), 0.0, rounds=70)
    free = (mu == 0) | (gaussian_delta(positive_mu, 0.0).upper <= delta)
    return np.asarray(np.where(free, 0.0, epsilon))


def gaussian_epsilon_below(mu: npt.ArrayLike, delta: npt.ArrayLike) -> Floats:
    """Return the largest ε found with which μ-Gaussian privacy is not (ε, δ)-DP, or 0."""
    # For lower bounds. Arrays broadcast.
    mu, positive_mu, delta = _broadcast_mu(mu, delta)

    def is_not_private(epsilon: Floats) -> Mask:
        return np.asarray(gaussian_delta(positive_mu, epsilon).lower > delta)

    epsilon, _ = bisect(is_not_private, 0.0, _sufficient_epsilon(positive_mu, delta), rounds=70)
    return np.asarray(np.where(mu == 0, 0.0, epsilon))


def gaussian_mu_below(epsilon: npt.ArrayLike, delta: npt.ArrayLike) -> Floats:
    """Return the largest μ found with which μ-Gaussian differential privacy is (ε, δ)-DP."""
    # Arrays broadcast.
    epsilon, delta = np.broadcast_arrays(
        np.asarray(epsilon, np.float64), np.asarray(delta, np.float64)
    )

    def is_safe(mu: Floats) -> Mask:
        return np.asarray(gaussian_delta(mu, epsilon).upper <= delta)

    # Ends: δ(0) < μ; Φ(−ε/μ) is 0 where ε/μ is huge; and δ is 1 where μ is far above √ε.
    inside = np.maximum(delta, epsilon * 1e-87)
    outside = _TOP * (1 + np.sqrt(epsilon))
    estimate = estimate_gaussian_mu(epsilon, delta)
    below = estimate * (1 - _NEAR)
    above = estimate * (1 + _NEAR)
    inside = np.where(is_safe(below), np.maximum(below, inside), inside)
    outside = np.where(is_safe(above), outside, above)
    mu, _ = bisect(is_safe, inside, outside, rounds=60, middle=geometric)
    return np.asarray(mu * (1 - 4 * _ULP))


def estimate_gaussian_mu(epsilon: Floats, delta: Floats) -> Floats:
    """Return nearly the μ of (ε, δ), from below: log δ is concave in log μ, and ∂δ/∂μ = φ(a)."""
    t = -quantile(delta)
    root = np.sqrt(t * t + 2 * epsilon)
    # Where the first tail alone is δ, without cancellation.
    mu = np.where(t > 0, 2 * epsilon / (root + np.abs(t)), root + np.abs(t))
    mu = np.maximum(mu, 2 * delta)
    # Newton's method in the logarithms.
    for _ in range(8):
        current = gaussian_delta(mu, epsilon).upper
        a = epsilon / mu - mu / 2
        slope = mu * np.exp(-0.5 * a * a) / math.sqrt(2 * math.pi) / current
        step = np.log(delta / current) / np.maximum(slope, 0.1)
        mu = mu * np.exp(np.clip(step, -1.0, 1.0))
    return np.asarray(mu)


def _broadcast_mu(mu: npt.ArrayLike, delta: npt.ArrayLike) -> tuple[Floats, Floats, Floats]:
    """Return μ, μ kept off 0, and δ, of one shape."""
    mu, delta = np.broadcast_arrays(np.asarray(mu, np.float64), np.asarray(delta, np.float64))
    return mu, np.maximum(mu, _LEAST_MU), delta


def _sufficient_epsilon(mu: Floats, delta: Floats) -> Floats:
    """Return an ε that is enough: the first normal tail alone is then at most δ/2."""
    return np.asarray(mu * (mu / 2 + np.sqrt(2 * np.log(1 / delta)) + 1e-12))
