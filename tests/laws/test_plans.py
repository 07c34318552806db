"""Laws over random budgets, sizes and strategies."""

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from apiece.assignment import Hybrid, Sample, Scale, Strategy, Uniform, assign
from apiece.budgets import Budgets
from apiece.plan import Plan

FEW = settings(
    max_examples=3, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck)
)


@st.composite
def populations(draw: st.DrawFn) -> Budgets:
    count = draw(st.integers(1, 3))
    epsilon = draw(st.lists(st.floats(0.5, 2.0), min_size=count, max_size=count))
    sizes = draw(st.lists(st.integers(20, 300), min_size=count, max_size=count))
    delta = draw(st.sampled_from([1e-5, 1e-6]))
    return Budgets(np.repeat(epsilon, sizes), delta)


@pytest.mark.parametrize("strategy", [Uniform(), Scale(), Sample()], ids=repr)
@FEW
@given(budgets=populations())
def test_every_promise_is_kept_and_spent(strategy: Strategy, budgets: Budgets) -> None:
    plan = assign(budgets, strategy, steps=100, expected_batch_size=10, clip_norm=1.0)
    verification = plan.verify(budgets)
    assert verification.ok
    ratio = verification.epsilon_spent / verification.epsilon
    if not isinstance(strategy, Uniform):
        at_end = plan.stages[0].sampling_probability == 1
        assert (at_end | (ratio >= 0.995)).all()
    else:
        assert ratio.max() >= 0.995
    assert Plan.from_json(plan.to_json()).hash() == plan.hash()


@FEW
@given(budgets=populations())
def test_hybrid_at_zero_is_scale(budgets: Budgets) -> None:
    plans = [
        assign(budgets, s, steps=100, expected_batch_size=10, clip_norm=1.0)
        for s in (Hybrid(0.0), Scale())
    ]
    one, other = (plan.stages[0] for plan in plans)
    assert one.noise_stddev == pytest.approx(other.noise_stddev)
    assert one.clip_norm == pytest.approx(other.clip_norm)
    assert one.sampling_probability == pytest.approx(other.sampling_probability)


@FEW
@given(budgets=populations(), cap=st.floats(0.6, 3.0))
def test_a_plan_may_use_less_than_consent(budgets: Budgets, cap: float) -> None:
    lowered = budgets.at_most(cap)
    plan = assign(lowered, Scale(), steps=100, expected_batch_size=10, clip_norm=1.0)
    assert plan.verify(budgets).ok
