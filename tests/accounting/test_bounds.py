"""Bounds of a profile inverted: one-sided, close, infinite where nothing is known."""

import numpy as np
import pytest

from apiece._types import Floats
from apiece.accounting import Bounds
from apiece.accounting.bounds import invert
from apiece.accounting.closed import forms as closed


@pytest.mark.parametrize("delta", [0.3, 1e-3, 1e-9, 1e-15, 1e-100])
def test_inversion_is_one_sided_and_close(delta: float) -> None:
    z = np.array([0.1, 1.0, 50.0])
    for one in z:

        def at(epsilon: Floats, one: float = one) -> Bounds:
            return closed.gaussian(one, epsilon)

        lower, upper = invert(at, np.array([delta]))
        assert at(upper).upper <= delta
        assert lower[0] == 0 or at(lower).lower > delta
        assert upper[0] - lower[0] <= 1e-8 * upper[0] + 1e-14


def test_inversion_past_the_range_is_infinite() -> None:
    def never(epsilon: Floats) -> Bounds:
        return Bounds(np.full(epsilon.shape, 0.5), np.full(epsilon.shape, 0.5))

    assert invert(never, np.array([0.1, 0.9])).upper.tolist() == [np.inf, 0.0]
