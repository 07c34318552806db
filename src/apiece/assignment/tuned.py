"""Plans for the best of a random number of runs: each keeps all promises with the choosing inside.

A run may train by any of several settings. The bound of `Selected` is taken of the largest profile
of all of them, so each group's part in every setting is aimed at the same lower ε, found by
iteration. The plans are verified as any plan: from their own numbers, all settings together.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from apiece.assignment.front import make_strategy
from apiece.assignment.request import Request, Strategy
from apiece.assignment.solve import require_few
from apiece.assignment.unspent import warn_of_shortfall
from apiece.budgets import Budgets
from apiece.errors import InfeasibleError, InputError, UnsupportedError
from apiece.mechanisms import Runs
from apiece.plan import BoundPlan
from apiece.plan.parts import Selection

# How many times the aims are corrected.
ROUNDS = 8
# The share of what it asked that the group nearest to it spends in a plan that is good enough.
ENOUGH = 0.997
# How far below what is asked is aimed, in log ε.
MARGIN = 0.002
# The largest number of distinct budgets: each takes a curve a round and a setting.
MANY = 50
# About how many times ε the choice among runs costs: where the search for aims starts.
CHOICE_COST = 1.7


def assign_tuned(
    budgets: Budgets,
    strategy: Strategy | str,
    settings: Sequence[Mapping[str, Any]],
    *,
    runs: Runs,
    clip_norm: float = 1.0,
    score_noise: float | None = None,
) -> tuple[BoundPlan, ...]:
    """Return a verified plan for each setting; the best model of `runs` runs keeps each promise.

    Each run draws one of the settings by public chances, trains by its plan, and scores the model.

    Args:
        budgets: What everyone asked for.
        strategy: As for `assign`; one that trains in one stage, and not by whole numbers of steps.
        settings: `steps` and `expected_batch_size` of each, and `clip_norm` where it differs.
        runs: The law of the number of runs.
        clip_norm: The mean bound on a record's gradient.
        score_noise: Standard deviation of the noise on the number of records that a model gets
            right; None where models are scored on public rows.

    Raises:
        InputError: For settings out of bounds, or none.
        UnsupportedError: For a strategy of several stages or of whole numbers of steps, and more
            than 50 distinct budgets.
        InfeasibleError: Where no plan meets the request.

    Guarantee:
        Each group's ε, with all runs, their scores and the choosing inside, recomputed from the
        plan's own numbers, is at most what was asked.

    References:
        Liu and Talwar 2019; Papernot and Steinke 2022; docs/mathematics.md, section 16.

    Example:
        >>> from apiece import Budgets
        >>> from apiece.assignment.tuned import assign_tuned
        >>> from apiece.mechanisms import Runs
        >>> budgets = Budgets([1.0] * 500 + [3.0] * 500, 1e-5)
        >>> settings = [{"steps": 20, "expected_batch_size": 100}]
        >>> (plan,) = assign_tuned(budgets, "scale", settings, runs=Runs(10))
        >>> plan.verify().ok, bool((plan.spent_share > 0.99).all())
        (True, True)
    """
    if not settings or not isinstance(runs, Runs):
        raise InputError("settings, runs: give at least one setting, and Runs(mean)")
    require_few("search", len(budgets.groups), MANY)
    if isinstance(strategy, str):
        strategy = make_strategy(strategy)
    requests = [Request(budgets, **{"clip_norm": clip_norm, **setting}) for setting in settings]
    plans = _search_plans(budgets, strategy, requests, runs, score_noise)
    annotated = []
    for plan, request in zip(plans, requests, strict=True):
        note = _describe_choice(plan, strategy, request)
        annotated.append(replace(plan, notes=(*plan.notes, note)))
    for plan in annotated:
        plan.require()
    # All of them have one cost, and so one shortfall.
    warn_of_shortfall(annotated[0])
    return tuple(annotated)


def _search_plans(
    budgets: Budgets,
    strategy: Strategy,
    requests: Sequence[Request],
    runs: Runs,
    score_noise: float | None,
) -> tuple[BoundPlan, ...]:
    """Return plans that keep each promise with the choice inside, and leave little unspent."""
    asked = budgets.groups.epsilon
    back = np.full(asked.shape, np.log(CHOICE_COST))
    best: tuple[BoundPlan, ...] = ()
    best_share = 0.0
    for _ in range(ROUNDS):
        lowered = [replace(request, back=back) for request in requests]
        plans = _make_plans(strategy, lowered, runs, score_noise)
        # All plans have one cost: that of the choice among all.
        spent = plans[0].epsilon_spent
        # A group that takes no part is aimed at as before.
        with np.errstate(divide="ignore"):
            overspending = np.where(spent > 0, np.log(spent / asked), -MARGIN)
        if (overspending <= 0).all():
            share = float(plans[0].spent_share.max())
            if share > best_share:
                best = plans
                best_share = share
            # One group is enough: another's ε may follow from that one's, and stay below.
            if best_share >= ENOUGH:
                break
        # By what it was off, and the margin once more, since ε does not follow the aim exactly.
        back = np.maximum(back + overspending + MARGIN, 0.0)
    if not best:
        raise InfeasibleError(
            f"search: no plan of strategy {strategy.name} was found that keeps each promise with "
            f"{runs.mean:g} runs; ask for fewer runs, more records or more noise on the score"
        )
    return best


def _describe_choice(plan: BoundPlan, strategy: Strategy, request: Request) -> str:
    """Return the cost of choosing among runs, in words."""
    assert plan.selection is not None  # set when the plan was made
    single = strategy.plan(request).stages[0]
    factor = plan.noise_stddev / plan.clip_norm / (single.noise_stddev / request.clip_norm)
    runs = plan.selection.runs.mean
    basis = "by a noisy score that is paid for"
    if plan.selection.score_noise is None:
        basis = "on public rows"
    return (
        f"the model is the best of a random number of runs, {runs:g} on average, chosen {basis}: "
        f"every epsilon holds with the choosing inside, which takes {factor:.3g} times the noise "
        "of one run; no other model, score or number of runs may be released"
    )


def _make_plans(
    strategy: Strategy, requests: Sequence[Request], runs: Runs, score_noise: float | None
) -> tuple[BoundPlan, ...]:
    """Return the strategy's plan for each request, with the others' stages in its selection."""
    budgets = requests[0].budgets
    assert isinstance(budgets, Budgets)  # as given
    plans = [strategy.plan(request) for request in requests]
    if any(len(plan.stages) > 1 or plan.worst_paths is not None for plan in plans):
        raise UnsupportedError(f"search: strategy {strategy.name} trains in several stages")
    stages = [plan.stages[0] for plan in plans]
    # No ε can be aimed at by whole numbers of steps.
    if any(stage.times is not None for stage in stages):
        raise UnsupportedError(
            f"search: strategy {strategy.name} takes whole numbers of steps; choose sample"
        )
    selected = []
    for number, plan in enumerate(plans):
        alternatives = (*stages[:number], *stages[number + 1 :])
        selection = Selection(runs, score_noise, alternatives)
        selected.append(replace(plan, selection=selection).bind(budgets))
    return tuple(selected)
