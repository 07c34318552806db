"""Lower bounds on ε from the scores of many models (or many canaries) in two worlds."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, field

import numpy as np
import numpy.typing as npt
from scipy import special, stats

from apiece import _check
from apiece._identity import require_rows
from apiece._types import Floats, Integers
from apiece.errors import DataError, unknown
from apiece.numerics.gaussian import gaussian_epsilon_below
from apiece.numerics.roots import last_true

# The halves of a split depend on this and on the number of scores, never on their values.
SPLIT_SEED = 20260101


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Thresholds:
    """Tests "score > threshold says member", with counts that can be read as binomial."""

    # At an order statistic of one arm, that arm's count is its rank, not the number of scores
    # beyond it: P(X > X_(k)) is at most a Beta(k, n−k+1) variable in distribution, ties or not,
    # whose quantiles are those of Clopper–Pearson with k−1 successes.

    threshold: Floats
    # For each threshold, how many of the scores with the target say member.
    true_positives: Integers
    # For each threshold, how many of the scores without it say member.
    false_positives: Integers
    # How many scores there are with the target, and without it.
    in_count: int
    out_count: int

    def __len__(self) -> int:
        return int(self.threshold.size)


def flat_scores(name: str, values: npt.ArrayLike) -> Floats:
    """Return `values` as a flat array of scores; infinities order, NaN is refused."""
    array = _check.numbers(name, values, give="one score a model or canary", error=DataError)
    if array.ndim != 1 or array.size == 0:
        raise DataError(f"{name}: shape {array.shape}; give a flat array of at least one score")
    missing = np.isnan(array)
    if missing.any():
        position = int(np.flatnonzero(missing)[0])
        raise DataError(
            f"{name}[{position}] = nan: {int(missing.sum())} of {array.size} scores are NaN; "
            "find out why before auditing (dropping them would bias the result)"
        )
    return array


def doubling_ranks(size: int) -> Integers:
    """Return 1, 2, 4, … up to half of `size`."""
    largest_exponent = int(np.log2(max(size // 2, 1)))
    return 2 ** np.arange(largest_exponent + 1, dtype=np.int64)


def order_statistics(scores_in: Floats, scores_out: Floats) -> Thresholds:
    """Return the thresholds at ranks 1, 2, 4, … from the top of the outs and bottom of the ins."""
    # The ranks depend on the counts alone, so Bonferroni over the candidates is valid.
    ins = np.sort(scores_in)
    outs = np.sort(scores_out)
    ranks_out = doubling_ranks(outs.size)
    ranks_in = doubling_ranks(ins.size)
    # Ranks count from the top of the scores without the target, from the bottom of those with it.
    thresholds_out = outs[outs.size - ranks_out]
    thresholds_in = ins[ranks_in - 1]
    # At the k-th score from the bottom n − k + 1 count as above, whatever its ties (`Thresholds`).
    tp = np.append(count_above(ins, thresholds_out), ins.size - (ranks_in - 1))
    # Of the other arm also the scores equal to the threshold count against the test.
    fp_in = outs.size - np.searchsorted(outs, thresholds_in, side="left")
    fp = np.append(ranks_out - 1, fp_in)
    return Thresholds(np.append(thresholds_out, thresholds_in), tp, fp, ins.size, outs.size)


def count_above(ordered: Floats, threshold: Floats) -> Integers:
    """Return how many of the sorted scores are above each threshold."""
    return np.asarray(ordered.size - np.searchsorted(ordered, threshold, side="right"))


def count_at(scores_in: Floats, scores_out: Floats, threshold: Floats | float) -> Thresholds:
    """Return the test, or tests, "score > threshold", chosen without looking at these scores."""
    thresholds = np.atleast_1d(np.asarray(threshold, dtype=np.float64))
    tp = count_above(np.sort(scores_in), thresholds)
    fp = count_above(np.sort(scores_out), thresholds)
    return Thresholds(thresholds, tp, fp, scores_in.size, scores_out.size)


def choose_by_split(
    scores_in: Floats, scores_out: Floats, delta: float, error: float
) -> Thresholds:
    """Return the one test that looks best on a random half, with counts from the other half."""
    generator = np.random.default_rng(SPLIT_SEED)
    ins = generator.permutation(scores_in)
    outs = generator.permutation(scores_out)
    if min(ins.size, outs.size) < 2:
        raise DataError(
            f"scores: {ins.size} in and {outs.size} out; a split needs at least 2 of each"
        )
    half_in = ins.size // 2
    half_out = outs.size // 2
    # The first halves choose, and the others, which nothing was chosen by, certify.
    trial = np.unique(np.concatenate([ins[:half_in], outs[:half_out]]))
    # Rates are bounded here too, so that a lucky test of few scores does not look best.
    tpr, fpr = bound_rates(count_at(ins[:half_in], outs[:half_out], trial), error)
    best = int(np.argmax(epsilon_from_rates(tpr, fpr, delta)))
    return count_at(ins[half_in:], outs[half_out:], trial[best])


def bound_rates(candidates: Thresholds, error: float) -> tuple[Floats, Floats]:
    """Return bounds on TPR from below, on FPR from above (Clopper, Pearson 1934)."""
    tp = candidates.true_positives
    n = candidates.in_count
    fp = candidates.false_positives
    m = candidates.out_count
    # The quantiles of Beta(k, n − k + 1) and Beta(k + 1, n − k), half of the error each; arguments
    # are kept in range where the answer is 0 or 1 anyway.
    with np.errstate(invalid="ignore"):
        low = special.betaincinv(np.maximum(tp, 1), n - tp + 1, error / 2)
        high = special.betainccinv(fp + 1, np.maximum(m - fp, 1), error / 2)
    return np.where(tp > 0, low, 0.0), np.where(fp < m, high, 1.0)


def epsilon_from_rates(tpr: Floats, fpr: Floats, delta: float) -> Floats:
    """Return the smallest ε ≥ 0 at which (ε, δ)-DP allows these rates, from either side."""
    # TPR ≤ e^ε·FPR + δ, and the same of the opposite test: 1 − FPR ≤ e^ε·(1 − TPR) + δ.
    with np.errstate(divide="ignore", invalid="ignore"):
        accept = np.log(np.maximum(tpr - delta, 0.0)) - np.log(fpr)
        reject = np.log(np.maximum(1 - fpr - delta, 0.0)) - np.log(1 - tpr)
    # `fmax` takes the other where one of both is NaN.
    larger = np.fmax(accept, reject)
    # NaN is 0/0: such rates show nothing.
    epsilon = np.nan_to_num(larger, nan=0.0, posinf=np.inf, neginf=0.0)
    return np.asarray(np.maximum(epsilon, 0.0))


# The largest ε or μ that is tried.
MOST = 64
# Halvings by which the largest rejected ε or μ is found.
ROUNDS = 30
# Probabilities at whose Beta quantiles the grid of false-positive rates of `p_values` has points.
_TAILS = special.expit(np.linspace(-16.0, 9.0, 101))


def epsilon_from_mu(mu: float, delta: float) -> float:
    """Return the ε of a μ-GDP mechanism at `delta`; 0 where δ(0) ≤ delta, rounded down."""
    return float(gaussian_epsilon_below(mu, delta)) if mu > 0 else 0.0


def _product_probability(product: Floats) -> Floats:
    """Return P(U·V ≤ product) for independent uniform U, V."""
    with np.errstate(divide="ignore", invalid="ignore"):
        value = product * (1 - np.log(product))
    return np.where(product > 0, value, 0.0)


def p_values(candidates: Thresholds, mu: float) -> Floats:
    """Return, for each candidate, a p-value of "the trade-off is at least that of μ-GDP"."""
    # At a false-positive rate α the hypothesis allows TPR ≤ Φ(Φ⁻¹(α) + μ). The two arms give two
    # independent p-values, combined by Fisher's product; the supremum over α is taken over cells of
    # a grid with the worse end of the cell for each, so it is an upper bound on the supremum.
    tp = candidates.true_positives[:, None]
    fp = candidates.false_positives[:, None]
    n = candidates.in_count
    m = candidates.out_count
    # (tests, grid): rates α at which either arm's p-value moves.
    by_fp = special.betainccinv(fp + 1, np.maximum(m - fp, 1), _TAILS)
    by_tp = special.betaincinv(np.maximum(tp, 1), n - tp + 1, _TAILS)
    # The second kind is where the in-arm's allowed rate, Φ(Φ⁻¹(α) + μ), crosses its quantiles.
    grid = np.sort(np.hstack([by_fp, special.ndtr(special.ndtri(by_tp) - mu)]), axis=1)
    allowed = special.ndtr(special.ndtri(grid) + mu)
    p_in = np.where(tp > 0, special.betainc(np.maximum(tp, 1), n - tp + 1, allowed), 1.0)
    p_out = np.where(fp < m, special.betaincc(fp + 1, np.maximum(m - fp, 1), grid), 1.0)
    ones = np.ones((len(candidates), 1))
    # p_in rises with α and p_out falls: of the cell between grid points j − 1 and j the worse ends
    # are p_in at j and p_out at j − 1. Beyond the grid 1 bounds either.
    products = np.hstack([p_in, ones]) * np.hstack([ones, p_out])
    supremum = _product_probability(products).max(axis=1)
    return np.asarray(np.minimum(supremum, 1.0))


def find_largest_mu(candidates: Thresholds, error: float) -> tuple[float, int]:
    """Return the largest μ that some candidate rejects at `error`, and that candidate."""
    # A candidate's p-value grows with μ, so one that does not reject a μ is left out above it.
    alive = np.arange(len(candidates))

    def rejects(mu: float) -> bool:
        nonlocal alive
        remaining = Thresholds(
            candidates.threshold[alive],
            candidates.true_positives[alive],
            candidates.false_positives[alive],
            candidates.in_count,
            candidates.out_count,
        )
        rejecting = alive[p_values(remaining, mu) <= error]
        alive = rejecting if rejecting.size else alive
        return rejecting.size > 0

    # Each look leaves out candidates that can reject nothing larger any more.
    mu = last_true(rejects, most=MOST, rounds=ROUNDS)
    return mu, int(alive[0]) if alive.size else 0


METHODS = ("clopper-pearson", "gdp")


@dataclass(frozen=True, slots=True)
class LowerBound:
    """ε is at least `epsilon` at `delta`, with the stated confidence.

    Attributes:
        epsilon: The bound; 0 where nothing could be shown.
        delta: The δ at which it holds.
        confidence: The confidence with which it holds.
        method: What was assumed and how it was computed.
        candidates: How many tests were paid for.
        threshold: Of the best test, or None where there is none. It is the score of somebody.
        mu: The Gaussian parameter behind the bound, for the methods that assume one.
        in_count: How many scores with the target it rests on.
        out_count: How many scores without the target it rests on.
        distinct: Number of distinct scores among them; None where it was not counted. Equal scores
            cannot be told apart, so that few distinct ones can hide a leak.

    Guarantee:
        That of the function that made it: `lower_bound`, `one_run` or `one_run_by_group`.

    Example:
        >>> import numpy as np
        >>> from apiece.audit import lower_bound
        >>> bound = lower_bound(np.zeros(100), np.zeros(100), delta=1e-5)
        >>> bound.epsilon, bound.in_count
        (0.0, 100)
    """

    epsilon: float
    delta: float
    confidence: float
    method: str
    candidates: int
    # Not shown: it is the score of somebody.
    threshold: float | None = field(repr=False)
    mu: float | None
    in_count: int
    out_count: int
    distinct: int | None = None

    @property
    def assumption(self) -> str | None:
        """What is assumed of the mechanism besides (ε, δ)-DP; None where nothing is."""
        return None if self.mu is None else "its trade-off is a Gaussian's"

    @property
    def basis(self) -> str:
        """The method, with what it assumes."""
        return self.method if self.assumption is None else f"{self.method}, if {self.assumption}"

    def to_dict(self) -> dict[str, float | int | str | None]:
        """Return the fields as JSON types; an infinite threshold becomes None."""
        finite = self.threshold is not None and np.isfinite(self.threshold)
        return asdict(self) | {
            "threshold": self.threshold if finite else None,
            "assumption": self.assumption,
        }


def lower_bound(
    scores_in: npt.ArrayLike,
    scores_out: npt.ArrayLike,
    *,
    delta: float,
    confidence: float = 0.95,
    method: str = "clopper-pearson",
    threshold: str | float = "bonferroni",
) -> LowerBound:
    """Return a lower bound on ε: if the mechanism is (ε, δ)-DP, then `result.epsilon` ≤ ε.

    The error is shared by all tests, and by TPR and FPR (for "gdp": one joint test of both). With n
    scores a world, "clopper-pearson" shows at most log(n).

    Args:
        scores_in: Independent scores of models trained with the target; higher says member; they
            may be infinite.
        scores_out: Independent scores of models trained without it; lengths may differ.
        delta: In [0, 1).
        confidence: In (0, 1).
        method: "clopper-pearson" or "gdp".
        threshold: "bonferroni" certifies order statistics of all scores together, "split" picks on
            one half and certifies on the other, a number must not come from these scores.

    Raises:
        DataError: For NaN or no scores, and a split with fewer than two scores a world.
        InputError: For numbers outside their bounds.
        OptionError: For an unknown method or threshold.

    Guarantee:
        Fails with probability at most 1 − confidence over the scores, for every (ε, δ)-DP mechanism
        with method "clopper-pearson", for every one whose trade-off is Gaussian with "gdp".

    References:
        Jagielski, Ullman, Oprea 2020 (Clopper–Pearson); Nasr et al. 2023 (GDP).

    Example:
        >>> import numpy as np
        >>> from apiece.audit import lower_bound
        >>> bound = lower_bound(np.arange(1000) + 900, np.arange(1000), delta=1e-5)
        >>> round(bound.epsilon, 2), bound.candidates
        (4.89, 18)
    """
    ins = flat_scores("scores_in", scores_in)
    outs = flat_scores("scores_out", scores_out)
    delta, confidence = _check_options(delta, confidence, method, METHODS)
    error = 1 - confidence
    # How tests are chosen decides how many of them share the error.
    match threshold:
        case "bonferroni":
            tests = order_statistics(ins, outs)
        case "split":
            tests = choose_by_split(ins, outs, delta, error)
        case str():
            raise unknown("threshold", threshold, ["bonferroni", "split"])
        case _:
            tests = count_at(ins, outs, _check.finite("threshold", threshold))
    # Bonferroni: all tests share the error.
    test_error = error / len(tests)
    # All tests hold together: the bound is the largest, of μ or of ε itself.
    mu: float | None = None
    if method == "gdp":
        mu, best = find_largest_mu(tests, test_error)
        epsilon = epsilon_from_mu(mu, delta)
    else:
        tpr, fpr = bound_rates(tests, test_error)
        epsilons = epsilon_from_rates(tpr, fpr, delta)
        best = int(np.argmax(epsilons))
        epsilon = float(epsilons[best])
    return LowerBound(
        epsilon,
        delta,
        confidence,
        method,
        candidates=len(tests),
        threshold=float(tests.threshold[best]),
        mu=mu,
        in_count=tests.in_count,
        out_count=tests.out_count,
        distinct=np.unique(np.concatenate([ins, outs])).size,
    )


def _check_options(
    delta: float, confidence: float, method: str, methods: tuple[str, ...]
) -> tuple[float, float]:
    """Return δ and the confidence; raise for one out of bounds, or an unknown method."""
    delta = _check.probability("delta", delta, high_open=True)
    confidence = _check.probability("confidence", confidence, low_open=True, high_open=True)
    if method not in methods:
        raise unknown("method", method, methods)
    return delta, confidence


ONE_RUN_METHODS = ("dp", "gdp")
# Equal scores are ordered by this and the number of scores, never by their coins.
_TIE_SEED = 20260102


def dp_p_value(epsilon: float, *, canaries: int, guesses: int, correct: int, delta: float) -> float:
    """Return the chance of at least `correct` right `guesses` under (ε, δ)-DP, from above."""
    # Steinke, Nasr, Jagielski 2023, Theorem 3.1 (as in their Algorithm 1's analysis).
    # A guess is right with a chance of at most e^ε/(1 + e^ε), where δ is 0.
    q = float(special.expit(epsilon))
    tail = float(stats.binom.sf(correct - 1, guesses, q))
    if delta == 0 or correct == 0:
        return min(tail, 1.0)
    # What δ can add: the steepest rise of the tail per guess that it makes right.
    i = np.arange(1, correct + 1)
    rise = stats.binom.sf(correct - i - 1, guesses, q) - tail
    slope = max(float(np.max(rise / i)), 0.0)
    return min(tail + 2 * canaries * delta * slope, 1.0)


def gdp_rejects(mu: float, error: float, *, canaries: int, guesses: int, correct: int) -> bool:
    """Return whether `correct` right `guesses` are too many for μ-GDP at level `error`."""
    # With p_c the chance of exactly c right guesses, the recursion bounds the tail sums from c
    # downwards by the trade-off function; if what is needed exceeds one, p cannot exist
    # (Mahloujifar, Melis, Chaudhuri 2024, Algorithms 3 and 4, alphabet of size 2).
    # Expected shares of canaries guessed right, and wrong, in the tail whose chance is `error`.
    right = error * correct / canaries
    wrong = error * (guesses - correct) / canaries
    # From the tail downwards: what i right guesses need follows from those above.
    for i in range(correct - 1, -1, -1):
        needed = float(special.ndtr(special.ndtri(min(right, 1.0)) - mu))
        if needed <= wrong:
            break
        right += i / (guesses - i) * (needed - wrong)
        wrong = needed
        if right + wrong > guesses / canaries:
            return True
    return right + wrong > guesses / canaries


def _list_guess_counts(canaries: int, guesses: int | None) -> list[int]:
    """Return the numbers of guesses to try: those asked for, or all, half, a quarter, … to 16."""
    if guesses is not None:
        count = _check.count("guesses", guesses)
        if not count <= canaries:
            raise DataError(f"guesses = {count}: only {canaries} canaries; guess at most as often")
        return [count]
    # Halved each time: few guesses suit a leak of few canaries, many a leak of all.
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
    are ordered at random.

    Args:
        scores: One a canary; higher says included.
        included: One truth value a canary: its coin. A Series has the index of scores.
        delta: In [0, 1).
        confidence: In (0, 1).
        method: "dp" assumes nothing further; "gdp" that the trade-off is Gaussian.
        guesses: How many, chosen in advance; None tries all, half, a quarter… of the canaries, each
            at its share of the error.

    Raises:
        DataError: For NaN, no scores, differing lengths or indices, `included` that is not of truth
            values, and more guesses than canaries.
        InputError: For numbers outside their bounds.
        OptionError: For an unknown method.

    Guarantee:
        Fails with probability at most 1 − confidence, over the coins and the training, if every
        canary was included by its own fair coin, independent of all else.

    References:
        Steinke, Nasr, Jagielski 2023; Mahloujifar, Melis, Chaudhuri 2024.

    Example:
        >>> import numpy as np
        >>> from apiece.audit import one_run
        >>> coins = np.random.default_rng(0).random(1000) < 0.5
        >>> one_run(coins * 1.0, coins, delta=1e-5).epsilon > 3
        True
    """
    require_rows("scores", scores, included=included)
    values = flat_scores("scores", scores)
    truth = _check.truth_values("included", included, shape=values.shape)
    delta, confidence = _check_options(delta, confidence, method, ONE_RUN_METHODS)
    # Shuffled, then sorted stably: equal scores stand in random order.
    shuffled = np.random.default_rng(_TIE_SEED).permutation(values.size)
    order = shuffled[np.argsort(values[shuffled], kind="stable")]
    guess_counts = _list_guess_counts(values.size, guesses)
    # Bonferroni over the numbers of guesses tried.
    error = (1 - confidence) / len(guess_counts)
    bounds = [
        _bound_from_guesses(count, truth[order], error, delta, method) for count in guess_counts
    ]
    # All of them hold together, so the largest does.
    best = int(np.argmax([epsilon for epsilon, _ in bounds]))
    epsilon, mu = bounds[best]
    return LowerBound(
        epsilon,
        delta,
        confidence,
        f"one-run {method}",
        candidates=len(guess_counts),
        threshold=None,
        mu=mu,
        in_count=int(truth.sum()),
        out_count=int((~truth).sum()),
        distinct=np.unique(values).size,
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
        scores: One a canary; higher says included.
        included: One truth value a canary: its coin. A Series has the index of scores.
        groups: One name a canary.
        delta: In [0, 1).
        confidence: Of all bounds together.
        method: "dp" or "gdp".

    Raises:
        DataError: As `one_run`, and for another number of groups.

    Guarantee:
        All the bounds hold together with the stated confidence: each of G groups has 1/G of the
        error.

    Example:
        >>> import numpy as np
        >>> from apiece.audit import one_run_by_group
        >>> coins = np.random.default_rng(0).random(2000) < 0.5
        >>> groups = np.repeat(["leaks", "tight"], 1000)
        >>> bounds = one_run_by_group(coins * (groups == "leaks"), coins, groups, delta=1e-5)
        >>> bounds["leaks"].epsilon > 3, bounds["tight"].epsilon
        (True, 0.0)
    """
    require_rows("scores", scores, included=included, groups=groups)
    values = flat_scores("scores", scores)
    truth = _check.truth_values("included", included, shape=values.shape)
    names = _check.group_names("groups", groups, size=values.size)
    distinct_names = np.unique(names)
    confidence = _check.probability("confidence", confidence, low_open=True, high_open=True)
    # A union bound over the groups.
    group_confidence = 1 - (1 - confidence) / max(distinct_names.size, 1)
    bounds = {}
    for name in distinct_names:
        members = names == name
        bounds[str(name)] = one_run(
            values[members],
            truth[members],
            delta=delta,
            confidence=group_confidence,
            method=method,
        )
    return bounds


def _bound_from_guesses(
    guesses: int, ordered: npt.NDArray[np.bool_], error: float, delta: float, method: str
) -> tuple[float, float | None]:
    """Return (ε, μ or None) that the extreme `guesses` show, from the coins in order of score."""
    canaries = ordered.size
    low = guesses // 2
    high = math.ceil(guesses / 2)
    # Low scores guess "out", high ones "in".
    correct = int((~ordered[:low]).sum() + ordered[canaries - high :].sum())
    if method == "gdp":
        counts = {"canaries": canaries, "guesses": guesses, "correct": correct}
        mu = last_true(lambda m: gdp_rejects(m, error, **counts), most=MOST, rounds=ROUNDS)
        return epsilon_from_mu(mu, delta), mu

    def rejects(epsilon: float) -> bool:
        p = dp_p_value(epsilon, canaries=canaries, guesses=guesses, correct=correct, delta=delta)
        return p <= error

    return last_true(rejects, most=MOST, rounds=ROUNDS), None
