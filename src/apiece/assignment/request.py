"""What a strategy is asked: budgets and the settings of the training."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Protocol

import numpy as np
import numpy.typing as npt

from apiece import _check
from apiece.budgets import BudgetGroups, Budgets
from apiece.errors import InputError, unknown
from apiece.plan import Plan, Reference, Stage

Floats = npt.NDArray[np.float64]
METHODS = ("pld", "rdp")
MARGINS = (6e-4, 1.5e-3, 4e-3)


@dataclass(frozen=True, slots=True, eq=False)
class Request:
    """Budgets, and the settings that every strategy has to keep.

    margin: of log ε, how far below its budget a record is aimed at where parameters are found by
    interpolation (see `levels`); what the accountant's bounds vary by.

    Raises `InputError` for steps below 1, an expected batch size that is not positive or above
    the number of records, a clip norm that is not positive, an unknown accounting method.
    """

    budgets: Budgets
    steps: int
    expected_batch_size: float
    clip_norm: float
    method: str = "pld"
    margin: float = MARGINS[0]

    def __post_init__(self) -> None:
        put = object.__setattr__
        put(self, "steps", _check.count("steps", self.steps))
        batch = _check.positive("expected_batch_size", self.expected_batch_size)
        put(self, "expected_batch_size", batch)
        put(self, "clip_norm", _check.positive("clip_norm", self.clip_norm))
        if self.method not in METHODS:
            raise unknown("method", self.method, METHODS)
        if not batch <= len(self.budgets):
            raise InputError(
                f"expected_batch_size = {batch:g}: there are {len(self.budgets)} records; give at "
                f"most {len(self.budgets)}"
            )

    @property
    def groups(self) -> BudgetGroups:
        """The distinct budgets."""
        return self.budgets.groups

    @property
    def records(self) -> int:
        """How many records there are."""
        return len(self.budgets)

    @property
    def share(self) -> Floats:
        """Each group's share of the records."""
        return np.asarray(self.groups.records / self.records)

    @property
    def mean_probability(self) -> float:
        """The sampling probability if all records had the same: q̄ = B/n."""
        return self.expected_batch_size / self.records

    @property
    def reference(self) -> Reference:
        """The uniform mechanism that was asked for, whatever the plan arrives at."""
        return Reference(self.mean_probability, self.steps)

    def one_stage(
        self,
        strategy: str,
        noise_stddev: float,
        sampling_probability: Floats,
        clip_norm: Floats,
        *,
        saturated: npt.NDArray[np.bool_] | None = None,
        objections: tuple[str, ...] = (),
    ) -> Plan:
        """Return the plan of one stage with these parameters, bound to the budgets' records."""
        groups = self.groups
        total = float(sampling_probability @ groups.records)
        asked = self.expected_batch_size
        stage = Stage(
            steps=self.steps,
            expected_batch_size=asked if abs(total - asked) <= 1e-9 * asked else total,
            noise_stddev=noise_stddev,
            sampling_probability=sampling_probability,
            clip_norm=clip_norm,
        )
        none = np.zeros(len(groups), dtype=bool)
        return self.plan(
            strategy,
            (stage,),
            saturated=none if saturated is None else saturated,
            objections=objections,
        )

    def plan(
        self,
        strategy: str,
        stages: tuple[Stage, ...],
        *,
        saturated: npt.NDArray[np.bool_],
        objections: tuple[str, ...] = (),
        combine: str = "continue",
    ) -> Plan:
        """Return the plan with these stages, bound to the budgets' records."""
        return Plan(
            strategy=strategy,
            clip_norm=self.clip_norm,
            budgets=self.groups,
            stages=stages,
            saturated=saturated,
            group_index=self.budgets.group_index,
            ids=self.budgets.ids,
            method=self.method,
            objections=objections,
            combine=combine,
            reference=self.reference,
        )


class Strategy(Protocol):
    """A way to turn a request into a plan; a frozen value that holds the strategy's options."""

    name: ClassVar[str]

    def plan(self, request: Request) -> Plan:
        """Return the plan; `assign` verifies it."""
        ...
