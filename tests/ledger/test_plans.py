"""A plan charged as a whole: never less than what its accountant says."""

from pathlib import Path

import numpy as np
import pytest

from apiece.accounting import privacy_curve
from apiece.assignment import Sample, Scale, assign
from apiece.budgets import Budgets
from apiece.errors import AnalysisError, BudgetError, InputError
from apiece.filters import best_order, gaussian_delta, renyi_budget
from apiece.ledger import (
    Ledger,
    account_epsilon,
    least_epsilon,
    plan_losses,
    reserve_plan,
    suggest_order,
)
from apiece.plan import Plan


def make(strategy: object) -> Plan:
    budgets = Budgets([1.0, 1.0, 3.0, 3.0], 1e-5, ids=["a", "b", "c", "d"])
    return assign(budgets, strategy, steps=20, expected_batch_size=2, clip_norm=1.0)  # type: ignore[arg-type]


@pytest.mark.parametrize("strategy", [Scale(), Sample()])
def test_gaussian_charge_dominates_the_plan(tmp_path: Path, strategy: object) -> None:
    plan = make(strategy)
    losses = plan_losses(Ledger.open(f"sqlite:///{tmp_path}/p.db"), plan)
    assert len(losses) == len(plan.groups)
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


def test_a_training_is_its_plans_its_people_and_what_else_is_fixed(tmp_path: Path) -> None:
    """Whatever it charged: the same charges of the same people are another training."""
    plan, ids = make(Sample()), list("abcd")
    ledger = Ledger.open(f"sqlite:///{tmp_path}/p.db", method="renyi", order=6)
    ledger.enroll(ids, 90.0, 1e-5)
    admitted = reserve_plan(ledger, "m", plan, terms={"rate": 0.1}).tolist()
    assert reserve_plan(ledger, "m", make(Sample()), terms={"rate": 0.1}).tolist() == admitted
    spent = ledger.spent(ids).tolist()
    losses = plan_losses(ledger, plan)[plan.group_index]
    budgets = Budgets([1.0, 1.0, 3.0, 3.0], 1e-5, ids=["b", "a", "c", "d"])
    for reserve in (
        lambda: reserve_plan(ledger, "m", plan),
        lambda: reserve_plan(ledger, "m", plan, terms={"rate": 0.2}),
        lambda: reserve_plan(ledger, "m", plan, plan, terms={"rate": 0.1}),
        lambda: reserve_plan(ledger, "m", make(Scale()), terms={"rate": 0.1}),
        lambda: reserve_plan(ledger, "m", plan.public().bind(budgets), terms={"rate": 0.1}),
        lambda: ledger.reserve_losses("m", ids, losses),
        lambda: ledger.reserve("m", ids, np.sqrt(losses / 3), 1.0),
    ):
        with pytest.raises(AnalysisError, match="in use for another analysis or other terms"):
            reserve()
    assert ledger.spent(ids).tolist() == spent


def test_a_plan_without_ids_is_refused(tmp_path: Path) -> None:
    budgets = Budgets([1.0, 2.0], 1e-5)
    plan = assign(budgets, Scale(), steps=3, expected_batch_size=1, clip_norm=1.0)
    with pytest.raises(InputError, match="ids"):
        reserve_plan(Ledger.open(f"sqlite:///{tmp_path}/p.db"), "m", plan)


def test_the_least_epsilon_of_an_order_is_where_enrolment_begins(tmp_path: Path) -> None:
    for order in (2.0, 8.0, 40.0):
        least = float(least_epsilon(order, 1e-5))
        ledger = Ledger.open(str(tmp_path / f"{order}.db"), method="renyi", order=order)
        with pytest.raises(BudgetError, match="carries epsilon above") as error:
            ledger.enroll(["a"], least * 0.999, 1e-5)
        assert f"{least:.4g}" in str(error.value)
        assert ledger.enroll(["a"], least * 1.001, 1e-5) == 1


def test_the_suggested_order_serves_the_worst_served_best() -> None:
    epsilon, delta = np.array([0.3, 1.0, 4.0]), 1e-6

    def worst(order: float) -> float:
        own = [float(best_order(e, delta)) for e in epsilon]
        best = np.array(
            [float(renyi_budget(e, delta, a)) / a for e, a in zip(epsilon, own, strict=True)]
        )
        return float((renyi_budget(epsilon, delta, order) / order / best).min())

    chosen = suggest_order(epsilon, delta)
    assert worst(chosen) > 0.2
    assert all(worst(chosen * f) < worst(chosen) for f in (0.8, 0.9, 1.1, 1.25))
    assert suggest_order(1.0, 1e-5) == pytest.approx(float(best_order(1.0, 1e-5)), rel=0.03)


@pytest.mark.parametrize("strategy", [Scale(), Sample()])
def test_an_account_needs_what_it_is_told(tmp_path: Path, strategy: object) -> None:
    plan = make(strategy)
    needs = account_epsilon(plan, 6.0, times=2)[plan.group_index]
    for factor, admitted in ((1.0, 4), (0.999, 0)):
        ledger = Ledger.open(str(tmp_path / f"{factor}.db"), method="renyi", order=6)
        ledger.enroll(list("abcd"), needs * factor, 1e-5)
        assert reserve_plan(ledger, "m", plan, plan).size == admitted
