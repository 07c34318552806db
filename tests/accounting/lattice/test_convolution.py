"""Compositions on a lattice against sums over every outcome, in both directions."""

import itertools
import math

import numpy as np
import pytest

from apiece.accounting.lattice.convolution import (
    TooLongError,
    moment,
    tail,
    take_direction,
    tilt_part,
)
from apiece.accounting.lattice.discretise import Jump, Lattice
from apiece.numerics.rounding import UNIT

STEP, TIMES = 0.3, 5
MASS = np.array([0.3, 0.45, 0.2, 0.05])
OFFSET = -math.log(float(MASS @ np.exp(STEP * np.arange(4))))  # so that P has mass 1 as well
LATTICE = Lattice(STEP, OFFSET, MASS, 0.0, 0.0, UNIT, Jump(0.0, 0.0, math.inf))


def outcomes() -> tuple[np.ndarray, np.ndarray]:
    """The loss and the Q-chance of every outcome of the composition."""
    places = np.array(list(itertools.product(range(4), repeat=TIMES)))
    return TIMES * OFFSET + STEP * places.sum(axis=1), MASS[places].prod(axis=1)


def delta(epsilon: float, *, reverse: bool) -> float:
    loss, chance = outcomes()
    p, q = chance * np.exp(loss), chance
    first, second = (q, p) if reverse else (p, q)
    return math.fsum(np.maximum(first - np.exp(epsilon) * second, 0.0))


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("tilt", [1.5, 4.0, 40.0])
def test_every_point_is_within_its_error(reverse: bool, tilt: float) -> None:
    found = tail([take_direction(LATTICE, TIMES, reverse=reverse)], STEP, tilt, 1e-12, 2**10)
    for place, (value, error) in enumerate(zip(found.value, found.error, strict=True)):
        exact = delta(found.start + place * STEP, reverse=reverse)
        rounded = exact * math.expm1(found.exponent) + 1e-16
        assert abs(value - exact) <= error + rounded
    some = found.value > 0
    assert (found.error[some] / found.value[some]).min() < 1e-8


def test_an_error_in_one_mass_is_seen() -> None:
    """Negative control: the errors are far smaller than what a wrong mass does."""
    wrong = MASS + np.array([-1e-9, 0.0, 0.0, 1e-9])
    lattice = Lattice(STEP, OFFSET, wrong, 0.0, 0.0, UNIT, LATTICE.jump)
    found = tail([take_direction(lattice, TIMES, reverse=False)], STEP, 4.0, 1e-12, 2**10)
    place = round((0.5 - found.start) / STEP)
    exact = delta(found.start + place * STEP, reverse=False)
    assert abs(found.value[place] - exact) > found.error[place] + exact * found.exponent


def test_two_kinds_are_one_kind_more_often() -> None:
    parts = [take_direction(LATTICE, times, reverse=False) for times in (2, 3)]
    apart = tail(parts, STEP, 4.0, 1e-12, 2**10)
    whole = tail([take_direction(LATTICE, TIMES, reverse=False)], STEP, 4.0, 1e-12, 2**10)
    assert apart.start == pytest.approx(whole.start)
    assert np.abs(apart.value - whole.value).max() <= (apart.error + whole.error).max()


@pytest.mark.parametrize("order", [-3.0, 0.5, 6.0])
def test_moments(order: float) -> None:
    part = take_direction(LATTICE, TIMES, reverse=False)
    found, rounding = moment([part], [tilt_part(part, STEP, order)], order)
    loss, chance = outcomes()
    assert found == pytest.approx(math.log(chance @ np.exp(order * loss)), abs=1e-13)
    assert 0 < rounding < 1e-11


def test_too_long_a_transform_says_by_how_much() -> None:
    with pytest.raises(TooLongError) as error:
        tail([take_direction(LATTICE, 1000, reverse=False)], STEP, 2.0, 1e-10, 64)
    assert error.value.args[0] > 1
