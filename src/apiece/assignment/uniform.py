"""Uniform: one budget for all, as without individualization."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from apiece import _check
from apiece.assignment.request import Request
from apiece.assignment.solve import loosest, noise, strictest
from apiece.errors import BudgetError, unknown
from apiece.plan import Plan


@dataclass(frozen=True, slots=True)
class Uniform:
    """Every record gets the same noise and rate, as in standard DP-SGD.

    Attributes:
        budget: "strictest" keeps everyone's promise, at the cost of all who would allow more.
            "loosest" trains at the largest budget, and a number at that ε, with each record's δ.
            Where that is more than a record allows, the plan carries objections and is not for
            release: it is the best case in comparisons.

    Raises:
        BudgetError: For a number that is not positive.
        InputError: For another word.

    References:
        Boenisch et al. 2023, §5 (the two baselines).

    Example:
        >>> from apiece import Budgets, assign
        >>> asked = Budgets([1.0] * 50 + [3.0] * 50, 1e-5)
        >>> plan = assign(asked, Uniform(), steps=10, expected_batch_size=10, clip_norm=1.0)
        >>> plan.stages[0].sampling_probability.tolist()
        [0.1, 0.1]
    """

    name: ClassVar[str] = "uniform"
    budget: str | float = "strictest"

    def __post_init__(self) -> None:
        if isinstance(self.budget, str):
            if self.budget not in ("strictest", "loosest"):
                raise unknown("Uniform budget", self.budget, ["strictest", "loosest"])
        else:
            number = _check.positive("Uniform budget", self.budget, error=BudgetError)
            object.__setattr__(self, "budget", number)

    def plan(self, request: Request) -> Plan:
        """Return the plan of one noise and one rate.

        Args:
            request: The budgets and the settings of the training.
        """
        groups, q = request.groups, request.mean_probability
        if isinstance(self.budget, str):
            epsilon, delta = request.target, groups.delta
            # The noise of all is that of a budget that no other is below (above) in both ε and δ.
            front = (strictest if self.budget == "strictest" else loosest)(epsilon, delta)
            needed = noise(request, epsilon[front], delta[front], q)
            z = float(needed.max() if self.budget == "strictest" else needed.min())
        else:
            level = np.array([self.budget])
            z = float(noise(request, level, groups.delta.min(keepdims=True), q)[0])
        ones = np.ones(len(groups))
        plan = request.one_stage(
            self.name, z * request.clip_norm, q * ones, request.clip_norm * ones
        )
        broken = ~(plan.epsilon_spent <= groups.epsilon)
        if not broken.any() or self.budget == "strictest":
            return plan
        worst = str(groups.name[int(np.flatnonzero(broken)[0])])
        objection = (
            f"Uniform(budget={self.budget!r}) spends more than {int(groups.records[broken].sum())} "
            f"records allow ({int(broken.sum())} groups, the first is {worst})"
        )
        return request.one_stage(
            self.name,
            z * request.clip_norm,
            q * ones,
            request.clip_norm * ones,
            objections=(objection,),
        )
