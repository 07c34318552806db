"""Noise multipliers and sampling probabilities for whole arrays of budgets, all on the safe side.

Every entry's ε is a monotone function of one parameter, nearly a power of it; all are solved in
step, so that each evaluation is one call for all entries that are still open.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from apiece._types import Floats
from apiece.accounting.arrays import broadcast, distinct
from apiece.accounting.choose import require_batch, upper_bounds
from apiece.errors import InfeasibleError
from apiece.numerics import log_room, safe_ends

_LEFT = 9e-4  # of log ε, that may be left of a budget: below it a search is done
LEAST_NOISE, _MOST_NOISE = 0.05, 1e8
_LEAST_PROBABILITY = 1e-12


def noise_multipliers(
    *,
    epsilon: npt.ArrayLike,
    delta: npt.ArrayLike,
    sampling_probability: npt.ArrayLike,
    steps: npt.ArrayLike,
    method: str = "pld",
) -> Floats:
    """Return, for each entry, the smallest noise multiplier known to keep (ε, δ).

    Args:
        epsilon: Above 0; this and the following broadcast.
        delta: In (0, 1).
        sampling_probability: In [0, 1].
        steps: Whole numbers from 1 on.
        method: "pld" or "rdp".

    Raises:
        InputError: For values outside their bounds.
        InfeasibleError: Where no multiplier up to 1e8 suffices.

    Guarantee:
        The ε recomputed from it by the same method is at most the one asked. Nothing below 0.05 is
        returned.

    Example:
        >>> z = noise_multipliers(epsilon=1.0, delta=1e-5, sampling_probability=0.00853, steps=9375)
        >>> round(float(z), 2)
        3.18
    """
    require_batch(method)
    shape, flat = broadcast(
        epsilon=epsilon, delta=delta, sampling_probability=sampling_probability, steps=steps
    )
    (eps, d, q, t), member = distinct(np.stack(flat))
    bottom, top = (np.full(eps.shape, math.log(end)) for end in (LEAST_NOISE, _MOST_NOISE))

    def room(log_z: Floats, k: npt.NDArray[np.intp]) -> Floats:
        return log_room(eps[k], upper_bounds(method, np.exp(log_z), q[k], t[k], d[k]))

    with np.errstate(all="ignore"):
        guess = -0.5 * np.log(np.log1p((_mu(eps, d) / q) ** 2 / t))
    first = np.clip(guess, bottom, top)
    log_z = safe_ends(room, first, top, bottom, slope=1.3, tolerance=_LEFT)
    if np.isnan(log_z).any():
        k = int(np.flatnonzero(np.isnan(log_z))[0])
        raise InfeasibleError(
            f"epsilon = {float(eps[k])!r} at delta = {float(d[k])!r} in {t[k]:.0f} "
            f"steps: no noise multiplier up to {_MOST_NOISE:g} keeps it; ask for a larger epsilon"
        )
    z = np.where(q == 0, LEAST_NOISE, np.exp(log_z))
    return np.asarray(z[member].reshape(shape))


def sampling_probabilities(
    *,
    epsilon: npt.ArrayLike,
    delta: npt.ArrayLike,
    noise_multiplier: npt.ArrayLike,
    steps: npt.ArrayLike,
    method: str = "pld",
    guess: npt.ArrayLike = math.nan,
) -> Floats:
    """Return, for each entry, the largest sampling probability known to keep (ε, δ), at most 1.

    Args:
        epsilon: Above 0; this and the following broadcast.
        delta: In (0, 1).
        noise_multiplier: Above 0.
        steps: Whole numbers from 1 on.
        method: "pld" or "rdp".
        guess: About what it is, NaN where unknown. A good one saves most of the time, a bad one
            costs some.

    Raises:
        InputError: For values outside their bounds.

    Guarantee:
        The ε recomputed from it by the same method is at most the one asked. It is 1 where even
        full participation costs less, and 0 where not even 1e-12 keeps it.

    Example:
        >>> q = sampling_probabilities(epsilon=1.0, delta=1e-5, noise_multiplier=2.0, steps=1465)
        >>> round(float(q), 4)
        0.0128
    """
    require_batch(method)
    shape, flat = broadcast(
        epsilon=epsilon, delta=delta, noise_multiplier=noise_multiplier, steps=steps
    )
    start = np.broadcast_to(np.asarray(guess, dtype=np.float64), shape).ravel()
    (eps, d, z, t, start), member = distinct(np.stack([*flat, np.nan_to_num(start, nan=-1.0)]))
    out = np.ones(eps.shape)
    open_ = np.flatnonzero(upper_bounds(method, z, np.ones(z.shape), t, d) > eps)
    eps, d, z, t, start = (column[open_] for column in (eps, d, z, t, start))
    bottom, top = np.full(eps.shape, math.log(_LEAST_PROBABILITY)), np.zeros(eps.shape)

    def room(log_q: Floats, k: npt.NDArray[np.intp]) -> Floats:
        return log_room(eps[k], upper_bounds(method, z[k], np.exp(log_q), t[k], d[k]))

    with np.errstate(all="ignore"):
        rough = _mu(eps, d) / np.sqrt(t * np.expm1(np.minimum(1 / z**2, 600.0)))
        first = np.log(np.where(start > 0, start, rough))
    first = np.clip(first, bottom, -1e-6)
    log_q = safe_ends(room, first, bottom, top, slope=1.1, tolerance=_LEFT)
    out[open_] = np.where(np.isnan(log_q), 0.0, np.exp(log_q))
    return np.asarray(out[member].reshape(shape))


def _mu(epsilon: Floats, delta: Floats) -> Floats:
    """Return a rough μ of the Gaussian that spends (ε, δ)."""
    reach = np.sqrt(-2 * np.log(delta)) * 0.9
    return np.asarray(np.sqrt(reach**2 + 2 * epsilon) - reach)
