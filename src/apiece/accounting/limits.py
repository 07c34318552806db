"""What may be limited: numbers that grow with what a mechanism reveals, each with its limit."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from apiece import _check
from apiece.accounting.closed.gaussian import mu
from apiece.accounting.curve import PrivacyCurve
from apiece.accounting.divergence import excess
from apiece.accounting.power import least_form
from apiece.errors import InputError
from apiece.mechanisms import Composed

_ROUNDS, _NODES = 5, 12  # of the search for the ε that bounds a power best


@dataclass(frozen=True, slots=True)
class EpsilonBudget:
    """ε at a given δ.

    Attributes:
        epsilon: Above 0.
        delta: In (0, 1).

    Raises:
        InputError: For values outside their bounds.

    Example:
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
        """Return an upper bound on ε(δ).

        Args:
            curve: Of the mechanism that spends.

        Raises:
            RangeError: Where no finite ε is known to hold.

        Guarantee:
            Never below the exact value.
        """
        return float(curve.epsilon(self.delta).upper)


@dataclass(frozen=True, slots=True)
class AdvantageBudget:
    """The greatest TPR − FPR of any membership test.

    Attributes:
        limit: In (0, 1).

    Raises:
        InputError: For a value outside.

    Example:
        >>> AdvantageBudget(0.1).limit
        0.1
    """

    limit: float

    def __post_init__(self) -> None:
        _check.probability("advantage", self.limit, low_open=True, high_open=True)

    def spent(self, curve: PrivacyCurve) -> float:
        """Return an upper bound on the advantage.

        Args:
            curve: Of the mechanism that spends.

        Raises:
            RangeError: Past the numerical range.

        Guarantee:
            Never below the exact value.
        """
        return float(curve.advantage().upper)


@dataclass(frozen=True, slots=True)
class PowerBudget:
    """The greatest true-positive rate of any membership test at one false-positive rate.

    Attributes:
        limit: The true-positive rate, in (0, 1).
        false_positive_rate: In (0, 1), below `limit`.

    Raises:
        InputError: For values outside their bounds.

    Example:
        >>> PowerBudget(0.2, 0.1).limit
        0.2
    """

    limit: float
    false_positive_rate: float

    def __post_init__(self) -> None:
        _check.probability("true_positive_rate", self.limit, low_open=True, high_open=True)
        _check.probability(
            "false_positive_rate", self.false_positive_rate, low_open=True, high_open=True
        )
        if not self.limit > self.false_positive_rate:
            raise InputError(
                f"true_positive_rate = {self.limit!r}: must be above the false-positive rate "
                f"{self.false_positive_rate!r}, which blind guessing reaches"
            )

    def spent(self, curve: PrivacyCurve) -> float:
        """Return an upper bound on the true-positive rate, close where it is at most the limit.

        It is the least of δ(ε) + e^ε·α and 1 − e^(−ε)(1 − δ(ε) − α) over those ε alone at which
        either can be within the limit: one or two of the regions of a profile instead of all.

        Args:
            curve: Of the mechanism that spends.

        Raises:
            RangeError: Past the numerical range.

        Guarantee:
            Never below the exact value.
        """
        alpha, best = self.false_positive_rate, 1.0
        low = 0.0
        high = max(math.log(self.limit / alpha), math.log((1 - alpha) / (1 - self.limit)))
        for _ in range(_ROUNDS):
            epsilon = np.linspace(low, high, _NODES)
            power = least_form(epsilon, curve.delta(epsilon).upper, alpha)
            at = int(power.argmin())
            best = min(best, float(power[at]))
            low, high = epsilon[max(at - 1, 0)], epsilon[min(at + 1, _NODES - 1)]
        return min(max(best * (1 + 1e-14) + 1e-15, alpha), 1.0)


@dataclass(frozen=True, slots=True)
class MuBudget:
    """μ of Gaussian differential privacy; for compositions of plain Gaussians only.

    Attributes:
        limit: Above 0.

    Raises:
        InputError: For another value.

    References:
        Dong, Roth, Su 2022.

    Example:
        >>> MuBudget(1.0).limit
        1.0
    """

    limit: float

    def __post_init__(self) -> None:
        _check.positive("mu", self.limit)

    def spent(self, curve: PrivacyCurve) -> float:
        """Return μ, which is exact.

        Args:
            curve: Of the mechanism that spends.

        Raises:
            UnsupportedError: For anything but plain Gaussians.
        """
        return mu(curve.mechanism or Composed())


@dataclass(frozen=True, slots=True)
class ExcessBudget:
    """Forward Δ-divergence from a baseline: how much more vulnerable than promised.

    Attributes:
        limit: In (0, 1).
        baseline: The curve that was promised.

    Raises:
        InputError: For a limit outside.

    Example:
        >>> from apiece.accounting import privacy_curve
        >>> from apiece.mechanisms import Gaussian
        >>> ExcessBudget(0.1, privacy_curve(Gaussian(2.0))).limit
        0.1
    """

    limit: float
    baseline: PrivacyCurve

    def __post_init__(self) -> None:
        _check.probability("excess", self.limit, low_open=True, high_open=True)

    def spent(self, curve: PrivacyCurve) -> float:
        """Return an upper bound on Δ(baseline ‖ curve).

        Args:
            curve: Of the mechanism that spends.

        Raises:
            RangeError: Past the numerical range.

        Guarantee:
            Never below the exact value; see `excess`.
        """
        return float(excess(self.baseline, curve).forward.upper)


Budget: TypeAlias = EpsilonBudget | AdvantageBudget | PowerBudget | MuBudget | ExcessBudget
