"""From noisy sums to estimates with intervals; all of it post-processing, free of charge.

Each interval covers, with the stated confidence, the statistic of the clamped rows of the people
who took part: it is about the noise, not about sampling, clamping, or who had no budget left.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from statistics import NormalDist

import numpy as np

from apiece._types import Floats, Json
from apiece.queries.features import LEVELS, moment_names
from apiece.queries.grammar import Query
from apiece.queries.schema import Schema

DRAWS = 2000
FIELDS = ("estimate", "interval", "edges", "bins", "coefficients", "resolution")


def estimate(
    query: Query, schema: Schema, sums: Floats, scale: float, confidence: float, pure: bool = False
) -> Json:
    """Return the estimate of one group from its noisy sums, shape (cells, features).

    scale: of the noise: the standard deviation of a Gaussian, or where the answer is `pure`, the
    scale of a Laplace law.
    """
    z = -math.log(1 - confidence) if pure else NormalDist().inv_cdf((1 + confidence) / 2)
    stddev = scale
    match query.aggregate:
        case "count":
            return _linear(sums[0, 0], stddev, z)
        case "sum":
            low, high = schema.bounds_of(query.columns[0])
            largest = max(abs(low), abs(high))
            return _linear(sums[0, 0] * largest, stddev * largest, z)
        case "histogram":
            low, high = schema.bounds_of(query.columns[0])
            edges = np.linspace(low, high, len(sums) + 1)
            bins = [_linear(s, stddev, z) for s in sums[:, 0]]
            return {"edges": edges.tolist(), "bins": bins}
        case "mean":
            return _mean(query, schema, sums[0], stddev, z)
        case "quantile":
            return _quantile(query, schema, sums[:, 0], stddev, z)
    return _simulated(query, schema, sums[0], stddev, confidence)


def _linear(value: float, stddev: float, z: float) -> Json:
    value = float(value)
    return {"estimate": value, "interval": [value - z * stddev, value + z * stddev]}


def _scale(schema: Schema, column: str) -> tuple[float, float]:
    low, high = schema.bounds_of(column)
    return (low + high) / 2, (high - low) / 2


def _mean(query: Query, schema: Schema, sums: Floats, stddev: float, z: float) -> Json:
    """Ratio of two Gaussians: Fieller's interval, which is exact for known variances."""
    middle, half = _scale(schema, query.columns[0])
    count, total = float(sums[0]), float(sums[1])
    ratio = min(max(total / count, -1.0), 1.0) if count > 0 else 0.0
    # {r : (total − r·count)² ≤ z²σ²(1 + r²)}
    a, b, c = count**2 - (z * stddev) ** 2, -count * total, total**2 - (z * stddev) ** 2
    low, high = -1.0, 1.0
    if a > 0 and count > 0:
        root = math.sqrt(max(b * b - a * c, 0.0))
        low, high = max((-b - root) / a, -1.0), min((-b + root) / a, 1.0)
        low, high = min(low, 1.0), max(high, -1.0)
    return {
        "estimate": middle + half * ratio,
        "interval": [middle + half * low, middle + half * high],
    }


def _quantile(query: Query, schema: Schema, nodes: Floats, stddev: float, z: float) -> Json:
    """The least edge whose noisy rank reaches the level; ranks are sums of at most ten nodes."""
    low, high = schema.bounds_of(query.columns[0])
    level = query.numbers[0]
    ranks = _ranks(nodes)
    target = level * (nodes[0] + nodes[1])
    edges = np.linspace(low, high, ranks.size)
    reached = np.flatnonzero(np.maximum.accumulate(ranks) >= target)
    best = edges[reached[0]] if reached.size else high
    margin = z * stddev * (math.sqrt(LEVELS) + level * math.sqrt(2))
    above = np.flatnonzero(ranks >= target - margin)
    below = np.flatnonzero(ranks <= target + margin)
    first = edges[max(int(above[0]) - 1, 0)] if above.size else high
    last = edges[min(int(below[-1]) + 1, edges.size - 1)] if below.size else low
    return {
        "estimate": float(best),
        "interval": [float(min(first, best)), float(max(last, best))],
        "resolution": (high - low) / (ranks.size - 1),
    }


def _ranks(nodes: Floats) -> Floats:
    """Return the noisy number of values below each of the 2^LEVELS + 1 edges."""
    size = 2**LEVELS
    ranks = np.zeros(size + 1)
    edges = np.arange(size + 1)
    for level in range(1, LEVELS + 1):
        width = size >> level
        # Where the edge's binary expansion has a 1 at this level, the node left of it is whole.
        uses = (edges // width) % 2 == 1
        ranks[uses] += nodes[2**level - 2 + (edges[uses] // width - 1)]
    ranks[size] = nodes[0] + nodes[1]
    return ranks


def _simulated(
    query: Query, schema: Schema, sums: Floats, stddev: float, confidence: float
) -> Json:
    """Intervals by drawing the noise again around the noisy sums (a parametric bootstrap)."""
    solve: Callable[[Floats], Floats] = {
        "variance": _variance,
        "covariance": _covariance,
        "regression": _regression,
    }[query.aggregate](query, schema, stddev)
    best = solve(sums[None, :])[0]
    # The draws describe an interval, they hide nothing: their seed is fixed.
    draws = sums + np.random.default_rng(0).normal(0, stddev, (DRAWS, sums.size))
    tail = (1 - confidence) / 2
    low, high = np.quantile(solve(draws), [tail, 1 - tail], axis=0)
    if query.aggregate != "regression":
        return {"estimate": float(best[0]), "interval": [float(low[0]), float(high[0])]}
    names = ["intercept", *query.columns[1:]]
    return {
        "coefficients": {
            name: {"estimate": float(best[i]), "interval": [float(low[i]), float(high[i])]}
            for i, name in enumerate(names)
        }
    }


def _variance(query: Query, schema: Schema, stddev: float) -> Callable[[Floats], Floats]:
    _, half = _scale(schema, query.columns[0])

    def solve(sums: Floats) -> Floats:
        count = np.maximum(sums[:, 0], max(stddev, 1.0))
        first, second = sums[:, 1] / count, sums[:, 2] / count
        return np.asarray(np.clip(second - first**2, 0.0, 1.0)[:, None] * half**2)

    return solve


def _covariance(query: Query, schema: Schema, stddev: float) -> Callable[[Floats], Floats]:
    _, half_x = _scale(schema, query.columns[0])
    _, half_y = _scale(schema, query.columns[1])

    def solve(sums: Floats) -> Floats:
        count = np.maximum(sums[:, 0], max(stddev, 1.0))
        x, y, xy = (sums[:, i] / count for i in (1, 2, 3))
        return np.asarray(np.clip(xy - x * y, -1.0, 1.0)[:, None] * half_x * half_y)

    return solve


def _regression(query: Query, schema: Schema, stddev: float) -> Callable[[Floats], Floats]:
    """Least squares from noisy second moments; their eigenvalues are kept above the noise."""
    names = ["", *query.columns]
    at = {m: i for i, m in enumerate(moment_names(query))}
    index = np.empty((len(names), len(names)), dtype=int)
    for i, a in enumerate(names):
        for j, b in enumerate(names):
            key = tuple(n for n in (a, b) if n)
            index[i, j] = at[key] if key in at else at[key[::-1]]
    regressors = [0, *range(2, len(names))]
    scales = [_scale(schema, c) for c in query.columns]

    def solve(sums: Floats) -> Floats:
        moments = sums[:, index]
        gram = moments[:, regressors][:, :, regressors]
        values, vectors = np.linalg.eigh(gram)
        values = np.maximum(values, max(stddev, 1.0))
        right = moments[:, regressors, 1]
        inner = np.einsum("nij,ni->nj", vectors, right) / values
        slopes = np.einsum("nij,nj->ni", vectors, inner)
        middle_y, half_y = scales[0]
        result = np.empty_like(slopes)
        result[:, 0] = middle_y + half_y * slopes[:, 0]
        for i, (middle, half) in enumerate(scales[1:], start=1):
            result[:, i] = slopes[:, i] * half_y / half
            result[:, 0] -= result[:, i] * middle
        return np.asarray(result)

    return solve
