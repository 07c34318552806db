"""Estimates: without noise they are the statistics themselves, inside their own intervals."""

import numpy as np
import pytest

from apiece.queries.declarations import Declarations
from apiece.queries.estimates import estimate
from apiece.queries.grammar import parse
from apiece.queries.question import list_moments, resolve

SCHEMA = Declarations("id", bounds={"x": (-2, 6), "y": (0, 10)}, rows_per_person=1)
X = np.random.default_rng(0).uniform(-2, 6, 4000)
Y = np.clip(3 + 0.5 * X + np.random.default_rng(1).normal(0, 0.5, X.size), 0, 10)
COLUMNS = {"x": (X - 2) / 4, "y": (Y - 5) / 5}  # scaled to [-1, 1]


def moments(text: str) -> np.ndarray:
    names = list_moments(parse(text))
    return np.array([[np.prod([COLUMNS[c] for c in n] or [np.ones(X.size)], axis=0).sum()
                      for n in names]])  # fmt: skip


@pytest.mark.parametrize(
    ("text", "true"),
    [
        ("mean(x)", X.mean()),
        ("variance(x)", X.var()),
        ("covariance(x, y)", np.cov(X, Y, bias=True)[0, 1]),
    ],
)
def test_moments_without_noise(text: str, true: float) -> None:
    found = estimate(resolve(parse(text), SCHEMA), moments(text), 1e-9)
    assert found["estimate"] == pytest.approx(true, rel=1e-9)
    low, high = found["interval"]
    assert low <= found["estimate"] <= high


def test_regression_without_noise() -> None:
    text = "regression(y ~ x)"
    found = estimate(resolve(parse(text), SCHEMA), moments(text), 1e-9)["coefficients"]
    slope, intercept = np.polyfit(X, Y, 1)
    assert found["x"]["estimate"] == pytest.approx(slope, rel=1e-3)
    assert found["intercept"]["estimate"] == pytest.approx(intercept, rel=1e-3)


def test_a_sum_is_scaled_back() -> None:
    found = estimate(resolve(parse("sum(x)"), SCHEMA), np.array([[X.sum() / 6]]), 2.0)
    assert found["estimate"] == pytest.approx(X.sum())
    assert found["interval"][1] - found["interval"][0] == pytest.approx(2 * 1.959964 * 2 * 6)


@pytest.mark.parametrize("text", ["mean(x)", "variance(x)", "covariance(x, y)"])
def test_noise_alone_stays_within_what_is_possible(text: str) -> None:
    """Where noise hides the count, the estimate is still one that data in the bounds can have."""
    for seed in range(50):
        sums = np.random.default_rng(seed).normal(0, 50, (1, len(list_moments(parse(text)))))
        found = estimate(resolve(parse(text), SCHEMA), sums, 50.0)
        low, high = {"mean(x)": (-2, 6), "variance(x)": (0, 16), "covariance(x, y)": (-20, 20)}[
            text
        ]
        assert low <= found["estimate"] <= high
