"""Many distinct budgets: every record's ε recomputed, none above, all close below."""

import dataclasses

import numpy as np
import pytest

from apiece.assignment import Sample, Scale, Strategy, assign
from apiece.budgets import Budgets

RNG = np.random.default_rng(5)
BUDGETS = Budgets(RNG.uniform(1.0, 1.25, 800), np.exp(RNG.uniform(-13, -12, 800)))


@pytest.mark.parametrize("method", ["pld", "rdp"])
@pytest.mark.parametrize("strategy", [Scale(), Sample()], ids=repr)
def test_within_half_a_percent_below(strategy: Strategy, method: str) -> None:
    settings = {"steps": 100, "expected_batch_size": 60, "clip_norm": 1.0}
    plan = assign(BUDGETS, strategy, method=method, **settings)  # type: ignore[arg-type]
    verification = plan.verify(BUDGETS)
    ratio = verification.epsilon_spent / verification.epsilon
    assert len(plan.budget_groups) == 800
    assert ratio.max() <= 1
    assert ratio.min() >= 0.995
    assert plan.expected_batch_size == pytest.approx(60, rel=5e-3)


def test_one_delta_for_all() -> None:
    budgets = Budgets(np.linspace(1.0, 1.2, 100), 1e-5)
    plan = assign(budgets, Sample(), steps=100, expected_batch_size=10, clip_norm=1.0)
    ratio = plan.verify(budgets).epsilon_spent / plan.budget_groups.epsilon
    assert 0.995 <= ratio.min() <= ratio.max() <= 1


def test_a_plan_with_one_record_moved_up_is_found_out() -> None:
    """The control: verification sees a single record above its budget among hundreds."""
    plan = assign(BUDGETS, Sample(), steps=100, expected_batch_size=60, clip_norm=1.0)
    rate = plan.stages[0].sampling_probability.copy()
    rate[400] *= 1.02
    stage = dataclasses.replace(
        plan.stages[0],
        sampling_probability=rate,
        expected_batch_size=float(rate @ plan.budget_groups.records),
    )
    kept = dataclasses.replace(plan, stages=(stage,)).verify(BUDGETS).kept
    assert np.flatnonzero(~kept).tolist() == [400]
