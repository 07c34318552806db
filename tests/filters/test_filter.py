"""Filters: budgets that no adaptive sequence passes, and bad input."""

import contextlib
import itertools
import warnings
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mpmath import mp, mpf

from apiece.errors import ApieceError, BudgetError, InputError
from apiece.filters import GaussianFilter, RenyiFilter
from apiece.filters.convert import renyi_budget
from refusals import refused

NORMS = st.floats(0, 4, allow_nan=False)
STDDEVS = st.floats(0.3, 60)


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
    exact_delta,
    make: type[GaussianFilter] | type[RenyiFilter],
    steps: list[tuple[float, float, float]],
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


def test_excluded_person_pays_nothing_and_may_return() -> None:
    people = GaussianFilter([1.0], 1e-5)
    assert not people.admit([10.0], 1.0).any()
    assert people.spent[0] == 0
    assert people.admit([0.1], 1.0).all()


@pytest.mark.parametrize("bad", [np.nan, -0.1, np.inf])
def test_bad_norm_is_named_and_charges_nobody(bad: float) -> None:
    people = GaussianFilter([1.0, 1.0, 1.0], 1e-5)
    with refused(InputError, "norms[1]"):
        people.admit([0.1, bad, 0.1], 1.0)
    assert not people.spent.any()


def test_other_bad_input() -> None:
    with refused(BudgetError, "epsilon"):
        GaussianFilter([1.0, np.nan], 1e-5)
    with refused(BudgetError, "delta"):
        GaussianFilter(1.0, 1.0)
    with pytest.raises(BudgetError, match="one entry a person"):
        GaussianFilter([1.0, 2.0], [1e-5, 1e-5, 1e-5])
    with pytest.raises(BudgetError, match="larger order"):
        RenyiFilter(0.1, 1e-5, order=2)
    with pytest.raises(BudgetError, match=r"order = 3: .* \(0.1, 0.001\)"):
        RenyiFilter([20.0, 0.1], [1e-5, 1e-3], order=[2, 3])
    with pytest.raises(InputError, match="order"):
        RenyiFilter(0.1, 1e-5, order=1.0)
    with refused(InputError, "noise_stddev"):
        GaussianFilter(1.0, 1e-5).admit(1.0, 0.0)
    with refused(InputError, "persons"):
        GaussianFilter([1.0, 1.0], 1e-5).admit([1.0], 1.0)


EXTREMES = [0.0, 5e-324, 1e-308, 1e-160, 1e-20, 1.0, 1e20, 1e155, 1e160, 1.7e308]


@pytest.mark.parametrize("make", [GaussianFilter, RenyiFilter])
def test_extreme_numbers_are_answered_or_refused(make):
    for epsilon, norm, noise in itertools.product([1e-9, 1.0, 900.0], EXTREMES, EXTREMES):
        people = make([epsilon, epsilon], 1e-6)
        calls = [(people.admit, norm, noise), (people.affordable, noise)]
        calls.append((people.noise_stddev, norm, 5))
        for ask, *arguments in calls:
            with warnings.catch_warnings(), contextlib.suppress(ApieceError):
                warnings.simplefilter("error")
                assert np.isfinite(ask(*arguments)).all()
        assert np.isfinite(people.spent).all()
        assert (people.spent <= people.limit).all()


@pytest.mark.parametrize("noise", [5e-324, 1e-320, 1e-310, 1e-300])
def test_a_norm_of_nothing_is_free_and_any_other_is_not_under_hardly_any_noise(noise):
    people = GaussianFilter([1.0, 1.0, 1.0], 1e-6)
    assert people.admit([0.0, 1e-3, noise * 4], noise).tolist() == [True, False, False]
    assert (people.spent == 0).all()
