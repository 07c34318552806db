"""Estimates and intervals from noisy sums: post-processing, which is free of charge.

Each interval covers, with the stated confidence, the statistic of the clamped rows of the people
who took part: it is about the noise, not about sampling, clamping, or who had no budget left.
"""

import math
from statistics import NormalDist

import numpy as np

from apiece._types import Floats, Json
from apiece.queries.quantiles import CONFIDENCE
from apiece.queries.scan import Measure, Question, moment_names

DRAWS = 2000
FIELDS = {
    "estimate", "interval", "edges", "bins", "coefficients", "quantiles", "resolution",
    "rank_margin",
}  # fmt: skip


def estimate(question: Question, sums: Floats, scale: float, pure: bool = False) -> Json:
    """Return the estimate of one group from its noisy sums, shape (cells, features)."""
    # scale: of the noise: the standard deviation of a Gaussian, or where the answer is `pure`, the
    # scale of a Laplace law.
    z = -math.log(1 - CONFIDENCE) if pure else NormalDist().inv_cdf((1 + CONFIDENCE) / 2)
    match question.query.aggregate:
        case "count":
            return _linear(sums[0, 0], z * scale)
        case "sum":
            largest = question.measures[0].largest
            return _linear(sums[0, 0] * largest, z * scale * largest)
        case "histogram":
            assert question.bins is not None
            bins = [_linear(count, z * scale) for count in sums[:, 0]]
            return {"edges": list(question.bins.edges), "bins": bins}
        case "mean":
            return _mean(question.measures[0], sums[0], z * scale)
    return _simulated(question, sums[0], scale)


def _linear(value: float, margin: float) -> Json:
    value = float(value)
    return {"estimate": value, "interval": [value - margin, value + margin]}


def _mean(column: Measure, sums: Floats, margin: float) -> Json:
    """Return a ratio of two Gaussians: Fieller's interval, which is exact for known variances."""
    count, total = float(sums[0]), float(sums[1])
    ratio = min(max(total / count, -1.0), 1.0) if count > 0 else 0.0
    # {r : (total − r·count)² ≤ z²σ²(1 + r²)}
    a, b, c = count**2 - margin**2, -count * total, total**2 - margin**2
    low, high = -1.0, 1.0
    if a > 0 and count > 0:
        root = math.sqrt(max(b * b - a * c, 0.0))
        low, high = max((-b - root) / a, -1.0), min((-b + root) / a, 1.0)
        low, high = min(low, 1.0), max(high, -1.0)
    middle, half = column.middle, column.half
    return {
        "estimate": middle + half * ratio,
        "interval": [middle + half * low, middle + half * high],
    }


def _simulated(question: Question, sums: Floats, stddev: float) -> Json:
    """Return intervals by drawing the noise again around the noisy sums (parametric bootstrap)."""
    # The draws describe an interval, they hide nothing: their seed is fixed.
    draws = sums + np.random.default_rng(0).normal(0, stddev, (DRAWS, sums.size))
    solve = _regression if question.query.aggregate == "regression" else _moment
    best = solve(question, sums[None, :], stddev)[0]
    tail = (1 - CONFIDENCE) / 2
    low, high = np.quantile(solve(question, draws, stddev), [tail, 1 - tail], axis=0)
    result = [
        {"estimate": float(each), "interval": [float(least), float(most)]}
        for each, least, most in zip(best, low, high, strict=True)
    ]
    if question.query.aggregate != "regression":
        return result[0]
    names = ["intercept", *question.query.columns[1:]]
    return {"coefficients": dict(zip(names, result, strict=True))}


def _moment(question: Question, sums: Floats, stddev: float) -> Floats:
    """Return a variance or covariance of each row of sums."""
    count = np.maximum(sums[:, 0], max(stddev, 1.0))
    # Of a variance: count, x, x²; both factors of the product are the same.
    x, y, product = (sums[:, i] / count for i in (1, -2, -1))
    first, second = question.measures[0], question.measures[-1]
    least = 0.0 if question.query.aggregate == "variance" else -1.0
    return np.asarray(np.clip(product - x * y, least, 1.0)[:, None] * first.half * second.half)


def _regression(question: Question, sums: Floats, stddev: float) -> Floats:
    """Return least squares from noisy second moments; eigenvalues are kept above the noise."""
    names = ["", *question.query.columns]
    at, span = moment_names(question.query), range(len(names))
    pairs = [[sorted((i, j)) for j in span] for i in span]
    index = [[at.index(tuple(names[k] for k in pair if k)) for pair in row] for row in pairs]
    regressors = [0, *range(2, len(names))]
    moments = sums[:, index]
    values, vectors = np.linalg.eigh(moments[:, regressors][:, :, regressors])
    values = np.maximum(values, max(stddev, 1.0))
    inner = np.einsum("nij,ni->nj", vectors, moments[:, regressors, 1]) / values
    slopes = np.einsum("nij,nj->ni", vectors, inner)
    response, *columns = question.measures
    result = np.empty_like(slopes)
    result[:, 0] = response.middle + response.half * slopes[:, 0]
    for i, column in enumerate(columns, start=1):
        result[:, i] = slopes[:, i] * response.half / column.half
        result[:, 0] -= result[:, i] * column.middle
    return np.asarray(result)
