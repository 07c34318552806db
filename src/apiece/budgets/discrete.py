"""Discrete noise, sampled exactly: integers and rationals only, no floating point.

Source: Canonne, Kamath, Steinke 2020 (The discrete Gaussian for differential privacy),
Algorithms 1 to 3.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Callable
from fractions import Fraction

ROUNDING = 1e-13  # of a sum of probabilities in floating point
Below = Callable[[int], int]
"""Returns a uniform integer in [0, n); `secrets.randbelow` where the noise is for a release."""


def bernoulli_exp(gamma: Fraction, below: Below = secrets.randbelow) -> bool:
    """Return True with probability e^−γ, exactly; γ ≥ 0."""
    while gamma > 1:
        if not _bernoulli_exp_unit(Fraction(1), below):
            return False
        gamma -= 1
    return _bernoulli_exp_unit(gamma, below)


def _bernoulli_exp_unit(gamma: Fraction, below: Below) -> bool:
    turn = 1
    while below(gamma.denominator * turn) < gamma.numerator:
        turn += 1
    return turn % 2 == 1


def laplace(scale: Fraction, below: Below = secrets.randbelow) -> int:
    """Return an integer x with probability proportional to e^(−|x|/scale), exactly."""
    top, bottom = scale.numerator, scale.denominator
    while True:
        part = below(top)
        if not bernoulli_exp(Fraction(part, top), below):
            continue
        whole = 0
        while bernoulli_exp(Fraction(1), below):
            whole += 1
        size = (part + top * whole) // bottom
        negative = below(2) == 1
        if not (negative and size == 0):
            return -size if negative else size


def gaussian(variance: Fraction, below: Below = secrets.randbelow) -> int:
    """Return an integer x with probability proportional to e^(−x²/(2·variance)), exactly."""
    scale = math.isqrt(variance.numerator // variance.denominator) + 1
    while True:
        candidate = laplace(Fraction(scale), below)
        distance = abs(candidate) - variance / scale
        if bernoulli_exp(distance * distance / (2 * variance), below):
            return candidate


def gaussian_delta(variance: Fraction, epsilon: float) -> float:
    """Return an upper bound on δ(ε) of adding this noise to a count of sensitivity 1.

    δ(ε) = P[X > εσ² − 1/2] − e^ε·P[X > εσ² + 1/2]. Source: Theorem 7.
    """
    variance_float = float(variance)
    reach = math.ceil(40 * math.sqrt(variance_float)) + 2
    weights = {x: math.exp(-(x * x) / (2 * variance_float)) for x in range(-reach, reach + 1)}
    total = math.fsum(weights.values())

    def above(threshold: float) -> float:
        return math.fsum(w for x, w in weights.items() if x > threshold) / total

    edge = epsilon * variance_float
    delta = above(edge - 0.5) - math.exp(epsilon) * above(edge + 0.5)
    return max(delta, 0.0) + ROUNDING
