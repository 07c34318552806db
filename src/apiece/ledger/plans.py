"""Charging whole trainings to a ledger, before they start."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import numpy as np
import numpy.typing as npt

from apiece import _check
from apiece._types import Floats, Json
from apiece.accounting import renyi_divergence
from apiece.errors import BudgetError, InputError
from apiece.filters import renyi_budget
from apiece.ledger import units
from apiece.ledger.codec import Ids
from apiece.ledger.ledger import Ledger
from apiece.plan import BoundPlan, Plan


def plan_losses(ledger: Ledger, plan: Plan) -> Floats:
    """Return what the plan costs a record of each group, in the ledger's unit.

    A Rényi ledger is charged the plan's own Rényi divergence at its order, sampling included. A
    Gaussian one is charged μ² = Σ steps·(clip norm/noise)², without any discount for sampling: a
    training on sampled batches is not dominated by less, far out in the tail.

    Args:
        ledger: Its method and order count.
        plan: What is to be run.

    Guarantee:
        Never below the true cost in that unit.

    Example:
        >>> import tempfile
        >>> from apiece.assignment import Scale, assign
        >>> from apiece.budgets import Budgets
        >>> plan = assign(Budgets([1.0, 3.0], 1e-5), Scale(), steps=5, expected_batch_size=1,
        ...               clip_norm=1.0)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     ledger = Ledger.open(f"{folder}/people.db", method="renyi", order=8.0)
        ...     plan_losses(ledger, plan).round(2).tolist()
        [0.27, 2.46]
    """
    groups = range(len(plan.budget_groups))
    if ledger.order is not None:
        order = np.array([ledger.order])
        return np.array([float(renyi_divergence(plan.mechanism_for(g), order)[0]) for g in groups])
    total = np.zeros(len(plan.budget_groups))
    for stage in plan.stages:
        ratio = np.where(stage.sampling_probability > 0, stage.clip_norm / stage.noise_stddev, 0.0)
        total += stage.steps * ratio**2
    return total * (1 + 2.0**-48)


def reserve_plan(
    ledger: Ledger, analysis_id: str, plan: Plan, *others: Plan, terms: Any = None
) -> Ids:
    """Charge everyone for all of a plan, or of several; return the ids of those who could pay.

    Whoever is not returned must be left out of every training; the plans' sizes and noise stay as
    they are, since they are public. Repeated before the commit, it charges nothing and returns the
    same ids.

    Args:
        ledger: With accounts of all these persons.
        analysis_id: A name that no other analysis has.
        plan: Bound to its records' ids (`Budgets(ids=…)`).
        *others: Plans bound to the same ids; give a plan as often as a model is trained by it.
        terms: What else is fixed in public: settings, source. With the plans and who is bound to
            them they are the terms of `Ledger.reserve`.

    Returns:
        The ids of those who paid. Data about people.

    Raises:
        InputError: For a plan without ids, or plans of different ids.
        AnalysisError: As `Ledger.reserve`.
        DataError: As `Ledger.reserve`.

    Example:
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
    first, *more = (BoundPlan.of(each) for each in (plan, *others))
    total = plan_losses(ledger, first)[first.group_index]
    for each in more:
        if not np.array_equal(each.ids, first.ids):
            raise InputError("plans: bound to different ids; charge them as separate analyses")
        total += plan_losses(ledger, each)[each.group_index]
    losses = total * (1 + len(more) * 2.0**-50)
    training = training_terms(plan, *others, terms=terms)
    return ledger.reserve_losses(analysis_id, first.ids, losses, terms=training)


def training_terms(plan: Plan, *others: Plan, terms: Any = None) -> Json:
    """Return the terms under which `reserve_plan` charges a training, for `Ledger.status`.

    Args:
        plan: As of `reserve_plan`, and so the following.
        *others: The other plans.
        terms: What else is fixed in public.

    Raises:
        InputError: For a plan without ids.

    Example:
        >>> from apiece.assignment import Scale, assign
        >>> from apiece.budgets import Budgets
        >>> budgets = Budgets([1.0, 3.0], 1e-5, ids=["ann", "bob"])
        >>> plan = assign(budgets, Scale(), steps=5, expected_batch_size=1, clip_norm=1.0)
        >>> training_terms(plan, terms={"rate": 0.1}) == training_terms(plan)
        False
    """
    plans = [BoundPlan.of(each) for each in (plan, *others)]
    who = json.dumps([[each.ids.tolist(), each.group_index.tolist()] for each in plans])
    return {
        "plans": [each.hash() for each in plans],
        "people": hashlib.sha256(who.encode()).hexdigest(),
        "terms": terms,
    }


def least_epsilon(order: float, delta: npt.ArrayLike) -> Floats:
    """Return the ε at and below which a Rényi ledger of this order can carry no account.

    That is log(1/(δα))/(α−1) + log(1−1/α), where the budget of `renyi_budget` is 0. Smaller for
    a higher order, with which large budgets buy less.

    Args:
        order: Of the ledger.
        delta: Of the account; arrays are taken entry by entry.

    Example:
        >>> round(float(least_epsilon(16.0, 1e-5)), 3)
        0.518
    """
    return np.maximum(-renyi_budget(0.0, delta, order), 0.0)


def suggest_order(epsilon: npt.ArrayLike, delta: npt.ArrayLike) -> float:
    """Return the order of a Rényi ledger that serves these budgets, from them alone.

    A Gaussian's loss is proportional to the order, so an account buys B(α)/α, and the most at its
    own best order. The one returned makes the smallest share of that most, over all accounts, as
    large as it can be. Rounded to three digits.

    Args:
        epsilon: One entry an account.
        delta: One entry an account, or one for all.

    Raises:
        BudgetError: Where no order carries all, or for values out of bounds.

    Example:
        >>> suggest_order([0.5, 1.0, 3.0], 1e-5)
        19.8
    """
    eps = _check.positive_array("epsilon", epsilon, error=BudgetError)
    dlt = _check.positive_array("delta", delta, below=1.0, error=BudgetError)
    pairs = np.unique(np.stack(np.broadcast_arrays(eps, dlt), axis=-1).reshape(-1, 2), axis=0)
    orders = 1 + np.geomspace(1e-2, 1e6, 800)
    buys = renyi_budget(pairs[:, :1], pairs[:, 1:], orders) / orders
    share = (buys / buys.max(axis=1, keepdims=True)).min(axis=0)
    if not share.max() > 0:
        low, high = pairs[0, 0], pairs[-1, 0]
        raise BudgetError(
            f"epsilon: from {low:g} to {high:g}, which no one order of a Rényi ledger can carry; "
            "give an order that carries most, and the others larger budgets or another ledger"
        )
    return float(f"{orders[int(np.argmax(share))]:.3g}")


def account_epsilon(plan: Plan, order: float, times: int = 1) -> Floats:
    """Return the ε, at each group's own δ, that an account needs to pay for a plan, as of now.

    More than the ε that the plan itself spends, which is composed exactly and not at one order.

    Args:
        plan: What is to be run.
        order: Of the Rényi ledger.
        times: How many models are trained by the plan.

    Example:
        >>> from apiece.assignment import Scale, assign
        >>> from apiece.budgets import Budgets
        >>> plan = assign(Budgets([1.0, 3.0], 1e-5), Scale(), steps=5, expected_batch_size=1,
        ...     clip_norm=1.0)
        >>> account_epsilon(plan, 16.0).round(2).tolist()
        [1.11, 7.94]
    """
    found = np.array([order])
    losses = np.array(
        [
            float(renyi_divergence(plan.mechanism_for(g), found)[0])
            for g in range(len(plan.budget_groups))
        ]
    )
    zero = renyi_budget(0.0, plan.budget_groups.delta, order)
    return np.asarray((losses * times - zero) * (1 + 2.0**-40) + units.UNIT)
