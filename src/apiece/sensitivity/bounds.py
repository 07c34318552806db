"""The maximum of a smooth expression over a box: found by SHGO, bounded by interval arithmetic.

SHGO (simplicial homology global optimisation) finds a good point; it proves nothing. The upper end
comes from branch and bound on intervals that mpmath rounds outward: boxes are cut until their
enclosures meet the best value seen, and shrink to a face where the function is monotone.
"""

import heapq
import itertools
import math
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any

import mpmath
import numpy as np
import sympy
from mpmath import iv

from apiece._types import Floats
from apiece.accounting import Bounds
from apiece.errors import RangeError

Interval = Any  # mpmath's ivmpf, which carries no types


# Just above the least normal double: below it a number of mpmath's is rounded to a subnormal.
_LEAST_NORMAL = 2.3e-308

# Boxes that branch and bound looks at, at most.
MOST_BOXES = 2000

# Attributes up to which SHGO searches: its complex has 2^d corners.
MOST_FOR_SHGO = 4

# Evenly spread points among which local ascent chooses its starts, and how many it chooses.
STARTS = 256
_ASCENTS = 3

# Relative distance between the proven bound and the attained value that ends the proof.
TOLERANCE = 1e-9

# A box by its sides, each a lower and an upper end.
Box = tuple[tuple[float, float], ...]


class Tape:
    """Smooth expressions (`smooth_form`) over `symbols`, compiled for evaluation on boxes."""

    def __init__(self, expressions: Sequence[sympy.Expr], symbols: Sequence[sympy.Symbol]) -> None:
        # What is done in turn: each step reads the values at its positions and appends one.
        self._steps: list[tuple[Callable[..., Interval], tuple[int, ...]]] = []
        # The position of each subexpression's value: the symbols first, then one a step.
        self._positions: dict[sympy.Basic, int] = {s: i for i, s in enumerate(symbols)}
        self._inputs = len(symbols)
        self._results = [self._compile(expression) for expression in expressions]

    def __call__(self, box: Sequence[Interval]) -> list[Interval]:
        """Return the expressions' enclosures over `box`, one interval a symbol."""
        values = list(box)
        for operation, positions in self._steps:
            arguments = [values[position] for position in positions]
            values.append(operation(*arguments))
        return [values[position] for position in self._results]

    def _compile(self, node: sympy.Basic) -> int:
        """Return the position of a node's value; equal subexpressions share one step."""
        if node not in self._positions:
            operation, arguments = _find_operation(node)
            argument_positions = tuple(self._compile(argument) for argument in arguments)
            self._positions[node] = self._inputs + len(self._steps)
            self._steps.append((operation, argument_positions))
        return self._positions[node]


def make_interval(lower: float, upper: float) -> Interval:
    """Return the interval between two floats, both included."""
    return iv.mpf([lower, upper])


def round_ends(interval: Interval) -> Bounds:
    """Return the ends of an interval as floats, rounded outward; (-inf, inf) where it has none."""
    lower = float(interval.a)
    upper = float(interval.b)
    # Negated, so that an end that is no number bounds nothing.
    if not lower <= upper:
        return Bounds(-math.inf, math.inf)
    # mpmath's exponents reach further down than a float's, so that the conversion has rounded.
    if abs(lower) < _LEAST_NORMAL and interval.a != 0:
        lower = math.nextafter(lower, -math.inf)
    if abs(upper) < _LEAST_NORMAL and interval.b != 0:
        upper = math.nextafter(upper, math.inf)
    return Bounds(lower, upper)


def _find_operation(node: sympy.Basic) -> tuple[Callable[..., Interval], tuple[sympy.Basic, ...]]:
    """Return the operation of `node` on intervals, and the nodes that are its arguments."""
    if isinstance(node, sympy.Rational):
        # Two whole numbers are exact; their quotient is enclosed once, when it is compiled.
        ratio = iv.mpf(int(node.p)) / iv.mpf(int(node.q))
        return (lambda: ratio), ()
    if node is sympy.pi or node is sympy.E:
        constant = iv.pi if node is sympy.pi else iv.e
        return (lambda: constant), ()
    if isinstance(node, sympy.Add):
        return (lambda *terms: reduce(operator.add, terms)), node.args
    if isinstance(node, sympy.Mul):
        return (lambda *factors: reduce(operator.mul, factors)), node.args
    if not isinstance(node, sympy.Pow):
        return _ELEMENTARY[node.func], node.args
    base, exponent = node.args
    # One power, not a product: x·x would take its two factors for independent.
    if isinstance(exponent, sympy.Integer):
        power = int(exponent)
        return (lambda x: x**power), (base,)
    # Roots by themselves: by exp and log they would have no bounds from 0 on.
    if exponent == sympy.Rational(1, 2):
        return _sqrt, (base,)
    if exponent == sympy.Rational(-1, 2):
        return (lambda x: 1 / _sqrt(x)), (base,)
    # Its base is proven positive before (`smooth_form`).
    return (lambda x, y: iv.exp(y * _log(x))), (base, exponent)


def _positive_part(x: Interval) -> Interval:
    """Cut `x` to [0, ∞): arguments of log and roots are proven positive before (`smooth`)."""
    if x.a >= 0:
        return x
    return iv.mpf([0, x.b if x.b > 0 else 0])


def _log(x: Interval) -> Interval:
    positive = _positive_part(x)
    return iv.log(positive) if positive.b > 0 else iv.mpf(["-inf", "inf"])


def _sqrt(x: Interval) -> Interval:
    return iv.sqrt(_positive_part(x))


def _enclose_increasing(f: Callable[[Interval], Interval]) -> Callable[[Interval], Interval]:
    """Return the enclosure of an increasing function from its values at the two ends."""

    def enclose(x: Interval) -> Interval:
        # Each end's value is an enclosure itself, of which the outer end counts.
        lower = f(x.a).a
        upper = f(x.b).b
        return iv.mpf([lower, upper])

    return enclose


def _enclose_by_numbers(f: Callable[[Any], Any]) -> Callable[[Interval], Interval]:
    """Return the enclosure of an increasing function that mpmath has for numbers alone."""

    # Evaluated at the ends with 100 bits and widened by 2⁻⁵⁰, which is 2⁵⁰ times the last digit.
    def enclose(x: Interval) -> Interval:
        with mpmath.workprec(100):
            low, high = (f(mpmath.mp.make_mpf(end)) for end in x._mpi_)
            return iv.mpf([low - abs(low) * _SLACK, high + abs(high) * _SLACK])

    return enclose


def _asin(x: Interval) -> Interval:
    """Enclose the arcsine of the part of `x` that lies in [-1, 1]."""
    lower = x.a if x.a > -1 else -1
    upper = x.b if x.b < 1 else 1
    return _asin_of_unit(iv.mpf([lower, upper]))


# Relative widening of a value that is computed with 100 bits.
_SLACK = mpmath.ldexp(1, -50)

_asin_of_unit = _enclose_by_numbers(mpmath.asin)
_sinh = _enclose_increasing(lambda x: (iv.exp(x) - iv.exp(-x)) / 2)
_cosh_of_positive = _enclose_increasing(lambda x: (iv.exp(x) + iv.exp(-x)) / 2)
_tanh = _enclose_increasing(lambda x: 1 - 2 / (iv.exp(2 * x) + 1))

_ELEMENTARY: dict[object, Callable[[Interval], Interval]] = {
    sympy.exp: iv.exp,
    sympy.log: _log,
    sympy.sin: iv.sin,
    sympy.cos: iv.cos,
    sympy.tan: lambda x: iv.sin(x) / iv.cos(x),
    sympy.sinh: _sinh,
    sympy.cosh: lambda x: _cosh_of_positive(abs(x)),
    sympy.tanh: _tanh,
    sympy.atan: _enclose_by_numbers(mpmath.atan),
    sympy.erf: _enclose_by_numbers(mpmath.erf),
    sympy.asin: _asin,
    sympy.acos: lambda x: iv.pi / 2 - _asin(x),
}


@dataclass(frozen=True, slots=True)
class Maximum:
    """The largest value of a function over the declared ranges.

    Attributes:
        bounds: `lower` is attained (up to its last digits) at `location`; `upper` is the number to
            calibrate noise with, or inf where no proof was possible.
        location: Attribute → value.
        certified: Whether `upper` is proven.
        reason: Why `upper` is not proven, or how the proof ended.

    Guarantee:
        Where `certified`, the function is nowhere above `upper`, which is rounded up.

    Example:
        >>> from apiece.sensitivity import Expression
        >>> largest = Expression("a**2", {"a": (0, 3)}).global_sensitivity()
        >>> largest.location, largest.certified, round(largest.bounds.upper, 6)
        ({'a': 3.0}, True, 9.0)
    """

    bounds: Bounds
    location: dict[str, float]
    certified: bool
    reason: str

    @property
    def value(self) -> float:
        """The value attained at `location`."""
        return float(self.bounds.lower)


class Objective:
    """A function with its gradient, on intervals.

    combine: makes the value and the partial derivatives of the enclosures of the expressions.
    """

    def __init__(
        self,
        expressions: Sequence[sympy.Expr],
        symbols: Sequence[sympy.Symbol],
        combine: Callable[[list[Interval]], tuple[Interval, list[Interval]]],
    ) -> None:
        self._tape = Tape(expressions, symbols)
        self._combine = combine

    def enclose(self, box: Box) -> tuple[Interval, list[Interval]]:
        """Return enclosures of the value and of each partial derivative over `box`."""
        return self._combine(self._tape([make_interval(*side) for side in box]))

    def bound_range(self, box: Box) -> tuple[Bounds, list[Interval]]:
        """Return bounds on the value over `box`, and enclosures of the partial derivatives."""
        # The better of the plain enclosure and the mean value form f(m) + Σ ∂ⱼf(box)·(xⱼ − mⱼ),
        # which is quadratically close as the box shrinks.
        value, slopes = self.enclose(box)
        middle = _find_middle(box)
        # The value at a point is an interval too, by rounding alone.
        centred, _ = self.enclose(tuple((m, m) for m in middle))
        for slope, side, m in zip(slopes, box, middle, strict=True):
            centred = centred + slope * (make_interval(*side) - make_interval(m, m))
        plain = round_ends(value)
        tight = round_ends(centred)
        lower = max(plain.lower, tight.lower)
        upper = min(plain.upper, tight.upper)
        return Bounds(lower, upper), slopes


def make_value_objective(
    value: sympy.Expr, gradient: Sequence[sympy.Expr], symbols: Sequence[sympy.Symbol], sign: int
) -> Objective:
    """Return ±f with its gradient; the sign makes a minimum a maximum."""

    def combine(results: list[Interval]) -> tuple[Interval, list[Interval]]:
        # The tape's results, in the order in which the expressions were given.
        f, *slopes = results
        return sign * f, [sign * slope for slope in slopes]

    return Objective([value, *gradient], symbols, combine)


def make_norm_objective(
    gradient: Sequence[sympy.Expr],
    hessian: Sequence[Sequence[sympy.Expr]],
    symbols: Sequence[sympy.Symbol],
) -> Objective:
    """Return ‖∇f‖² with its gradient 2H∇f; smooth where the norm itself has a kink."""
    d = len(gradient)

    def combine(results: list[Interval]) -> tuple[Interval, list[Interval]]:
        g = results[:d]
        square = sum((x**2 for x in g[1:]), start=g[0] ** 2)
        slopes = []
        # Results are the gradient's d entries, then the Hessian's rows.
        for start in range(d, d + d * d, d):
            row = results[start : start + d]
            slopes.append(2 * reduce(operator.add, map(operator.mul, row, g)))
        return square, slopes

    return Objective([*gradient, *itertools.chain(*hessian)], symbols, combine)


def maximise(
    objective: Objective, compiled: Callable[[Floats], float], names: Sequence[str], box: Box
) -> Maximum:
    """Return the maximum over `box` of the function that both arguments compute."""
    # Boxes are cut until their bounds meet the best value attained, which is one of an evaluation
    # on intervals. Where the bound is infinite after `MOST_BOXES` boxes, nothing is certified.
    best = -math.inf
    location = _search(compiled, box)

    def attain(point: tuple[float, ...]) -> None:
        """Take a point as the location of the maximum, if its value is the best so far."""
        nonlocal best, location
        value, _ = objective.enclose(tuple((x, x) for x in point))
        lower = round_ends(value).lower
        if lower > best:
            best = lower
            location = point

    def bound(part: Box) -> tuple[float, Box]:
        """Return minus a bound over a box, and the face of it that holds the box's maximum."""
        _, slopes = objective.enclose(part)
        face = tuple(map(_shrink_side, slopes, part))
        # What is attained only has to be attained somewhere: the middle of the face will do.
        attain(_find_middle(face))
        return -objective.bound_range(face)[0].upper, face

    attain(location)
    # A heap: the box with the largest bound comes first, and its bound holds for all pending ones.
    pending = [bound(box)]
    uncut = -math.inf  # the largest bound over boxes that are too small to be cut
    boxes = 1
    # Until the largest bound of all boxes meets what is attained.
    while pending and boxes < MOST_BOXES and -pending[0][0] > best + TOLERANCE * abs(best):
        negative, largest = heapq.heappop(pending)
        parts = cut_in_half(largest, box)
        if not parts:
            # Too small to be cut, its bound stays what it is.
            uncut = max(uncut, -negative)
        for part in parts:
            heapq.heappush(pending, bound(part))
        boxes += len(parts)
    # Where the search has ended early, the boxes left pending bound the maximum as well.
    upper = max(best, uncut, -pending[0][0] if pending else -math.inf)
    certified = math.isfinite(upper)
    reason = f"interval branch and bound, {boxes} boxes"
    if not certified:
        reason = f"not certified: the enclosure is unbounded after {boxes} boxes"
        upper = math.inf
    return Maximum(Bounds(best, upper), dict(zip(names, location, strict=True)), certified, reason)


def _shrink_side(slope: Interval, side: tuple[float, float]) -> tuple[float, float]:
    """Return the end of a side where a monotone function is largest; else the side."""
    low, high = side
    bounds = round_ends(slope)
    if bounds.lower >= 0:
        return high, high
    if bounds.upper <= 0:
        return low, low
    return low, high


def _search(compiled: Callable[[Floats], float], box: Box) -> tuple[float, ...]:
    """Return the best point found, which proves nothing."""
    # By SHGO; above `MOST_FOR_SHGO` attributes by local ascent from the best of evenly spread
    # starts.
    from scipy.optimize import minimize, shgo

    def negative(x: Floats) -> float:
        value = compiled(np.asarray(x, dtype=np.float64))
        if not math.isfinite(value):
            raise RangeError(
                "query: a value or a squared derivative past the floating point range; scale f or "
                "its ranges down"
            )
        return -value

    sides: Any = list(box)
    middle = np.array(_find_middle(box))
    if len(box) <= MOST_FOR_SHGO:
        # By a triangulation of the box, in which nothing is left to chance.
        optimum: Any = shgo(negative, sides, n=64, sampling_method="simplicial")
        best = middle if optimum.x is None else optimum.x
    else:
        starts = sorted(spread_points(np.array(box), STARTS), key=negative)[:_ASCENTS]
        optima = [minimize(negative, start, bounds=sides, method="L-BFGS-B").x for start in starts]
        best = min([middle, *starts, *optima], key=negative)
    # An optimizer may end outside the box by rounding.
    return tuple(min(max(float(x), low), high) for x, (low, high) in zip(best, box, strict=True))


def spread_points(sides: Floats, count: int) -> Floats:
    """Return `count` points spread evenly over a box, (count, d); sides: (d, 2)."""
    # A Kronecker sequence on the powers of 1/r, where r^{d+1} = r + 1 (r by fixed-point iteration).
    d = len(sides)
    root = 1.5
    for _ in range(64):
        root = (1 + root) ** (1 / (d + 1))
    steps = root ** -np.arange(1.0, d + 1)
    unit = (0.5 + np.outer(np.arange(1, count + 1), steps)) % 1.0
    low, high = sides.T
    points: Floats = np.clip(low + unit * (high - low), low, high)
    return points


def _find_middle(box: Box) -> tuple[float, ...]:
    return tuple(low + (high - low) / 2 for low, high in box)


def cut_in_half(part: Box, box: Box) -> list[Box]:
    """Cut a part of a box across its side that is widest relative to the box's.

    Empty where no float lies between the ends of that side.
    """

    def relative_width(j: int) -> float:
        low, high = part[j]
        box_low, box_high = box[j]
        return (high - low) / (box_high - box_low)

    widest = max(range(len(part)), key=relative_width)
    low, high = part[widest]
    middle = low + (high - low) / 2
    # Neighbouring floats have no middle.
    if not low < middle < high:
        return []
    lower_half = list(part)
    lower_half[widest] = (low, middle)
    upper_half = list(part)
    upper_half[widest] = (middle, high)
    return [tuple(lower_half), tuple(upper_half)]
