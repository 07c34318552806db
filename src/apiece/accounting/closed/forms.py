"""Exact privacy profiles in closed form, with an interval for their rounding.

`gaussian` and `laplace` are the plain mechanisms; `sampled_remove` and `sampled_add` put one coin
before any mechanism whose profile is known, in each direction.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from apiece._types import Bounds, Floats
from apiece.numerics import after_coin, gaussian_profile

_ROUNDING = 2.0**-49  # eight units in the last place: erfcx, ndtr and exp are good to a few
_ULPS = 2.0**-50  # what a few operations on an argument can move it, relative to its terms
_FAR = 1e300  # beyond it 1 is nothing beside (e^ε − 1)/q
_SMALLEST = 1e-300  # below it the exponential loses digits; an upper bound never goes under it


def gaussian(noise_multiplier: float, epsilon: Floats) -> Bounds:
    """Return δ(ε) of N(1, z²) against N(0, z²) for any real ε, the same in both directions.

    Source: Balle and Wang 2018, Theorem 8; Kaiser et al. 2026 Def. 2.
    """
    with np.errstate(over="ignore"):
        return gaussian_profile(0.5 / noise_multiplier, epsilon * noise_multiplier, epsilon)


def laplace(scale: float, epsilon: Floats) -> Bounds:
    """Return δ(ε) of Laplace(1, b) against Laplace(0, b), real ε, the same in both directions.

    δ(ε) = 1 − e^{(ε − 1/b)/2} where |ε| ≤ 1/b, 1 − e^ε below and 0 above, which is the largest of
    all three everywhere. The bounds allow for the rounding of the exponent.
    """
    pure = 1 / scale
    spread = _ULPS * (np.abs(epsilon) + pure)
    exponents = ((epsilon - pure) / 2, epsilon)
    lower = -np.expm1(np.minimum(np.minimum(*exponents) + spread, 0.0))
    upper = -np.expm1(np.minimum(np.minimum(*exponents) - spread, 0.0))
    past = epsilon > pure * (1 + _ULPS)
    return _widened(lower, np.where(past, 0.0, upper))


def sampled_remove(
    inner: Callable[[Floats], Bounds], probability: float, epsilon: Floats
) -> Bounds:
    """Return the remove direction, ((1−q)Q + qP against Q), from the inner profile of P against Q.

    δ_q(ε) = q·δ(log(1 + (e^ε − 1)/q)) where e^ε > 1 − q, and 1 − e^ε below.

    inner: bounds on δ at any real ε. Source: Balle, Barthe, Gaboardi 2018, Theorem 2.
    """
    log_ratio, spread = _before_coin(epsilon, probability)
    flat = log_ratio == -np.inf
    log_ratio, spread = np.where(flat, 0.0, log_ratio), np.where(flat, 0.0, spread)
    trivial = -np.expm1(np.minimum(epsilon, 0.0))
    return _widened(
        np.where(flat, trivial, probability * inner(log_ratio + spread).lower),
        np.where(flat, trivial, probability * inner(log_ratio - spread).upper),
    )


def sampled_add(inner: Callable[[Floats], Bounds], probability: float, epsilon: Floats) -> Bounds:
    """Return the add direction, (Q against (1−q)Q + qP), from the inner profile of Q against P.

    With s = 1 − (1 − q)·e^ε: δ_q(ε) = s·δ(log(q·e^ε/s)) where s > 0, and 0 above.
    """
    taken = (1 - probability) * np.expm1(np.minimum(epsilon, 700.0))
    start = math.log(probability) + epsilon
    ends = []
    for end, sign in ((0, -1), (1, 1)):  # the profile grows with the share
        share = probability - taken + sign * _ULPS * (probability + np.abs(taken))
        none = share <= 0
        log_share = np.log(np.where(none, 1.0, share))
        spread = _ULPS * (abs(math.log(probability)) + np.abs(epsilon) + np.abs(log_share))
        value = inner(np.where(none, 0.0, start - log_share - sign * spread))[end]
        ends.append(np.where(none, 0.0, share * value))
    return _widened(*ends)


def log_ratio(rho: float, probability: float) -> float:
    """Return log(1 − q + q·e^ρ), as `after_coin`: the loss, behind a coin, of a loss ρ."""
    if probability == 1:
        return rho
    if rho < 700 and (more := probability * math.expm1(rho)) >= -0.5:
        return math.log1p(more)
    return float(after_coin(rho, probability))


def _before_coin(epsilon: Floats, probability: float) -> tuple[Floats, Floats]:
    """Return log(1 + (e^ε − 1)/q), −∞ where there is none, and a bound on its error."""
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        excess = np.expm1(epsilon) / probability
        flat, far = excess <= -1, excess > _FAR
        near = np.log1p(excess)
        parts = np.log(-np.expm1(-np.abs(epsilon))), -math.log(probability)
        log_ratio = np.where(flat, -np.inf, np.where(far, epsilon + parts[0] + parts[1], near))
        sizes = np.abs(epsilon) + np.abs(parts[0]) + abs(parts[1])
        sizes = np.where(far, sizes, np.abs(excess) / (1 + excess))
        return log_ratio, _ULPS * (sizes + np.abs(log_ratio))


def _widened(lower: Floats, upper: Floats) -> Bounds:
    """Allow for the rounding of the last products."""
    low = np.maximum(lower * (1 - _ROUNDING) - _SMALLEST, 0.0)
    return Bounds(low, np.clip(upper * (1 + _ROUNDING), _SMALLEST, 1.0))
