"""Between a budget (ε, δ) and what a filter counts: (μ², slack) or Rényi divergence. One-sided."""

from __future__ import annotations

import math
from typing import Final

import numpy as np
import numpy.typing as npt

from apiece import numerics
from apiece._types import Floats

ULP: Final = 2.0**-52
SHARE: Final = 0.1
"""Of an account's δ, kept for charges that need a slack; the rest is for Gaussians."""


def gaussian_delta(mu: npt.ArrayLike, epsilon: npt.ArrayLike) -> Floats:
    """Return an upper bound on δ(ε) of μ-Gaussian differential privacy.

    δ = Φ(μ/2 − ε/μ) − e^ε Φ(−μ/2 − ε/μ). Arrays broadcast.

    Args:
        mu: Positive.
        epsilon: Positive.

    Guarantee:
        Never below the true δ, and tight to round-off.

    References:
        Balle and Wang 2018, Thm 8; Dong, Roth, Su 2022, Cor. 1.

    Example:
        >>> round(float(gaussian_delta(1.0, 1.0)), 6)
        0.126937
    """
    return np.asarray(numerics.gaussian_delta(mu, epsilon).upper)


def gaussian_epsilon(mu: npt.ArrayLike, delta: npt.ArrayLike) -> Floats:
    """Return the smallest safe ε with which μ-Gaussian differential privacy is (ε, δ)-DP.

    Arrays broadcast; 0 where mu is 0 or δ(0) ≤ delta already.

    Args:
        mu: At least 0.
        delta: In (0, 1).

    Guarantee:
        Rounded up: (ε, δ)-DP holds.

    Example:
        >>> round(float(gaussian_epsilon(0.66616, 1e-5)), 4)
        2.751
    """
    return numerics.gaussian_epsilon_above(mu, delta)


def gaussian_mu(epsilon: npt.ArrayLike, delta: npt.ArrayLike) -> Floats:
    """Return the largest safe μ such that μ-Gaussian differential privacy is (ε, δ)-DP.

    Arrays broadcast.

    Args:
        epsilon: In (0, ∞).
        delta: In (0, 1).

    Guarantee:
        Rounded down: (ε, δ)-DP holds at the μ that is returned.

    Example:
        >>> round(float(gaussian_mu(1.0, 1e-5)), 4)
        0.2681
    """
    epsilon, delta = np.broadcast_arrays(
        np.asarray(epsilon, np.float64), np.asarray(delta, np.float64)
    )
    eps, dlt, index = _distinct(epsilon, delta)
    mu = numerics.gaussian_mu_below(eps, dlt)
    return np.asarray(mu[index].reshape(epsilon.shape))


def gaussian_budget(
    epsilon: npt.ArrayLike, delta: npt.ArrayLike, slack: npt.ArrayLike = 0.0
) -> Floats:
    """Return the largest safe B such that an account (B, slack) is (ε, δ)-DP.

    Whose charges (μ_t², s_t) stay within Σ μ_t² ≤ B and Σ s_t ≤ slack. Arrays broadcast.

    Args:
        epsilon: In (0, ∞).
        delta: In (0, 1).
        slack: S, at least 0 and below delta.

    Guarantee:
        Rounded down: S + (1 − S)·δ_√B(ε) ≤ δ holds at the B that is returned.

    References:
        docs/mathematics.md, section 11.

    Example:
        >>> gaussian_budget(1.0, 1e-5, [0.0, 1e-6]).round(5).tolist()
        [0.07185, 0.07095]
    """
    delta, slack = np.asarray(delta, np.float64), np.asarray(slack, np.float64)
    rest = np.where(slack > 0, (delta - slack) / (1 - slack) * (1 - 4 * ULP), delta)
    mu = gaussian_mu(epsilon, rest)
    return np.asarray(mu * mu * (1 - 2 * ULP))


def _distinct(epsilon: Floats, delta: Floats) -> tuple[Floats, Floats, npt.NDArray[np.intp]]:
    """Return the distinct pairs and each person's place among them: each is then solved once.

    One sort a column: a sort of pairs takes several times as long.
    """
    eps, first = np.unique(epsilon.ravel(), return_inverse=True)
    dlt, second = np.unique(delta.ravel(), return_inverse=True)
    if dlt.size == 1:
        return eps, np.broadcast_to(dlt, eps.shape), first
    codes, index = np.unique(first * dlt.size + second, return_inverse=True)
    return eps[codes // dlt.size], dlt[codes % dlt.size], index


def renyi_budget(epsilon: npt.ArrayLike, delta: npt.ArrayLike, order: npt.ArrayLike) -> Floats:
    """Return the largest B such that (order, B)-Rényi privacy is (ε, δ)-DP; ≤ 0 where none is.

    B = ε − log(1−1/α) + log(δα)/(α−1). Arrays broadcast.

    Args:
        epsilon: In (0, ∞).
        delta: In (0, 1).
        order: The Rényi order α, in (1, ∞).

    Guarantee:
        Rounded down: (ε, δ)-DP holds at the B that is returned.

    References:
        Canonne, Kamath, Steinke 2020, Prop. 12.

    Example:
        >>> round(float(renyi_budget(1.0, 1e-5, 24.0)), 3)
        0.68
    """
    epsilon, order = np.asarray(epsilon, np.float64), np.asarray(order, np.float64)
    gain = -np.log1p(-1 / order)
    cost = np.log(np.asarray(delta) * order) / (order - 1)
    return np.asarray(epsilon + gain + cost - 8 * ULP * (epsilon + gain + np.abs(cost)))


def best_order(epsilon: npt.ArrayLike, delta: npt.ArrayLike) -> Floats:
    """Return the order that lets the most Gaussian noise queries through a Rényi filter.

    It maximises B(α)/α, because a Gaussian's Rényi loss is proportional to α; it depends on the
    budget alone, so it is fixed before any data are seen. Rounded to three digits of α − 1.

    Args:
        epsilon: In (0, ∞), one entry a person or a scalar.
        delta: In (0, 1), the same.

    Example:
        >>> float(best_order(1.0, 1e-5))
        17.8
    """
    epsilon, delta = np.broadcast_arrays(
        np.asarray(epsilon, np.float64), np.asarray(delta, np.float64)
    )
    distinct_epsilon, distinct_delta, index = _distinct(epsilon, delta)
    log_order = np.linspace(math.log(1e-4), math.log(1e7), 600)  # of α − 1
    best = np.empty(distinct_epsilon.size)
    for i, (eps, dlt) in enumerate(zip(distinct_epsilon, distinct_delta, strict=True)):
        grid = 1 + np.exp(log_order)
        for _ in range(2):
            top = int(np.argmax(renyi_budget(eps, dlt, grid) / grid))
            grid = np.linspace(grid[max(top - 1, 0)], grid[min(top + 1, grid.size - 1)], 400)
        found = grid[int(np.argmax(renyi_budget(eps, dlt, grid) / grid))]
        # Three digits: the curve is flat there, and a short number is easier to report.
        best[i] = 1 + float(f"{found - 1:.3g}")
    return np.asarray(best[index].reshape(epsilon.shape))
