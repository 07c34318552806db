"""What a request says of itself, and which groups of a plan cannot spend what they allow."""

import numpy as np
import pytest

from apiece.assignment import (
    JorgensenSampling,
    Sample,
    Scale,
    Sequential,
    Strategy,
    Threshold,
    Uniform,
    assign,
)
from apiece.assignment.request import BACK, Request
from apiece.budgets import Budgets


def saturated(strategy: Strategy, budgets: Budgets, *, steps: int, batch: float) -> list[bool]:
    settings = {"steps": steps, "expected_batch_size": batch, "clip_norm": 1.0}
    plan = assign(budgets, strategy, **settings)  # type: ignore[arg-type]
    spends_all = plan.epsilon_spent >= 0.99 * plan.budget_groups.epsilon
    assert not (plan.saturated & spends_all).any()
    return plan.saturated.tolist()


def test_in_batches_of_all_those_who_allow_more_cannot_spend_it() -> None:
    budgets = Budgets([1.0] * 50 + [2.0] * 50, 1e-5)
    assert saturated(Sample(), budgets, steps=20, batch=100) == [False, True]
    # by Scale they have less noise of their own
    assert saturated(Scale(), budgets, steps=20, batch=100) == [False, False]
    assert saturated(Sample(), Budgets([1.0] * 9, 1e-5), steps=20, batch=9) == [False]


def test_a_rate_of_one_beside_others_that_are_lower() -> None:
    budgets = Budgets([0.3] * 50 + [60.0] * 50, 1e-5)
    assert saturated(Sample(), budgets, steps=100, batch=60) == [False, True]


@pytest.mark.parametrize("strategy", [Scale(), Uniform(), Sequential()], ids=repr)
def test_a_rate_below_delta_costs_nothing_at_any_noise(strategy: Strategy) -> None:
    assert saturated(strategy, Budgets([1.0] * 100, 0.3), steps=1, batch=20) == [True]
    # the same rate at a δ below it
    assert saturated(strategy, Budgets([1.0] * 100, 0.1), steps=1, batch=20) == [False]


@pytest.mark.parametrize("strategy", [Threshold(2.0), JorgensenSampling(2.0)], ids=repr)
def test_who_is_left_out_or_above_the_threshold_is_not_at_an_end(strategy: Strategy) -> None:
    budgets = Budgets([1.0] * 50 + [4.0] * 50, 1e-5)
    assert saturated(strategy, budgets, steps=5, batch=20) == [False, False]


def test_broken_promises_are_aimed_lower_and_kept_ones_stay() -> None:
    request = Request(Budgets([1.0, 2.0, 3.0], 1e-5), 10, 1.0, 1.0)
    lower = request.lower(np.array([1.01, 2.0, 0.5]), 0)
    assert lower.target == pytest.approx([np.exp(-BACK) / 1.01**2, 2.0, 3.0])
    again = lower.lower(np.array([1.01, 2.0, 3.1]), 3)
    assert (again.target < lower.target).tolist() == [True, False, True]
    assert request.target.tolist() == [1.0, 2.0, 3.0]
