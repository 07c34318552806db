"""What is shared by all packages: a pair of bounds is one type, wherever it is taken from."""

import numpy as np

from apiece import _types, accounting


def test_bounds_are_one_type_with_a_lower_and_an_upper_end() -> None:
    assert accounting.Bounds is _types.Bounds
    lower, upper = bounds = _types.Bounds(np.zeros(2), np.ones(2))
    assert (bounds.lower is lower, bounds.upper is upper) == (True, True)
    assert bounds._fields == ("lower", "upper")
