"""What a request says of itself, and which groups of a plan do not spend what they asked."""

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
from apiece.plan.parts import UNSPENT


def unspent(
    strategy: Strategy, budgets: Budgets, *, method: str = "pld", steps: int, batch: float
) -> list[bool]:
    """Return which groups spend less than 95 % of what they asked, all of which are to be noted."""
    settings = {"steps": steps, "expected_batch_size": batch, "clip_norm": 1.0, "method": method}
    plan = assign(budgets, strategy, **settings)  # type: ignore[arg-type]
    assert plan.spent_share.tolist() == (plan.epsilon_spent / plan.budget_groups.epsilon).tolist()
    below = (plan.spent_share < UNSPENT).tolist()
    for group, said, share in zip(plan.to_dict()["groups"], below, plan.spent_share, strict=True):
        noted = [note for note in plan.notes if note.startswith(f"group {group['name']} spends ")]
        assert len(noted) == said
        assert (group["saturated"], group["spent_share"]) == (said, share)
        if said:
            shown = float(noted[0].split(" spends ")[1].split()[0])
            assert 100 * share <= shown <= 110 * share
    return below


def test_in_batches_of_all_those_who_allow_more_cannot_spend_it() -> None:
    budgets = Budgets([1.0] * 50 + [2.0] * 50, 1e-5)
    assert unspent(Sample(), budgets, steps=20, batch=100) == [False, True]
    # by Scale they have less noise of their own
    assert unspent(Scale(), budgets, steps=20, batch=100) == [False, False]
    assert unspent(Sample(), Budgets([1.0] * 9, 1e-5), steps=20, batch=9) == [False]


def test_a_rate_of_one_beside_others_that_are_lower() -> None:
    budgets = Budgets([0.3] * 50 + [60.0] * 50, 1e-5)
    assert unspent(Sample(), budgets, steps=100, batch=60) == [False, True]


@pytest.mark.parametrize("strategy", [Scale(), Uniform(), Sequential()], ids=repr)
def test_a_rate_below_delta_costs_nothing_at_any_noise(strategy: Strategy) -> None:
    assert unspent(strategy, Budgets([1.0] * 100, 0.3), steps=1, batch=20) == [True]
    # the same rate at a δ below it
    assert unspent(strategy, Budgets([1.0] * 100, 0.1), steps=1, batch=20) == [False]


@pytest.mark.parametrize(
    "strategy",
    [Threshold(2.0), pytest.param(JorgensenSampling(2.0), marks=pytest.mark.slow), Uniform()],
    ids=repr,
)
def test_who_is_treated_like_a_stricter_one_is_noted(strategy: Strategy) -> None:
    budgets = Budgets([1.0] * 50 + [4.0] * 50, 1e-5)
    assert any(unspent(strategy, budgets, steps=5, batch=20))


def test_hardly_anybody_in_a_batch_by_renyi() -> None:
    """At the noise of the loosest the strictest have next to no rate."""
    budgets = Budgets([0.5] * 100 + [2.0] * 100 + [8.0] * 100, 1e-5)
    assert any(unspent(Sample(), budgets, method="rdp", steps=1000, batch=1))


def test_of_many_groups_the_least_are_named() -> None:
    budgets = Budgets(np.linspace(1.0, 5.0, 100), 1e-5)
    plan = assign(budgets, Uniform(), steps=5, expected_batch_size=20, clip_norm=1.0)
    count = int((plan.spent_share < UNSPENT).sum())
    assert count > len(plan.notes) == 66
    assert plan.notes[-2].startswith(f"{count - 64} more groups spend ")


def test_broken_promises_are_aimed_lower_and_kept_ones_stay() -> None:
    request = Request(Budgets([1.0, 2.0, 3.0], 1e-5), 10, 1.0, 1.0)
    lower = request.lower(np.array([1.01, 2.0, 0.5]), 0)
    assert lower.target == pytest.approx([np.exp(-BACK) / 1.01**2, 2.0, 3.0])
    again = lower.lower(np.array([1.01, 2.0, 3.1]), 3)
    assert (again.target < lower.target).tolist() == [True, False, True]
    assert request.target.tolist() == [1.0, 2.0, 3.0]
