"""Smoothness is proven or refused; kinks that lie outside the ranges are resolved."""

import pytest
import sympy

from apiece.errors import ComplexValueError, NotDifferentiableError
from apiece.sensitivity import Expression

UNIT = {"a": (0, 1), "b": (0, 1)}


@pytest.mark.parametrize(
    ("text", "ranges"),
    [
        ("abs(a - 0.3)", UNIT),
        ("abs(a)", UNIT),  # the kink is an end of the range
        ("max(a, b)", UNIT),
        ("min(a, 0.5)", UNIT),
        ("sqrt(a)", UNIT),
        ("a**1.5", UNIT),  # once differentiable at 0, not twice
        ("1/a", {"a": (-1, 1)}),
        ("1/(a - b)", UNIT),
        ("tan(a)", {"a": (1, 2)}),
        ("log(a)", UNIT),
        ("asin(a)", UNIT),
        ("log(b - b) + a", UNIT),
    ],
)
def test_kinks_and_poles_are_refused(text, ranges):
    with pytest.raises(NotDifferentiableError) as caught:
        Expression(text, ranges)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "ranges"),
    [
        ("sqrt(a - 3)", UNIT),
        ("log(a)", {"a": (-1, 1)}),
        ("log(a - b)", UNIT),
        ("sqrt(-1) * a", UNIT),
        ("(-2)**0.5 + a", UNIT),
        ("a**0.5", {"a": (-1, 1)}),
        ("asin(2 + a)", UNIT),
    ],
)
def test_complex_values_are_refused(text, ranges):
    with pytest.raises(ComplexValueError) as caught:
        Expression(text, ranges)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "same"),
    [
        ("abs(a + 1)", "a + 1"),
        ("abs(a - 2)", "2 - a"),
        ("max(a, 2)", "2"),
        ("max(a, b + 2, 1.5)", "b + 2"),
        ("min(a, b + 2)", "a"),
        ("sqrt((a + 1)**2)", "a + 1"),
        ("sqrt(a**2 - 2*a*b + b**2 + 0.01)", "sqrt((a - b)**2 + 0.01)"),
        ("log(a + 0.001)", "log(a + 0.001)"),
        ("log(erf(a) + 1.1)", "log(erf(a) + 1.1)"),
        ("1/(1 + exp(b - a))", "(1 + tanh((a - b)/2))/2"),
        ("sigmoid(a)**2", "(1 + exp(-a))**-2"),
        ("a**b", None),
    ],
)
def test_smooth_within_the_ranges(text, same):
    ranges = {"a": (0.5, 1), "b": (0, 1)}
    found = Expression(text, ranges).expression
    if same is not None:
        assert sympy.simplify(found - Expression(same, ranges).expression) == 0
    assert not found.has(sympy.Abs, sympy.Max, sympy.Min)
