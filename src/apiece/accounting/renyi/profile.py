"""Rényi accounting: divergences add up under composition; the best order is sought."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from apiece._types import Floats
from apiece.accounting.bounds import Bounds
from apiece.accounting.renyi import divergences
from apiece.errors import InputError, UnsupportedError
from apiece.mechanisms import (
    Gaussian,
    Laplace,
    Mechanism,
    NormalForm,
    Sampled,
    atoms_of,
    flatten,
)

_SMALLEST = 1e-300
_ORDERS = 400
_LARGEST_ORDER = 1e15


def epsilon_at(divergence: Floats, orders: Floats, delta: Floats) -> Floats:
    """Return the ε that order α with divergence R gives at δ; any order is a valid upper bound.

    ε = R + log((α − 1)/α) − (log δ + log α)/(α − 1), and 0 where total variation, at most
    √(1 − e^{−R}), is below δ. Source: Canonne, Kamath, Steinke 2020, Prop. 12 (equally Asoodeh
    et al. 2020); Bretagnolle and Huber 1979.
    """
    least = orders - 1
    epsilon = divergence + np.log1p(-1 / orders) - (np.log(delta) + np.log(orders)) / least
    epsilon = np.maximum(epsilon + 1e-15 * (1 + np.abs(np.log(delta)) / least), 0.0)
    return np.where(np.sqrt(-np.expm1(-divergence)) * (1 + 1e-12) <= delta, 0.0, epsilon)


def delta_at(divergence: Floats, orders: Floats, epsilon: Floats) -> Floats:
    """Return the δ that order α with divergence R gives at ε ≥ 0; sources as `epsilon_at`."""
    exponent = (orders - 1) * (divergence - epsilon + np.log1p(-1 / orders)) - np.log(orders)
    rounding = 1e-15 * (orders - 1) * (1 + epsilon + divergence)
    delta = np.exp(np.minimum(exponent + rounding, 0.0)) * (1 + 1e-12)
    variation = np.sqrt(-np.expm1(-divergence)) * (1 + 1e-12)
    return np.maximum(np.minimum(delta, variation), _SMALLEST)


@dataclass(frozen=True, eq=False)
class RenyiProfile:
    """An upper bound on a profile from Rényi divergences at many orders; the lower bound is 0."""

    orders: Floats
    divergence: Floats

    def delta(self, epsilon: Floats) -> Bounds:
        """Bound δ(ε) by the best order."""
        upper = delta_at(self.divergence, self.orders, epsilon[:, None]).min(axis=1)
        return Bounds(np.zeros(upper.shape), np.minimum(upper, 1.0))

    def epsilon(self, delta: Floats) -> Bounds:
        """Bound ε(δ) by the best order."""
        upper = epsilon_at(self.divergence, self.orders, delta[:, None]).min(axis=1)
        return Bounds(np.zeros(upper.shape), upper)

    def best_order(self, delta: float) -> float:
        """Return the order that gives ε(δ)."""
        return float(
            self.orders[epsilon_at(self.divergence, self.orders, np.array(delta)).argmin()]
        )


def divergence(mechanism: Mechanism, orders: npt.ArrayLike) -> Floats:
    """Return Rényi divergences of `mechanism` at `orders` > 1, the larger of both directions.

    Raises `UnsupportedError`, naming it, where a step is none of Gaussian, Laplace, finite and
    discrete Laplace, nor one of them (or several Gaussians) behind one coin; `InputError` for
    orders not above 1.

    >>> from apiece.mechanisms import Repeated
    >>> divergence(Repeated(Gaussian(2.0), 8), [2.0, 3.0]).round(6).tolist()
    [2.0, 3.0]
    """
    alpha = np.asarray(orders, dtype=np.float64)
    if not (alpha > 1).all() or not np.isfinite(alpha).all():
        raise InputError(
            f"orders from {alpha.min()!s} to {alpha.max()!s}: must be above 1 and finite"
        )
    return _total(flatten(mechanism), alpha)


def _total(steps: NormalForm, orders: Floats) -> Floats:
    total = np.zeros(orders.shape)
    for step, times in steps:
        total = total + times * _step(step, orders)
    return total


def _step(step: Mechanism, orders: Floats) -> Floats:
    match step:
        case Gaussian(noise_multiplier):
            return divergences.gaussian(noise_multiplier, orders)
        case Laplace(noise_multiplier):
            return divergences.laplace(noise_multiplier, orders)
        case Sampled(Gaussian(noise_multiplier), probability):
            return divergences.sampled_gaussian(noise_multiplier, probability, orders)
        case Sampled(Laplace(noise_multiplier), probability):
            return divergences.sampled_laplace(noise_multiplier, probability, orders)
        case _ if (atoms := atoms_of(step)) is not None and not atoms.outside_p:
            return divergences.discrete(atoms, orders)
        case _:
            raise UnsupportedError(
                f"method 'rdp': no exact Rényi divergence of {step!r}; use method 'pld'"
            )


def renyi(steps: NormalForm) -> RenyiProfile:
    """Return an upper bound on the profile of at least one step; raise as `divergence` does."""
    high = min(2 + 2 * max(_largest_order(step) for step, _ in steps), _LARGEST_ORDER)
    orders = 1 + np.geomspace(min(1e-3, high * 1e-5), high, _ORDERS)
    return RenyiProfile(orders, _total(steps, orders))


def _largest_order(step: Mechanism) -> float:
    """Return about the largest order that can be the best one, for δ down to 1e-30."""
    match step:
        case Gaussian(z):
            return 12 * z
        case Laplace(z):
            return 70 * max(z, 1.0)
        case Sampled(Laplace(z), q):
            return max(70 * max(z, 1.0), -z * math.log(q))
        case Sampled(Gaussian(z), q):
            return max(12 * z, -z * z * math.log(q))
        case _ if (atoms := atoms_of(step)) is not None:
            largest = float(np.abs(atoms.log_ratio).max(initial=0.0))
            return 70 / min(max(largest, 1e-6), 1.0)
        case _:
            return 1.0
