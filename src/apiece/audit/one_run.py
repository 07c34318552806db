"""A lower bound on ε from one training run with many canaries, each included by a fair coin."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import numpy.typing as npt
from scipy import special, stats

from apiece import _check
from apiece.audit import gaussian, thresholds
from apiece.audit.bounds import LowerBound
from apiece.errors import DataError, unknown
from apiece.numerics import last_true

METHODS = ("dp", "gdp")
_TIE_SEED = 20260102


def dp_p_value(epsilon: float, *, canaries: int, guesses: int, correct: int, delta: float) -> float:
    """Return the chance of at least `correct` right `guesses` under (ε, δ)-DP, from above.

    Source: Steinke, Nasr, Jagielski 2023, Theorem 3.1 (as in their Algorithm 1's analysis).
    """
    q = float(special.expit(epsilon))
    beyond = float(stats.binom.sf(correct - 1, guesses, q))
    if delta == 0 or correct == 0:
        return min(beyond, 1.0)
    i = np.arange(1, correct + 1)
    gained = stats.binom.sf(correct - i - 1, guesses, q) - beyond
    slope = max(float(np.max(gained / i)), 0.0)
    return min(beyond + 2 * canaries * delta * slope, 1.0)


def gdp_rejects(mu: float, error: float, *, canaries: int, guesses: int, correct: int) -> bool:
    """Return whether `correct` right `guesses` are too many for μ-GDP at level `error`.

    With p_c the chance of exactly c right guesses, the recursion bounds the tail sums from c
    downwards by the trade-off function; if what is needed exceeds one, p cannot exist.
    Source: Mahloujifar, Melis, Chaudhuri 2024, Algorithms 3 and 4 (alphabet of size 2).
    """
    right = error * correct / canaries
    wrong = error * (guesses - correct) / canaries
    for i in range(correct - 1, -1, -1):
        needed = float(special.ndtr(special.ndtri(min(right, 1.0)) - mu))
        if needed <= wrong:
            break
        right += i / (guesses - i) * (needed - wrong)
        wrong = needed
        if right + wrong > guesses / canaries:
            return True
    return right + wrong > guesses / canaries


def _largest(rejected: Callable[[float], bool]) -> float:
    """Return the largest value known to be rejected, 0 if none; any rejected one is a bound."""
    return last_true(rejected, most=gaussian.MOST, rounds=gaussian.ROUNDS)


def _guess_counts(canaries: int, guesses: int | None) -> list[int]:
    if guesses is not None:
        count = _check.count("guesses", guesses)
        if not count <= canaries:
            raise DataError(f"guesses = {count}: only {canaries} canaries; guess at most as often")
        return [count]
    counts = [canaries]
    while counts[-1] > 16:
        counts.append(counts[-1] // 2)
    return counts


def one_run(
    scores: npt.ArrayLike,
    included: npt.ArrayLike,
    *,
    delta: float,
    confidence: float = 0.95,
    method: str = "dp",
    guesses: int | None = None,
) -> LowerBound:
    """Return a lower bound on ε from one run: if it is (ε, δ)-DP, then `result.epsilon` ≤ ε.

    The higher half of the guesses say "in", the lower half "out", the middle abstains. Equal scores
    are ordered at random, so that the order of the arrays carries no information.

    Args:
        scores: One a canary; higher says included.
        included: One truth value a canary: its coin.
        delta: In [0, 1).
        confidence: In (0, 1).
        method: "dp" assumes nothing further; "gdp" that the trade-off is Gaussian.
        guesses: How many, chosen in advance; by default all, half, a quarter… of the canaries are
            tried, each at its share of the error.

    Raises:
        DataError: For NaN, differing lengths, or `included` that is not of truth values.
        InputError: For numbers outside their bounds.
        OptionError: For an unknown method.

    Guarantee:
        Fails with probability at most 1 − confidence, over the coins and the training, if every
        canary was included by its own fair coin, independent of all else.

    References:
        Steinke, Nasr, Jagielski 2023; Mahloujifar, Melis, Chaudhuri 2024.

    Example:
        >>> coins = np.random.default_rng(0).random(1000) < 0.5
        >>> bound = one_run(coins * 1.0, coins, delta=1e-5)
        >>> bound.epsilon > 3
        True
    """
    values = thresholds.scores("scores", scores)
    truth = np.array(included)
    if truth.shape != values.shape or not np.isin(truth, [0, 1]).all():
        raise DataError(
            f"included: shape {truth.shape} for {values.size} scores; give one True or False each"
        )
    truth = truth.astype(bool)
    delta = _check.probability("delta", delta, high_open=True)
    confidence = _check.probability("confidence", confidence, low_open=True, high_open=True)
    if method not in METHODS:
        raise unknown("method", method, METHODS)
    shuffled = np.random.default_rng(_TIE_SEED).permutation(values.size)
    order = shuffled[np.argsort(values[shuffled], kind="stable")]
    tries = _guess_counts(values.size, guesses)
    error = (1 - confidence) / len(tries)
    found = [_try(count, truth[order], error, delta, method) for count in tries]
    best = int(np.argmax([epsilon for epsilon, _ in found]))
    epsilon, mu = found[best]
    return LowerBound(
        epsilon=epsilon,
        delta=delta,
        confidence=confidence,
        method=f"one-run {method}",
        candidates=len(tries),
        threshold=None,
        mu=mu,
        in_count=int(truth.sum()),
        out_count=int((~truth).sum()),
    )


def one_run_by_group(
    scores: npt.ArrayLike,
    included: npt.ArrayLike,
    groups: npt.ArrayLike,
    *,
    delta: float,
    confidence: float = 0.95,
    method: str = "dp",
) -> dict[str, LowerBound]:
    """Return a lower bound on each group's ε from its own canaries, by the group's name.

    Args:
        scores: As of `one_run`.
        included: As of `one_run`.
        groups: One name a canary.
        delta: As of `one_run`.
        confidence: Of all bounds together.
        method: As of `one_run`.

    Raises:
        DataError: As `one_run`, and for another number of groups.

    Guarantee:
        All the bounds hold together with the stated confidence, as `one_run`'s does: each of G
        groups has 1/G of the error, so looking for the group that leaks most is paid for.

    Example:
        >>> coins = np.random.default_rng(0).random(2000) < 0.5
        >>> groups = np.repeat(["leaks", "tight"], 1000)
        >>> bounds = one_run_by_group(coins * (groups == "leaks"), coins, groups, delta=1e-5)
        >>> bounds["leaks"].epsilon > 3, bounds["tight"].epsilon
        (True, 0.0)
    """
    values, truth, names = np.asarray(scores), np.asarray(included), np.asarray(groups)
    if not names.shape == truth.shape == values.shape:
        raise DataError(
            f"groups: shape {names.shape} for {values.size} scores and {truth.size} coins; give "
            "one of each a canary"
        )
    found = np.unique(names)
    confidence = _check.probability("confidence", confidence, low_open=True, high_open=True)
    each = 1 - (1 - confidence) / max(found.size, 1)
    return {
        str(name): one_run(
            values[names == name],
            truth[names == name],
            delta=delta,
            confidence=each,
            method=method,
        )
        for name in found
    }


def _try(
    guesses: int, ordered: npt.NDArray[np.bool_], error: float, delta: float, method: str
) -> tuple[float, float | None]:
    """Return (ε, μ or None) shown by the extreme `guesses` of the truth in order of score."""
    canaries, low = ordered.size, guesses // 2
    high = math.ceil(guesses / 2)
    correct = int((~ordered[:low]).sum() + ordered[canaries - high :].sum())
    if method == "gdp":
        mu = _largest(
            lambda m: gdp_rejects(m, error, canaries=canaries, guesses=guesses, correct=correct)
        )
        return gaussian.epsilon_from_mu(mu, delta), mu

    def rejected(epsilon: float) -> bool:
        p = dp_p_value(epsilon, canaries=canaries, guesses=guesses, correct=correct, delta=delta)
        return p <= error

    return _largest(rejected), None
