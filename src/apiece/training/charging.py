"""Charging a training to a ledger before its first step, and leave to release its model."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np
import torch

from apiece._types import AnyArray, Mask
from apiece.errors import AnalysisError, InputError
from apiece.plan import BoundPlan, Plan
from apiece.training.identity import bytes_of

if TYPE_CHECKING:
    from apiece.ledger import Ledger


@dataclass(slots=True, eq=False)
class TrainingCharge:
    """Everyone's payment for a training: who may take part, and the leave to release its model.

    Make one with `charge_training`, before the first step.

    Attributes:
        ledger: The ledger that was charged.
        analysis_id: The training's name in it.
        included: (n,) True where a record can pay, in the order of the plan, for
            `Trainer(included=)`. Data about people: not for logs.
        ids: (n,) The records' ids, of the ledger's kind, in the order of the plan.

    Example:
        >>> import tempfile
        >>> import torch
        >>> from apiece.assignment import Scale, assign
        >>> from apiece.budgets import Budgets
        >>> from apiece.ledger import Ledger
        >>> from apiece.training import charge_training
        >>> budgets = Budgets([1.0, 3.0], 1e-5, ids=["ann", "bob"])
        >>> plan = assign(budgets, Scale(), steps=5, expected_batch_size=1, clip_norm=1.0)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     ledger = Ledger.make(f"{folder}/people.db", plan.ids, 9.0, 1e-5)
        ...     charge = charge_training(ledger, "model 1", plan)
        ...     charge.release({"weight": torch.ones(2)})[:8], charge.withdrawn().tolist()
        ('41bfdf6d', [False, False])
    """

    ledger: Ledger
    analysis_id: str
    included: Mask = field(repr=False)
    ids: AnyArray = field(repr=False)
    # The last look into the ledger: seconds of the monotonic clock (-1 before the first), number of
    # the ledger's head and day of the year at that time, and who had withdrawn.
    _look: tuple[float, tuple[int, int], Mask] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        nobody = np.zeros(self.included.size, dtype=bool)
        self._look = (-1.0, (-1, 0), nobody)

    def withdrawn(self) -> Mask:
        """Return who has withdrawn by now, (n,), for `Trainer(withdrawn=)`; look once a second."""
        seconds, version, mask = self._look
        if time.monotonic() - seconds >= 1 or seconds < 0:
            # A consent ends with a day, so that the day is a part of the ledger's state.
            head = self.ledger.head()
            current = (head.number, time.gmtime().tm_yday)
            if current != version:
                mask = self.ledger.withdrawn(self.ids)
            self._look = (time.monotonic(), current, mask)
        return mask

    def release(self, state: Mapping[str, torch.Tensor]) -> str:
        """Record that the model with this `state_dict` goes out; return its digest.

        Call it before anyone sees the model, or figures made from it. Repeated with the same
        parameters it returns the same.

        Args:
            state: `model.state_dict()`.

        Returns:
            The SHA-256 of the parameters.

        Raises:
            AnalysisError: Where another model went out under this analysis id: then this one must
                not.
            InputError: For a value that is not a tensor.
        """
        digest = weights_digest(state)
        # A commit that is repeated returns what the first one recorded.
        recorded = self.ledger.commit(self.analysis_id, {"model": digest})
        if recorded != {"model": digest}:
            raise AnalysisError(
                f"analysis {self.analysis_id!r}: another model was released under this id, and "
                "one charge pays for one; discard this model, or train it under a new id"
            )
        return digest


def charge_training(
    ledger: Ledger,
    analysis_id: str,
    plan: Plan,
    *others: Plan,
    terms: object = None,
    resumed: bool = False,
) -> TrainingCharge:
    """Charge everyone in the plan for all of its steps, durably, and return who may take part.

    A person whose account cannot bear the whole plan pays nothing and is left out. The plan stays
    as it is, so that neither noise nor rates tell how many were left out.

    Args:
        ledger: With an account for everyone in the plan.
        analysis_id: Name of this training, and of no other.
        plan: With the ids of its records; texts of whole numbers suit a ledger of numbers.
        *others: Further plans for the same records, trained in the same job; a plan counts as often
            as it is given.
        terms: Further terms that are fixed in public, as in `reserve_plan`.
        resumed: The run goes on, so that its model may have been released already, and the last
            files not written.

    Returns:
        Who may take part, and the leave to release one model.

    Raises:
        AnalysisError: Where a model was released under this id by another run, or the id stands for
            another plan, other people or other terms, or nobody's account can bear the plan.
        DataError: For a person without an account.
        InputError: For a plan without ids, or texts that are not numbers in a ledger of numbers.

    Guarantee:
        Each person's spending covers all models that the job can release, before its first step. A
        job that was killed and is started again, or resumed, under the same id is not charged
        again; what a killed job has shown of itself must not be released beside it. Charges are
        never given back.

    Example:
        >>> import tempfile
        >>> from apiece.assignment import Sample, assign
        >>> from apiece.budgets import Budgets
        >>> from apiece.ledger import Ledger
        >>> from apiece.training import charge_training
        >>> budgets = Budgets([1.0, 2.0, 2.0], 1e-6, ids=["ann", "bob", "eve"])
        >>> plan = assign(budgets, Sample(), steps=5, expected_batch_size=1, clip_norm=1.0)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     ledger = Ledger.make(f"{folder}/people.db", plan.ids, [0.1, 3.0, 3.0], 1e-5)
        ...     charge_training(ledger, "model 1", plan).included.tolist()
        [False, True, True]
    """
    from apiece.ledger.plans import reserve_plan, training_terms

    plans = [_convert_ids(ledger, plan) for plan in (plan, *others)]
    training = training_terms(*plans, terms=terms)
    if not (resumed and ledger.status(analysis_id, training) == "committed"):
        reserve_plan(ledger, analysis_id, *plans, terms=terms)
    parts = list(ledger.admitted(analysis_id, withdrawn=True))
    admitted = np.concatenate(parts) if parts else np.zeros(0)
    if admitted.size == 0:
        raise AnalysisError(
            f"analysis {analysis_id!r}: nobody's account can bear the plan; "
            + _describe_needs(plans)
            + " (then under a new name: this one stands for a training of nobody)"
        )
    ids = plans[0].ids
    return TrainingCharge(ledger, analysis_id, np.isin(ids, admitted), ids)


def _convert_ids(ledger: Ledger, plan: Plan) -> BoundPlan:
    """Return the plan with ids of the ledger's kind: numbers, where the ledger holds numbers."""
    from apiece.ledger.codec import read_ids  # the ledger is an extra of its own

    bound = BoundPlan.of(plan)
    if ledger.id_kind != "integer" or bound.ids.dtype.kind == "i":
        return bound
    numbers, valid = read_ids(bound.ids.tolist(), "integer")
    if not valid.all():
        raise InputError(
            f"ids: {int((~valid).sum())} of {valid.size} are not whole numbers as 7 is written, "
            "but this ledger's ids are; mend the column of ids"
        )
    return replace(bound, consents=bound.consents.with_ids(numbers))


def _describe_needs(plans: list[BoundPlan]) -> str:
    """Say which ε an account needs for the plans, from the plans alone."""
    from apiece.ledger.plans import training_costs

    budgets = plans[0].budget_groups
    group_index = plans[0].group_index
    needs = training_costs(*plans).epsilon(budgets.delta[group_index])
    epsilons = budgets.epsilon[group_index]
    low = int(np.argmin(needs))
    high = int(np.argmax(needs))
    return (
        f"an untouched account needs epsilon from {needs[low]:.4g} to {needs[high]:.4g}, where the "
        f"plan asks {epsilons[low]:.4g} and {epsilons[high]:.4g}; train with a smaller epsilon, or "
        "raise the accounts"
    )


def weights_digest(state: Mapping[str, torch.Tensor]) -> str:
    """Return the SHA-256 of a `state_dict`: names in order, types, shapes and bytes."""
    digest = hashlib.sha256()
    for name, value in sorted(state.items()):
        if not isinstance(value, torch.Tensor):
            raise InputError(f"state: {name!r} is not a tensor; give model.state_dict()")
        head = f"{name}|{value.dtype}|{tuple(value.shape)}|"
        digest.update(head.encode() + bytes_of(value))
    return digest.hexdigest()
