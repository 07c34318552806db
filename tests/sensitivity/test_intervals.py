"""Interval enclosures hold for every point of the box, in exact arithmetic."""

import math
from fractions import Fraction

import mpmath
import sympy
from hypothesis import given, settings
from hypothesis import strategies as st

from apiece.sensitivity.bounds import Tape, make_interval, round_ends

x, y = sympy.symbols("x y", real=True)
EXPRESSIONS = [
    x**2 - 3 * x * y,
    x**3 / (2 + y**2),
    sympy.exp(x - y) * sympy.sin(3 * x),
    sympy.cos(x * y) - sympy.tanh(x),
    sympy.sinh(x) + sympy.cosh(y) / 7,
    sympy.log(1 + x**2) * sympy.sqrt(2 + sympy.sin(y)),
    (3 + x) ** sympy.Rational(1, 3) + 1 / sympy.sqrt(4 + y),
    (2 + x**2) ** y + sympy.pi * x + sympy.E * y,
    (x - 1) ** -2 * 0 + (1 + x**2) ** -3,
    sympy.tan(x / 3),
    sympy.atan(x * y) - sympy.erf(y),
    sympy.asin(x / 3) * sympy.acos(y / 4),
]
units = st.floats(0, 1)
floats = st.floats(-2, 2)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(st.sampled_from(EXPRESSIONS), floats, floats, floats, floats, units, units)
def test_enclosure_holds_at_every_point(expression, x0, x1, y0, y1, s, t):
    box = [sorted((x0, x1)), sorted((y0, y1))]
    low, high = round_ends(Tape([expression], [x, y])([make_interval(*side) for side in box])[0])
    px, py = (min(max(a + u * (b - a), a), b) for (a, b), u in zip(box, (s, t), strict=True))
    exact = sympy.lambdify([x, y], expression, "mpmath")
    with mpmath.workprec(200):
        value = exact(mpmath.mpf(px), mpmath.mpf(py))
        assert mpmath.mpf(low) <= value <= mpmath.mpf(high)


def test_exact_rational_constants_are_enclosed_not_rounded():
    low, high = round_ends(Tape([sympy.Rational(1, 10) + 0 * x], [x])([make_interval(0, 1)])[0])
    assert Fraction(low) < Fraction(1, 10) < Fraction(high)


def test_ends_are_rounded_outward_beyond_the_floating_point_range():
    tiny = Tape([sympy.exp(x)], [x])([make_interval(-800, -800)])[0]
    assert round_ends(tiny).lower <= 0.0 < round_ends(tiny).upper
    huge = Tape([sympy.exp(x)], [x])([make_interval(800, 800)])[0]
    assert round_ends(huge).upper == math.inf


def test_unknown_enclosures_are_the_whole_line():
    (value,) = Tape([1 / x], [x])([make_interval(-1, 1)])
    assert round_ends(value) == (-math.inf, math.inf)
