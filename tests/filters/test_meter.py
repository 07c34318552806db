"""Adding charges up: no round-off is in a person's favour."""

from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from apiece.errors import InputError
from apiece.filters import GaussianFilter, Odometer, RenyiFilter
from apiece.filters.convert import gaussian_mu, renyi_budget
from refusals import refused

FILTERS = pytest.mark.parametrize("make", [GaussianFilter, RenyiFilter])


def crowd(make, size: int = 400):
    """A filter of many different budgets."""
    draw = np.random.default_rng(5)
    return make(10.0 ** draw.uniform(-2, 1, size), 10.0 ** draw.uniform(-9, -3, size))


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


def test_noise_for_steps_lasts_exactly_that_long() -> None:
    people = GaussianFilter([0.3, 1.0], 1e-5)
    stddev = float(people.noise_stddev(0.5, 50).max())
    for _ in range(50):
        assert people.admit(0.5, stddev).all()
    assert people.admit(0.5, stddev).tolist() == [False, True]


def test_limit_is_rounded_down_from_the_budget() -> None:
    gaussian, renyi = crowd(GaussianFilter), crowd(RenyiFilter)
    mu = gaussian_mu(gaussian.epsilon, gaussian.delta)
    budget = renyi_budget(renyi.epsilon, renyi.delta, renyi.order)
    for i in range(400):
        assert Fraction(float(gaussian.limit[i])) <= Fraction(float(mu[i])) ** 2
        assert Fraction(float(renyi.limit[i])) <= Fraction(float(budget[i]))
    np.testing.assert_allclose(gaussian.limit, mu**2, rtol=1e-14)
    np.testing.assert_allclose(renyi.limit, budget, rtol=1e-14)


@FILTERS
def test_what_is_left_and_what_is_spent_do_not_pass_the_limit(make) -> None:
    people = crowd(make)
    for part in (0.3, 0.1, 0.25):
        people.admit(part * people.affordable(3.0), 3.0)
    for left, spent, limit in zip(people.remaining, people.spent, people.limit, strict=True):
        exact = Fraction(float(limit)) - Fraction(float(spent))
        assert float(left) == pytest.approx(float(exact), rel=1e-13)
        if make is GaussianFilter:  # whose unit is the meter's own
            assert 0 < Fraction(float(left)) <= exact


@FILTERS
@pytest.mark.parametrize("spent", [0.0, 0.5, 1 - 1e-9])
def test_what_is_affordable_is_admitted_and_little_more_is_not(make, spent: float) -> None:
    people, again = crowd(make), crowd(make)
    for each in (people, again):
        assert each.admit(spent * each.affordable(0.7), 0.7).all()
    most = people.affordable(1.3)
    assert (most > 0).all()
    assert not people.admit(most * (1 + 1e-5), 1.3).any()
    assert again.admit(most, 1.3).all()


@FILTERS
def test_nothing_is_affordable_once_all_is_spent(make) -> None:
    people = crowd(make)
    for _ in range(20):
        people.admit(people.affordable(2.0), 2.0)
        for share in 10.0 ** -np.arange(8.0, 16.0):  # down to the last bits that `admit` takes
            people.admit(share * np.sqrt(people.limit), 1.0)
    left = people.affordable(2.0)
    assert (left >= 0).all()
    assert (left**2 < 1e-10 * people.limit).all()


@FILTERS
@pytest.mark.parametrize("steps", [1, 3, 30])
def test_noise_for_steps_is_enough_for_each_person(make, steps: int) -> None:
    clip_norms = np.random.default_rng(6).uniform(0.1, 4, 40)
    stddevs = crowd(make, 40).noise_stddev(clip_norms, steps)
    for i, (norm, stddev) in enumerate(zip(clip_norms, stddevs, strict=True)):
        people = crowd(make, 40)
        alone = np.where(np.arange(40) == i, norm, 0.0)
        assert all(people.admit(alone, stddev)[i] for _ in range(steps))
        assert not people.admit(alone, stddev)[i]
    with refused(InputError, "clip_norm"):
        crowd(make, 40).noise_stddev(clip_norms[:3], steps)


def test_norms_in_single_precision_are_charged_as_what_they_are() -> None:
    people = GaussianFilter(np.full(300, 5.0), 1e-5)
    norms = np.random.default_rng(7).uniform(0.1, 0.3, 300).astype(np.float32)
    assert people.admit(norms, 0.7).all()
    for norm, spent in zip(norms, people.spent, strict=True):
        exact = (Fraction(float(norm)) / Fraction(0.7)) ** 2
        assert exact <= Fraction(float(spent)) <= exact * (1 + Fraction(1, 10**14))


def test_many_people_are_charged_as_few_are() -> None:
    """More than fit one pass over the arrays."""
    size = 70_001
    norms = np.linspace(0, 1, size)
    people = GaussianFilter(np.full(size, 1.0), 1e-5)
    active = people.admit(norms, 3.0)
    for i in (0, 1, 32_767, 32_768, 65_536, size - 1):
        alone = GaussianFilter(1.0, 1e-5)
        assert alone.admit(norms[i], 3.0) == active[i]
        assert people.spent[i] == alone.spent


def test_a_caller_who_has_numpy_raise_is_not_in_the_way() -> None:
    people = GaussianFilter([1.0, 1.0], 1e-5)
    with np.errstate(all="raise"):
        assert people.admit([1e-300, 1e300], 1e-3).tolist() == [True, False]


@pytest.mark.parametrize("make", [GaussianFilter, RenyiFilter])
@pytest.mark.parametrize("norms", [0.0, [0.0, 0.0], [-0.0, 0.0], [0.0, 1e-200]])
def test_zero_is_free_however_often(make: Any, norms: Any) -> None:
    """Also of an account that has nothing left: its sum has no rounding to make up for."""
    people = make([0.5, 0.5], 1e-5)
    assert people.admit([affordable(people, 3.0), 0.1], 3.0).all()
    before = people.spent
    assert all(people.admit(norms, 3.0)[0] for _ in range(50))
    assert people.spent[0] == before[0]
    assert (people.spent[1] > before[1]) == bool(np.max(norms) > 0)


def affordable(people: Any, stddev: float) -> float:
    """The largest norm that is still admitted, by bisection: no float lies above it."""
    low, high = 0.0, 100.0
    while (middle := (low + high) / 2) not in (low, high):
        other = type(people)([0.5, 0.5], 1e-5)
        low, high = (middle, high) if other.admit([middle, 0.0], stddev)[0] else (low, middle)
    return low


def test_zero_is_free_over_a_long_training() -> None:
    odometer = Odometer(2, order=8.0)
    odometer.add([1.0, 0.0], 2.0)
    once = odometer.loss
    for _ in range(1000):
        odometer.add(0.0, 2.0)
    assert odometer.loss.tolist() == once.tolist()
