"""Numbers: what verification and files read of a plan, so that they need not know `Plan`."""

from __future__ import annotations

from dataclasses import replace
from typing import Protocol

from apiece._types import Mask
from apiece.budgets import BudgetGroups
from apiece.errors import InputError
from apiece.mechanisms import Composed, Mechanism
from apiece.plan.reference import Reference
from apiece.plan.schedule import Schedule
from apiece.plan.stage import Stage

PUBLIC = "public"  # the group of records that a plan adds to those who asked
UNSPENT = 0.95
"""The share of its ε below which a group is said to spend less than it asked."""


class Numbers(Protocol):
    """The public numbers of a plan, as `Plan` describes them; a `Plan` has them all."""

    @property
    def strategy(self) -> str:
        """See `Plan`."""

    @property
    def clip_norm(self) -> float:
        """See `Plan`."""

    @property
    def budget_groups(self) -> BudgetGroups:
        """See `Plan`."""

    @property
    def stages(self) -> tuple[Stage, ...]:
        """See `Plan`."""

    @property
    def relation(self) -> str:
        """See `Plan`."""

    @property
    def unit(self) -> str:
        """See `Plan`."""

    @property
    def method(self) -> str:
        """See `Plan`."""

    @property
    def combine(self) -> str:
        """See `Plan`."""

    @property
    def objections(self) -> tuple[str, ...]:
        """See `Plan`."""

    @property
    def worst_paths(self) -> Mask | None:
        """See `Plan`."""

    @property
    def counts(self) -> str:
        """See `Plan`."""

    @property
    def notes(self) -> tuple[str, ...]:
        """See `Plan`."""

    @property
    def learning_rate(self) -> Schedule | None:
        """See `Plan`."""

    @property
    def reference(self) -> Reference | None:
        """See `Plan`."""


def steps_of(plan: Numbers) -> int:
    """Return how many updates there are in all stages."""
    return sum(stage.steps for stage in plan.stages)


def mechanism_of(plan: Numbers, group: int) -> Mechanism:
    """Return what is done to a record of `group`; see `Plan.mechanism_for`."""
    if plan.worst_paths is not None:
        taken = [stage for s, stage in enumerate(plan.stages) if plan.worst_paths[group, s]]
        taken = [replace(stage, participation=None) for stage in taken]
    else:
        taken = list(plan.stages)
    parts = [m for stage in taken if (m := stage.mechanism(group)) is not None]
    return parts[0] if len(parts) == 1 else Composed(*parts)


def own_reference(plan: Numbers) -> Reference:
    """Return the reference of a plan that nobody requested: its own mean rate.

    Of those who asked: public records join in the batch size that was requested for the others.
    """
    groups = plan.budget_groups
    asked = groups.records[groups.name != PUBLIC]
    steps, records = steps_of(plan), int((asked if asked.size else groups.records).sum())
    joined = sum(stage.steps * stage.expected_batch_size for stage in plan.stages)
    return Reference(min(1.0, joined / steps / records), steps)


def require_fit(plan: Numbers) -> None:
    """Raise `InputError` where the stages do not fit the groups, or a batch size its rates."""
    if not plan.stages:
        raise InputError("plan: no stages; give at least one")
    for s, stage in enumerate(plan.stages):
        if stage.clip_norm.shape != (len(plan.budget_groups),):
            raise InputError(
                f"stage {s}: arrays of {stage.clip_norm.size} for {len(plan.budget_groups)} groups"
            )
        total = float(stage.chances() @ plan.budget_groups.records)
        if not abs(total - stage.expected_batch_size) <= 1e-6 * stage.expected_batch_size:
            raise InputError(
                f"stage {s}: expected_batch_size = {stage.expected_batch_size!r}, but the "
                f"sampling probabilities sum to {total!r}; they must agree"
            )
