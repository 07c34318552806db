"""Correlated noise beside Google's jax-privacy, at one budget: what it has, ours has to equal.

It is in the extra `oracles`, which `make test-extras` installs; without it these tests are skipped.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from apiece import Budgets, Uniform, assign
from apiece.assignment import Correlated
from apiece.correlation.optimize import optimize_banded, optimize_buffered
from apiece.correlation.sensitivity import sensitivity_bound
from apiece.correlation.strategies import Banded, Buffered, NoiseStrategy
from apiece.correlation.workloads import Workload
from apiece.training.correlated import NoiseRecurrence

WHY = "jax-privacy is not installed; it is in the extra oracles"
jax = pytest.importorskip("jax", reason=WHY)
buffered_toeplitz = pytest.importorskip(
    "jax_privacy.matrix_factorization.buffered_toeplitz", reason=WHY
)
streaming_matrix = pytest.importorskip(
    "jax_privacy.matrix_factorization.streaming_matrix", reason=WHY
)
toeplitz = pytest.importorskip("jax_privacy.matrix_factorization.toeplitz", reason=WHY)

drawn = settings(max_examples=30, deadline=None, derandomize=True, database=None)
# Coefficients that are not negative and never increase; others jax-privacy does not take.
falling = st.lists(st.floats(0, 1), max_size=12).map(lambda x: Banded(np.cumprod([1.0, *x])))


@pytest.fixture(autouse=True)
def in_double_precision() -> Iterator[None]:
    before = jax.config.jax_enable_x64
    jax.config.update("jax_enable_x64", True)
    yield
    jax.config.update("jax_enable_x64", before)


def cost(strategy: NoiseStrategy, steps: int, times: int, error: str = "mean") -> float:
    """The error at a privacy cost of μ = 1, over all steps or after the last."""
    moved = sensitivity_bound(
        strategy, steps=steps, participations=times, separation=steps // times
    )
    workload = Workload(steps)
    return moved * (workload.mean_error if error == "mean" else workload.max_error)(strategy)


@drawn
@given(
    strategy=falling,
    steps=st.integers(1, 40),
    times=st.integers(1, 6),
    separation=st.integers(1, 12),
)
def test_sensitivities_are_equal(strategy: Banded, steps: int, times: int, separation: int) -> None:
    ours = sensitivity_bound(strategy, steps=steps, participations=times, separation=separation)
    theirs = toeplitz.minsep_sensitivity_squared(
        strategy.coefficients[:steps], min_sep=separation, max_participations=times, n=steps
    )
    assert ours == pytest.approx(float(theirs) ** 0.5, rel=1e-9)


@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("bands", [1, 4, 20])
def test_errors_are_equal_with_momentum_and_a_schedule(bands: int, momentum: float) -> None:
    steps = 20
    coefficients = Banded.square_root(bands).coefficients
    rates = np.random.default_rng(bands).uniform(0.1, 1, steps)
    sums = np.cumsum(momentum ** np.arange(steps))
    plain = toeplitz.per_query_error(
        strategy_coef=coefficients, n=steps, workload_coef=jax.numpy.array(sums)
    )
    ours = Workload(steps, momentum=momentum).errors(Banded(coefficients)) ** 2
    np.testing.assert_allclose(ours, plain, rtol=1e-9)
    optimizer = streaming_matrix.momentum_sgd_matrix(momentum, jax.numpy.array(rates))
    noising = toeplitz.inverse_as_streaming_matrix(jax.numpy.array(coefficients))
    product = streaming_matrix.multiply_streaming_matrices(optimizer, noising)
    workload = Workload(steps, momentum=momentum, learning_rates=rates)
    ours = workload.errors(Banded(coefficients)) ** 2
    np.testing.assert_allclose(ours, product.row_norms_squared(steps), rtol=1e-9)


@pytest.mark.parametrize("error", ["mean", "last"])
@pytest.mark.parametrize(("steps", "times", "bands"), [(64, 1, 64), (64, 4, 16), (256, 16, 8)])
def test_optimised_bands_disturb_as_much(steps: int, times: int, bands: int, error: Any) -> None:
    ours = optimize_banded(
        Workload(steps), bands=bands, participations=times, separation=steps // times, error=error
    )
    reduction = jax.numpy.mean if error == "mean" else jax.numpy.max
    found = np.asarray(toeplitz.optimize_banded_toeplitz(steps, bands, reduction_fn=reduction))
    theirs = cost(Banded(found / found[0]), steps, times, error)
    assert cost(ours, steps, times, error) == pytest.approx(theirs, rel=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize(("steps", "times"), [(64, 1), (64, 4), (64, 16)])
def test_optimised_buffers_disturb_no_more(steps: int, times: int) -> None:
    ours = optimize_buffered(
        Workload(steps), buffers=3, participations=times, separation=steps // times
    )
    theirs = buffered_toeplitz.optimize(
        n=steps, min_sep=steps // times, max_participations=times, error="mean", min_buffers=3,
        max_buffers=3,
    )  # fmt: skip
    coefficients = Banded(np.asarray(theirs.toeplitz_coefs(steps)))
    assert cost(ours, steps, times) <= 1.01 * cost(coefficients, steps, times)


@pytest.mark.slow
@pytest.mark.parametrize("epsilon", [1.0, 8.0])
def test_with_coins_plans_disturb_no_more(epsilon: float) -> None:
    """Theirs is accounted by Rényi divergences, ours by the privacy loss: ours may be less."""
    steps, size, batch = 64, 4096, 256
    coefficients, stddev = toeplitz.optimize_coefs_for_amplifications(
        steps, dataset_size=size, expected_batch_size=batch, epsilon=epsilon, delta=1e-5
    )
    found = np.asarray(coefficients)
    # Their noise is for coefficients of norm 1.
    theirs = stddev * Workload(steps).mean_error(Banded(found / found[0])) / found[0]
    plan = assign(
        Budgets(np.full(size, epsilon), 1e-5),
        Uniform(),
        steps=steps,
        expected_batch_size=batch,
        clip_norm=1.0,
        noise=Correlated(sampled=True),
    )
    (stage,) = plan.stages
    matrix = Banded([1.0]) if stage.correlated is None else stage.correlated.strategy
    assert stage.noise_stddev * Workload(steps).mean_error(matrix) <= 1.01 * theirs


@pytest.mark.parametrize(
    "strategy", [Banded([1.0, -0.4, 0.3]), Banded.square_root(6), Buffered([0.9, 0.5], [0.3, 0.2])]
)
def test_the_recurrence_makes_the_same_noise(strategy: NoiseStrategy) -> None:
    steps = 20
    fresh = np.random.default_rng(0).normal(size=(steps, 5))
    inverse = toeplitz.inverse_as_streaming_matrix(strategy.first_column(steps))
    theirs = streaming_matrix.multiply_array(inverse, fresh)
    recurrence = NoiseRecurrence(strategy)
    ours = [recurrence.advance(torch.from_numpy(row.copy())).numpy() for row in fresh]
    np.testing.assert_allclose(np.stack(ours), theirs, atol=1e-12)
