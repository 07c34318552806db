"""What a plan leaves unspent of what people asked: the batch that avoids it, and a warning."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import numpy as np

from apiece import _check
from apiece._text import per_cent
from apiece.assignment.request import Strategy
from apiece.budgets import BudgetGroups
from apiece.errors import UnspentBudgetWarning
from apiece.numerics.gaussian import gaussian_mu_below
from apiece.plan import Plan

# Strategies that give a budget by how often a record takes part: nobody can more often than always.
BY_RATE: Final = ("sample", "allocate", "jorgensen", "rounds", "adapdp")
# Strategies that say by their name that what is above a common level is not used.
COMMON_LEVEL: Final = ("uniform", "threshold")
# The share of its ε below which a group's shortfall is a warning.
WARNED: Final = 0.8
# The default batch as a share of that at which the loosest budget takes part in every step.
ROOM: Final = 0.95
# The value of μ²/T of the loosest budget beyond which a smaller batch does not help any more.
MAX_LOSS: Final = 3.0


def default_batch(
    groups: BudgetGroups, strategy: Strategy | str, *, steps: int, most: float
) -> float:
    """Return the expected batch size where none is given: the largest at which each ε is spent.

    It depends on public numbers alone: how many ask which budget, the strategy and the steps.

    Args:
        groups: The distinct budgets.
        strategy: A strategy or its name. For those that give a budget by rates the batch is at most
            that at which the loosest budget takes part in every step.
        steps: How many updates, T.
        most: The most records that are expected in a step.

    Raises:
        InputError: For steps that are no whole number of at least 1.
    """
    records = int(groups.records.sum())
    largest = min(float(records), most)
    # What is no strategy is refused by `assign`.
    name = strategy if isinstance(strategy, str) else getattr(strategy, "name", None)
    mu = gaussian_mu_below(groups.epsilon, groups.delta)
    loosest_mu = float(mu.max())
    if name not in BY_RATE or float(mu.min()) == loosest_mu:
        return largest
    # A record that joins T steps at rate q has the loss of a Gaussian with μ = q·√(T(e^(1/σ²) − 1))
    # for many steps (Bu et al. 2020), and at q = 1 that of μ = √T/σ. So where the loosest budget
    # has q = 1, the others' rates are their μ over that of the loosest, and over the root of the
    # two losses' ratio.
    loss = min(loosest_mu**2 / _check.count("steps", steps), MAX_LOSS)
    discount = math.sqrt(math.expm1(loss) / loss)
    mean_rate = float(groups.records @ mu) / records / loosest_mu / discount
    batch = float(math.floor(ROOM * mean_rate * records))
    return min(largest, max(batch, 1.0))


def describe_shortfall(plan: Plan) -> str | None:
    """Return a warning where a group can spend less than .8 of what it asked; else None.

    Budgets with a bound on the excess have asked for less than their ε, and a plan by a common
    level says so by its strategy's name.
    """
    if not plan.releasable or plan.strategy in COMMON_LEVEL:
        return None
    groups = plan.budget_groups
    share = plan.spent_share
    below = share < WARNED
    if groups.excess is not None:
        below &= groups.excess >= 1
    if not below.any():
        return None
    worst = int(np.argmin(np.where(below, share, np.inf)))
    return (
        f"plan: {int(below.sum())} of {len(groups)} groups can spend less than {WARNED:g} of what "
        f"they asked (group {groups.name[worst]}: {per_cent(share[worst])} of epsilon = "
        f"{groups.epsilon[worst]:g}); {_suggest_remedy(plan)}"
    )


@contextmanager
def silence_shortfalls() -> Iterator[None]:
    """Warn of no shortfall within this context, where the caller shows it in another way."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UnspentBudgetWarning)
        yield


def warn_of_shortfall(plan: Plan) -> None:
    """Warn the caller of the caller where a group can spend less than .8 of what it asked."""
    text = describe_shortfall(plan)
    if text is not None:
        warnings.warn(text, UnspentBudgetWarning, stacklevel=3)


def _suggest_remedy(plan: Plan) -> str:
    """Return the setting that lets these groups spend what they asked, in words."""
    # Upsampling is a strategy for the teachers of PATE.
    if plan.strategy == "upsample":
        return "strategy weight lets them"
    if plan.strategy == "scale":
        return "a bound on the excess or a schedule holds them back: ask for less, or drop it"
    batch = max(stage.expected_batch_size for stage in plan.stages)
    enough = default_batch(plan.budget_groups, plan.strategy, steps=plan.steps, most=batch)
    if enough < batch:
        return f"an expected batch size of at most {enough:g} lets them, or strategy scale"
    if plan.strategy in ("sample", "allocate"):
        return "more steps let them, or strategy scale"
    return "strategy scale lets them"
