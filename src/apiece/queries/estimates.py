"""Estimates and intervals from noisy sums: post-processing, which is free of charge.

Each interval covers, with the stated confidence, the statistic of the clamped rows of the people
who took part: it is about the noise, not about sampling, clamping, or who had no budget left.
"""

import math
from statistics import NormalDist
from typing import Final

import numpy as np

from apiece._types import Floats, Json
from apiece.queries.quantiles import CONFIDENCE
from apiece.queries.question import SPREADS, Measure, Question, list_moments

# Repetitions of the noise behind an interval of a variance, covariance or regression.
DRAWS: Final = 2000


def estimate(question: Question, sums: Floats, scale: float, pure: bool = False) -> Json:
    """Return the estimate of one group from its noisy sums, shape (cells, features).

    `scale` is the noise's standard deviation; where the answer is `pure`, the scale of its
    Laplace law.
    """
    margin = scale * (_laplace_quantile() if pure else _normal_quantile())
    match question.query.aggregate:
        case "count" | "distinct":
            return _estimate_total(sums[0, 0], margin)
        case "sum":
            largest = question.measures[0].largest
            return _estimate_total(sums[0, 0] * largest, margin * largest)
        case "histogram":
            assert question.bins is not None
            bins = [_estimate_total(count, margin) for count in sums[:, 0]]
            return {"edges": list(question.bins.edges), "bins": bins}
        case "mean":
            return _estimate_mean(question.measures[0], sums[0], margin)
        case "regression":
            names = ["intercept", *question.query.columns[1:]]
            coefficients = _bootstrap(question, sums[0], scale)
            return {"coefficients": dict(zip(names, coefficients, strict=True))}
    return _bootstrap(question, sums[0], scale)[0]


def _laplace_quantile() -> float:
    """Return the size that a standard Laplace deviate exceeds with chance 1 − CONFIDENCE."""
    return -math.log(1 - CONFIDENCE)


def _normal_quantile() -> float:
    """Return the size that a standard normal deviate exceeds with chance 1 − CONFIDENCE."""
    return NormalDist().inv_cdf((1 + CONFIDENCE) / 2)


def _estimate_total(value: float, margin: float) -> Json:
    """Return a noisy sum, in the unit of the answer, with its interval."""
    value = float(value)
    return {"estimate": value, "interval": [value - margin, value + margin]}


def _estimate_mean(measure: Measure, sums: Floats, margin: float) -> Json:
    """Return the ratio of the noisy total to the noisy count, with Fieller's interval."""
    # The interval {r : (total − r·count)² ≤ margin²(1 + r²)} is exact for known variances. It lies
    # between the roots of a·r² + 2b·r + c; where a ≤ 0 the noise hides the count, and the interval
    # is all that a scaled mean can be.
    count = float(sums[0])
    total = float(sums[1])
    ratio = min(max(total / count, -1.0), 1.0) if count > 0 else 0.0
    a = count**2 - margin**2
    b = -count * total
    c = total**2 - margin**2
    low = -1.0
    high = 1.0
    if a > 0 and count > 0:
        root = math.sqrt(max(b * b - a * c, 0.0))
        low = min(max((-b - root) / a, -1.0), 1.0)
        high = max(min((-b + root) / a, 1.0), -1.0)
    middle = measure.middle
    half = measure.half
    return {
        "estimate": middle + half * ratio,
        "interval": [middle + half * low, middle + half * high],
    }


def _bootstrap(question: Question, sums: Floats, stddev: float) -> list[Json]:
    """Return estimates with intervals from the noise drawn again around the noisy sums."""
    # The draws describe an interval, they hide nothing: their seed is fixed.
    generator = np.random.default_rng(0)
    # (draws, sums): each row is what the noisy sums could have been.
    draws = sums + generator.normal(0, stddev, (DRAWS, sums.size))
    solvers = {"regression": _solve_regression, "correlation": _solve_correlation}
    solve = solvers.get(question.query.aggregate, _solve_moment)
    estimates = solve(question, sums[None, :], stddev)[0]
    tail = (1 - CONFIDENCE) / 2
    lows, highs = np.quantile(solve(question, draws, stddev), [tail, 1 - tail], axis=0)
    return [
        {"estimate": float(value), "interval": [float(low), float(high)]}
        for value, low, high in zip(estimates, lows, highs, strict=True)
    ]


def _solve_moment(question: Question, sums: Floats, stddev: float) -> Floats:
    """Return the variance, deviation or covariance of each row of sums, shape (rows, 1)."""
    aggregate = question.query.aggregate
    count = np.maximum(sums[:, 0], max(stddev, 1.0))
    # The sums are those of 1, x, y and xy; of a variance 1, x and x², so that y is x.
    x = sums[:, 1] / count
    y = sums[:, -2] / count
    product = sums[:, -1] / count
    lowest = 0.0 if aggregate in SPREADS else -1.0
    moment = np.clip(product - x * y, lowest, 1.0)
    if aggregate.startswith("sample_"):
        # As SQL has it, with n − 1 in place of n; noise may leave no second row.
        moment = moment * (count / np.maximum(count - 1, 1.0))
    x_half = question.measures[0].half
    y_half = question.measures[-1].half
    result = np.asarray(moment[:, None] * x_half * y_half)
    return np.sqrt(result) if aggregate.endswith("deviation") else result


def _solve_correlation(question: Question, sums: Floats, stddev: float) -> Floats:
    """Return the correlation that each row of sums stands for, in [−1, 1], shape (rows, 1)."""
    # The sums are those of 1, x, y, xx, xy and yy; the correlation is that of scaled columns.
    assert len(question.measures) == 2
    count = np.maximum(sums[:, 0], max(stddev, 1.0))
    x, y, xx, xy, yy = (sums[:, number] / count for number in range(1, 6))
    # A variance below the noise's size is raised to it: its correlation is the noise's.
    least = max(stddev, 1.0) / count
    x_variance = np.maximum(xx - x * x, least)
    y_variance = np.maximum(yy - y * y, least)
    correlation = (xy - x * y) / np.sqrt(x_variance * y_variance)
    return np.asarray(np.clip(correlation, -1.0, 1.0)[:, None])


def _solve_regression(question: Question, sums: Floats, stddev: float) -> Floats:
    """Return the least-squares coefficients of each row of sums, the intercept first."""
    # names: "" stands for the constant 1, the response comes next, then the regressors.
    names = ["", *question.query.columns]
    # (rows, names, names): the sums of all products of two names.
    moments = sums[:, _locate_moments(question, names)]
    regressors = [0, *range(2, len(names))]
    # Eigenvalues are raised to the noise's size: a direction that the noise hides gets a slope
    # near 0 instead of one that the noise has made. With eigenvectors V of the (rows, p, p) matrix
    # the slopes are V·diag(1/values)·Vᵀ·(sums of regressor times response).
    gram = moments[:, regressors][:, :, regressors]
    values, vectors = np.linalg.eigh(gram)
    values = np.maximum(values, max(stddev, 1.0))
    rotated = np.einsum("nij,ni->nj", vectors, moments[:, regressors, 1]) / values
    slopes = np.einsum("nij,nj->ni", vectors, rotated)
    # From scaled columns back to the columns' own units.
    response, *measures = question.measures
    result = np.empty_like(slopes)
    result[:, 0] = response.middle + response.half * slopes[:, 0]
    for i, measure in enumerate(measures, start=1):
        result[:, i] = slopes[:, i] * response.half / measure.half
        result[:, 0] -= result[:, i] * measure.middle
    return np.asarray(result)


def _locate_moments(question: Question, names: list[str]) -> list[list[int]]:
    """Return the index among the sums of the product of each two of the names."""
    moments = list_moments(question.query)
    table = []
    for i in range(len(names)):
        row = []
        for j in range(len(names)):
            # A product stands there once, its factors in the order of the query.
            product = (names[k] for k in sorted((i, j)) if k)
            row.append(moments.index(tuple(product)))
        table.append(row)
    return table
