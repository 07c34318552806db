"""The greatest power of a test, against the Gaussian's in closed form and its own two bounds."""

import numpy as np
import pytest
from scipy.stats import norm

from apiece.accounting.curve import greatest_power, least_form
from apiece.accounting.exact import GaussianProfile

RATES = np.array([0.0, 1e-12, 1e-6, 1e-3, 0.05, 0.3, 0.5, 0.9, 1 - 1e-9, 1.0])


@pytest.mark.parametrize("mu", [1e-3, 0.1, 1.0, 4.0])
def test_a_gaussian(mu: float) -> None:
    power, truth = (
        greatest_power(GaussianProfile(1 / mu), RATES),
        norm.cdf(norm.ppf(RATES) + mu),
    )
    assert (power >= truth * (1 - 1e-13)).all()
    inner = (RATES >= 1e-6) & (RATES <= 0.9)
    np.testing.assert_allclose(power[inner], truth[inner], rtol=1e-4)
    assert power[-1] == 1.0


@pytest.mark.parametrize("count", [1, 4095, 4097])
def test_a_rate_is_answered_alike_among_others(count: int) -> None:
    profile, rates = GaussianProfile(2.0), np.linspace(0.01, 0.99, count)
    alone = greatest_power(profile, rates[:1])
    np.testing.assert_allclose(greatest_power(profile, rates)[:1], alone, rtol=1e-6)


def test_each_bound_wins_somewhere_and_holds_everywhere() -> None:
    """Both bound the power at every ε; the mirrored one is the lesser at large rates."""
    epsilon = np.linspace(0.0, 8.0, 33)
    delta = GaussianProfile(1.0).delta(epsilon).upper
    for rate, mirrored in ((0.01, False), (0.9, True)):
        found = least_form(epsilon, delta, rate)
        assert (found >= norm.cdf(norm.ppf(rate) + 1.0) * (1 - 1e-13)).all()
        plain = delta + np.exp(epsilon) * rate
        assert (found[found.argmin()] < plain[found.argmin()]) == mirrored
