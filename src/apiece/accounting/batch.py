"""Many records at once: ε for whole arrays. Equal entries are computed once."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from apiece._types import Floats
from apiece.accounting.bounds import Bounds, Profile, tightest
from apiece.accounting.contour.profile import MANY, close, sampled_epsilon
from apiece.accounting.lattice import profile as pld
from apiece.accounting.lattice.grid import DEFAULT
from apiece.accounting.renyi import profile as rdp
from apiece.errors import ApieceError, BudgetError, InputError, RangeError, unknown
from apiece.mechanisms import Gaussian, Mechanism, Repeated, Sampled

_ACCOUNTS: dict[str, Callable[[Mechanism], Profile]] = {"pld": pld.profile, "rdp": rdp.profile}
BATCH_METHODS = tuple(_ACCOUNTS)
"""Methods for arrays of mechanisms."""


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

    Raises `InputError` for values outside their bounds, `RangeError` past the numerical range.

    >>> bounds = epsilons(noise_multiplier=[1.0, 2.0], sampling_probability=0.01,
    ...                   steps=1000, delta=1e-5)
    >>> bounds.upper.round(2)
    array([1.83, 0.62])
    """
    account = account_of(method)
    shape, (z, q, t, d) = broadcast(
        noise_multiplier=noise_multiplier,
        sampling_probability=sampling_probability,
        steps=steps,
        delta=delta,
    )
    entries, member = distinct(np.stack([z, q, t, d]))
    found = _bounds(account, entries)
    if not np.isfinite(found.upper).all():
        z, q, t, d = entries[:, np.isinf(found.upper)][:, 0]
        raise RangeError(
            f"epsilon at delta = {d:g}: past the numerical range for noise_multiplier = {z:g}, "
            f"sampling_probability = {q:g}, steps = {t:.0f}; ask for a larger delta"
        )
    lower, upper = (end[member] for end in found)
    return Bounds(lower.reshape(shape), upper.reshape(shape))


def distinct(columns: Floats) -> tuple[Floats, npt.NDArray[np.intp]]:
    """Return the distinct columns in lexical order, and the place of each column among them."""
    order = np.lexsort(columns[::-1])
    ordered = columns[:, order]
    new = np.append(True, (np.diff(ordered, axis=1) != 0).any(axis=0))[: order.size]
    member = np.empty(order.size, dtype=np.intp)
    member[order] = np.cumsum(new) - 1
    return ordered[:, new], member


def _bounds(account: Callable[[Mechanism], Profile], columns: Floats) -> Bounds:
    """Return bounds for columns (z, q, steps, δ), 0 and ∞ where the arithmetic tells nothing.

    Raises `RangeError` where it fails.
    """
    try:
        with np.errstate(all="ignore"):
            lower, upper = _computed(account, columns)
    except ApieceError:
        raise
    except (OverflowError, ZeroDivisionError, ValueError) as error:  # of math functions
        raise RangeError(
            f"past the numerical range ({error}); use noise, probabilities and counts of usual "
            "sizes"
        ) from None
    nothing = np.isnan(lower) | np.isnan(upper)
    return Bounds(np.where(nothing, 0.0, lower), np.where(nothing, np.inf, upper))


def _computed(account: Callable[[Mechanism], Profile], columns: Floats) -> Bounds:
    """Return bounds for columns (z, q, steps, δ), sorted so that equal mechanisms are neighbours.

    All at once as far as that gives close bounds; the others one after another, as their arrays
    are too small for threads to gain by.
    """
    z, q, t, d = columns
    lower, upper = np.zeros(z.size), np.full(z.size, np.inf)
    new = (np.diff(columns[:3], axis=1) != 0).any(axis=0)
    starts = np.flatnonzero(np.append(True, new)[: z.size])
    sizes = np.diff(np.append(starts, z.size))
    if account is pld.profile:
        few = np.repeat(sizes, sizes) < MANY
        some = np.flatnonzero((q > 0) & (q < 1) & few)
        lower[some], upper[some] = sampled_epsilon(z[some], q[some], t[some], d[some])
    left = ~close(lower, upper, DEFAULT)
    for start, size in zip(starts, sizes, strict=True):
        group = start + np.flatnonzero(left[start : start + size])
        if group.size:
            profile = account(_mechanism(*columns[:3, start]))
            ask = profile.by_lattice if isinstance(profile, pld.Composition) else profile.epsilon
            found = tightest([Bounds(lower[group], upper[group]), ask(d[group])])
            lower[group], upper[group] = found
    return Bounds(lower, upper)


def upper_bounds(
    account: Callable[[Mechanism], Profile], z: Floats, q: Floats, steps: Floats, delta: Floats
) -> Floats:
    """Return upper bounds on ε, ∞ where past the numerical range."""
    entries, member = distinct(np.stack([z, q, steps, delta]))
    try:
        upper = np.asarray(_bounds(account, entries).upper)
    except RangeError:
        if entries.shape[1] == 1:
            upper = np.array([np.inf])
        else:
            upper = np.concatenate([upper_bounds(account, *row[:, None]) for row in entries.T])
    return upper[member]


def account_of(name: str) -> Callable[[Mechanism], Profile]:
    """Return the accountant of one mechanism."""
    if name not in _ACCOUNTS:
        raise unknown("method", name, BATCH_METHODS)
    return _ACCOUNTS[name]


def _mechanism(z: float, q: float, steps: float) -> Mechanism:
    return Repeated(Sampled(Gaussian(float(z)), float(q)), int(steps))


def broadcast(**columns: npt.ArrayLike) -> tuple[tuple[int, ...], list[Floats]]:
    """Check and broadcast the arguments; return their shape and flat columns."""
    arrays = [_checked(name, values) for name, values in columns.items()]
    try:
        arrays = list(np.broadcast_arrays(*arrays))
    except ValueError:
        shapes = ", ".join(f"{n} {np.shape(v)}" for n, v in columns.items())
        raise InputError(f"arrays do not broadcast: {shapes}; give one shape") from None
    return arrays[0].shape, [array.ravel() for array in arrays]


def _checked(name: str, values: npt.ArrayLike) -> Floats:
    try:
        array = np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError, OverflowError):
        raise InputError(f"{name}: not numbers; give an array of numbers") from None
    error: type[InputError] = InputError
    match name:
        case "sampling_probability":
            good, bound = (array >= 0) & (array <= 1), "[0, 1]"
        case "steps":
            good, bound = (array >= 1) & (array == np.floor(array)) & (array < 1e15), "1, 2, 3, …"
        case "delta":
            good, bound, error = (array > 0) & (array < 1), "(0, 1)", BudgetError
        case "epsilon":
            good, bound, error = (array > 0) & (array < np.inf), "(0, inf)", BudgetError
        case _:
            good, bound = (array > 0) & (array < np.inf), "(0, inf)"
    if not good.all():
        first = int(np.flatnonzero(~good.ravel())[0])
        where = f"[{first}]" if array.ndim else ""
        value = float(array.ravel()[first])
        raise error(f"{name}{where} = {value!r}: must be in {bound}; give numbers inside")
    return array
