"""What a plan has spent by a step: a function of the plan alone."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from apiece import _check
from apiece.plan import Plan


@dataclass(frozen=True, slots=True)
class Spent:
    """One group's ε at its δ: what it asked, and an upper bound on what is spent so far.

    Args:
        group: Its name.
        asked: The ε that it asked.
        spent: At most this much of it is spent.
    """

    group: str
    asked: float
    spent: float


class PlannedSpending:
    """What a run of `plan` has spent after some of its steps, as planned and not as realised.

    It depends on the plan and the number of the step only: who was sampled, and how large their
    gradients were, has no part in it, so it may be shown to anyone who may see the plan.

    Args:
        plan: That is run.
        points: At how many steps, evenly spread, it is computed; between these the value of the
            next one is given. Each takes a privacy curve a group, once.

    Raises:
        InputError: For `points` below 1.

    Guarantee:
        What is given for a step is an upper bound on what the group has spent by then.

    Example:
        >>> from apiece import Budgets, Scale, assign
        >>> budgets = Budgets.from_groups([("strict", 1.0, .5), ("weak", 3.0, .5)], 1000, 1e-5)
        >>> plan = assign(budgets, Scale(), steps=10, expected_batch_size=100, clip_norm=1.0)
        >>> strict, weak = PlannedSpending(plan).at(10)
        >>> strict.group, strict.spent <= 1.0, PlannedSpending(plan).at(5)[0].spent < strict.spent
        ('strict', True, True)
    """

    def __init__(self, plan: Plan, *, points: int = 20) -> None:
        self._plan = plan.public()
        self._points = min(_check.count("points", points), plan.steps)
        order = np.argsort(plan.budget_groups.epsilon, kind="stable")
        self._groups = sorted({int(order[0]), int(order[-1])}, key=list(order).index)
        self._known: dict[int, tuple[Spent, ...]] = {}

    def at(self, step: int) -> tuple[Spent, ...]:
        """Return what the strictest and the loosest group have spent after `step` steps.

        Args:
            step: Updates made; beyond the plan's last one as at it.

        Raises:
            InputError: For a step below 0.
        """
        steps = self._plan.steps
        point = -(-min(_check.count("step", step, least=0), steps) * self._points // steps)
        if point not in self._known:
            self._known[point] = self._compute(-(-point * steps // self._points))
        return self._known[point]

    def _compute(self, steps: int) -> tuple[Spent, ...]:
        budgets, spent = self._plan.budget_groups, [0.0] * len(self._groups)
        if steps:
            part = _first(self._plan, steps)
            spent = [
                float(part.curve(g).epsilon(float(budgets.delta[g])).upper) for g in self._groups
            ]
        return tuple(
            Spent(str(budgets.name[g]), float(budgets.epsilon[g]), value)
            for g, value in zip(self._groups, spent, strict=True)
        )


def _first(plan: Plan, steps: int) -> Plan:
    """Return the plan of the first `steps` steps."""
    stages, left = [], steps
    for stage in plan.stages:
        if left > 0:
            stages.append(replace(stage, steps=min(left, stage.steps)))
        left -= stage.steps
    paths = None if plan.worst_paths is None else plan.worst_paths[:, : len(stages)]
    return replace(plan, stages=tuple(stages), worst_paths=paths)
