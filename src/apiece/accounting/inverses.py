"""Noise multipliers and sampling probabilities for whole arrays of budgets, all on the safe side.

Every entry's ε is a monotone function of one parameter, nearly a power of it; all are solved in
step, so that each evaluation is one call for all entries that are still open.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from apiece._types import Floats
from apiece.accounting.arrays import broadcast, distinct
from apiece.accounting.choose import require_batch, upper_bounds
from apiece.errors import InfeasibleError

_AIM, _LOOSEST = 1 - 5e-4, 1 - 9e-4
"""A calibration aims at this share of the ε asked, and is done when above the second."""
LEAST_NOISE, _MOST_NOISE = 0.05, 1e8
_LEAST_PROBABILITY = 1e-12
_NARROW, _JUMP = 1e-6, 2e-5  # relative, of log z or log q: how close the end of a jump is sought
_TALL = 0.1  # of log ε within the second: a jump
_LINES = 5  # steps along the line, before false position and bisection take turns


def noise_multipliers(
    *,
    epsilon: npt.ArrayLike,
    delta: npt.ArrayLike,
    sampling_probability: npt.ArrayLike,
    steps: npt.ArrayLike,
    method: str = "pld",
) -> Floats:
    """Return, for each entry, the smallest noise multiplier known to keep (ε, δ).

    The ε recomputed from it by the same method is at most the one asked. Nothing below 0.05 is
    returned.

    Raises `InputError` for values outside their bounds, `InfeasibleError` where no multiplier up
    to 1e8 suffices.

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

    def spent(log_z: Floats, k: npt.NDArray[np.intp]) -> Floats:
        return upper_bounds(method, np.exp(log_z), q[k], t[k], d[k])

    with np.errstate(all="ignore"):
        guess = -0.5 * np.log(np.log1p((_mu(eps, d) / q) ** 2 / t))
    log_z = _safe_ends(spent, eps, np.clip(guess, bottom, top), top, bottom, -1.3)
    if np.isnan(log_z).any():
        first = int(np.flatnonzero(np.isnan(log_z))[0])
        raise InfeasibleError(
            f"epsilon = {float(eps[first])!r} at delta = {float(d[first])!r} in {t[first]:.0f} "
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

    1 where even full participation costs less than ε; 0 where not even 1e-12 keeps it. guess:
    about what it is, NaN where unknown; a good one saves most of the time, a bad one costs some.

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

    def spent(log_q: Floats, k: npt.NDArray[np.intp]) -> Floats:
        return upper_bounds(method, z[k], np.exp(log_q), t[k], d[k])

    with np.errstate(all="ignore"):
        rough = _mu(eps, d) / np.sqrt(t * np.expm1(np.minimum(1 / z**2, 600.0)))
        first = np.log(np.where(start > 0, start, rough))
    log_q = _safe_ends(spent, eps, np.clip(first, bottom, -1e-6), bottom, top, 1.1)
    out[open_] = np.where(np.isnan(log_q), 0.0, np.exp(log_q))
    return np.asarray(out[member].reshape(shape))


def _mu(epsilon: Floats, delta: Floats) -> Floats:
    """Return a rough μ of the Gaussian that spends (ε, δ)."""
    reach = np.sqrt(-2 * np.log(delta)) * 0.9
    return np.asarray(np.sqrt(reach**2 + 2 * epsilon) - reach)


def _safe_ends(
    spent: Callable[[Floats, npt.NDArray[np.intp]], Floats],
    epsilon: Floats,
    guess: Floats,
    safe: Floats,
    unsafe: Floats,
    slope: float,
) -> Floats:
    """Return x between `safe` and `unsafe` with _LOOSEST·ε ≤ spent(x) ≤ ε.

    `spent` takes some x and their entries. It is monotone and log spent(x) nearly linear with
    `slope`, so that steps along the line take a few evaluations. Where they do not, as at noise far
    below 1, where ε rises in steps, false position and bisection take turns. `unsafe` is returned
    where even that spends no more than ε, and NaN where `safe` spends more; where ε jumps, the safe
    end of the jump. Every x returned was evaluated.
    """
    x = np.where(np.isnan(guess), (safe + unsafe) / 2, guess)
    safe, unsafe = safe.copy(), unsafe.copy()
    best, seen, log_seen, above, below = (np.full(x.shape, np.nan) for _ in range(5))
    slopes = np.full(x.shape, slope)
    k = np.arange(x.size)
    for turn in range(100):
        if not k.size:
            break
        here, wanted, value = x[k], epsilon[k], spent(x[k], k)
        good = value <= wanted
        best[k[good]] = safe[k[good]] = here[good]
        done = np.where(good, (value >= _LOOSEST * wanted) | (here == unsafe[k]), here == safe[k])
        unsafe[k[~good]] = here[~good]
        near = np.isfinite(value) & (value > 0)
        with np.errstate(divide="ignore", invalid="ignore"):
            log_value = np.where(near, np.log(value), np.nan)
            found = (log_value - log_seen[k]) / (here - seen[k])
            usable = (np.abs(here - seen[k]) > 1e-6) & (found / slopes[k] > 0.3)
            usable &= found / slopes[k] < 3
        slopes[k[usable]] = found[usable]
        seen[k[near]], log_seen[k[near]] = here[near], log_value[near]
        above[k[~good]], below[k[good]] = log_value[~good], log_value[good]
        aim = math.log(_AIM) + np.log(wanted)
        step = np.where(near, (aim - log_value) / slopes[k], np.nan)
        step = np.where(near, step, (np.where(good, unsafe[k], safe[k]) - here) / 2)
        x[k] = here + step
        if turn >= _LINES:
            share = (aim - below[k]) / (above[k] - below[k]) if turn % 2 else np.full(k.shape, 0.5)
            share = np.where(np.isfinite(share), np.clip(share, 0.01, 0.99), 0.5)
            x[k] = safe[k] + share * (unsafe[k] - safe[k])
        low, high = np.minimum(safe[k], unsafe[k]), np.maximum(safe[k], unsafe[k])
        # at the end of resolution, or where only the safe end itself is left to try
        jumps = ~(above[k] - below[k] < _TALL)
        narrow = high - low < np.where(jumps, _JUMP, _NARROW) * np.maximum(1.0, np.abs(low))
        narrow &= ~done
        ended = narrow & ~np.isnan(best[k])
        x[k[narrow]] = safe[k[narrow]]
        outside = ~narrow & ~((low < x[k]) & (x[k] < high))
        x[k[outside]] = (low[outside] + high[outside]) / 2
        k = k[~(done | ended)]
    return best
