"""Budgets that are allowed and look like a mistake, told from the sizes of groups alone."""

from __future__ import annotations

import math

from apiece.budgets.groups import BudgetGroups
from apiece.errors import BudgetError

LARGE = 10.0  # from here on a promise is weak (Ponomareva et al. 2023)
ABSURD = 1000.0
FEW_RECORDS = 100
SMALL_GROUP = 10  # people in a group of fewer can be told from the plan


def refuse_absurd(epsilon: float) -> float:
    """Return `epsilon`, unless it is so large that it promises nothing.

    Args:
        epsilon: Of a budget.

    Raises:
        BudgetError: Above 1000.

    Example:
        >>> refuse_absurd(8.0)
        8.0
    """
    if ABSURD < epsilon < math.inf:
        raise BudgetError(
            f"epsilon = {epsilon:g}: above {ABSURD:g} it promises nothing; where people set no "
            "limit, write inf and name the number that it is read as, as in --no-limit-cap 8"
        )
    return epsilon


def doubts(groups: BudgetGroups) -> list[str]:
    """Return what looks like a mistake in budgets that are allowed, one line each.

    Only what a plan shows as well is looked at: the groups, their budgets and sizes.

    Args:
        groups: Of the population.

    Raises:
        BudgetError: As `refuse_absurd` does.

    Example:
        >>> import numpy as np
        >>> one = np.array([1.0])
        >>> doubts(BudgetGroups(np.array(["a"]), 80 * one, 1e-6 * one, None, np.array([1000])))
        ['the largest epsilon is 80; above 10 a promise is weak: if these are percent, divide
        by 100']
    """
    return [*doubts_of_values(groups), *_doubts_of_sizes(groups)]


def doubts_of_values(groups: BudgetGroups) -> list[str]:
    """Return those of `doubts` that are about the largest ε and δ; no size of a group is in them.

    Args:
        groups: Of the population.

    Raises:
        BudgetError: As `refuse_absurd` does.

    Example:
        >>> import numpy as np
        >>> one = np.array([1.0])
        >>> doubts_of_values(BudgetGroups(np.array(["a"]), one, 1e-6 * one, None, np.array([9])))
        []
    """
    largest, delta = refuse_absurd(float(groups.epsilon.max())), float(groups.delta.max())
    records = int(groups.records.sum())
    found = []
    if largest > LARGE:
        found.append(
            f"the largest epsilon is {largest:g}; above {LARGE:g} a promise is weak: if these are "
            "percent, divide by 100"
        )
    if delta * records >= 1:
        found.append(
            f"delta = {delta:g} is at least 1/n = {1 / records:.3g} for n = {records} records: "
            "publishing one person in n at random would keep it; give "
            f"{10 ** math.floor(math.log10(0.1 / records)):g} or less"
        )
    return found


def _doubts_of_sizes(groups: BudgetGroups) -> list[str]:
    records, smallest = int(groups.records.sum()), int(groups.records.min())
    found = []
    if records < FEW_RECORDS:
        found.append(
            f"{records} records: noise that hides one of so few hides what they have in common; "
            f"expect nothing useful of fewer than {FEW_RECORDS}"
        )
    if smallest < SMALL_GROUP:
        small = int((groups.records < SMALL_GROUP).sum())
        found.append(
            f"{small} of {len(groups)} groups have fewer than {SMALL_GROUP} records, the smallest "
            f"{smallest}: plan and report name their budgets, which tells who they are; round "
            "budgets down to fewer distinct values"
        )
    return found


def cap_note(no_limit_cap: float) -> str:
    """Return the sentence by which a plan states what "no limit" was read as.

    Args:
        no_limit_cap: The steward's cap.

    Example:
        >>> cap_note(8)
        'whoever set no limit is promised epsilon = 8, a cap set by the steward'
    """
    return f"whoever set no limit is promised epsilon = {no_limit_cap:g}, a cap set by the steward"
