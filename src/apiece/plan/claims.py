"""What a file says of a plan beside its parameters: compared with the plan, never believed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from apiece._types import Floats
from apiece.errors import ApieceError, DataError, RangeError
from apiece.plan.numbers import Numbers, own_reference, steps_of
from apiece.plan.verification import MEASURED, Measures, strictest, verify

SLACK = (
    1e-6  # relative for ε, absolute for the others: what two builds of one accountant may differ
)
Column = list[float | None] | None


class Measured(Numbers, Protocol):
    """A plan's numbers with what they were found to spend and risk."""

    @property
    def epsilon_spent(self) -> Floats:
        """See `Plan`."""

    @property
    def measures(self) -> Measures:
        """See `Plan`."""


@dataclass(frozen=True, slots=True)
class Claims:
    """The derived fields of a plan's JSON: totals, quotients and measures, a column a field.

    Measures may be absent, or null as in a plan of many groups; what is there is compared.
    """

    steps: int
    releasable: bool
    noise_multiplier: Column
    epsilon_spent: Column
    advantage: Column
    excess: Column
    excess_forward: Column
    excess_backward: Column

    def require(self, plan: Measured) -> None:
        """Raise unless `plan`, recomputed from its own numbers, is as claimed.

        `DataError` where a field is not what the parameters give; `VerificationError` where a
        plan without objections does not keep what it promises. Advantage and excess take a curve
        a group: they are compared where the budgets have bounds on the excess, which then rest on
        the plan's reference; elsewhere `Plan.measures` recomputes them when they are read.
        """
        try:
            with np.errstate(all="ignore"):  # a bound that is no number keeps no promise
                self._require(plan)
        except ApieceError:
            raise
        except (ArithmeticError, ValueError) as error:
            raise RangeError(
                f"plan: its numbers are past the accountant's range ({error}); make the plan again"
            ) from None

    def _require(self, plan: Measured) -> None:
        steps, releasable = steps_of(plan), not plan.objections
        if self.steps != steps:
            raise DataError(f"plan: steps = {self.steps}, but its stages have {steps}")
        if self.releasable != releasable:
            raise DataError(
                f"plan: releasable is {self.releasable}, with {len(plan.objections)} objections; "
                "give what to_json wrote"
            )
        if plan.worst_paths is not None and releasable:
            raise DataError("plan: its coins are revealed, so it has objections; none is given")
        if self.noise_multiplier is not None:
            stage = plan.stages[0]
            _same(
                plan,
                "noise_multiplier",
                self.noise_multiplier,
                stage.noise_stddev / stage.clip_norm,
            )
        epsilon, delta, bound = strictest(plan.budget_groups)  # bounds are verified by require
        if releasable:
            asked = epsilon, delta, np.ones_like(bound)
            verify(plan, plan.epsilon_spent, asked, lambda: plan.measures).require()
        _same(plan, "epsilon_spent", self.epsilon_spent, plan.epsilon_spent)
        if releasable and (bound < 1).any():
            _require_own_reference(plan)
        if plan.budget_groups.excess is not None and len(plan.budget_groups) <= MEASURED:
            self._compare_measures(plan)

    def _compare_measures(self, plan: Measured) -> None:
        measures = plan.measures
        for name, claimed, found in (
            ("advantage", self.advantage, measures.advantage),
            ("excess", self.excess, measures.excess),
            ("excess_forward", self.excess_forward, measures.forward),
            ("excess_backward", self.excess_backward, measures.backward),
        ):
            assert found is not None  # of a plan of so few groups
            _same(plan, name, claimed, found)


def _require_own_reference(plan: Numbers) -> None:
    """Raise `DataError` unless the reference, on which bounds rest, is that of what will be run."""
    own, given = own_reference(plan), plan.reference
    assert given is not None  # set when the plan was made
    apart = abs(given.sampling_probability - own.sampling_probability)
    if given.steps != own.steps or not apart <= SLACK * own.sampling_probability:
        raise DataError(
            f"plan: reference = {given.sampling_probability:g} in {given.steps} steps, on which "
            f"the bounds on the excess rest, but its batch size and records give "
            f"{own.sampling_probability:g} in {own.steps}; make the plan again"
        )


def _same(plan: Measured, name: str, claimed: Column, found: np.ndarray) -> None:
    """Raise `DataError` unless a claimed column is the one found; an absent one claims nothing."""
    if claimed is None or all(value is None for value in claimed):
        return
    given = np.array([np.nan if value is None else value for value in claimed])
    good = np.abs(given - found) <= SLACK * np.maximum(np.abs(found), 1.0)
    if not good.all():
        g = int(np.argmin(good))
        raise DataError(
            f"plan: group {plan.budget_groups.name[g]} claims {name} = {given[g]:g}, but its "
            f"parameters give {found[g]:g}; give what to_json wrote, or make the plan again"
        )
