"""Expressions as functions of columns: exact, whole over chunks, and never past the range."""

import math

import numpy as np
import pytest
import sympy

from apiece.errors import RangeError
from apiece.sensitivity.symbolic import compile_rows, compute_norms, evaluate

A, B = sympy.symbols("a b", real=True)


def test_rows_are_the_expressions() -> None:
    function = compile_rows([A * B, sympy.erf(A), sympy.Integer(3)], [A, B])
    found = function(np.array([0.5, 2.0]), np.array([3.0, 4.0]))
    assert found == pytest.approx(np.array([[1.5, 8], [math.erf(0.5), math.erf(2)], [3, 3]]))


def test_names_that_are_functions_or_no_python() -> None:
    exp, odd = sympy.Symbol("exp"), sympy.Symbol("capital gain")
    found = compile_rows([sympy.exp(exp) + odd], [exp, odd])(np.zeros(1), np.ones(1))
    assert found == pytest.approx(2.0)


def test_many_records_are_evaluated_in_chunks_as_at_once() -> None:
    columns = np.random.default_rng(0).normal(size=(2, 70_001))
    function = compile_rows([A**2 + B, A], [A, B])
    assert np.array_equal(evaluate(function, columns), function(*columns))


def test_a_value_past_the_range() -> None:
    with pytest.raises(RangeError):
        evaluate(compile_rows([sympy.exp(A)], [A]), np.array([[1.0, 1e4]]))


@pytest.mark.parametrize("scale", [1e-200, 1.0, 1e200])
def test_norms_neither_overflow_nor_vanish(scale: float) -> None:
    columns = scale * np.array([[3.0, 0.0, 1.0], [4.0, 0.0, 0.0]])
    assert compute_norms(columns) == pytest.approx(
        scale * np.array([5.0, 0.0, 1.0]), rel=1e-15, abs=0
    )
