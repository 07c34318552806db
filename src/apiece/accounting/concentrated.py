"""ρ of zero-concentrated privacy: of any mechanism, and the ε that it stands for at a δ."""

from __future__ import annotations

import math
from typing import Final

import numpy as np
import numpy.typing as npt

from apiece import _check
from apiece._types import Floats
from apiece.accounting.exact import build_pure_profile
from apiece.accounting.slack import gaussian_of_laplace
from apiece.mechanisms import (
    Allocated,
    Concentrated,
    DiscreteGaussian,
    Gaussian,
    Laplace,
    Mechanism,
    Sampled,
)
from apiece.mechanisms.algebra import NormalForm, flatten
from apiece.mechanisms.mixture import MixtureOfGaussians
from apiece.numerics.rounding import UNIT

# Orders that are looked at: 1 + √(log(1/δ)/ρ), the best of the simple conversion, by these factors.
_FACTORS: Final = np.geomspace(0.05, 2.0, 240)


def concentrated_rho(mechanism: Mechanism) -> float:
    """Return a ρ such that a mechanism is ρ-zero-concentrated private; ∞ where none is known.

    A coin before a mechanism lowers its ε and not its ρ, which is a bound at every order: what is
    sampled has the ρ of what is not.

    Args:
        mechanism: What is done to one record.

    Guarantee:
        Rounded up. The Rényi divergence of each order α > 1 is at most ρ·α, in both directions.

    References:
        Bun and Steinke 2016, Prop. 1.4 and 1.6; Canonne, Kamath, Steinke 2020, Prop. 5.

    Example:
        >>> from apiece import Gaussian, Repeated, Sampled
        >>> from apiece.accounting import concentrated_rho
        >>> from apiece.mechanisms import Stated
        >>> round(concentrated_rho(Repeated(Sampled(Gaussian(10.0), 0.1), 50)), 6)
        0.25
        >>> concentrated_rho(Stated(1.0, 1e-6))
        inf
    """
    return _add_rho(flatten(mechanism))


def _add_rho(steps: NormalForm) -> float:
    """Return the sum of the steps' ρ, rounded up."""
    total = math.fsum(times * _bound_step(step) for step, times in steps)
    return total * (1 + (8 + 2 * len(steps)) * UNIT)


def _bound_step(step: Mechanism) -> float:
    """Return a ρ of one step; ∞ where none is known."""
    match step:
        case Gaussian(noise_multiplier) | Allocated(noise_multiplier):
            # Allocated steps have a ratio that is a mean of those of plain Gaussians.
            return 1 / noise_multiplier / noise_multiplier / 2
        case DiscreteGaussian(scale, sensitivity):
            ratio = sensitivity / scale
            return ratio * ratio / 2
        case MixtureOfGaussians():
            ratio = step.shifts[-1] / step.noise_multiplier
            return ratio * ratio / 2
        case Concentrated(rho):
            return rho
        case Sampled(inner, probability):
            # Rényi divergence is jointly quasi-convex: what a coin mixes in has none.
            return _add_rho(flatten(inner)) if probability > 0 else 0.0
    bounded = build_pure_profile(((step, 1),))
    if bounded is None:
        return math.inf
    # No divergence of any order is above ε, and none is above α·ε²/2.
    rho = bounded.most * min(bounded.most / 2, 1.0)
    if isinstance(step, Laplace):
        # No more tells it than the Gaussian that stands for it.
        mu = float(gaussian_of_laplace(1 / step.scale))
        rho = min(rho, mu * mu / 2)
    return rho


def concentrated_epsilon(rho: npt.ArrayLike, delta: npt.ArrayLike) -> Floats:
    """Return an ε such that whatever is ρ-zero-concentrated private is (ε, δ)-private.

    Args:
        rho: ρ, positive; arrays are taken entry by entry.
        delta: δ, in (0, 1).

    Raises:
        InputError: For other values.

    Guarantee:
        Rounded up.

    References:
        Canonne, Kamath, Steinke 2020, Prop. 12.

    Example:
        >>> from apiece.accounting.concentrated import concentrated_epsilon
        >>> round(float(concentrated_epsilon(2.56, 1e-10)), 2)
        17.16
    """
    rhos, deltas = np.broadcast_arrays(
        _check.positive_array("rho", rho), _check.positive_array("delta", delta, below=1.0)
    )
    shape = rhos.shape
    rhos = rhos.reshape(-1, 1)
    deltas = deltas.reshape(-1, 1)
    # Of α − 1. Every order holds, so that the grid costs closeness alone.
    orders = np.sqrt(-np.log(deltas) / rhos) * _FACTORS
    alpha = 1 + orders
    # ε = ρα + log(1 − 1/α) − log(δα)/(α − 1), each term with its own rounding.
    terms = (rhos * alpha, np.log1p(-1 / alpha), -np.log(deltas * alpha) / orders)
    size = sum(np.abs(term) for term in terms)
    values = sum(terms) + 16 * UNIT * size
    return np.asarray(np.maximum(values.min(axis=1), 0.0)).reshape(shape)
