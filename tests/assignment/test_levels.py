"""Many distinct budgets: every record's ε recomputed, none above, all close below."""

import numpy as np
import pytest

from apiece.assignment import Sample, Scale, Strategy, assign
from apiece.budgets import Budgets

RNG = np.random.default_rng(5)
BUDGETS = Budgets(RNG.uniform(1.0, 1.25, 800), np.exp(RNG.uniform(-13, -12, 800)))


@pytest.mark.parametrize("strategy", [Scale(), Sample()], ids=repr)
def test_within_half_a_percent_below(strategy: Strategy) -> None:
    plan = assign(BUDGETS, strategy, steps=100, expected_batch_size=60, clip_norm=1.0)
    verification = plan.verify(BUDGETS)
    ratio = verification.epsilon_spent / verification.epsilon
    assert len(plan.budgets) == 800
    assert ratio.max() <= 1
    assert ratio.min() >= 0.995
    assert plan.expected_batch_size == pytest.approx(60, rel=5e-3)
