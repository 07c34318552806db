"""Adding charges up: no round-off is in a person's favour."""

from fractions import Fraction

import numpy as np
import pytest

from apiece.filters import GaussianFilter


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
