"""Errors of workloads against dense matrices."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.linalg import toeplitz

from apiece.correlation.series import correlate_series, invert_series, multiply_series
from apiece.correlation.strategies import Banded, Buffered
from apiece.correlation.workloads import Workload
from apiece.errors import InputError


def descend(workload: Workload) -> np.ndarray:
    """The matrix of gradient descent, by running it on one gradient after the other."""
    rates = workload.learning_rates
    matrix = np.zeros((workload.steps, workload.steps))
    for step in range(workload.steps):
        velocity = 0.0
        moved = 0.0
        for now in range(workload.steps):
            velocity = workload.momentum * velocity + (now == step)
            moved += velocity * (1.0 if rates is None else rates[now])
            matrix[now, step] = moved
    return matrix


workloads = st.integers(1, 12).flatmap(
    lambda steps: st.builds(
        lambda momentum, rates: Workload(steps, momentum=momentum, learning_rates=rates),
        st.floats(0, 0.95),
        st.none() | st.lists(st.floats(0.01, 2), min_size=steps, max_size=steps),
    )
)


@settings(deadline=None)
@given(workload=workloads, bands=st.integers(1, 12))
def test_errors_are_the_rows_of_a_dense_matrix(workload: Workload, bands: int) -> None:
    strategy = Banded.square_root(bands)
    matrix = np.tril(toeplitz(strategy.first_column(workload.steps)))
    rows = np.linalg.norm(descend(workload) @ np.linalg.inv(matrix), axis=1)
    np.testing.assert_allclose(workload.errors(strategy), rows, rtol=1e-9)
    assert workload.mean_error(strategy) == pytest.approx(np.sqrt(np.mean(rows**2)))
    assert workload.max_error(strategy) == pytest.approx(rows.max())


def test_independent_noise_sums_as_a_random_walk() -> None:
    errors = Workload(100).errors(Banded([1.0]))
    np.testing.assert_allclose(errors, np.sqrt(np.arange(1, 101)))


def test_a_long_series_is_inverted_as_a_short_one() -> None:
    series = Buffered([0.9, 0.5], [0.3, 0.4]).first_column(20_000)
    product = multiply_series(series, invert_series(series, 20_000), 20_000)
    np.testing.assert_allclose(product, np.eye(1, 20_000)[0], atol=1e-10)


def test_correlation_is_the_adjoint_of_multiplication() -> None:
    generator = np.random.default_rng(0)
    for size in (1, 2, 7, 30):
        inner, outer, x = generator.normal(size=(3, size))
        forward = outer @ multiply_series(inner, x, size)
        assert forward == pytest.approx(correlate_series(outer, inner, size) @ x)


@pytest.mark.parametrize(
    ("arguments", "name"),
    [
        ({"steps": 0}, "steps"),
        ({"steps": 3, "momentum": 1.0}, "momentum"),
        ({"steps": 3, "learning_rates": [1.0, 1.0]}, "learning_rates"),
        ({"steps": 2, "learning_rates": [0.0, 0.0]}, "learning_rates"),
        ({"steps": 2, "learning_rates": [1.0, -1.0]}, "learning_rates"),
    ],
)
def test_a_workload_refuses(arguments: dict[str, object], name: str) -> None:
    with pytest.raises(InputError, match=name):
        Workload(**arguments)  # type: ignore[arg-type]
