"""Which thresholds a lower bound may look at, and what each look costs.

A threshold picked because it looks best on the same scores makes a bound invalid. Three valid
choices: fixed in advance; picked on one half of the scores and certified on the other; or a set
of order statistics, all certified at once at a smaller error each (Bonferroni).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import special

from apiece import _check
from apiece._types import Floats, Integers
from apiece.errors import DataError, unknown

SPLIT_SEED = 20260101
"""The halves of a split depend on this and on the number of scores, never on their values."""


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Candidates:
    """Tests "score > threshold says member", with counts that can be read as binomial.

    true_positives of `in_count`, false_positives of `out_count`: one entry a threshold. At an
    order statistic of one arm, that arm's count is its rank, not the number of scores beyond it:
    P(X > X_(k)) is at most a Beta(k, n−k+1) variable in distribution, ties or not, whose quantiles
    are those of Clopper–Pearson with k−1 successes.
    """

    threshold: Floats
    true_positives: Integers
    false_positives: Integers
    in_count: int
    out_count: int

    def __len__(self) -> int:
        return int(self.threshold.size)


def scores(name: str, values: Any) -> Floats:
    """Return `values` as a flat array of scores; infinities order, NaN is refused.

    Raises `DataError` if there are none, if they are not flat, or if one is NaN.
    """
    try:
        array = np.array(values, dtype=np.float64)
    except (TypeError, ValueError):
        raise DataError(f"{name}: not numbers; give one score a model or canary") from None
    if array.ndim != 1 or array.size == 0:
        raise DataError(f"{name}: shape {array.shape}; give a flat array of at least one score")
    if np.isnan(array).any():
        where = int(np.flatnonzero(np.isnan(array))[0])
        raise DataError(
            f"{name}[{where}] = nan: {int(np.isnan(array).sum())} of {array.size} scores are NaN; "
            "find out why before auditing (dropping them would bias the result)"
        )
    return array


def _ranks(size: int) -> Integers:
    return 2 ** np.arange(int(np.log2(max(size // 2, 1))) + 1, dtype=np.int64)


def order_statistics(scores_in: Floats, scores_out: Floats) -> Candidates:
    """Return the thresholds at ranks 1, 2, 4, … from the top of the outs and the bottom of the ins.

    The ranks depend on the counts alone, so Bonferroni over the candidates is valid.
    """
    ins, outs = np.sort(scores_in), np.sort(scores_out)
    top, bottom = _ranks(outs.size), _ranks(ins.size)
    at_out, at_in = outs[outs.size - top], ins[bottom - 1]
    return Candidates(
        threshold=np.concatenate([at_out, at_in]),
        true_positives=np.concatenate(
            [ins.size - np.searchsorted(ins, at_out, side="right"), ins.size - (bottom - 1)]
        ),
        false_positives=np.concatenate(
            [top - 1, outs.size - np.searchsorted(outs, at_in, side="left")]
        ),
        in_count=ins.size,
        out_count=outs.size,
    )


def fixed(scores_in: Floats, scores_out: Floats, threshold: float) -> Candidates:
    """Return the one test "score > threshold", chosen without looking at these scores."""
    return Candidates(
        threshold=np.array([threshold]),
        true_positives=np.array([int((scores_in > threshold).sum())]),
        false_positives=np.array([int((scores_out > threshold).sum())]),
        in_count=scores_in.size,
        out_count=scores_out.size,
    )


def split(scores_in: Floats, scores_out: Floats, delta: float, error: float) -> Candidates:
    """Return the one test that looks best on a random half, with counts from the other half."""
    generator = np.random.default_rng(SPLIT_SEED)
    ins, outs = generator.permutation(scores_in), generator.permutation(scores_out)
    if min(ins.size, outs.size) < 2:
        raise DataError(
            f"scores: {ins.size} in and {outs.size} out; a split needs at least 2 of each"
        )
    half_in, half_out = ins.size // 2, outs.size // 2
    trial = np.unique(np.concatenate([ins[:half_in], outs[:half_out]]))
    sorted_in, sorted_out = np.sort(ins[:half_in]), np.sort(outs[:half_out])
    guess = Candidates(
        threshold=trial,
        true_positives=half_in - np.searchsorted(sorted_in, trial, side="right"),
        false_positives=half_out - np.searchsorted(sorted_out, trial, side="right"),
        in_count=half_in,
        out_count=half_out,
    )
    tpr, fpr = rates(guess, error)
    best = int(np.argmax(epsilon_from_rates(tpr, fpr, delta)))
    return fixed(ins[half_in:], outs[half_out:], float(trial[best]))


def choose(
    scores_in: Floats, scores_out: Floats, threshold: str | float, delta: float, error: float
) -> Candidates:
    """Return the candidates for `threshold`: "bonferroni", "split", or a number."""
    if isinstance(threshold, str):
        match threshold:
            case "bonferroni":
                return order_statistics(scores_in, scores_out)
            case "split":
                return split(scores_in, scores_out, delta, error)
        raise unknown("threshold", threshold, ["bonferroni", "split"])
    return fixed(scores_in, scores_out, _check.finite("threshold", threshold))


def rates(candidates: Candidates, error: float) -> tuple[Floats, Floats]:
    """Return Clopper–Pearson bounds (TPR from below, FPR from above), each with half the `error`.

    Source: Clopper, Pearson 1934.
    """
    tp, n = candidates.true_positives, candidates.in_count
    fp, m = candidates.false_positives, candidates.out_count
    with np.errstate(invalid="ignore"):
        low = special.betaincinv(np.maximum(tp, 1), n - tp + 1, error / 2)
        high = special.betainccinv(fp + 1, np.maximum(m - fp, 1), error / 2)
    return np.where(tp > 0, low, 0.0), np.where(fp < m, high, 1.0)


def epsilon_from_rates(tpr: Floats, fpr: Floats, delta: float) -> Floats:
    """Return the smallest ε ≥ 0 at which (ε, δ)-DP allows these rates, from either side."""
    with np.errstate(divide="ignore", invalid="ignore"):
        accept = np.log(np.maximum(tpr - delta, 0.0)) - np.log(fpr)
        reject = np.log(np.maximum(1 - fpr - delta, 0.0)) - np.log(1 - tpr)
    best = np.fmax(accept, reject)
    return np.asarray(np.maximum(np.nan_to_num(best, nan=0.0, posinf=np.inf, neginf=0.0), 0.0))
