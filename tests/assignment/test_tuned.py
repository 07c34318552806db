"""Plans of the best of some runs keep each promise with the choosing inside, whatever is drawn."""

import json
from dataclasses import replace

import pytest

from apiece import Budgets, Gaussian, Plan, assign, privacy_curve
from apiece.assignment import assign_tuned
from apiece.errors import ApieceError, UnsupportedError
from apiece.mechanisms import Composed, Runs, Selected
from apiece.plan import Selection

BUDGETS = Budgets([1.0] * 600 + [3.0] * 400, 1e-5)
SETTINGS = [{"steps": 10, "expected_batch_size": 100}, {"steps": 30, "expected_batch_size": 50}]


@pytest.mark.parametrize(
    "strategy",
    [
        "uniform",
        "threshold",
        *(pytest.param(s, marks=pytest.mark.slow) for s in ("scale", "sample")),
    ],
)
def test_nobody_is_over_with_the_choosing_inside(strategy):
    plans = assign_tuned(BUDGETS, strategy, SETTINGS, runs=Runs(10))
    for plan in plans:
        assert plan.verify(BUDGETS).ok
        assert plan.spent_share.max() > 0.97
    for g in range(2):  # by the mechanisms that the engine runs, put together here
        runs = tuple(m for plan in plans if (m := plan.stages[0].mechanism(g)) is not None)
        if runs:
            tuned = privacy_curve(Selected(runs, Runs(10)))
            assert tuned.epsilon(1e-5).upper <= BUDGETS.groups.epsilon[g]


def test_choosing_costs_noise_and_less_than_paying_for_each():
    once = assign(BUDGETS, "scale", **SETTINGS[0], clip_norm=1.0)
    (tuned,) = assign_tuned(BUDGETS, "scale", SETTINGS[:1], runs=Runs(10))
    ten = assign(BUDGETS, "scale", **{**SETTINGS[0], "steps": 200}, clip_norm=1.0)
    assert once.noise_stddev < tuned.noise_stddev < ten.noise_stddev


def test_noisy_score_is_paid_for():
    (plan,) = assign_tuned(BUDGETS, "uniform", SETTINGS[:1], runs=Runs(5), score_noise=20.0)
    scored = Composed(plan.stages[0].mechanism(0), Gaussian(20.0))
    assert plan.mechanism_for(0) == Selected((scored,), Runs(5))
    without = replace(plan, selection=Selection(Runs(5), None))
    assert (without.epsilon_spent < plan.epsilon_spent).all()


def test_a_plan_that_forgets_its_choosing_or_runs_more_is_caught():
    (plan,) = assign_tuned(BUDGETS, "scale", SETTINGS[:1], runs=Runs(5))
    more = replace(plan, selection=Selection(Runs(40), None))
    assert not more.verify().ok
    data = json.loads(plan.to_json())
    assert Plan.from_json(plan.to_json()).hash() == plan.hash()
    for change in ({"runs": {"mean": 40.0, "shape": 1.0}}, {"score_noise": 1.0}):
        with pytest.raises(ApieceError):
            Plan.from_dict(data | {"selection": data["selection"] | change})


def test_what_cannot_be_planned_is_refused():
    with pytest.raises(UnsupportedError):
        assign_tuned(BUDGETS, "rounds", SETTINGS[:1], runs=Runs(5))
    many = Budgets([1 + k / 100 for k in range(60)], 1e-5)
    with pytest.raises(UnsupportedError):
        assign_tuned(many, "scale", [{"steps": 5, "expected_batch_size": 5}], runs=Runs(5))
