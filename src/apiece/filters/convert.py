"""Between a budget (ε, δ) and what a filter counts: (μ², slack) or Rényi divergence. One-sided."""

import math
from typing import Final

import numpy as np
import numpy.typing as npt

from apiece._types import AnyArray, Floats, Integers
from apiece.numerics.gaussian import gaussian_mu_below

ULP: Final = 2.0**-52
"""One unit in the last place of a number from 1 to 2."""
SHARE: Final = 0.1
"""Of an account's δ, kept for charges that need a slack; the rest is for Gaussians."""


def gaussian_mu(epsilon: npt.ArrayLike, delta: npt.ArrayLike) -> Floats:
    """Return the largest safe μ such that μ-Gaussian differential privacy is (ε, δ)-DP."""
    (distinct_epsilon, distinct_delta), member = distinct(epsilon, delta)
    shape = np.broadcast_shapes(np.shape(epsilon), np.shape(delta))
    mu = gaussian_mu_below(distinct_epsilon, distinct_delta)
    return np.asarray(mu[member]).reshape(shape)


def gaussian_budget(
    epsilon: npt.ArrayLike, delta: npt.ArrayLike, slack: npt.ArrayLike = 0.0
) -> Floats:
    """Return the largest safe B with which Σ μ_t² ≤ B and Σ s_t ≤ slack are (ε, δ)-DP."""
    delta = np.asarray(delta, np.float64)
    slack = np.asarray(slack, np.float64)
    # s + (1 − s)·G(ε) ≤ δ: the Gaussians may have (δ − s)/(1 − s), rounded down.
    remaining = (delta - slack) / (1 - slack) * (1 - 4 * ULP)
    gaussian_delta = np.where(slack > 0, remaining, delta)
    mu = gaussian_mu(epsilon, gaussian_delta)
    return np.asarray(mu * mu * (1 - 2 * ULP))


def renyi_budget(epsilon: npt.ArrayLike, delta: npt.ArrayLike, order: npt.ArrayLike) -> Floats:
    """Return the largest B such that (order, B)-Rényi privacy is (ε, δ)-DP; ≤ 0 where none is."""
    epsilon = np.asarray(epsilon, np.float64)
    order = np.asarray(order, np.float64)
    # B = ε − log(1 − 1/α) + log(δα)/(α − 1), solved from Canonne, Kamath, Steinke 2020, Prop. 12.
    gain = -np.log1p(-1 / order)
    cost = np.log(np.asarray(delta) * order) / (order - 1)
    # Rounded down, by a few units of the terms.
    rounding = 8 * ULP * (epsilon + gain + np.abs(cost))
    return np.asarray(epsilon + gain + cost - rounding)


def best_order(epsilon: npt.ArrayLike, delta: npt.ArrayLike) -> Floats:
    """Return the order that lets the most Gaussian noise queries through a Rényi filter."""
    # It maximises B(α)/α, because a Gaussian's Rényi loss is proportional to α; it depends on the
    # budget alone, so it is fixed before any data are seen.
    (distinct_epsilon, distinct_delta), member = distinct(epsilon, delta)
    # Of α − 1.
    log_order = np.linspace(math.log(1e-4), math.log(1e7), 600)
    best = np.empty(distinct_epsilon.size)
    for i, (eps, dlt) in enumerate(zip(distinct_epsilon, distinct_delta, strict=True)):
        orders = 1 + np.exp(log_order)
        # Twice closer, between the neighbours of the best.
        for _ in range(2):
            top = int(np.argmax(renyi_budget(eps, dlt, orders) / orders))
            low = orders[max(top - 1, 0)]
            high = orders[min(top + 1, orders.size - 1)]
            orders = np.linspace(low, high, 400)
        top = int(np.argmax(renyi_budget(eps, dlt, orders) / orders))
        # Three digits of α − 1: the curve is flat there, and a short number is easier to report.
        best[i] = 1 + float(f"{orders[top] - 1:.3g}")
    shape = np.broadcast_shapes(np.shape(epsilon), np.shape(delta))
    return best[member].reshape(shape)


def distinct(*columns: npt.ArrayLike) -> tuple[list[AnyArray], Integers]:
    """Return the distinct rows of columns, of one entry a row or one for all, and rows' numbers.

    >>> [each.tolist() for each in distinct([2.0, 1.0, 2.0], 1e-5)[0]]
    [[1.0, 2.0], [1e-05, 1e-05]]
    """
    # One sort a column: a sort of rows takes several times as long. Codes of two columns at a time
    # stay below the square of the number of rows, and within 64 bits.
    kinds: list[AnyArray] = []
    member = np.zeros(1, np.int64)
    for column in columns:
        values, index = np.unique(column, return_inverse=True)
        index = index.reshape(-1)
        if not kinds:
            kinds = [values]
            member = index
        elif values.size == 1:
            kinds.append(np.repeat(values, kinds[0].size))
            # All 0, one for each row.
            member = member + index
        else:
            codes, member = np.unique(member * values.size + index, return_inverse=True)
            kinds = [kind[codes // values.size] for kind in kinds]
            kinds.append(values[codes % values.size])
    return kinds, member
