"""Is an expression real and twice differentiable over its ranges? Proven, or refused.

Partial sensitivity takes two derivatives, so roots, logarithms, quotients and abs, min, max must
keep away from their singular points. Each such argument's sign over the box is decided by
interval arithmetic and subdivision; abs, min and max are then replaced by the branch that holds.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence

import sympy

from apiece.errors import ApieceError, ComplexValueError, NotDifferentiableError, UnsupportedError
from apiece.sensitivity.bounds import Box, Objective, halves, value_objective
from apiece.sensitivity.parse import FUNCTIONS

Ranges = Mapping[sympy.Symbol, tuple[float, float]]
MOST_BOXES = 4000
_SMOOTH = {sympy.exp, sympy.sin, sympy.cos, sympy.sinh, sympy.cosh, sympy.tanh, sympy.atan}
_SMOOTH |= {sympy.erf}
_CONSTANTS = (type(sympy.pi), type(sympy.E))


def smooth_form(expression: sympy.Expr, ranges: Ranges) -> sympy.Expr:
    """Return `expression` with abs, min and max resolved, real and C² over the ranges.

    Raises `ComplexValueError` where it leaves the real numbers, `NotDifferentiableError` where it
    has a kink or a pole, or cannot be shown to have none, `UnsupportedError` for a function that
    is not known.

    >>> a = sympy.Symbol("a", real=True)
    >>> smooth_form(sympy.Abs(a - 3), {a: (0, 1)})
    3 - a
    """
    if not expression.args:
        if expression.is_number and expression.is_finite is not True:
            raise NotDifferentiableError(f"expression: it holds {expression}; divide by no zero")
        if expression.is_number and not expression.is_real:
            raise ComplexValueError(f"expression: it holds {expression}; give a real expression")
        if not isinstance(expression, (sympy.Rational, sympy.Symbol, *_CONSTANTS)):
            raise UnsupportedError(f"expression: {expression!r} is not supported; write a number")
        return expression
    arguments = [smooth_form(a, ranges) for a in expression.args]
    if isinstance(expression, (sympy.Max, sympy.Min)):
        return _extreme(expression, arguments, ranges)
    node = expression.func(*arguments)
    if node.is_number and node.is_real is False:
        raise ComplexValueError(f"expression: {node} is not real; give a real expression")
    if isinstance(node, sympy.Pow):
        _check_power(node, ranges)
        return _logistic_as_tanh(node)
    if isinstance(node, sympy.log):
        _check_positive(node, node.args[0], ranges)
    elif isinstance(node, sympy.tan):
        _sign(node, sympy.cos(node.args[0]), ranges)
    elif isinstance(node, (sympy.asin, sympy.acos)):
        _check_positive(node, 1 - node.args[0] ** 2, ranges)
    elif isinstance(node, sympy.Abs):
        return node.args[0] * _sign(node, node.args[0], ranges)
    elif node.args and node.func not in _SMOOTH | {sympy.Add, sympy.Mul}:
        raise UnsupportedError(
            f"expression: the function {node.func.__name__} is not supported; "
            f"use {', '.join(sorted(FUNCTIONS))}"
        )
    return node


def _extreme(expression: sympy.Expr, arguments: Sequence[sympy.Expr], ranges: Ranges) -> sympy.Expr:
    """Return the one argument of a max (or min) that is the largest (smallest) throughout."""
    wanted = 1 if isinstance(expression, sympy.Max) else -1
    winner = arguments[0]
    for other in arguments[1:]:
        if _sign(expression, winner - other, ranges) != wanted:
            winner = other
    return winner


def _check_power(node: sympy.Pow, ranges: Ranges) -> None:
    base, exponent = node.args
    if isinstance(exponent, sympy.Integer):
        if exponent < 0:
            _sign(node, base, ranges)
    else:
        _check_positive(node, base, ranges)


def _logistic_as_tanh(node: sympy.Pow) -> sympy.Expr:
    """Write 1/(1 + e^v) as (1 − tanh(v/2))/2: v once, so that enclosures are close."""
    base, exponent = node.args
    terms = [term for term in base.args if isinstance(term, sympy.exp)]
    if exponent.is_negative and len(terms) == 1 and base == 1 + terms[0]:
        return ((1 - sympy.tanh(terms[0].args[0] / 2)) / 2) ** -exponent
    return node


def _check_positive(node: sympy.Expr, argument: sympy.Expr, ranges: Ranges) -> None:
    if _sign(node, argument, ranges, complex_below_zero=True) < 0:
        raise _complex(node, argument)


def _sign(
    node: sympy.Expr, argument: sympy.Expr, ranges: Ranges, *, complex_below_zero: bool = False
) -> int:
    """Return the constant sign of `argument` over the box; raise for `node` where it has none."""
    symbols = sorted(argument.free_symbols, key=str)
    slopes = [sympy.diff(argument, s) for s in symbols]
    objective = value_objective(argument, slopes, symbols, 1)
    whole = tuple(ranges[s] for s in symbols)
    pending = deque([whole])
    seen: set[int] = set()
    for _ in range(MOST_BOXES):
        if not pending:
            return seen.pop()
        box = pending.popleft()
        sign = _definite(objective, box)
        parts = halves(box, whole) if symbols and not sign else []
        seen |= {sign, *(_definite(objective, corner) for corner in _corners(box))} - {0}
        if complex_below_zero and -1 in seen:
            raise _complex(node, argument)
        if len(seen) == 2 or not (sign or parts):
            break
        pending += parts
    bounds = ", ".join(f"{s} in [{ranges[s][0]:g}, {ranges[s][1]:g}]" for s in symbols)
    reached = "reaches 0, or cannot be shown to stay away from it,"
    raise NotDifferentiableError(
        f"{node}: not twice differentiable, because {argument} "
        f"{'crosses 0' if len(seen) == 2 else reached} for {bounds}; narrow the ranges"
    )


def _complex(node: sympy.Expr, argument: sympy.Expr) -> ApieceError:
    return ComplexValueError(
        f"{node}: not real, because {argument} is negative within the ranges; narrow the ranges"
    )


def _definite(objective: Objective, box: Box) -> int:
    """Return the sign that the value has all over the box; 0 where that is not shown."""
    low, high = objective.range_over(box)[0]
    return int(low > 0) - int(high < 0)


def _corners(box: Box) -> tuple[Box, Box]:
    """Return the lowest and the highest point of a box."""
    return tuple((low, low) for low, _ in box), tuple((high, high) for _, high in box)
