"""Ranges are declared and finite, expressions use nothing else, records lie inside."""

import numpy as np
import pytest
import sympy

from apiece.errors import AttributeRangeError, DataError, ExpressionError
from apiece.sensitivity.symbolic import check_range, make_symbol, read_columns, read_expression

RANGES = {"a": (0.0, 1.0), "b": (-1.0, 2.0)}


@pytest.mark.parametrize("ends", [(1, 1), (2, 1), (0, np.inf), (np.nan, 1), "ab", (1,), None, 3])
def test_ranges_that_are_none(ends: object) -> None:
    with pytest.raises(AttributeRangeError, match="range of 'a'"):
        check_range("a", ends)


def test_a_symbol_knows_its_sign() -> None:
    assert sympy.sqrt(make_symbol("a", (1, 2)) ** 2).is_Symbol
    assert not sympy.sqrt(make_symbol("a", (-1, 2)) ** 2).is_Symbol


def test_an_expression_of_sympy_takes_the_declared_symbols_and_exact_numbers() -> None:
    symbols = {name: make_symbol(name, ends) for name, ends in RANGES.items()}
    found = read_expression(0.5 * sympy.Symbol("a") + 1, symbols)
    assert found == symbols["a"] / 2 + 1
    with pytest.raises(AttributeRangeError, match="'c'"):
        read_expression(sympy.Symbol("c"), symbols)
    with pytest.raises(ExpressionError):
        read_expression(3.0, symbols)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "records", [{"a": [0, 1], "b": [2, -1]}, [[0, 2], [1, -1]], np.array([[0, 2], [1, -1]])]
)
def test_records_become_columns(records: object) -> None:
    assert read_columns(records, RANGES).tolist() == [[0, 1], [2, -1]]


@pytest.mark.parametrize(
    ("records", "words"),
    [
        ({"a": [0.5]}, "no attribute 'b'"),
        ({"a": [0.5], "b": [0, 1]}, "of one length"),
        ([["x", "y"]], "of one length"),
        (np.zeros((3, 5)), "shape"),
        ({"a": [], "b": []}, "at least one"),
        ({"a": [1.5, 0], "b": [0, np.nan]}, "1 values of 'a' outside"),
        ({"a": [1.0, 0], "b": [0, np.nan]}, "1 values of 'b' outside"),
    ],
)
def test_records_that_do_not_fit(records: object, words: str) -> None:
    with pytest.raises(DataError, match=words):
        read_columns(records, RANGES)
