"""Sample: one clip norm for all, the rate carries the budget."""

import numpy as np
import pytest

from apiece.assignment import Sample

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
