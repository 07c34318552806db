"""Charging whole trainings to a ledger, before they start."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from apiece.accounting.rdp import divergence
from apiece.errors import InputError
from apiece.ledger.codec import Ids
from apiece.ledger.ledger import Ledger
from apiece.plan import Plan

Floats = npt.NDArray[np.float64]


def plan_losses(ledger: Ledger, plan: Plan) -> Floats:
    """Return what the plan costs a record of each group, in the ledger's unit, as an upper bound.

    A Rényi ledger is charged the plan's own Rényi divergence at its order, sampling included. A
    Gaussian one is charged μ² = Σ steps·(clip norm/noise)², without any discount for sampling: a
    training on sampled batches is not dominated by less, far out in the tail.
    """
    groups = range(len(plan.budgets))
    if ledger.order is not None:
        order = np.array([ledger.order])
        return np.array([float(divergence(plan.mechanism_for(g), order)[0]) for g in groups])
    total = np.zeros(len(plan.budgets))
    for stage in plan.stages:
        ratio = np.where(stage.sampling_probability > 0, stage.clip_norm / stage.noise_stddev, 0.0)
        total += stage.steps * ratio**2
    return total * (1 + 2.0**-48)


def reserve_plan(ledger: Ledger, analysis_id: str, plan: Plan, *others: Plan) -> Ids:
    """Charge everyone for all of a plan, or of several; return the ids of those who could pay.

    The plans must be bound to their records' ids (`Budgets(ids=…)`), all to the same ones. Give a
    plan as often as a model is trained by it. Whoever is not returned must be left out of every
    training; the plans' sizes and noise stay as they are, since they are public.

    Repeated before the commit, it charges nothing and returns the same ids. Raises as
    `Ledger.reserve` does, and `InputError` for a plan without ids.

    >>> import tempfile
    >>> from apiece.assignment import Scale, assign
    >>> from apiece.budgets import Budgets
    >>> budgets = Budgets([1.0, 3.0], 1e-5, ids=["ann", "bob"])
    >>> plan = assign(budgets, Scale(), steps=5, expected_batch_size=1, clip_norm=1.0)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     ledger = Ledger.open(f"sqlite:///{folder}/p.db", method="renyi", order=8)
    ...     _ = ledger.enroll(["ann", "bob"], epsilon=[0.01 + 2, 9.0], delta=1e-5)
    ...     reserve_plan(ledger, "model 1", plan).tolist()
    ['ann', 'bob']
    """
    total = np.zeros(plan.records)
    for each in (plan, *others):
        if each.ids is None or each.group_index is None or plan.ids is None:
            raise InputError(
                "plan: not bound to ids; make it from Budgets with ids, or plan.bind them"
            )
        if not np.array_equal(each.ids, plan.ids):
            raise InputError("plans: bound to different ids; charge them as separate analyses")
        total += plan_losses(ledger, each)[each.group_index]
    return ledger.reserve_losses(analysis_id, plan.ids, total * (1 + len(others) * 2.0**-50))
