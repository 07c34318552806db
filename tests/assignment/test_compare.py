"""Strategies side by side: public numbers of verified plans, and why there is none."""

import numpy as np
import pytest

from apiece.assignment import Sample, Threshold, assign, compare
from apiece.assignment.front import noise_over_signal
from apiece.budgets import Budgets
from apiece.errors import InputError

BUDGETS = Budgets(np.repeat([1.0, 4.0], 300), 1e-5)
ASK = {"steps": 50, "expected_batch_size": 60.0, "clip_norm": 1.0}


@pytest.mark.slow
def test_each_strategy_is_told_as_its_plan_is() -> None:
    found = compare(BUDGETS, ["uniform", "scale", Sample()], **ASK)  # type: ignore[arg-type]
    assert [each.strategy for each in found] == ["uniform", "scale", "sample"]
    for each in found:
        plan = assign(BUDGETS, each.strategy, **ASK)  # type: ignore[arg-type]
        assert each.noise_over_signal == noise_over_signal(plan)
        assert each.unspent == (0.5 if each.strategy == "uniform" else 0)
        assert each.excess == plan.measures.forward.max()  # type: ignore[union-attr]
        assert each.objection is None
    uniform, scale, sample = (each.noise_over_signal or 0.0 for each in found)
    assert max(scale, sample) < uniform  # the strictest budget for all is what it costs


def test_noise_is_compared_with_that_of_uniform() -> None:
    """How many times less noise a strategy needs than one budget for all, which has a row."""
    few = {"steps": 3, "expected_batch_size": 60.0, "clip_norm": 1.0}
    uniform, scale = compare(BUDGETS, ["uniform", "scale"], **few)  # type: ignore[arg-type]
    for row in (uniform, scale):
        plan = assign(BUDGETS, row.strategy, **few)  # type: ignore[arg-type]
        assert row.noise_over_signal == noise_over_signal(plan)
    assert uniform.noise_over_signal is not None
    assert scale.noise_over_signal is not None
    assert scale.below_uniform == uniform.noise_over_signal / scale.noise_over_signal
    assert scale.below_uniform > 1 == uniform.below_uniform
    (alone,) = compare(BUDGETS, ["scale"], **few)  # type: ignore[arg-type]
    assert alone.noise_over_signal == scale.noise_over_signal
    assert alone.below_uniform is None


def test_noise_over_signal_of_one_stage_by_hand() -> None:
    plan = assign(BUDGETS, "scale", **ASK)  # type: ignore[arg-type]
    stage = plan.stages[0]
    signal = sum(
        group.records * group.sampling_probability * group.clip_norm for group in plan.groups
    )
    assert noise_over_signal(plan) == pytest.approx(stage.noise_stddev / signal)


def test_who_cannot_spend_what_they_allow_is_counted() -> None:
    budgets = Budgets([0.5] * 90 + [300.0] * 10, 1e-3)
    (found,) = compare(budgets, ["sample"], steps=2, expected_batch_size=50)
    assert found.unspent == 0.1


def test_a_strategy_that_cannot_says_why_and_the_others_go_on() -> None:
    budgets = Budgets(np.linspace(1, 2, 600), 1e-5)
    found = compare(budgets, ["sequential", "uniform"], **ASK)  # type: ignore[arg-type]
    assert found[0].noise_over_signal is None
    assert "600 groups" in (found[0].objection or "")
    assert found[1].objection is None


def test_a_plan_that_breaks_promises_says_so() -> None:
    (found,) = compare(BUDGETS, ["published_rounds"], **ASK)  # type: ignore[arg-type]
    assert found.objection is not None


@pytest.mark.parametrize("wrong", [{"steps": 0}, {"expected_batch_size": 1e9}])
def test_settings_that_no_strategy_takes_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(InputError):
        compare(BUDGETS, [Threshold(2.0)], **{**ASK, **wrong})  # type: ignore[arg-type]
