"""Does a score rise from one population to the next, and do two groups differ?"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy import special, stats

from apiece._types import Floats
from apiece.audit import thresholds
from apiece.errors import DataError


@dataclass(frozen=True, slots=True)
class Trend:
    """A Jonckheere–Terpstra test: `p_value` of no trend against a rise.

    Attributes:
        statistic: How many pairs from two populations rise, ties counted half.
        z: The standardised statistic.
        p_value: One-sided.
        concordance: Of pairs from two populations in order, the share that rises less the share
            that falls, in [−1, 1] (0: no effect).
        relative_change: Of the mean, from the first population to the last.

    Example:
        >>> jonckheere_terpstra([[1, 2, 3], [4, 5, 6], [7, 8, 9]]).stars
        '**'
    """

    statistic: float
    z: float
    p_value: float
    concordance: float
    relative_change: float

    @property
    def stars(self) -> str:
        """*** for p ≤ .001, ** for p ≤ .01, * for p ≤ .05, as in Kaiser et al. 2026 Table I."""
        return "*" * sum(self.p_value <= level for level in (0.001, 0.01, 0.05))


def jonckheere_terpstra(populations: Sequence[npt.ArrayLike]) -> Trend:
    """Return the test of a rise along `populations`, in the order given; ties are corrected for.

    Normal approximation, one-sided; for more than about 10 scores a population.

    Args:
        populations: Scores of each, two or more.

    Raises:
        DataError: For fewer than two populations, an empty one, or NaN.

    References:
        Jonckheere 1954; Terpstra 1952; Lehmann 1975 (variance with ties).

    Example:
        >>> jonckheere_terpstra([[1, 2, 3], [2, 4, 5], [5, 6, 7]]).statistic
        25.0
    """
    if len(populations) < 2:
        raise DataError(f"populations: {len(populations)}; a trend needs at least two")
    parts = [thresholds.scores(f"populations[{i}]", p) for i, p in enumerate(populations)]
    statistic, pairs = 0.0, 0
    for i, low in enumerate(parts):
        ordered = np.sort(low)
        for high in parts[i + 1 :]:
            below = np.searchsorted(ordered, high, side="left").sum()
            not_above = np.searchsorted(ordered, high, side="right").sum()
            statistic += float(below + not_above) / 2
            pairs += low.size * high.size
    sizes = np.array([p.size for p in parts], dtype=float)
    _, ties = np.unique(np.concatenate(parts), return_counts=True)
    spread = math.sqrt(_variance(sizes, ties.astype(float)))
    z = (statistic - pairs / 2) / spread if spread > 0 else 0.0
    first, last = float(parts[0].mean()), float(parts[-1].mean())
    return Trend(
        statistic=statistic,
        z=z,
        p_value=float(special.ndtr(-z)),
        concordance=2 * statistic / pairs - 1,
        relative_change=(last - first) / abs(first) if first else math.nan,
    )


def _variance(sizes: Floats, ties: Floats) -> float:
    n = float(sizes.sum())

    def first(x: Floats) -> float:
        return float((x * (x - 1) * (2 * x + 5)).sum())

    def second(x: Floats) -> float:
        return float((x * (x - 1) * (x - 2)).sum())

    def third(x: Floats) -> float:
        return float((x * (x - 1)).sum())

    every = np.array([n])
    variance = (first(every) - first(sizes) - first(ties)) / 72
    if n > 2:
        variance += second(sizes) * second(ties) / (36 * n * (n - 1) * (n - 2))
    return variance + third(sizes) * third(ties) / (8 * n * (n - 1))


@dataclass(frozen=True, slots=True)
class Difference:
    """Student's t of two groups.

    Attributes:
        statistic: t.
        p_value: Two-sided.
        effect: Cohen's d.

    Example:
        >>> student_t([1.0, 2.0, 3.0], [1.0, 2.0, 3.0]).effect
        0.0
    """

    statistic: float
    p_value: float
    effect: float


def student_t(first: npt.ArrayLike, second: npt.ArrayLike) -> Difference:
    """Return Student's t-test that the two groups have one mean (equal variances).

    Args:
        first: Scores.
        second: Scores.

    Raises:
        DataError: For NaN or fewer than two scores a group.

    References:
        Boenisch et al. 2023, §4.2.

    Example:
        >>> round(student_t([1.0, 2.0, 3.0], [2.0, 3.0, 4.0]).p_value, 3)
        0.288
    """
    a, b = thresholds.scores("first", first), thresholds.scores("second", second)
    if min(a.size, b.size) < 2:
        raise DataError(f"groups: {a.size} and {b.size} scores; give at least two of each")
    test = stats.ttest_ind(a, b)
    freedom = a.size + b.size - 2
    pooled = math.sqrt(((a.size - 1) * a.var(ddof=1) + (b.size - 1) * b.var(ddof=1)) / freedom)
    effect = float(a.mean() - b.mean()) / pooled if pooled > 0 else 0.0
    return Difference(float(test.statistic), float(test.pvalue), effect)


@dataclass(frozen=True, slots=True)
class Rise:
    """Paired scores before and after: what share rose, and is that more than chance?

    Attributes:
        share: Of all pairs.
        lower: Of the share, by Clopper and Pearson, 95 % together with `upper`.
        upper: The same.
        p_value: Wilcoxon signed-rank of no change against a rise, one-sided.
        median_change: Of the pairs.
        pairs: How many.

    Example:
        >>> share_that_rises([1.0, 2.0, 3.0], [1.5, 2.5, 3.5]).median_change
        0.5
    """

    share: float
    lower: float
    upper: float
    p_value: float
    median_change: float
    pairs: int


def share_that_rises(before: npt.ArrayLike, after: npt.ArrayLike) -> Rise:
    """Return the paired comparison of two scores of the same records, in the same order.

    Args:
        before: Scores.
        after: Scores of the same records.

    Raises:
        DataError: For NaN or lengths that differ.

    Example:
        >>> found = share_that_rises([1.0, 2.0, 3.0], [1.5, 2.5, 2.0])
        >>> round(found.share, 3), found.pairs
        (0.667, 3)
    """
    a, b = thresholds.scores("before", before), thresholds.scores("after", after)
    if a.size != b.size:
        raise DataError(f"before, after: {a.size} and {b.size} scores; give pairs")
    risen = int((b > a).sum())
    interval = stats.binomtest(risen, a.size).proportion_ci(0.95)
    same = bool((a == b).all())
    p_value = 1.0 if same else float(stats.wilcoxon(b, a, alternative="greater").pvalue)
    return Rise(
        share=risen / a.size,
        lower=float(interval.low),
        upper=float(interval.high),
        p_value=p_value,
        median_change=float(np.median(b - a)),
        pairs=a.size,
    )
