"""What a strategy promised and reached, as numbers of groups and models; of nobody alone."""

from dataclasses import replace

import numpy as np
import pytest

from apiece import _json
from apiece.assignment import assign
from apiece.budgets import Budgets
from apiece.jobs.trained import Promise
from sample_runs import FACTS, sample_plan, trained


def test_promises_are_the_plan_s_own_numbers() -> None:
    found = trained("scale", 0.8)
    assert [p.name for p in found.promises] == ["strict", "weak"]
    assert [p.epsilon_spent for p in found.promises] == found.plan.epsilon_spent.tolist()
    assert all(p.epsilon_spent <= p.epsilon for p in found.promises)
    assert all(p.right is not None and 500 < p.right <= 1000 for p in found.promises)


@pytest.mark.parametrize("advantage", [0.0, 1e-9, 0.1234, 0.999, 1.0])
def test_a_guess_is_rounded_up(advantage: float) -> None:
    right = Promise("a", 1, 1.0, 1e-5, 0.9, advantage).right
    assert right is not None
    assert -1e-9 <= right - 500 * (1 + advantage) <= 1
    assert Promise("a", 1, 1.0, 1e-5, 0.9, None).right is None


def test_mean_and_spread_over_models() -> None:
    found = trained("scale", 0.8, spread=0.1)
    assert found.test_accuracy_mean == pytest.approx(0.8)
    assert found.test_accuracy_stddev == pytest.approx(np.std([0.7, 0.9], ddof=1))
    assert replace(found, test_accuracy=(0.7,)).test_accuracy_stddev is None
    assert replace(found, test_accuracy=()).test_accuracy_mean is None


def test_who_is_where_is_left_behind() -> None:
    budgets = Budgets([1.0, 2.0] * 20, 1e-3, ids=[f"p{i}" for i in range(40)])
    bound = assign(budgets, "scale", steps=2, expected_batch_size=4, clip_norm=1.0)
    found = trained("scale", 0.8, plan=bound)
    assert not hasattr(found.plan, "ids")
    assert "p1" not in repr(found) + str(found.to_dict())


def test_facts_as_json() -> None:
    assert _json.plain(FACTS)["classes"] == ["a", "b"]
    assert sample_plan("scale").records == FACTS.training_records
