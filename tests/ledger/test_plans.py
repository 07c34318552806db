"""A plan charged as a whole: never less than what its accountant says, and hardly more."""

from pathlib import Path

import numpy as np
import pytest

from apiece.accounting import privacy_curve
from apiece.assignment import Hybrid, Sample, Scale, assign
from apiece.budgets import Budgets
from apiece.errors import AnalysisError, InputError
from apiece.filters import Costs
from apiece.ledger import Ledger, account_shares, plan_costs, plans, training_costs
from apiece.ledger.plans import reserve_plan
from apiece.mechanisms import Composed
from apiece.numerics.gaussian import gaussian_delta
from apiece.pate import plan_votes
from apiece.plan import BoundPlan, Plan
from refusals import refused

IDS = list("abcd")


def make(strategy: object, steps: int = 20) -> BoundPlan:
    budgets = Budgets([1.0, 1.0, 3.0, 3.0], 1e-5, ids=IDS)
    return assign(budgets, strategy, steps=steps, expected_batch_size=2, clip_norm=1.0)  # type: ignore[arg-type]


def votes() -> Plan:
    budgets = Budgets([1.0] * 40 + [3.0] * 40, 1e-5, ids=list(range(80)))
    return plan_votes(budgets, "weight", teachers=4, questions=20).plan


STRATEGIES = [
    "uniform", "threshold", "scale", "sample", Hybrid(0.05), "sequential", "rounds", "jorgensen",
    "adapdp", votes,
]  # fmt: skip


@pytest.mark.parametrize(
    "strategy", STRATEGIES, ids=lambda made: getattr(made, "__name__", str(made))
)
def test_every_pair_stands_for_the_plan(strategy: object) -> None:
    plan = strategy() if callable(strategy) else make(strategy)
    costs = plan_costs(plan)
    loss, slack = costs.rows()
    for g in range(len(plan.groups)):
        curve = plan.curve(g)
        epsilon = np.linspace(0, float(curve.epsilon(1e-9).upper), 60)
        delta = np.asarray(curve.delta(epsilon).lower)
        for square, s in zip(loss[g], slack[g], strict=True):
            mu = max(square**0.5, 1e-12)  # of who is left out it is zero
            allowed = s + (1 - s) * gaussian_delta(mu, epsilon).upper
            assert (delta <= allowed * (1 + 1e-12)).all()


@pytest.mark.parametrize("strategy", [Scale(), Sample()])
def test_a_promise_of_three_costs_three(tmp_path: Path, strategy: object) -> None:
    budgets = Budgets([1.0] * 500 + [3.0] * 500, 1e-5, ids=list(range(1000)))
    plan = assign(budgets, strategy, steps=200, expected_batch_size=50, clip_norm=1.0)  # type: ignore[arg-type]
    for factor, admitted in ((1.01, 1000), (0.999, 0)):
        ledger = Ledger.open(str(tmp_path / f"{factor}.db"))
        ledger.enroll(plan.ids, budgets.epsilon * factor, 1e-5)
        assert reserve_plan(ledger, "m", plan).size == admitted
        assert ledger.verify().ok


@pytest.mark.slow
def test_a_rare_training_costs_its_promise_where_the_slack_suits_it(tmp_path: Path) -> None:
    """A record joins one to nine steps: with a tenth of δ as slack it costs up to a half more."""
    budgets = Budgets([0.15] * 5_000 + [1.4] * 5_000, 1e-5, ids=list(range(10_000)))
    plan = assign(budgets, Sample(), steps=8000, expected_batch_size=5, clip_norm=1.0)
    share = account_shares(plan, budgets.epsilon)
    assert share.shape == (10_000,)
    assert share[0] >= share[-1] > 0.3
    for slack, admitted in ((share, True), (None, False)):
        ledger = Ledger.open(str(tmp_path / f"{admitted}.db"))
        ledger.enroll(plan.ids, budgets.epsilon * 1.01, 1e-5, slack=slack)
        assert reserve_plan(ledger, "m", plan).size == (10_000 if admitted else 0)
    more = account_shares(plan, [0.15, 1.4], times=4)
    needs = {s: plan_costs(plan).epsilon(1e-5, s, times=4) for s in (0.1, *more)}
    for group, best in enumerate(more):
        assert needs[best][group] <= min(each[group] for each in needs.values())
    assert account_shares(plan, [1e-9, 9.0]).tolist() == [share[0], share[-1]]
    assert account_shares(plan, 9.0).shape == ()
    for bad in ({"epsilon": [0.0]}, {"epsilon": [1.0], "times": 0}):
        with pytest.raises(InputError, match=r"epsilon|times"):
            account_shares(plan, **bad)  # type: ignore[arg-type]


def test_several_models_are_composed_and_not_added_up(tmp_path: Path) -> None:
    plan, other = make(Sample(), 100), make(Scale(), 100)
    four = training_costs(plan, plan, plan, plan).epsilon(1e-5)
    exact = privacy_curve(Composed(*[plan.mechanism_for(1)] * 4)).epsilon(1e-5).upper
    assert exact <= four[2] <= 1.02 * exact
    both = training_costs(plan, other)
    for each in (plan, other):
        assert (both.loss.min(axis=1)[both.group] >= training_costs(each).rows()[0].min(1)).all()
    ledger = Ledger.open(str(tmp_path / "p.db"))
    ledger.enroll(IDS, four * 1.001, 1e-5)
    assert reserve_plan(ledger, "m", plan, plan, plan, plan).size == 4


def test_many_kinds_in_several_plans_are_added_up(monkeypatch: pytest.MonkeyPatch) -> None:
    plan, other = make(Sample(), 100), make(Scale(), 100)
    other = other.public().bind(Budgets([1.0, 3.0, 1.0, 3.0], 1e-5, ids=IDS))
    together = training_costs(plan, other).epsilon(1e-5)
    monkeypatch.setattr(plans, "GROUP_LIMIT", 3)  # of two groups in each there are four kinds
    added = training_costs(plan, other).epsilon(1e-5)
    assert (together <= added).all()
    assert (added <= 1.2 * together).all()


@pytest.mark.parametrize(
    "strategy",
    ["scale", *(pytest.param(each, marks=pytest.mark.slow) for each in ("sample", "rounds"))],
)
def test_of_many_groups_neighbours_pay_what_is_enough_for_each(
    strategy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    budgets = Budgets(np.linspace(1.0, 1.5, 16), 1e-5, ids=list(range(16)))
    plan = assign(budgets, strategy, steps=20, expected_batch_size=4, clip_norm=1.0)
    each = plan_costs(plan).rows()
    monkeypatch.setattr(plans, "GROUP_LIMIT", 5)
    costs = plan_costs(plan)
    assert costs.loss.shape[0] <= 5
    assert (costs.rows()[0] >= each[0] * (1 - 1e-3)).all()
    assert (costs.epsilon(1e-5) <= 1.1 * Costs(*each).epsilon(1e-5)).all()


def test_a_training_is_its_plans_its_people_and_what_else_is_fixed(tmp_path: Path) -> None:
    """Whatever it charged: the same charges of the same people are another training."""
    plan, ids = make(Sample()), IDS
    ledger = Ledger.open(f"sqlite:///{tmp_path}/p.db")
    ledger.enroll(ids, 90.0, 1e-5)
    admitted = reserve_plan(ledger, "m", plan, terms={"rate": 0.1}).tolist()
    assert admitted == ids
    assert reserve_plan(ledger, "m", make(Sample()), terms={"rate": 0.1}).tolist() == admitted
    spent = ledger.spent(ids).tolist()
    budgets = Budgets([1.0, 1.0, 3.0, 3.0], 1e-5, ids=["b", "a", "c", "d"])
    for reserve in (
        lambda: reserve_plan(ledger, "m", plan),
        lambda: reserve_plan(ledger, "m", plan, terms={"rate": 0.2}),
        lambda: reserve_plan(ledger, "m", plan, plan, terms={"rate": 0.1}),
        lambda: reserve_plan(ledger, "m", make(Scale()), terms={"rate": 0.1}),
        lambda: reserve_plan(ledger, "m", plan.public().bind(budgets), terms={"rate": 0.1}),
        lambda: ledger.reserve_costs("m", ids, training_costs(plan)),
        lambda: ledger.reserve("m", ids, np.sqrt(spent), 1.0),
    ):
        with pytest.raises(AnalysisError, match="in use for another analysis or other terms"):
            reserve()
    assert ledger.spent(ids).tolist() == spent


def test_a_budget_that_was_raised_meanwhile_is_not_charged_again(tmp_path: Path) -> None:
    """What was paid is one of the pairs that are asked, whatever the account would pay now."""
    plan = make(Sample())
    ledger = Ledger.open(f"sqlite:///{tmp_path}/p.db")
    ledger.enroll(IDS, 3.1, 1e-5)
    assert reserve_plan(ledger, "m", plan).size == 4
    spent = ledger.spent(IDS).tolist()
    ledger.enroll(IDS, 60.0, 1e-5)
    assert reserve_plan(ledger, "m", plan).size == 4
    assert ledger.spent(IDS).tolist() == spent


def test_a_plan_without_ids_is_refused(tmp_path: Path) -> None:
    budgets = Budgets([1.0, 2.0], 1e-5)
    plan = assign(budgets, Scale(), steps=3, expected_batch_size=1, clip_norm=1.0)
    with refused(InputError, "ids"):
        reserve_plan(Ledger.open(f"sqlite:///{tmp_path}/p.db"), "m", plan)
