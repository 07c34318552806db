"""JorgensenSampling: one coin a record, and what it lets it spend."""

import math

import pytest

from apiece.assignment import JorgensenSampling

from .plans import BUDGETS, plan_of


def test_jorgensen_spends_and_is_sound() -> None:
    plan = plan_of(JorgensenSampling(threshold=2.0))
    verification = plan.verify(BUDGETS)
    assert verification.ok
    joins = plan.stages[0].participation
    assert joins is not None
    assert joins[1] == joins[2] == 1
    # the formula holds for pure ε; with δ > 0 a little more can be spent
    assert joins[0] >= math.expm1(1) / math.expm1(2)
    assert (verification.epsilon_spent / verification.epsilon)[:2] == pytest.approx(1, abs=5e-3)
