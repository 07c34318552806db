"""What is declared of a record's attributes: names and ranges, read and held against records."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, TypeAlias

import numpy as np
import sympy

from apiece import _check
from apiece._types import Floats
from apiece.errors import AttributeRangeError, DataError, ExpressionError, InputError
from apiece.sensitivity.parse import parse

Range: TypeAlias = tuple[float, float]


def read(expression: str | sympy.Expr, symbols: Mapping[str, sympy.Symbol]) -> sympy.Expr:
    """Return an expression over declared attributes alone, its numbers exact."""
    if isinstance(expression, str):
        return parse(expression, symbols)
    if not isinstance(expression, sympy.Expr):
        raise ExpressionError(f"expression: {expression!r} is neither text nor a SymPy expression")
    undeclared = sorted({s.name for s in expression.free_symbols} - set(symbols))
    if undeclared:
        raise AttributeRangeError(
            f"attribute {undeclared[0]!r}: it has no range; declare one, lower and upper end"
        )
    exact = {number: sympy.Rational(number) for number in expression.atoms(sympy.Float)}
    return expression.xreplace({s: symbols[s.name] for s in expression.free_symbols} | exact)


def range_of(name: str, ends: Any) -> Range:
    """Return the declared ends of an attribute, checked."""
    try:
        low, high = (_check.finite(f"range of {name!r}", end) for end in ends)
    except (InputError, TypeError, ValueError):
        raise AttributeRangeError(
            f"range of {name!r} = {ends!r}: unbounded or not two numbers; give two finite ends"
        ) from None
    if not 0 < high - low < math.inf:
        problem = "empty; give a lower end below the upper one" if high <= low else "too wide"
        raise AttributeRangeError(f"range of {name!r} = [{low:g}, {high:g}]: {problem}")
    return low, high


def symbol_of(name: str, ends: Range) -> sympy.Symbol:
    """Return a real symbol that knows its sign, so that sqrt(a**2) becomes a."""
    known = {"positive": True} if ends[0] > 0 else {"negative": True} if ends[1] < 0 else {}
    return sympy.Symbol(name, real=True, **known)


def columns_of(records: Any, ranges: Mapping[str, Range]) -> Floats:
    """Return the attributes of records as rows, checked against their ranges: (d, n)."""
    names = tuple(ranges)
    try:
        if isinstance(records, (np.ndarray, list, tuple)):
            columns = np.array(np.asarray(records, dtype=np.float64).T, order="C", ndmin=2)
        else:
            columns = np.array([np.asarray(records[a], float) for a in names])
    except KeyError as error:
        raise DataError(f"records: no attribute {error}; give {names}") from None
    except (TypeError, ValueError):
        raise DataError(
            f"records: not {len(ranges)} columns of numbers of one length; give a data "
            f"frame, a mapping or an array with the attributes {names}"
        ) from None
    if columns.ndim != 2 or len(columns) != len(ranges) or columns.shape[1] == 0:
        raise DataError(
            f"records: shape {columns.T.shape}; give at least one record of "
            f"{len(ranges)} attributes {names}"
        )
    for column, (name, (low, high)) in zip(columns, ranges.items(), strict=True):
        outside = int(np.count_nonzero(~((column >= low) & (column <= high))))
        if outside:
            raise DataError(
                f"records: {outside} values of {name!r} outside [{low:g}, {high:g}]; clip "
                "them to the declared range first"
            )
    return columns
