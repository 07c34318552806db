"""Rényi accounting: divergences add up under composition; the best order is sought."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

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
_SPACING = 0.1  # of the orders tried first, of log(α − 1)
_CLOSER = ((0.1, 16), (0.0133, 12))  # how far around the best, and how many orders
_CLOSE = 2.0
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
    """An upper bound on a profile from Rényi divergences at many orders; the lower bound is 0.

    ε has a sharp least value at the order where the divergence takes off. So orders are tried far
    apart first; then around the best one, for each value asked, closer and closer. Orders tried
    are kept, and an answer never depends on what was asked before.
    """

    steps: NormalForm
    orders: Floats
    _tried: dict[tuple[int, ...], tuple[Floats, Floats]] = field(default_factory=dict, repr=False)

    def delta(self, epsilon: Floats) -> Bounds:
        """Bound δ(ε) by the best order."""
        upper = self._least(delta_at, epsilon)
        return Bounds(np.zeros(upper.shape), np.minimum(upper, 1.0))

    def epsilon(self, delta: Floats) -> Bounds:
        """Bound ε(δ) by the best order; 0 where δ(0), whose best order is another, is at most δ."""
        upper, nothing = self._least(epsilon_at, delta), np.zeros(1)
        # orders closer by lower δ(0) by far less than this, so that most need not look for them
        orders, divergence = self.at(())
        if (delta_at(divergence, orders, nothing) <= _CLOSE * delta.max(initial=0.0)).any():
            upper = np.where(self.delta(nothing).upper <= delta, 0.0, upper)
        return Bounds(np.zeros(upper.shape), upper)

    def _least(self, ask: Callable[[Floats, Floats, Floats], Floats], values: Floats) -> Floats:
        """Return the least bound at each value."""
        least = np.full(values.shape, np.inf)
        waiting: list[tuple[tuple[int, ...], npt.NDArray[np.intp]]] = [((), np.arange(values.size))]
        while waiting:
            place, members = waiting.pop()
            orders, divergence = self.at(place)
            found = ask(divergence, orders, values[members, None])
            least[members] = np.minimum(least[members], found.min(axis=1))
            if len(place) < len(_CLOSER):
                best = found.argmin(axis=1)
                waiting += [((*place, int(k)), members[best == k]) for k in np.unique(best)]
        return least

    def at(self, place: tuple[int, ...]) -> tuple[Floats, Floats]:
        """Return the orders around the one at a place, and their divergences."""
        if place not in self._tried:
            orders = self.orders
            if place:
                width, count = _CLOSER[len(place) - 1]
                middle = math.log(self.at(place[:-1])[0][place[-1]] - 1)
                orders = 1 + np.exp(middle + np.linspace(-width, width, count))
            self._tried[place] = orders, _total(self.steps, orders)
        return self._tried[place]


def divergence(mechanism: Mechanism, orders: npt.ArrayLike) -> Floats:
    """Return Rényi divergences of `mechanism`, the larger of both directions.

    Args:
        mechanism: Of Gaussian, Laplace, finite and discrete Laplace steps, plain or each behind one
            coin; several Gaussians may share a coin.
        orders: Each above 1; of any shape, which the result has.

    Raises:
        UnsupportedError: For another step, which it names.
        InputError: For orders not above 1.

    Guarantee:
        Never below the exact divergence.

    Example:
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
    low = min(1e-3, high * 1e-5)
    orders = 1 + np.geomspace(low, high, math.ceil(math.log(high / low) / _SPACING) + 1)
    found = RenyiProfile(steps, orders)
    found.at(())  # raises where a step has no divergence
    return found


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
