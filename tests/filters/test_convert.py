"""Between budgets and what a filter counts: both sides, against sixty digits."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from mpmath import mp, mpf

from apiece.filters.convert import best_order, distinct, gaussian_budget, gaussian_mu, renyi_budget
from apiece.numerics.gaussian import gaussian_delta, gaussian_epsilon_above


def test_golden_values_of_fifty_full_batch_steps() -> None:
    # Noise multiplier 10.614652581338738, 50 steps, delta 1e-5.
    mu = np.sqrt(50) / 10.614652581338738
    assert mu == pytest.approx(0.66616, abs=5e-6)
    assert gaussian_epsilon_above(mu, 1e-5) == pytest.approx(2.7510, abs=5e-5)
    orders = np.linspace(1.5, 60, 20001)
    slack = 2.9822 - renyi_budget(2.9822, 1e-5, orders)
    assert (orders * mu**2 / 2 + slack).min() == pytest.approx(2.9822, abs=5e-5)


@pytest.mark.parametrize("epsilon", [1e-3, 0.3, 1.0, 8.0, 60.0])
@pytest.mark.parametrize("delta", [1e-30, 1e-12, 1e-5, 0.1])
def test_mu_is_on_the_safe_side_and_close(epsilon: float, delta: float, exact_delta) -> None:
    mu = float(gaussian_mu(epsilon, delta))
    assert exact_delta(mu, epsilon) <= delta
    assert exact_delta(mu * (1 + 1e-4), epsilon) > delta
    assert float(gaussian_delta(mu, epsilon).upper) >= exact_delta(mu, epsilon)
    back = float(gaussian_epsilon_above(mu, delta))
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


@pytest.mark.parametrize("cancelling", [False, True])
def test_renyi_budget_is_on_the_safe_side(cancelling: bool) -> None:
    draw = np.random.default_rng(8)
    for _ in range(300):
        delta, order = 10.0 ** draw.uniform(-12, -2), 1 + 10.0 ** draw.uniform(-2, 3)
        epsilon = 10.0 ** draw.uniform(-1, 2)
        if cancelling:  # little is left of two large terms
            epsilon = float(-np.log(delta * order) / (order - 1)) * (1 + 1e-6)
        if epsilon <= 0:
            continue
        with mp.workdps(60):
            d, a, e = mpf(delta), mpf(order), mpf(epsilon)
            exact = e - mp.log(1 - 1 / a) + mp.log(d * a) / (a - 1)
            found = mpf(float(renyi_budget(epsilon, delta, order)))
            size = e + abs(mp.log(d * a) / (a - 1)) + abs(mp.log(1 - 1 / a))
            assert exact - 20 * mpf(2) ** -52 * size <= found <= exact


@pytest.mark.parametrize("convert", [gaussian_mu, best_order])
def test_budgets_in_single_precision_are_taken_as_what_they_are(convert) -> None:
    epsilon = np.array([0.1, 0.7, 3.3], np.float32)
    delta = np.array([1e-5, 3e-6, 1e-5], np.float32)
    exact = convert(epsilon.astype(np.float64), delta.astype(np.float64))
    assert convert(epsilon, delta).tolist() == exact.tolist()


def test_renyi_budget_in_single_precision() -> None:
    order = np.array([1.1, 17.7, 300.3], np.float32)
    epsilon = np.array([0.1, 0.7, 3.3], np.float32)
    exact = renyi_budget(epsilon.astype(np.float64), 1e-5, order.astype(np.float64))
    assert renyi_budget(epsilon, 1e-5, order).tolist() == exact.tolist()


@pytest.mark.parametrize("shape", [(6,), (2, 3)])
def test_each_person_is_solved_as_alone(shape: tuple[int, ...]) -> None:
    """Budgets that repeat, with other deltas beside them."""
    epsilon = np.array([1.0, 2.0, 1.0, 1.0, 2.0, 0.5]).reshape(shape)
    delta = np.array([1e-5, 1e-5, 1e-7, 1e-5, 1e-3, 1e-7]).reshape(shape)
    for convert in (gaussian_mu, best_order):
        alone = [float(convert(e, d)) for e, d in zip(epsilon.flat, delta.flat, strict=True)]
        together = convert(epsilon, delta)
        assert together.shape == shape
        assert together.ravel().tolist() == alone


def test_distinct_rows_of_many_columns_are_found_again() -> None:
    """Of five columns of 10,000 values there are more combinations than fit into 64 bits."""
    rng = np.random.default_rng(0)
    columns = [*(rng.permutation(10_000) for _ in range(5)), np.array([3.0])]
    kinds, place = distinct(*columns)
    assert all((k[place] == c).all() for k, c in zip(kinds, columns, strict=True))
    assert kinds[0].size == 10_000
    (first, second), place = distinct([2.0, 1.0, 2.0, 2.0], [5, 5, 5, 4])
    assert (first.tolist(), second.tolist()) == ([1.0, 2.0, 2.0], [5, 4, 5])
    assert place.tolist() == [2, 0, 2, 1]


@given(st.data(), st.integers(1, 5), st.integers(1, 3))
def test_every_row_finds_its_entries_again(data: st.DataObject, rows: int, width: int) -> None:
    """Whichever columns have one entry for all, or the same entry in all rows."""
    sizes = [data.draw(st.sampled_from([1, rows])) for _ in range(width)]
    columns = [data.draw(st.lists(st.integers(0, 2), min_size=n, max_size=n)) for n in sizes]
    kinds, place = distinct(*columns)
    assert place.size == max(sizes)
    assert len(set(zip(*(kind.tolist() for kind in kinds), strict=True))) == kinds[0].size
    for kind, column in zip(kinds, columns, strict=True):
        assert (kind[place] == np.broadcast_to(column, place.shape)).all()


def test_one_epsilon_and_the_same_delta_for_each_give_each_a_budget() -> None:
    several = gaussian_budget(1.0, [1e-5, 1e-5, 1e-5])
    assert several.tolist() == 3 * [float(gaussian_budget(1.0, 1e-5))]
