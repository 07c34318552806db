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

from apiece.assignment.front import strategy_named
from apiece.assignment.request import Request, Strategy
from apiece.assignment.solve import require_few
from apiece.assignment.unspent import warn_of_shortfall
from apiece.budgets import Budgets
from apiece.errors import InfeasibleError, InputError, UnsupportedError
from apiece.mechanisms import Runs
from apiece.plan import BoundPlan, Selection

ROUNDS = 8
ENOUGH = 0.997  # of what is asked, spent by the group that is nearest to it
MARGIN = 0.002  # of log ε, below what is asked
MANY = 50  # distinct budgets: each takes a curve a round and a setting


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
        >>> from apiece.assignment import assign_tuned
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
    chosen = strategy_named(strategy) if isinstance(strategy, str) else strategy
    asked, requests = budgets.groups.epsilon, [
        Request(budgets, **{"clip_norm": clip_norm, **setting}) for setting in settings
    ]  # fmt: skip
    back, nearest = np.full(asked.shape, np.log(1.7)), 0.0
    best: tuple[BoundPlan, ...] = ()
    for _ in range(ROUNDS):
        plans = _selected(chosen, [replace(r, back=back) for r in requests], runs, score_noise)
        spent = plans[0].epsilon_spent
        with np.errstate(divide="ignore"):  # who takes no part is aimed at as before
            over = np.where(spent > 0, np.log(spent / asked), -MARGIN)
        if (over <= 0).all() and (share := float(plans[0].spent_share.max())) > nearest:
            best, nearest = plans, share
        # A group whose ε another one's decides stays below what it asked.
        if nearest >= ENOUGH and (over <= 0).all():
            break
        back = np.maximum(back + over + MARGIN, 0.0)
    if not best:
        raise InfeasibleError(
            f"search: no plan of strategy {chosen.name} was found that keeps each promise with "
            f"{runs.mean:g} runs; ask for fewer runs, more records or more noise on the score"
        )
    noted = tuple(
        replace(plan, notes=(*plan.notes, _note(plan, chosen, r)))
        for plan, r in zip(best, requests, strict=True)
    )
    for plan in noted:  # each from its own numbers
        plan.require()
    warn_of_shortfall(noted[0])  # all of them have one cost
    return noted


def _note(plan: BoundPlan, strategy: Strategy, request: Request) -> str:
    """Return what choosing costs, in words."""
    assert plan.selection is not None  # set when the plan was made
    once = strategy.plan(request).stages[0]
    more = plan.noise_stddev / plan.clip_norm / (once.noise_stddev / request.clip_norm)
    runs, scored = plan.selection.runs.mean, plan.selection.score_noise
    by = "on public rows" if scored is None else "by a noisy score that is paid for"
    return (
        f"the model is the best of a random number of runs, {runs:g} on average, chosen {by}: "
        f"every epsilon holds with the choosing inside, which takes {more:.3g} times the noise "
        "of one run; no other model, score or number of runs may be released"
    )


def _selected(
    strategy: Strategy, requests: Sequence[Request], runs: Runs, score_noise: float | None
) -> tuple[BoundPlan, ...]:
    """Return the strategy's plan of each request, each with the others beside it."""
    budgets = requests[0].budgets
    assert isinstance(budgets, Budgets)  # as given
    plans = [strategy.plan(request) for request in requests]
    if any(len(plan.stages) > 1 or plan.worst_paths is not None for plan in plans):
        raise UnsupportedError(f"search: strategy {strategy.name} trains in several stages")
    stages = [plan.stages[0] for plan in plans]
    if any(stage.times is not None for stage in stages):  # no ε can be aimed at by whole numbers
        raise UnsupportedError(
            f"search: strategy {strategy.name} takes whole numbers of steps; choose sample"
        )
    others = [(*stages[:k], *stages[k + 1 :]) for k in range(len(stages))]
    return tuple(
        replace(plan, selection=Selection(runs, score_noise, own)).bind(budgets)
        for plan, own in zip(plans, others, strict=True)
    )
