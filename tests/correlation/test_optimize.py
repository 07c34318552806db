"""Optimised strategies: exact gradients, and never worse than what they start from."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import check_grad

from apiece.correlation import optimize as module
from apiece.correlation.optimize import optimize_banded, optimize_buffered
from apiece.correlation.sensitivity import sensitivity_bound
from apiece.correlation.strategies import Banded, NoiseStrategy
from apiece.correlation.workloads import Workload
from apiece.errors import OptionError

KINDS: tuple[module.ErrorKind, ...] = ("mean", "last", "max")


def cost(strategy: NoiseStrategy, workload: Workload, participations: int, apart: int) -> float:
    """The mean error at a privacy cost of μ = 1."""
    sensitivity = sensitivity_bound(
        strategy, steps=workload.steps, participations=participations, separation=apart
    )
    return sensitivity * workload.mean_error(strategy)


FORMS = {
    "free": (module._free_column, 3),
    "falling": (module._falling_column, 7),
    "buffered": (module._buffered_column, 6),
}


@pytest.mark.parametrize("error", ["mean", "last", "max"])
@pytest.mark.parametrize("form", FORMS)
@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 10**6), times=st.integers(1, 5), momentum=st.sampled_from([0.0, 0.9]))
def test_gradients_are_exact(form: str, error: str, seed: int, times: int, momentum: float) -> None:
    generator = np.random.default_rng(seed)
    rates = None if seed % 2 else generator.uniform(0.1, 1, 20)
    workload = Workload(20, momentum=momentum, learning_rates=rates)
    objective = module._Objective(workload, times, 20 // times, error)  # type: ignore[arg-type]
    make, size = FORMS[form]
    low = 0.0 if form == "free" else -1.5
    at = generator.uniform(low, 0.5 if form == "free" else 1.5, size)

    def value(parameters: np.ndarray) -> float:
        return objective(make(parameters, 20)[0])[0]

    def gradient(parameters: np.ndarray) -> np.ndarray:
        column, pull_back = make(parameters, 20)
        return pull_back(objective(column)[1])

    assert check_grad(value, gradient, at) <= 1e-5 * (1 + np.abs(gradient(at)).max())


@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize(("steps", "times"), [(64, 1), (64, 4), (256, 16)])
def test_searched_coefficients_beat_square_roots(steps: int, times: int, momentum: float) -> None:
    workload = Workload(steps, momentum=momentum)
    apart = steps // times
    for bands in (2, 8, apart):
        start = cost(Banded.square_root(bands), workload, times, apart)
        found = optimize_banded(workload, bands=bands, participations=times, separation=apart)
        assert cost(found, workload, times, apart) <= start * (1 + 1e-9)
        assert found.bands == bands


def test_more_bands_than_the_separation_stay_provable() -> None:
    workload = Workload(60)
    found = optimize_banded(workload, bands=30, participations=6, separation=10)
    assert (np.diff(found.coefficients) <= 0).all()
    assert (found.coefficients >= 0).all()


def test_four_buffers_are_nearly_as_good_as_all_bands() -> None:
    workload = Workload(512)
    every = cost(optimize_banded(workload, bands=512), workload, 1, 512)
    few = cost(optimize_buffered(workload, buffers=4), workload, 1, 512)
    assert few == pytest.approx(every, rel=0.01)


def test_learning_rates_that_vary_are_searched_for() -> None:
    rates = np.linspace(1, 0.01, 200)
    workload = Workload(200, momentum=0.9, learning_rates=rates)
    found = optimize_banded(workload, bands=200)
    other = optimize_banded(Workload(200, momentum=0.9), bands=200)
    assert cost(found, workload, 1, 200) < cost(other, workload, 1, 200)


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_the_largest_error_is_searched_for(momentum: float) -> None:
    """Where learning rates fall, errors fall at the end, and the largest is not the last."""
    rates = 1 - np.arange(200) / 200
    workload = Workload(200, momentum=momentum, learning_rates=rates)
    found = {error: optimize_banded(workload, bands=100, error=error) for error in KINDS}
    # One participation: the privacy cost is the norm of the coefficients.
    largest = {
        error: matrix.coefficients @ matrix.coefficients * workload.max_error(matrix) ** 2
        for error, matrix in found.items()
    }
    assert workload.errors(found["max"]).argmax() < 199
    assert largest["max"] < 0.999 * min(largest["mean"], largest["last"])


def test_with_rates_alike_the_largest_error_is_the_last() -> None:
    workload = Workload(60, momentum=0.9)
    last, largest = (optimize_banded(workload, bands=20, error=error) for error in KINDS[1:])
    assert last == largest


def test_one_band_is_independent_noise() -> None:
    assert optimize_banded(Workload(10), bands=1) == Banded([1.0])


def test_an_unknown_error_is_refused() -> None:
    with pytest.raises(OptionError, match="mean"):
        optimize_banded(Workload(10), bands=2, error="meen")  # type: ignore[arg-type]


# Sensitivity times root mean squared error of jax-privacy 2.0.0, in double precision:
# toeplitz.optimize_banded_toeplitz(steps, bands), minsep_sensitivity_squared, per_query_error.
JAX_PRIVACY = {
    (64, 1, 64): 2.1790434328611643,
    (64, 1, 8): 2.6639748341308613,
    (256, 1, 256): 2.616450035308718,
    (256, 4, 64): 5.566133565606768,
    (256, 16, 16): 14.550295297122988,
    (1000, 10, 100): 11.572670973957795,
}


@pytest.mark.parametrize(("steps", "times", "bands"), JAX_PRIVACY)
def test_the_search_ends_where_jax_privacy_does(steps: int, times: int, bands: int) -> None:
    workload = Workload(steps)
    apart = steps // times
    found = optimize_banded(workload, bands=bands, participations=times, separation=apart)
    expected = JAX_PRIVACY[steps, times, bands]
    assert cost(found, workload, times, apart) == pytest.approx(expected, rel=1e-6)
