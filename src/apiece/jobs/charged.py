"""A training that a ledger pays for: charged before the first step, committed before the model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from apiece._types import Mask
from apiece.errors import AnalysisError
from apiece.jobs.binding import weights_digest
from apiece.ledger import Ledger, reserve_plan, training_costs, training_terms
from apiece.plan import BoundPlan, Plan


@dataclass(frozen=True, slots=True, eq=False)
class Charge:
    """Everyone's payment for a training: who may take part, and the leave to release its model.

    Make one with `charge_training`, before the first step. included: one Boolean a record, in the
    order of the plan, for `Trainer(included=)`. Data about people: not for logs.
    """

    ledger: Ledger
    analysis_id: str
    included: Mask = field(repr=False)

    def release(self, state: Mapping[str, torch.Tensor]) -> str:
        """Record that the model with this `state_dict` goes out; return its digest.

        Call it before anyone sees the model, or figures made from it. Repeated with the same
        parameters it returns the same. Raises `AnalysisError` where another model went out under
        this analysis id: then this one must not.
        """
        digest = weights_digest(state)
        first = self.ledger.commit(self.analysis_id, {"model": digest})
        if first != {"model": digest}:
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
    terms: Any = None,
    resumed: bool = False,
) -> Charge:
    """Charge everyone in the plan for all of it, durably, and return who may take part.

    A person whose account cannot bear the whole plan pays nothing and is left out. The plan stays
    as it is, so that neither noise nor rates tell how many were left out. others: further plans
    for the same records, trained in the same job; a plan counts as often as it is given. terms:
    what else is fixed in public, as of `reserve_plan`. resumed: the run goes on, so that its model
    may have been released already, and the last files not written.

    Guarantee: each person's spending covers all models that the job can release, before its
    first step. A job that was killed and is started again, or resumed, under the same id is not
    charged again; what a killed job has shown of itself must not be released beside it. Charges
    are never given back.

    Raises `AnalysisError` where a model was released under this id by another run, or the id stands
    for another plan, other people or other terms, or nobody's account can bear the plan;
    `DataError` for a person without an account; `InputError` for a plan without ids.

    >>> import tempfile
    >>> from apiece import Budgets, Ledger, Scale, Trainer, assign
    >>> budgets = Budgets([1.0, 3.0], 1e-5, ids=["ann", "bob"])
    >>> plan = assign(budgets, Scale(), steps=5, expected_batch_size=1, clip_norm=1.0)
    >>> model = torch.nn.Linear(2, 1)
    >>> loss = lambda out, y: (out[:, 0] - y).square()
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     ledger = Ledger.open(f"sqlite:///{folder}/p.db")
    ...     _ = ledger.enroll(["ann", "bob"], epsilon=[0.5, 3.1], delta=1e-5)
    ...     charge = charge_training(ledger, "model 1", plan)
    ...     trainer = Trainer(model, torch.optim.SGD(model.parameters(), 0.1), loss, plan,
    ...         (torch.ones(2, 2), torch.ones(2)), included=charge.included, seed=0)
    ...     trainer.fit()
    ...     _ = charge.release(model.state_dict())
    ...     charge.included.tolist(), ledger.status("model 1")
    ([False, True], 'committed')
    """
    training = training_terms(plan, *others, terms=terms)
    if resumed and ledger.status(analysis_id, training) == "committed":
        admitted = np.concatenate(list(ledger.admitted(analysis_id)))
    else:
        admitted = reserve_plan(ledger, analysis_id, plan, *others, terms=terms)
    if admitted.size == 0:
        raise AnalysisError(
            f"analysis {analysis_id!r}: nobody's account can bear the plan; "
            + _remedy((plan, *others))
            + " (then under a new name: this one stands for a training of nobody)"
        )
    return Charge(ledger, analysis_id, np.asarray(np.isin(BoundPlan.of(plan).ids, admitted)))


def _remedy(plans: tuple[Plan, ...]) -> str:
    """Say what accounts would need, from the plans alone."""
    first, *_ = bound = [BoundPlan.of(plan) for plan in plans]
    at = first.group_index
    needs = training_costs(*bound).epsilon(first.budget_groups.delta[at])
    asked = first.budget_groups.epsilon[at]
    low, high = int(np.argmin(needs)), int(np.argmax(needs))
    return (
        f"an untouched account needs epsilon from {needs[low]:.4g} to {needs[high]:.4g}, where the "
        f"plan asks {asked[low]:.4g} and {asked[high]:.4g}; train with a smaller epsilon, or raise "
        "the accounts"
    )
