"""Passes over the records: the batches of one, and how many steps and records a plan has."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

from apiece.errors import StateError
from apiece.plan import Plan


class Stepping(Protocol):
    """A run that is taken step by step: a `Trainer`."""

    plan: Plan

    @property
    def steps(self) -> int:
        """Number of steps in the plan."""
        ...

    @property
    def step_number(self) -> int:
        """Number of steps taken so far."""
        ...


@dataclass(frozen=True, slots=True)
class Batch:
    """A batch as a loop of one's own sees it: when it is, and not who is in it.

    Attributes:
        step: Number of the step that it is for, from 0.
        epoch: Number of the pass over the records, from 0.

    Example:
        >>> from apiece.training import Batch
        >>> Batch(step=12, epoch=1)
        Batch(step=12, epoch=1)
    """

    step: int
    epoch: int


class EpochLoader:
    """The batches of one pass over the records, for a loop that calls `step` once a batch.

    It has as many batches as steps expect as many records as there are. The records themselves are
    drawn, read and clipped in the step. A pass begins where the trainer stands.

    Args:
        trainer: Whose steps they are.

    Raises:
        StateError: While it is run, for a batch without its step, or with two; and where a pass
            begins after the plan's last step.

    Example:
        >>> from apiece import Budgets, Scale, assign
        >>> from apiece.training import EpochLoader
        >>> from types import SimpleNamespace
        >>> budgets = Budgets([1.0] * 20, 1e-3)
        >>> plan = assign(budgets, Scale(), steps=8, expected_batch_size=5, clip_norm=1.0)
        >>> run = SimpleNamespace(plan=plan, steps=8, step_number=0)
        >>> len(EpochLoader(run)), next(iter(EpochLoader(run)))
        (4, Batch(step=0, epoch=0))
    """

    def __init__(self, trainer: Stepping) -> None:
        self._trainer = trainer
        self._length = count_epoch_steps(trainer.plan)

    def __len__(self) -> int:
        """Return the number of steps of a pass."""
        return self._length

    def __iter__(self) -> Iterator[Batch]:
        trainer = self._trainer
        if trainer.step_number >= trainer.steps:
            raise StateError(
                f"loader: all {trainer.steps} steps of the plan are taken; run as many epochs as "
                "the plan was made for"
            )
        # Read anew for each batch, since the loop takes the steps itself.
        for _ in range(min(len(self), trainer.steps - trainer.step_number)):
            number = trainer.step_number
            yield Batch(number, number // len(self))
            taken = trainer.step_number - number
            if taken != 1:
                raise StateError(
                    f"loader: {taken} steps were taken for batch {number}; call step() once for "
                    "each batch"
                )


def count_epoch_steps(plan: Plan) -> int:
    """Return the number of steps that expect as many records as there are, at least one."""
    # Records, or persons where the plan is for persons.
    records = sum(group.records for group in plan.groups)
    return max(round(records / plan.stages[0].expected_batch_size), 1)


def count_expected_records(plan: Plan, first_step: int = 0) -> float:
    """Return how many records a plan expects in all steps from a first one on, each time anew."""
    skipped = first_step
    expected = 0.0
    for stage in plan.stages:
        expected += max(stage.steps - skipped, 0) * stage.expected_batch_size
        skipped = max(skipped - stage.steps, 0)
    return expected
