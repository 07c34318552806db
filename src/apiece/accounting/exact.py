"""Exact answers: formulas for one step and for plain Gaussians, sums over few atoms, pure ε.

A profile in closed form is inverted for ε(δ). Discrete mechanisms are enumerated, compositions and
coins before them too, as long as they have few distinct losses; beyond, the lattice takes them.
Where no loss is larger than some number, that is an upper bound on ε at every δ.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from functools import reduce
from typing import NamedTuple, TypeVar

import numpy as np

from apiece._types import Bounds, Floats
from apiece.accounting.bounds import (
    LARGEST_EPSILON,
    Evaluated,
    Inverted,
    Profile,
    Question,
    ask_evaluator,
    nothing_known,
)
from apiece.errors import UnsupportedError
from apiece.mechanisms import Gaussian, Laplace, Mechanism, Sampled
from apiece.mechanisms.algebra import NormalForm, atoms_of, flatten
from apiece.mechanisms.atoms import Atoms
from apiece.mechanisms.mixture import MixtureOfGaussians
from apiece.numerics.gaussian import gaussian_profile
from apiece.numerics.rounding import UNIT, after_coin

T = TypeVar("T")
# Relative error of a form, eight units in the last place: mills and exp are good to a few.
_ROUNDING = 2.0**-49
# What a few operations on an argument can move it, relative to its terms.
_ULPS = 2.0**-50
# Beyond it 1 is nothing beside (e^ε − 1)/q.
_FAR = 1e300
# Below it the exponential loses digits; an upper bound never goes under it.
_SMALLEST = 1e-300


def gaussian(noise_multiplier: float, epsilon: Floats) -> Bounds:
    """Return δ(ε) of N(1, z²) against N(0, z²) for any real ε, the same in both directions."""
    # Balle and Wang 2018, Theorem 8, with μ = 1/z.
    with np.errstate(over="ignore"):
        return gaussian_profile(0.5 / noise_multiplier, epsilon * noise_multiplier, epsilon)


def laplace(scale: float, epsilon: Floats) -> Bounds:
    """Return δ(ε) of Laplace(1, b) against Laplace(0, b), real ε, the same in both directions."""
    # δ is 1 − e^{(ε − 1/b)/2} where |ε| ≤ 1/b, 1 − e^ε below and 0 above: everywhere the largest
    # of all three. `error` bounds what rounding does to the exponent.
    end = 1 / scale
    error = _ULPS * (np.abs(epsilon) + end)
    exponent = np.minimum((epsilon - end) / 2, epsilon)
    lower = -np.expm1(np.minimum(exponent + error, 0.0))
    upper = -np.expm1(np.minimum(exponent - error, 0.0))
    past = epsilon > end * (1 + _ULPS)
    return _round_bounds(lower, np.where(past, 0.0, upper))


def sampled_remove(
    inner: Callable[[Floats], Bounds], probability: float, epsilon: Floats
) -> Bounds:
    """Return the remove direction, (1−q)Q + qP against Q, from the profile of P against Q."""
    # Where e^ε > 1 − q: δ_q(ε) = q·δ(log(1 + (e^ε − 1)/q)); 1 − e^ε below. See Theorem 2 of
    # Balle, Barthe, Gaboardi 2018. δ falls: its lower end is asked to the right of the argument.
    log_ratio, error = _before_coin(epsilon, probability)
    flat = log_ratio == -np.inf
    log_ratio = np.where(flat, 0.0, log_ratio)
    error = np.where(flat, 0.0, error)
    trivial = -np.expm1(np.minimum(epsilon, 0.0))
    lower = probability * inner(log_ratio + error).lower
    upper = probability * inner(log_ratio - error).upper
    return _round_bounds(np.where(flat, trivial, lower), np.where(flat, trivial, upper))


def sampled_add(inner: Callable[[Floats], Bounds], probability: float, epsilon: Floats) -> Bounds:
    """Return the add direction, Q against (1−q)Q + qP, from the profile of Q against P."""
    # With s = 1 − (1 − q)·e^ε: δ_q(ε) = s·δ(log(q·e^ε/s)) where s > 0, and 0 above.
    # Written as s = q − (1 − q)·(e^ε − 1), whose rounding is relative to its terms. The profile
    # grows with s and with a smaller argument: each end takes the worse end of both.
    log_q = math.log(probability)
    excess = (1 - probability) * np.expm1(np.minimum(epsilon, 700.0))
    start = log_q + epsilon

    def bound_end(end: int, sign: int) -> Floats:
        """Return the lower end (0, with −1) or the upper end (1, with 1)."""
        share = probability - excess + sign * _ULPS * (probability + np.abs(excess))
        none = share <= 0
        log_share = np.log(np.where(none, 1.0, share))
        # The argument's rounding is relative to its three terms.
        sizes = abs(log_q) + np.abs(epsilon) + np.abs(log_share)
        error = _ULPS * sizes
        argument = start - log_share - sign * error
        value = inner(np.where(none, 0.0, argument))[end]
        return np.where(none, 0.0, share * value)

    return _round_bounds(bound_end(0, -1), bound_end(1, 1))


def log_ratio(rho: float, probability: float) -> float:
    """Return log(1 − q + q·e^ρ), as `after_coin`, quickly for one number."""
    if probability == 1:
        return rho
    # Nearer to −1, where `log1p` loses digits, and past the range of e^ρ, with more care.
    if rho < 700:
        excess = probability * math.expm1(rho)
        if excess >= -0.5:
            return math.log1p(excess)
    return float(after_coin(rho, probability))


def _before_coin(epsilon: Floats, probability: float) -> tuple[Floats, Floats]:
    """Return log(1 + (e^ε − 1)/q), −∞ where there is none, and a bound on its error."""
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        excess = np.expm1(epsilon) / probability
        flat = excess <= -1
        far = excess > _FAR
        near_value = np.log1p(excess)
        # Where (e^ε − 1)/q is past the range: log(e^ε − 1) − log q = ε + log(1 − e^{−ε}) − log q.
        complement = -np.expm1(-np.abs(epsilon))
        log_rest = np.log(complement)
        minus_log_q = -math.log(probability)
        far_value = epsilon + log_rest + minus_log_q
        log_ratio = np.where(flat, -np.inf, np.where(far, far_value, near_value))
        # log1p(x) moves by x/(1 + x) times the relative error of x, a sum by those of its terms.
        far_sizes = np.abs(epsilon) + np.abs(log_rest) + abs(minus_log_q)
        sizes = np.where(far, far_sizes, np.abs(excess) / (1 + excess))
        return log_ratio, _ULPS * (sizes + np.abs(log_ratio))


def _round_bounds(lower: Floats, upper: Floats) -> Bounds:
    """Allow for the rounding of the last products."""
    low = np.maximum(lower * (1 - _ROUNDING) - _SMALLEST, 0.0)
    return Bounds(low, np.clip(upper * (1 + _ROUNDING), _SMALLEST, 1.0))


@dataclass(frozen=True)
class OneStep(Inverted):
    """The profile of one step behind a coin, from the closed form of the step."""

    noise_multiplier: float
    probability: float
    form: Callable[[float, Floats], Bounds] = gaussian

    def delta(self, epsilon: Floats) -> Bounds:
        """Bound the larger of both directions."""

        def inner(log_ratio: Floats) -> Bounds:
            return self.form(self.noise_multiplier, log_ratio)

        remove = sampled_remove(inner, self.probability, epsilon)
        add = sampled_add(inner, self.probability, epsilon)
        lower = np.maximum(remove.lower, add.lower)
        return Bounds(lower, np.maximum(remove.upper, add.upper))


@dataclass(frozen=True, eq=False)
class AmplifiedProfile:
    """An upper bound on the profile of a mechanism behind a coin, from its own; the lower is 0.

    Of its own profile only the larger of both directions is known, and is taken for both.
    """

    profile: Profile
    probability: float

    def delta(self, epsilon: Floats) -> Bounds:
        """Bound δ(ε), for ε ≥ 0."""

        def inner(log_ratio: Floats) -> Bounds:
            # A little below 0 at most, by rounding: there δ(−x) = 1 − e^{−x} + e^{−x}·δ(x).
            size = np.minimum(np.abs(log_ratio), LARGEST_EPSILON)
            upper = self._bound_above("delta", size)
            shrink = np.exp(-size)
            mirrored = -np.expm1(-size) + shrink * upper
            zero = np.zeros(size.shape)
            return Bounds(zero, np.where(log_ratio < 0, mirrored, upper))

        remove = sampled_remove(inner, self.probability, epsilon)
        add = sampled_add(inner, self.probability, epsilon)
        upper = np.maximum(remove.upper, add.upper)
        return Bounds(np.zeros(epsilon.shape), upper)

    def epsilon(self, delta: Floats) -> Bounds:
        """Bound ε(δ): what is (x, δ/q)-DP becomes (log(1 + q·(e^x − 1)), δ)-DP; 0 from δ = q on."""
        # Rounded down, which asks the mechanism for a larger ε.
        inner_delta = delta / self.probability * (1 - 4 * UNIT)
        free = inner_delta >= 1
        # Where the answer is 0 anyway, any δ in (0, 1) will do.
        inner = self._bound_above("epsilon", np.where(free, 0.5, inner_delta))
        upper = after_coin(inner, self.probability) * (1 + 64 * UNIT)
        return Bounds(np.zeros(delta.shape), np.where(free, 0.0, upper))

    def _bound_above(self, question: Question, values: Floats) -> Floats:
        """Return upper bounds of the mechanism itself, which say nothing past its range."""
        evaluator = Evaluated("its own", "", self.profile)
        bounds, _ = ask_evaluator(evaluator, question, values)
        return np.asarray(bounds.upper)


@dataclass(frozen=True)
class GaussianProfile(Inverted):
    """The profile of one Gaussian, exact up to rounding; the same in both directions."""

    noise_multiplier: float

    def delta(self, epsilon: Floats) -> Bounds:
        """Bound δ(ε) in closed form."""
        return gaussian(self.noise_multiplier, epsilon)


def mu(mechanism: Mechanism) -> float:
    """Return the exact μ of a composition of plain Gaussians: the root of Σ 1/z²."""
    steps = flatten(mechanism)
    for step, _ in steps:
        if not isinstance(step, Gaussian):
            raise UnsupportedError(
                f"method 'gdp': {step!r} is not a plain Gaussian; use method 'pld' or 'rdp'"
            )
    # Flattening has merged all plain Gaussians into one (Dong, Roth, Su 2022, Corollary 3.3).
    return sum(1 / step.noise_multiplier for step, _ in steps if isinstance(step, Gaussian))


@dataclass(frozen=True, slots=True)
class PureProfile:
    """The profile of any mechanism none of whose losses exceeds `most`: (most, 0)-DP, no more."""

    most: float

    def delta(self, epsilon: Floats) -> Bounds:
        """Return 0 from the largest loss on, at most 1 below."""
        upper = np.where(epsilon >= self.most, 0.0, 1.0)
        return Bounds(np.zeros(epsilon.shape), upper)

    def epsilon(self, delta: Floats) -> Bounds:
        """Return 0 and the largest loss."""
        upper = np.full(delta.shape, self.most)
        return Bounds(np.zeros(delta.shape), upper)


@dataclass(frozen=True, slots=True)
class RareProfile:
    """The profile of what a record takes part in with some chance at most: (0, chance)-DP."""

    chance: float

    def delta(self, epsilon: Floats) -> Bounds:
        """Return bounds that say nothing: others know more than the chance."""
        return nothing_known(epsilon, "delta")

    def epsilon(self, delta: Floats) -> Bounds:
        """Return 0 from the chance on; below it nothing is known."""
        upper = np.where(delta >= self.chance, 0.0, np.inf)
        return Bounds(np.zeros(delta.shape), upper)


def build_rare_profile(steps: NormalForm) -> RareProfile | None:
    """Return the profile of steps all of which are behind coins; None where one is not."""
    # Log of the chance that every coin shows tails.
    log_tails = 0.0
    for step, times in steps:
        match step:
            case Sampled(_, q):
                chance = q
            case MixtureOfGaussians():
                chance = math.fsum(step.chances)
            case _:
                return None
        if not chance < 1:
            return None
        log_tails += times * math.log1p(-chance)
    # Rounded up.
    some_heads = -math.expm1(log_tails) * (1 + 2.0**-40)
    return RareProfile(min(some_heads, 1.0))


# All log-ratios of a composition lie between two numbers, which add up, and which a coin brings
# nearer to 0: the lower one is log(1 − q) or more behind any coin, whatever is behind it.
def build_pure_profile(steps: NormalForm) -> PureProfile | None:
    """Return the profile of pure ε of a composition, None where its losses have no bound."""
    # A quick look for what most of a plan's thousands of mechanisms hold.
    for step, _ in steps:
        inner = step.mechanism if isinstance(step, Sampled) else step
        if isinstance(inner, Gaussian):
            return None
    lowest, highest = _bound_log_ratios(steps)
    largest = max(-lowest, highest)
    return PureProfile(largest) if largest < math.inf else None


def _bound_log_ratios(steps: NormalForm) -> tuple[float, float]:
    """Return numbers between which all log-ratios of a composition lie, rounded outward."""
    # Those of independent steps add up, and so do their ends.
    lowest = 0.0
    highest = 0.0
    for step, times in steps:
        step_lowest, step_highest = _bound_step_ratios(step)
        lowest += times * step_lowest
        highest += times * step_highest
    # The ends of a single step are rounded outward already.
    exact = len(steps) == 1 and steps[0][1] == 1
    return _round_outward(lowest, highest, 0 if exact else 16 + len(steps))


def _bound_step_ratios(step: Mechanism) -> tuple[float, float]:
    """Return numbers between which all log-ratios of one step lie; infinite where unknown."""
    match step:
        case Laplace(scale):
            end = 1 / scale
            # Exact arithmetic tells whether the quotient was rounded down.
            if end < math.inf and Fraction(end) * Fraction(scale) < 1:
                end = math.nextafter(end, math.inf)
            return -end, end
        case Sampled(inner, q):
            inner_lowest, inner_highest = _bound_log_ratios(flatten(inner))
            lowest = float(after_coin(inner_lowest, q))
            return _round_outward(lowest, float(after_coin(inner_highest, q)), 16)
    atoms = atoms_of(step)
    # What atoms leave out may have any loss.
    if atoms is None or atoms.outside_p or atoms.outside_q:
        return -math.inf, math.inf
    lowest = float(atoms.log_ratio.min(initial=0.0))
    highest = float(atoms.log_ratio.max(initial=0.0))
    # An outcome of one world alone has an infinite loss.
    return (
        -math.inf if atoms.only_q else lowest - atoms.error,
        math.inf if atoms.only_p else highest + atoms.error,
    )


def _round_outward(lowest: float, highest: float, operations: int) -> tuple[float, float]:
    """Allow for the rounding of some operations; 0 stays 0."""
    factor = 1 + operations * UNIT
    return lowest * factor, highest * factor


# Numbers in an array.
_AT_ONCE = 1 << 20
# Distinct losses that are enumerated, at most.
_MOST = 1 << 16
# Masses below it in both worlds are left out.
_LEAST_MASS = 1e-40
# Losses nearer than this, relative to the largest, are one.
_SAME = 2.0**-44


# A discrete profile is a sum over atoms, none of its terms negative. Both worlds' masses are
# carried: one that is too small for a double in one world keeps its digits in the other.
class Outcomes(NamedTuple):
    """A pair (P, Q) as `Atoms`, each outcome's loss with its mass in both worlds."""

    loss: Floats
    p: Floats
    q: Floats
    only_p: float
    only_q: float
    outside_p: float
    outside_q: float
    error: float

    @classmethod
    def of(cls, atoms: Atoms) -> Outcomes:
        """Return the outcomes of one step."""
        # P = e^L·Q, outcome by outcome.
        # By the root, whose square may be past the range where a mass is tiny.
        root = np.exp(atoms.log_ratio / 2)
        p = atoms.mass * root * root
        return cls(atoms.log_ratio, p, atoms.mass, *atoms[2:])

    def behind(self, coin: float) -> Outcomes:
        """Return those of ((1 − q)Q + qP, Q); an outcome of Q alone then has a finite loss."""
        loss = after_coin(np.append(self.loss, -np.inf), coin)
        q = np.append(self.q, self.only_q)
        p = (1 - coin) * q + coin * np.append(self.p, 0.0)
        largest_loss = float(np.abs(loss).max())
        rounding = 2.0**-50 * (1 + largest_loss)
        outside_p = (1 - coin) * self.outside_q + coin * self.outside_p
        only_p = coin * self.only_p
        error = self.error + rounding
        return Outcomes(loss, p, q, only_p, 0.0, outside_p, self.outside_q, error)


@dataclass(frozen=True, eq=False)
class DiscreteProfile(Inverted):
    """The profile of a pair on atoms, exact up to rounding and what they leave out."""

    outcomes: Outcomes

    def delta(self, epsilon: Floats) -> Bounds:
        """Bound the larger of both directions."""
        loss, p, q, only_p, only_q, outside_p, outside_q, error = self.outcomes
        # In the add direction worlds change places, and losses their sign.
        remove = _bound_excess(loss, p, only_p, error, epsilon)
        add = _bound_excess(-loss, q, only_q, error, epsilon)
        # What is left out adds nothing from below, and from above all its mass.
        lower = np.maximum(remove.lower, add.lower)
        upper = np.maximum(remove.upper + outside_p, add.upper + outside_q)
        slack = 4 * UNIT
        return Bounds(lower * (1 - slack), np.minimum(upper * (1 + slack), 1.0))


def _bound_excess(
    loss: Floats, mass: Floats, certain: float, error: float, epsilon: Floats
) -> Bounds:
    """Bound `certain` + Σ mass·(1 − e^{ε − ℓ})₊ over atoms with losses ℓ, all known to `error`."""
    low = np.empty(epsilon.size)
    high = np.empty(epsilon.size)
    rows = max(_AT_ONCE // max(loss.size, 1), 1)
    for start in range(0, epsilon.size, rows):
        part = slice(start, start + rows)
        gap = epsilon[part, None] - loss
        loss_error = error + 4 * UNIT * (1 + np.abs(epsilon[part]))
        terms = -np.expm1(np.minimum(gap, 0.0)) * mass
        value = np.where(gap < 0, terms, 0.0).sum(axis=1)
        # A loss that is off by `loss_error` moves its term by as much, near the kink at ε too.
        near_or_above = gap < loss_error[:, None]
        mass_above = np.where(near_or_above, mass, 0.0).sum(axis=1)
        slack = (error + loss.size * UNIT) * value + 2 * loss_error * mass_above
        low[part] = np.maximum(value - slack, 0.0)
        high[part] = value + slack
    # Outcomes of one world alone exceed every ε and add all their mass.
    certain_low = certain * max(1 - error, 0.0)
    certain_high = certain * (1 + error)
    return Bounds(low + certain_low, high + certain_high)


def enumerate_outcomes(steps: NormalForm) -> DiscreteProfile | None:
    """Return the profile of discrete steps; None where one is not discrete, or atoms are many."""
    try:
        return DiscreteProfile(_compose_outcomes(steps))
    except _UnlistedError:
        return None


class _UnlistedError(Exception):
    """Outcomes that are not listed: some step is not discrete, or they are too many."""


def _compose_outcomes(steps: NormalForm) -> Outcomes:
    """Return the outcomes of a composition."""
    parts = []
    for step, times in steps:
        if (atoms := atoms_of(step)) is not None:
            base = Outcomes.of(atoms)
        elif isinstance(step, Sampled):
            base = _merge_losses(
                _compose_outcomes(flatten(step.mechanism)).behind(step.probability)
            )
        else:
            raise _UnlistedError
        parts.append(power(base, times, _multiply))
    return reduce(_multiply, parts)


def power(base: T, times: int, product: Callable[[T, T], T]) -> T:
    """Return `base` so many times, by squaring."""
    result = None
    while True:
        if times & 1:
            result = base if result is None else product(result, base)
        times >>= 1
        if not times:
            assert result is not None
            return result
        base = product(base, base)


def _multiply(one: Outcomes, other: Outcomes) -> Outcomes:
    """Return the outcomes of two independent parts: losses add up, masses multiply."""
    if one.loss.size * other.loss.size > _AT_ONCE:
        raise _UnlistedError
    return _merge_losses(
        Outcomes(
            np.add.outer(one.loss, other.loss).ravel(),
            np.multiply.outer(one.p, other.p).ravel(),
            np.multiply.outer(one.q, other.q).ravel(),
            # The chance of either of two independent events.
            only_p=one.only_p + (1 - one.only_p) * other.only_p,
            only_q=one.only_q + (1 - one.only_q) * other.only_q,
            outside_p=one.outside_p + other.outside_p,
            outside_q=one.outside_q + other.outside_q,
            error=one.error + other.error + 8 * UNIT,
        )
    )


def _merge_losses(outcomes: Outcomes) -> Outcomes:
    """Return outcomes with nearly equal losses counted together."""
    # What is left out goes into `outside`, and rounding a loss to the grid into `error`.
    faint = np.maximum(outcomes.p, outcomes.q) < _LEAST_MASS
    lost = _LEAST_MASS * int(faint.sum())
    loss = outcomes.loss[~faint]
    grid = _SAME * float(np.abs(loss).max(initial=1.0))
    number, index = np.unique(np.round(loss / grid), return_inverse=True)
    if number.size > _MOST:
        raise _UnlistedError
    p = np.bincount(index, outcomes.p[~faint], number.size)
    q = np.bincount(index, outcomes.q[~faint], number.size)
    return outcomes._replace(
        loss=np.asarray(number * grid, dtype=np.float64),
        p=p.astype(np.float64),
        q=q.astype(np.float64),
        outside_p=outcomes.outside_p + lost,
        outside_q=outcomes.outside_q + lost,
        error=outcomes.error + grid + UNIT * loss.size,
    )
