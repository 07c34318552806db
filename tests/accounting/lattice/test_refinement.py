"""Bounds around one δ: they contain the exact curve of Gaussians, and end close."""

from dataclasses import replace

import numpy as np
import pytest

from apiece.accounting.bounds import DEFAULT
from apiece.accounting.exact import GaussianProfile
from apiece.accounting.lattice.pairs import GaussianPair
from apiece.accounting.lattice.profile import refine
from apiece.errors import RangeError

DELTAS = np.array([1e-5, 1e-6, 1e-7])


@pytest.mark.parametrize(("z", "times"), [(10.0, 100), (3.0, 4), (200.0, 9)])
def test_they_contain_the_curve_and_are_close(z: float, times: int) -> None:
    exact = GaussianProfile(z / times**0.5).epsilon(DELTAS)
    found = refine(((GaussianPair(z), times),), DELTAS, DEFAULT)
    lower, upper = found.epsilon(DELTAS)
    assert (lower <= exact.upper).all()
    assert (exact.lower <= upper).all()
    assert found.close
    assert DEFAULT.reached(found.epsilon(DELTAS)).all()


def test_few_points_give_wider_bounds_that_say_so() -> None:
    rough = replace(DEFAULT, points=1024, gap=1e-6)
    found = refine(((GaussianPair(10.0), 100),), DELTAS, rough)
    lower, upper = found.epsilon(DELTAS)
    exact = GaussianProfile(1.0).epsilon(DELTAS)
    assert not found.close
    assert (lower <= exact.upper).all()
    assert (exact.lower <= upper).all()


def test_losses_past_the_range() -> None:
    with pytest.raises(RangeError, match="past the numerical range"):
        refine(((GaussianPair(0.1), 10**9),), DELTAS, DEFAULT)
