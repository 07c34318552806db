"""Precision: how close bounds should lie, and where they do."""

import numpy as np
import pytest

from apiece._types import Bounds
from apiece.accounting.bounds import DEFAULT, Precision
from apiece.errors import InputError


def test_the_gap_wanted_is_relative_above_the_floor_and_absolute_below() -> None:
    wanted = Precision(gap=1e-3, floor=0.01).wanted(np.array([2.0, 0.005, 0.001]))
    assert wanted == pytest.approx([2e-3, 1e-5, 2e-4])


def test_reached_is_never_so_at_infinity() -> None:
    upper = np.array([1.0, 1.0, np.inf, 0.001])
    lower = np.array([0.9995, 0.99, 1e300, 0.0009])
    assert DEFAULT.reached(Bounds(lower, upper)).tolist() == [True, False, False, True]


@pytest.mark.parametrize(
    "change", [{"gap": 0.0}, {"gap": 1.0}, {"wrap": float("nan")}, {"points": 8}, {"floor": -1.0}]
)
def test_bad_settings_are_named(change: dict) -> None:
    with pytest.raises(InputError, match=next(iter(change))):
        Precision(**change)
