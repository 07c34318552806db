"""Sample: one clip norm for all, the rate carries the budget."""

import numpy as np
import pytest

from apiece import Budgets
from apiece.assignment import Sample, assign

from .plans import BUDGETS, plan_of


def test_sample_keeps_clip_norm_and_batch() -> None:
    plan = plan_of(Sample())
    stage = plan.stages[0]
    assert stage.clip_norm == pytest.approx([0.5] * 3)
    assert stage.sampling_probability @ BUDGETS.groups.records == pytest.approx(100)
    assert (np.diff(stage.sampling_probability) > 0).all()


def test_sample_noises_are_ordered() -> None:
    stddev = {n: plan_of(Sample(noise=n)).noise_stddev for n in ("strictest", "mean", "loosest")}
    assert stddev["strictest"] > stddev["mean"] > stddev["loosest"]


@pytest.mark.slow
def test_rates_are_scaled_down_where_renyi_accounting_knows_none_at_less_noise() -> None:
    """It was refused: at the noise of the mean rate asked, the strictest had no rate at all."""
    budgets = Budgets(np.repeat([0.01, 100.0], [10, 179]), 1.6e-8)
    plan = assign(budgets, Sample(), steps=1, expected_batch_size=2.17, clip_norm=1.0, method="rdp")
    assert (plan.stages[0].sampling_probability > 0).all()
    assert plan.stages[0].expected_batch_size == pytest.approx(2.17)
    assert plan.verify(budgets).ok
