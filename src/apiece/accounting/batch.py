"""Many records at once: ε for whole arrays. Equal entries are computed once."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from apiece._types import Floats
from apiece.accounting.arrays import broadcast, distinct
from apiece.accounting.bounds import Bounds
from apiece.accounting.choose import BATCH_METHODS, bounds_of
from apiece.errors import RangeError, unknown


def epsilons(
    *,
    noise_multiplier: npt.ArrayLike,
    sampling_probability: npt.ArrayLike,
    steps: npt.ArrayLike,
    delta: npt.ArrayLike,
    method: str = "pld",
) -> Bounds:
    """Return bounds on ε(δ) of `steps` sampled Gaussian steps; all arguments broadcast.

    sampling_probability 0 gives ε = 0. method: "pld" or "rdp" (upper bound only).

    Raises:
        InputError: For values outside their bounds.
        RangeError: Past the numerical range.

    Example:
        >>> bounds = epsilons(noise_multiplier=[1.0, 2.0], sampling_probability=0.01,
        ...                   steps=1000, delta=1e-5)
        >>> bounds.upper.round(2)
        array([1.83, 0.62])
    """
    require_batch(method)
    shape, (z, q, t, d) = broadcast(
        noise_multiplier=noise_multiplier,
        sampling_probability=sampling_probability,
        steps=steps,
        delta=delta,
    )
    entries, member = distinct(np.stack([z, q, t, d]))
    found = bounds_of(entries, method)
    if not np.isfinite(found.upper).all():
        z, q, t, d = entries[:, np.isinf(found.upper)][:, 0]
        raise RangeError(
            f"epsilon at delta = {d:g}: past the numerical range for noise_multiplier = {z:g}, "
            f"sampling_probability = {q:g}, steps = {t:.0f}; ask for a larger delta"
        )
    lower, upper = (end[member] for end in found)
    return Bounds(lower.reshape(shape), upper.reshape(shape))


def upper_bounds(method: str, z: Floats, q: Floats, steps: Floats, delta: Floats) -> Floats:
    """Return upper bounds on ε, ∞ where past the numerical range."""
    entries, member = distinct(np.stack([z, q, steps, delta]))
    try:
        upper = np.asarray(bounds_of(entries, method).upper)
    except RangeError:
        if entries.shape[1] == 1:
            upper = np.array([np.inf])
        else:
            upper = np.concatenate([upper_bounds(method, *row[:, None]) for row in entries.T])
    return upper[member]


def require_batch(method: str) -> None:
    """Raise `InputError` for a method that arrays are not answered by."""
    if method not in BATCH_METHODS:
        raise unknown("method", method, BATCH_METHODS)
