"""Hybrid: from Scale to Sample, as far as the bounds on the excess allow."""

import itertools

import numpy as np
import pytest

from apiece import contract
from apiece.assignment import Hybrid, Sample, Scale, assign
from apiece.budgets import Budgets
from apiece.errors import BudgetError, UnsupportedError
from apiece.plan import Plan
from refusals import refused

from .plans import plan_of


def cost(plan: Plan) -> float:
    """Noise over signal."""
    stage = plan.stages[0]
    signal = plan.budget_groups.records @ (stage.sampling_probability * stage.clip_norm)
    return float(stage.noise_stddev / signal)


# few steps at a small δ: rates move a record's curve a good deal
SETTINGS = {"steps": 100, "expected_batch_size": 50, "clip_norm": 1.0}


@pytest.mark.slow
def test_hybrid_goes_from_scale_to_sample() -> None:
    groups = [("victim", 4.0, 0.2), ("others", 1.0, 0.8)]
    skewed = Budgets.from_groups(groups, 1000, 1e-8)
    bounds = (0.0, 0.002, 0.01, 1.0)
    plans = [plan_of(Hybrid(bound), skewed, **SETTINGS) for bound in bounds]
    scale, sample = (plan_of(s, skewed, **SETTINGS) for s in (Scale(), Sample()))
    for end, whole in ((plans[0], scale), (plans[-1], sample)):
        one, other = end.stages[0], whole.stages[0]
        assert one.noise_stddev == pytest.approx(other.noise_stddev, rel=2e-3)
        assert one.sampling_probability == pytest.approx(other.sampling_probability, rel=3e-3)
        assert one.clip_norm == pytest.approx(other.clip_norm, rel=2e-3)
    costs = [cost(plan) for plan in plans]
    assert all(b < a for a, b in itertools.pairwise(costs))
    for bound, plan in zip(bounds, plans, strict=True):
        assert all(clause.symmetric <= bound for clause in contract.check(plan))
        stage = plan.stages[0]
        share = plan.budget_groups.records / plan.records
        assert share @ stage.sampling_probability == pytest.approx(0.05, rel=1e-6)
        assert share @ stage.clip_norm == pytest.approx(1.0, rel=1e-6)


def test_hybrid_wants_a_bound_and_few_budgets() -> None:
    with pytest.raises(BudgetError, match="no bound"):
        plan_of(Hybrid())
    many = Budgets(np.linspace(1, 2, 600), 1e-5)
    with refused(UnsupportedError, "rounded_down"):
        plan_of(Hybrid(0.1), many, expected_batch_size=10)


@pytest.mark.parametrize("bound", [0.02, 0.3, 1.0])
def test_a_bound_for_all_stands_beside_the_records_own(bound: float) -> None:
    """Hybrid(x) paid no heed to stricter bounds, and said nothing."""
    asked = Budgets([1.0] * 160 + [4.0] * 40, 1e-8, excess=0.0)
    own, scale = (plan_of(s, asked, **SETTINGS).stages[0] for s in (Hybrid(bound), Scale()))
    assert own.sampling_probability.tolist() == scale.sampling_probability.tolist()
    assert own.noise_stddev == scale.noise_stddev
    plan = plan_of(Hybrid(0.0), Budgets(asked.epsilon, 1e-8, excess=bound), **SETTINGS)
    assert plan.stages[0].noise_stddev == scale.noise_stddev


@pytest.mark.slow
def test_hybrid_by_renyi_accounting_moves_with_its_bound() -> None:
    def rates(bound: float) -> list[float]:
        plan = plan_of(Hybrid(bound), expected_batch_size=250, method="rdp")  # type: ignore[arg-type]
        apart = plan.measures.forward
        assert apart is not None
        assert (apart <= bound).all()
        return plan.stages[0].sampling_probability.tolist()

    # a bound that even Sample keeps holds nobody back
    free = rates(1.0)
    assert free[0] < 0.03 < 0.07 < free[2]
    assert rates(0.05) == pytest.approx(free, rel=1e-3)


@pytest.mark.parametrize(
    ("lone", "others", "steps"),
    [
        (8.0, 1.0, 2),
        pytest.param(8.0, 0.5, 5, marks=pytest.mark.slow),
        pytest.param(20.0, 2.0, 5, marks=pytest.mark.slow),
        pytest.param(8.0, 1.0, 4, marks=pytest.mark.slow),
    ],
)
def test_who_would_join_every_step_is_held_to_the_bound(
    lone: float, others: float, steps: int
) -> None:
    """A lone large budget goes to rate 1 at once, which is an end that no bound had set."""
    budgets = Budgets([others] * 199 + [lone], 1e-5)
    settings = {"steps": steps, "expected_batch_size": 40, "clip_norm": 1.0}
    free = plan_of(Sample(), budgets, **settings)
    assert max(clause.symmetric for clause in contract.check(free)) > 0.02
    plan = plan_of(Hybrid(0.02), budgets, **settings)
    assert max(clause.symmetric for clause in contract.check(plan)) <= 0.02


def test_many_groups_go_as_far_as_they_may() -> None:
    asked = Budgets(np.linspace(0.5, 8, 24), 1e-5)
    plan = assign(asked, Hybrid(0.02), steps=50, expected_batch_size=4, clip_norm=1.0)
    assert plan.measures.excess is not None
    assert (plan.measures.excess <= 0.02).all()
    assert (plan.measures.excess > 0.0199).sum() > 2
