"""Charging whole trainings to a ledger, before they start, and what is made outside of apiece."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from apiece import _check
from apiece._types import AnyArray, Floats, Ids, Json
from apiece.errors import InputError
from apiece.filters import Costs, costs_of
from apiece.ledger import codec
from apiece.ledger.ledger import Ledger
from apiece.mechanisms import Composed, Mechanism
from apiece.plan import BoundPlan, Plan

_ALL: Final = 1 - 2.0**-20  # of slack: no account has it
MOST: Final = 256  # groups that are looked at one by one; of more, neighbours are taken together


def plan_costs(plan: Plan) -> Costs:
    """Return what a training by this plan costs a record of each group: pairs (μ², slack).

    Sampling and coins are included. Where a plan has more than 256 groups, groups that ask for
    nearly the same pay alike: what is enough for each of them.

    Args:
        plan: What is to be run.

    Guarantee:
        Each pair holds by itself, rounded up.

    Example:
        >>> from apiece.assignment import Sample, assign
        >>> from apiece.budgets import Budgets
        >>> from apiece.ledger import plan_costs
        >>> budgets = Budgets([1.0] * 500 + [3.0] * 500, 1e-5)
        >>> plan = assign(budgets, Sample(), steps=200, expected_batch_size=50, clip_norm=1.0)
        >>> plan_costs(plan).epsilon(1e-5).round(2).tolist()
        [1.0, 3.0]
    """
    groups, delta = len(plan.budget_groups), plan.budget_groups.delta
    if groups <= MOST or plan.worst_paths is not None or plan.selection is not None:
        return _costs([plan.mechanism_for(g) for g in range(groups)], delta)
    order = np.argsort(plan.budget_groups.epsilon, kind="stable")
    parts = np.array_split(order, MOST)

    def most(values: AnyArray | None) -> Any:  # a larger rate or bound is dominated by no less
        return None if values is None else np.array([values[part].max() for part in parts])

    stages = [
        replace(
            stage,
            expected_batch_size=1.0,
            sampling_probability=most(stage.sampling_probability),
            clip_norm=most(stage.clip_norm),
            participation=most(stage.participation),
            times=most(stage.times),
        )
        for stage in plan.stages
    ]
    each = [
        Composed(*(m for stage in stages if (m := stage.mechanism(k)) is not None))
        for k in range(MOST)
    ]
    row = np.empty(groups, dtype=np.int64)
    for k, part in enumerate(parts):
        row[part] = k
    return _costs(each, np.array([delta[part].min() for part in parts])).of(row)


def account_shares(plan: Plan, epsilon: npt.ArrayLike, *, times: int = 1) -> Floats:
    """Return which share of δ accounts best keep as slack, for trainings like this one.

    A training in which a record joins few steps takes more slack. The shares depend on the plan and
    on each person's own ε alone. Give them to `Ledger.enroll(slack=…)`.

    Args:
        plan: Of the kind that is to be trained.
        epsilon: Of the accounts; each takes the share of the group whose ε is the nearest.
        times: How many such trainings an account is to pay for.

    Raises:
        InputError: For an ε or a number out of bounds.

    Example:
        >>> from apiece.assignment import Sample, assign
        >>> from apiece.budgets import Budgets
        >>> from apiece.ledger import account_shares
        >>> budgets = Budgets([0.5] * 500 + [3.0] * 500, 1e-6)
        >>> plan = assign(budgets, Sample(), steps=500, expected_batch_size=4, clip_norm=1.0)
        >>> account_shares(plan, [0.5, 3.1]).tolist()
        [0.8, 0.5]
    """
    groups = plan.budget_groups
    result = plan_costs(plan).shares(groups.delta, times=_check.count("times", times))
    asked = _check.positive_array("epsilon", epsilon)
    each, place = np.unique(asked, return_inverse=True)
    nearest = np.abs(np.log(each[:, None] / groups.epsilon)).argmin(axis=1)
    return np.asarray(result[nearest][place].reshape(np.shape(epsilon)))


def _costs(mechanisms: Sequence[Mechanism], delta: Floats) -> Costs:
    """Return the costs of mechanisms, of which equal ones are looked at once."""
    place: dict[tuple[Mechanism, float], int] = {}
    keys = zip(mechanisms, delta.tolist(), strict=True)
    row = np.array([place.setdefault(key, len(place)) for key in keys])
    return costs_of([mechanism for mechanism, _ in place], [d for _, d in place]).of(row)


def training_costs(*plans: BoundPlan) -> Costs:
    """Return what training a model by each of these plans costs each record: composed, not added.

    Args:
        *plans: Bound to the same ids; a plan as often as a model is trained by it.

    Guarantee:
        As `plan_costs`.

    Example:
        >>> from apiece.assignment import Sample, assign
        >>> from apiece.budgets import Budgets
        >>> from apiece.ledger import training_costs
        >>> budgets = Budgets([1.0] * 50, 1e-5, ids=list(range(50)))
        >>> plan = assign(budgets, Sample(), steps=50, expected_batch_size=5, clip_norm=1.0)
        >>> float(training_costs(plan, plan).epsilon(1e-5)[0].round(2))
        1.43
    """
    first, *more = plans
    if not more:
        return plan_costs(first).of(first.group_index)
    index = np.stack([each.group_index for each in plans], axis=-1)
    kinds, row = np.unique(index, axis=0, return_inverse=True)
    if len(kinds) > MOST:  # added up, pair by pair: more than they cost together
        each = [plan_costs(plan).of(plan.group_index).rows() for plan in plans]
        loss, slack = (np.sum(column, axis=0) for column in zip(*each, strict=True))
        return Costs(loss * (1 + 2.0**-40), np.minimum(slack * (1 + 2.0**-40), _ALL))
    mechanisms = [
        Composed(*(plan.mechanism_for(int(g)) for plan, g in zip(plans, kind, strict=True)))
        for kind in kinds
    ]
    delta = np.min([p.budget_groups.delta[kinds[:, k]] for k, p in enumerate(plans)], axis=0)
    return _costs(mechanisms, delta).of(row.reshape(-1))


def reserve_plan(
    ledger: Ledger, analysis_id: str, plan: Plan, *others: Plan, terms: Any = None
) -> Ids:
    """Return who paid for all of a plan, or of several, in advance. Data about people.

    Whoever is not returned must be left out of every training; the plans' sizes and noise stay as
    they are. Repeated before the commit, it charges nothing and returns the same ids.

    Args:
        ledger: With accounts of all these persons.
        analysis_id: A name that no other analysis has.
        plan: Bound to its records' ids (`Budgets(ids=…)`).
        *others: Plans bound to the same ids; give a plan as often as a model is trained by it.
        terms: What else is fixed in public: settings, source; together with the plans and who is
            bound to them, the terms of `Ledger.reserve`.

    Raises:
        InputError: For a plan without ids, or plans of different ids; and as `Ledger.reserve`.

    Example:
        >>> import tempfile
        >>> from apiece import Ledger
        >>> from apiece.assignment import Scale, assign
        >>> from apiece.budgets import Budgets
        >>> from apiece.ledger import reserve_plan
        >>> budgets = Budgets([1.0, 3.0], 1e-5, ids=["ann", "bob"])
        >>> plan = assign(budgets, Scale(), steps=5, expected_batch_size=1, clip_norm=1.0)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     ledger = Ledger.make(f"{folder}/p.db", ["ann", "bob"], [1.01, 3.02], 1e-5)
        ...     reserve_plan(ledger, "model 1", plan).tolist()
        ['ann', 'bob']
    """
    bound = [BoundPlan.of(each) for each in (plan, *others)]
    first, *more = bound
    if not all(np.array_equal(each.ids, first.ids) for each in more):
        raise InputError("plans: bound to different ids; charge them as separate analyses")
    training = training_terms(plan, *others, terms=terms)
    return ledger.reserve_costs(analysis_id, first.ids, training_costs(*bound), terms=training)


def training_terms(plan: Plan, *others: Plan, terms: Any = None) -> Json:
    """Return the terms under which `reserve_plan` charges a training, for `Ledger.status`."""
    plans = [BoundPlan.of(each) for each in (plan, *others)]
    who = json.dumps([[each.ids.tolist(), each.group_index.tolist()] for each in plans])
    return {
        "plans": [each.hash() for each in plans],
        "people": hashlib.sha256(who.encode()).hexdigest(),
        "terms": terms,
    }


def reserve_alike(
    ledger: Ledger, analysis_id: str, costs: Costs, ids: Any = None, *, terms: Any = None
) -> Ids:
    """Return who paid the same costs, of all who have accounts or of a list. Data about people.

    For an analysis made elsewhere, with noise for the largest contribution; only those who are
    returned may enter it.

    Args:
        ledger: With their accounts.
        analysis_id: A name that no other analysis has.
        costs: Of one mechanism, as `costs_of` and `Costs.fixed` make them.
        ids: Of the persons in question; None is everyone who has an account.
        terms: As of `Ledger.reserve`.

    Raises:
        InputError: For costs of several; and as `Ledger.reserve`.

    Example:
        >>> import tempfile
        >>> from apiece import Ledger
        >>> from apiece.accounting import gaussian_of_bounded_range
        >>> from apiece.filters import Costs
        >>> from apiece.ledger import reserve_alike
        >>> costs = Costs.fixed(gaussian_of_bounded_range(0.5) ** 2)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     ledger = Ledger.make(f"{folder}/people.db", ["ann", "bob"], [0.1, 3.0], 1e-6)
        ...     reserve_alike(ledger, "the exponential mechanism", costs).tolist()
        ['bob']
    """
    if len(costs) != 1:
        raise InputError(f"costs: of {len(costs)} mechanisms; give those of one")
    if ids is None:
        known = [each for each, _, _ in ledger.account_blocks()]
        ids = np.concatenate(known) if known else np.zeros(0, dtype=np.int64)
    who = codec.normalize_ids(ids, least=0)
    return ledger.reserve_costs(analysis_id, who, costs.of(np.zeros(who.size, int)), terms=terms)
