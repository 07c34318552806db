"""Padding with public records, where it is the plan that `enforce` takes."""

import sys

import numpy as np
import pytest

from apiece import contract
from apiece.budgets import Budgets

SETTINGS = {"steps": 20, "expected_batch_size": 25, "clip_norm": 1.0}


@pytest.fixture(scope="module")
def budgets() -> Budgets:
    """A few victims among many strict records, of which only the victims ask for a bound."""
    epsilon = np.array([4.0] * 60 + [1.0] * 240)
    bound = np.where(epsilon == 4, 0.004, 1.0)
    ids = np.array([f"person {i}" for i in range(300)])
    labels = np.where(epsilon == 4, "victim", "others")
    return Budgets(epsilon, 1e-6, excess=bound, ids=ids, labels=labels)


@pytest.mark.slow
def test_enforce_takes_padding_where_it_is_best(
    budgets: Budgets, monkeypatch: pytest.MonkeyPatch
) -> None:
    # a coarser search, for speed; the function hides its module
    monkeypatch.setattr(sys.modules["apiece.contract.enforce"], "PADS", 5)
    plan = contract.enforce(budgets, public=200, **SETTINGS)  # type: ignore[arg-type]
    assert plan.strategy == "sample"
    assert plan.records == 500
    assert plan.ids[:2].tolist() == ["person 0", "person 1"]
    assert plan.ids[-1] == "public:199"
    assert plan.verify().ok
    verdict = contract.check(plan)
    assert verdict.ok
    assert {clause.group for clause in verdict} == {"victim", "others", "public"}
    # the plan keeps everyone's own budget, joined by id
    asked = dict(
        zip(plan.budget_groups.name.tolist(), plan.budget_groups.epsilon.tolist(), strict=True)
    )
    assert asked["victim"] == 4
    assert asked["others"] == 1
    notes = "\n".join(plan.notes)
    assert "sample, 200 public records was taken" in notes
    assert "sample would break it: group victim" in notes
    for other in ("hybrid", "scale"):
        assert f"{other} would cost +" in notes
