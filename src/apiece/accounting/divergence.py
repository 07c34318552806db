"""Δ-divergence: how much more vulnerable than a baseline a record can be, over all attackers."""

import math
from collections.abc import Sequence
from functools import cached_property
from typing import NamedTuple

import numpy as np

from apiece import _check
from apiece._types import Bounds, Floats, Mask
from apiece.accounting.bounds import cut_pieces
from apiece.accounting.curve import PrivacyCurve, deltas
from apiece.mechanisms import Composed, Gaussian, Laplace, Mechanism, Repeated, Sampled
from apiece.mechanisms.algebra import flatten, flatten_below
from apiece.numerics.roots import Places
from apiece.numerics.rounding import UNIT

# Rounding of differences of numbers of at most 1.
_PAD = 1e-14
# ε at which both curves are looked at first.
_START = np.concatenate(([-1e-3, 0.0], np.geomspace(1e-3, 40.0, 24)))
# Rounds of looks into intervals that are undecided, and parts that each is split into.
_ROUNDS = 5
_PARTS = 4
# What may be left open of Δ: relative, absolute, and as a share of what is negligible.
_RELATIVE = 1e-4
_ABSOLUTE = 1e-8
_NEGLIGIBLE_SHARE = 1 / 200
# Δ is known to this at best; larger ε are not looked at.
_NEGLIGIBLE = 1e-8


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
    negligible = _check.positive("negligible", negligible)
    return excesses([baseline], [curve], negligible=[negligible])[0]


def excesses(
    baselines: Sequence[PrivacyCurve],
    curves: Sequence[PrivacyCurve],
    *,
    negligible: Sequence[float] | None = None,
) -> list[Excess]:
    """Return `excess` of each curve from its own baseline; quicker than one after another."""
    if negligible is None:
        negligible = [_NEGLIGIBLE] * len(curves)
    pairs = [_Pair(*settings) for settings in zip(baselines, curves, negligible, strict=True)]
    # Between two nodes, δ̃ lies below its chord, and δ above the chords of the intervals on either
    # side, extended; nodes are added where that leaves the maximum open.
    unequal = [pair for pair in pairs if not pair.alike]
    for piece in cut_pieces(_START):
        open_pairs = [pair for pair in unequal if pair.goes_on]
        _evaluate_pairs(open_pairs, [_START[piece]] * len(open_pairs))
    for _ in range(_ROUNDS):
        open_pairs = [pair for pair in unequal if pair.open_intervals.any()]
        _evaluate_pairs(open_pairs, [pair.inner_nodes() for pair in open_pairs])
    return [pair.excess() for pair in pairs]


class _Pair:
    """A curve and its baseline where they were evaluated: `ours` and `theirs`, at ascending ε."""

    def __init__(self, baseline: PrivacyCurve, curve: PrivacyCurve, negligible: float) -> None:
        self.baseline = baseline
        self.curve = curve
        self._negligible = negligible
        # Whether larger ε can matter.
        self.goes_on = True
        self._forward_limit = _bound_by_parameters(curve, baseline)
        self._backward_limit = _bound_by_parameters(baseline, curve)
        # Whether their parameters alone say all that is wanted, as where they differ by rounding.
        self.alike = max(self._forward_limit, self._backward_limit) <= negligible
        none = np.zeros(0)
        self._nodes = none
        self._ours = Bounds(none, none)
        self._theirs = Bounds(none, none)

    def learn(self, added: Floats, ours: Bounds, theirs: Bounds) -> None:
        """Add both curves' bounds at some more ε."""
        index = np.searchsorted(self._nodes, added)
        self._nodes = np.insert(self._nodes, index, added)
        self._ours = _insert_bounds(self._ours, index, ours)
        self._theirs = _insert_bounds(self._theirs, index, theirs)
        # Beyond the last node Δ is at most the larger δ there over 1 + e^ε.
        farthest = float(self._nodes[-1])
        negligible_delta = self._negligible * (1 + math.exp(farthest))
        our_delta = self._ours.upper[-1]
        their_delta = self._theirs.upper[-1]
        largest = max(our_delta, their_delta)
        self.goes_on = not largest <= negligible_delta
        # Bounds from fewer nodes are out of date.
        self.__dict__.pop("_gaps", None)

    @cached_property
    def _gaps(self) -> list[tuple[Bounds, Mask]]:
        """Bounds on Δ forward and backward, and the intervals that leave each open."""
        tolerance = max(_ABSOLUTE, self._negligible * _NEGLIGIBLE_SHARE)
        forward = _largest_gap(self._nodes, self._ours, self._theirs, tolerance)
        backward = _largest_gap(self._nodes, self._theirs, self._ours, tolerance)
        return [forward, backward]

    @property
    def open_intervals(self) -> Mask:
        """The intervals to be looked into."""
        (_, forward), (_, backward) = self._gaps
        return forward | backward

    def inner_nodes(self) -> Floats:
        """Return new nodes inside the open intervals, which start at the second node."""
        is_open = self.open_intervals
        start = self._nodes[1:-1][is_open]
        end = self._nodes[2:][is_open]
        shares = np.arange(1, _PARTS) / _PARTS
        offsets = (end - start)[:, None] * shares
        return np.unique(start[:, None] + offsets)

    def excess(self) -> Excess:
        """Return the bounds on Δ that the evaluated nodes give."""
        if self.alike:
            forward = Bounds(0.0, self._forward_limit)
            backward = Bounds(0.0, self._backward_limit)
        else:
            (forward, _), (backward, _) = self._gaps
            # What follows from parameters alone holds beside what the nodes show.
            forward = Bounds(*(min(end, self._forward_limit) for end in forward))
            backward = Bounds(*(min(end, self._backward_limit) for end in backward))
        lower = max(forward.lower, backward.lower)
        upper = max(forward.upper, backward.upper)
        return Excess(forward, backward, Bounds(lower, upper))


def _insert_bounds(bounds: Bounds, index: Places, added: Bounds) -> Bounds:
    """Return bounds with others inserted before the entries of `index`."""
    lower = np.insert(bounds.lower, index, added.lower)
    return Bounds(lower, np.insert(bounds.upper, index, added.upper))


def _evaluate_pairs(pairs: Sequence[_Pair], nodes: Sequence[Floats]) -> None:
    """Evaluate both curves of each pair at nodes of its own, all together."""
    curves = [curve for pair in pairs for curve in (pair.curve, pair.baseline)]
    bounds = deltas(curves, [added for added in nodes for _ in range(2)])
    for pair, added, ours, theirs in zip(pairs, nodes, bounds[::2], bounds[1::2], strict=True):
        pair.learn(added, ours, theirs)


def _bound_by_parameters(curve: PrivacyCurve, baseline: PrivacyCurve) -> float:
    """Bound Δ(baseline ‖ curve) for two mechanisms of one shape by how far their parameters are."""
    # With Q the same in both and P moved by τ in total variation, δ̃(ε) − δ(ε) is at most τ in one
    # direction and e^ε·τ in the other, so Δ ≤ τ. Parameters that reveal less cost nothing. So Δ
    # is next to nothing where two plans differ by the rounding of a division.
    if curve.mechanism is None or baseline.mechanism is None:
        return math.inf
    if curve.mechanism == baseline.mechanism:
        return 0.0
    # Each rounded so that the bound is an upper one.
    steps = flatten(curve.mechanism)
    baseline_steps = flatten_below(baseline.mechanism)
    if not steps:
        return 0.0
    if len(steps) != len(baseline_steps):
        return math.inf
    literal = _is_literal(curve.mechanism) and _is_literal(baseline.mechanism)
    rounding = 0.0 if literal else _MERGED
    variations = []
    for (step, times), (baseline_step, baseline_times) in zip(steps, baseline_steps, strict=True):
        # More steps than the baseline's cannot be paired with them.
        if times > baseline_times:
            return math.inf
        variations.append(times * _bound_variation(step, baseline_step, rounding))
    return math.fsum(variations) * (1 + _SUMS)


# What the noise multipliers of two merged Gaussians may be off, relative.
_MERGED = 32 * UNIT
# Relative rounding of sums and products of a few positive numbers.
_SUMS = 2.0**-40


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


def _bound_variation(step: Mechanism, baseline: Mechanism, rounding: float) -> float:
    """Bound the total variation by which P of `step` lies beyond P of `baseline`, Q being equal.

    `rounding` is relative, of the noise multipliers of Gaussians.
    """
    match step, baseline:
        case Gaussian(z), Gaussian(y):
            # The normal density is below 0.4. The difference of nearly equal numbers is exact.
            return max((y - z) / z / y + rounding / z, 0.0) * 0.4
        case Laplace(z), Laplace(y):
            return max((y - z) / z / y, 0.0) * (0.5 * (1 + _SUMS))
        case Sampled(inner, q), Sampled(within, r):
            return max(q - r, 0.0) + r * _bound_variation(inner, within, rounding)
        case Repeated(inner, times), Repeated(within, other_times) if times <= other_times:
            return times * _bound_variation(inner, within, rounding)
        case Composed(parts), Composed(other_parts) if len(parts) == len(other_parts):
            pairs = zip(parts, other_parts, strict=True)
            return sum(_bound_variation(*pair, rounding) for pair in pairs)
    return 0.0 if step == baseline else math.inf


def _largest_gap(
    nodes: Floats, top: Bounds, bottom: Bounds, tolerance: float
) -> tuple[Bounds, Mask]:
    """Bound max over ε ≥ 0 of (top − bottom)/(1 + e^ε); mark what leaves over `tolerance` open."""
    # 1 + e^ε as 2 + x, x = e^ε − 1, in which differences of near nodes keep their digits.
    weight = 2 + np.expm1(nodes)
    # The first node is below 0, for the slopes alone.
    sure_gaps = ((top.lower - bottom.upper) / weight)[1:]
    smallest = max(0.0, float(sure_gaps.max()) - _PAD)
    ceilings = _bound_intervals(np.expm1(nodes), top.upper, bottom)
    # Beyond the last node the difference is at most the upper curve, which falls.
    tail = float(top.upper[-1] / weight[-1])
    largest = min(1.0, max(smallest, float(ceilings.max()), tail) + _PAD)
    # No node brings the bound below what the curves' own uncertainty leaves at the nodes.
    possible_gaps = ((top.upper - bottom.lower) / weight)[1:]
    reach = max(smallest, float(possible_gaps.max()))
    width = nodes[2:] - nodes[1:-1]
    # Below this width rounding of e^ε − 1 in the slopes would outgrow what a split can gain.
    undecided = (ceilings > reach + (_RELATIVE * largest + tolerance)) & (width > 1e-9)
    return Bounds(smallest, largest), undecided


def _bound_intervals(x: Floats, top: Floats, bottom: Bounds) -> Floats:
    """Return, for each interval from x[1:-1] to x[2:], a bound on (top − bottom)/(2 + x) on it."""
    # Both functions are convex and decreasing in x = e^ε − 1. On an interval the numerator is a
    # chord minus the larger of two lines; divided by 2 + x each part is monotone, so the largest
    # value is at an end or where the lines cross.
    start = x[1:-1]
    end = x[2:]
    width = end - start
    # `bottom` is at least `start_low` and `end_low` at the two ends.
    low = bottom.lower
    high = bottom.upper
    start_low = low[1:-1]
    end_low = low[2:]
    # The line through the node before and the start, steepest case. A convex function lies above
    # its chord's extension.
    previous_width = start - x[:-2]
    start_slope = (start_low - high[:-2]) / previous_width
    # The line through the end and the node after it, flattest case; 0 past the last.
    following_width = x[3:] - end[:-1]
    following_fall = high[3:] - end_low[:-1]
    following_slope = np.append(following_fall / following_width, 0.0)
    end_slope = np.minimum(following_slope, 0.0)
    # Where the lines cross, counted from the start; parallel ones cross nowhere.
    with np.errstate(divide="ignore", invalid="ignore"):
        height = end_low - end_slope * width - start_low
        crossing = height / (start_slope - end_slope)
    crossing = np.where(np.isfinite(crossing), np.clip(crossing, 0.0, width), 0.0)
    start_top = top[1:-1]
    top_slope = (top[2:] - start_top) / width
    # The gap at the start, where the lines cross and at the end.
    best = np.full(start.size, -np.inf)
    for offset in (np.zeros(start.size), crossing, width):
        start_line = start_low + start_slope * offset
        end_line = end_low - end_slope * (width - offset)
        floor = np.maximum(np.maximum(start_line, end_line), 0.0)
        numerator = start_top + top_slope * offset - floor
        gap = numerator / (2 + start + offset)
        best = np.maximum(best, gap)
    return best
