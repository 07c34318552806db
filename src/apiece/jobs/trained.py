"""What a run is told by: facts about its table, and for each strategy what it promised and reached.

Nothing here is about one person: no losses or norms, no counts of those who were sampled, no list
of who has which budget. Figures of held-out people are covered by no ε.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from functools import cached_property
from typing import Any

from apiece._types import Json
from apiece.jobs.regression import Errors
from apiece.plan import Plan


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
