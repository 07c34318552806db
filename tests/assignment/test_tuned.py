"""Plans of the best of some runs keep each promise with the choosing inside, whatever is drawn."""

import json
from dataclasses import replace

import pytest

from apiece import Budgets, Gaussian, Plan, assign, privacy_curve
from apiece.assignment.tuned import assign_tuned
from apiece.errors import ApieceError, UnsupportedError
from apiece.mechanisms import Composed, Runs, Selected
from apiece.plan.parts import Selection

BUDGETS = Budgets([1.0] * 600 + [3.0] * 400, 1e-5)
SETTINGS = [{"steps": 10, "expected_batch_size": 100}, {"steps": 30, "expected_batch_size": 50}]


@pytest.fixture(scope="module")
def tuned():
    """One plan of one setting, five runs on average, and a noisy score."""
    (plan,) = assign_tuned(BUDGETS, "uniform", SETTINGS[:1], runs=Runs(5), score_noise=20.0)
    return plan


@pytest.mark.parametrize(
    "strategy",
    [
        "uniform",
        *(pytest.param(s, marks=pytest.mark.slow) for s in ("threshold", "scale", "sample")),
    ],
)
def test_nobody_is_over_with_the_choosing_inside(strategy):
    plans = assign_tuned(BUDGETS, strategy, SETTINGS, runs=Runs(10))
    for plan in plans:
        assert plan.verify(BUDGETS).ok
        assert plan.spent_share.max() >= 0.997
    for g in range(2):  # by the mechanisms that the engine runs, put together here
        runs = tuple(m for plan in plans if (m := plan.stages[0].mechanism(g)) is not None)
        if runs:
            together = privacy_curve(Selected(runs, Runs(10)))
            assert together.epsilon(1e-5).upper <= BUDGETS.groups.epsilon[g]


def test_choosing_costs_noise_and_less_than_paying_for_each(tuned):
    once = assign(BUDGETS, "uniform", **SETTINGS[0], clip_norm=1.0)
    twenty = assign(BUDGETS, "uniform", **{**SETTINGS[0], "steps": 200}, clip_norm=1.0)
    assert once.noise_stddev < tuned.noise_stddev < twenty.noise_stddev


def test_noisy_score_is_paid_for(tuned):
    scored = Composed(tuned.stages[0].mechanism(0), Gaussian(20.0))
    assert tuned.mechanism_for(0) == Selected((scored,), Runs(5))
    without = replace(tuned, selection=Selection(Runs(5), None))
    assert (without.epsilon_spent < tuned.epsilon_spent).all()
    (free,) = assign_tuned(BUDGETS, "uniform", SETTINGS[:1], runs=Runs(5))
    assert free.noise_stddev < tuned.noise_stddev


def test_a_plan_that_forgets_its_choosing_or_runs_more_is_caught(tuned):
    more = replace(tuned, selection=Selection(Runs(40), 20.0))
    assert not more.verify().ok
    data = json.loads(tuned.to_json())
    assert Plan.from_json(tuned.to_json()).hash() == tuned.hash()
    forged = data | {"selection": data["selection"] | {"score_noise": 1.0}}
    with pytest.raises(ApieceError):
        Plan.from_dict(forged)


def test_what_cannot_be_planned_is_refused():
    for strategy, said in (("rounds", "several stages"), ("allocate", "choose sample")):
        with pytest.raises(UnsupportedError, match=said):
            assign_tuned(BUDGETS, strategy, SETTINGS[:1], runs=Runs(5))
    many = Budgets([1 + k / 100 for k in range(60)], 1e-5)
    with pytest.raises(UnsupportedError):
        assign_tuned(many, "scale", [{"steps": 5, "expected_batch_size": 5}], runs=Runs(5))
