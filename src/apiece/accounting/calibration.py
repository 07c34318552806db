"""From a promise to a parameter: one solver for noise, rate or steps, and for every kind of budget.

Every kind of budget is a number that grows with what a mechanism reveals; every parameter moves
that number one way. The solver closes in on the limit and returns a parameter at which the upper
bound was evaluated and found within it.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from apiece import _check
from apiece.accounting.choose import privacy_curve
from apiece.accounting.curve import PrivacyCurve, least_form
from apiece.accounting.divergence import excess
from apiece.accounting.exact import mu
from apiece.errors import InfeasibleError, InputError, RangeError
from apiece.mechanisms import Composed, Gaussian, Mechanism, Repeated, Sampled
from apiece.numerics.normal import quantile
from apiece.numerics.roots import log_room, safe_end

# Rounds of the search for the ε that bounds a power best, and nodes of each.
_ROUNDS = 5
_NODES = 12


class _Spending:
    """The question that every kind of budget asks of a curve."""

    __slots__ = ()

    def spent(self, curve: PrivacyCurve) -> float:
        """Return an upper bound on what the mechanism of a curve spends of the budget."""
        raise NotImplementedError


@dataclass(frozen=True, slots=True)
class EpsilonBudget(_Spending):
    """ε at a given δ.

    Attributes:
        epsilon: Above 0.
        delta: In (0, 1).

    Raises:
        InputError: For values outside their bounds.

    Example:
        >>> from apiece.accounting import EpsilonBudget
        >>> EpsilonBudget(1.0, 1e-5).limit
        1.0
    """

    epsilon: float
    delta: float

    def __post_init__(self) -> None:
        _check.positive("epsilon", self.epsilon)
        _check.probability("delta", self.delta, low_open=True, high_open=True)

    @property
    def limit(self) -> float:
        """The ε that may be spent."""
        return float(self.epsilon)

    def spent(self, curve: PrivacyCurve) -> float:
        """Return an upper bound on ε at δ."""
        return float(curve.epsilon(self.delta).upper)


@dataclass(frozen=True, slots=True)
class AdvantageBudget(_Spending):
    """The greatest TPR − FPR of any membership test.

    Attributes:
        limit: In (0, 1).

    Raises:
        InputError: For a value outside.

    Example:
        >>> from apiece.accounting import AdvantageBudget
        >>> AdvantageBudget(0.1).limit
        0.1
    """

    limit: float

    def __post_init__(self) -> None:
        _check.probability("advantage", self.limit, low_open=True, high_open=True)

    def spent(self, curve: PrivacyCurve) -> float:
        """Return an upper bound on the advantage."""
        return float(curve.advantage().upper)


@dataclass(frozen=True, slots=True)
class PowerBudget(_Spending):
    """The greatest true-positive rate of any membership test at one false-positive rate.

    Attributes:
        limit: The true-positive rate, in (0, 1).
        false_positive_rate: In (0, 1), below `limit`.

    Raises:
        InputError: For values outside their bounds.

    Example:
        >>> from apiece.accounting import PowerBudget
        >>> PowerBudget(0.2, 0.1).limit
        0.2
    """

    limit: float
    false_positive_rate: float

    def __post_init__(self) -> None:
        for name, rate in (("true", self.limit), ("false", self.false_positive_rate)):
            _check.probability(f"{name}_positive_rate", rate, low_open=True, high_open=True)
        if not self.limit > self.false_positive_rate:
            raise InputError(
                f"true_positive_rate = {self.limit!r}: must be above the false-positive rate "
                f"{self.false_positive_rate!r}, which blind guessing reaches"
            )

    def spent(self, curve: PrivacyCurve) -> float:
        """Return an upper bound on the power."""
        # The power is the least of δ(ε) + e^ε·α and 1 − e^{−ε}(1 − δ(ε) − α). Only those ε are
        # looked at where either can be within the limit: one or two regions of a profile, not all.
        alpha = self.false_positive_rate
        best = 1.0
        low = 0.0
        # Beyond it e^ε·α exceeds the limit, and the mirrored form does.
        first_end = math.log(self.limit / alpha)
        mirrored_end = math.log((1 - alpha) / (1 - self.limit))
        high = max(first_end, mirrored_end)
        for _ in range(_ROUNDS):
            epsilon = np.linspace(low, high, _NODES)
            power = least_form(epsilon, curve.delta(epsilon).upper, alpha)
            least = int(power.argmin())
            best = min(best, float(power[least]))
            low = epsilon[max(least - 1, 0)]
            high = epsilon[min(least + 1, _NODES - 1)]
        # Rounded up, and never below what blind guessing reaches.
        return min(max(best * (1 + 1e-14) + 1e-15, alpha), 1.0)


@dataclass(frozen=True, slots=True)
class MuBudget(_Spending):
    """μ of Gaussian differential privacy; for compositions of plain Gaussians only.

    Attributes:
        limit: Above 0.

    Raises:
        InputError: For another value.

    References:
        Dong, Roth, Su 2022.

    Example:
        >>> from apiece.accounting import MuBudget
        >>> MuBudget(1.0).limit
        1.0
    """

    limit: float

    def __post_init__(self) -> None:
        _check.positive("mu", self.limit)

    def spent(self, curve: PrivacyCurve) -> float:
        """Return an upper bound on μ."""
        return mu(curve.mechanism or Composed())


@dataclass(frozen=True, slots=True)
class ExcessBudget(_Spending):
    """Forward Δ-divergence from a baseline: how much more vulnerable than promised.

    Attributes:
        limit: In (0, 1).
        baseline: The curve that was promised.

    Raises:
        InputError: For a limit outside.

    Example:
        >>> from apiece import Gaussian, privacy_curve
        >>> from apiece.accounting import ExcessBudget
        >>> ExcessBudget(0.1, privacy_curve(Gaussian(2.0))).limit
        0.1
    """

    limit: float
    baseline: PrivacyCurve

    def __post_init__(self) -> None:
        _check.probability("excess", self.limit, low_open=True, high_open=True)

    def spent(self, curve: PrivacyCurve) -> float:
        """Return an upper bound on Δ."""
        return float(excess(self.baseline, curve).forward.upper)


Budget: TypeAlias = EpsilonBudget | AdvantageBudget | PowerBudget | MuBudget | ExcessBudget


# The ranges in which parameters are sought.
_LEAST_NOISE = 1e-2
_MOST_NOISE = 1e7
_LEAST_RATE = 1e-12
_MOST_STEPS = 10**8
# Share of a number of steps that may be missing where it is not known what more of them spend.
_UNKNOWN = 1e-3
# Share of a budget that may be left of one that is spent in full.
_UNSPENT = 0.01
# Looks at a number of steps, at most.
_LOOKS = 200


@dataclass(frozen=True, slots=True)
class Calibration:
    """The safe end of a parameter's range.

    Attributes:
        parameter: Which one was sought.
        value: What it came to.
        achieved: An upper bound there on what is spent of the budget, at most `limit`.
        limit: The budget.
        saturated: Whether the budget cannot be spent in full, within 1 % (or twenty times the
            precision): the parameter's range or the accountant's ends, or what is spent jumps. A
            number of steps is saturated where one of both ranges ends.
        mechanism: The whole mechanism, from which all of it can be recomputed.

    Guarantee:
        `achieved` was evaluated at `value`, not interpolated.

    Example:
        >>> from apiece import calibrate
        >>> from apiece.accounting import EpsilonBudget
        >>> calibrated = calibrate(EpsilonBudget(1.0, 1e-5), sampling_probability=1.0, steps=1)
        >>> calibrated.parameter, calibrated.saturated
        ('noise_multiplier', False)
    """

    parameter: str
    value: float
    achieved: float
    limit: float
    saturated: bool
    mechanism: Mechanism


def calibrate(
    budget: Budget,
    *,
    noise_multiplier: float | None = None,
    sampling_probability: float | None = None,
    steps: int | None = None,
    method: str = "pld",
    precision: float = 1e-6,
) -> Calibration:
    """Return the one missing parameter of `steps` subsampled Gaussian steps that keeps `budget`.

    Leave out one of the three: the smallest noise multiplier, the largest sampling probability (1
    where saturated) or the largest number of steps is returned.

    Args:
        budget: What may be spent.
        noise_multiplier: Above 0; sought in [0.01, 1e7].
        sampling_probability: In (0, 1]; sought in [1e-12, 1].
        steps: A whole number from 1 on; sought up to 1e8.
        method: As for `privacy_curve`.
        precision: Relative error of the parameter, or of the budget that is left unspent. Steps are
            found exactly, or to a thousandth where the numerical range ends.

    Raises:
        InputError: Unless exactly one is missing, and for values outside their bounds.
        InfeasibleError: Where no value of the range keeps the budget.
        UnsupportedError: As `privacy_curve`.

    Guarantee:
        An upper bound on what is spent at the value returned was found within the budget.

    Example:
        >>> from apiece import calibrate
        >>> from apiece.accounting import EpsilonBudget
        >>> calibrated = calibrate(EpsilonBudget(1.0, 1e-5), sampling_probability=1.0, steps=1)
        >>> round(calibrated.value, 4), calibrated.achieved <= 1.0
        (3.7306, True)
    """
    parameters = {
        "noise_multiplier": noise_multiplier,
        "sampling_probability": sampling_probability,
        "steps": steps,
    }
    missing = [name for name, value in parameters.items() if value is None]
    if len(missing) != 1:
        raise InputError(
            f"calibrate: {len(missing)} of {', '.join(parameters)} are missing; leave out just one"
        )
    _check.positive("precision", precision)
    if noise_multiplier is not None:
        _check.positive("noise_multiplier", noise_multiplier)
    if sampling_probability is not None:
        _check.probability("sampling_probability", sampling_probability, low_open=True)
    if steps is not None:
        _check.count("steps", steps)
    (parameter,) = missing

    def mechanism_at(value: float) -> Mechanism:
        # In the order of `parameters`, with the value sought in its place.
        z, q, times = (parameters | {parameter: value}).values()
        return Repeated(Sampled(Gaussian(z), q), times)  # type: ignore[arg-type]

    def spent(value: float) -> float:
        # Past the accountant's range a parameter spends all for what is known.
        try:
            return budget.spent(privacy_curve(mechanism_at(value), method=method))
        except RangeError:
            return math.inf

    guess = _guess(budget, noise_multiplier, sampling_probability, steps)
    value, achieved, saturated = _search(parameter, spent, budget.limit, precision, guess)
    return Calibration(parameter, value, achieved, budget.limit, saturated, mechanism_at(value))


def _guess(budget: Budget, z: float | None, q: float | None, steps: int | None) -> float:
    """Return about the logarithm of the noise or rate sought, by the law of many small losses."""
    match budget:
        case AdvantageBudget(limit):
            # TPR − FPR of N(μ, 1) against N(0, 1) is 2·Φ(μ/2) − 1.
            mu = 2 * float(quantile((1 + limit) / 2))
        case PowerBudget(limit, rate):
            # The power at a rate α is Φ(Φ⁻¹(α) + μ).
            mu = float(quantile(limit) - quantile(rate))
        case _:
            return 0.0
    # In the limit the losses are those of a Gaussian with μ² = q²·T·(e^{1/z²} − 1).
    if z is None and q is not None and steps is not None:
        step_square = (mu / q) ** 2 / steps
        return -0.5 * math.log(math.log1p(step_square))
    if z is None or steps is None:
        return 0.0
    excess = math.expm1(min(1 / z**2, 600.0))
    return math.log(mu / math.sqrt(steps * excess))


def _search(
    parameter: str, spent: Callable[[float], float], limit: float, precision: float, guess: float
) -> tuple[float, float, bool]:
    """Return (value, spent there, saturated) for one parameter; guess: about its logarithm."""
    if parameter == "steps":
        return _find_most_steps(spent, limit)
    if parameter == "noise_multiplier":
        safest = _MOST_NOISE
        boldest = _LEAST_NOISE
    else:
        safest = _LEAST_RATE
        boldest = 1.0
    # By the logarithm of the parameter: the search returns that alone.
    spent_at: dict[float, float] = {}

    def room(log_value: float) -> float:
        spent_at[log_value] = spent(math.exp(log_value))
        return float(log_room(limit, spent_at[log_value]))

    safe = math.log(safest)
    unsafe = math.log(boldest)
    start = min(max(guess, min(safe, unsafe)), max(safe, unsafe))
    end = safe_end(room, start, safe, unsafe, slope=1.0, tolerance=precision / 5, narrow=precision)
    if math.isnan(end):
        raise InfeasibleError(
            f"calibrate: even {parameter} = {safest:g} spends {spent_at[safe]:.4g}, above the "
            f"budget of {limit:g}; raise the budget or change the parameters that are given"
        )
    # Where the range did not end the search and much is left, what is spent jumps.
    unspent = spent_at[end] < limit * (1 - max(_UNSPENT, 20 * precision))
    return math.exp(end), spent_at[end], end == unsafe or unspent


def _find_most_steps(spent: Callable[[float], float], limit: float) -> tuple[float, float, bool]:
    """Return the largest whole number within the limit, its cost, and whether a range ends."""
    # Along lines in the logarithms, with bisections between; beyond the accountant's numerical
    # range nothing is sought closely.
    low = 0
    spent_low = 0.0
    high = _MOST_STEPS + 1
    spent_high = math.inf
    # Slope of log spent in log steps.
    slope = 1.0
    steps = 1
    for turn in range(_LOOKS):
        spending = spent(steps)
        if spending <= limit:
            if low and spending > spent_low > 0:
                secant = math.log(spending / spent_low) / math.log(steps / low)
                # Two near numbers of steps give any slope at all, by the rounding of their bounds.
                slope = min(max(secant, 0.3), 3.0)
            low = steps
            spent_low = spending
        else:
            high = steps
            spent_high = spending
        if low == 0:
            raise InfeasibleError(
                f"calibrate: one step already spends {spending:.4g}, above the budget of "
                f"{limit:g}; raise the budget or the noise"
            )
        if high - low <= (1 if spent_high < math.inf else low * _UNKNOWN):
            break
        by_bisection = turn % 2 == 0
        steps = _next_steps(
            low, spent_low, high, spent_high, limit, slope, by_bisection=by_bisection
        )
    return low, spent_low, spent_high == math.inf


def _next_steps(
    low: int,
    spent_low: float,
    high: int,
    spent_high: float,
    limit: float,
    slope: float,
    *,
    by_bisection: bool,
) -> int:
    """Return the number to look at next, between one within the limit and one beyond it."""
    if high > _MOST_STEPS:
        # None is known to be beyond the limit: a little past where the line leads.
        factor: float = (limit / spent_low) ** (1 / slope) if spent_low > 0 else 4.0
        return min(math.ceil(low * min(max(1.01 * factor, 1.01), 1e3)), _MOST_STEPS)
    if by_bisection or not 0 < spent_low < spent_high < math.inf:
        # The geometric mean.
        return min(max(math.isqrt(low * high), low + 1), high - 1)
    share = math.log(limit / spent_low) / math.log(spent_high / spent_low)
    nearest: float = low * (high / low) ** share
    return min(max(round(nearest), low + 1), high - 1)
