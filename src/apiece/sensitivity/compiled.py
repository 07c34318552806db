"""Expressions as functions of arrays, evaluated at many records."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import sympy

from apiece._types import Floats
from apiece.errors import RangeError

_CHUNK = 1 << 15  # records at a time: the intermediate columns stay in the processor's cache


def compiled(
    expressions: Sequence[sympy.Expr], symbols: Sequence[sympy.Symbol]
) -> Callable[..., Floats]:
    """Return the function of columns, one a symbol, whose rows are the expressions' values."""
    modules = [{"erf": _erf}, "numpy"]
    # dummify: an attribute may be called exp, or be no Python name at all.
    function = sympy.lambdify(list(symbols), list(expressions), modules, cse=True, dummify=True)

    def rows(*columns: Floats) -> Floats:
        with np.errstate(all="ignore"):  # past the floating point range: checked on results
            results = function(*columns)
        full = [np.broadcast_to(r, columns[0].shape) for r in results]
        return np.stack(full).astype(np.float64, copy=False)

    return rows


def evaluated(function: Callable[..., Floats], columns: Floats) -> Floats:
    """Return the function's rows at every record.

    Raises:
        RangeError: For a value past the floating point range.
    """
    n = columns.shape[1]
    chunks = [function(*columns[:, i : i + _CHUNK]) for i in range(0, n, _CHUNK)]
    results = np.concatenate(chunks, axis=1)
    if not np.isfinite(results).all():
        raise RangeError("query: a value past the floating point range; scale f or its ranges")
    return results


def norms_of(columns: Floats) -> Floats:
    """Return the ℓ2 norm over the first axis, without overflow or underflow of the squares."""
    largest = np.abs(columns).max(axis=0)
    usable = (largest > 0) & np.isfinite(largest)
    scaled = np.divide(columns, largest, out=np.ones_like(columns), where=usable)
    return np.asarray(largest * np.sqrt(np.square(scaled).sum(axis=0)))


def _erf(x: Floats) -> Floats:
    from scipy.special import erf

    result: Floats = erf(x)
    return result
