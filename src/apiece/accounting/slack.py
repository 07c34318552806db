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
from apiece.accounting.exact import pure
from apiece.errors import InputError, RangeError
from apiece.mechanisms import (
    Allocated,
    Composed,
    Gaussian,
    Laplace,
    Mechanism,
    MixtureOfGaussians,
    Repeated,
    Sampled,
    flatten,
)
from apiece.numerics.gaussian import gaussian_delta
from apiece.numerics.normal import log_tail, place_of_tail, tail
from apiece.numerics.roots import bisect, geometric
from apiece.numerics.rounding import UNIT

_FINITE: Final = "give finite numbers from 0 on"
_CLOSE: Final = 2e-4  # relative: how much larger chords may make μ than the values at their ends
_FIRST: Final = 24  # values of δ that are looked at first, evenly spread in ε
_ROUNDS, _PARTS = 8, np.array([1, 2]) / 3  # of cutting up intervals that decide
_HALVINGS: Final = 28  # of a bracket of log μ, to a relative 2e-7
_LEAST, _MOST = 1e-12, 1e8  # a smaller μ is reported as the one, a larger one as ∞
_ROUNDING: Final = 2.0**-48  # relative: of tails, exponentials and a few sums of them
_LOOKS: Final = 500  # values of δ from which a regret is bounded
_MOST_KINDS: Final = 16  # kinds of steps that are looked at one by one


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
        >>> from apiece.accounting import gaussian_of_pure
        >>> round(float(gaussian_of_pure(1.0)), 4)
        1.232
    """
    eps = _check.nonnegative_array("epsilon", epsilon, remedy=_FINITE)
    return _of_tail(eps, -np.logaddexp(0.0, eps))


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
        >>> from apiece.accounting import gaussian_of_laplace, gaussian_of_pure
        >>> round(float(gaussian_of_laplace(1.0)), 4) < round(float(gaussian_of_pure(1.0)), 4)
        True
    """
    eps = _check.nonnegative_array("epsilon", epsilon, remedy=_FINITE)
    return _of_tail(eps, -eps / 2 - math.log(2))


def _of_tail(epsilon: Floats, log_mass: Floats) -> Floats:
    """Return μ with Φ(−μ/2) at most such a tail, rounded up; 0 where ε is."""
    with np.errstate(all="ignore"):
        # The quantile is good to a few units only: it is widened until it is seen to be past.
        mass = log_mass * (1 + 8 * UNIT) - 8 * UNIT
        half = place_of_tail(mass)
        for _ in range(4):
            late = log_tail(half) > mass - 16 * UNIT * np.abs(mass)
            half = np.where(late, half * (1 + 2.0**-44) + 2.0**-50, half)
    return np.asarray(np.where(epsilon == 0, 0.0, 2 * half * (1 + 4 * UNIT)))


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
        >>> from apiece.accounting import gaussian_of_bounded_range, gaussian_of_pure
        >>> bool(gaussian_of_bounded_range(2.0) == gaussian_of_pure(1.0))
        True
    """
    return gaussian_of_pure(_check.nonnegative_array("eta", eta, remedy=_FINITE) / 2)


def gaussian_with_slack(curve: PrivacyCurve, slack: npt.ArrayLike) -> Bounds:
    """Return the least μ with δ(ε) ≤ s + (1−s)·G(ε) for all ε ≥ 0, s the slack, G μ's profile."""
    asked = np.asarray(slack, dtype=np.float64)
    if not ((asked >= 0) & (asked < 1)).all():
        raise InputError(f"slack = {slack!r}: must be in [0, 1)")
    slacks, place = np.unique(asked.ravel(), return_inverse=True)
    lower, upper = _searched(curve, slacks)
    if curve.mechanism is not None:
        upper = np.minimum(upper, _without_slack(curve.mechanism))
    lower = np.minimum(lower, upper)
    if asked.ndim == 0:
        return Bounds(float(lower[0]), float(upper[0]))
    return Bounds(*(end[place].reshape(asked.shape) for end in (lower, upper)))


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
    epsilon = np.linspace(0.0, far, _LOOKS)
    above = slack + (1 - slack) * np.asarray(gaussian_delta(max(mu, _LEAST), epsilon).upper)
    below = np.append(np.asarray(curve.delta(epsilon).lower)[1:], 0.0)
    with np.errstate(over="ignore"):
        gaps = (above - below) / (1 + np.exp(epsilon))
    return GaussianSummary(mu, float(slack), float(max(gaps.max(), 0.0) * (1 + 1e-9)))


class _Looks(NamedTuple):
    """Bounds on δ at ascending ε, the first of which is 0."""

    epsilon: Floats
    lower: Floats
    upper: Floats

    def and_at(self, curve: PrivacyCurve, epsilon: Floats) -> _Looks:
        """Return these and what the curve says at other ε."""
        told = curve.delta(epsilon)
        added = (epsilon, np.asarray(told.lower), np.asarray(told.upper))
        columns = list(map(np.concatenate, zip(self, added, strict=True)))
        order = np.argsort(columns[0], kind="stable")
        at, lower, upper = (column[order] for column in columns)
        return _Looks(at, lower, np.minimum.accumulate(upper))  # profiles fall


def _searched(curve: PrivacyCurve, slacks: Floats) -> Bounds:
    """Return bounds on μ for ascending slacks, from the profile."""
    ends = _ends(curve, slacks)
    known = np.isfinite(ends)
    if not known.any():
        return Bounds(np.zeros(slacks.shape), np.full(slacks.shape, np.inf))
    # From its end on δ is at most the slack, by the question that was asked there.
    looks = _Looks(ends[known], np.zeros(known.sum()), slacks[known])
    looks = looks.and_at(curve, np.linspace(0.0, ends[known].max(), _FIRST)[:-1])
    mu = np.full(slacks.shape, np.inf)
    for _ in range(_ROUNDS):
        mu[known] = _least(slacks[known], looks)
        deciding = _deciding(mu[known], slacks[known], looks)
        if not deciding.any():
            break
        deciding[1:] |= deciding[:-1]
        deciding[:-1] |= deciding[1:]  # the next to decide is one beside
        left, width = looks.epsilon[:-1][deciding], np.diff(looks.epsilon)[deciding]
        looks = looks.and_at(curve, (left + width * _PARTS[:, None]).ravel())
    return Bounds(_too_little(slacks, looks), mu)


def _ends(curve: PrivacyCurve, slacks: Floats) -> Floats:
    """Return for each slack an ε from which on δ is at most that; ∞ where none is known."""
    ends = np.full(slacks.shape, np.inf)
    some = slacks > 0
    if not some.all() and curve.mechanism is not None:
        bounded = pure(flatten(curve.mechanism))
        ends[~some] = math.inf if bounded is None else bounded.most
    try:
        ends[some] = curve.epsilon(slacks[some]).upper
    except RangeError:
        if len(slacks) > 1:
            return np.concatenate([_ends(curve, each) for each in np.array_split(slacks, 2)])
    return ends


def _least(slacks: Floats, looks: _Looks) -> Floats:
    """Return the least μ found, for each slack, that is safe in every interval; ∞ where none is."""

    def safe(mu: Floats) -> Mask:
        return np.asarray(_between(mu, slacks, looks).all(axis=1))

    most = np.full(slacks.shape, _MOST)
    least, _ = bisect(safe, most, _LEAST, rounds=_HALVINGS, middle=geometric)
    return np.where(safe(least), least, np.inf)


def _between(mu: Floats, slack: Floats, looks: _Looks) -> Mask:
    """Return in which intervals δ is surely at most s + (1−s)·G: (slacks, intervals)."""
    # In t = e^ε the chord of δ and the line s + (1−s)·(Φ(μ−c) − t·Φ(−c)) are both straight, so the
    # line is above the chord between two nodes if it is at both.
    (left, right), (high, low) = (
        (column[:-1], column[1:]) for column in (looks.epsilon, looks.upper)
    )
    mu, slack = mu[:, None], slack[:, None]
    with np.errstate(all="ignore"):
        # The test whose line is parallel to the chord, if it touches G inside the interval.
        width = np.log(-np.expm1(left - right)) + right  # of the interval, as log(t' − t)
        slope = np.log(high - low) - width - np.log1p(-slack)
        parallel = place_of_tail(np.minimum(slope, -1e-300))
        cut = np.clip(parallel, left / mu + mu / 2, right / mu + mu / 2)
        told, log_other = tail(cut - mu), log_tail(cut)
        good = np.ones(cut.shape, dtype=bool)
        for epsilon, delta in ((left, high), (right, low)):
            other = np.exp(epsilon + log_other)
            # what rounding of each tail's argument and exponent can move the line by, relative
            wrong = told * (1 + (mu - cut) ** 2) + other * (1 + epsilon + np.abs(log_other))
            line = slack + (1 - slack) * (told - other) - _ROUNDING * (slack + wrong)
            good &= delta * (1 + _ROUNDING) <= line
    return np.asarray(good | (high <= slack))


def _deciding(mu: Floats, slack: Floats, looks: _Looks) -> Mask:
    """Return the intervals whose chords, and not the values at their ends, make some μ larger."""
    less = np.minimum(mu, _MOST) * (1 - _CLOSE)
    allowed = slack[:, None] + (1 - slack[:, None]) * np.asarray(
        gaussian_delta(less[:, None], looks.epsilon).lower
    )
    open_ = np.isfinite(mu) & (mu > 2 * _LEAST) & (looks.upper <= allowed).all(axis=1)
    return np.asarray((~_between(less, slack, looks) & open_[:, None]).any(axis=0))


def _too_little(slacks: Floats, looks: _Looks) -> Floats:
    """Return the largest μ found, for each slack, with which some look is surely above."""

    def possible(mu: Floats) -> Mask:
        above = np.asarray(gaussian_delta(mu[:, None], looks.epsilon).upper)
        most = slacks[:, None] + (1 - slacks[:, None]) * above
        return np.asarray((looks.lower <= most * (1 + _ROUNDING)).all(axis=1))

    start = np.full(slacks.shape, _MOST)
    _, largest = bisect(possible, start, _LEAST, rounds=_HALVINGS, middle=geometric)
    return np.where(possible(np.full(slacks.shape, _LEAST)), 0.0, largest)


def _without_slack(mechanism: Mechanism) -> float:
    """Return a μ that is safe without any slack, from its steps; ∞ where none is known."""
    # A coin only takes away, and Gaussians of μ and μ' compose to one of √(μ² + μ'²).
    total, steps = 0.0, flatten(mechanism)
    for step, times in steps:
        inner = step.mechanism if isinstance(step, Sampled) else step
        if isinstance(inner, Gaussian):
            each = 1 / inner.noise_multiplier
        elif isinstance(inner, Laplace):
            each = float(gaussian_of_laplace(1 / inner.noise_multiplier))
        elif isinstance(inner, Allocated):
            # Its ratio is a mean of those of plain Gaussians: it contracts them.
            each = 1 / inner.noise_multiplier
        elif isinstance(inner, MixtureOfGaussians):
            # From the largest shift each smaller one is made by scaling and adding noise, and from
            # no shift none; so is their mixture, by drawing one.
            each = inner.shifts[-1] / inner.noise_multiplier
        elif (bounded := pure(((step, 1),))) is not None:
            each = float(gaussian_of_pure(bounded.most))
            if len(steps) <= _MOST_KINDS and (times, len(steps)) != (1, 1):
                each = min(each, float(_searched(privacy_curve(step), np.zeros(1)).upper[0]))
        elif inner is not step or isinstance(inner, Repeated | Composed):
            each = _without_slack(inner)
        else:
            return math.inf
        total += times * each * each
    return math.sqrt(total) * (1 + (8 + 2 * len(steps)) * UNIT)
