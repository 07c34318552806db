"""The worlds of an audit share one plan."""

import numpy as np
import pytest

from apiece.assignment import Sample, assign
from apiece.audit.splits import one_plan
from apiece.budgets import Budgets
from apiece.errors import InputError
from refusals import refused

from .worlds import plan


def honest(size: int) -> Budgets:
    return Budgets(np.full(size, 8.0), 1e-6, ids=np.arange(size) + 1000)


def test_plans_that_differ_between_worlds_are_refused() -> None:
    with_target = assign(honest(40), Sample(), steps=5, expected_batch_size=8, clip_norm=1.0)
    without = assign(honest(39), Sample(), steps=5, expected_batch_size=8, clip_norm=1.0)
    assert one_plan(with_target, with_target) is with_target
    with refused(InputError, "differs"):
        one_plan(with_target, without)
    made = plan(size=40, batch=10.0)
    other, swapped = (
        made.bind(Budgets(np.where(np.arange(40) % 2 == odd, 3.0, 1.0), 1e-5)) for odd in (1, 0)
    )
    with pytest.raises(InputError, match="other groups"):
        one_plan(other, swapped)
    with refused(InputError, "none"):
        one_plan()
