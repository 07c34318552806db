"""The Gaussian's μ from counts, and its ε."""

import math

import numpy as np
import pytest
from scipy import stats

from apiece.audit import bounds


def test_epsilon_from_mu_inverts_the_profile() -> None:
    for mu, delta in [(0.3, 1e-5), (1.0, 1e-3), (4.0, 1e-9)]:
        epsilon = bounds.epsilon_from_mu(mu, delta)
        norm = stats.norm
        back = norm.cdf(-epsilon / mu + mu / 2) - math.exp(epsilon) * norm.cdf(
            -epsilon / mu - mu / 2
        )
        assert back == pytest.approx(delta, rel=1e-5)
        assert back >= delta
    assert bounds.epsilon_from_mu(0.0, 1e-5) == 0
    assert bounds.epsilon_from_mu(1e-3, 0.5) == 0


def test_gdp_p_value_bounds_the_exact_supremum() -> None:
    ins, outs = np.r_[np.ones(60), np.zeros(40)], np.r_[np.ones(40), np.zeros(60)]
    tests = bounds.count_at(ins, outs, 0.5)
    mu, norm = 0.2, stats.norm
    alpha = np.linspace(0.2, 0.7, 20001)
    p_in = stats.binom.sf(59, 100, norm.cdf(norm.ppf(alpha) + mu))
    p_out = stats.binom.cdf(40, 100, alpha)
    product = p_in * p_out
    exact = float(np.max(product * (1 - np.log(product))))
    ours = float(bounds.p_values(tests, mu)[0])
    assert exact <= ours <= 1.3 * exact
