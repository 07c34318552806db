"""Scale: one rate for all, the clip norm carries the budget."""

import numpy as np
import pytest

from apiece.assignment import Scale

from .plans import BUDGETS, plan_of


def test_scale_keeps_rates_and_mean_clip_norm() -> None:
    stage = plan_of(Scale()).stages[0]
    share = BUDGETS.groups.records / 5000
    assert stage.sampling_probability == pytest.approx([0.02] * 3)
    assert share @ stage.clip_norm == pytest.approx(0.5)
    assert (np.diff(stage.clip_norm) > 0).all()
