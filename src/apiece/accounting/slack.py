"""The Gaussian, with a slack, that stands for a mechanism in an account: the least μ that is safe.

A mechanism of profile δ(ε) costs (μ², s) where δ(ε) ≤ s + (1−s)·G(ε) for all ε ≥ 0, with G the
profile of N(0, 1) against N(μ, 1). docs/mathematics.md, section 11, has why such costs add up
whatever is chosen next.

In t = e^ε both sides are convex and fall, so finitely many values of δ decide for all: between two
of them δ lies below their chord, and G lies above the line Φ(μ−c) − t·Φ(−c) of each test "x > c".
For every interval one test is found whose line is above the chord at both ends, and so between.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from apiece import _check
from apiece._types import Bounds, Floats, Mask
from apiece.accounting.choose import privacy_curve
from apiece.accounting.curve import PrivacyCurve
from apiece.accounting.exact import build_pure_profile
from apiece.errors import InputError, RangeError
from apiece.mechanisms import Allocated, Composed, Gaussian, Laplace, Mechanism, Repeated, Sampled
from apiece.mechanisms.algebra import flatten
from apiece.mechanisms.mixture import MixtureOfGaussians
from apiece.numerics.gaussian import gaussian_delta
from apiece.numerics.normal import invert_log_tail, log_tail, tail
from apiece.numerics.roots import bisect, geometric
from apiece.numerics.rounding import UNIT

_FINITE: Final = "give finite numbers from 0 on"
# How much larger, relative, chords may make μ than the values at their ends.
_CLOSE: Final = 2e-4
# Values of δ that are looked at first, evenly spread in ε.
_FIRST: Final = 24
# Rounds of cutting up intervals that decide, and where they are cut.
_ROUNDS: Final = 8
_CUTS: Final = np.array([1, 2]) / 3
# Halvings of a bracket of log μ, to a relative 2e-7.
_HALVINGS: Final = 28
# A smaller μ is reported as the one, a larger one as ∞.
_LEAST: Final = 1e-12
_MOST: Final = 1e8
# Relative rounding of tails, exponentials and a few sums of them.
_ROUNDING: Final = 2.0**-48
# Values of δ from which a regret is bounded.
_REGRET_LOOKS: Final = 500
# Kinds of steps that are looked at one by one, at most.
_MOST_KINDS: Final = 16


def gaussian_of_pure(epsilon: npt.ArrayLike) -> Floats:
    """Return the μ of the Gaussian that stands for any ε-differentially private mechanism.

    μ = −2·Φ⁻¹(1/(1 + e^ε)), which is that of randomized response, the worst of them. No slack.

    Args:
        epsilon: In [0, ∞); arrays are taken entry by entry.

    Raises:
        InputError: For other values.

    Guarantee:
        Rounded up.

    References:
        Dong, Roth, Su 2022, section 2; the proof is in docs/mathematics.md, section 11.

    Example:
        >>> from apiece.accounting.slack import gaussian_of_pure
        >>> round(float(gaussian_of_pure(1.0)), 4)
        1.232
    """
    eps = _check.nonnegative_array("epsilon", epsilon, remedy=_FINITE)
    return _mu_of_tail(eps, -np.logaddexp(0.0, eps))


def gaussian_of_laplace(epsilon: npt.ArrayLike) -> Floats:
    """Return the μ of the Gaussian that stands for Laplace noise on what may change by ε scales.

    μ = −2·Φ⁻¹(e^(−ε/2)/2), the least there is. On several sums ε is the ℓ1 norm of what may change,
    in units of the scale.

    Args:
        epsilon: In [0, ∞); arrays are taken entry by entry.

    Raises:
        InputError: For other values.

    Guarantee:
        Rounded up.

    References:
        The proof is in docs/mathematics.md, section 11.

    Example:
        >>> from apiece.accounting.slack import gaussian_of_laplace, gaussian_of_pure
        >>> round(float(gaussian_of_laplace(1.0)), 4) < round(float(gaussian_of_pure(1.0)), 4)
        True
    """
    eps = _check.nonnegative_array("epsilon", epsilon, remedy=_FINITE)
    return _mu_of_tail(eps, -eps / 2 - math.log(2))


def _mu_of_tail(epsilon: Floats, log_mass: Floats) -> Floats:
    """Return μ with Φ(−μ/2) at most such a tail, rounded up; 0 where ε is."""
    with np.errstate(all="ignore"):
        # The quantile is good to a few units only: it is widened until it is seen to be past.
        mass = log_mass * (1 + 8 * UNIT) - 8 * UNIT
        half = invert_log_tail(mass)
        surely_below = mass - 16 * UNIT * np.abs(mass)
        for _ in range(4):
            late = log_tail(half) > surely_below
            wider = half * (1 + 2.0**-44) + 2.0**-50
            half = np.where(late, wider, half)
    mu = 2 * half * (1 + 4 * UNIT)
    return np.asarray(np.where(epsilon == 0, 0.0, mu))


def gaussian_of_bounded_range(eta: npt.ArrayLike) -> Floats:
    """Return the μ of the Gaussian that stands for any mechanism of bounded range η, no slack.

    Its losses lie in some interval of length η, and it costs what a pure η/2 costs. The exponential
    mechanism with scores of sensitivity Δ and weights e^(ε·score/2Δ) has range η = ε, and η = ε/2
    where all scores move in one direction.

    Args:
        eta: In [0, ∞); arrays are taken entry by entry.

    Raises:
        InputError: For other values.

    Guarantee:
        Rounded up.

    References:
        Dong, Durfee, Rogers 2020; the proof is in docs/mathematics.md, section 11.

    Example:
        >>> from apiece.accounting.slack import gaussian_of_bounded_range, gaussian_of_pure
        >>> bool(gaussian_of_bounded_range(2.0) == gaussian_of_pure(1.0))
        True
    """
    return gaussian_of_pure(_check.nonnegative_array("eta", eta, remedy=_FINITE) / 2)


def gaussian_with_slack(curve: PrivacyCurve, slack: npt.ArrayLike) -> Bounds:
    """Return the least μ with δ(ε) ≤ s + (1−s)·G(ε) for all ε ≥ 0, s the slack, G μ's profile."""
    array = np.asarray(slack, dtype=np.float64)
    if not ((array >= 0) & (array < 1)).all():
        raise InputError(f"slack = {slack!r}: must be in [0, 1)")
    slacks, member = np.unique(array.ravel(), return_inverse=True)
    lower, upper = _search_mu(curve, slacks)
    if curve.mechanism is not None:
        upper = np.minimum(upper, _bound_without_slack(curve.mechanism))
    lower = np.minimum(lower, upper)
    if array.ndim == 0:
        return Bounds(float(lower[0]), float(upper[0]))
    lower = lower[member].reshape(array.shape)
    upper = upper[member].reshape(array.shape)
    return Bounds(lower, upper)


@dataclass(frozen=True, slots=True)
class GaussianSummary:
    """The Gaussian that stands for a mechanism, its slack, and how closely it does."""

    mu: float
    slack: float
    regret: float


def gaussian_summary(curve: PrivacyCurve, slack: float) -> GaussianSummary:
    """Return the Gaussian with a slack that stands for a mechanism, and its regret."""
    # The regret is the Δ-divergence of the mechanism from what it is said to be: the largest (s +
    # (1−s)·G(ε) − δ(ε))/(1 + e^ε) over ε ≥ 0.
    mu = float(gaussian_with_slack(curve, slack).upper)
    if not mu < math.inf:
        raise RangeError(f"slack = {slack:g}: no Gaussian stands for this; give a larger slack")
    # Both fall, so that between two ε the difference is at most that of the outer values.
    far = 2 * mu * (mu + 5)
    epsilon = np.linspace(0.0, far, _REGRET_LOOKS)
    gaussian_upper = np.asarray(gaussian_delta(max(mu, _LEAST), epsilon).upper)
    above = slack + (1 - slack) * gaussian_upper
    curve_lower = np.asarray(curve.delta(epsilon).lower)
    # The last value stands for all larger ε, where δ is at least 0.
    below = np.append(curve_lower[1:], 0.0)
    with np.errstate(over="ignore"):
        gaps = (above - below) / (1 + np.exp(epsilon))
    regret = float(max(gaps.max(), 0.0) * (1 + 1e-9))
    return GaussianSummary(mu, float(slack), regret)


class _Looks(NamedTuple):
    """Bounds on δ at ascending ε, the first of which is 0."""

    epsilon: Floats
    lower: Floats
    upper: Floats

    def extend(self, curve: PrivacyCurve, epsilon: Floats) -> _Looks:
        """Return these and what the curve says at other ε."""
        bounds = curve.delta(epsilon)
        nodes = np.concatenate([self.epsilon, epsilon])
        lower = np.concatenate([self.lower, np.asarray(bounds.lower)])
        upper = np.concatenate([self.upper, np.asarray(bounds.upper)])
        order = np.argsort(nodes, kind="stable")
        # Profiles fall: an upper bound holds at every larger ε.
        falling = np.minimum.accumulate(upper[order])
        return _Looks(nodes[order], lower[order], falling)


def _search_mu(curve: PrivacyCurve, slacks: Floats) -> Bounds:
    """Return bounds on μ for ascending slacks, from the profile."""
    ends = _find_ends(curve, slacks)
    known = np.isfinite(ends)
    if not known.any():
        return Bounds(np.zeros(slacks.shape), np.full(slacks.shape, np.inf))
    # From its end on δ is at most the slack, by the question that was asked there.
    looks = _Looks(ends[known], np.zeros(known.sum()), slacks[known])
    farthest = ends[known].max()
    looks = looks.extend(curve, np.linspace(0.0, farthest, _FIRST)[:-1])
    mu = np.full(slacks.shape, np.inf)
    for _ in range(_ROUNDS):
        mu[known] = _find_safe_mu(slacks[known], looks)
        deciding = _find_deciding(mu[known], slacks[known], looks)
        if not deciding.any():
            break
        # The next to decide is one beside.
        deciding[1:] |= deciding[:-1]
        deciding[:-1] |= deciding[1:]
        start = looks.epsilon[:-1][deciding]
        width = np.diff(looks.epsilon)[deciding]
        cuts = start + width * _CUTS[:, None]
        looks = looks.extend(curve, cuts.ravel())
    return Bounds(_find_unsafe_mu(slacks, looks), mu)


def _find_ends(curve: PrivacyCurve, slacks: Floats) -> Floats:
    """Return for each slack an ε from which on δ is at most that; ∞ where none is known."""
    ends = np.full(slacks.shape, np.inf)
    positive = slacks > 0
    if not positive.all() and curve.mechanism is not None:
        # Without slack there is an end only where losses are bounded: from the largest on δ is 0.
        bounded = build_pure_profile(flatten(curve.mechanism))
        ends[~positive] = math.inf if bounded is None else bounded.most
    try:
        ends[positive] = curve.epsilon(slacks[positive]).upper
    except RangeError:
        # One that has no answer spoils no other's: slacks are halved until it is alone.
        if len(slacks) > 1:
            halves = np.array_split(slacks, 2)
            return np.concatenate([_find_ends(curve, half) for half in halves])
    return ends


class _Chords(NamedTuple):
    """The chords of δ between neighbouring nodes, seen by each slack: what no μ changes.

    Attributes:
        looks: Nodes and bounds.
        slack: (slacks, 1) The slacks.
        parallel: (slacks, intervals) c of the test whose line is parallel to the chord.
    """

    looks: _Looks
    slack: Floats
    parallel: Floats

    @classmethod
    def between(cls, looks: _Looks, slacks: Floats) -> _Chords:
        """Return the chords of each interval, for each slack."""
        slack = slacks[:, None]
        start = looks.epsilon[:-1]
        end = looks.epsilon[1:]
        with np.errstate(all="ignore"):
            # The chord's width is e^end − e^start.
            log_width = np.log(-np.expm1(start - end)) + end
            log_fall = np.log(looks.upper[:-1] - looks.upper[1:])
            log_slope = log_fall - log_width - np.log1p(-slack)
            # In t the line falls by (1 − s)·Φ(−c), which is to be the chord's slope.
            parallel = invert_log_tail(np.minimum(log_slope, -1e-300))
        return cls(looks, slack, parallel)


def _find_safe_mu(slacks: Floats, looks: _Looks) -> Floats:
    """Return the least μ found, for each slack, that is safe in every interval; ∞ where none is."""
    chords = _Chords.between(looks, slacks)

    def is_safe(mu: Floats) -> Mask:
        return np.asarray(_holds_between(mu, chords).all(axis=1))

    largest = np.full(slacks.shape, _MOST)
    smallest, _ = bisect(is_safe, largest, _LEAST, rounds=_HALVINGS, middle=geometric)
    return np.where(is_safe(smallest), smallest, np.inf)


def _holds_between(mu: Floats, chords: _Chords) -> Mask:
    """Return a mask (slacks, intervals): where δ is surely at most s + (1−s)·G."""
    # In t = e^ε the chord of δ and the line s + (1−s)·(Φ(μ−c) − t·Φ(−c)) are both straight, so the
    # line is above the chord between two nodes if it is at both.
    looks = chords.looks
    slack = chords.slack
    start = looks.epsilon[:-1]
    end = looks.epsilon[1:]
    high = looks.upper[:-1]
    low = looks.upper[1:]
    mu = mu[:, None]
    with np.errstate(all="ignore"):
        # The test whose line is parallel to the chord, if it touches G inside the interval: G's
        # tangent at ε is the test with c = ε/μ + μ/2.
        lowest_cut = start / mu + mu / 2
        highest_cut = end / mu + mu / 2
        cut = np.clip(chords.parallel, lowest_cut, highest_cut)
        # The test's power, Φ(μ−c), and the log of its false positives, Φ(−c).
        power = tail(cut - mu)
        log_false = log_tail(cut)
        good = np.ones(cut.shape, dtype=bool)
        for epsilon, delta in ((start, high), (end, low)):
            scaled_false = np.exp(epsilon + log_false)
            # What rounding of each tail's argument and exponent can move the line by, relative.
            power_error = power * (1 + (mu - cut) ** 2)
            false_error = scaled_false * (1 + epsilon + np.abs(log_false))
            rounding = _ROUNDING * (slack + (power_error + false_error))
            line = slack + (1 - slack) * (power - scaled_false) - rounding
            good &= delta * (1 + _ROUNDING) <= line
    # Where δ is at most the slack at the left end, it is throughout the interval.
    return np.asarray(good | (high <= slack))


def _find_deciding(mu: Floats, slack: Floats, looks: _Looks) -> Mask:
    """Return the intervals whose chords, and not the values at their ends, make some μ larger."""
    # A slightly smaller μ: an interval that fails there, though no value at an end does, decides by
    # its chord.
    smaller = np.minimum(mu, _MOST) * (1 - _CLOSE)
    gaussian_lower = np.asarray(gaussian_delta(smaller[:, None], looks.epsilon).lower)
    slacks = slack[:, None]
    allowed = slacks + (1 - slacks) * gaussian_lower
    within = (looks.upper <= allowed).all(axis=1)
    unsettled = np.isfinite(mu) & (mu > 2 * _LEAST) & within
    fails = ~_holds_between(smaller, _Chords.between(looks, slack))
    return np.asarray((fails & unsettled[:, None]).any(axis=0))


def _find_unsafe_mu(slacks: Floats, looks: _Looks) -> Floats:
    """Return the largest μ found, for each slack, with which some look is surely above."""

    def is_possible(mu: Floats) -> Mask:
        gaussian_upper = np.asarray(gaussian_delta(mu[:, None], looks.epsilon).upper)
        slack = slacks[:, None]
        allowed = slack + (1 - slack) * gaussian_upper
        within = looks.lower <= allowed * (1 + _ROUNDING)
        return np.asarray(within.all(axis=1))

    start = np.full(slacks.shape, _MOST)
    _, largest = bisect(is_possible, start, _LEAST, rounds=_HALVINGS, middle=geometric)
    smallest = np.full(slacks.shape, _LEAST)
    return np.where(is_possible(smallest), 0.0, largest)


def _bound_without_slack(mechanism: Mechanism) -> float:
    """Return a μ that is safe without any slack, from its steps; ∞ where none is known."""
    # Gaussians of μ and μ' compose to one of √(μ² + μ'²).
    square = 0.0
    steps = flatten(mechanism)
    for step, times in steps:
        alone = len(steps) == 1 and times == 1
        search = len(steps) <= _MOST_KINDS and not alone
        mu = _bound_step_without_slack(step, search=search)
        if mu == math.inf:
            return math.inf
        square += times * mu * mu
    return math.sqrt(square) * (1 + (8 + 2 * len(steps)) * UNIT)


def _bound_step_without_slack(step: Mechanism, *, search: bool) -> float:
    """Return a μ that is safe for one step; ∞ where none is known.

    `search` says whether the step's profile is worth a look, where pure ε alone is known.
    """
    # A coin only takes away.
    inner = step.mechanism if isinstance(step, Sampled) else step
    if isinstance(inner, Gaussian):
        return 1 / inner.noise_multiplier
    if isinstance(inner, Laplace):
        return float(gaussian_of_laplace(1 / inner.scale))
    if isinstance(inner, Allocated):
        # Its ratio is a mean of those of plain Gaussians: it contracts them.
        return 1 / inner.noise_multiplier
    if isinstance(inner, MixtureOfGaussians):
        # From the largest shift each smaller one is made by scaling and adding noise, and from
        # no shift none; so is their mixture, by drawing one.
        return inner.shifts[-1] / inner.noise_multiplier
    bounded = build_pure_profile(((step, 1),))
    if bounded is not None:
        mu = float(gaussian_of_pure(bounded.most))
        if search:
            no_slack = np.zeros(1)
            by_profile = _search_mu(privacy_curve(step), no_slack)
            mu = min(mu, float(by_profile.upper[0]))
        return mu
    if inner is not step or isinstance(inner, Repeated | Composed):
        return _bound_without_slack(inner)
    return math.inf
