"""The maximum of a smooth expression over a box: found by SHGO, bounded by interval arithmetic.

SHGO (simplicial homology global optimisation) finds a good point; it proves nothing. The upper end
comes from branch and bound on intervals that mpmath rounds outward: boxes are cut until their
enclosures meet the best value seen, and shrink to a face where the function is monotone.
"""

import heapq
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


_LEAST_NORMAL = 2.3e-308


class Tape:
    """Smooth expressions (`smooth_form`) over `symbols`, compiled for evaluation on boxes."""

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


def _rule(node: sympy.Basic) -> tuple[Callable[..., Interval], tuple[sympy.Basic, ...]]:
    """Return the operation of `node` on intervals, and the nodes that it takes."""
    if isinstance(node, sympy.Rational):
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
    if isinstance(exponent, sympy.Integer):
        whole = int(exponent)
        return (lambda x: x**whole), (base,)
    if exponent == sympy.Rational(1, 2):
        return _sqrt, (base,)
    if exponent == sympy.Rational(-1, 2):
        return (lambda x: 1 / _sqrt(x)), (base,)
    return (lambda x, y: iv.exp(y * _log(x))), (base, exponent)


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
    """Return the enclosure of an increasing function that mpmath has for numbers alone."""

    # Evaluated at the ends with 100 bits and widened by 2⁻⁵⁰, which is 2⁵⁰ times the last digit.
    def enclose(x: Interval) -> Interval:
        with mpmath.workprec(100):
            low, high = (f(mpmath.mp.make_mpf(end)) for end in x._mpi_)
            return iv.mpf([low - abs(low) * _SLACK, high + abs(high) * _SLACK])

    return enclose


def _asin(x: Interval) -> Interval:
    """Enclose the arcsine of what of `x` lies in [-1, 1]."""
    return _asin_of_unit(iv.mpf([x.a if x.a > -1 else -1, x.b if x.b < 1 else 1]))


_SLACK = mpmath.ldexp(1, -50)
_asin_of_unit = _beyond_intervals(mpmath.asin)
_sinh = _increasing(lambda x: (iv.exp(x) - iv.exp(-x)) / 2)
_cosh_of_positive = _increasing(lambda x: (iv.exp(x) + iv.exp(-x)) / 2)
_tanh = _increasing(lambda x: 1 - 2 / (iv.exp(2 * x) + 1))

_ELEMENTARY: dict[object, Callable[[Interval], Interval]] = {
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
    sympy.asin: _asin,
    sympy.acos: lambda x: iv.pi / 2 - _asin(x),
}


Box = tuple[tuple[float, float], ...]
MOST_BOXES = 2000
MOST_FOR_SHGO = 4
STARTS = 256
TOLERANCE = 1e-9


@dataclass(frozen=True, slots=True)
class Maximum:
    """The largest value of a function over the declared ranges.

    Attributes:
        bounds: `lower` is attained (up to its last digits) at `location`; `upper` is the number to
            calibrate noise with, or inf where no proof was possible.
        location: Attribute → value.
        certified: Whether `upper` is proven.
        reason: Why it is not, or how the proof ended.

    Guarantee:
        Where `certified`, the function is nowhere above `upper`, which is rounded up.

    Example:
        >>> from apiece.sensitivity import Query
        >>> largest = Query("a**2", {"a": (0, 3)}).global_sensitivity()
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
    """A function with its gradient, on intervals: what `combine` makes of a tape's results."""

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
        return self._combine(self._tape([interval(*side) for side in box]))

    def range_over(self, box: Box) -> tuple[Bounds, list[Interval]]:
        """Return bounds on the value over `box`, and enclosures of the partial derivatives."""
        # The better of the plain enclosure and the mean value form f(m) + Σ ∂ⱼf(box)·(xⱼ − mⱼ),
        # which is quadratically close as the box shrinks.
        value, slopes = self.enclose(box)
        centre = _middle(box)
        centred, _ = self.enclose(tuple((m, m) for m in centre))
        for slope, side, m in zip(slopes, box, centre, strict=True):
            centred = centred + slope * (interval(*side) - interval(m, m))
        plain, tight = ends(value), ends(centred)
        return Bounds(max(plain.lower, tight.lower), min(plain.upper, tight.upper)), slopes


def value_objective(
    value: sympy.Expr, gradient: Sequence[sympy.Expr], symbols: Sequence[sympy.Symbol], sign: int
) -> Objective:
    """Return ±f with its gradient; the sign makes a minimum a maximum."""
    return Objective(
        [value, *gradient], symbols, lambda r: (sign * r[0], [sign * g for g in r[1:]])
    )


def norm_objective(
    gradient: Sequence[sympy.Expr],
    hessian: Sequence[Sequence[sympy.Expr]],
    symbols: Sequence[sympy.Symbol],
) -> Objective:
    """Return ‖∇f‖² with its gradient 2H∇f; smooth where the norm itself has a kink."""
    d = len(gradient)

    def combine(results: list[Interval]) -> tuple[Interval, list[Interval]]:
        g, h = results[:d], results[d:]
        square = sum((x**2 for x in g[1:]), start=g[0] ** 2)
        rows = [h[i * d : (i + 1) * d] for i in range(d)]
        products = [list(map(operator.mul, row, g)) for row in rows]
        return square, [2 * reduce(operator.add, each) for each in products]

    return Objective([*gradient, *(e for row in hessian for e in row)], symbols, combine)


def maximise(
    objective: Objective, compiled: Callable[[Floats], float], names: Sequence[str], box: Box
) -> Maximum:
    """Return the maximum over `box` of the function that both arguments compute."""
    # Boxes are cut until their bounds meet the best value attained, which is one of an evaluation
    # on intervals. Where the bound is infinite after `MOST_BOXES` boxes, nothing is certified.
    best, point = -math.inf, _search(compiled, box)

    def attain(at: tuple[float, ...]) -> None:
        nonlocal best, point
        lower = ends(objective.enclose(tuple((x, x) for x in at))[0]).lower
        if lower > best:
            best, point = lower, at

    def bound(part: Box) -> tuple[float, Box]:
        """Return minus a bound over a box, and the face of it that holds the box's maximum."""
        slopes = map(ends, objective.enclose(part)[1])
        face = tuple(
            (high, high) if slope.lower >= 0 else (low, low) if slope.upper <= 0 else (low, high)
            for slope, (low, high) in zip(slopes, part, strict=True)
        )
        attain(_middle(face))
        return -objective.range_over(face)[0].upper, face

    attain(point)
    pending, closed, used = [bound(box)], -math.inf, 1  # closed: of boxes that cannot be cut
    while pending and used < MOST_BOXES and -pending[0][0] > best + TOLERANCE * abs(best):
        negative, widest = heapq.heappop(pending)
        parts = halves(widest, box)
        if not parts:
            closed = max(closed, -negative)
        for part in parts:
            heapq.heappush(pending, bound(part))
        used += len(parts)
    upper = max(best, closed, -pending[0][0] if pending else -math.inf)
    certified = math.isfinite(upper)
    reason = f"interval branch and bound, {used} boxes"
    if not certified:
        reason, upper = f"not certified: the enclosure is unbounded after {used} boxes", math.inf
    location = dict(zip(names, point, strict=True))
    return Maximum(Bounds(best, upper), location, certified, reason)


def _search(compiled: Callable[[Floats], float], box: Box) -> tuple[float, ...]:
    """Return the best point found, which proves nothing."""
    # By SHGO; above `MOST_FOR_SHGO` attributes, because its complex has 2^d corners, by local
    # ascent from the best of evenly spread starts.
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
    middle = np.array(_middle(box))
    if len(box) <= MOST_FOR_SHGO:
        optimum: Any = shgo(negative, sides, n=64, sampling_method="simplicial")
        best = middle if optimum.x is None else optimum.x
    else:
        starts = sorted(spread(np.array(box), STARTS), key=negative)[:3]
        ends = [minimize(negative, start, bounds=sides, method="L-BFGS-B").x for start in starts]
        best = min([middle, *starts, *ends], key=negative)
    return tuple(min(max(float(x), low), high) for x, (low, high) in zip(best, box, strict=True))


def spread(ends: Floats, count: int) -> Floats:
    """Return `count` points spread evenly over a box, (count, d); ends: (d, 2)."""
    # A Kronecker sequence on the powers of 1/r, where r^{d+1} = r + 1.
    d = len(ends)
    root = 1.5
    for _ in range(64):
        root = (1 + root) ** (1 / (d + 1))
    unit = (0.5 + np.outer(np.arange(1, count + 1), root ** -np.arange(1.0, d + 1))) % 1.0
    low, high = ends.T
    points: Floats = np.clip(low + unit * (high - low), low, high)
    return points


def _middle(box: Box) -> tuple[float, ...]:
    return tuple(low + (high - low) / 2 for low, high in box)


def halves(box: Box, whole: Box) -> list[Box]:
    """Cut a box across the side that is widest relative to `whole`; empty where none can be."""
    widest = max(
        range(len(box)), key=lambda j: (box[j][1] - box[j][0]) / (whole[j][1] - whole[j][0])
    )
    low, high = box[widest]
    middle = low + (high - low) / 2
    if not low < middle < high:
        return []
    left, right = list(box), list(box)
    left[widest], right[widest] = (low, middle), (middle, high)
    return [tuple(left), tuple(right)]
