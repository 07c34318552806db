"""Provisional: the profile of a mechanism by dp-accounting's PLD; an upper bound only."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from apiece.accounting.bounds import Bounds, Floats, invert
from apiece.accounting.gdp import NothingReleased
from apiece.mechanisms import Composed, Gaussian, Laplace, Mechanism, Repeated, Sampled, flatten


@dataclass(frozen=True, eq=False)
class OracleProfile:
    """dp-accounting's accountant behind the interface."""

    accountant: Any

    def delta(self, epsilon: Floats) -> Bounds:
        """Bound δ(ε) from above."""
        upper = np.array([self.accountant.get_delta(float(e)) for e in epsilon])
        return Bounds(np.zeros(upper.shape), np.minimum(upper, 1.0))

    def epsilon(self, delta: Floats) -> Bounds:
        """Bound ε(δ) from above."""
        if delta.size > 100:
            return invert(self.delta, delta)
        upper = np.array([self.accountant.get_epsilon(float(d)) for d in delta])
        return Bounds(np.zeros(upper.shape), np.maximum(upper, 0.0))


def profile(mechanism: Mechanism) -> OracleProfile | NothingReleased:
    """Return an upper bound on the profile of `mechanism`."""
    from dp_accounting.pld import PLDAccountant

    steps = flatten(mechanism)
    if not steps:
        return NothingReleased()
    accountant = PLDAccountant()
    for step, times in steps:
        accountant.compose(_event(step), times)
    return OracleProfile(accountant)


def _event(mechanism: Mechanism) -> Any:
    import dp_accounting as dp

    match mechanism:
        case Gaussian(noise_multiplier):
            return dp.GaussianDpEvent(noise_multiplier)
        case Laplace(noise_multiplier):
            return dp.LaplaceDpEvent(noise_multiplier)
        case Sampled(inner, probability):
            return dp.PoissonSampledDpEvent(probability, _event(inner))
        case Repeated(inner, times):
            return dp.SelfComposedDpEvent(_event(inner), times)
        case Composed(mechanisms):
            return dp.ComposedDpEvent([_event(m) for m in mechanisms])
