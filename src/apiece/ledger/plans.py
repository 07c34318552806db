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
from apiece.plan.parts import Stage

# A slack that no account has.
_WHOLE_SLACK: Final = 1 - 2.0**-20
# More than a sum of costs in doubles is rounded down by, as a share.
_ROUNDING_SHARE: Final = 2.0**-40
# Groups that are looked at one by one; of more, neighbours are taken together.
GROUP_LIMIT: Final = 256


def plan_costs(plan: Plan) -> Costs:
    """Return the costs of a training by this plan for a record of each group: pairs (μ², slack).

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
    delta = plan.budget_groups.delta
    groups = len(plan.budget_groups)
    # Some mechanisms cannot be joined: those of worst paths or of a selection.
    if groups <= GROUP_LIMIT or plan.worst_paths is not None or plan.selection is not None:
        return _find_costs([plan.mechanism_for(group) for group in range(groups)], delta)
    # Neighbours in ε pay alike: by the largest rates and bounds among them, as a mechanism with a
    # larger rate or bound dominates one with a smaller.
    order = np.argsort(plan.budget_groups.epsilon, kind="stable")
    parts = np.array_split(order, GROUP_LIMIT)
    stages = [_join_groups(stage, parts) for stage in plan.stages]
    mechanisms = [_compose(stages, part) for part in range(GROUP_LIMIT)]
    row = np.empty(groups, dtype=np.int64)
    for number, part in enumerate(parts):
        row[part] = number
    # The least δ of a part asks for the most.
    least_delta = np.array([delta[part].min() for part in parts])
    return _find_costs(mechanisms, least_delta).of(row)


def _join_groups(stage: Stage, parts: Sequence[AnyArray]) -> Stage:
    """Return a stage of which each part of the groups is one group: with its largest values."""

    def find_largest(values: AnyArray | None) -> Any:
        return None if values is None else np.array([values[part].max() for part in parts])

    # A stage needs an expected batch size, and no mechanism depends on it.
    return replace(
        stage,
        expected_batch_size=1.0,
        sampling_probability=find_largest(stage.sampling_probability),
        clip_norm=find_largest(stage.clip_norm),
        participation=find_largest(stage.participation),
        times=find_largest(stage.times),
    )


def _compose(stages: Sequence[Stage], group: int) -> Mechanism:
    """Return what all stages together do to a record of a group."""
    mechanisms = [stage.mechanism(group) for stage in stages]
    return Composed(*(mechanism for mechanism in mechanisms if mechanism is not None))


def account_shares(plan: Plan, epsilon: npt.ArrayLike, *, times: int = 1) -> Floats:
    """Return which share of δ accounts best keep as slack, for trainings like this one.

    A training in which a record joins few steps takes more slack. The shares depend on the plan and
    on each person's own ε alone. Give them to `Ledger.enroll(slack=…)`.

    Args:
        plan: A plan of the kind that is to be trained.
        epsilon: ε of the accounts; each takes the share of the group whose ε is the nearest.
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
    shares = plan_costs(plan).shares(groups.delta, times=_check.count("times", times))
    epsilons = _check.positive_array("epsilon", epsilon)
    levels, level_of_account = np.unique(epsilons, return_inverse=True)
    # (levels, groups): nearest in proportion, so that 1 is as near to 2 as 4 is to 8.
    distance = np.abs(np.log(levels[:, None] / groups.epsilon))
    nearest = distance.argmin(axis=1)
    return np.asarray(shares[nearest][level_of_account].reshape(np.shape(epsilon)))


def _find_costs(mechanisms: Sequence[Mechanism], delta: Floats) -> Costs:
    """Return the costs of mechanisms, of which equal ones are looked at once."""
    rows: dict[tuple[Mechanism, float], int] = {}
    # Each distinct pair is numbered when it is first met: its number is the row of its costs.
    keys = zip(mechanisms, delta.tolist(), strict=True)
    row = np.array([rows.setdefault(key, len(rows)) for key in keys])
    distinct_mechanisms = [mechanism for mechanism, _ in rows]
    deltas = [own_delta for _, own_delta in rows]
    return costs_of(distinct_mechanisms, deltas).of(row)


def training_costs(*plans: BoundPlan) -> Costs:
    """Return each record's costs of training a model by each of these plans: composed, not added.

    Args:
        *plans: Plans bound to the same ids; a plan as often as a model is trained by it.

    Guarantee:
        Each pair holds by itself, rounded up.

    Example:
        >>> from apiece.assignment import Sample, assign
        >>> from apiece.budgets import Budgets
        >>> from apiece.ledger import training_costs
        >>> budgets = Budgets([1.0] * 50, 1e-5, ids=list(range(50)))
        >>> plan = assign(budgets, Sample(), steps=50, expected_batch_size=5, clip_norm=1.0)
        >>> float(training_costs(plan, plan).epsilon(1e-5)[0].round(2))
        1.43
    """
    if len(plans) == 1:
        (plan,) = plans
        return plan_costs(plan).of(plan.group_index)
    # (records, plans): the groups of a record in all plans, and the distinct ones.
    index = np.stack([plan.group_index for plan in plans], axis=-1)
    kinds, row = np.unique(index, axis=0, return_inverse=True)
    if len(kinds) > GROUP_LIMIT:
        return _add_costs(plans)
    mechanisms = []
    for kind in kinds:
        groups = zip(plans, kind, strict=True)
        mechanisms.append(Composed(*(plan.mechanism_for(int(group)) for plan, group in groups)))
    # Of the δ that a record has in the plans the least asks for the most.
    deltas = [plan.budget_groups.delta[kinds[:, k]] for k, plan in enumerate(plans)]
    return _find_costs(mechanisms, np.min(deltas, axis=0)).of(row.reshape(-1))


def _add_costs(plans: Sequence[BoundPlan]) -> Costs:
    """Return the sums of the plans' costs, pair by pair: more than they cost together."""
    costs = [plan_costs(plan).of(plan.group_index).rows() for plan in plans]
    losses, slacks = zip(*costs, strict=True)
    loss = np.sum(losses, axis=0) * (1 + _ROUNDING_SHARE)
    slack = np.sum(slacks, axis=0) * (1 + _ROUNDING_SHARE)
    return Costs(loss, np.minimum(slack, _WHOLE_SLACK))


def reserve_plan(
    ledger: Ledger, analysis_id: str, plan: Plan, *others: Plan, terms: Any = None
) -> Ids:
    """Charge a whole plan, or several, in advance.

    Whoever is not returned must be left out of every training; the plans' sizes and noise stay as
    they are. Repeated before the commit, it charges nothing and returns the same ids.

    Args:
        ledger: With accounts of all these persons.
        analysis_id: A name that no other analysis has.
        plan: Bound to its records' ids (`Budgets(ids=…)`).
        *others: Plans bound to the same ids; give a plan as often as a model is trained by it.
        terms: What else is fixed in public: settings, source; together with the plans and who is
            bound to them, the terms of `Ledger.reserve`.

    Returns:
        The ids of those who paid. Data about people.

    Raises:
        InputError: For a plan without ids, or plans of different ids; and as `Ledger.reserve`.

    Example:
        >>> import tempfile
        >>> from apiece import Ledger
        >>> from apiece.assignment import Scale, assign
        >>> from apiece.budgets import Budgets
        >>> from apiece.ledger.plans import reserve_plan
        >>> budgets = Budgets([1.0, 3.0], 1e-5, ids=["ann", "bob"])
        >>> plan = assign(budgets, Scale(), steps=5, expected_batch_size=1, clip_norm=1.0)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     ledger = Ledger.make(f"{folder}/p.db", ["ann", "bob"], [1.01, 3.02], 1e-5)
        ...     reserve_plan(ledger, "model 1", plan).tolist()
        ['ann', 'bob']
    """
    plans = [BoundPlan.of(item) for item in (plan, *others)]
    ids = plans[0].ids
    if not all(np.array_equal(other.ids, ids) for other in plans[1:]):
        raise InputError("plans: bound to different ids; charge them as separate analyses")
    training = training_terms(plan, *others, terms=terms)
    return ledger.reserve_costs(analysis_id, ids, training_costs(*plans), terms=training)


def training_terms(plan: Plan, *others: Plan, terms: Any = None) -> Json:
    """Return the terms under which `reserve_plan` charges a training, for `Ledger.status`."""
    plans = [BoundPlan.of(item) for item in (plan, *others)]
    # Who is bound to which group is data about people: the terms have its digest.
    people = json.dumps([[bound.ids.tolist(), bound.group_index.tolist()] for bound in plans])
    return {
        "plans": [bound.hash() for bound in plans],
        "people": hashlib.sha256(people.encode()).hexdigest(),
        "terms": terms,
    }


def reserve_alike(
    ledger: Ledger, analysis_id: str, costs: Costs, ids: Any = None, *, terms: Any = None
) -> Ids:
    """Charge the same costs to all who have accounts, or to a list.

    For an analysis made elsewhere, with noise for the largest contribution; only those who are
    returned may enter it.

    Args:
        ledger: With their accounts.
        analysis_id: A name that no other analysis has.
        costs: The costs of one mechanism, from `costs_of` or `Costs.fixed`.
        ids: The persons who are asked to pay; None is everyone who has an account.
        terms: What is asked, as a JSON value made of public facts; see `Ledger.reserve`.

    Returns:
        The ids of those who paid. Data about people.

    Raises:
        InputError: For costs of several; and as `Ledger.reserve`.

    Example:
        >>> import tempfile
        >>> from apiece import Ledger
        >>> from apiece.accounting.slack import gaussian_of_bounded_range
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
        blocks = [block for block, _, _ in ledger.account_blocks()]
        ids = np.concatenate(blocks) if blocks else np.zeros(0, dtype=np.int64)
    people = codec.normalize_ids(ids, least=0)
    costs_of_people = costs.of(np.zeros(people.size, int))
    return ledger.reserve_costs(analysis_id, people, costs_of_people, terms=terms)
