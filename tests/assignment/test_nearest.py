"""Requests at the edge, for every strategy: a right plan, or a typed error that says what to do."""

import re
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pytest

from apiece.assignment import Correlated, Hybrid, Strategy, Uniform, assign
from apiece.assignment.front import STRATEGIES
from apiece.assignment.request import Request
from apiece.assignment.solve import require_rates
from apiece.budgets import Budgets
from apiece.errors import ApieceError, InfeasibleError, RangeError
from apiece.plan import Plan
from refusals import refused

EDGES: dict[str, tuple[Budgets, dict[str, Any]]] = {
    "one record": (Budgets([2.0], 1e-5), {"steps": 20, "expected_batch_size": 1}),
    "half a record": (Budgets([2.0], 1e-5), {"steps": 20, "expected_batch_size": 0.5}),
    "all budgets equal": (Budgets([1.0] * 100, 1e-5), {"steps": 20, "expected_batch_size": 10}),
    "the whole data a batch": (
        Budgets([1.0] * 50 + [2.0] * 50, 1e-5),
        {"steps": 20, "expected_batch_size": 100},
    ),
    "one step": (
        Budgets([1.0] * 50 + [2.0] * 50, 1e-5),
        {"steps": 1, "expected_batch_size": 20},
    ),
    "from 0.01 to 1000": (
        Budgets([0.01] * 300 + [1.0] * 400 + [1000.0] * 300, 1e-5),
        {"steps": 50, "expected_batch_size": 200},
    ),
    "hardly any budget": (
        Budgets([1e-6] * 50 + [1.0] * 50, 1e-6),
        {"steps": 200, "expected_batch_size": 20},
    ),
    "a large delta": (
        Budgets([0.1] * 50 + [2.0] * 50, 0.3),
        {"steps": 10, "expected_batch_size": 20},
    ),
}
HEAVY = ("from 0.01 to 1000", "hardly any budget", "a large delta", "one step")
QUICK = ("uniform", "scale", "threshold", "sequential")
REMEDIES = r"ask for|give|lower|raise|use|round|drop"


def cases() -> list[Any]:
    return [
        pytest.param(
            edge, name, marks=[pytest.mark.slow] if edge in HEAVY and name not in QUICK else []
        )
        for edge in EDGES
        for name in STRATEGIES
    ]


def strategy_for(name: str) -> Strategy:
    return Hybrid(0.01) if name == "hybrid" else STRATEGIES[name]()


@pytest.mark.parametrize(("edge", "name"), cases())
def test_a_right_plan_or_an_error_with_a_remedy(edge: str, name: str) -> None:
    budgets, settings = EDGES[edge]
    try:
        noise = Correlated() if name == "epochs" else None
        strategy = strategy_for(name)
        plan = assign(budgets, strategy, clip_norm=1.0, method="pld", noise=noise, **settings)
    except ApieceError as error:
        message = str(error)
        assert "\n" not in message
        assert re.search(REMEDIES, message), message
        assert re.search(r"\d", message), message  # the value that would do
        return
    assert plan.records == len(budgets)
    if not plan.releasable:
        assert plan.objections
        return
    verification = plan.verify(budgets)
    assert verification.ok
    assert verification.epsilon_spent.max() > 0
    assert np.isfinite(verification.epsilon_spent).all()


@dataclass(frozen=True)
class OnlyUpTo100:
    """A strategy that can be computed for small budgets only."""

    name: ClassVar[str] = "only up to 100"

    def plan(self, request: Request) -> Plan:
        if request.groups.epsilon.max() > 100:
            raise RangeError("losses are past the numerical range; use more noise")
        return Uniform().plan(request)


def test_out_of_range_names_the_group_and_what_can_be_planned_for() -> None:
    budgets = Budgets([1.0] * 50 + [1000.0] * 50, 1e-5)
    settings: dict[str, Any] = {"steps": 20, "expected_batch_size": 10, "clip_norm": 1.0}
    wanted = r"group epsilon=1000 .* budgets\.at_most\(62.5\)"
    with pytest.raises(InfeasibleError, match=wanted):
        assign(budgets, OnlyUpTo100(), **settings)
    assert assign(budgets.at_most(62.5), OnlyUpTo100(), **settings).verify(budgets).ok


def test_a_budget_that_allows_no_rate_is_told_what_would() -> None:
    budgets = Budgets([0.05] * 50 + [6.0] * 50, 1e-8)
    request = Request(budgets, 100, 10.0, 1.0, "rdp")
    with refused(InfeasibleError, "epsilon=0.05", "epsilon"):
        require_rates(request, np.array([0.0, 0.1]), 0.75)
    require_rates(request, np.array([1e-3, 0.1]), 0.75)
