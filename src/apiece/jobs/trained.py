"""What a run is told by: facts about its table, and for each strategy what it promised and reached.

Nothing here is about one person: no losses or norms, no counts of those who were sampled, no list
of who has which budget. Figures of held-out people are covered by no ε.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import math
import secrets
import statistics
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, fields
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from apiece._types import Floats, Json, Mask
from apiece.budgets.groups import LARGE, SMALL_GROUP, cap_note
from apiece.errors import DataError, InputError
from apiece.plan import Plan

if TYPE_CHECKING:
    import torch

NORMAL = 1.959964  # of a 95 % interval


@dataclass(frozen=True, slots=True)
class Interval:
    """An estimate with its 95 % interval, by the normal approximation over records or persons.

    Attributes:
        value: The estimate.
        lower: End of the interval.
        upper: The other end.

    Example:
        >>> Interval(1.0, 0.9, 1.1).upper
        1.1
    """

    value: float
    lower: float
    upper: float


@dataclass(frozen=True, slots=True)
class Errors:
    """The errors of one model on held-out rows.

    Attributes:
        mean_absolute: Mean absolute error, in the target's units.
        r2: 1 − squared error over that of always saying the rows' mean; at most 1.

    Example:
        >>> found = errors_of(np.array([1.0, 2.0, 4.0]), np.array([1.0, 2.0, 3.0]))
        >>> round(found.mean_absolute.value, 3), found.r2.value
        (0.333, 0.5)
    """

    mean_absolute: Interval
    r2: Interval

    def to_dict(self) -> Json:
        """Return the errors as JSON types."""
        return asdict(self)


def errors_of(
    predicted: Floats, truth: Floats, person: npt.NDArray[Any] | None = None
) -> Errors | None:
    """Return the errors of predictions; None where they say nothing.

    That is of fewer than two records or persons, of one value for all, and where a model puts out
    what is no number.

    Args:
        predicted: (n,).
        truth: (n,).
        person: (n,) Whose each row is, so that an interval counts persons; None for records.
    """
    unit = np.arange(truth.size) if person is None else np.unique(person, return_inverse=True)[1]
    centred = (truth - truth.mean()) ** 2 if truth.size else truth
    if truth.size == 0 or unit.max() < 1 or not centred.sum() > 0:
        return None
    if not np.isfinite(predicted).all():
        return None
    absolute, squared = np.abs(predicted - truth), (predicted - truth) ** 2
    r2 = 1 - squared.sum() / centred.sum()
    # a ratio of two means: its error is, to first order, that of the mean of these parts
    spread = standard_error(squared - (1 - r2) * centred, unit) / centred.mean()
    return Errors(
        _interval(
            float(absolute.mean()), standard_error(absolute - absolute.mean(), unit), least=0.0
        ),
        _interval(float(r2), spread, most=1.0),
    )


def standard_error(parts: Floats, unit: npt.NDArray[np.int64]) -> float:
    """Return the standard error of a mean over rows whose errors are independent over units."""
    return float(np.sqrt((np.bincount(unit, parts) ** 2).sum()) / parts.size)


def _interval(
    value: float, spread: float, *, least: float = -np.inf, most: float = np.inf
) -> Interval:
    half = NORMAL * spread
    return Interval(value, max(value - half, least), min(value + half, most))


POINTS = 20  # of a learning curve


@dataclass(frozen=True, slots=True)
class Accuracies:
    """Figures of people without noise, covered by no ε: for the steward alone.

    Shares are of rows; intervals count records, or persons where these are the units.

    Attributes:
        accuracy: On held-out people; None where a number is predicted.
        by_class: The same for each true class, None for one that no held-out row has.
        confusion: For each true class the share of its held-out rows that is taken for each class.
        by_group: Accuracy on those *trained on*, for each budget group of the plan.
        curve: Held-out accuracy, or mean absolute error of a number, after some of the steps.

    Example:
        >>> Accuracies(None, (), (), (), ((10, 0.5), (20, 0.75))).curve[-1]
        (20, 0.75)
    """

    accuracy: Interval | None
    by_class: tuple[Interval | None, ...]
    confusion: tuple[tuple[float, ...] | None, ...]
    by_group: tuple[Interval | None, ...]
    curve: tuple[tuple[int, float], ...]

    def to_dict(self) -> Json:
        """Return the figures as JSON types."""
        found = asdict(self)
        rows = [None if row is None else list(row) for row in self.confusion]
        lists = {name: list(found[name]) for name in ("by_class", "by_group")}
        return found | lists | {"confusion": rows, "curve": [list(point) for point in self.curve]}


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Answers:
    """What a model says of rows and what is so. unit: whose each row is."""

    said: npt.NDArray[np.int64]
    true: npt.NDArray[np.int64]
    unit: npt.NDArray[np.int64]

    def share(self, where: Mask | None = None) -> Interval | None:
        """Return the share that is right, of all rows or of some; None of none."""
        hits, unit = self.said == self.true, self.unit
        return share_right(hits if where is None else hits[where], unit if where is None else
                           unit[where])  # fmt: skip


def accuracies(
    held_out: Answers | None,
    classes: int,
    trained_on: Answers,
    group: npt.NDArray[np.int64],
    groups: int,
    curve: Mapping[int, float],
) -> Accuracies:
    """Return the figures of a model of classes.

    held_out: None where nobody was. group: of each row that was trained on. groups: of the plan.
    """
    points = tuple(sorted(curve.items()))
    by_group = tuple(trained_on.share(group == g) for g in range(groups))
    if held_out is None:
        return Accuracies(None, (), (), by_group, points)
    each = [held_out.true == k for k in range(classes)]
    return Accuracies(
        held_out.share(),
        tuple(held_out.share(where) for where in each),
        tuple(_taken_for(held_out.said[where], classes) for where in each),
        by_group,
        points,
    )


def _taken_for(said: npt.NDArray[np.int64], classes: int) -> tuple[float, ...] | None:
    if not said.size:
        return None
    return tuple((np.bincount(said, minlength=classes) / said.size).tolist())


def share_right(hits: Mask, unit: npt.NDArray[np.int64]) -> Interval | None:
    """Return a share with its 95 % interval by Wilson's score; None of no rows.

    Args:
        hits: (n,) Which rows count.
        unit: (n,) Whose each row is; rows of one unit may go together.

    References:
        Wilson 1927.

    Example:
        >>> found = share_right(np.arange(100) < 80, np.arange(100))
        >>> round(found.lower, 3), found.value, round(found.upper, 3)
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
    """The table and its schema.

    All of it is public, but for `commonest_class_share` and `fingerprints`.

    Attributes:
        source: The file, or the name of a packaged table.
        packaged: Whether it comes with apiece.
        label: The column that is predicted.
        classes: Its values; none where a number is predicted.
        schema: The name of the schema.
        features: How many inputs the model has.
        training_records: How many.
        test_records: How many were held out.
        commonest_class_share: Of the held-out people, None without any.
        simulated_budgets: Whether the budgets were drawn for want of a column.
        unit: "record" or "person": of what training_records and test_records are the numbers. How
            many rows persons have is private and in no fact.
        target_range: The declared range of a number that is predicted; None for classes.
        columns: The features' declared columns, by name, as in the schema's file.
        fingerprints: SHA-256 of each file that was read, by its name. Whoever guesses a whole file
            can confirm the guess by it, so that it is as private as the data.

    Example:
        >>> facts = Facts("people.csv", False, "income", ("low", "high"), "adult", 3, 100, 0, None,
        ...               False)
        >>> facts.to_dict()["classes"]
        ['low', 'high']
    """

    source: str
    packaged: bool
    label: str
    classes: tuple[str, ...]
    schema: str
    features: int
    training_records: int
    test_records: int
    commonest_class_share: float | None
    simulated_budgets: bool
    unit: str = "record"
    target_range: tuple[float, float] | None = None
    columns: Mapping[str, Mapping[str, Any]] = field(default_factory=dict, repr=False)
    fingerprints: Mapping[str, str] = field(default_factory=dict, repr=False)

    def to_dict(self) -> Json:
        """Return the facts as JSON types."""
        found = {entry.name: getattr(self, entry.name) for entry in fields(self)}
        span = None if self.target_range is None else list(self.target_range)
        columns = {name: dict(column) for name, column in self.columns.items()}
        own = {"columns": columns, "fingerprints": dict(self.fingerprints)}
        return found | {"classes": list(self.classes), "target_range": span} | own


@dataclass(frozen=True, slots=True)
class Level:
    """A budget that people could choose, as was declared to them: public, whoever chose it.

    Attributes:
        name: Of the level.
        epsilon: Of the promise.
        delta: Of the promise.

    Example:
        >>> Level("strict", 1.0, 1e-5).epsilon
        1.0
    """

    name: str
    epsilon: float
    delta: float


@dataclass(frozen=True, slots=True)
class Promise:
    """What one budget group asked for, and what one model spends of it.

    Attributes:
        name: Of the group.
        records: How many.
        epsilon: As asked.
        delta: As asked.
        epsilon_spent: At that δ.
        advantage: The largest TPR − FPR of any membership test, None where it was not computed.

    Guarantee:
        `epsilon_spent`, `advantage` and `guess` are rounded up.

    Example:
        >>> Promise("strict", 100, 1.0, 1e-5, 0.99, 0.2).guess
        60.0
    """

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
    def guess(self) -> float | None:
        """How often, in per cent, the best guess at even odds is right; rounded up.

        For a prior of one half the best test is right with probability (1 + advantage)/2 at most.
        Source: Kaiser et al. 2026 §VI.
        """
        if self.advantage is None:
            return None
        return math.ceil(1000 * (1 + self.advantage) / 2) / 10


@dataclass(frozen=True)
class Trained:
    """The models of one strategy: the plan of each, and how well they did on held-out people.

    Attributes:
        strategy: Its name.
        plan: Of each model; what it knows of who is where is dropped.
        settings: How the strategy was trained, by name: batch size, steps, clip norm, learning rate
            and momentum.
        seeds: Of each model, None for randomness of the operating system.
        test_accuracy: Of each model, the share of rows; empty where nobody was held out.
        seconds: Of all of them.
        test_accuracy_by_person: Of each model, the mean over persons of the share of their rows;
            empty too where the unit is the record.
        test_errors: Of each model that predicts a number; empty where nobody was held out.

    Example:
        >>> from apiece import Budgets, Scale, assign
        >>> plan = assign(Budgets([2.0] * 100, 1e-5), Scale(), steps=10, expected_batch_size=10,
        ...               clip_norm=1.0)
        >>> found = Trained("scale", plan, {}, None, (0.5, 0.7), 1.0)
        >>> round(found.test_accuracy_mean, 2), found.promises[0].records
        (0.6, 100)
    """

    strategy: str
    plan: Plan
    settings: Mapping[str, float]
    seeds: tuple[int, ...] | None
    test_accuracy: tuple[float, ...]
    seconds: float
    test_accuracy_by_person: tuple[float, ...] = ()
    test_errors: tuple[Errors, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "plan", self.plan.public())  # nothing of who is where

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
        return {
            "strategy": self.strategy,
            "seeds": None if self.seeds is None else list(self.seeds),
            "settings": dict(self.settings),
            "test_accuracy": list(self.test_accuracy),
            "test_accuracy_mean": self.test_accuracy_mean,
            "test_accuracy_stddev": self.test_accuracy_stddev,
            "test_accuracy_by_person": list(self.test_accuracy_by_person),
            "test_errors": [found.to_dict() for found in self.test_errors],
            "seconds": self.seconds,
            "plan": self.plan.to_dict(),
        }


def promises_of(plan: Plan) -> tuple[Promise, ...]:
    """Return what each group asked for, and what one model spends of it.

    Args:
        plan: By which the model is trained.

    Example:
        >>> from apiece import Budgets, Scale, assign
        >>> plan = assign(Budgets([2.0] * 100, 1e-5), Scale(), steps=10, expected_batch_size=10,
        ...               clip_norm=1.0)
        >>> [(promise.records, promise.epsilon) for promise in promises_of(plan)]
        [(100, 2.0)]
    """
    measures = plan.measures
    advantage = (
        [None] * len(plan.groups)
        if measures.advantage is None
        else [float(value) for value in measures.advantage]
    )
    return tuple(
        Promise(
            group.name, group.records, group.epsilon, group.delta, float(spent), risk
        )
        for group, spent, risk in zip(plan.groups, measures.epsilon_spent, advantage, strict=True)
    )  # fmt: skip


YES, NO, DECIDE = "yes", "no", "decide"


@dataclass(frozen=True, slots=True)
class Check:
    """One line of the checklist.

    Attributes:
        name: What was looked at.
        verdict: "yes", "no" (the run must not be released), or "decide" (a person has to).
        says: A sentence.

    Example:
        >>> Check("largest ε", YES, "3").verdict
        'yes'
    """

    name: str
    verdict: str
    says: str


@dataclass(frozen=True, slots=True)
class Release:
    """The checklist of a run.

    Attributes:
        checks: In the order of the page.

    Example:
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
        return {"fit": self.fit, "checks": [asdict(check) for check in self.checks]}


def checklist(
    kept: Trained, data: Facts, *, seed: int | None, models: int, no_limit_cap: float | None
) -> Release:
    """Return the checklist of a run from its public values alone, so that anyone can repeat it.

    kept: of the strategy whose model is in the folder. models: how many were trained in all.
    """
    found = _checks(kept, data, seed, models, no_limit_cap)
    return Release(tuple(Check(*line) for line in found))


def _checks(
    kept: Trained, data: Facts, seed: int | None, models: int, cap: float | None
) -> Iterator[tuple[str, str, str]]:
    yield _promises(kept)
    yield _randomness(seed)
    yield _delta(kept)
    yield _epsilon(kept, cap)
    yield _models(models)
    yield _groups(kept)
    yield _held_out(data)


def _promises(kept: Trained) -> tuple[str, str, str]:
    if kept.plan.objections:
        return "promises", NO, kept.plan.objections[0]
    return "promises", YES, "every group spends at most the ε it asked for"


def _randomness(seed: int | None) -> tuple[str, str, str]:
    if seed is not None:
        says = f"it comes from seed {seed}, and whoever knows that takes the noise off; run without"
        return "randomness", NO, says
    return "randomness", YES, "from a key of the operating system’s cryptographic generator"


def _delta(kept: Trained) -> tuple[str, str, str]:
    records, delta = kept.plan.records, float(kept.plan.budget_groups.delta.max())
    if delta * records >= 1:
        says = f"δ = {delta:g} is not below 1/n = {1 / records:.3g}: it allows publishing a person"
        return "δ against 1/n", NO, says
    return "δ against 1/n", YES, f"δ = {delta:g} is below 1/n = {1 / records:.3g}"


def _epsilon(kept: Trained, cap: float | None) -> tuple[str, str, str]:
    largest = float(kept.plan.budget_groups.epsilon.max())
    note = "" if cap is None else f"; {cap_note(cap)}"
    if largest > LARGE:
        return "largest ε", DECIDE, f"{largest:g}, above {LARGE:g}: a weak promise{note}"
    return "largest ε", YES, f"{largest:g}{note}"


def _models(models: int) -> tuple[str, str, str]:
    if models > 1:
        says = f"{models} on the same people: release one chosen beforehand, or count them all"
        return "number of models", DECIDE, says
    return "number of models", YES, "1"


def _groups(kept: Trained) -> tuple[str, str, str]:
    sizes = kept.plan.budget_groups.records
    small = int((sizes < SMALL_GROUP).sum())
    if small:
        says = f"{small} of {sizes.size} have fewer than {SMALL_GROUP} people: do not publish them"
        return "groups too small to name", DECIDE, says
    return "groups too small to name", YES, f"none; the smallest has {int(sizes.min())} people"


def _held_out(data: Facts) -> tuple[str, str, str]:
    if not data.test_records:
        return "held-out figures", YES, "none were computed"
    if data.packaged:
        return "held-out figures", YES, "of public data"
    says = "accuracy is of held-out people, without noise: keep it as you keep their records"
    return "held-out figures", DECIDE, says


FORMAT = "apiece privacy statement 3"
MEANS = (
    "SHA-256 of the weights, and of the plan and of all else in the run folder under a salt that "
    "metrics.json has; they are compared whenever the model or its folder is loaded"
)
WORD = (
    "its author's word: without a signature nothing shows who wrote this statement, nor that the "
    "training was as it says"
)
_REMEDY = "give it as apiece train wrote it"


@dataclass(frozen=True, slots=True)
class Bound:
    """What binds a run's statement, as its folder keeps it.

    Attributes:
        weights: The digest of the model that is kept.
        config: The digest of config.toml, but for where the folder lies.
        salt: Keeps the statement from telling anything of the plan and the figures: whoever has
            not the folder cannot confirm a guess.
        head: The ledger's number:digest after the release was recorded in it, None without one.
    """

    weights: str
    config: str
    salt: str
    head: str | None

    @classmethod
    def of(
        cls, state: Mapping[str, torch.Tensor], config: Any, seed: int | None, head: str | None
    ) -> Bound:
        """Return what binds a run with these weights and this config.

        Args:
            state: The parameters by name.
            config: As it is read back.
            seed: Of an experiment; it makes the salt, so that the folder can be repeated.
            head: As the attribute.
        """
        return cls(weights_digest(state), config_digest(config), salt_of(seed), head)

    def said(self, plan: Any, metrics: Any) -> Json:
        """Return the statement's part, of JSON values as they are stored.

        Args:
            plan: Of plan.json.
            metrics: Of metrics.json.
        """
        return {
            "weights": self.weights,
            "plan": self._under_salt("plan", plan),
            "run": self._under_salt("run", metrics),
            "ledger": self.head,
            "means": MEANS,
            "signature": WORD,
        }

    def to_dict(self) -> Json:
        """Return it as JSON types."""
        return asdict(self)

    def _under_salt(self, name: str, value: Any) -> str:
        content = name.encode() + b"\0" + _canonical(value)
        return hmac.new(bytes.fromhex(self.salt), content, hashlib.sha256).hexdigest()


def salt_of(seed: int | None) -> str:
    """Return a fresh salt, or that of a seed.

    Args:
        seed: Of an experiment.
    """
    if seed is None:
        return secrets.token_hex(16)
    return hashlib.sha256(f"apiece salt {seed}".encode()).hexdigest()[:32]


def weights_digest(state: Mapping[str, torch.Tensor]) -> str:
    """Return the SHA-256 of parameters: their names in order, types, shapes and bytes.

    Args:
        state: By name, as `state_dict` gives it.
    """
    import torch

    digest = hashlib.sha256()
    for name, value in sorted(state.items()):
        if not isinstance(value, torch.Tensor):
            raise InputError(f"state: {name!r} is not a tensor; give model.state_dict()")
        array = value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy()
        head = f"{name}|{value.dtype}|{tuple(value.shape)}|"
        digest.update(head.encode() + array.tobytes())
    return digest.hexdigest()


def digest_of(value: Any) -> str:
    """Return the SHA-256 of a JSON value, whatever its spaces and the order of its names.

    Args:
        value: As it was read.
    """
    return hashlib.sha256(_canonical(value)).hexdigest()


def config_digest(config: Any) -> str:
    """Return the digest of a config, wherever its folder lies.

    Args:
        config: As it was read.
    """
    run = {name: value for name, value in config.get("run", {}).items() if name != "out"}
    return digest_of({**config, "run": run})


def _canonical(value: Any) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()


def sealed(statement: Json) -> Json:
    """Return a statement with the digest of all that it says.

    Args:
        statement: Without one.
    """
    return {**statement, "digest": digest_of(statement)}


def require_sealed(statement: Any, where: str) -> Json:
    """Return a statement, or raise `DataError` where a word of it was changed, or it is of old.

    Args:
        statement: As it was read.
        where: The file.
    """
    if not isinstance(statement, dict):
        raise DataError(f"{where}: its statement is no object; {_REMEDY}")
    if statement.get("statement") != FORMAT:
        raise DataError(
            f"{where}: its statement is not in the format {FORMAT!r}, and so bound to nothing; "
            "read it with the apiece that wrote it, or train again"
        )
    said = {name: value for name, value in statement.items() if name != "digest"}
    if statement.get("digest") != digest_of(said):
        raise DataError(f"{where}: its statement was changed after it was made; {_REMEDY}")
    if not isinstance(statement.get("bound_to"), dict):
        raise DataError(f"{where}: its statement is bound to nothing; {_REMEDY}")
    return statement


def require_same_digest(found: Any, said: Any, what: str, where: str) -> None:
    """Raise `DataError` where a part is not that to which the statement is bound.

    Args:
        found: Its digest.
        said: That in the statement.
        what: The part.
        where: The file.
    """
    if found != said:
        raise DataError(f"{where}: {what} is not what its statement is bound to; {_REMEDY}")
