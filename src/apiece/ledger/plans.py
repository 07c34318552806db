"""Charging a whole training to a ledger, before it starts."""

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


def reserve_plan(ledger: Ledger, analysis_id: str, plan: Plan) -> Ids:
    """Charge everyone in the plan for all of it; return the ids of those who could pay.

    The plan must be bound to its records' ids (`Budgets(ids=…)`). Whoever is not returned must be
    left out of the training; the plan's sizes and noise stay as they are, since they are public.

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
    if plan.ids is None or plan.group_index is None:
        raise InputError("plan: not bound to ids; make it from Budgets with ids, or plan.bind them")
    return ledger.reserve_losses(analysis_id, plan.ids, plan_losses(ledger, plan)[plan.group_index])
