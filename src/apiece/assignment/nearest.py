"""What to ask for instead, where a strategy's mechanisms are past the numerical range."""

from __future__ import annotations

import dataclasses

import numpy as np

from apiece.assignment.request import Request, Strategy
from apiece.errors import InfeasibleError, RangeError


def out_of_range(strategy: Strategy, request: Request, reason: str) -> str:
    """Return a message that names the extreme group and the nearest cap on ε found feasible.

    Caps are halved from the largest ε down, until the strategy can plan under one.
    """
    groups = request.groups
    top = int(np.argmax(groups.epsilon))
    cap, least = float(groups.epsilon[top]) / 2, float(groups.epsilon.min())
    begin = f"strategy {strategy.name}: {reason.partition(';')[0]}; "
    while cap > least:
        try:
            lower = dataclasses.replace(request, budgets=request.budgets.at_most(cap))
            plan = strategy.plan(lower)
            feasible = bool((plan.epsilon_spent <= plan.budget_groups.epsilon).all())
        except (RangeError, InfeasibleError):
            feasible = False
        if feasible:
            return begin + (
                f"group {groups.name[top]} asks epsilon = {groups.epsilon[top]:g}, about {cap:g} "
                f"can be planned for; lower it, with budgets.at_most({cap:g})"
            )
        cap /= 2
    low = int(np.argmin(groups.delta))
    return begin + (
        f"group {groups.name[low]} asks epsilon = {groups.epsilon[low]:g} at delta = "
        f"{groups.delta[low]:g}; ask for a larger delta or another strategy"
    )
