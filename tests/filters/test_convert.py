"""Between budgets and what a filter counts: both sides, against sixty digits."""

import numpy as np
import pytest

from apiece.filters import (
    best_order,
    gaussian_delta,
    gaussian_epsilon,
    gaussian_mu,
    renyi_budget,
)


def test_golden_values_of_fifty_full_batch_steps() -> None:
    # Noise multiplier 10.614652581338738, 50 steps, delta 1e-5.
    mu = np.sqrt(50) / 10.614652581338738
    assert mu == pytest.approx(0.66616, abs=5e-6)
    assert gaussian_epsilon(mu, 1e-5) == pytest.approx(2.7510, abs=5e-5)
    orders = np.linspace(1.5, 60, 20001)
    slack = 2.9822 - renyi_budget(2.9822, 1e-5, orders)
    assert (orders * mu**2 / 2 + slack).min() == pytest.approx(2.9822, abs=5e-5)


@pytest.mark.parametrize("epsilon", [1e-3, 0.3, 1.0, 8.0, 60.0])
@pytest.mark.parametrize("delta", [1e-30, 1e-12, 1e-5, 0.1])
def test_mu_is_on_the_safe_side_and_close(epsilon: float, delta: float, exact_delta) -> None:
    mu = float(gaussian_mu(epsilon, delta))
    assert exact_delta(mu, epsilon) <= delta
    assert exact_delta(mu * (1 + 1e-4), epsilon) > delta
    assert float(gaussian_delta(mu, epsilon)) >= exact_delta(mu, epsilon)
    back = float(gaussian_epsilon(mu, delta))
    assert back <= epsilon * (1 + 1e-4)
    assert exact_delta(mu, back) <= delta


def test_mu_repeats_for_repeated_budgets() -> None:
    mu = gaussian_mu([[1.0, 2.0], [2.0, 1.0]], 1e-5)
    assert mu.shape == (2, 2)
    assert mu[0, 0] == mu[1, 1] < mu[0, 1]


def test_best_order_beats_its_neighbours() -> None:
    order = float(best_order(0.7, 1e-6))
    value = renyi_budget(0.7, 1e-6, order) / order
    for other in (order * 0.95, order * 1.05):
        assert renyi_budget(0.7, 1e-6, other) / other < value
