"""Findings of audits, of groups and never of one person, and the tests between groups."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import combinations
from typing import Any

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

    # The number of pairs from two populations that rise, ties counted half.
    statistic: float
    z: float
    p_value: float
    # The share of such pairs that rise less the share that falls; 0 without effect.
    concordance: float
    # The relative change of the mean from the first population to the last.
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
        >>> from apiece.audit.findings import jonckheere_terpstra
        >>> jonckheere_terpstra([[1, 2, 3], [2, 4, 5], [5, 6, 7]]).statistic
        25.0
    """
    if len(populations) < 2:
        raise DataError(f"populations: {len(populations)}; a trend needs at least two")
    arrays = [
        flat_scores(f"populations[{position}]", scores)
        for position, scores in enumerate(populations)
    ]
    # Mann and Whitney's U of each two populations: pairs in which the later one is higher.
    statistic = sum(
        float(stats.mannwhitneyu(later, earlier, method="asymptotic").statistic)
        for earlier, later in combinations(arrays, 2)
    )
    pairs = sum(earlier.size * later.size for earlier, later in combinations(arrays, 2))
    sizes = np.array([array.size for array in arrays], dtype=float)
    # How many scores share each distinct value.
    _, ties = np.unique(np.concatenate(arrays), return_counts=True)
    stddev = math.sqrt(_compute_variance(sizes, ties.astype(float)))
    z = (statistic - pairs / 2) / stddev if stddev > 0 else 0.0
    p_value = float(special.ndtr(-z))
    concordance = 2 * statistic / pairs - 1
    start = float(arrays[0].mean())
    end = float(arrays[-1].mean())
    change = (end - start) / abs(start) if start else math.nan
    return Trend(statistic, z, p_value, concordance, change)


def _compute_variance(sizes: Floats, ties: Floats) -> float:
    """Return the variance of the statistic without a trend, corrected for ties (Lehmann 1975)."""
    n = sizes.sum()

    # Σ x(x − 1)(2x + 5), over sizes of populations or of ties.
    def sum_cubics(x: Any) -> Any:
        return (x * (x - 1) * (2 * x + 5)).sum()

    # Σ n(n − 1)… of the sizes times that of the ties, k factors each.
    def multiply_permutations(k: int) -> Any:
        return special.perm(sizes, k).sum() * special.perm(ties, k).sum()

    # Without ties the first line is all, (N²(2N + 3) − Σ n²(2n + 3))/72.
    variance = (sum_cubics(n) - sum_cubics(sizes) - sum_cubics(ties)) / 72
    variance = variance + multiply_permutations(2) / (8 * n * (n - 1))
    if n > 2:
        variance = variance + multiply_permutations(3) / (36 * n * (n - 1) * (n - 2))
    return float(variance)


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
    a = flat_scores("first", first)
    b = flat_scores("second", second)
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
    # The interval is Clopper and Pearson's.
    lower: float
    upper: float
    # The p-value of Wilcoxon's signed-rank test of no change against a rise, one-sided.
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
        >>> from apiece.audit.findings import share_that_rises
        >>> rise = share_that_rises([1.0, 2.0, 3.0], [1.5, 2.5, 2.0])
        >>> round(rise.share, 3), rise.pairs
        (0.667, 3)
    """
    a = flat_scores("before", before)
    b = flat_scores("after", after)
    if a.size != b.size:
        raise DataError(f"before, after: {a.size} and {b.size} scores; give pairs")
    rises = int((b > a).sum())
    interval = stats.binomtest(rises, a.size).proportion_ci(0.95)
    # Wilcoxon's test has no answer where nothing changes.
    p_value = 1.0
    if not (a == b).all():
        p_value = float(stats.wilcoxon(b, a, alternative="greater").pvalue)
    return Rise(
        rises / a.size,
        float(interval.low),
        float(interval.high),
        p_value,
        float(np.median(b - a)),
        a.size,
    )


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
        median, quantile_95 = np.quantile(scores, [0.5, 0.95])
        return cls(float(scores.mean()), float(median), float(quantile_95), scores.size)


@dataclass(frozen=True, slots=True)
class GroupDifference:
    """How the members of two groups differ in their mean scores."""

    groups: tuple[str, str]
    test: Difference | None

    def to_dict(self) -> Json:
        """Return the difference as JSON types."""
        test = {} if self.test is None else asdict(self.test)
        return {"groups": list(self.groups), **test}


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Findings:
    """The findings of one audit; a field that it did not look at is None or empty.

    Attributes:
        audit: What was audited, in words.
        attack: The membership test.
        unit: "person" where its units are persons with any number of rows; None for records.
        strategy: The strategy of the plan, where the audit made one.
        steps: The steps of that plan.
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
        bounds_by_group: Json | None = None
        if self.bounds_by_group is not None:
            bounds_by_group = {}
            for name, bounds in self.bounds_by_group.items():
                bounds_by_group[name] = [bound.to_dict() for bound in bounds]
        rocs = {name: curve.summary() for name, curve in self.rocs.items()}
        scores = {name: asdict(group) for name, group in self.privacy_score.items()}
        names = ("audit", "strategy", "steps", "attack", "unit", "models", "records")
        parts: Json = {name: getattr(self, name) for name in names}
        parts |= {
            "roc": rocs or None,
            "without_roc": dict(self.without_roc) or None,
            "lower_bounds": [bound.to_dict() for bound in self.bounds] or None,
            "lower_bounds_by_group": bounds_by_group,
            "privacy_score": scores or None,
            "differences": [difference.to_dict() for difference in self.differences] or None,
            "canaries": self.canaries,
            "watched": [watched.to_dict() for watched in self.watched] or None,
        }
        return {name: value for name, value in parts.items() if value is not None}


# With so many models, the others of each model hold two with and two without each record.
LEAST_MODELS = 6


def shadow_findings(shadows: ShadowScores, *, variant: str = "online") -> Findings:
    """Return the findings of LiRA with every model attacked in turn by all others."""
    check_half_full(shadows.included, shadows.groups)
    scores = lira_each(shadows, variant=variant)
    rocs = roc_by_group(scores, shadows.included, shadows.groups)
    # A record's mean score over the models that were trained on it.
    inside = shadows.included.sum(axis=0)
    # (records,) sums over the models that have the record.
    member_scores = np.where(shadows.included, scores, 0.0).sum(axis=0)
    likelihood = member_scores / np.maximum(inside, 1)
    names = [str(name) for name in np.unique(shadows.groups)]
    members = {name: shadows.groups.astype(str) == name for name in names}
    differences = []
    for name, other_name in combinations(names, 2):
        group = likelihood[members[name]]
        other_group = likelihood[members[other_name]]
        # A variance takes two scores a group.
        test = student_t(group, other_group) if min(group.size, other_group.size) > 1 else None
        differences.append(GroupDifference((name, other_name), test))
    record_scores = privacy_scores(shadows).score
    return Findings(
        audit="shadow models",
        attack=f"LiRA, {variant}, per-example variance",
        models=shadows.models,
        records=len(shadows),
        rocs=rocs,
        without_roc=groups_without_roc(shadows.included, shadows.groups),
        privacy_score={name: GroupScores.of(record_scores[members[name]]) for name in names},
        differences=tuple(differences),
    )


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class ModelScores:
    """A model's scores of the units that it was trained on, or of others; data about people."""

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
        """Return the scores of confidences φ: minus a record's loss, or a person's mean of it."""
        require_rows("confidences", confidences, groups=groups, people=people)
        scores = loss_scores(np.asarray(confidences, dtype=np.float64).ravel())
        names = None if groups is None else _check.group_names("groups", groups, size=scores.size)
        if people is None:
            return cls(scores, names)
        units = Units.of(people)
        unit_groups = None if names is None else units.once(names, "groups")
        # To first order a step along a person's clipped sum changes the sum of their rows' losses
        # most; the mean says the same, and does not grow with how many rows somebody has.
        return cls(units.mean(scores), unit_groups, units.ids)


def audit_scores(
    members: ModelScores,
    others: ModelScores,
    *,
    delta: float,
    confidence: float = 0.95,
    generator: np.random.Generator,
) -> Findings:
    """Return the findings on one model's confidences: who was in its training set."""
    # The bounds draw m = min(members, others) canaries, with a Binomial(m, ½) number from the
    # members, so that among exchangeable records each is in by a fair coin, as the one-run theorem
    # asks. A train/test split that was not drawn at random makes the bounds meaningless.
    if (members.people is None) != (others.people is None):
        raise DataError("people: of members or of others only; give whose the rows of both are")
    if members.people is not None and others.people is not None:
        shared = np.intersect1d(members.people, others.people).size
        if shared:
            raise DataError(
                f"people: {shared} persons are among members and others; a person is in or out "
                "with all of their rows"
            )
    member_count = members.scores.size
    other_count = others.scores.size
    scores = np.concatenate([members.scores, others.scores])
    truth = np.repeat([True, False], (member_count, other_count))
    rocs = {WHOLE: roc(scores, truth)}
    without_roc: dict[str, str] = {}
    if members.groups is not None and others.groups is not None:
        groups = np.concatenate([members.groups, others.groups])
        rocs = roc_by_group(scores, truth, groups)
        without_roc = groups_without_roc(truth, groups)
    elif members.groups is not None:
        # Others without groups: each group of members against all of them.
        for name in np.unique(members.groups).tolist():
            compared = np.append(members.groups == name, np.ones(other_count, dtype=bool))
            rocs[group_label(name)] = roc(scores[compared], truth[compared])
    # Each canary is a member by a fair coin of its own, on which one-run bounds rest.
    canaries = min(member_count, other_count)
    canaries_in = int(generator.binomial(canaries, 0.5))
    drawn_members = generator.choice(member_count, canaries_in, replace=False)
    drawn_others = generator.choice(other_count, canaries - canaries_in, replace=False)
    drawn = np.concatenate([drawn_members, member_count + drawn_others])
    bounds = tuple(
        one_run(scores[drawn], truth[drawn], delta=delta, confidence=confidence, method=method)
        for method in ("dp", "gdp")
    )
    return Findings(
        audit="torch model",
        attack="loss threshold",
        unit=None if members.people is None else "person",
        rocs=rocs,
        without_roc=without_roc,
        bounds=bounds,
        canaries=canaries,
    )
