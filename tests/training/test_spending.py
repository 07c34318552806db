"""What a plan has spent by a step: of the plan alone, up to its promise, and rounded up."""

import numpy as np
import pytest

from apiece import Budgets, Sample, Sequential, assign
from apiece.errors import InputError
from apiece.training.callbacks import PlannedSpending

BUDGETS = Budgets.from_groups(
    [("strict", 1.0, 10), ("middle", 2.0, 10), ("weak", 3.0, 20)], 40, 1e-3
)


def plan(strategy=None):
    return assign(
        BUDGETS, strategy or Sample(), steps=6, expected_batch_size=8, clip_norm=1.0, method="rdp"
    )


def test_planned_spending_grows_to_what_the_plan_spends():
    the_plan = plan()
    spending = PlannedSpending(the_plan)
    seen = np.array([[s.spent for s in spending.at(step)] for step in range(7)])
    assert [s.group for s in spending.at(1)] == ["strict", "weak"]
    assert (np.diff(seen, axis=0) > 0).all()
    assert (seen[0] == 0).all()
    assert seen[-1] == pytest.approx(the_plan.epsilon_spent[[0, 2]])


def test_between_its_points_it_is_rounded_up():
    whole, coarse = PlannedSpending(plan()), PlannedSpending(plan(), points=2)
    for step in range(7):
        ups = zip(coarse.at(step), whole.at(step), strict=True)
        assert all(up.spent >= s.spent for up, s in ups)
    assert coarse.at(1) == coarse.at(3) == whole.at(3)


def test_a_group_whose_stage_has_not_come_has_spent_nothing():
    strict, weak = PlannedSpending(plan(Sequential())).at(1)
    assert strict.spent > 0
    assert weak.spent == 0


def test_plans_with_revealed_coins_have_a_spending_too():
    rounds = assign(BUDGETS, "adapdp", steps=6, expected_batch_size=8, clip_norm=1.0)
    last = PlannedSpending(rounds).at(6)
    assert [s.spent for s in last] == pytest.approx(rounds.epsilon_spent[[0, 2]])
    assert all(a.spent <= b.spent for a, b in zip(PlannedSpending(rounds).at(2), last, strict=True))


def test_a_step_that_is_no_count_is_refused():
    with pytest.raises(InputError, match="step"):
        PlannedSpending(plan()).at(-1)
    with pytest.raises(InputError, match="points"):
        PlannedSpending(plan(), points=0)
