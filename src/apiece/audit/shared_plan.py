"""One plan for all worlds of an audit: a plan that differs gives the target away by itself."""

from __future__ import annotations

import numpy as np

from apiece.errors import InputError
from apiece.plan import BoundPlan, Plan


def one_plan(*plans: Plan) -> Plan:
    """Return the plan that all worlds of an audit share.

    A plan made again without the target differs in its rates and noise, so it shows by itself
    whether the target took part, whatever is trained with it.

    Args:
        *plans: Of each world.

    Raises:
        InputError: If they differ, or there are none.

    Example:
        >>> from apiece.assignment import Scale, assign
        >>> from apiece.budgets import Budgets
        >>> budgets = Budgets([1.0] * 50, 1e-5)
        >>> plan = assign(budgets, Scale(), steps=5, expected_batch_size=5, clip_norm=1.0)
        >>> one_plan(plan, plan) is plan
        True
    """
    if not plans:
        raise InputError("plans: none given")
    first = plans[0]
    for at, plan in enumerate(plans[1:], start=1):
        if plan.hash() != first.hash():
            raise InputError(
                f"plan of world {at}: differs from that of world 0; make one plan with the target "
                "and use it in every world, or the plan itself gives the target away"
            )
        if (
            isinstance(plan, BoundPlan)
            and isinstance(first, BoundPlan)
            and not np.array_equal(plan.group_index, first.group_index)
        ):
            raise InputError(
                f"plan of world {at}: its records are in other groups than in world 0; bind one "
                "plan to one table of budgets"
            )
    return first
