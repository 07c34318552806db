"""A plan charged as a whole: never less than what its accountant says."""

from pathlib import Path

import numpy as np
import pytest

from apiece.accounting import privacy_curve
from apiece.assignment import Sample, Scale, assign
from apiece.budgets import Budgets
from apiece.errors import InputError
from apiece.filters import gaussian_delta
from apiece.ledger import Ledger, plan_losses, reserve_plan
from apiece.plan import Plan


def make(strategy: object) -> Plan:
    budgets = Budgets([1.0, 1.0, 3.0, 3.0], 1e-5, ids=["a", "b", "c", "d"])
    return assign(budgets, strategy, steps=20, expected_batch_size=2, clip_norm=1.0)  # type: ignore[arg-type]


@pytest.mark.parametrize("strategy", [Scale(), Sample()])
def test_gaussian_charge_dominates_the_plan(tmp_path: Path, strategy: object) -> None:
    plan = make(strategy)
    losses = plan_losses(Ledger.open(f"sqlite:///{tmp_path}/p.db"), plan)
    for g, loss in enumerate(losses):
        curve = privacy_curve(plan.mechanism_for(g))
        for epsilon in (0.5, 2.0, 5.0):
            assert float(curve.delta(epsilon).lower) <= gaussian_delta(loss**0.5, epsilon)


def test_renyi_charge_is_amplified_and_admits_by_budget(tmp_path: Path) -> None:
    plan = make(Sample())
    renyi = Ledger.open(f"sqlite:///{tmp_path}/r.db", method="renyi", order=6)
    plain = Ledger.open(f"sqlite:///{tmp_path}/g.db")
    assert (plan_losses(renyi, plan) < plan_losses(plain, plan) * 3).all()
    renyi.enroll(["a", "b", "c", "d"], [30.0, 3.0, 30.0, 3.0], 1e-5)
    admitted = reserve_plan(renyi, "m", plan)
    fits = plan_losses(renyi, plan)[plan.group_index] <= renyi.remaining(
        list("abcd")
    ) + renyi.spent(list("abcd"))
    assert admitted.tolist() == np.array(list("abcd"))[fits].tolist()
    assert renyi.verify().ok


def test_a_plan_without_ids_is_refused(tmp_path: Path) -> None:
    budgets = Budgets([1.0, 2.0], 1e-5)
    plan = assign(budgets, Scale(), steps=3, expected_batch_size=1, clip_norm=1.0)
    with pytest.raises(InputError, match="ids"):
        reserve_plan(Ledger.open(f"sqlite:///{tmp_path}/p.db"), "m", plan)
