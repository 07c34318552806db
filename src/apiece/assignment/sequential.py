"""Sequential: one group after the other, each by standard DP-SGD at its own budget."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from apiece._types import Integers
from apiece.assignment.request import Request, Strategy
from apiece.assignment.solve import solve_noise
from apiece.errors import InfeasibleError, unknown
from apiece.plan import Plan
from apiece.plan.parts import Stage

ORDERS = ("strictest", "loosest")
# A factor that outweighs the rounding of a product.
ROUND_UP = 1 + 1e-12


@dataclass(frozen=True, slots=True)
class Sequential(Strategy):
    """A stage a group: one model is trained on each group in turn, at that group's budget.

    The steps are split in proportion to the groups' sizes, at least one each. A stage's expected
    batch size is the one asked or, in a smaller group, the whole group. Each record's curve is that
    of its own stage.

    Attributes:
        order: Which group comes first, "strictest" or "loosest"; the first did better in Boenisch
            et al. 2023.

    Raises:
        InputError: For another order.

    References:
        Boenisch et al. 2023, App. E.2.

    Example:
        >>> from apiece import Budgets, Sequential, assign
        >>> asked = Budgets([1.0] * 50 + [3.0] * 50, 1e-5)
        >>> plan = assign(asked, Sequential(), steps=10, expected_batch_size=10, clip_norm=1.0)
        >>> [stage.sampling_probability.tolist() for stage in plan.stages]
        [[0.2, 0.0], [0.0, 0.2]]
    """

    name: ClassVar[str] = "sequential"
    order: str = "strictest"

    def __post_init__(self) -> None:
        if self.order not in ORDERS:
            raise unknown("Sequential order", self.order, ORDERS)

    def plan(self, request: Request) -> Plan:
        """Return the plan with a stage a group."""
        groups = request.groups
        steps = _split_steps(request.steps, groups.records)
        # A group smaller than a batch takes part whole, at rate 1.
        batch = np.minimum(request.expected_batch_size, groups.records)
        q = batch / groups.records
        z = solve_noise(request, request.target, groups.delta, q, steps=steps)
        stddev = z * request.clip_norm * ROUND_UP
        clip_norms = np.full(len(groups), request.clip_norm)
        # Row g of the diagonal matrix: in stage g, group g alone takes part.
        stages = [
            Stage(int(steps[g]), float(batch[g]), float(stddev[g]), rates, clip_norms)
            for g, rates in enumerate(np.diag(q))
        ]
        if self.order == "loosest":
            stages.reverse()
        return request.plan(self.name, tuple(stages))


def _split_steps(steps: int, records: Integers) -> Integers:
    """Return each group's steps: one for each, the others in proportion to `records`.

    >>> _split_steps(10, np.array([100, 1, 899])).tolist()
    [2, 1, 7]
    """
    if steps < records.size:
        raise InfeasibleError(
            f"steps = {steps}: there are {records.size} groups, one after the other; give at "
            f"least {records.size} steps or fewer groups"
        )
    free = steps - records.size
    exact = records / records.sum() * free
    parts = np.floor(exact).astype(np.int64)
    # The steps that rounding down left over go to the largest remainders.
    unassigned = free - int(parts.sum())
    by_remainder = np.argsort(parts - exact, kind="stable")
    parts[by_remainder[:unassigned]] += 1
    return np.asarray(parts + 1)
