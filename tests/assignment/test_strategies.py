"""Each strategy does what its contract says; plans are checked by an independent accountant."""

import numpy as np
import numpy.typing as npt
import pytest

from apiece.assignment import (
    Hybrid,
    JorgensenSampling,
    Sample,
    Scale,
    Strategy,
    Threshold,
    Uniform,
)
from apiece.budgets import Budgets
from apiece.plan import Plan

from .plans import BUDGETS, plan_of

Floats = npt.NDArray[np.float64]


def independent(plan: Plan, group: int) -> float:
    """ε by dp-accounting, from the plan's numbers alone; single stage, no coin before it."""
    import dp_accounting as dp
    from dp_accounting.pld import PLDAccountant

    stage = plan.stages[0]
    q = float(stage.sampling_probability[group])
    if q == 0:
        return 0.0
    z = stage.noise_stddev / float(stage.clip_norm[group])
    event = dp.PoissonSampledDpEvent(q, dp.GaussianDpEvent(z))
    # its default grid of 1e-4 is too coarse to tell 0.05 % of ε
    accountant = PLDAccountant(value_discretization_interval=4e-5).compose(
        dp.SelfComposedDpEvent(event, stage.steps)
    )
    return float(accountant.get_epsilon(float(plan.budget_groups.delta[group])))


SPENDING = [
    Scale(),
    pytest.param(Sample(), marks=pytest.mark.slow),
    pytest.param(Sample(noise="mean"), marks=pytest.mark.slow),
    Sample(noise="strictest"),
]


@pytest.mark.parametrize("strategy", SPENDING, ids=repr)
def test_everyone_spends_what_they_asked(strategy: Strategy) -> None:
    plan = plan_of(strategy)
    verification = plan.verify(BUDGETS)
    ratio = verification.epsilon_spent / verification.epsilon
    assert verification.ok
    assert (ratio >= 0.995).all()
    for g in range(3):
        assert 0.99 <= independent(plan, g) / plan.budget_groups.epsilon[g] <= 1


@pytest.mark.parametrize(
    "strategy",
    [Uniform(), Threshold(), pytest.param(Hybrid(excess=0.005), marks=pytest.mark.slow)],
    ids=repr,
)
def test_another_accountant_finds_no_promise_broken(strategy: Strategy) -> None:
    plan = plan_of(strategy)
    spent = np.array([independent(plan, g) for g in range(3)]) / plan.budget_groups.epsilon
    assert (spent <= 1).all()
    assert spent.max() >= 0.99


def test_one_record_and_all_equal_budgets() -> None:
    one = plan_of(Sample(), Budgets([2.0], 1e-5), expected_batch_size=1, steps=5)
    assert one.verify().ok
    equal = Budgets.from_groups([("a", 2.0, 0.5), ("b", 2.0, 0.5)], 1000, 1e-5)
    for strategy in (Scale(), Sample(), Threshold()):
        stage = plan_of(strategy, equal, expected_batch_size=20).stages[0]
        assert stage.sampling_probability == pytest.approx([0.02, 0.02])


def test_distinct_deltas_are_each_kept() -> None:
    budgets = Budgets([1.0] * 500 + [1.0] * 500, [1e-5] * 500 + [1e-7] * 500)
    for strategy in (Scale(), Sample(), Uniform(), JorgensenSampling(threshold=1.0)):
        plan = plan_of(strategy, budgets, expected_batch_size=20)
        assert plan.verify(budgets).ok
        assert plan.budget_groups.delta.tolist() == [1e-7, 1e-5]
