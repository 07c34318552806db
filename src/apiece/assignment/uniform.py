"""Uniform: one budget for all, as without individualization."""

from dataclasses import dataclass, replace
from functools import partial
from typing import ClassVar

from apiece import _check
from apiece.assignment.request import Request, Strategy
from apiece.assignment.solve import find_level_noise
from apiece.errors import BudgetError, unknown
from apiece.plan import Plan


@dataclass(frozen=True, slots=True)
class Uniform(Strategy):
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
        >>> from apiece import Budgets, Uniform, assign
        >>> asked = Budgets([1.0] * 50 + [3.0] * 50, 1e-5)
        >>> plan = assign(asked, Uniform(), steps=10, expected_batch_size=10, clip_norm=1.0)
        >>> plan.stages[0].sampling_probability.tolist()
        [0.1, 0.1]
    """

    name: ClassVar[str] = "uniform"
    budget: str | float = "strictest"

    def __post_init__(self) -> None:
        if not isinstance(self.budget, str):
            _check.put(self, budget=partial(_check.positive, error=BudgetError))
        elif self.budget not in ("strictest", "loosest"):
            raise unknown("Uniform budget", self.budget, ["strictest", "loosest"])

    def plan(self, request: Request) -> Plan:
        """Return the plan of one noise and one rate."""
        groups = request.groups
        z = find_level_noise(request, self.budget, request.target)
        plan = request.one_stage(self.name, z * request.clip_norm, request.mean_probability)
        broken = ~(plan.epsilon_spent <= groups.epsilon)
        # At the strictest level a group that spends too much, by rounding, is aimed lower by
        # `assign`.
        if not broken.any() or self.budget == "strictest":
            return plan
        records = int(groups.records[broken].sum())
        names = groups.name[broken]
        objection = (
            f"Uniform(budget={self.budget!r}) spends more than {records} "
            f"records allow ({names.size} groups, the first is {names[0]})"
        )
        return replace(plan, objections=(objection,))
