"""Plain Gaussians, and nothing at all: exact, however many there are."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from apiece._types import Floats
from apiece.accounting.bounds import Bounds, invert
from apiece.accounting.closed import forms
from apiece.errors import UnsupportedError
from apiece.mechanisms import Gaussian, Mechanism, flatten


@dataclass(frozen=True)
class GaussianProfile:
    """The profile of one Gaussian, exact up to rounding; the same in both directions."""

    noise_multiplier: float

    def delta(self, epsilon: Floats) -> Bounds:
        """Bound δ(ε) in closed form."""
        return forms.gaussian(self.noise_multiplier, epsilon)

    def epsilon(self, delta: Floats) -> Bounds:
        """Bound ε(δ) by inverting the closed form."""
        return invert(self.delta, delta)


@dataclass(frozen=True)
class NothingReleased:
    """The profile of a mechanism that never sees the record: δ(ε) = 0 for ε ≥ 0."""

    def delta(self, epsilon: Floats) -> Bounds:
        """Return 0."""
        return Bounds(np.zeros(epsilon.shape), np.zeros(epsilon.shape))

    def epsilon(self, delta: Floats) -> Bounds:
        """Return 0."""
        return Bounds(np.zeros(delta.shape), np.zeros(delta.shape))


def mu(mechanism: Mechanism) -> float:
    """Return the exact μ of a composition of plain Gaussians: the root of Σ 1/z².

    Raises:
        UnsupportedError: Where a step is anything else; it is named.

    References:
        Dong, Roth, Su 2022, Corollary 3.3.

    Example:
        >>> from apiece.mechanisms import Repeated
        >>> mu(Repeated(Gaussian(10.0), 25))
        0.5
    """
    steps = flatten(mechanism)
    for step, _ in steps:
        if not isinstance(step, Gaussian):
            raise UnsupportedError(
                f"method 'gdp': {step!r} is not a plain Gaussian; use method 'pld' or 'rdp'"
            )
    # flattening has merged all plain Gaussians into one
    return sum(1 / step.noise_multiplier for step, _ in steps if isinstance(step, Gaussian))


def rho(mechanism: Mechanism) -> float:
    """Return the exact ρ of zero-concentrated DP, μ²/2; raise as `mu` does.

    References:
        Bun and Steinke 2016, Prop. 1.6.
    """
    return mu(mechanism) ** 2 / 2
