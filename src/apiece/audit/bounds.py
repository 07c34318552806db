"""Lower bounds on ε from the scores of many models (or many canaries) in two worlds."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from apiece import _check
from apiece.audit import gaussian, thresholds
from apiece.errors import unknown

METHODS = ("clopper-pearson", "gdp")


@dataclass(frozen=True, slots=True)
class LowerBound:
    """ε is at least `epsilon` at `delta`, with the stated confidence.

    Attributes:
        epsilon: The bound; 0 where nothing could be shown.
        delta: At which it holds.
        confidence: With which it holds.
        method: What was assumed and how it was computed.
        candidates: How many tests were paid for.
        threshold: Of the best test, or None where there is none. It is the score of somebody.
        mu: The Gaussian parameter behind the bound, for the methods that assume one.
        in_count: How many scores with the target it rests on.
        out_count: How many without.

    Guarantee:
        As of the function that made it: `lower_bound`, `one_run` or `one_run_by_group`.

    Example:
        >>> bound = lower_bound(np.zeros(100), np.zeros(100), delta=1e-5)
        >>> bound.epsilon, bound.in_count
        (0.0, 100)
    """

    epsilon: float
    delta: float
    confidence: float
    method: str
    candidates: int
    threshold: float | None = field(repr=False)  # the score of somebody
    mu: float | None
    in_count: int
    out_count: int

    def to_dict(self) -> dict[str, float | int | str | None]:
        """Return the fields as JSON types; an infinite threshold becomes None."""
        finite = self.threshold is not None and bool(np.isfinite(self.threshold))
        return {
            "epsilon": self.epsilon,
            "delta": self.delta,
            "confidence": self.confidence,
            "method": self.method,
            "candidates": self.candidates,
            "threshold": self.threshold if finite else None,
            "mu": self.mu,
            "in_count": self.in_count,
            "out_count": self.out_count,
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

    The error is shared by all tests, and by TPR and FPR (for "gdp": one joint test of both). Scores
    without signal give 0 with probability at least `confidence`; at most log(n) can be shown with n
    scores.

    Args:
        scores_in: Independent scores of models trained with the target; higher says member.
        scores_out: The same of models trained without it; lengths may differ.
        delta: In [0, 1).
        confidence: In (0, 1).
        method: "clopper-pearson" or "gdp".
        threshold: "bonferroni" certifies order statistics of all scores together, "split" picks on
            one half and certifies on the other, a number is used as it is and must not come from
            these scores.

    Raises:
        DataError: For NaN or no scores.
        InputError: For numbers outside their bounds.
        OptionError: For an unknown method.

    Guarantee:
        The statement fails with probability at most 1 − confidence over the scores, for every (ε,
        δ)-DP mechanism with method "clopper-pearson", and for every mechanism whose trade-off is
        Gaussian with method "gdp" (tighter for DP-SGD, an assumption all the same).

    References:
        Jagielski, Ullman, Oprea 2020 (Clopper–Pearson); Nasr et al. 2023 (GDP).

    Example:
        >>> bound = lower_bound(np.arange(1000) + 900, np.arange(1000), delta=1e-5)
        >>> round(bound.epsilon, 2), bound.candidates
        (4.89, 18)
    """
    ins = thresholds.scores("scores_in", scores_in)
    outs = thresholds.scores("scores_out", scores_out)
    delta = _check.probability("delta", delta, high_open=True)
    confidence = _check.probability("confidence", confidence, low_open=True, high_open=True)
    if method not in METHODS:
        raise unknown("method", method, METHODS)
    error = 1 - confidence
    tests = thresholds.choose(ins, outs, threshold, delta, error)
    each = error / len(tests)
    mu: float | None = None
    if method == "gdp":
        mu, best = gaussian.largest_mu(tests, each)
        epsilon = gaussian.epsilon_from_mu(mu, delta)
    else:
        tpr, fpr = thresholds.rates(tests, each)
        epsilons = thresholds.epsilon_from_rates(tpr, fpr, delta)
        best = int(np.argmax(epsilons))
        epsilon = float(epsilons[best])
    return LowerBound(
        epsilon=epsilon,
        delta=delta,
        confidence=confidence,
        method=method,
        candidates=len(tests),
        threshold=float(tests.threshold[best]),
        mu=mu,
        in_count=tests.in_count,
        out_count=tests.out_count,
    )
