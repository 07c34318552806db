"""Findings: what an audit found, of groups and never of one person."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import combinations
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy import special, stats

from apiece._types import Floats, Json
from apiece.audit.bounds import LowerBound, flat_scores, one_run
from apiece.audit.membership import Roc, lira_each, loss_scores, privacy_scores, roc_by_group
from apiece.audit.records import ShadowScores
from apiece.audit.splits import check_half_full
from apiece.budgets import Units
from apiece.errors import DataError, InputError


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
    parts = [flat_scores(f"populations[{i}]", p) for i, p in enumerate(populations)]
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
    a, b = flat_scores("first", first), flat_scores("second", second)
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
    a, b = flat_scores("before", before), flat_scores("after", after)
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


@dataclass(frozen=True, slots=True)
class GroupScores:
    """The privacy scores of a group's records: mean, median and 95 % quantile.

    Attributes:
        mean: Over the records.
        median: Over the records.
        quantile_95: Over the records.
        records: How many there were.

    Example:
        >>> GroupScores(0.2, 0.1, 0.9, 40).records
        40
    """

    mean: float
    median: float
    quantile_95: float
    records: int


@dataclass(frozen=True, slots=True)
class GroupDifference:
    """How the members of two groups differ in their mean scores.

    Attributes:
        groups: Their names.
        test: Student's t; None where a group is too small for it.

    Example:
        >>> GroupDifference(("strict", "weak"), None).to_dict()
        {'groups': ['strict', 'weak']}
    """

    groups: tuple[str, str]
    test: Difference | None

    def to_dict(self) -> Json:
        """Return the difference as JSON types."""
        return {"groups": list(self.groups), **({} if self.test is None else asdict(self.test))}


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Findings:
    """What an audit found; what it did not look at is None or empty.

    Attributes:
        audit: What was audited, in words.
        attack: By which test.
        unit: "person" where scores, coins and splits are of persons with any number of rows; None
            where they are of records.
        strategy: Of the plan, where the audit made one.
        steps: Of that plan.
        models: How many models were trained for it.
        records: Of how many records or persons.
        rocs: How well members are told from others, by group.
        bounds: On ε, with a confidence.
        bounds_by_group: The same, by group; they hold together.
        privacy_score: Of each group.
        differences: Of each two groups.
        canaries: How many records or persons the bounds rest on.

    Example:
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
    bounds: tuple[LowerBound, ...] = ()
    bounds_by_group: Mapping[str, tuple[LowerBound, ...]] | None = None
    privacy_score: Mapping[str, GroupScores] = field(default_factory=dict)
    differences: tuple[GroupDifference, ...] = ()
    canaries: int | None = None

    def to_dict(self) -> Json:
        """Return the findings as JSON types, without what was not looked at."""
        by_group = self.bounds_by_group
        found: Json = {
            "audit": self.audit,
            "strategy": self.strategy,
            "steps": self.steps,
            "attack": self.attack,
            "unit": self.unit,
            "models": self.models,
            "records": self.records,
            "roc": {name: curve.summary() for name, curve in self.rocs.items()} or None,
            "lower_bounds": [bound.to_dict() for bound in self.bounds] or None,
            "lower_bounds_by_group": None
            if by_group is None
            else {name: [bound.to_dict() for bound in each] for name, each in by_group.items()},
            "privacy_score": {name: asdict(own) for name, own in self.privacy_score.items()}
            or None,
            "differences": [each.to_dict() for each in self.differences] or None,
            "canaries": self.canaries,
        }
        return {name: value for name, value in found.items() if value is not None}


LEAST_MODELS = 6  # so that the others of each model hold two with and two without each record


def shadow_findings(
    shadows: ShadowScores, *, variant: str = "online", variance: str = "per-example"
) -> Findings:
    """Return the findings of LiRA with every model attacked in turn by all others.

    No figure of a single record is in it.

    Args:
        shadows: Confidences of K models, half full within each group.
        variant: As of `lira`.
        variance: As of `lira`.

    Returns:
        ROCs of all records and by group, privacy scores by group, and Student's t between the
        members' mean likelihood scores of each two groups.

    Raises:
        DataError: For splits that are not half full within each group.
        InputError: For fewer shadow models than LiRA needs.

    References:
        Boenisch et al. 2023, §4.2.

    Example:
        >>> from apiece.audit import biregular
        >>> generator = np.random.default_rng(0)
        >>> included = biregular(8, np.zeros(40, int), generator=generator)
        >>> phi = generator.normal(size=(8, 40)) + included
        >>> shadows = ShadowScores(np.arange(40), np.repeat(["all"], 40), included, phi)
        >>> 0.5 < shadow_findings(shadows).rocs["all"].auc < 1
        True
    """
    check_half_full(shadows.included, shadows.groups)
    scores = lira_each(shadows, variant=variant, variance=variance)
    rocs = roc_by_group(scores, shadows.included, shadows.groups)
    inside = shadows.included.sum(axis=0)
    likelihood = np.where(shadows.included, scores, 0.0).sum(axis=0) / np.maximum(inside, 1)
    names = [str(name) for name in np.unique(shadows.groups)]
    of = {name: shadows.groups.astype(str) == name for name in names}
    private = privacy_scores(shadows).score
    return Findings(
        audit="shadow models",
        attack=f"LiRA, {variant}, {variance} variance",
        models=shadows.models,
        records=len(shadows),
        rocs=rocs,
        privacy_score={name: _group_scores(private[of[name]]) for name in names},
        differences=tuple(
            GroupDifference((a, b), _difference(likelihood[of[a]], likelihood[of[b]]))
            for a, b in combinations(names, 2)
        ),
    )


def _group_scores(scores: Floats) -> GroupScores:
    return GroupScores(
        mean=float(scores.mean()),
        median=float(np.median(scores)),
        quantile_95=float(np.quantile(scores, 0.95)),
        records=scores.size,
    )


def _difference(first: Floats, second: Floats) -> Difference | None:
    try:
        return student_t(first, second)
    except InputError:
        return None


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Side:
    """What a model says of those that it was trained on, or of others; data about people.

    Args:
        scores: (n,), one a record or person; higher says trained on.
        groups: (n,), their budget groups, or None.
        people: (n,), the persons' ids, or None where the records are the units.

    Example:
        >>> Side.of([0.0, 2.0, 2.0], people=["ann", "bob", "ann"]).people.tolist()
        ['ann', 'bob']
    """

    scores: Floats
    groups: npt.NDArray[Any] | None = None
    people: npt.NDArray[Any] | None = None

    @classmethod
    def of(
        cls,
        confidences: npt.ArrayLike,
        *,
        groups: npt.ArrayLike | None = None,
        people: npt.ArrayLike | None = None,
    ) -> Side:
        """Return the side of confidences φ: the loss of each record, or the mean of a person's.

        Args:
            confidences: (n,), φ = log(p/(1−p)) of the true class, one a row.
            groups: (n,), the budget group of each row.
            people: (n,), the id of each row's person, where persons are the units.

        Raises:
            DataError: As `Units`, and where a person is in two groups.
        """
        scores = loss_scores(np.asarray(confidences, dtype=np.float64).ravel())
        names = None if groups is None else np.asarray(groups)
        if people is None:
            return cls(scores, names)
        units = Units.of(people)
        own = None if names is None else units.once(names, "groups")
        # To first order a step along a person's clipped sum changes the sum of their rows' losses
        # most; the mean says the same, and does not grow with how many rows somebody has.
        return cls(units.mean(scores), own, units.ids)


def audit_scores(
    members: Side,
    others: Side,
    *,
    delta: float,
    confidence: float = 0.95,
    generator: np.random.Generator,
) -> Findings:
    """Return what one model's confidences give away about who was in its training set.

    The bounds draw m = min(members, others) canaries, with a Binomial(m, ½) number from the
    members, so that among exchangeable records each is in by a fair coin, as the one-run theorem
    asks. A train/test split that was not drawn at random makes the bounds meaningless.

    Args:
        members: Those who were trained on.
        others: Of the same population, who were not. Where both have groups, there is a ROC a
            group.
        delta: Of the bounds.
        confidence: Of each bound.
        generator: Draws the canaries.

    Raises:
        DataError: Where a person is on both sides, or one side is of persons and one of records.

    Example:
        >>> generator = np.random.default_rng(0)
        >>> members, others = (Side.of(generator.normal(size=50)) for _ in range(2))
        >>> audit_scores(members, others, delta=1e-5, generator=generator).canaries
        50
    """
    _require_apart(members.people, others.people)
    sizes = members.scores.size, others.scores.size
    scores = np.concatenate([members.scores, others.scores])
    truth = np.repeat([True, False], sizes)
    groups = np.full(scores.size, "all")
    if members.groups is not None and others.groups is not None:
        groups = np.concatenate([members.groups, others.groups])
    rocs = roc_by_group(scores, truth, groups)
    size = min(sizes)
    count = int(generator.binomial(size, 0.5))
    chosen = np.concatenate(
        [
            generator.choice(sizes[0], count, replace=False),
            sizes[0] + generator.choice(sizes[1], size - count, replace=False),
        ]
    )
    bounds = tuple(
        one_run(scores[chosen], truth[chosen], delta=delta, confidence=confidence, method=method)
        for method in ("dp", "gdp")
    )
    return Findings(
        audit="torch model",
        attack="loss threshold",
        unit=None if members.people is None else "person",
        rocs=rocs,
        bounds=bounds,
        canaries=size,
    )


def _require_apart(one: npt.NDArray[Any] | None, other: npt.NDArray[Any] | None) -> None:
    if one is None and other is None:
        return
    if one is None or other is None:
        raise DataError("people: of members or of others only; give whose the rows of both are")
    both = np.intersect1d(one, other).size
    if both:
        raise DataError(
            f"people: {both} persons are among members and others; a person is in or out with all "
            "of their rows"
        )
