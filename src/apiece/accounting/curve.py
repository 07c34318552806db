"""PrivacyCurve: everything that one record's privacy profile answers."""

import math
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from apiece import _check
from apiece._text import count_up, guess
from apiece._types import Bounds, Floats
from apiece.accounting.bounds import (
    LARGEST_EPSILON,
    Evaluated,
    Evaluations,
    Profile,
    evaluate_ascending,
    within_range,
)
from apiece.accounting.contour.profile import SampledGaussians, delta_bounds
from apiece.errors import InputError, RangeError
from apiece.mechanisms import Mechanism

ROUNDING = 2.0**-51
"""Of the few operations between a profile and an answer."""
# ε at which both bounds on the power are looked at first.
_NODES = np.concatenate(([0.0], np.geomspace(1e-7, 45.0, 240)))
# Rates at a time.
_RATES = 4096


def least_form(epsilon: Floats, delta: Floats, rates: Floats | float) -> Floats:
    """Return the lesser of both bounds on the power at each ε, from upper bounds on δ(ε)."""
    direct = delta + np.exp(epsilon) * rates
    mirrored = 1 - (1 - delta - rates) * np.exp(-epsilon) + ROUNDING
    return np.asarray(np.minimum(direct, mirrored))


# The power of a test with α false positives is at most δ(ε) + e^ε·α and, by the mirrored test,
# 1 − e^{−ε}(1 − δ(ε) − α), at every ε ≥ 0; the least of all is the greatest power.
def greatest_power(profile: Profile, rates: Floats) -> Floats:
    """Return the least of both bounds over ε ≥ 0, one a rate; never below the truth."""
    # At rates of 0 and 1 no ε would be far enough; there one part in 1e15 is nothing.
    least_rate = max(float(rates.min()), 1e-15)
    least_true_negative_rate = max(float(1 - rates.max()), 1e-15)

    def enough(epsilon: Floats, delta: Bounds) -> bool:
        # Past here a larger ε lowers neither form by more than one part in 1e9.
        last = float(delta.upper[-1])
        second_term = least_rate * math.exp(float(epsilon[-1]))
        return last <= 1e-9 * min(second_term, least_true_negative_rate)

    nodes, bounds = evaluate_ascending(profile.delta, _NODES, enough)
    power = np.empty(rates.size)
    for start in range(0, rates.size, _RATES):
        part = slice(start, start + _RATES)
        column = rates[part, None]
        values = least_form(nodes, bounds.upper, column)
        best = values.argmin(axis=1)
        power[part] = _refine(profile, column, nodes, best, values.min(axis=1))
    # Rounded up, and never below what blind guessing reaches.
    return np.maximum(np.minimum(power * (1 + 4 * ROUNDING), 1.0), rates)


def _refine(
    profile: Profile, rates: Floats, nodes: Floats, best: npt.NDArray[np.intp], power: Floats
) -> Floats:
    """Improve `power` by evaluations between the neighbours of each best node."""
    # Each of four rounds cuts the bracket around the best node into eleven.
    low = nodes[np.maximum(best - 1, 0)]
    high = nodes[np.minimum(best + 1, nodes.size - 1)]
    steps = np.linspace(0.0, 1.0, 12)
    for _ in range(4):
        epsilon = low[:, None] + (high - low)[:, None] * steps
        delta = profile.delta(epsilon.ravel()).upper.reshape(epsilon.shape)
        values = least_form(epsilon, delta, rates)
        best = values.argmin(axis=1)
        power = np.minimum(power, values.min(axis=1))
        rows = np.arange(best.size)
        low = epsilon[rows, np.maximum(best - 1, 0)]
        high = epsilon[rows, np.minimum(best + 1, steps.size - 1)]
    return power


RELATION = "add_remove"


@dataclass(frozen=True, eq=False)
class PrivacyCurve:
    """The privacy profile of one record's mechanism, and all that bounds an attacker by it.

    `privacy_curve` makes it. Its methods take numbers or arrays; results have their shape.

    Attributes:
        profile: Bounds on δ(ε), the larger of both directions of add/remove.
        method: The accountant that made it.
        mechanism: What was accounted.
        relation: The adjacency.

    Guarantee:
        Every `Bounds` contains the exact value of the mechanism. `tradeoff` is never above the
        exact trade-off function. No rate and no chance of success is below the best that any attack
        reaches.

    Example:
        >>> from apiece.accounting import privacy_curve
        >>> from apiece.mechanisms import Gaussian
        >>> curve = privacy_curve(Gaussian(1.0), method="gdp")
        >>> round(curve.epsilon(1e-5).upper, 4), round(curve.advantage().upper, 4)
        (4.3772, 0.3829)
    """

    profile: Profile = field(repr=False)
    method: str = "pld"
    mechanism: Mechanism | None = None
    relation: str = RELATION

    def epsilon(self, delta: npt.ArrayLike) -> Bounds:
        """Return bounds on the smallest ε ≥ 0 that holds with `delta`.

        Args:
            delta: In (0, 1).

        Raises:
            InputError: For other δ.
            RangeError: Where no finite ε is known to hold.
        """
        deltas = _check.positive_array("delta", delta, below=1.0)
        bounds = self._ask(self._evaluations.epsilon, deltas.ravel())
        if not np.isfinite(bounds.upper).all():
            worst = float(deltas.ravel()[~np.isfinite(bounds.upper)].min())
            raise RangeError(
                f"epsilon at delta = {worst:g}: past the numerical range of method "
                f"{self.method!r} for {short(self.mechanism)}; ask for a larger delta"
            )
        return _reshape_bounds(bounds, deltas)

    def delta(self, epsilon: npt.ArrayLike) -> Bounds:
        """Return bounds on δ(ε).

        Args:
            epsilon: Any real number. Below 0 the profile is mirrored: δ(−x) = 1 − e^{−x} +
                e^{−x}·δ(x).

        Raises:
            InputError: For what is not a number.
            RangeError: Past the numerical range.
        """
        values = _check.numbers("epsilon", epsilon)
        if np.isnan(values).any():
            raise InputError("epsilon = nan: must be a number")
        return _reshape_bounds(self._delta(values.ravel(), None), values)

    def _delta(self, flat: Floats, first: Bounds | None) -> Bounds:
        """Bound δ at flat ε; `first` holds the first evaluator's bounds at |ε|, where known."""
        # The profile is asked at |ε|; negative ε are mirrored below.
        size = np.minimum(np.abs(flat), LARGEST_EPSILON)
        lower, upper = self._ask(lambda epsilon: self._evaluations.delta(epsilon, first), size)
        # Beyond the largest ε, δ is known to be no larger, and no more.
        far = np.abs(flat) > LARGEST_EPSILON
        lower = np.where(far, 0.0, lower)
        negative = flat < 0
        if negative.any():
            # δ(−x) = 1 − e^{−x} + e^{−x}·δ(x), by exchanging the two worlds.
            shrink = np.exp(np.minimum(flat, 0.0))
            gap = -np.expm1(np.minimum(flat, 0.0))
            mirrored_lower = np.maximum(gap + shrink * lower - ROUNDING, 0.0)
            mirrored_upper = np.minimum(gap + shrink * upper + ROUNDING, 1.0)
            lower = np.where(negative, mirrored_lower, lower)
            upper = np.where(negative, mirrored_upper, upper)
        return Bounds(lower, upper)

    @property
    def _evaluations(self) -> Evaluations:
        """The profile, behind the gate that every evaluator's numbers go through."""
        if isinstance(self.profile, Evaluations):
            return self.profile
        why = "the profile that this curve was given"
        return Evaluations((Evaluated(type(self.profile).__name__, why, self.profile),))

    def _ask(self, ask: Callable[[Floats], Bounds], values: Floats) -> Bounds:
        """Return a profile's bounds; raise `RangeError` where its arithmetic fails."""
        with within_range(self._name):
            return ask(values) if values.size else Bounds(values, values)

    def _name(self) -> str:
        """Return the name of the mechanism and method for messages."""
        return f"{short(self.mechanism)} by method {self.method!r}"

    def explain(self, delta: float) -> str:
        """Return, in a line or two, which evaluator gave each end of ε at `delta`, and why.

        Values are rounded outward to six digits.

        Args:
            delta: In (0, 1).

        Raises:
            InputError: For other δ.

        Example:
            >>> from apiece.accounting import privacy_curve
            >>> from apiece.mechanisms import Gaussian
            >>> print(privacy_curve(Gaussian(1.0)).explain(1e-5))
            4.37717 ≤ ε ≤ 4.37718 at δ = 1e-05, by Gaussian formula: plain Gaussians compose to \
one, whose profile has a closed form
        """
        delta = _check.probability("delta", delta, low_open=True, high_open=True)
        with within_range(self._name):
            return self._evaluations.explain(delta)

    def advantage(self) -> Bounds:
        """Return bounds on the largest TPR − FPR of any membership test: δ(0)."""
        return self.delta(0.0)

    def tradeoff(self, false_positive_rate: npt.ArrayLike) -> Any:
        """Return a lower bound on f(α), the least false-negative rate of any test at rate α.

        It is the conjugate of the profile's upper end, and holds in both directions of add/remove.

        Args:
            false_positive_rate: α, in [0, 1].

        Raises:
            InputError: For other rates.

        Guarantee:
            Never above the truth.

        References:
            Dong, Roth, Su 2022, Prop. 2.12.
        """
        power = self.true_positive_rate(false_positive_rate)
        # Rounded down.
        missed = np.maximum(np.nextafter(1.0 - power, -np.inf), 0.0)
        return float(missed) if np.ndim(missed) == 0 else missed

    def true_positive_rate(self, false_positive_rate: npt.ArrayLike) -> Any:
        """Return an upper bound on the power of any membership test: 1 − f(α), see `tradeoff`.

        Args:
            false_positive_rate: α, in [0, 1].

        Raises:
            InputError: For other rates.

        Guarantee:
            Never below the truth.
        """
        rates = _check.probability_array("false_positive_rate", false_positive_rate)
        with within_range(self._name):
            power = greatest_power(self._evaluations, rates.ravel()) if rates.size else rates
        return float(power[0]) if rates.ndim == 0 else power.reshape(rates.shape)

    def bayes_error(self, prior: npt.ArrayLike = 0.5) -> Bounds:
        """Return bounds on the least chance of error of an attacker who knows the prior.

        Args:
            prior: π, the chance that the record took part, in (0, 1).

        Raises:
            InputError: For other priors.

        References:
            Kaissis et al. 2024.
        """
        priors = _check.positive_array("prior", prior, below=1.0)
        flat = priors.ravel()
        # The profile holds in both directions, so that a prior and its complement are alike.
        rarer = np.minimum(flat, 1 - flat)
        # The least error is (1 − π)·(1 − δ(log(π/(1 − π)))), at most min(π, 1 − π).
        odds = np.log1p(-rarer) - np.log(rarer)
        lower, upper = self._ask(self._evaluations.delta, odds)
        least = np.maximum(rarer * (1 - upper) - ROUNDING, 0.0)
        greatest = np.minimum(rarer * (1 - lower) + ROUNDING, rarer)
        return _reshape_bounds(Bounds(least, greatest), priors)

    def success(self, prior: npt.ArrayLike = 0.5) -> Bounds:
        """Return bounds on the greatest chance of guessing membership right.

        Args:
            prior: As for `bayes_error`.

        Raises:
            InputError: For priors outside (0, 1).
        """
        error = self.bayes_error(prior)
        return Bounds(1.0 - error.upper, 1.0 - error.lower)

    def reconstruction_success(self, baseline: npt.ArrayLike) -> Any:
        """Return an upper bound on the chance of an attack, from its chance without the record.

        It is 1 − f(κ), and holds for attribute inference, reconstruction and singling out alike.

        Args:
            baseline: κ, the best chance of success without the record, in [0, 1].

        Raises:
            InputError: For other chances.

        Guarantee:
            Never below the best chance of any attack.

        References:
            Kulynych et al. 2025.
        """
        return self.true_positive_rate(baseline)

    def attribute_inference_success(self, baseline: npt.ArrayLike) -> Any:
        """Return `reconstruction_success` for guessing one attribute of a record.

        Args:
            baseline: The chance of the best guess without the record.

        Raises:
            InputError: For chances outside [0, 1].
        """
        return self.reconstruction_success(baseline)

    def statement(self, *, people: int = 1000, prior: float = 0.5) -> str:
        """Return a person's guarantee in words, as a frequency.

        Args:
            people: Among how many, a whole number from 1 on.
            prior: The share of them that took part, in (0, 1).

        Raises:
            InputError: For values outside their bounds.

        Guarantee:
            The attacker's count is rounded up.

        Example:
            >>> from apiece.accounting import privacy_curve
            >>> from apiece.mechanisms import Gaussian
            >>> privacy_curve(Gaussian(2.0), method="gdp").statement()
            'Of 1,000 people like you, 500 of whom took part, an attacker who guesses for each \
whether they did is right about at most 599; who has not seen the result, about 500.'
        """
        people = _check.count("people", people)
        right = count_up(self.success(prior).upper, people)
        # Who has seen nothing does best to guess the likelier answer for everybody.
        blind = count_up(max(prior, 1 - prior), people)
        return guess(right, people=people, members=round(people * prior), blind=blind)


def deltas(curves: Sequence[PrivacyCurve], epsilon: Sequence[Floats]) -> list[Bounds]:
    """Return bounds on δ of each curve at flat ε of its own: as `PrivacyCurve.delta`."""
    # Contour integrals of several curves are made and evaluated in one array.
    first: list[Bounds | None] = [None] * len(curves)
    contours: dict[int, SampledGaussians] = {}
    for number, curve in enumerate(curves):
        profile = curve._evaluations.answers[0].profile
        if isinstance(profile, SampledGaussians):
            contours[number] = profile
    if len(contours) > 1:
        parts = [np.minimum(np.abs(epsilon[k]), LARGEST_EPSILON) for k in contours]
        sizes = [part.size for part in parts]
        owner = np.repeat(np.arange(len(contours)), sizes)
        # Past the numerical range each is asked on its own.
        with suppress(RangeError):
            bounds = delta_bounds(list(contours.values()), np.concatenate(parts), owner)
            ends = np.cumsum(sizes)
            for k, size, end in zip(contours, sizes, ends, strict=True):
                part = slice(end - size, end)
                first[k] = Bounds(bounds.lower[part], bounds.upper[part])
    return [
        curve._delta(part, known) for curve, part, known in zip(curves, epsilon, first, strict=True)
    ]


def _reshape_bounds(bounds: Bounds, model: Floats) -> Bounds:
    """Return flat bounds in the shape of `model`; of a scalar, as numbers."""
    if model.ndim == 0:
        return Bounds(float(bounds.lower[0]), float(bounds.upper[0]))
    return Bounds(bounds.lower.reshape(model.shape), bounds.upper.reshape(model.shape))


def short(mechanism: Mechanism | None) -> str:
    """Return a mechanism's name for messages, of bounded length."""
    text = "this mechanism" if mechanism is None else repr(mechanism)
    return text if len(text) <= 120 else text[:117] + "…"
