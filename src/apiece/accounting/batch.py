"""Many records at once: ε, noise or rate for whole arrays. Equal entries are computed once.

Every entry's ε is a monotone function of one parameter, nearly a power of it; all searches go in
step, so that each evaluation is one call for all entries that are still open.
"""

import math
from collections.abc import Callable
from functools import partial

import numpy as np
import numpy.typing as npt

from apiece import _check
from apiece._identity import common_index
from apiece._types import Bounds, Floats
from apiece.accounting.bounds import find_runs
from apiece.accounting.choose import bounds_of, require_batch, upper_bounds_of
from apiece.errors import BudgetError, InfeasibleError, InputError, RangeError
from apiece.numerics.gaussian import estimate_gaussian_mu
from apiece.numerics.roots import Places, log_room, safe_ends

# Part of log ε that may be left of a budget: below it a search is done.
_UNSPENT = 9e-4
LEAST_NOISE = 0.05
"""No smaller noise multiplier is returned."""
# Ends of the searches for noise and for rates.
_MOST_NOISE = 1e8
_LEAST_PROBABILITY = 1e-12
# Factor on ε from which slopes are guessed.
_NEARBY = 1.05
# How far a guess may be off, in log q.
_DOUBT = 0.1
# How each argument is checked, by its name.
_CHECKS: dict[str, Callable[[str, npt.ArrayLike], Floats]] = {
    "epsilon": partial(_check.positive_array, error=BudgetError),
    "delta": partial(_check.positive_array, below=1.0, error=BudgetError),
    "noise_multiplier": _check.positive_array,
    "sampling_probability": _check.probability_array,
    "steps": _check.count_array,
}


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
        >>> from apiece.accounting import epsilons
        >>> bounds = epsilons(noise_multiplier=[1.0, 2.0], sampling_probability=0.01,
        ...                   steps=1000, delta=1e-5)
        >>> bounds.upper.round(2)
        array([1.83, 0.62])
    """
    shape, columns = _columns(method, noise_multiplier, sampling_probability, steps, delta)
    entries, member = distinct(columns)
    bounds = bounds_of(entries, method)
    _require_finite(bounds.upper, entries)
    member = member.reshape(shape)
    return Bounds(bounds.lower[member], bounds.upper[member])


def upper_epsilons(
    *,
    noise_multiplier: npt.ArrayLike,
    sampling_probability: npt.ArrayLike,
    steps: npt.ArrayLike,
    delta: npt.ArrayLike,
    method: str = "pld",
) -> Floats:
    """Return upper bounds on ε(δ), as `epsilons`, for millions of records."""
    # Equal mechanisms share a computation. An entry's bound depends on its own arguments only.
    shape, columns = _columns(method, noise_multiplier, sampling_probability, steps, delta)
    order = np.lexsort(columns[:3])
    upper = np.empty(order.size)
    upper[order] = upper_bounds_of(columns[:, order], method)
    _require_finite(upper, columns)
    return upper.reshape(shape)


def _columns(method: str, *settings: npt.ArrayLike) -> tuple[tuple[int, ...], Floats]:
    """Return the shape of settings (z, q, steps, δ), and them as checked columns."""
    require_batch(method)
    names = ("noise_multiplier", "sampling_probability", "steps", "delta")
    shape, columns = broadcast(**dict(zip(names, settings, strict=True)))
    return shape, np.stack(columns)


def _require_finite(upper: Floats, columns: Floats) -> None:
    """Raise `RangeError` where a column (z, q, steps, δ) has no finite bound."""
    if not np.isfinite(upper).all():
        first = np.flatnonzero(~np.isfinite(upper))[0]
        z, q, steps, delta = columns[:, first]
        raise RangeError(
            f"epsilon at delta = {delta:g}: past the numerical range for noise_multiplier = {z:g}, "
            f"sampling_probability = {q:g}, steps = {steps:.0f}; ask for a larger delta"
        )


def noise_multipliers(
    *,
    epsilon: npt.ArrayLike,
    delta: npt.ArrayLike,
    sampling_probability: npt.ArrayLike,
    steps: npt.ArrayLike,
    method: str = "pld",
    guess: npt.ArrayLike = math.nan,
) -> Floats:
    """Return, for each entry, the smallest noise multiplier known to keep (ε, δ).

    Args:
        epsilon: Above 0; this and the following broadcast.
        delta: In (0, 1).
        sampling_probability: In [0, 1].
        steps: Whole numbers from 1 on.
        method: "pld" or "rdp".
        guess: An estimate of the result, NaN where unknown. A good one saves most of the time.

    Raises:
        InputError: For values outside their bounds.
        InfeasibleError: Where no multiplier up to 1e8 suffices.

    Guarantee:
        The ε recomputed from it by the same method is at most the one asked. Nothing below 0.05 is
        returned.

    Example:
        >>> from apiece.accounting import noise_multipliers
        >>> z = noise_multipliers(epsilon=1.0, delta=1e-5, sampling_probability=0.00853, steps=9375)
        >>> round(float(z), 2)
        3.18
    """
    settings = {"sampling_probability": sampling_probability, "steps": steps}
    columns, member = _distinct_columns(method, epsilon, delta, settings, guess)
    limits, deltas, rates, times, guesses = columns
    bottom = np.full(limits.shape, math.log(LEAST_NOISE))
    top = np.full(limits.shape, math.log(_MOST_NOISE))

    def room(log_noise: Floats, k: Places) -> Floats:
        spent = _upper(method, np.exp(log_noise), rates[k], times[k], deltas[k])
        return log_room(limits[k], spent)

    # log ε is nearly a line in log z; its slope, from the noise that 5 % more ε needs.
    rough = np.clip(_log_noise(limits, deltas, rates, times), bottom, top)
    nearby = np.clip(_log_noise(limits * _NEARBY, deltas, rates, times), bottom, top)
    slope = math.log(_NEARBY) / np.maximum(rough - nearby, 0.01)
    with np.errstate(all="ignore"):
        start = np.where(guesses > 0, np.clip(np.log(guesses), bottom, top), rough)
        # Who takes part at all with a chance of at most δ needs no noise.
        chance = -np.expm1(times * np.log1p(-rates))
        start = np.where(chance < deltas, bottom, start)
    log_noise = safe_ends(room, start, top, bottom, slope=slope, tolerance=_UNSPENT)
    if np.isnan(log_noise).any():
        k = int(np.flatnonzero(np.isnan(log_noise))[0])
        raise InfeasibleError(
            f"epsilon = {float(limits[k])!r} at delta = {float(deltas[k])!r} in {times[k]:.0f} "
            f"steps: no noise multiplier up to {_MOST_NOISE:g} keeps it; ask for a larger epsilon"
        )
    # Who never takes part needs no noise at all.
    noise = np.where(rates == 0, LEAST_NOISE, np.exp(log_noise))
    return np.asarray(noise[member])


def sampling_probabilities(
    *,
    epsilon: npt.ArrayLike,
    delta: npt.ArrayLike,
    noise_multiplier: npt.ArrayLike,
    steps: npt.ArrayLike,
    method: str = "pld",
    guess: npt.ArrayLike = math.nan,
    precision: npt.ArrayLike = 0.0,
) -> Floats:
    """Return, for each entry, the largest sampling probability known to keep (ε, δ), at most 1.

    Args:
        epsilon: Above 0; this and the following broadcast.
        delta: In (0, 1).
        noise_multiplier: Above 0.
        steps: Whole numbers from 1 on.
        method: "pld" or "rdp".
        guess: An estimate of the result, NaN where unknown. A good one saves most of the time, a
            bad one costs some.
        precision: About how far below the largest it may be, relative; 0 for as close as possible.

    Raises:
        InputError: For values outside their bounds.

    Guarantee:
        The ε recomputed from it by the same method is at most the one asked. It is 1 where even
        full participation costs less, and 0 where not even 1e-12 keeps it.

    Example:
        >>> from apiece.accounting import sampling_probabilities
        >>> q = sampling_probabilities(epsilon=1.0, delta=1e-5, noise_multiplier=2.0, steps=1465)
        >>> round(float(q), 4)
        0.0128
    """
    settings = {"noise_multiplier": noise_multiplier, "steps": steps}
    columns, member = _distinct_columns(method, epsilon, delta, settings, guess, precision)
    limits, deltas, noise, times, guesses, precisions = columns
    rates = np.ones(limits.shape)
    # At rate 1 there is no coin, and the answer is quick.
    spent_at_one = _upper(method, noise, np.ones(noise.shape), times, deltas)
    # Where full participation costs less, nothing is sought.
    below_one = np.flatnonzero(spent_at_one > limits)
    limits, deltas, noise, times, guesses, precisions = columns[:, below_one]
    bottom = np.full(limits.shape, math.log(_LEAST_PROBABILITY))

    def room(log_rate: Floats, k: Places) -> Floats:
        spent = _upper(method, noise[k], np.exp(log_rate), times[k], deltas[k])
        return log_room(limits[k], spent)

    # Many small losses are nearly Gaussian, with μ² = q²·T·(e^{1/z²} − 1).
    with np.errstate(all="ignore"):
        excess = np.expm1(np.minimum(1 / noise**2, 600.0))
        rough = _rough_mu(limits, deltas) / np.sqrt(times * excess)
        # Who takes part at all with chance δ pays no ε.
        free = -np.expm1(np.log1p(-deltas) / times)
        guessed = guesses > 0
        start = np.log(np.maximum(np.where(guessed, guesses, rough), free))
    start = np.clip(start, bottom, -1e-6)
    log_rates = safe_ends(
        room,
        start,
        bottom,
        np.zeros(limits.shape),
        slope=1.1,
        tolerance=np.maximum(_UNSPENT, precisions),
        # In log q, and twenty times that at a jump.
        narrow=np.maximum(1e-6, precisions / 300),
        stride=np.where(guessed | (free > rough), _DOUBT, np.inf),
    )
    rates[below_one] = np.where(np.isnan(log_rates), 0.0, np.exp(log_rates))
    return np.asarray(rates[member])


def _distinct_columns(
    method: str,
    epsilon: npt.ArrayLike,
    delta: npt.ArrayLike,
    settings: dict[str, npt.ArrayLike],
    *hints: npt.ArrayLike,
) -> tuple[Floats, Places]:
    """Return the distinct columns (ε, δ, settings, hints), and each entry's number among them."""
    require_batch(method)
    shape, columns = broadcast(epsilon=epsilon, delta=delta, **settings)
    for hint in hints:
        full_hint = np.broadcast_to(np.asarray(hint, float), shape)
        # −1 where a hint is NaN: of NaN no two are equal.
        columns.append(np.nan_to_num(full_hint, nan=-1.0).ravel())
    entries, member = distinct(np.stack(columns))
    return entries, member.reshape(shape)


def _upper(method: str, *columns: Floats) -> Floats:
    """Return upper bounds on ε for columns (z, q, steps, δ), ∞ where past the numerical range."""
    # A search asks about ever other values: what has no answer is ∞, and spoils no other's.
    entries, member = distinct(np.stack(columns))
    try:
        upper = bounds_of(entries, method).upper
    except RangeError:
        if entries.shape[1] == 1:
            return np.full(member.shape, np.inf)
        upper = np.concatenate([_upper(method, *column[:, None]) for column in entries.T])
    return np.asarray(upper[member])


def _log_noise(epsilon: Floats, delta: Floats, q: Floats, steps: Floats) -> Floats:
    """Return about the log of the noise: the larger of what many small and one large loss need."""
    with np.errstate(all="ignore"):
        # Many small losses: μ² = q²·T·(e^{1/z²} − 1), as above, solved for 1/(2z²).
        step_square = (_rough_mu(epsilon, delta) / q) ** 2 / steps
        half_square = np.log1p(step_square) / 2
        # One large loss: a single Gaussian step at the (ε, δ) that coins make of it.
        step_delta = np.clip(delta / (q * steps), 1e-300, 0.5)
        step_epsilon = np.log1p(np.expm1(epsilon) / q)
        log_mu = np.log(estimate_gaussian_mu(step_epsilon, step_delta))
        return np.asarray(-np.fmin(0.5 * np.log(2 * half_square), log_mu))


def _rough_mu(epsilon: Floats, delta: Floats) -> Floats:
    """Return a rough μ of the Gaussian that spends (ε, δ)."""
    # The root of μ²/2 + reach·μ = ε, with a quantile of the normal law for the reach.
    reach = np.sqrt(-2 * np.log(delta)) * 0.9
    return np.asarray(np.sqrt(reach**2 + 2 * epsilon) - reach)


def broadcast(**columns: npt.ArrayLike) -> tuple[tuple[int, ...], list[Floats]]:
    """Check arguments, broadcast them, joined by index; return their shape and flat columns."""
    common_index(**columns)
    # Checked one by one, so that a message names the argument.
    arrays = [_CHECKS[name](name, values) for name, values in columns.items()]
    try:
        arrays = list(np.broadcast_arrays(*arrays))
    except ValueError:
        shapes = ", ".join(f"{name} {np.shape(values)}" for name, values in columns.items())
        raise InputError(f"arrays do not broadcast: {shapes}; give one shape") from None
    return arrays[0].shape, [array.ravel() for array in arrays]


def distinct(columns: Floats) -> tuple[Floats, Places]:
    """Return the distinct columns in lexical order, and the number of each column among them."""
    # Sorted, equal columns lie side by side; `member` leads back to the order of before.
    order = np.lexsort(columns[::-1])
    starts, sizes = find_runs(columns[:, order])
    member = np.empty(order.size, dtype=np.intp)
    member[order] = np.repeat(np.arange(starts.size), sizes)
    return columns[:, order[starts]], member
