"""Many records at once: ε for whole arrays. Equal entries are computed once."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from apiece._types import Floats
from apiece.accounting.arrays import broadcast, distinct
from apiece.accounting.bounds import Bounds
from apiece.accounting.choose import bounds_of, require_batch, upper_bounds_of
from apiece.errors import RangeError


def epsilons(
    *,
    noise_multiplier: npt.ArrayLike,
    sampling_probability: npt.ArrayLike,
    steps: npt.ArrayLike,
    delta: npt.ArrayLike,
    method: str = "pld",
) -> Bounds:
    """Return bounds on ε(δ) of `steps` sampled Gaussian steps, for whole arrays.

    Args:
        noise_multiplier: Above 0; this and the following broadcast.
        sampling_probability: In [0, 1]; 0 gives ε = 0.
        steps: Whole numbers from 1 on.
        delta: In (0, 1).
        method: "pld", or "rdp", which has no lower ends but 0.

    Raises:
        InputError: For values outside their bounds.
        RangeError: Past the numerical range.

    Guarantee:
        The exact ε lies between the two ends.

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
        raise _past(*entries[:, np.isinf(found.upper)][:, 0])
    lower, upper = (end[member] for end in found)
    return Bounds(lower.reshape(shape), upper.reshape(shape))


def upper_epsilons(
    *,
    noise_multiplier: npt.ArrayLike,
    sampling_probability: npt.ArrayLike,
    steps: npt.ArrayLike,
    delta: npt.ArrayLike,
    method: str = "pld",
) -> Floats:
    """Return upper bounds on ε(δ), as `epsilons`, for a plan's records.

    Equal mechanisms share a computation, so there may be millions of entries, with some hundreds of
    distinct mechanisms. Bounds are usually less than 0.1 % above the truth, as those of
    `privacy_curve`.

    Args:
        noise_multiplier: As for `epsilons`, and so the following; all arguments broadcast.
        sampling_probability: In [0, 1].
        steps: Whole numbers from 1 on.
        delta: In (0, 1).
        method: "pld" or "rdp".

    Raises:
        InputError: For values outside their bounds.
        RangeError: Past the numerical range.

    Guarantee:
        Never below the exact ε; the result depends on the arguments only.

    Example:
        >>> upper = upper_epsilons(noise_multiplier=[1.0, 2.0], sampling_probability=0.01,
        ...                        steps=1000, delta=1e-5)
        >>> upper.round(2)
        array([1.83, 0.62])
    """
    require_batch(method)
    shape, columns = broadcast(
        noise_multiplier=noise_multiplier,
        sampling_probability=sampling_probability,
        steps=steps,
        delta=delta,
    )
    z, q, t, d = columns
    order = np.lexsort((z, q, t))
    upper = np.empty(z.size)
    upper[order] = upper_bounds_of(np.stack(columns)[:, order], method)
    if not np.isfinite(upper).all():
        first = int(np.flatnonzero(~np.isfinite(upper))[0])
        raise _past(z[first], q[first], t[first], d[first])
    return upper.reshape(shape)


def _past(z: float, q: float, steps: float, delta: float) -> RangeError:
    return RangeError(
        f"epsilon at delta = {delta:g}: past the numerical range for noise_multiplier = {z:g}, "
        f"sampling_probability = {q:g}, steps = {steps:.0f}; ask for a larger delta"
    )
