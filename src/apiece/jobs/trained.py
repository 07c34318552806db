"""Facts that a run is told by: its table, its promises and its figures.

Nothing here is about one person: no losses or norms, no counts of those who were sampled, no list
of who has which budget. Figures of held-out people are covered by no ε.
"""

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Annotated, Self

import numpy as np

from apiece import _json
from apiece._text import count_up
from apiece._types import Floats, Integers, Json, Mask
from apiece.budgets.groups import LARGE, SMALL_GROUP, describe_cap
from apiece.budgets.levels import Levels
from apiece.errors import DataError, InputError
from apiece.jobs.config import SETTINGS, TUNED
from apiece.jobs.settings import listed, stored
from apiece.plan import Plan

NORMAL = 1.959964  # of a 95 % interval
POINTS = 20  # of a learning curve
_OF_PATE = ("teachers", "questions", "answers", "threshold", "semi_supervised")


def _range(value: object, where: str) -> tuple[float, float]:
    ends = _json.listed(_json.number)(value, where)
    if len(ends) != 2 or not ends[0] < ends[1]:
        raise DataError(f"{where} = {value!r}: must be a lower and an upper end")
    return ends[0], ends[1]


def _settings(value: object, where: str) -> Json:
    readers = {name: stored(SETTINGS[name]) for name in (*TUNED, *_OF_PATE)}
    readers["semi_supervised"] = _json.whole(1)  # a number, as the others
    return _json.fields(
        value, where, {n: readers[n] for n in TUNED}, {n: readers[n] for n in _OF_PATE}
    )


# Types of fields, each with how a stored value is read.
Proportion = Annotated[float, _json.share]
Range = Annotated[tuple[float, float], _range]
Seed = Annotated[int, _json.whole(2**128)]
Tuned = Annotated[Mapping[str, float], _settings]
TargetScale = Annotated[str, _json.one_of("linear", "log")]
Unit = Annotated[str, _json.one_of("record", "person")]
Asked = Mapping[str, float] | Sequence[float] | Sequence[tuple[float, float]] | str
Planned = Annotated[Plan, lambda value, where: Plan.from_dict(value)]


@dataclass(frozen=True, slots=True)
class Interval:
    """An estimate with its 95 % interval, by the normal approximation over records or persons."""

    value: float
    lower: float
    upper: float

    def __post_init__(self) -> None:
        if not self.lower <= self.value <= self.upper:
            raise DataError(
                f"interval from {self.lower} to {self.upper}: does not hold its value "
                f"{self.value}; give a folder as it was written"
            )


@dataclass(frozen=True, slots=True)
class Errors:
    """The errors of one model on held-out rows."""

    # mean_absolute: in the target's units. r2: 1 − squared error over that of always saying the
    # rows' mean; at most 1.

    mean_absolute: Interval
    r2: Interval

    @property
    def figure(self) -> float:
        """The one number of a learning curve."""
        return self.mean_absolute.value


def errors_of(predicted: Floats, truth: Floats, unit: Integers) -> Errors | None:
    """Return the errors of predictions (n,); None where they say nothing."""
    # That is of fewer than two records or persons, of one value for all, and where a model puts out
    # what is no number. unit: (n,), the position of each row's record or person, from 0.
    centred = (truth - truth.mean()) ** 2 if truth.size else truth
    if truth.size == 0 or unit.max() < 1 or not centred.sum() > 0:
        return None
    if not np.isfinite(predicted).all():
        return None
    absolute, squared = np.abs(predicted - truth), (predicted - truth) ** 2
    mean, r2 = float(absolute.mean()), float(1 - squared.sum() / centred.sum())
    reach = NORMAL * standard_error(absolute - mean, unit)
    # a ratio of two means: its error is, to first order, that of the mean of these parts
    parts = squared - (1 - r2) * centred
    spread = NORMAL * standard_error(parts, unit) / float(centred.mean())
    return Errors(
        Interval(mean, max(mean - reach, 0.0), mean + reach),
        Interval(r2, r2 - spread, min(r2 + spread, 1.0)),
    )


def standard_error(parts: Floats, unit: Integers) -> float:
    """Return the standard error of a mean over rows whose errors are independent over units."""
    return float(np.sqrt((np.bincount(unit, parts) ** 2).sum()) / parts.size)


@dataclass(frozen=True, slots=True)
class Accuracies:
    """Figures of people without noise, covered by no ε: for the steward alone.

    Shares are of rows; intervals count records, or persons where these are the units.

    accuracy: on held-out people; None where a number is predicted. by_class: the same for each true
    class, None for one that no held-out row has. confusion: for each true class the share of its
    held-out rows that is taken for each class. by_group: accuracy on those *trained on*, for each
    budget group of the plan. curve: held-out accuracy, or mean absolute error of a number, after
    some of the steps.
    """

    accuracy: Interval | None
    by_class: tuple[Interval | None, ...]
    confusion: tuple[tuple[Proportion, ...] | None, ...]
    by_group: tuple[Interval | None, ...]
    curve: tuple[tuple[int, float], ...]


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Predictions:
    """What a model says of rows and what is so. unit: whose each row is."""

    said: Integers
    true: Integers
    unit: Integers

    def share(self, where: Mask | slice = slice(None)) -> Interval | None:
        """Return the share that is right, of all rows or of some; None of none."""
        return share_right((self.said == self.true)[where], self.unit[where])

    @property
    def figure(self) -> float:
        """The share that is right: every row counts alike."""
        return float((self.said == self.true).mean())

    @property
    def by_person(self) -> float:
        """The share that is right: every unit counts alike, with the share of its rows."""
        return float(
            (np.bincount(self.unit, self.said == self.true) / np.bincount(self.unit)).mean()
        )

    @property
    def commonest(self) -> float:
        """The share of the rows that are of the commonest class."""
        return float(np.bincount(self.true).max() / self.true.size)


def accuracies(
    held_out: Predictions | None,
    classes: int,
    trained_on: Predictions,
    group: Integers,
    groups: int,
    curve: Mapping[int, float],
) -> Accuracies:
    """Return the figures of a model of classes."""
    # held_out: None where nobody was. group: of each row that was trained on. groups: of the plan.
    points = tuple(sorted(curve.items()))
    by_group = tuple(trained_on.share(group == g) for g in range(groups))
    if held_out is None:
        return Accuracies(None, (), (), by_group, points)
    each = [held_out.true == k for k in range(classes)]
    return Accuracies(
        held_out.share(),
        tuple(held_out.share(where) for where in each),
        tuple(
            tuple((np.bincount(held_out.said[where], minlength=classes) / where.sum()).tolist())
            if where.any()
            else None
            for where in each
        ),
        by_group,
        points,
    )


def share_right(hits: Mask, unit: Integers) -> Interval | None:
    """Return a share with its 95 % interval by the score of Wilson 1927; None of no rows.

    hits: (n,), which rows count. unit: (n,), whose each row is; rows of one unit may go together.

    >>> share = share_right(np.arange(100) < 80, np.arange(100))
    >>> round(share.lower, 3), share.value, round(share.upper, 3)
    (0.711, 0.8, 0.867)
    """
    if not hits.size:
        return None
    values: Floats = hits.astype(np.float64)
    share, own = float(values.mean()), np.unique(unit, return_inverse=True)[1]
    error = standard_error(values - share, own)
    # As many independent rows as would leave this error; where all are alike, the units.
    many = share * (1 - share) / error**2 if error > 0 else float(own.max() + 1)
    spread = NORMAL**2 / many
    middle = (share + spread / 2) / (1 + spread)
    half = NORMAL / (1 + spread) * math.sqrt(share * (1 - share) / many + spread / (4 * many))
    lower, upper = max(middle - half, 0.0), min(middle + half, 1.0)
    return Interval(share, min(lower, share), max(upper, share))


@dataclass(frozen=True, slots=True)
class Facts:
    """The table and its schema: public, but for `commonest_class_share` and `fingerprints`."""

    # source: the file, or the name of a packaged table. label: the column that is predicted.
    # classes: its values; none where a number is predicted, of which `target_range` and
    # `target_scale` are declared. schema: its name. features: how many inputs the model has.
    # commonest_class_share: of the held-out people, None without any. simulated_budgets: whether
    # they were drawn for want of a column. unit: of what training_records and test_records are the
    # numbers; how many rows persons have is private and in no fact. columns: the features' declared
    # columns, as in the schema's file. fingerprints: SHA-256 of each file that was read, by its
    # name: whoever guesses a whole file can confirm the guess by it, so that it is as private as
    # the data.

    source: str
    packaged: bool
    label: str
    classes: tuple[str, ...]
    schema: str
    features: int
    training_records: int
    test_records: int
    commonest_class_share: Proportion | None
    simulated_budgets: bool
    unit: Unit = "record"
    target_range: Range | None = None
    target_scale: TargetScale = "linear"
    columns: Mapping[str, Mapping[str, object]] = field(default_factory=dict, repr=False)
    fingerprints: Mapping[str, str] = field(default_factory=dict, repr=False)


@dataclass(frozen=True, slots=True)
class Level:
    """A budget that people could choose, as was declared to them: public, whoever chose it."""

    name: str
    epsilon: float
    delta: float


def levels_of(levels: Asked, plan: Plan) -> tuple[Level, ...]:
    """Return the budgets that people of a plan could choose from: names, numbers, or pairs (ε, δ).

    Raises `InputError` where a group's budget is none of them.
    """
    groups = plan.budget_groups
    levels = levels if isinstance(levels, Mapping | str) else listed("levels", levels)
    if isinstance(levels, Mapping | str) or (levels and np.ndim(levels[0]) == 0):
        named, deltas = Levels(levels), set(groups.delta.tolist())
        if len(deltas) > 1:
            raise InputError(f"levels: the plan has {len(deltas)} values of δ; give pairs (ε, δ)")
        told = zip(named.titles, named.values(), strict=True)
        offered = tuple(Level(name, e, d) for name, e in told for d in deltas)
    else:
        try:
            pairs = [(float(e), float(d)) for e, d in levels]
        except (TypeError, ValueError):
            raise InputError(
                f"levels = {levels!r}: give names, as {{'low': 1, 'high': 8}}, or pairs (ε, δ)"
            ) from None
        offered = tuple(Level(f"ε = {e:g}", e, d) for e, d in pairs)
    known = {(level.epsilon, level.delta) for level in offered}
    for pair in zip(groups.epsilon.tolist(), groups.delta.tolist(), strict=True):
        if levels and pair not in known:
            raise InputError(
                f"levels: epsilon, delta = {pair[0]:g}, {pair[1]:g} of a group is none of them; "
                "give every budget that people could choose"
            )
    return offered


def named_by(levels: tuple[Level, ...], plan: Plan) -> Plan:
    """Return a plan whose groups have the names of the levels that they are, where each is one."""
    names = {(level.epsilon, level.delta): level.name for level in levels}
    groups = plan.budget_groups
    pairs = list(zip(groups.epsilon.tolist(), groups.delta.tolist(), strict=True))
    if len(set(pairs)) < len(pairs) or not names.keys() >= set(pairs):
        return plan
    return plan.renamed([names[pair] for pair in pairs])


@dataclass(frozen=True, slots=True)
class Promise:
    """What one budget group asked for, and what one model spends of it."""

    # advantage: the largest TPR − FPR of any membership test, None where it was not computed.
    # epsilon_spent, advantage and right are rounded up.

    name: str
    records: int
    epsilon: float
    delta: float
    epsilon_spent: float
    advantage: float | None

    @property
    def spent_share(self) -> float:
        """ε spent over ε asked."""
        return self.epsilon_spent / self.epsilon

    @property
    def right(self) -> int | None:
        """Of 1,000 people, 500 of whom took part, about how many the best guess is right."""
        # It is right with probability (1 + advantage)/2 at most. Source: Kaiser et al. 2026 §VI.
        return None if self.advantage is None else count_up((1 + self.advantage) / 2)


def promises_of(plan: Plan) -> tuple[Promise, ...]:
    """Return what each group asked for, and what one model by this plan spends of it."""
    spent, advantage = plan.measures.epsilon_spent, plan.measures.advantage
    risks = [None] * len(spent) if advantage is None else advantage.tolist()
    each = zip(plan.groups, spent.tolist(), risks, strict=True)
    return tuple(Promise(g.name, g.records, g.epsilon, g.delta, *numbers) for g, *numbers in each)


@dataclass(frozen=True)
class Trained:
    """The models of one strategy: the plan of each, and how well they did on held-out people."""

    # plan: what it knows of who is where is dropped. settings: the strategy's own, by name. seeds:
    # of each model, None for randomness of the operating system. test_accuracy: of each model, the
    # share of rows, and by person the mean of each person's share; empty where nobody was held out
    # or, by person, where the unit is the record. test_errors: of each model that predicts a
    # number. seconds: of all of them.

    strategy: str
    plan: Planned
    settings: Tuned
    seeds: tuple[Seed, ...] | None
    test_accuracy: tuple[Proportion, ...]
    seconds: float
    test_accuracy_by_person: tuple[Proportion, ...] = ()
    test_errors: tuple[Errors, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "plan", self.plan.public())  # nothing of who is where

    def tested(self, told: Sequence[Predictions | Errors | None], unit: str) -> Self:
        """Return the same with what each model says of held-out rows; None says nothing."""
        right = [each for each in told if isinstance(each, Predictions)]
        return replace(
            self,
            test_accuracy=tuple(each.figure for each in right),
            test_accuracy_by_person=tuple(e.by_person for e in right if unit == "person"),
            test_errors=tuple(each for each in told if isinstance(each, Errors)),
        )

    @property
    def test_accuracy_mean(self) -> float | None:
        """The mean over the models; None where nobody was held out."""
        return statistics.fmean(self.test_accuracy) if self.test_accuracy else None

    @property
    def test_accuracy_stddev(self) -> float | None:
        """The standard deviation over the models; None of fewer than two."""
        return statistics.stdev(self.test_accuracy) if len(self.test_accuracy) > 1 else None

    @cached_property
    def promises(self) -> tuple[Promise, ...]:
        """One entry a budget group, in the plan's order."""
        return promises_of(self.plan)

    @property
    def contradicted(self) -> dict[str, bool]:
        """Which settings the plan contradicts: its steps, or how many are asked and answered."""
        plan, settings = self.plan, self.settings
        if "teachers" not in settings:
            return {
                "settings.steps": plan.steps != settings["steps"],
                "settings.clip_norm": plan.clip_norm != settings["clip_norm"],
            }
        questions = settings.get("questions")
        answers = settings.get("answers", questions)
        steps = [questions, answers] if "threshold" in settings else [answers]
        return {"settings.questions": [stage.steps for stage in plan.stages] != steps}

    def to_dict(self) -> Json:
        """Return the models as JSON types."""
        own = {k: getattr(self, k) for k in self.__dataclass_fields__ if k != "plan"}
        means = {k: getattr(self, k) for k in ("test_accuracy_mean", "test_accuracy_stddev")}
        return {**_json.plain(own), **means, "plan": self.plan.to_dict()}


YES, NO, DECIDE = "yes", "no", "decide"


@dataclass(frozen=True, slots=True)
class Check:
    """One line of the checklist for release: what was looked at, the verdict, and a sentence."""

    # verdict: "yes", "no" (the run must not be released), or "decide" (a person has to).

    name: str
    verdict: str
    says: str


@dataclass(frozen=True, slots=True)
class Release:
    """Whether a run is fit for release: a checklist, from what the run itself tells.

    >>> Release((Check("promises", YES, "kept"), Check("largest ε", DECIDE, "20"))).fit
    'decide'
    """

    checks: tuple[Check, ...]

    @property
    def fit(self) -> str:
        """The verdict on the run: "no" where one check is, else "decide" where one is, or "yes"."""
        verdicts = {check.verdict for check in self.checks}
        return next(verdict for verdict in (NO, DECIDE, YES) if verdict in verdicts)

    def to_dict(self) -> Json:
        """Return the checklist as JSON types."""
        return {"fit": self.fit, "checks": _json.plain(self.checks)}


def checklist(
    kept: Trained, data: Facts, *, seed: int | None, models: int, no_limit_cap: float | None
) -> Release:
    """Return the checklist of a run from its public values alone, so that anyone can repeat it."""
    # kept: of the strategy whose model is in the folder. models: how many were trained in all.
    plan, groups = kept.plan, kept.plan.budget_groups
    records, delta, largest = plan.records, float(groups.delta.max()), float(groups.epsilon.max())
    runs, small = plan.runs_on_average, int((groups.records < SMALL_GROUP).sum())
    note = "" if no_limit_cap is None else f"; {describe_cap(no_limit_cap)}"
    # What is looked at; whether it is amiss, and then the verdict and what is said; else what is.
    lines: list[tuple[str, bool, str, str, str]] = [
        ("promises", bool(plan.objections), NO, "".join(plan.objections[:1]),
         "every group spends at most the ε it asked for"),
        ("randomness", seed is not None, NO,
         f"it comes from seed {seed}, and whoever knows that takes the noise off; run without",
         "from a key of the operating system’s cryptographic generator"),
        ("δ against 1/n", not delta * records < 1, NO,
         f"δ = {delta:g} is not below 1/n = {1 / records:.3g}: it allows publishing a person",
         f"δ = {delta:g} is below 1/n = {1 / records:.3g}"),
        ("largest ε", not largest <= LARGE, DECIDE,
         f"{largest:g}, above {LARGE:g}: a weak promise{note}", f"{largest:g}{note}"),
        ("number of models", models > 1, DECIDE,
         f"{models} on the same people: release one chosen beforehand, or count them all",
         "1" if runs is None else f"1, the best of a random number of runs, {runs:g} on average"),
        ("groups too small to name", small > 0, DECIDE,
         f"{small} of {groups.records.size} have fewer than {SMALL_GROUP} people: do not publish "
         "them", f"none; the smallest has {int(groups.records.min())} people"),
        ("held-out figures", data.test_records > 0 and not data.packaged, DECIDE,
         "accuracy is of held-out people, without noise: keep it as you keep their records",
         "of public data" if data.test_records else "none were computed"),
    ]  # fmt: skip
    return Release(
        tuple(
            Check(name, verdict if amiss else YES, then if amiss else otherwise)
            for name, amiss, verdict, then, otherwise in lines
        )
    )
