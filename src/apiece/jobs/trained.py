"""What a run is told by: facts about its table, and for each strategy what it promised and reached.

Nothing here is about one person: no losses or norms, no counts of those who were sampled, no list
of who has which budget. Figures of held-out people are covered by no ε.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any

from apiece.plan import Plan


@dataclass(frozen=True, slots=True)
class Facts:
    """The table and its schema; all of it public, but for `commonest_class_share`.

    commonest_class_share: of the held-out people, None without any. simulated_budgets: whether
    the budgets were drawn for want of a column.
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

    def to_dict(self) -> dict[str, Any]:
        """Return the facts as JSON types."""
        found = {entry.name: getattr(self, entry.name) for entry in fields(self)}
        return found | {"classes": list(self.classes)}


@dataclass(frozen=True, slots=True)
class Promise:
    """What one budget group asked for, and what one model spends of it, rounded up.

    advantage: the largest TPR − FPR of any membership test, None where it was not computed.
    """

    name: str
    records: int
    epsilon: float
    delta: float
    epsilon_spent: float
    advantage: float | None
    saturated: bool

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

    settings: the values of `TUNED`. seeds: of each model, None for randomness of the operating
    system. test_accuracy: of each model, empty where nobody was held out.
    """

    strategy: str
    plan: Plan
    settings: Mapping[str, float]
    seeds: tuple[int, ...] | None
    test_accuracy: tuple[float, ...]
    seconds: float

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
        measures = self.plan.measures
        advantage = (
            [None] * len(self.plan.groups)
            if measures.advantage is None
            else [float(value) for value in measures.advantage]
        )
        return tuple(
            Promise(
                group.name, group.records, group.epsilon, group.delta, float(spent), risk,
                group.saturated,
            )
            for group, spent, risk in zip(
                self.plan.groups, measures.epsilon_spent, advantage, strict=True
            )
        )  # fmt: skip

    def to_dict(self) -> dict[str, Any]:
        """Return the models as JSON types."""
        return {
            "strategy": self.strategy,
            "seeds": None if self.seeds is None else list(self.seeds),
            "settings": dict(self.settings),
            "test_accuracy": list(self.test_accuracy),
            "test_accuracy_mean": self.test_accuracy_mean,
            "test_accuracy_stddev": self.test_accuracy_stddev,
            "seconds": self.seconds,
            "plan": self.plan.to_dict(),
        }
