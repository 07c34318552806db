"""Facts that a run is told by: its table, its promises and its figures.

Nothing here is about one person: no losses or norms, no counts of those who were sampled, no list
of who has which budget. Figures of held-out people are covered by no ε.
"""

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Annotated, Final, Self

import numpy as np

from apiece import _json
from apiece._text import count_up
from apiece._types import Floats, Integers, Json, Mask
from apiece.budgets.groups import LARGE, SMALL_GROUP, describe_cap
from apiece.budgets.levels import Levels, Offered
from apiece.errors import DataError, InputError
from apiece.jobs.config import SETTINGS, TUNED
from apiece.jobs.settings import read_list, stored_reader
from apiece.plan import Plan

# Standard errors from the middle of a 95 % interval to its ends.
NORMAL: Final = 1.959964
# Points of a learning curve.
CURVE_POINTS: Final = 20
# Bits of a seed.
_SEED_BITS: Final = 128
# The schema of a run whose rows are texts, as tokens.
TOKENS: Final = "tokens"
# Settings of PATE in which trainings may differ.
_PATE_SETTINGS: Final = ("teachers", "questions", "answers", "threshold", "semi_supervised")


def _read_range(value: object, where: str) -> tuple[float, float]:
    ends = _json.listed(_json.number)(value, where)
    if len(ends) != 2 or not ends[0] < ends[1]:
        raise DataError(f"{where} = {value!r}: must be a lower and an upper end")
    return ends[0], ends[1]


def _read_tuned(value: object, where: str) -> Json:
    required = {name: stored_reader(SETTINGS[name]) for name in TUNED}
    optional = {name: stored_reader(SETTINGS[name]) for name in _PATE_SETTINGS}
    # A number, as the others.
    optional["semi_supervised"] = _json.whole(1)
    return _json.fields(value, where, required, optional)


# Types of fields, each with how a stored value is read.
Proportion = Annotated[float, _json.share]
Range = Annotated[tuple[float, float], _read_range]
Seed = Annotated[int, _json.whole(2**_SEED_BITS)]
Tuned = Annotated[Mapping[str, float], _read_tuned]
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

    # In the target's units.
    mean_absolute: Interval
    # 1 − squared error over that of always predicting the rows' mean; at most 1.
    r2: Interval

    @property
    def figure(self) -> float:
        """The one number of a learning curve."""
        return self.mean_absolute.value


def errors_of(predicted: Floats, truth: Floats, unit: Integers) -> Errors | None:
    """Return the errors of predictions (n,); None where they say nothing.

    That is of fewer than two records or persons, of one value for all, and where a model puts out
    what is no number. `unit` (n,) is the position of each row's record or person, from 0.
    """
    # Squared distances from the rows' mean: what a model that knows the mean alone would err by.
    centred = (truth - truth.mean()) ** 2 if truth.size else truth
    if truth.size == 0 or unit.max() < 1 or not centred.sum() > 0:
        return None
    if not np.isfinite(predicted).all():
        return None
    absolute = np.abs(predicted - truth)
    # r² = 1 − Σ squared / Σ centred.
    squared = (predicted - truth) ** 2
    mean = float(absolute.mean())
    r2 = float(1 - squared.sum() / centred.sum())
    mean_width = NORMAL * standard_error(absolute - mean, unit)
    # A ratio of two means: its error is, to first order, that of the mean of these parts.
    parts = squared - (1 - r2) * centred
    r2_width = NORMAL * standard_error(parts, unit) / float(centred.mean())
    return Errors(
        Interval(mean, max(mean - mean_width, 0.0), mean + mean_width),
        Interval(r2, r2 - r2_width, min(r2 + r2_width, 1.0)),
    )


def standard_error(parts: Floats, unit: Integers) -> float:
    """Return the standard error of a mean over rows whose errors are independent over units."""
    # Rows of one unit may be dependent in any way: their errors are added before they are squared.
    sums_by_unit = np.bincount(unit, parts)
    return float(np.sqrt((sums_by_unit**2).sum()) / parts.size)


@dataclass(frozen=True, slots=True)
class Accuracies:
    """Figures of people without noise, covered by no ε: for the steward alone.

    Shares are of rows; intervals count records, or persons where these are the units.
    """

    # On held-out people; None where a number is predicted.
    accuracy: Interval | None
    # Accuracy on the held-out rows of each true class; None for a class without any.
    by_class: tuple[Interval | None, ...]
    # For each true class the share of its held-out rows that is taken for each class.
    confusion: tuple[tuple[Proportion, ...] | None, ...]
    # Accuracy on those *trained on*, for each budget group of the plan.
    by_group: tuple[Interval | None, ...]
    # Held-out accuracy, or mean absolute error of a number, after some of the steps.
    curve: tuple[tuple[int, float], ...]


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Predictions:
    """The classes (n,) that a model predicts, the true ones, and the unit of each row."""

    predicted: Integers
    truth: Integers
    unit: Integers

    def share(self, rows: Mask | slice = slice(None)) -> Interval | None:
        """Return the share that is right, of all rows or of some; None of none."""
        return share_right((self.predicted == self.truth)[rows], self.unit[rows])

    @property
    def figure(self) -> float:
        """The share that is right: every row counts alike."""
        return float((self.predicted == self.truth).mean())

    @property
    def by_person(self) -> float:
        """The share that is right: every unit counts alike, with the share of its rows."""
        right_by_unit = np.bincount(self.unit, self.predicted == self.truth)
        return float((right_by_unit / np.bincount(self.unit)).mean())

    @property
    def commonest(self) -> float:
        """The share of the rows that are of the commonest class."""
        largest = np.bincount(self.truth).max()
        return float(largest / self.truth.size)

    def confusion(self, rows: Mask, classes: int) -> tuple[float, ...] | None:
        """Return the share of some rows that is taken for each class; None of none."""
        if not rows.any():
            return None
        counts = np.bincount(self.predicted[rows], minlength=classes)
        return tuple((counts / rows.sum()).tolist())


def accuracies_of(
    held_out: Predictions | None,
    classes: int,
    trained_on: Predictions,
    group: Integers,
    groups: int,
    curve: Mapping[int, float],
) -> Accuracies:
    """Return the figures of a model of classes.

    `held_out` is None where nobody was; `group` (n,) is the budget group of each row that was
    trained on, of the plan's `groups`.
    """
    points = tuple(sorted(curve.items()))
    by_group = tuple(trained_on.share(group == index) for index in range(groups))
    if held_out is None:
        return Accuracies(None, (), (), by_group, points)
    rows_by_class = [held_out.truth == index for index in range(classes)]
    return Accuracies(
        held_out.share(),
        tuple(held_out.share(rows) for rows in rows_by_class),
        tuple(held_out.confusion(rows, classes) for rows in rows_by_class),
        by_group,
        points,
    )


def share_right(hits: Mask, unit: Integers) -> Interval | None:
    """Return a share with its 95 % interval by the score of Wilson 1927; None of no rows.

    `hits` (n,) says which rows count, and `unit` (n,) whose each row is; rows of one unit may go
    together.

    >>> share = share_right(np.arange(100) < 80, np.arange(100))
    >>> round(share.lower, 3), share.value, round(share.upper, 3)
    (0.711, 0.8, 0.867)
    """
    if not hits.size:
        return None
    values: Floats = hits.astype(np.float64)
    share = float(values.mean())
    position = np.unique(unit, return_inverse=True)[1]
    error = standard_error(values - share, position)
    # As many independent rows as would leave this error; where all are alike, the units.
    size = float(position.max() + 1)
    if error > 0:
        size = share * (1 - share) / error**2
    # Wilson's interval holds each share p whose own standard error reaches from p to the share that
    # was seen; its ends solve (share − p)² = NORMAL² p (1 − p) / size.
    spread = NORMAL**2 / size
    middle = (share + spread / 2) / (1 + spread)
    variance = share * (1 - share) / size + spread / (4 * size)
    half = NORMAL / (1 + spread) * math.sqrt(variance)
    lower = max(middle - half, 0.0)
    upper = min(middle + half, 1.0)
    # Rounding must not leave the share outside its interval.
    return Interval(share, min(lower, share), max(upper, share))


@dataclass(frozen=True, slots=True)
class Facts:
    """The table and its schema: public, but for `commonest_class_share` and `fingerprints`."""

    # The file, or the name of a packaged table.
    source: str
    packaged: bool
    # The column that is predicted, and its values; none where a number is predicted.
    label: str
    classes: tuple[str, ...]
    # The schema's name.
    schema: str
    # How many inputs the model has.
    features: int
    # Numbers of units; how many rows persons have is private and in no fact.
    training_records: int
    test_records: int
    # Of the held-out people; None without any.
    commonest_class_share: Proportion | None
    # Whether the budgets were drawn for want of a column.
    simulated_budgets: bool
    unit: Unit = "record"
    # The declared range of a number that is predicted, and its scale.
    target_range: Range | None = None
    target_scale: TargetScale = "linear"
    # The features' declared columns, as in the schema's file.
    columns: Mapping[str, Mapping[str, object]] = field(default_factory=dict, repr=False)
    # SHA-256 of each file that was read, by its name: whoever guesses a whole file can confirm the
    # guess by it, so that it is as private as the data.
    fingerprints: Mapping[str, str] = field(default_factory=dict, repr=False)


@dataclass(frozen=True, slots=True)
class Level:
    """A budget that people could choose, as was declared to them: public, whoever chose it."""

    name: str
    epsilon: float
    delta: float


def read_levels(levels: Asked, plan: Plan) -> tuple[Level, ...]:
    """Return the budgets that people of a plan could choose from: names, numbers, or pairs (ε, δ).

    Raises `InputError` where a group's budget is none of them.
    """
    groups = plan.budget_groups
    if not isinstance(levels, Mapping | str):
        levels = read_list("levels", levels)
    # Names or numbers state ε alone; anything else is pairs.
    if isinstance(levels, Mapping | str) or (levels and np.ndim(levels[0]) == 0):
        offered = _read_epsilons(levels, set(groups.delta.tolist()))
    else:
        offered = _read_pairs(levels)
    offered_pairs = {(level.epsilon, level.delta) for level in offered}
    for epsilon, delta in zip(groups.epsilon.tolist(), groups.delta.tolist(), strict=True):
        if levels and (epsilon, delta) not in offered_pairs:
            raise InputError(
                f"levels: epsilon, delta = {epsilon:g}, {delta:g} of a group is none of them; "
                "give every budget that people could choose"
            )
    return offered


def _read_epsilons(levels: Offered, deltas: set[float]) -> tuple[Level, ...]:
    """Return levels that state ε alone, at the one δ of a plan."""
    named = Levels(levels)
    if len(deltas) > 1:
        raise InputError(f"levels: the plan has {len(deltas)} values of δ; give pairs (ε, δ)")
    titled = zip(named.titles, named.values(), strict=True)
    return tuple(Level(title, epsilon, delta) for title, epsilon in titled for delta in deltas)


def _read_pairs(levels: Sequence[tuple[float, float]]) -> tuple[Level, ...]:
    """Return levels that are pairs (ε, δ)."""
    try:
        pairs = [(float(epsilon), float(delta)) for epsilon, delta in levels]
    except (TypeError, ValueError):
        raise InputError(
            f"levels = {levels!r}: give names, as {{'low': 1, 'high': 8}}, or pairs (ε, δ)"
        ) from None
    return tuple(Level(f"ε = {epsilon:g}", epsilon, delta) for epsilon, delta in pairs)


def name_groups(levels: tuple[Level, ...], plan: Plan) -> Plan:
    """Return a plan whose groups have the names of the levels that they are, where each is one."""
    names = {(level.epsilon, level.delta): level.name for level in levels}
    groups = plan.budget_groups
    pairs = list(zip(groups.epsilon.tolist(), groups.delta.tolist(), strict=True))
    # Groups with one budget (by an excess, say) have no names of their own by it.
    has_twins = len(set(pairs)) < len(pairs)
    if has_twins or not names.keys() >= set(pairs):
        return plan
    return plan.renamed([names[pair] for pair in pairs])


@dataclass(frozen=True, slots=True)
class Promise:
    """What one budget group asked for, and what one model spends of it."""

    name: str
    records: int
    epsilon: float
    delta: float
    # Rounded up.
    epsilon_spent: float
    # The largest TPR − FPR of any membership test, rounded up; None where it was not computed.
    advantage: float | None

    @property
    def spent_share(self) -> float:
        """ε spent over ε asked."""
        return self.epsilon_spent / self.epsilon

    @property
    def right(self) -> int | None:
        """Of 1,000 people, 500 of whom took part, about how many the best guess is right.

        It is rounded up.
        """
        # The guess is right with probability (1 + advantage)/2 at most. Source: Kaiser et al. 2026
        # §VI.
        return None if self.advantage is None else count_up((1 + self.advantage) / 2)


def list_promises(plan: Plan) -> tuple[Promise, ...]:
    """Return what each group asked for, and what one model by this plan spends of it."""
    spent = plan.measures.epsilon_spent.tolist()
    advantages = [None] * len(spent)
    if plan.measures.advantage is not None:
        advantages = plan.measures.advantage.tolist()
    promises = []
    for group, epsilon_spent, advantage in zip(plan.groups, spent, advantages, strict=True):
        promise = Promise(
            group.name, group.records, group.epsilon, group.delta, epsilon_spent, advantage
        )
        promises.append(promise)
    return tuple(promises)


@dataclass(frozen=True)
class Trained:
    """The models of one strategy: the plan of each, and how well they did on held-out people."""

    strategy: str
    # Without what it knows of who is where.
    plan: Planned
    # The strategy's own settings, by name.
    settings: Tuned
    # The seed of each model; None for randomness of the operating system.
    seeds: tuple[Seed, ...] | None
    # Of each model, the share of rows that is right; empty where nobody was held out.
    test_accuracy: tuple[Proportion, ...]
    # Of all models together.
    seconds: float
    # Of each model, the mean of each person's share; empty where the unit is the record too.
    test_accuracy_by_person: tuple[Proportion, ...] = ()
    # Of each model that predicts a number.
    test_errors: tuple[Errors, ...] = ()

    def __post_init__(self) -> None:
        # What is stored and shown is public: a plan that is bound knows whose record is in which
        # group.
        object.__setattr__(self, "plan", self.plan.public())

    def with_tests(self, tests: Sequence[Predictions | Errors | None], unit: str) -> Self:
        """Return the models with what each did on held-out rows; None says nothing."""
        predictions = [test for test in tests if isinstance(test, Predictions)]
        by_person = predictions if unit == "person" else []
        return replace(
            self,
            test_accuracy=tuple(test.figure for test in predictions),
            test_accuracy_by_person=tuple(test.by_person for test in by_person),
            test_errors=tuple(test for test in tests if isinstance(test, Errors)),
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
        return list_promises(self.plan)

    @property
    def contradictions(self) -> dict[str, bool]:
        """Setting → whether the plan contradicts it: its steps, or how many are asked."""
        plan = self.plan
        settings = self.settings
        if "teachers" not in settings:
            return {
                "settings.steps": plan.steps != settings["steps"],
                "settings.clip_norm": plan.clip_norm != settings["clip_norm"],
            }
        questions = settings.get("questions")
        answers = settings.get("answers", questions)
        # With a threshold a first stage looks at every question, and a second one answers some.
        steps = [questions, answers] if "threshold" in settings else [answers]
        return {"settings.questions": [stage.steps for stage in plan.stages] != steps}

    def to_dict(self) -> Json:
        """Return the models as JSON types."""
        values = {name: getattr(self, name) for name in self.__dataclass_fields__ if name != "plan"}
        means = {
            "test_accuracy_mean": self.test_accuracy_mean,
            "test_accuracy_stddev": self.test_accuracy_stddev,
        }
        return {**_json.plain(values), **means, "plan": self.plan.to_dict()}


# Verdicts on a release: it is fit, it must not be made, or a person has to decide.
YES: Final = "yes"
NO: Final = "no"
DECIDE: Final = "decide"


@dataclass(frozen=True, slots=True)
class Check:
    """One line of the checklist for release: what was looked at, the verdict, and a sentence."""

    name: str
    # "yes", "no" (the run must not be released), or "decide" (a person has to).
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
        # The worst verdict is that of the whole.
        return next(verdict for verdict in (NO, DECIDE, YES) if verdict in verdicts)

    def to_dict(self) -> Json:
        """Return the checklist as JSON types."""
        return {"fit": self.fit, "checks": _json.plain(self.checks)}


def _check(name: str, fault: str | None, verdict: str, merit: str) -> Check:
    """Return a line with this verdict on a fault; without a fault, "yes" and the merit."""
    return Check(name, YES, merit) if fault is None else Check(name, verdict, fault)


def make_checklist(
    models: Trained, data: Facts, *, seed: int | None, count: int, no_limit_cap: float | None
) -> Release:
    """Return the checklist of a run from its public values alone, so that anyone can repeat it.

    `models` are those of the strategy whose model is in the folder, and `count` is how many were
    trained in all.
    """
    plan = models.plan
    objection = plan.objections[0] if plan.objections else None
    seed_fault = None
    if seed is not None:
        seed_fault = (
            f"it comes from seed {seed}, and whoever knows that takes the noise off; run without"
        )
    return Release(
        (
            _check("promises", objection, NO, "every group spends at most the ε it asked for"),
            _check(
                "randomness",
                seed_fault,
                NO,
                "from a key of the operating system’s cryptographic generator",
            ),
            _check_delta(plan),
            _check_epsilon(plan, no_limit_cap),
            _check_count(plan, count),
            _check_groups(plan),
            _check_held_out(data),
        )
    )


def _check_delta(plan: Plan) -> Check:
    """Compare the largest δ with one in as many as there are people."""
    delta = float(plan.budget_groups.delta.max())
    # With δ of 1/n a mechanism that publishes one person drawn at random would pass.
    limit = f"1/n = {1 / plan.records:.3g}"
    fault = None
    if not delta * plan.records < 1:
        fault = f"δ = {delta:g} is not below {limit}: it allows publishing a person"
    return _check("δ against 1/n", fault, NO, f"δ = {delta:g} is below {limit}")


def _check_epsilon(plan: Plan, no_limit_cap: float | None) -> Check:
    """Look at the largest ε."""
    epsilon = float(plan.budget_groups.epsilon.max())
    note = "" if no_limit_cap is None else f"; {describe_cap(no_limit_cap)}"
    fault = None
    if not epsilon <= LARGE:
        fault = f"{epsilon:g}, above {LARGE:g}: a weak promise{note}"
    return _check("largest ε", fault, DECIDE, f"{epsilon:g}{note}")


def _check_count(plan: Plan, count: int) -> Check:
    """Look at how many models were trained on these people."""
    fault = None
    if count > 1:
        fault = f"{count} on the same people: release one chosen beforehand, or count them all"
    runs = plan.runs_on_average
    merit = "1"
    if runs is not None:
        merit = f"1, the best of a random number of runs, {runs:g} on average"
    return _check("number of models", fault, DECIDE, merit)


def _check_groups(plan: Plan) -> Check:
    """Look at the sizes of the budget groups."""
    records = plan.budget_groups.records
    small = int((records < SMALL_GROUP).sum())
    fault = None
    if small > 0:
        fault = (
            f"{small} of {records.size} have fewer than {SMALL_GROUP} people: do not publish them"
        )
    merit = f"none; the smallest has {int(records.min())} people"
    return _check("groups too small to name", fault, DECIDE, merit)


def _check_held_out(data: Facts) -> Check:
    """Look at figures of people that no ε covers."""
    fault = None
    if data.test_records > 0 and not data.packaged:
        fault = "accuracy is of held-out people, without noise: keep it as you keep their records"
    merit = "of public data" if data.test_records else "none were computed"
    return _check("held-out figures", fault, DECIDE, merit)
