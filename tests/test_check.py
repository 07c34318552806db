"""Checks at the door: what is in bounds comes back in one form; NaN and the like never pass."""

import math
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from apiece import _check
from apiece.errors import BudgetError, DataError, InputError
from refusals import refused

NO_NUMBERS = ["1", b"1", None, True, np.bool_(True), [1.0], {}, object()]


@pytest.mark.parametrize("value", [0, -1.0, math.nan, math.inf, 10**400, *NO_NUMBERS])
def test_positive_refuses(value: object) -> None:
    with refused(BudgetError, "x"):
        _check.positive("x", value, error=BudgetError)


@pytest.mark.parametrize("value", [1, 0.5, np.float32(2), Fraction(1, 3), Decimal("7"), 5e-324])
def test_positive_returns_a_float(value: object) -> None:
    found = _check.positive("x", value)
    assert type(found) is float
    assert found == pytest.approx(float(value), rel=0)  # type: ignore[arg-type]


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, *NO_NUMBERS])
def test_finite_refuses(value: object) -> None:
    with pytest.raises(InputError):
        _check.finite("x", value)


def test_probability_takes_its_ends_only_where_they_are_closed() -> None:
    for low_open in (False, True):
        for high_open in (False, True):
            ends = {"low_open": low_open, "high_open": high_open}
            assert _check.probability("p", 0.5, **ends) == 0.5
            for value, is_refused in ((0.0, low_open), (1.0, high_open)):
                if is_refused:
                    with refused(InputError, "p"):
                        _check.probability("p", value, **ends)
                else:
                    assert _check.probability("p", value, **ends) == value
    for value in (-5e-324, math.nextafter(1, 2), math.nan):
        with pytest.raises(InputError):
            _check.probability("p", value)


@pytest.mark.parametrize("value", [0, -1, 1.5, math.nan, math.inf, True, "1", None])
def test_count_refuses(value: object) -> None:
    with refused(InputError, "n"):
        _check.count("n", value)


@pytest.mark.parametrize("value", [3, 3.0, np.int8(3), np.float64(3)])
def test_count_returns_an_int(value: object) -> None:
    found = _check.count("n", value)
    assert (type(found), found) == (int, 3)


def test_positive_array_names_the_first_entry_that_is_wrong() -> None:
    with refused(InputError, "x[1]", "nan", 2):
        _check.positive_array("x", [1.0, math.nan, 1.0, -1.0])
    with refused(InputError, "x", 1.0, 0):
        _check.positive_array("x", 1.0, below=1.0)
    with pytest.raises(InputError, match="not numbers"):
        _check.positive_array("x", ["a"])


@pytest.mark.parametrize(
    "check",
    [_check.numbers, _check.positive_array, _check.probability_array, _check.count_array],
)
@pytest.mark.parametrize(
    "value", ["a", [{}], 10**400, [1, 10**400]], ids=["text", "object", "large", "one large"]
)
def test_arrays_of_what_is_no_float_are_refused(check: Any, value: object) -> None:
    """A whole number past the largest float, too."""
    with pytest.raises(InputError, match="x: not numbers; give"):
        check("x", value)


def test_probability_and_count_arrays_name_the_first_entry_that_is_wrong() -> None:
    assert _check.probability_array("q", [0, 1, 0.5]).tolist() == [0, 1, 0.5]
    assert _check.count_array("n", [1, 3.0]).tolist() == [1, 3]
    with refused(InputError, "q[1]", "nan", 0, 1):
        _check.probability_array("q", [0.5, math.nan])
    for wrong in (0, 1.5, math.nan, math.inf, 1e15):
        with refused(InputError, "n[1]", 1, 2, 3):
            _check.count_array("n", [1, wrong])


def test_positive_array_is_a_fresh_read_only_copy() -> None:
    given = np.array([1.0, 2.0])
    found = _check.positive_array("x", given)
    given[0] = -1.0
    assert found.tolist() == [1.0, 2.0]
    assert not found.flags.writeable


@pytest.mark.parametrize(
    ("ids", "words"),
    [
        ([], "none; give one id"),
        ([[1, 2]], "2 dimensions"),
        ([1, 2, 1], "1 occurs 2 times"),
        (5, "dimensions"),
    ],
)
def test_record_ids_refuses(ids: object, words: str) -> None:
    with pytest.raises(DataError, match=words):
        _check.record_ids("ids", ids)  # type: ignore[arg-type]


def test_fields_of_a_frozen_value_are_replaced_by_what_their_checks_return() -> None:
    @dataclass(frozen=True, slots=True)
    class Pair:
        first: float
        second: int

        def __post_init__(self) -> None:
            _check.put(self, first=_check.positive, second=_check.count)

    made = Pair(1, 2.0)  # type: ignore[arg-type]
    assert [type(made.first), type(made.second)] == [float, int]
    with refused(InputError, "second", 0):
        Pair(1.0, 0)


def test_what_nobody_can_write_is_frozen_as_it_is() -> None:
    owned = np.arange(3.0)
    owned.flags.writeable = False
    repeated = np.broadcast_to(owned, (1000, 3))
    for array in (owned, owned[1:], repeated):
        assert _check.freeze(array) is array


def test_what_somebody_could_write_is_frozen_as_a_copy() -> None:
    owned = np.arange(3.0)
    view = owned[:]
    view.flags.writeable = False
    of_bytes = np.frombuffer(bytearray(24))
    of_bytes.flags.writeable = False
    for array in (owned, view, view[1:], of_bytes):
        frozen = _check.freeze(array)
        assert not frozen.flags.writeable
        assert not np.shares_memory(frozen, array)
        assert frozen.tolist() == array.tolist()
