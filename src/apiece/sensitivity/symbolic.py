"""Expression: an expression over named attributes of a record, its derivatives and bounds."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any, TypeAlias

import numpy as np
import sympy
from scipy.special import erf

from apiece import _check
from apiece._identity import common_index, index_of
from apiece._types import Floats
from apiece.accounting import Bounds
from apiece.errors import (
    AttributeRangeError,
    DataError,
    ExpressionError,
    InputError,
    RangeError,
    unknown,
)
from apiece.sensitivity.bounds import (
    Maximum,
    make_norm_objective,
    make_value_objective,
    maximise,
    spread_points,
)
from apiece.sensitivity.expressions import parse, smooth_form
from apiece.sensitivity.partial import PartialSensitivity

Range: TypeAlias = tuple[float, float]

# Records at a time: the intermediate columns stay in the processor's cache.
_CHUNK = 1 << 15

# Operations of an expression up to which it is simplified; beyond, that can take minutes.
_LARGEST_TO_SIMPLIFY = 100


def compile_rows(
    expressions: Sequence[sympy.Expr], symbols: Sequence[sympy.Symbol]
) -> Callable[..., Floats]:
    """Return the function of columns, one a symbol, whose rows are the expressions' values."""
    modules = [{"erf": erf}, "numpy"]
    # dummify: an attribute may be called exp, or be no Python name at all.
    function = sympy.lambdify(list(symbols), list(expressions), modules, cse=True, dummify=True)

    def compute_rows(*columns: Floats) -> Floats:
        with np.errstate(all="ignore"):  # past the floating point range: checked on results
            results = function(*columns)
        # The value of a constant expression is a number.
        rows = [np.broadcast_to(result, columns[0].shape) for result in results]
        return np.stack(rows).astype(np.float64, copy=False)

    return compute_rows


def evaluate(function: Callable[..., Floats], columns: Floats) -> Floats:
    """Return the function's rows at every record; `RangeError` past the floating point range."""
    starts = range(0, columns.shape[1], _CHUNK)
    chunks = [function(*columns[:, start : start + _CHUNK]) for start in starts]
    results = np.concatenate(chunks, axis=1)
    if not np.isfinite(results).all():
        raise RangeError("query: a value past the floating point range; scale f or its ranges")
    return results


def compute_norms(columns: Floats) -> Floats:
    """Return the ℓ2 norm over the first axis, without overflow or underflow of the squares."""
    largest = np.abs(columns).max(axis=0)
    usable = (largest > 0) & np.isfinite(largest)
    # Elsewhere the largest is 0, ∞ or NaN, and times a positive number it is the norm.
    scaled = np.divide(columns, largest, out=np.ones_like(columns), where=usable)
    squares = np.square(scaled).sum(axis=0)
    return np.asarray(largest * np.sqrt(squares))


def read_expression(
    expression: str | sympy.Expr, symbols: Mapping[str, sympy.Symbol]
) -> sympy.Expr:
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
    # A floating-point number is taken for the binary fraction that it is.
    exact = {number: sympy.Rational(number) for number in expression.atoms(sympy.Float)}
    # To SymPy a symbol with other assumptions is another one, whatever its name.
    declared = {symbol: symbols[symbol.name] for symbol in expression.free_symbols}
    return expression.xreplace(declared | exact)


def check_range(name: str, ends: tuple[float, float]) -> Range:
    """Return the declared ends of an attribute, checked."""
    try:
        low, high = (_check.finite(f"range of {name!r}", end) for end in ends)
    except (InputError, TypeError, ValueError):
        raise AttributeRangeError(
            f"range of {name!r} = {ends!r}: unbounded or not two numbers; give two finite ends"
        ) from None
    # The width of two finite ends may overflow.
    if not 0 < high - low < math.inf:
        problem = "empty; give a lower end below the upper one" if high <= low else "too wide"
        raise AttributeRangeError(f"range of {name!r} = [{low:g}, {high:g}]: {problem}")
    return low, high


def make_symbol(name: str, ends: Range) -> sympy.Symbol:
    """Return a real symbol that knows its sign, so that sqrt(a**2) becomes a."""
    low, high = ends
    # Of a range that touches 0 nothing is said: for sympy neither sign includes it.
    sign = {}
    if low > 0:
        sign = {"positive": True}
    elif high < 0:
        sign = {"negative": True}
    return sympy.Symbol(name, real=True, **sign)


def _find_index(records: object) -> Any:
    """Return the labels of records: the index of a table, or of a mapping's Series; else None."""
    if isinstance(records, Mapping):
        return common_index(**{str(name): column for name, column in records.items()})
    return index_of(records)


def read_columns(records: object, ranges: Mapping[str, Range]) -> Floats:
    """Return the attributes of records as rows, checked against their ranges: (d, n)."""
    names = tuple(ranges)
    _find_index(records)  # raises where attributes are of different records
    try:
        if isinstance(records, (np.ndarray, list, tuple)):
            # An attribute a row, contiguous, as compiled functions take them.
            columns = np.array(np.asarray(records, dtype=np.float64).T, order="C", ndmin=2)
        else:
            table: Any = records  # a mapping or a data frame; anything else raises
            columns = np.array([np.asarray(table[name], float) for name in names])
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
        # Negated, so that NaN is outside too.
        outside = int(np.count_nonzero(~((column >= low) & (column <= high))))
        if outside:
            raise DataError(
                f"records: {outside} values of {name!r} outside [{low:g}, {high:g}]; clip "
                "them to the declared range first"
            )
    return columns


class Expression:
    """A real function f of one record's named attributes, each with a declared range.

    The query over a data set is the sum of f over its records (`mean_of(n)` divides by n).

    Args:
        expression: Text (`"a**2 + exp(2*b - a)"`; see `parse`: numbers are exact, nothing is
            evaluated as code), or a SymPy expression over symbols with the attributes' names.
        ranges: Attribute → (lower, upper), finite, lower < upper; public, never read off the data.
            Attributes that f does not use may be there.

    Raises:
        AttributeRangeError: For an attribute without a range and an unbounded or empty range.
        ComplexValueError: Where f is not real within the ranges.
        NotDifferentiableError: Where f cannot be shown to be twice differentiable there, as where
            ranges touch a singular point (sqrt(a) with a from 0).
        ExpressionError: For a text that is no expression.

    References:
        Mueller et al. 2021, §4 and §5.1.

    Example:
        >>> from apiece import Expression
        >>> query = Expression("a**2 + exp(2*b - a)", {"a": (1, 2), "b": (0.5, 3)})
        >>> query.gradient
        (2*a - exp(-a + 2*b), 2*exp(-a + 2*b))
        >>> query.lipschitz_constant().location
        {'a': 1.0, 'b': 3.0}
    """

    def __init__(
        self, expression: str | sympy.Expr, ranges: Mapping[str, tuple[float, float]]
    ) -> None:
        self.ranges = {str(name): check_range(name, ends) for name, ends in ranges.items()}
        if not self.ranges:
            raise AttributeRangeError("ranges: none given; declare a range for every attribute")
        self.symbols = {name: make_symbol(name, ends) for name, ends in self.ranges.items()}
        by_symbol = {self.symbols[name]: ends for name, ends in self.ranges.items()}
        self.expression = smooth_form(read_expression(expression, self.symbols), by_symbol)
        """f, with abs, min and max resolved to the branch that holds over the ranges."""

    @property
    def attributes(self) -> tuple[str, ...]:
        """The attributes' names, in the order of the ranges."""
        return tuple(self.ranges)

    def mean_of(self, records: int) -> Expression:
        """Return the query whose sum over `records` records is their mean: f/records.

        Args:
            records: Their number, which is public.

        Raises:
            InputError: For no whole number of at least 1.
        """
        return Expression(self.expression / _check.count("records", records), self.ranges)

    @cached_property
    def gradient(self) -> tuple[sympy.Expr, ...]:
        """∂f/∂attribute, one an attribute."""
        return tuple(sympy.diff(self.expression, s) for s in self.symbols.values())

    @cached_property
    def hessian(self) -> tuple[tuple[sympy.Expr, ...], ...]:
        """The second derivatives, a row for each entry of the gradient."""
        symbols = self.symbols.values()
        return tuple(tuple(sympy.diff(slope, s) for s in symbols) for slope in self.gradient)

    @cached_property
    def gradient_norm(self) -> sympy.Expr:
        """‖∇f‖₂, simplified."""
        return sympy.sqrt(_simplify(sum(slope**2 for slope in self.gradient)))

    @cached_property
    def partial_sensitivities(self) -> tuple[sympy.Expr, ...]:
        """∂‖∇f‖₂/∂attribute = (H∇f)ᵢ/‖∇f‖₂, simplified; 0 where the norm is 0."""
        # H∇f, an entry an attribute.
        products = [sum(map(lambda h, g: h * g, row, self.gradient)) for row in self.hessian]
        # Of a constant f the quotient would be 0/0.
        if self.gradient_norm.is_zero:
            return tuple(sympy.Integer(0) for _ in products)
        return tuple(_simplify(product / self.gradient_norm) for product in products)

    def latex(self) -> dict[str, str]:
        """Return f, its gradient norm and each partial sensitivity in LaTeX."""
        formulas = {
            "f": sympy.latex(self.expression),
            r"\|\nabla f\|_2": sympy.latex(self.gradient_norm),
        }
        partials = zip(self.symbols.values(), self.partial_sensitivities, strict=True)
        for symbol, partial in partials:
            name = rf"\partial_{{{sympy.latex(symbol)}}} \|\nabla f\|_2"
            formulas[name] = sympy.latex(partial)
        return formulas

    def values(self, records: object) -> Floats:
        """Return f at each of n records, shape (n,).

        Args:
            records: As in `partial_sensitivity`.
        """
        rows = evaluate(self._compiled_value, read_columns(records, self.ranges))
        return np.asarray(rows[0])

    def contributions(self, records: object) -> Floats:
        """Return |f| at each record, (n,): the sum's change when the record joins or leaves.

        That is the ℓ2 sensitivity of this one record. Data about people.

        Args:
            records: As in `partial_sensitivity`.
        """
        return np.abs(self.values(records))

    def gradients(self, records: object) -> Floats:
        """Return ∇f at each record, shape (n, d).

        Args:
            records: As in `partial_sensitivity`.
        """
        return evaluate(self._compiled_gradient, read_columns(records, self.ranges)).T

    def differentiate(self, records: object) -> PartialSensitivity:
        """Return the partial sensitivities, as `partial_sensitivity(self, records)` does.

        Args:
            records: As in `partial_sensitivity`.
        """
        d = len(self.ranges)

        # (d + 1, records): ∂‖∇f‖ = H·(∇f/‖∇f‖), an attribute a row, and the norm below.
        def compute_growth_and_norm(*columns: Floats) -> Floats:
            gradient = self._compiled_gradient(*columns)
            norm = compute_norms(gradient)
            usable = (norm > 0) & np.isfinite(norm)
            # Where the norm is 0, or no number, the direction is 0 and so is the growth.
            direction = np.divide(gradient, norm, out=np.zeros_like(gradient), where=usable)
            growth = self._compiled_curvature(*columns, *direction)
            return np.vstack([growth, norm])

        results = evaluate(compute_growth_and_norm, read_columns(records, self.ranges))
        norms = results[d]
        return PartialSensitivity(
            results[:d].T,
            norms,
            norms == 0,
            "attribute_change",
            self.attributes,
            _find_index(records),
        )

    def lipschitz_constant(self) -> Maximum:
        """Return the largest gradient norm over the ranges (Mueller et al.'s global sensitivity).

        The most that f changes per unit of Euclidean change. With noise N(0, S²), two records at
        distance r are told apart with Rényi divergence at most α (r·L)²/(2S²), L = `bounds.upper`.
        """

        def compute_squared_norm(record: Floats) -> float:
            gradient = self._compiled_gradient(*record[:, None])
            return float(np.square(gradient).sum())

        # The norm has a kink at 0, its square has none: the square is maximised.
        squared = maximise(
            make_norm_objective(self.gradient, self.hessian, list(self.symbols.values())),
            compute_squared_norm,
            self.attributes,
            tuple(self.ranges.values()),
        )
        # A square root is rounded to the nearest float: one step further is a bound.
        lower = math.nextafter(math.sqrt(max(squared.bounds.lower, 0)), 0.0)
        upper = math.sqrt(squared.bounds.upper)
        upper = math.nextafter(upper, math.inf) if upper else 0.0
        bounds = Bounds(lower, upper)
        return Maximum(bounds, squared.location, squared.certified, squared.reason)

    def global_sensitivity(self, relation: str = "add_remove") -> Maximum:
        """Return the most that one record can change the sum of f.

        `bounds.upper` is the number to calibrate noise with.

        Args:
            relation: "add_remove", max |f| over the ranges; or "replace", max f − min f (the
                location is where f is largest).

        Raises:
            OptionError: For another relation.
        """
        if relation not in ("add_remove", "replace"):
            raise unknown("relation", relation, ["add_remove", "replace"])
        # The maxima of f and of −f.
        top = self._maximise(1)
        bottom = self._maximise(-1)
        if relation == "add_remove":
            # By the bound, which noise is calibrated with, not by what was attained.
            return max(top, bottom, key=lambda m: (m.bounds.upper, m.value))
        # max f − min f is the sum of both maxima; each end is rounded outward.
        lower_sum = top.bounds.lower + bottom.bounds.lower
        upper_sum = top.bounds.upper + bottom.bounds.upper
        lower = math.nextafter(lower_sum, -math.inf)
        upper = math.nextafter(upper_sum, math.inf)
        bounds = Bounds(max(lower, 0.0), upper)
        certified = top.certified and bottom.certified
        reason = bottom.reason if top.certified else top.reason
        return Maximum(bounds, top.location, certified, reason)

    def design(self, count: int) -> Floats:
        """Return `count` records spread evenly over the ranges, shape (count, d); public.

        Weights and noise may depend on these: they depend on nothing but the declared ranges.

        Args:
            count: At least 1.

        Raises:
            InputError: For no whole number of at least 1.
        """
        sides = np.array(list(self.ranges.values()))
        return spread_points(sides, _check.count("count", count))

    def _maximise(self, sign: int) -> Maximum:
        """Return the maximum of sign·f."""

        def compute_value(record: Floats) -> float:
            return sign * float(self._compiled_value(*record[:, None])[0, 0])

        symbols = list(self.symbols.values())
        return maximise(
            make_value_objective(self.expression, self.gradient, symbols, sign),
            compute_value,
            self.attributes,
            tuple(self.ranges.values()),
        )

    @cached_property
    def _compiled_value(self) -> Callable[..., Floats]:
        return compile_rows([self.expression], list(self.symbols.values()))

    @cached_property
    def _compiled_gradient(self) -> Callable[..., Floats]:
        return compile_rows(self.gradient, list(self.symbols.values()))

    @cached_property
    def _compiled_curvature(self) -> Callable[..., Floats]:
        """H·u for a direction u, given after the attributes."""
        # ∇f/‖∇f‖ neither over- nor underflows where the products Hᵢⱼ·∂ⱼf would.
        direction = [sympy.Dummy(f"u_{name}") for name in self.symbols]
        rows = []
        for row in self.hessian:
            products = [h * u for h, u in zip(row, direction, strict=True)]
            rows.append(sympy.Add(*products))
        return compile_rows(rows, [*self.symbols.values(), *direction])


def _simplify(expression: sympy.Expr) -> sympy.Expr:
    if sympy.count_ops(expression) > _LARGEST_TO_SIMPLIFY:
        return expression
    return sympy.simplify(expression)
