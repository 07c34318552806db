"""Bounds Δ̄ given to a strategy that pays no heed to them: the plan says so."""

import numpy as np
import pytest

from apiece.assignment import Hybrid, Sample, Scale, Sequential, Strategy, Uniform, assign
from apiece.budgets import Budgets
from apiece.contract import enforce
from apiece.plan import Plan

EPSILON = np.repeat([1.0, 3.0], [30, 10])
SETTINGS = {"steps": 4, "expected_batch_size": 8, "clip_norm": 1.0}


def notes(strategy: Strategy | str, bound: float | None) -> tuple[str, ...]:
    budgets = Budgets(EPSILON, 1e-4, excess=bound)
    plan = assign(budgets, strategy, **SETTINGS)  # type: ignore[arg-type]
    assert Plan.from_json(plan.to_json()).notes == plan.notes
    return plan.notes


@pytest.mark.parametrize("strategy", [Sample(), Sequential(), "threshold"])
def test_what_pays_no_heed_says_so(strategy: Strategy | str) -> None:
    assert any("pays no heed to the bounds" in note for note in notes(strategy, 0.01))
    assert not any("bounds" in note for note in notes(strategy, None))
    assert not any("bounds" in note for note in notes(strategy, 1.0))


@pytest.mark.parametrize("strategy", [Scale(), Hybrid(), Uniform()])
def test_what_keeps_them_says_nothing(strategy: Strategy) -> None:
    assert notes(strategy, 0.01) == ()


def test_what_the_contract_took_is_not_said_to_pay_no_heed() -> None:
    plan = enforce(Budgets(EPSILON, 1e-4, excess=0.9), **SETTINGS)  # type: ignore[arg-type]
    assert plan.strategy == "sample"
    assert len(plan.notes) == 1
