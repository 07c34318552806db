"""Plans that the tests of strategies share."""

from apiece.assignment import Strategy, assign
from apiece.budgets import Budgets
from apiece.plan import BoundPlan

BUDGETS = Budgets.from_groups([("s", 1, 0.34), ("m", 2, 0.43), ("w", 3, 0.23)], 5000, 1e-5)
SETTINGS = {"steps": 200, "expected_batch_size": 100, "clip_norm": 0.5}


def plan_of(strategy: Strategy, budgets: Budgets = BUDGETS, **changes: float) -> BoundPlan:
    return assign(budgets, strategy, **(SETTINGS | changes))  # type: ignore[arg-type]
