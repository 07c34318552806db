"""Findings of audits, of groups and never of one person, and the tests between groups."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import combinations

import numpy as np
import numpy.typing as npt
from scipy import special, stats

from apiece import _check
from apiece._identity import require_rows
from apiece._types import AnyArray, Floats, Json
from apiece.audit.anytime import Watched
from apiece.audit.bounds import LowerBound, flat_scores, one_run
from apiece.audit.membership import (
    WHOLE,
    Roc,
    group_label,
    groups_without_roc,
    lira_each,
    loss_scores,
    privacy_scores,
    roc,
    roc_by_group,
)
from apiece.audit.records import ShadowScores
from apiece.audit.splits import check_half_full
from apiece.budgets import Units
from apiece.errors import DataError


@dataclass(frozen=True, slots=True)
class Trend:
    """A Jonckheere–Terpstra test of no trend against a rise; `p_value` is one-sided."""

    statistic: float  # pairs from two populations that rise, ties counted half
    z: float
    p_value: float
    concordance: float  # share of such pairs that rise less share that falls; 0: no effect
    relative_change: float  # of the mean, from the first population to the last

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
        >>> from apiece.audit.findings import jonckheere_terpstra
        >>> jonckheere_terpstra([[1, 2, 3], [2, 4, 5], [5, 6, 7]]).statistic
        25.0
    """
    if len(populations) < 2:
        raise DataError(f"populations: {len(populations)}; a trend needs at least two")
    parts = [flat_scores(f"populations[{i}]", p) for i, p in enumerate(populations)]
    statistic = sum(
        float(stats.mannwhitneyu(high, low, method="asymptotic").statistic)
        for low, high in combinations(parts, 2)
    )
    pairs = sum(low.size * high.size for low, high in combinations(parts, 2))
    sizes = np.array([p.size for p in parts], dtype=float)
    _, ties = np.unique(np.concatenate(parts), return_counts=True)
    spread = math.sqrt(_variance(sizes, ties.astype(float)))
    z = (statistic - pairs / 2) / spread if spread > 0 else 0.0
    first, last = float(parts[0].mean()), float(parts[-1].mean())
    change = (last - first) / abs(first) if first else math.nan
    return Trend(statistic, z, float(special.ndtr(-z)), 2 * statistic / pairs - 1, change)


def _variance(sizes: Floats, ties: Floats) -> float:
    """Return the variance of the statistic without a trend, corrected for ties."""
    n = sizes.sum()
    cubics = [(x * (x - 1) * (2 * x + 5)).sum() for x in (n, sizes, ties)]
    pairs, triples = (special.perm(sizes, k).sum() * special.perm(ties, k).sum() for k in (2, 3))
    variance = (cubics[0] - cubics[1] - cubics[2]) / 72 + pairs / (8 * n * (n - 1))
    return float(variance + (triples / (36 * n * (n - 1) * (n - 2)) if n > 2 else 0.0))


@dataclass(frozen=True, slots=True)
class Difference:
    """Student's t of two groups: a two-sided `p_value`, and Cohen's d as `effect`."""

    statistic: float
    p_value: float
    effect: float


def student_t(first: npt.ArrayLike, second: npt.ArrayLike) -> Difference:
    """Return Student's t-test that the two groups have one mean (equal variances).

    Args:
        first: Scores.
        second: Scores.

    Raises:
        DataError: For NaN or fewer than two scores a group. (Where all scores are equal the p-value
            is NaN.)

    References:
        Boenisch et al. 2023, §4.2.

    Example:
        >>> from apiece.audit.findings import student_t
        >>> round(student_t([1.0, 2.0, 3.0], [2.0, 3.0, 4.0]).p_value, 3)
        0.288
    """
    a, b = flat_scores("first", first), flat_scores("second", second)
    if min(a.size, b.size) < 2:
        raise DataError(f"groups: {a.size} and {b.size} scores; give at least two of each")
    test = stats.ttest_ind(a, b)
    # t is Cohen's d over the square root of 1/a + 1/b; both are infinite where nothing varies.
    effect = float(test.statistic) * math.sqrt(1 / a.size + 1 / b.size)
    effect = effect if math.isfinite(effect) else 0.0
    return Difference(float(test.statistic), float(test.pvalue), effect)


@dataclass(frozen=True, slots=True)
class Rise:
    """Paired scores before and after: the share of pairs that rose, with its 95 % interval."""

    share: float
    lower: float  # by Clopper and Pearson
    upper: float
    p_value: float  # of Wilcoxon's signed-rank test of no change against a rise, one-sided
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
        >>> from apiece.audit.findings import share_that_rises
        >>> rise = share_that_rises([1.0, 2.0, 3.0], [1.5, 2.5, 2.0])
        >>> round(rise.share, 3), rise.pairs
        (0.667, 3)
    """
    a, b = flat_scores("before", before), flat_scores("after", after)
    if a.size != b.size:
        raise DataError(f"before, after: {a.size} and {b.size} scores; give pairs")
    risen = int((b > a).sum())
    interval = stats.binomtest(risen, a.size).proportion_ci(0.95)
    same = bool((a == b).all())
    p_value = 1.0 if same else float(stats.wilcoxon(b, a, alternative="greater").pvalue)
    ends = float(interval.low), float(interval.high)
    return Rise(risen / a.size, *ends, p_value, float(np.median(b - a)), a.size)


@dataclass(frozen=True, slots=True)
class GroupScores:
    """The privacy scores of a group's records: mean, median and 95 % quantile."""

    mean: float
    median: float
    quantile_95: float
    records: int

    @classmethod
    def of(cls, scores: Floats) -> GroupScores:
        """Return the summary of (n,) scores."""
        median, high = np.quantile(scores, [0.5, 0.95])
        return cls(float(scores.mean()), float(median), float(high), scores.size)


@dataclass(frozen=True, slots=True)
class GroupDifference:
    """How the members of two groups differ in their mean scores."""

    groups: tuple[str, str]
    test: Difference | None

    def to_dict(self) -> Json:
        """Return the difference as JSON types."""
        return {"groups": list(self.groups), **({} if self.test is None else asdict(self.test))}


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Findings:
    """The findings of one audit; what it did not look at is None or empty.

    Attributes:
        audit: What was audited, in words.
        attack: The membership test.
        unit: "person" where its units are persons with any number of rows; None for records.
        strategy: That of the plan, where the audit made one.
        steps: Those of that plan.
        models: How many models were trained for it.
        records: How many records or persons it looked at.
        rocs: How well members are told from others, by group.
        without_roc: Why a group has no ROC, by its name.
        bounds: On ε, with a confidence.
        bounds_by_group: Bounds on each group's ε; those of one method hold together.
        privacy_score: Of each group.
        differences: Of each two groups.
        canaries: How many records or persons the bounds rest on.
        watched: What an audit that may stop saw of each claim.

    Example:
        >>> from apiece.audit import Findings
        >>> Findings(audit="two worlds").to_dict()
        {'audit': 'two worlds'}
    """

    audit: str
    attack: str | None = None
    unit: str | None = None
    strategy: str | None = None
    steps: int | None = None
    models: int | None = None
    records: int | None = None
    rocs: Mapping[str, Roc] = field(default_factory=dict)
    without_roc: Mapping[str, str] = field(default_factory=dict)
    bounds: tuple[LowerBound, ...] = ()
    bounds_by_group: Mapping[str, tuple[LowerBound, ...]] | None = None
    privacy_score: Mapping[str, GroupScores] = field(default_factory=dict)
    differences: tuple[GroupDifference, ...] = ()
    canaries: int | None = None
    watched: tuple[Watched, ...] = ()

    def all_bounds(self) -> list[tuple[str, LowerBound]]:
        """Return each bound with its group; the group of all together is "all"."""
        bounds = [(WHOLE, bound) for bound in self.bounds]
        for name, group_bounds in (self.bounds_by_group or {}).items():
            bounds += [(group_label(name), bound) for bound in group_bounds]
        return bounds

    def to_dict(self) -> Json:
        """Return the findings as JSON types, without what was not looked at."""
        by_group: Json | None = None
        if self.bounds_by_group is not None:
            groups = self.bounds_by_group.items()
            by_group = {name: [bound.to_dict() for bound in own] for name, own in groups}
        names = ("audit", "strategy", "steps", "attack", "unit", "models", "records")
        parts: Json = {name: getattr(self, name) for name in names} | {
            "roc": {name: curve.summary() for name, curve in self.rocs.items()} or None,
            "without_roc": dict(self.without_roc) or None,
            "lower_bounds": [bound.to_dict() for bound in self.bounds] or None,
            "lower_bounds_by_group": by_group,
            "privacy_score": {n: asdict(own) for n, own in self.privacy_score.items()} or None,
            "differences": [each.to_dict() for each in self.differences] or None,
            "canaries": self.canaries,
            "watched": [each.to_dict() for each in self.watched] or None,
        }
        return {name: value for name, value in parts.items() if value is not None}


LEAST_MODELS = 6  # so that the others of each model hold two with and two without each record


def shadow_findings(shadows: ShadowScores, *, variant: str = "online") -> Findings:
    """Return the findings of LiRA with every model attacked in turn by all others."""
    check_half_full(shadows.included, shadows.groups)
    scores = lira_each(shadows, variant=variant)
    rocs = roc_by_group(scores, shadows.included, shadows.groups)
    inside = shadows.included.sum(axis=0)
    likelihood = np.where(shadows.included, scores, 0.0).sum(axis=0) / np.maximum(inside, 1)
    names = [str(name) for name in np.unique(shadows.groups)]

    def test(first: Floats, second: Floats) -> Difference | None:
        return student_t(first, second) if min(first.size, second.size) > 1 else None

    of = {name: shadows.groups.astype(str) == name for name in names}
    private = privacy_scores(shadows).score
    return Findings(
        audit="shadow models",
        attack=f"LiRA, {variant}, per-example variance",
        models=shadows.models,
        records=len(shadows),
        rocs=rocs,
        without_roc=groups_without_roc(shadows.included, shadows.groups),
        privacy_score={name: GroupScores.of(private[of[name]]) for name in names},
        differences=tuple(
            GroupDifference((a, b), test(likelihood[of[a]], likelihood[of[b]]))
            for a, b in combinations(names, 2)
        ),
    )


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class ModelScores:
    """What a model says of those that it was trained on, or of others; data about people."""

    scores: Floats
    groups: AnyArray | None = None
    people: AnyArray | None = None

    @classmethod
    def of(
        cls,
        confidences: npt.ArrayLike,
        *,
        groups: npt.ArrayLike | None = None,
        people: npt.ArrayLike | None = None,
    ) -> ModelScores:
        """Return the side of confidences φ: the loss of each record, or the mean of a person's."""
        require_rows("confidences", confidences, groups=groups, people=people)
        scores = loss_scores(np.asarray(confidences, dtype=np.float64).ravel())
        names = None if groups is None else _check.group_names("groups", groups, size=scores.size)
        if people is None:
            return cls(scores, names)
        units = Units.of(people)
        own = None if names is None else units.once(names, "groups")
        # To first order a step along a person's clipped sum changes the sum of their rows' losses
        # most; the mean says the same, and does not grow with how many rows somebody has.
        return cls(units.mean(scores), own, units.ids)


def audit_scores(
    members: ModelScores,
    others: ModelScores,
    *,
    delta: float,
    confidence: float = 0.95,
    generator: np.random.Generator,
) -> Findings:
    """Return what one model's confidences give away about who was in its training set."""
    # The bounds draw m = min(members, others) canaries, with a Binomial(m, ½) number from the
    # members, so that among exchangeable records each is in by a fair coin, as the one-run theorem
    # asks. A train/test split that was not drawn at random makes the bounds meaningless.
    one, other = members.people, others.people
    if (one is None) != (other is None):
        raise DataError("people: of members or of others only; give whose the rows of both are")
    if one is not None and other is not None and (both := np.intersect1d(one, other).size):
        raise DataError(
            f"people: {both} persons are among members and others; a person is in or out with all "
            "of their rows"
        )
    sizes = members.scores.size, others.scores.size
    scores = np.concatenate([members.scores, others.scores])
    truth = np.repeat([True, False], sizes)
    rocs = {WHOLE: roc(scores, truth)}
    without_roc: dict[str, str] = {}
    if members.groups is not None and others.groups is not None:
        groups = np.concatenate([members.groups, others.groups])
        rocs = roc_by_group(scores, truth, groups)
        without_roc = groups_without_roc(truth, groups)
    elif members.groups is not None:  # each group against all others
        for name in np.unique(members.groups).tolist():
            compared = np.append(members.groups == name, np.ones(sizes[1], dtype=bool))
            rocs[group_label(name)] = roc(scores[compared], truth[compared])
    size = min(sizes)
    count = int(generator.binomial(size, 0.5))
    drawn = generator.choice(sizes[0], count, replace=False)
    spared = generator.choice(sizes[1], size - count, replace=False)
    chosen = np.concatenate([drawn, sizes[0] + spared])
    bounds = tuple(
        one_run(scores[chosen], truth[chosen], delta=delta, confidence=confidence, method=method)
        for method in ("dp", "gdp")
    )
    return Findings(
        audit="torch model",
        attack="loss threshold",
        unit=None if one is None else "person",
        rocs=rocs,
        without_roc=without_roc,
        bounds=bounds,
        canaries=size,
    )
