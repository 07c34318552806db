"""Counts of people released with discrete noise: by budget, and by how many rows they have.

The noise is sampled exactly, by integers and rationals alone. Source: Canonne, Kamath, Steinke 2020
(The discrete Gaussian for differential privacy), Algorithms 1 to 3.
"""

from __future__ import annotations

import functools
import math
import random
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
import numpy.typing as npt

from apiece import _check
from apiece._types import Floats, Integers
from apiece.budgets.records import Budgets
from apiece.errors import BudgetError, InfeasibleError, InputError, unknown
from apiece.numerics.roots import bisect, geometric

# The error of a sum of probabilities in floating point.
ROUNDING = 1e-13
# Draws a uniform integer in [0, n); `secrets.randbelow` where the noise is for a release.
Below = Callable[[int], int]
NOISES = ("gaussian", "laplace")
# Noise for this ε serves for every larger one, too; e^ε is then finite.
LARGEST = 500.0
# Noise of this scale or variance leaves nothing of a count, and its table fills the memory.
WIDEST = 10**8


@dataclass(frozen=True, slots=True, eq=False)
class BudgetHistogram:
    """A differentially private histogram of budgets over levels that were public before.

    Attributes:
        level_epsilon: ε of each level, increasing.
        level_delta: δ of each level.
        level_excess: Δ̄ of each level, or None.
        counts: Noisy counts, one a level, negative ones set to 0.
        epsilon: ε of the release, on top of what a plan made from it spends.
        delta: Its δ; 0 for Laplace noise.
        noise: "gaussian" or "laplace", both discrete.

    Example:
        >>> from apiece import Budgets, release_histogram
        >>> histogram = release_histogram(Budgets([1.0] * 500, 1e-5), [1.0], level_delta=1e-5,
        ...                               epsilon=1.0, delta=1e-6)
        >>> len(histogram.counts), histogram.noise
        (1, 'gaussian')
    """

    level_epsilon: Floats
    level_delta: Floats
    level_excess: Floats | None
    counts: Integers
    epsilon: float
    delta: float
    noise: str

    def budgets(self) -> Budgets:
        """Return a population with the released counts, to make a plan from.

        Its records stand for nobody; `place` says which of its groups a real record belongs to.

        Raises:
            InfeasibleError: Where no level has a positive count.
        """
        populated = self.counts > 0
        if not populated.any():
            raise InfeasibleError(
                "histogram: every released count is 0; release it with a larger epsilon or "
                "fewer levels"
            )
        # As many records of each level as were counted; they stand for nobody.
        index = np.repeat(np.flatnonzero(populated), self.counts[populated])
        excess = None if self.level_excess is None else self.level_excess[index]
        return Budgets(self.level_epsilon[index], self.level_delta[index], excess=excess)

    def place(self, budgets: Budgets) -> Integers:
        """Return each real record's position in `self.budgets().groups`; −1 for one left out.

        It is the group with the largest ε among those whose ε, δ and Δ̄ are all at most the
        record's.

        Args:
            budgets: Those of the real records.

        Raises:
            InfeasibleError: Where no level has a positive count.
            BudgetError: For budgets with bounds Δ̄ where the levels have none.

        Guarantee:
            No record is placed in a group with a larger budget than it asked.
        """
        if budgets.excess is not None and self.level_excess is None:
            raise BudgetError(
                "budgets: they have bounds on the excess, and the histogram's levels have none; "
                "release one with level_excess"
            )
        groups = self.budgets().groups
        return _find_levels(budgets, groups.epsilon, groups.delta, groups.excess)


def release_histogram(
    budgets: Budgets,
    levels: npt.ArrayLike,
    *,
    level_delta: npt.ArrayLike,
    epsilon: float,
    delta: float | None = None,
    level_excess: npt.ArrayLike | None = None,
    noise: str = "gaussian",
    seed: int | None = None,
) -> BudgetHistogram:
    """Return the counts of records at each public level of ε, with discrete noise.

    A record is counted at the highest level that does not exceed its ε, δ or Δ̄, or not at all.

    Args:
        budgets: Of the records, which are private here.
        levels: Values of ε, chosen without looking at the data.
        level_delta: One δ for all levels or one a level, chosen likewise.
        epsilon: ε of the release.
        delta: Its δ, for Gaussian noise; Laplace noise, of scale 1/ε, has δ = 0 and takes none.
        level_excess: As `level_delta`, for Δ̄; required where the budgets have bounds Δ̄.
        noise: "gaussian" or "laplace".
        seed: None takes randomness from the operating system, as a release needs. A whole number
            from 0 on repeats the noise, for tests and lessons: who knows it can take the noise off.

    Raises:
        BudgetError: For values out of bounds, levels that repeat, and noise past any use.
        OptionError: For another noise.

    Guarantee:
        (ε, δ)-DP under add/remove of a record, or a change of its budget to one that is not
        counted: one count moves by 1, and nothing else does, neither levels, noise nor errors.
        A change from one level to another is two such moves.

    References:
        Boenisch et al. 2023, §3.1; Canonne, Kamath, Steinke 2020.

    Example:
        >>> from apiece import Budgets, release_histogram
        >>> budgets = Budgets([1.0] * 500 + [3.0] * 500, 1e-5)
        >>> released = release_histogram(budgets, [1.0, 3.0], level_delta=1e-5,
        ...                              epsilon=1.0, delta=1e-6)
        >>> bool(abs(released.counts - 500).max() < 100)
        True
    """
    if noise not in NOISES:
        raise unknown("noise", noise, NOISES)
    cost = _check.positive("epsilon", epsilon, error=BudgetError)
    if budgets.excess is not None and level_excess is None:
        raise BudgetError("level_excess: missing; the budgets have bounds, so give the levels'")
    # Checked before any record is looked at: an error must not depend on the records.
    public_levels = _sort_levels(levels, level_delta, level_excess)
    if noise == "laplace":
        spent_delta = 0.0
        draw_noise = functools.partial(discrete_laplace, laplace_scale(cost), make_source(seed))
    else:
        if delta is None:
            raise BudgetError("delta: missing; discrete Gaussian noise needs one")
        spent_delta = float(_check.positive_array("delta", delta, below=1, error=BudgetError))
        variance = gaussian_variance(cost, spent_delta)
        draw_noise = functools.partial(discrete_gaussian, variance, make_source(seed))
    level_epsilon, *_ = public_levels
    # Position 0 counts the records that no level fits; they are left out.
    positions = _find_levels(budgets, *public_levels) + 1
    exact = np.bincount(positions, minlength=level_epsilon.size + 1)[1:]
    # Empty levels get noise too: which counts are released depends on public arguments alone.
    counts = np.array([int(count) + draw_noise() for count in exact], dtype=np.int64)
    return BudgetHistogram(*public_levels, np.maximum(counts, 0), cost, spent_delta, noise)


def release_rows_per_person(
    rows: npt.ArrayLike,
    levels: npt.ArrayLike,
    *,
    epsilon: float,
    share: float = 0.9,
    seed: int | None = None,
) -> int:
    """Return the level of rows that about a share of the persons do not exceed, to be made public.

    Each person is counted once, at the least level that is not below their number of rows, or at
    the last; every count gets discrete Laplace noise. The cost comes on top of what a plan spends:
    lower everyone's ε by it before the plan is made.

    Args:
        rows: (P,), how many rows each person has: data about them.
        levels: Increasing whole numbers, chosen without looking at the rows.
        epsilon: ε of the release.
        share: Of the persons, in (0, 1).
        seed: None takes randomness from the operating system, as a release needs. A whole number
            from 0 on repeats the noise, for tests and lessons: who knows it can take the noise off.

    Raises:
        BudgetError: For an ε that is not positive, or too small for a count to say anything.
        InputError: For levels that are not increasing or not positive, numbers of rows below 1, and
            a share out of bounds.
        InfeasibleError: Where no released count is positive.

    Guarantee:
        (ε, 0)-DP under add/remove of a person with all their rows: one count moves by 1, and
        nothing else does.

    References:
        Canonne, Kamath, Steinke 2020 (discrete noise).

    Example:
        >>> import numpy as np
        >>> from apiece import Budgets
        >>> from apiece.budgets import release_rows_per_person
        >>> rows = np.random.default_rng(0).integers(1, 7, 4000)
        >>> release_rows_per_person(rows, [1, 2, 5, 10], epsilon=0.1, share=0.7)
        5
        >>> budgets = Budgets([2.0] * 4000, 1e-5)
        >>> plan_from = budgets.lowered_to(budgets.epsilon - 0.1)
    """
    cost = _check.positive("epsilon", epsilon, error=BudgetError)
    share_of_persons = _check.probability("share", share, low_open=True, high_open=True)
    row_levels = _check_positive_integers("levels", levels)
    exact = _count_persons(rows, row_levels)
    scale = laplace_scale(cost)
    below = make_source(seed)
    # Exact integers throughout.
    noisy = [count + discrete_laplace(scale, below) for count in exact.tolist()]
    # All that follows is computed from noisy counts, and costs nothing more.
    counts = [max(count, 0) for count in noisy]
    total = sum(counts)
    if not total:
        raise InfeasibleError(
            "rows_per_person: every released count is 0; release it with a larger epsilon or "
            "fewer levels"
        )
    reaches_share = np.cumsum(counts) >= share_of_persons * total
    return int(row_levels[np.flatnonzero(reaches_share)[0]])


def _sort_levels(
    levels: npt.ArrayLike, delta: npt.ArrayLike, excess: npt.ArrayLike | None
) -> tuple[Floats, Floats, Floats | None]:
    """Return the levels' ε, δ and Δ̄ by increasing ε; they come from public arguments alone."""
    epsilon = np.atleast_1d(_check.positive_array("levels", levels, error=BudgetError))
    deltas = _check.positive_array("level_delta", delta, below=1, error=BudgetError)
    bounds = None
    if excess is not None:
        bounds = _check.probability_array("level_excess", excess, error=BudgetError)
    for name, values in (("level_delta", deltas), ("level_excess", bounds)):
        if values is not None and values.shape not in ((), (1,), epsilon.shape):
            raise BudgetError(
                f"{name}: shape {values.shape} for {epsilon.size} levels; give one, or one a level"
            )
    columns = [np.broadcast_to(deltas, epsilon.shape)]
    if bounds is not None:
        columns.append(np.broadcast_to(bounds, epsilon.shape))
    # lexsort takes the key that counts first last: ε, then δ, then Δ̄.
    order = np.lexsort([*columns[::-1], epsilon])
    rows = np.stack([epsilon, *columns], axis=1)[order]
    if len(np.unique(rows, axis=0)) < len(rows):
        raise BudgetError("levels: two are the same; give each level once")
    sorted_bounds = None if bounds is None else rows[:, 2]
    return rows[:, 0], rows[:, 1], sorted_bounds


def _find_levels(
    budgets: Budgets, epsilon: Floats, delta: Floats, excess: Floats | None
) -> Integers:
    """Return the position of the last level that is at most each record's budget; else −1."""
    consents = budgets.consents
    bounds = np.ones(epsilon.size) if excess is None else excess
    positions = np.full(len(budgets), -1, dtype=np.int64)
    # By increasing ε, so that the last level that fits stays.
    for level in range(epsilon.size):
        fits = consents.epsilon >= epsilon[level]
        fits &= consents.delta >= delta[level]
        fits &= consents.excess >= bounds[level]
        positions[fits] = level
    return positions


def _count_persons(rows: npt.ArrayLike, levels: Integers) -> Integers:
    """Return the number of persons at each level; every person is in one count."""
    if (np.diff(levels) <= 0).any():
        raise InputError("levels: must increase; give each once, the least first")
    # The first level that is at least so many rows; beyond the last, the last.
    positions = np.searchsorted(levels, _check_positive_integers("rows", rows))
    return np.bincount(np.minimum(positions, levels.size - 1), minlength=levels.size)


def _check_positive_integers(name: str, values: npt.ArrayLike) -> Integers:
    array = np.asarray(values)
    if array.ndim != 1 or not array.size or array.dtype.kind not in "iu" or array.min() < 1:
        raise InputError(f"{name}: must be a list of whole numbers of at least 1")
    return array.astype(np.int64)


def laplace_scale(epsilon: float) -> Fraction:
    """Return 1/ε rounded up: the scale of discrete Laplace noise that keeps (ε, 0) on a count."""
    if not epsilon * WIDEST > 1:
        raise _small_budget_error(epsilon, 0.0)
    # To nine digits, up: more noise than asked keeps the promise.
    billionths = math.ceil(Fraction(10**9) / Fraction(epsilon))
    return Fraction(billionths, 10**9)


def gaussian_variance(epsilon: float, delta: float) -> Fraction:
    """Return a variance of discrete Gaussian noise, to 1 %, that keeps (ε, δ) on a count."""
    if not delta > 2 * ROUNDING:
        raise _small_budget_error(epsilon, delta)
    epsilon = min(epsilon, LARGEST)

    def is_enough(variance: float) -> bool:
        return discrete_gaussian_delta(Fraction(variance), epsilon) <= delta

    # The bracket is moved up in steps of 4 until its upper end is enough.
    low = 1e-3
    high = 1.0
    while not is_enough(high):
        low = high
        high = high * 4
        if high > WIDEST:
            raise _small_budget_error(epsilon, delta)
    # Halvings of log(high/low) down to a ratio of 1.01.
    rounds = math.ceil(math.log2(math.log(high / low) / math.log(1.01)))
    smallest, _ = bisect(
        lambda x: np.asarray(is_enough(float(x))), high, low, rounds=rounds, middle=geometric
    )
    # Rounded up to a fraction of small terms, of which exact coins are made.
    variance = Fraction(float(smallest)).limit_denominator(10**6) + Fraction(1, 10**6)
    # δ may rise with the variance between integers, so that the rounded one is checked again.
    while discrete_gaussian_delta(variance, epsilon) > delta:
        variance += variance / 100
    return variance


def _small_budget_error(epsilon: float, delta: float) -> BudgetError:
    return BudgetError(
        f"epsilon, delta = {epsilon:g}, {delta:g}: too small for a histogram; ask for more"
    )


def make_source(seed: int | None) -> Below:
    """Return a source of uniform integers: the operating system's, or one that a seed repeats."""
    if seed is None:
        return secrets.randbelow
    return random.Random(_check.count("seed", seed, least=0)).randrange


def discrete_laplace(scale: Fraction, below: Below = secrets.randbelow) -> int:
    """Return an integer x with probability proportional to e^(−|x|/scale), exactly."""
    numerator = scale.numerator
    while True:
        # A geometric variable of e^(−1/numerator): its remainder and its quotient by the numerator.
        remainder = below(numerator)
        if not bernoulli_exp(Fraction(remainder, numerator), below):
            continue
        quotient = 0
        while bernoulli_exp(Fraction(1), below):
            quotient += 1
        # Every `denominator` values become one: geometric with e^{−denominator/numerator}.
        magnitude = (remainder + numerator * quotient) // scale.denominator
        is_negative = below(2) == 1
        # Zero has two signs, one of which is refused; else it would come twice too often.
        if not (is_negative and magnitude == 0):
            return -magnitude if is_negative else magnitude


def discrete_gaussian(variance: Fraction, below: Below = secrets.randbelow) -> int:
    """Return an integer x with probability proportional to e^(−x²/(2·variance)), exactly."""
    # Any scale gives the law exactly; one near the standard deviation refuses few candidates.
    scale = math.isqrt(variance.numerator // variance.denominator) + 1
    while True:
        # Rejection: e^(−(|x| − variance/scale)²/(2·variance)) is the ratio of the two densities.
        candidate = discrete_laplace(Fraction(scale), below)
        distance = abs(candidate) - variance / scale
        if bernoulli_exp(distance * distance / (2 * variance), below):
            return candidate


def bernoulli_exp(gamma: Fraction, below: Below = secrets.randbelow) -> bool:
    """Return True with probability e^−γ, exactly; γ ≥ 0."""
    if gamma > 1:
        return bernoulli_exp(Fraction(1), below) and bernoulli_exp(gamma - 1, below)
    # The first failure of coins of chance γ/1, γ/2, γ/3, … is at an odd one with chance
    # 1 − γ + γ²/2! − γ³/3! + … = e^−γ.
    coin = 1
    while below(gamma.denominator * coin) < gamma.numerator:
        coin += 1
    return coin % 2 == 1


def discrete_gaussian_delta(variance: Fraction, epsilon: float) -> float:
    """Return an upper bound on δ(ε) of a count of sensitivity 1 with this noise (Theorem 7)."""
    variance_float = float(variance)
    # Beyond 40 standard deviations e^(−x²/(2·variance)) is 0 in floating point.
    reach = math.ceil(40 * math.sqrt(variance_float)) + 2
    weights = {x: math.exp(-(x * x) / (2 * variance_float)) for x in range(-reach, reach + 1)}
    total = math.fsum(weights.values())

    def sum_tail(threshold: float) -> float:
        """Return the probability of an integer above the threshold."""
        return math.fsum(weight for x, weight in weights.items() if x > threshold) / total

    # The privacy loss of a shift by 1 exceeds ε for x above ε · variance − 1/2.
    center = epsilon * variance_float
    # By subtraction, so that `ROUNDING` has to cover what cancels.
    delta = sum_tail(center - 0.5) - math.exp(epsilon) * sum_tail(center + 0.5)
    return max(delta, 0.0) + ROUNDING
