"""Δ-divergence: how much more vulnerable than a baseline a record can be, over all attackers."""

import math
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import NamedTuple

import numpy as np

from apiece import _check
from apiece._types import Bounds, Floats, Mask
from apiece.accounting.bounds import pieces
from apiece.accounting.curve import PrivacyCurve, deltas
from apiece.mechanisms import Composed, Gaussian, Laplace, Mechanism, Repeated, Sampled, flatten
from apiece.mechanisms.algebra import flatten_below
from apiece.numerics.rounding import UNIT

_PAD = 1e-14  # rounding of differences of numbers of at most 1
_START = np.concatenate(([-1e-3, 0.0], np.geomspace(1e-3, 40.0, 24)))
_ROUNDS, _SPLIT, _RELATIVE, _ABSOLUTE = 5, 4, 1e-4, 1e-8
_SMALL = 1 / 200  # of what is negligible, that may be left open
_NEGLIGIBLE = 1e-8  # Δ is known to this at best; larger ε are not looked at


class Excess(NamedTuple):
    """Bounds on the Δ-divergence of one record's curve from its baseline, each in [0, 1].

    Attributes:
        forward: Δ(baseline ‖ curve): how much more vulnerable than promised.
        backward: Δ(curve ‖ baseline): how much less vulnerable.
        symmetric: The larger of the two.

    References:
        Kaiser et al. 2026, Def. 7.

    Example:
        >>> from apiece import Gaussian, excess
        >>> from apiece.accounting import privacy_curve
        >>> promised = privacy_curve(Gaussian(2.0))
        >>> excess(promised, promised).forward.upper
        0.0
    """

    forward: Bounds
    backward: Bounds
    symmetric: Bounds


def excess(
    baseline: PrivacyCurve, curve: PrivacyCurve, *, negligible: float = _NEGLIGIBLE
) -> Excess:
    """Return how far `curve` is from `baseline`, the curve that the record was promised.

    forward = Δ(M ‖ M̃) = inf{κ ≥ 0: f(α + κ) − κ ≤ f̃(α) for all α}, with f the trade-off function
    of the baseline M and f̃ that of the record's own mechanism M̃: the most by which the Bayes
    success of any attacker, at the worst prior, exceeds what the baseline allows. It is the largest
    (δ̃(ε) − δ(ε))/(1 + e^ε) over ε ≥ 0. backward exchanges the two.

    Args:
        baseline: What was promised.
        curve: What the record gets.
        negligible: A Δ that does not matter: ε beyond which Δ stays below it are not evaluated,
            but bounded. Positive.

    Raises:
        InputError: For another `negligible`.
        RangeError: Where a curve is past the numerical range.

    Guarantee:
        The bounds hold over every ε, not only over those evaluated. `upper` is exactly 0 where both
        mechanisms have one shape and `curve` has no less noise, no higher rate and no more steps.
        Of curves without lower bounds ("rdp") it is valid and far from tight.

    References:
        Kaiser et al. 2026, Def. 7; Kaissis et al. 2024. The identity follows from the support
        functions of the two curves.

    Example:
        >>> from apiece import excess
        >>> from apiece.accounting import privacy_curve
        >>> from apiece.mechanisms import Gaussian
        >>> promised, own = (privacy_curve(Gaussian(z), method="gdp") for z in (2.0, 1.0))
        >>> worse = excess(promised, own)
        >>> round(worse.forward.upper, 4), round(worse.backward.upper, 4)
        (0.0928, 0.0)
    """
    least = _check.positive("negligible", negligible)
    return excesses([baseline], [curve], negligible=[least])[0]


def excesses(
    baselines: Sequence[PrivacyCurve],
    curves: Sequence[PrivacyCurve],
    *,
    negligible: Sequence[float] | None = None,
) -> list[Excess]:
    """Return `excess` of each curve from its own baseline; quicker than one after another."""
    least = [_NEGLIGIBLE] * len(curves) if negligible is None else negligible
    pairs = [_Pair(*each) for each in zip(baselines, curves, least, strict=True)]
    # Between two nodes, δ̃ lies below its chord, and δ above the chords of the intervals on either
    # side, extended; nodes are added where that leaves the maximum open.
    apart = [pair for pair in pairs if not pair.alike]
    for some in pieces(_START):
        _look([pair for pair in apart if pair.more], lambda _: _START[some])  # noqa: B023
    for _ in range(_ROUNDS):
        _look([pair for pair in apart if pair.undecided.any()], _Pair.inside)
    return [pair.excess() for pair in pairs]


class _Pair:
    """A curve and its baseline where they were evaluated: `ours` and `theirs`, at ascending ε."""

    def __init__(self, baseline: PrivacyCurve, curve: PrivacyCurve, negligible: float) -> None:
        self.baseline, self.curve, self._negligible = baseline, curve, negligible
        self.more = True  # whether larger ε can matter
        self._near = _nearby(curve, baseline)
        self._far = _nearby(baseline, curve)
        # Whether their parameters alone say all that is wanted, as where they differ by rounding.
        self.alike = max(self._near, self._far) <= negligible
        none = np.zeros(0)
        self._nodes, self._ours, self._theirs = none, Bounds(none, none), Bounds(none, none)

    def learn(self, added: Floats, ours: Bounds, theirs: Bounds) -> None:
        """Take in what both are at some more ε."""
        places = np.searchsorted(self._nodes, added)
        self._nodes = np.insert(self._nodes, places, added)
        self._ours, self._theirs = (
            Bounds(*(np.insert(old, places, new) for old, new in zip(b, c, strict=True)))
            for b, c in ((self._ours, ours), (self._theirs, theirs))
        )
        most = self._negligible * (1 + math.exp(float(self._nodes[-1])))
        self.more = not max(self._ours.upper[-1], self._theirs.upper[-1]) <= most
        self.__dict__.pop("_gaps", None)

    @cached_property
    def _gaps(self) -> list[tuple[Bounds, Mask]]:
        """Bounds on Δ forward and backward, and the intervals that leave each open."""
        nodes, ours, theirs = self._nodes, self._ours, self._theirs
        left = max(_ABSOLUTE, self._negligible * _SMALL)
        return [_largest_gap(nodes, ours, theirs, left), _largest_gap(nodes, theirs, ours, left)]

    @property
    def undecided(self) -> Mask:
        """The intervals to be looked into."""
        (_, forward), (_, backward) = self._gaps
        return forward | backward

    def inside(self) -> Floats:
        """Return new nodes inside these intervals, which start at the second node."""
        left, right = (ends[self.undecided] for ends in (self._nodes[1:-1], self._nodes[2:]))
        shares = np.arange(1, _SPLIT) / _SPLIT
        return np.unique(left[:, None] + (right - left)[:, None] * shares)

    def excess(self) -> Excess:
        """Return what is known."""
        if self.alike:
            forward, backward = Bounds(0.0, self._near), Bounds(0.0, self._far)
        else:
            (forward, _), (backward, _) = self._gaps
            forward = Bounds(*(min(end, self._near) for end in forward))
            backward = Bounds(*(min(end, self._far) for end in backward))
        symmetric = Bounds(max(forward.lower, backward.lower), max(forward.upper, backward.upper))
        return Excess(forward, backward, symmetric)


def _look(pairs: Sequence[_Pair], at: Callable[[_Pair], Floats]) -> None:
    """Evaluate both curves of each pair, all together."""
    nodes = [at(pair) for pair in pairs]
    curves = [each for pair in pairs for each in (pair.curve, pair.baseline)]
    told = deltas(curves, [each for each in nodes for _ in range(2)])
    for pair, added, ours, theirs in zip(pairs, nodes, told[::2], told[1::2], strict=True):
        pair.learn(added, ours, theirs)


def _nearby(curve: PrivacyCurve, than: PrivacyCurve) -> float:
    """Bound Δ(than ‖ curve) for two mechanisms of one shape by how far their parameters are."""
    # With Q the same in both and P moved by τ in total variation, δ̃(ε) − δ(ε) is at most τ in one
    # direction and e^ε·τ in the other, so Δ ≤ τ. Parameters that reveal less cost nothing. So Δ
    # is next to nothing where two plans differ by the rounding of a division.
    if curve.mechanism is None or than.mechanism is None:
        return math.inf
    if curve.mechanism == than.mechanism:
        return 0.0
    left, right = flatten(curve.mechanism), flatten_below(than.mechanism)
    if not left:
        return 0.0
    if len(left) != len(right):
        return math.inf
    literal = _is_literal(curve.mechanism) and _is_literal(than.mechanism)
    rounding = 0.0 if literal else _MERGED
    moved = [
        times * _moved(step, other, rounding) if times <= most else math.inf
        for (step, times), (other, most) in zip(left, right, strict=True)
    ]
    return math.fsum(moved) * (1 + _SUMS)


_MERGED = 32 * UNIT  # relative: what the noise multipliers of two merged Gaussians may be off
_SUMS = 2.0**-40  # relative: of sums and products of a few positive numbers


def _is_literal(mechanism: Mechanism) -> bool:
    """Return whether noise multipliers stand in a mechanism's normal form as they are given."""
    match mechanism:
        case Composed():
            return False
        case Repeated(inner, times):
            return (times == 1 or not isinstance(inner, Gaussian | Repeated)) and _is_literal(inner)
        case Sampled(inner, _):
            return _is_literal(inner)
    return True


def _moved(step: Mechanism, other: Mechanism, rounding: float) -> float:
    """Bound the total variation by which P of `step` lies beyond P of `other`, Q being equal."""
    # rounding: relative, of the noise multipliers of Gaussians.
    match step, other:
        case Gaussian(z), Gaussian(y):
            # The normal density is below 0.4. The difference of nearly equal numbers is exact.
            return max((y - z) / z / y + rounding / z, 0.0) * 0.4
        case Laplace(z), Laplace(y):
            return max((y - z) / z / y, 0.0) * (0.5 * (1 + _SUMS))
        case Sampled(inner, q), Sampled(within, r):
            return max(q - r, 0.0) + r * _moved(inner, within, rounding)
        case Repeated(inner, times), Repeated(within, most) if times <= most:
            return times * _moved(inner, within, rounding)
        case Composed(parts), Composed(others) if len(parts) == len(others):
            return sum(_moved(*pair, rounding) for pair in zip(parts, others, strict=True))
    return 0.0 if step == other else math.inf


def _largest_gap(nodes: Floats, top: Bounds, bottom: Bounds, left: float) -> tuple[Bounds, Mask]:
    """Bound max over ε ≥ 0 of (top − bottom)/(1 + e^ε); mark what leaves over `left` open."""
    weight = 2 + np.expm1(nodes)
    least = max(0.0, float(((top.lower - bottom.upper) / weight)[1:].max()) - _PAD)
    ceilings = _ceilings(np.expm1(nodes), top.upper, bottom)
    tail = float(top.upper[-1] / weight[-1])
    most = min(1.0, max(least, float(ceilings.max()), tail) + _PAD)
    # No node brings the bound below what the curves' own uncertainty leaves at the nodes.
    reach = max(least, float(((top.upper - bottom.lower) / weight)[1:].max()))
    tolerance = _RELATIVE * most + left
    width = nodes[2:] - nodes[1:-1]
    # Below this width rounding of e^ε − 1 in the slopes would outgrow what a split can gain.
    undecided = (ceilings > reach + tolerance) & (width > 1e-9)
    return Bounds(least, most), undecided


def _ceilings(x: Floats, top: Floats, bottom: Bounds) -> Floats:
    """Return, for each interval from x[1:-1] to x[2:], a bound on (top − bottom)/(2 + x) on it."""
    # Both functions are convex and decreasing in x = e^ε − 1. On an interval the numerator is a
    # chord minus the larger of two lines; divided by 2 + x each part is monotone, so the largest
    # value is at an end or where the lines cross.
    left, right = x[1:-1], x[2:]
    width = right - left
    low, high = bottom.lower, bottom.upper
    # The line through the last two nodes, steepest case, from the left end.
    slope_left = (low[1:-1] - high[:-2]) / (left - x[:-2])
    # The line through the next two nodes, flattest case, from the right end; 0 past the last.
    ahead = np.append((high[3:] - low[2:-1]) / (x[3:] - x[2:-1]), 0.0)
    slope_right = np.minimum(ahead, 0.0)
    at_left, at_right = low[1:-1], low[2:]
    with np.errstate(divide="ignore", invalid="ignore"):
        crossing = (at_right - slope_right * width - at_left) / (slope_left - slope_right)
    crossing = np.where(np.isfinite(crossing), np.clip(crossing, 0.0, width), 0.0)
    rise = (top[2:] - top[1:-1]) / width
    best = np.full(left.size, -np.inf)
    for place in (np.zeros(left.size), crossing, width):
        floor = np.maximum(at_left + slope_left * place, at_right - slope_right * (width - place))
        value = (top[1:-1] + rise * place - np.maximum(floor, 0.0)) / (2 + left + place)
        best = np.maximum(best, value)
    return best
