"""What others state of a release: ρ of concentrated privacy, or (ε, δ), whatever the mechanism."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from apiece import _check
from apiece.mechanisms.atoms import Atoms, merge_atoms


@dataclass(frozen=True, slots=True)
class Concentrated:
    """Any release that is ρ-zero-concentrated differentially private, seen from one record.

    Args:
        rho: ρ, positive and finite.

    Raises:
        InputError: For another ρ.

    Guarantee:
        Rényi divergences of at most ρ·α at each order α > 1, in both directions. Of what is below
        nothing is known, so that lower bounds are 0.

    References:
        Bun and Steinke 2016, Def. 1.1.

    Example:
        >>> from apiece import privacy_curve
        >>> from apiece.mechanisms import Concentrated
        >>> round(float(privacy_curve(Concentrated(2.56)).epsilon(1e-10).upper), 2)
        17.16
    """

    rho: float

    def __post_init__(self) -> None:
        _check.put(self, rho=_check.positive)


@dataclass(frozen=True, slots=True)
class Stated:
    """Any release that is (ε, δ)-differentially private, seen from one record.

    Args:
        epsilon: ε, positive and finite.
        delta: δ, in [0, 1).

    Raises:
        InputError: For other values.

    Guarantee:
        Of all such mechanisms the worst, under composition too: with chance δ all is told, else an
        answer that is e^ε times likelier in one world than in the other.

    References:
        Kairouz, Oh, Viswanath 2017, Theorem 3.3.

    Example:
        >>> from apiece import privacy_curve
        >>> from apiece.mechanisms import Stated
        >>> curve = privacy_curve(Stated(1.0, 1e-5))
        >>> round(float(curve.delta(0.5).upper), 4), round(float(curve.delta(1.0).upper), 6)
        (0.2877, 1e-05)
    """

    epsilon: float
    delta: float = 0.0

    def __post_init__(self) -> None:
        _check.put(self, epsilon=_check.positive)
        object.__setattr__(self, "delta", _check.probability("delta", self.delta, high_open=True))

    def atoms(self) -> Atoms:
        """Return the pair of the two worlds."""
        # 1/(1 + e^ε) and e^ε/(1 + e^ε), neither of which loses digits.
        # e^700 is still a finite float.
        lie = 1 / (1 + math.exp(min(self.epsilon, 700.0)))
        truth = 1 / (1 + math.exp(-self.epsilon))
        mass = (1 - self.delta) * np.array([truth, lie])
        ratios = np.array([-self.epsilon, self.epsilon])
        return Atoms(
            *merge_atoms(ratios, mass),
            only_p=self.delta,
            only_q=self.delta,
            error=2.0**-48 * (1 + self.epsilon),
        )
