"""Interval arithmetic on SymPy expressions: enclosures that hold whatever the rounding.

An expression becomes a straight line of operations (`Tape`), each common subexpression once. On
intervals, every operation is mpmath's, which rounds outward; so the result encloses every value
that the expression takes on the box.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import mpmath
import sympy
from mpmath import iv

from apiece.accounting import Bounds

Interval = Any  # mpmath's ivmpf, which carries no types


_LEAST_NORMAL = 2.3e-308


class Tape:
    """Expressions over `symbols`, compiled for evaluation on boxes.

    The expressions must be smooth on the boxes (`smooth_form`): arguments of roots, logarithms
    and inverse sines are cut to where these are defined.

    >>> x = sympy.Symbol("x")
    >>> (value,) = Tape([x**2 - x], [x])([interval(0, 1)])
    >>> ends(value)
    Bounds(lower=-1.0, upper=1.0)
    """

    def __init__(self, expressions: Sequence[sympy.Expr], symbols: Sequence[sympy.Symbol]) -> None:
        self._steps: list[tuple[Callable[..., Interval], tuple[int, ...]]] = []
        self._constants: list[Interval] = []
        self._place: dict[sympy.Basic, int] = {s: i for i, s in enumerate(symbols)}
        self._inputs = len(symbols)
        self._results = [self._compile(e) for e in expressions]

    def __call__(self, box: Sequence[Interval]) -> list[Interval]:
        """Return the expressions' enclosures over `box`, one interval a symbol."""
        values = list(box)
        for operation, arguments in self._steps:
            values.append(operation(*(values[i] for i in arguments)))
        return [values[i] for i in self._results]

    def _compile(self, node: sympy.Basic) -> int:
        if node not in self._place:
            operation, arguments = _rule(node)
            places = tuple(self._compile(a) for a in arguments)
            self._place[node] = self._inputs + len(self._steps)
            self._steps.append((operation, places))
        return self._place[node]


def interval(lower: float, upper: float) -> Interval:
    """Return the interval between two floats, both included."""
    return iv.mpf([lower, upper])


def ends(value: Interval) -> Bounds:
    """Return the ends of an interval as floats, rounded outward; (-inf, inf) where it has none."""
    lower, upper = float(value.a), float(value.b)
    if not lower <= upper:
        return Bounds(-math.inf, math.inf)
    if abs(lower) < _LEAST_NORMAL and value.a != 0:  # mpmath's exponents reach further down
        lower = math.nextafter(lower, -math.inf)
    if abs(upper) < _LEAST_NORMAL and value.b != 0:
        upper = math.nextafter(upper, math.inf)
    return Bounds(lower, upper)


def _constant(node: sympy.Basic) -> Interval | None:
    if isinstance(node, sympy.Rational):
        return iv.mpf(int(node.p)) / iv.mpf(int(node.q))
    if node is sympy.pi:
        return iv.pi
    if node is sympy.E:
        return iv.e
    return None


def _rule(node: sympy.Basic) -> tuple[Callable[..., Interval], tuple[sympy.Basic, ...]]:
    """Return the operation of `node` on intervals, and the nodes that it takes."""
    constant = _constant(node)
    if constant is not None:
        return (lambda: constant), ()
    if isinstance(node, sympy.Add):
        return _total, node.args
    if isinstance(node, sympy.Mul):
        return _product, node.args
    if isinstance(node, sympy.Pow):
        return _power_rule(node)
    return _ELEMENTARY[node.func], node.args


def _power_rule(node: sympy.Pow) -> tuple[Callable[..., Interval], tuple[sympy.Basic, ...]]:
    base, exponent = node.args
    if isinstance(exponent, sympy.Integer):
        whole = int(exponent)
        return (lambda x: x**whole), (base,)
    if exponent == sympy.Rational(1, 2):
        return _sqrt, (base,)
    if exponent == sympy.Rational(-1, 2):
        return (lambda x: 1 / _sqrt(x)), (base,)
    return (lambda x, y: iv.exp(y * _log(x))), (base, exponent)


def _total(*terms: Interval) -> Interval:
    total = terms[0]
    for term in terms[1:]:
        total = total + term
    return total


def _product(*factors: Interval) -> Interval:
    product = factors[0]
    for factor in factors[1:]:
        product = product * factor
    return product


def _positive_part(x: Interval) -> Interval:
    """Cut `x` to [0, ∞): arguments of log and roots are proven positive before (`smooth`)."""
    if x.a >= 0:
        return x
    return iv.mpf([0, x.b if x.b > 0 else 0])


def _log(x: Interval) -> Interval:
    part = _positive_part(x)
    return iv.log(part) if part.b > 0 else iv.mpf(["-inf", "inf"])


def _sqrt(x: Interval) -> Interval:
    return iv.sqrt(_positive_part(x))


def _increasing(f: Callable[[Interval], Interval]) -> Callable[[Interval], Interval]:
    """Return the enclosure of an increasing function from its values at the two ends."""
    return lambda x: iv.mpf([f(x.a).a, f(x.b).b])


def _beyond_intervals(f: Callable[[Any], Any]) -> Callable[[Interval], Interval]:
    """Return the enclosure of an increasing function that mpmath has for numbers alone.

    Evaluated at the ends with 100 bits and widened by 2⁻⁵⁰, which is 2⁵⁰ times the last digit.
    """

    def enclose(x: Interval) -> Interval:
        with mpmath.workprec(100):
            low, high = (f(mpmath.mp.make_mpf(end)) for end in x._mpi_)
            return iv.mpf([low - abs(low) * _SLACK, high + abs(high) * _SLACK])

    return enclose


def _unit_part(x: Interval) -> Interval:
    """Cut `x` to [-1, 1]."""
    return iv.mpf([x.a if x.a > -1 else -1, x.b if x.b < 1 else 1])


_SLACK = mpmath.ldexp(1, -50)
_asin_of_unit = _beyond_intervals(mpmath.asin)
_sinh = _increasing(lambda x: (iv.exp(x) - iv.exp(-x)) / 2)
_cosh_of_positive = _increasing(lambda x: (iv.exp(x) + iv.exp(-x)) / 2)
_tanh = _increasing(lambda x: 1 - 2 / (iv.exp(2 * x) + 1))

_ELEMENTARY: dict[Any, Callable[[Interval], Interval]] = {
    sympy.exp: iv.exp,
    sympy.log: _log,
    sympy.sin: iv.sin,
    sympy.cos: iv.cos,
    sympy.tan: lambda x: iv.sin(x) / iv.cos(x),
    sympy.sinh: _sinh,
    sympy.cosh: lambda x: _cosh_of_positive(abs(x)),
    sympy.tanh: _tanh,
    sympy.atan: _beyond_intervals(mpmath.atan),
    sympy.erf: _beyond_intervals(mpmath.erf),
    sympy.asin: lambda x: _asin_of_unit(_unit_part(x)),
    sympy.acos: lambda x: iv.pi / 2 - _asin_of_unit(_unit_part(x)),
}
