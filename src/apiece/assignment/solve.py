"""What strategies share: safe parameters for many budgets at once, and one root finder."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from apiece import accounting
from apiece.assignment.request import Request
from apiece.errors import InfeasibleError, UnsupportedError

Floats = npt.NDArray[np.float64]
MANY = 500  # more distinct budgets than this are not planned for curve by curve
ROUND = 1 - 1e-12  # a factor that outweighs the rounding of a product or quotient


def noise(request: Request, epsilon: Floats, delta: Floats, probability: npt.ArrayLike) -> Floats:
    """Return the smallest safe noise multiplier for each (ε, δ) at a sampling probability."""
    return noise_for(request, epsilon, delta, probability, steps=request.steps)


def noise_for(
    request: Request,
    epsilon: Floats,
    delta: Floats,
    probability: npt.ArrayLike,
    *,
    steps: npt.ArrayLike,
) -> Floats:
    """Return the smallest safe noise multiplier for each (ε, δ), rate and number of steps."""
    return np.asarray(
        accounting.noise_multipliers(
            epsilon=epsilon,
            delta=delta,
            sampling_probability=probability,
            steps=steps,
            method=request.method,
        )
    )


def rates(request: Request, epsilon: Floats, delta: Floats, multiplier: npt.ArrayLike) -> Floats:
    """Return the largest safe sampling probability for each (ε, δ) at a noise multiplier."""
    found = np.asarray(
        accounting.sampling_probabilities(
            epsilon=epsilon,
            delta=delta,
            noise_multiplier=multiplier,
            steps=request.steps,
            method=request.method,
        )
    )
    if not (found > 0).all():
        g = int(np.flatnonzero(~(found > 0))[0])
        raise InfeasibleError(
            f"group {request.groups.name[g]}: epsilon = {epsilon[g]:g} at delta = {delta[g]:g} "
            f"allows no sampling probability at noise multiplier {float(np.max(multiplier)):.4g} "
            f"and {request.steps} steps; raise this budget, use fewer steps, or take "
            "noise='batch'"
        )
    return found


def strictest(epsilon: Floats, delta: Floats) -> npt.NDArray[np.int64]:
    """Return the budgets that no other is below in both ε and δ: they decide a uniform noise.

    >>> strictest(np.array([1.0, 2.0, 3.0]), np.array([1e-5, 1e-6, 1e-6])).tolist()
    [0, 1]
    """
    order = np.lexsort((delta, epsilon))
    least = np.minimum.accumulate(delta[order])
    first = np.ones(order.size, dtype=bool)
    first[1:] = delta[order][1:] < least[:-1]
    return np.asarray(order[first])


def loosest(epsilon: Floats, delta: Floats) -> npt.NDArray[np.int64]:
    """Return the budgets that no other is above in both ε and δ."""
    return strictest(-epsilon, -delta)


def uniform_noise(request: Request, epsilon: Floats, delta: Floats, probability: float) -> float:
    """Return the least noise multiplier that keeps every one of these budgets."""
    front = strictest(epsilon, delta)
    return float(noise(request, epsilon[front], delta[front], probability).max())


def crossing(
    excess: Callable[[float], float], low: float, high: float, *, tolerance: float = 1e-6
) -> float:
    """Return x with excess(x) ≥ 0, within a factor 1 + tolerance of the crossing.

    excess: increasing on [low, high], both positive. Where it is negative at `high`, returns
    `high`; where it is at least 0 at `low`, returns `low`. Solved in log x by Brent's method.
    """
    from scipy.optimize import brentq

    if low >= high or excess(low) >= 0:
        return low
    if excess(high) <= 0:
        return high
    root = brentq(lambda t: excess(np.exp(t)), np.log(low), np.log(high), xtol=tolerance / 4)
    x = float(np.exp(root))
    while x < high and excess(x) < 0:
        x = min(high, x * (1 + tolerance / 2))
    return x


def few_groups(request: Request, strategy: str) -> None:
    """Raise `UnsupportedError` where a strategy that computes a curve a group has too many."""
    if len(request.groups) > MANY:
        raise UnsupportedError(
            f"strategy {strategy}: {len(request.groups)} distinct budgets, at most {MANY}; round "
            "them down first, with Budgets.rounded_down"
        )
