"""The Gaussian's profile and its inverses against many digits, in ordinary and extreme places."""

import itertools

import mpmath
import numpy as np
import pytest

from apiece.numerics.gaussian import (
    gaussian_delta,
    gaussian_epsilon_above,
    gaussian_epsilon_below,
    gaussian_mu_below,
)

MUS = [1e-12, 1e-6, 1e-3, 0.05, 0.3, 1.0, 3.0, 12.0, 50.0, 1e3]
EPSILONS = [1e-12, 1e-6, 1e-2, 0.5, 1.0, 4.0, 30.0, 700.0, 1e4]
DELTAS = [1e-250, 1e-60, 1e-12, 1e-5, 1e-2, 0.3, 0.9]


def exact(mu: float, epsilon: float) -> mpmath.mpf:
    """Return δ(ε) with 60 digits more than its own cancellation takes."""
    with mpmath.workdps(400):
        mu, epsilon = mpmath.mpf(mu), mpmath.mpf(epsilon)
        half, centre = mu / 2, epsilon / mu

        def tail(x: mpmath.mpf) -> mpmath.mpf:
            return mpmath.erfc(x / mpmath.sqrt(2)) / 2

        return tail(centre - half) - mpmath.exp(epsilon) * tail(centre + half)


@pytest.mark.parametrize("mu", MUS)
def test_both_bounds_hold_the_exact_value(mu: float) -> None:
    epsilon = np.array([*EPSILONS, *(-x for x in EPSILONS if x < 100), 0.0])
    lower, upper = gaussian_delta(mu, epsilon)
    for i, e in enumerate(epsilon):
        truth = exact(mu, float(e))
        assert mpmath.mpf(float(lower[i])) <= truth <= mpmath.mpf(float(upper[i])), e
        if mu >= 0.05 and truth > 1e-60:
            assert upper[i] - lower[i] <= 1e-8 * upper[i], e


@pytest.mark.parametrize("delta", DELTAS)
def test_the_ends_of_epsilon_enclose_it(delta: float) -> None:
    mu = np.array(MUS)
    above, below = gaussian_epsilon_above(mu, delta), gaussian_epsilon_below(mu, delta)
    assert (below <= above).all()
    for m, high, low in zip(MUS, above, below, strict=True):
        assert exact(m, float(high)) <= delta
        assert low == 0 or exact(m, float(low)) > delta
        if high > 1e-3 and delta >= 1e-12:
            assert high - low <= 1e-10 * high


@pytest.mark.parametrize("delta", DELTAS)
def test_mu_is_safe_and_nearly_the_largest(delta: float) -> None:
    found = gaussian_mu_below(np.array(EPSILONS), delta)
    for epsilon, mu in zip(EPSILONS, found, strict=True):
        assert mu > 0
        assert exact(float(mu), epsilon) <= delta
        assert exact(float(mu) * (1 + 1e-6), epsilon) > delta or epsilon < 1e-5


def test_monotone_and_of_the_shape_given() -> None:
    mu, epsilon = np.geomspace(1e-3, 30, 40), np.linspace(0, 20, 30)
    lower, upper = gaussian_delta(mu[:, None], epsilon)
    assert lower.shape == upper.shape == (40, 30)
    assert (np.diff(lower, axis=0) >= -1e-12).all()
    assert (np.diff(upper, axis=1) <= 1e-12).all()
    assert (np.diff(gaussian_epsilon_above(mu, 1e-6)) > 0).all()
    assert (np.diff(gaussian_mu_below(epsilon[1:], 1e-6)) > 0).all()
    assert gaussian_mu_below(1.0, 1e-5).shape == ()


def test_the_same_numbers_one_at_a_time() -> None:
    pairs = [(e, d) for e in EPSILONS for d in DELTAS]
    epsilon, delta = np.array(pairs).T
    together = gaussian_mu_below(epsilon, delta)
    assert together == pytest.approx([float(gaussian_mu_below(*p)) for p in pairs], rel=1e-13)


def test_nothing_shifted_costs_nothing() -> None:
    assert gaussian_epsilon_above(0.0, 1e-300) == gaussian_epsilon_below(0.0, 1e-300) == 0
    assert gaussian_epsilon_above(0.01, 0.5) == gaussian_epsilon_below(0.01, 0.5) == 0


@pytest.mark.parametrize(
    ("epsilon", "delta"), [(1e-300, 1e-10), (1e-12, 0.99), (1e-12, 1 - 1e-9), (1e-280, 0.3)]
)
def test_the_shift_is_close_where_the_first_steps_miss_it(epsilon: float, delta: float) -> None:
    found = gaussian_mu_below(epsilon, delta)
    assert found.dtype == np.float64
    assert gaussian_delta(found, epsilon).upper <= delta
    assert gaussian_delta(found * (1 + 1e-8), epsilon).upper > delta


def test_bounds_are_numbers_from_0_to_1_however_far_out() -> None:
    for mu, epsilon in itertools.product((1e-200, 1e-6, 50.0, 1e3, 1e200), (0.0, 1e-3, 1.0, 1e100)):
        lower, upper = gaussian_delta(mu, epsilon)
        assert 0 <= lower <= upper <= 1, (mu, epsilon)
        if mu == 1e-200 and epsilon:
            assert (lower, upper) == (0, 1e-300)
