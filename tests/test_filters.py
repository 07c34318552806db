"""Filters and odometers: golden values, budgets that no adaptive sequence passes, bad input."""

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mpmath import mp, mpf

from apiece.errors import BudgetError, InputError
from apiece.filters import (
    GaussianFilter,
    RenyiFilter,
    best_order,
    gaussian_delta,
    gaussian_epsilon,
    gaussian_mu,
    renyi_budget,
)

NORMS = st.floats(0, 4, allow_nan=False)
STDDEVS = st.floats(0.3, 60)


def exact_delta(mu: float, epsilon: float) -> mpf:
    """δ(ε) of μ-GDP with 60 digits (Balle and Wang 2018, Thm 8)."""
    mp.dps = 60
    m, e = mpf(mu), mpf(epsilon)
    return mp.ncdf(m / 2 - e / m) - mp.exp(e) * mp.ncdf(-m / 2 - e / m)


def test_golden_values_of_fifty_full_batch_steps() -> None:
    # methods §5: noise multiplier 10.614652581338738, 50 steps, delta 1e-5.
    mu = np.sqrt(50) / 10.614652581338738
    assert mu == pytest.approx(0.66616, abs=5e-6)
    assert gaussian_epsilon(mu, 1e-5) == pytest.approx(2.7510, abs=5e-5)
    orders = np.linspace(1.5, 60, 20001)
    slack = 2.9822 - renyi_budget(2.9822, 1e-5, orders)
    assert (orders * mu**2 / 2 + slack).min() == pytest.approx(2.9822, abs=5e-5)


@pytest.mark.parametrize("epsilon", [1e-3, 0.3, 1.0, 8.0, 60.0])
@pytest.mark.parametrize("delta", [1e-30, 1e-12, 1e-5, 0.1])
def test_mu_is_on_the_safe_side_and_close(epsilon: float, delta: float) -> None:
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


def test_gaussian_filter_admits_more_than_renyi() -> None:
    gaussian, renyi = GaussianFilter(1.0, 1e-5), RenyiFilter(1.0, 1e-5)
    counts = [sum(bool(f.admit(1.0, 100.0)) for _ in range(1500)) for f in (gaussian, renyi)]
    # 100² μ² analyses of cost 1e-4 fit: 0.26805² · 1e4 = 718; Rényi's B·2/α · 1e4.
    assert counts[0] == 718
    assert counts[1] == int(1e4 * 2 * renyi_budget(1.0, 1e-5, renyi.order) / renyi.order)
    assert counts[0] > counts[1]


@pytest.mark.parametrize("make", [GaussianFilter, RenyiFilter])
@settings(max_examples=60, deadline=None, derandomize=True)
@given(steps=st.lists(st.tuples(NORMS, NORMS, STDDEVS), max_size=40))
def test_no_adaptive_sequence_passes_a_budget(
    make: type[GaussianFilter] | type[RenyiFilter], steps: list[tuple[float, float, float]]
) -> None:
    people = make([0.4, 3.0], [1e-6, 1e-5])
    exact = [Fraction(0), Fraction(0)]
    order = people.order if isinstance(people, RenyiFilter) else np.array([2.0, 2.0])
    for first, second, stddev in steps:
        # Adaptive: the next norms depend on who is still in.
        norms = np.array([first, second]) * (1 + (people.remaining > people.limit / 2))
        active = people.admit(norms, stddev)
        for i in range(2):
            if active[i]:
                exact[i] += (
                    (Fraction(norms[i]) / Fraction(stddev)) ** 2 * Fraction(float(order[i])) / 2
                )
    for i in range(2):
        assert exact[i] <= Fraction(float(people.spent[i])) * (1 + Fraction(1, 2**50))
        assert exact[i] <= Fraction(float(people.limit[i])) * (1 + Fraction(1, 2**50))
        if isinstance(people, GaussianFilter) and exact[i] > Fraction(1, 10**40):
            mu = mp.sqrt(mpf(exact[i].numerator) / mpf(exact[i].denominator))
            assert exact_delta(mu, float(people.epsilon[i])) <= float(people.delta[i])


def test_round_off_never_undercharges() -> None:
    people = GaussianFilter(5.0, 1e-5)
    exact = Fraction(0)
    for norm in np.random.default_rng(1).random(4000) * 1e-2:
        assert people.admit(float(norm), 0.7)
        exact += (Fraction(float(norm)) / Fraction(0.7)) ** 2
    assert Fraction(float(people.spent)) >= exact
    assert float(people.spent) == pytest.approx(float(exact), rel=1e-10)


def test_plain_float_sum_would_undercharge() -> None:
    """Negative control: without rounding up, the same sequence is counted too low."""
    total, exact = 0.0, Fraction(0)
    for norm in np.random.default_rng(1).random(4000) * 1e-2:
        total += (float(norm) / 0.7) ** 2
        exact += (Fraction(float(norm)) / Fraction(0.7)) ** 2
    assert Fraction(total) != exact
    assert min(Fraction(np.nextafter(total, 0)), Fraction(total)) < exact


def test_tiny_contributions_are_not_free() -> None:
    people = GaussianFilter(1.0, 1e-5)
    assert people.admit(1e-200, 1.0)
    assert people.spent > 0
    assert people.admit(0.0, 1.0)


def test_excluded_person_pays_nothing_and_may_return() -> None:
    people = GaussianFilter([1.0], 1e-5)
    assert not people.admit([10.0], 1.0).any()
    assert people.spent[0] == 0
    assert people.admit([0.1], 1.0).all()


def test_noise_for_steps_lasts_exactly_that_long() -> None:
    people = GaussianFilter([0.3, 1.0], 1e-5)
    stddev = float(people.noise_stddev(0.5, 50).max())
    for _ in range(50):
        assert people.admit(0.5, stddev).all()
    assert people.admit(0.5, stddev).tolist() == [False, True]


@pytest.mark.parametrize("bad", [np.nan, -0.1, np.inf])
def test_bad_norm_is_named_and_charges_nobody(bad: float) -> None:
    people = GaussianFilter([1.0, 1.0, 1.0], 1e-5)
    with pytest.raises(InputError, match=r"norms\[1\]"):
        people.admit([0.1, bad, 0.1], 1.0)
    assert not people.spent.any()


def test_other_bad_input() -> None:
    with pytest.raises(BudgetError, match="epsilon"):
        GaussianFilter([1.0, np.nan], 1e-5)
    with pytest.raises(BudgetError, match="delta"):
        GaussianFilter(1.0, 1.0)
    with pytest.raises(BudgetError, match="one entry a person"):
        GaussianFilter([1.0, 2.0], [1e-5, 1e-5, 1e-5])
    with pytest.raises(BudgetError, match="larger order"):
        RenyiFilter(0.1, 1e-5, order=2)
    with pytest.raises(InputError, match="order"):
        RenyiFilter(0.1, 1e-5, order=1.0)
    with pytest.raises(InputError, match="noise_stddev"):
        GaussianFilter(1.0, 1e-5).admit(1.0, 0.0)
    with pytest.raises(InputError, match="persons"):
        GaussianFilter([1.0, 1.0], 1e-5).admit([1.0], 1.0)
