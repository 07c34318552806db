"""Many records at once: ε, noise multipliers and sampling probabilities for whole arrays.

Equal entries are computed once, and entries that differ in δ alone share their curve. All results
are on the safe side of the accountant's upper bound.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from apiece.accounting import pld, rdp
from apiece.accounting.bounds import Bounds, Floats, Profile
from apiece.accounting.grid import DEFAULT
from apiece.accounting.lines import tightest
from apiece.accounting.sampled import MANY, close, sampled_epsilon
from apiece.errors import BudgetError, InfeasibleError, InputError, RangeError, unknown
from apiece.mechanisms import Gaussian, Mechanism, Repeated, Sampled

_METHODS: dict[str, Callable[[Mechanism], Profile]] = {"pld": pld.profile, "rdp": rdp.profile}
_AIM, _LOOSEST = 1 - 5e-4, 1 - 9e-4
"""A calibration aims at this share of the ε asked, and is done when above the second."""
_LEAST_NOISE, _MOST_NOISE = 0.05, 1e8
_LEAST_PROBABILITY = 1e-12
_Solved = dict[tuple[float, float, float], list[tuple[float, float]]]


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
    account = _method(method)
    shape, (z, q, t, d) = _columns(
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
    account = _method(method)
    solved: _Solved = {}

    def solve(eps: float, d: float, q: float, t: float) -> float:
        if q == 0:
            return _LEAST_NOISE

        def spent(log_z: float) -> float:
            return _spent(account, math.exp(log_z), q, t, d)

        guess = _neighbours(solved, (d, q, t), math.log(eps))
        if guess is None:
            guess = -0.5 * math.log(math.log1p((_mu(eps, d) / q) ** 2 / t))
        bottom, top = math.log(_LEAST_NOISE), math.log(_MOST_NOISE)
        found = _safe_end(spent, eps, min(max(guess, bottom), top), top, bottom, -1.3)
        if found is None:
            raise InfeasibleError(
                f"epsilon = {eps!r} at delta = {d!r} in {t:.0f} steps: no noise multiplier up to "
                f"{_MOST_NOISE:g} keeps it; ask for a larger epsilon"
            )
        solved.setdefault((d, q, t), []).append((math.log(eps), found))
        return math.exp(found)

    return _each(
        solve, epsilon=epsilon, delta=delta, sampling_probability=sampling_probability, steps=steps
    )


def sampling_probabilities(
    *,
    epsilon: npt.ArrayLike,
    delta: npt.ArrayLike,
    noise_multiplier: npt.ArrayLike,
    steps: npt.ArrayLike,
    method: str = "pld",
) -> Floats:
    """Return, for each entry, the largest sampling probability known to keep (ε, δ), at most 1.

    1 where even full participation costs less than ε; 0 where not even 1e-12 keeps it.

    >>> q = sampling_probabilities(epsilon=1.0, delta=1e-5, noise_multiplier=2.0, steps=1465)
    >>> round(float(q), 4)
    0.0128
    """
    account = _method(method)
    solved: _Solved = {}

    def solve(eps: float, d: float, z: float, t: float) -> float:
        if _spent(account, z, 1.0, t, d) <= eps:
            return 1.0

        def spent(log_q: float) -> float:
            return _spent(account, z, math.exp(log_q), t, d)

        guess = _neighbours(solved, (d, z, t), math.log(eps))
        if guess is None:
            growth = math.expm1(min(1 / z**2, 600.0))
            guess = math.log(_mu(eps, d) / math.sqrt(t * growth))
        bottom = math.log(_LEAST_PROBABILITY)
        found = _safe_end(spent, eps, min(max(guess, bottom), -1e-3), bottom, 0.0, 1.1)
        if found is None:
            return 0.0
        solved.setdefault((d, z, t), []).append((math.log(eps), found))
        return math.exp(found)

    return _each(
        solve, epsilon=epsilon, delta=delta, noise_multiplier=noise_multiplier, steps=steps
    )


def distinct(columns: Floats) -> tuple[Floats, npt.NDArray[np.intp]]:
    """Return the distinct columns in lexical order, and the place of each column among them."""
    order = np.lexsort(columns[::-1])
    ordered = columns[:, order]
    new = np.append(True, (np.diff(ordered, axis=1) != 0).any(axis=0))[: order.size]
    member = np.empty(order.size, dtype=np.intp)
    member[order] = np.cumsum(new) - 1
    return ordered[:, new], member


def _bounds(account: Callable[[Mechanism], Profile], columns: Floats) -> Bounds:
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
            found = ask(d[group])
            lower[group], upper[group] = tightest([Bounds(lower[group], upper[group]), found])
    return Bounds(lower, upper)


def _method(name: str) -> Callable[[Mechanism], Profile]:
    if name not in _METHODS:
        raise unknown("method", name, _METHODS)
    return _METHODS[name]


def _mechanism(z: float, q: float, steps: float) -> Mechanism:
    return Repeated(Sampled(Gaussian(float(z)), float(q)), int(steps))


def _spent(
    account: Callable[[Mechanism], Profile], z: float, q: float, steps: float, delta: float
) -> float:
    """Return the upper bound on ε, ∞ where past the numerical range."""
    try:
        return float(account(_mechanism(z, q, steps)).epsilon(np.array([delta])).upper[0])
    except RangeError:
        return math.inf


def _mu(epsilon: float, delta: float) -> float:
    """Return a rough μ of the Gaussian that spends (ε, δ)."""
    reach = math.sqrt(2 * math.log(1 / delta)) * 0.9
    return math.sqrt(reach**2 + 2 * epsilon) - reach


def _neighbours(
    solved: _Solved, key: tuple[float, float, float], log_epsilon: float
) -> float | None:
    """Return a guess from the last two entries with the same other parameters, if there are two."""
    known = solved.get(key, [])
    if len(known) < 2 or known[-1][0] == known[-2][0]:
        return None
    (first, at_first), (last, at_last) = known[-2:]
    return at_last + (log_epsilon - last) * (at_last - at_first) / (last - first)


def _safe_end(
    spent: Callable[[float], float],
    epsilon: float,
    guess: float,
    safe: float,
    unsafe: float,
    slope: float,
) -> float | None:
    """Return x between `safe` and `unsafe` with _LOOSEST·ε ≤ spent(x) ≤ ε.

    `spent` is monotone and log spent(x) nearly linear with `slope`, so regula falsi on it takes a
    few steps. Returns `unsafe` where even that spends no more than ε, and None where `safe` spends
    more. Every x returned was evaluated, or is as safe as one that was.
    """
    best, x = None, guess
    seen: tuple[float, float] | None = None
    for _ in range(100):
        value = spent(x)
        if value <= epsilon:
            best = safe = x
            if value >= _LOOSEST * epsilon or x == unsafe:
                return best
        else:
            if x == safe:
                return None
            unsafe = x
        if 0 < value < math.inf:
            here = (x, math.log(value))
            if seen is not None and abs(x - seen[0]) > 1e-6:
                found = (here[1] - seen[1]) / (x - seen[0])
                slope = found if 0.3 < found / slope < 3 else slope
            seen = here
        ratio = math.log(_AIM * epsilon / value) if 0 < value < math.inf else 0.0
        step = ratio / slope if ratio else (safe - x if value > epsilon else unsafe - x) / 2
        x = x + step
        low, high = min(safe, unsafe), max(safe, unsafe)
        if high - low < 1e-9 * max(1.0, abs(low)):
            return best if best is not None else (safe if spent(safe) <= epsilon else None)
        if not low < x < high:
            x = (low + high) / 2
    return best


def _columns(**columns: npt.ArrayLike) -> tuple[tuple[int, ...], list[Floats]]:
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
    except (TypeError, ValueError):
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


def _each(solve: Callable[..., float], **columns: npt.ArrayLike) -> Floats:
    """Solve each distinct entry once."""
    shape, flat = _columns(**columns)
    entries, member = distinct(np.stack(flat))
    solved = np.array([solve(*map(float, entry)) for entry in entries.T])
    return np.asarray(solved[member].reshape(shape))
