"""Provisional: curves by dp-accounting, behind the interface that the accounting issue fills."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

from apiece.errors import InputError
from apiece.mechanisms import Composed, Gaussian, Laplace, Mechanism, Repeated, Sampled


class Bounds(NamedTuple):
    """A quantity that lies in [lower, upper]; floats, or arrays of one shape."""

    lower: Any
    upper: Any


@dataclass(frozen=True, eq=False)
class PrivacyCurve:
    """The privacy profile δ(ε) of one record's mechanism."""

    _accountant: Any

    def epsilon(self, delta: float) -> Bounds:
        """Return bounds on the smallest ε that holds with `delta`."""
        upper = float(self._accountant.get_epsilon(delta))
        return Bounds(0.0, upper)

    def delta(self, epsilon: float) -> Bounds:
        """Return bounds on δ(ε)."""
        return Bounds(0.0, float(self._accountant.get_delta(epsilon)))

    def advantage(self) -> Bounds:
        """Return bounds on the largest TPR − FPR of any membership test: δ(0)."""
        return self.delta(0.0)


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


def privacy_curve(mechanism: Mechanism, *, method: str = "pld") -> PrivacyCurve:
    """Return the privacy curve of `mechanism` under add/remove adjacency."""
    from dp_accounting.pld import PLDAccountant
    from dp_accounting.rdp import RdpAccountant

    if method not in ("pld", "rdp"):
        raise InputError(f"method = {method!r}: must be 'pld' or 'rdp'")
    accountant = PLDAccountant() if method == "pld" else RdpAccountant()
    return PrivacyCurve(accountant.compose(_event(mechanism)))
