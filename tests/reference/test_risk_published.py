"""Kaiser et al. 2026 Fig. 3: a record's advantage at ε = 8, δ = 1e-12, as others' budgets change.

n = 50000, B = 128, 5 epochs, Sample, PLD; values to the two digits that can be read.
"""

import pytest

from apiece.assignment import Sample, assign
from apiece.budgets import Budgets

STEPS = 5 * 50000 // 128


@pytest.mark.parametrize(
    ("share", "others", "advantage"),
    [
        (0.0, 8.0, 0.15),
        pytest.param(0.2, 32.0, 0.06, marks=pytest.mark.slow),
        pytest.param(0.2, 2.0, 0.17, marks=pytest.mark.slow),
        pytest.param(0.8, 2.0, 0.31, marks=pytest.mark.slow),
    ],
)
def test_advantage_on_the_victim(share: float, others: float, advantage: float) -> None:
    groups = [("victim", 8.0, 1 - share)]
    groups += [("others", others, share)] if share else []
    budgets = Budgets.from_groups(groups, 50000, 1e-12)
    plan = assign(budgets, Sample(), steps=STEPS, expected_batch_size=128, clip_norm=1.0)
    bounds = plan.curve("victim").advantage()
    assert bounds.lower <= bounds.upper <= bounds.lower * 1.01
    assert round(float(bounds.upper), 2) == advantage
