"""Sequential: one group after the other."""

import numpy as np
import pytest

from apiece.assignment import Sequential
from apiece.errors import InfeasibleError

from .plans import plan_of


def test_sequential_is_a_stage_a_group() -> None:
    plan = plan_of(Sequential())
    assert plan.steps == 200
    assert [int(np.flatnonzero(s.sampling_probability)[0]) for s in plan.stages] == [0, 1, 2]
    ratio = plan.verify().epsilon_spent / plan.verify().epsilon
    assert (ratio >= 0.995).all()
    loose = plan_of(Sequential("loosest"))
    assert [int(np.flatnonzero(s.sampling_probability)[0]) for s in loose.stages] == [2, 1, 0]
    with pytest.raises(InfeasibleError, match="at least 3 steps"):
        plan_of(Sequential(), steps=2)
