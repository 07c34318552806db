"""What a ledger is charged for trainings with fixed steps: the Gaussian alone, part by part."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from apiece import Budgets, Trainer, assign
from apiece.accounting import privacy_curve
from apiece.assignment import Correlated
from apiece.errors import AnalysisError, InputError, StateError
from apiece.ledger import Ledger
from apiece.ledger.plans import reserve_plan
from apiece.mechanisms import Gaussian
from apiece.plan import BoundPlan
from apiece.training import charge_training

RECORDS, STEPS = 40, 20
IDS = [f"p{number:02d}" for number in range(RECORDS)]
EPSILON = np.repeat([1.0, 3.0], RECORDS // 2)


def make_plan(epsilon: np.ndarray = EPSILON, noise: Correlated | None = None) -> BoundPlan:
    budgets = Budgets(epsilon, 1e-5, ids=IDS)
    # Four passes of five steps.
    return assign(
        budgets,
        "scale",
        steps=STEPS,
        expected_batch_size=8,
        clip_norm=1.0,
        noise=noise or Correlated(),
    )


def make_ledger(folder: Path, epsilon: object) -> Ledger:
    return Ledger.make(f"{folder}/p.db", IDS, epsilon, 1e-5, slack=0.0)


def make_trainer(plan: BoundPlan, **options: Any) -> Trainer:
    torch.manual_seed(0)
    model = nn.Linear(3, 2)
    inputs = torch.randn(RECORDS, 3, generator=torch.Generator().manual_seed(1))
    return Trainer(
        model,
        torch.optim.SGD(model.parameters(), lr=0.1),
        nn.CrossEntropyLoss(reduction="none"),
        plan,
        (inputs, (inputs[:, 0] > 0).long()),
        **options,
    )


def test_an_account_of_exactly_the_promise_pays_and_has_nothing_left(tmp_path: Path) -> None:
    plan = make_plan()
    ledger = make_ledger(tmp_path, EPSILON)
    whole = ledger.remaining(IDS)
    assert charge_training(ledger, "m", plan).included.all()
    np.testing.assert_allclose(ledger.spent(IDS) / whole, 1.0, atol=2e-3)
    np.testing.assert_array_equal(ledger.remaining_slack(IDS), 0)
    # A hair less does not pay.
    (tmp_path / "less").mkdir()
    less = make_ledger(tmp_path / "less", 0.995 * EPSILON)
    with pytest.raises(AnalysisError, match="nobody"):
        charge_training(less, "m", plan)


def test_twelve_trainings_compose_to_the_exact_gaussian(tmp_path: Path) -> None:
    """Each at a twelfth of μ²: together they are one Gaussian, and the account just pays."""
    multipliers = []
    for epsilon in (1.0, 3.0):
        low, high = 0.1, 100.0
        for _ in range(60):
            middle = (low * high) ** 0.5
            spends = privacy_curve(Gaussian(middle)).epsilon(1e-5).upper > epsilon
            low, high = (middle, high) if spends else (low, middle)
        multipliers.append(high)
    twelfth = [
        privacy_curve(Gaussian(z * 12**0.5)).epsilon(1e-5).upper * (1 + 1e-9) for z in multipliers
    ]
    plan = make_plan(np.repeat(twelfth, RECORDS // 2))
    ledger = make_ledger(tmp_path, EPSILON)
    whole = ledger.remaining(IDS)
    for number in range(12):
        assert reserve_plan(ledger, f"model {number}", plan).size == RECORDS
    np.testing.assert_allclose(ledger.spent(IDS) / whole, 1.0, atol=2e-3)
    for group, epsilon in enumerate((1.0, 3.0)):
        mechanism = plan.mechanism_for(group)
        assert isinstance(mechanism, Gaussian)
        together = privacy_curve(Gaussian(mechanism.noise_multiplier / 12**0.5))
        assert together.epsilon(1e-5).upper <= epsilon
        assert together.epsilon(1e-5).upper == pytest.approx(epsilon, rel=2e-3)
    assert reserve_plan(ledger, "model 12", plan).size == 0


@pytest.mark.parametrize(
    "noise", [Correlated(), Correlated(bands=12), Correlated(buffers=3)], ids=repr
)
def test_parts_cost_together_what_the_whole_costs(tmp_path: Path, noise: Correlated) -> None:
    plan = make_plan(noise=noise)
    ledger = make_ledger(tmp_path, 1.002 * EPSILON)
    charge = charge_training(ledger, "m", plan, stops=(3, 10))
    costs = [ledger.spent(IDS).copy()]
    for steps in (10, 20):
        assert charge.extend() == steps
        costs.append(ledger.spent(IDS).copy())
    for steps, cost in zip((3, 10, 20), costs, strict=True):
        for group in range(2):
            mechanism = plan.mechanism_at(group, steps)
            assert isinstance(mechanism, Gaussian)
            exact = mechanism.noise_multiplier**-2
            paid = cost[plan.group_index == group]
            assert (paid >= exact).all()
            np.testing.assert_allclose(paid, exact, rtol=1e-5)
    with pytest.raises(StateError, match="all 20 steps"):
        charge.extend()


def test_what_is_not_begun_is_charged_to_nobody_where_stops_were_declared(tmp_path: Path) -> None:
    plan = make_plan()
    ledger = make_ledger(tmp_path, EPSILON)
    charge = charge_training(ledger, "m", plan, stops=(5, 10))
    trainer = make_trainer(
        plan,
        seed=0,
        included=charge.included,
        withdrawn=charge.withdrawn,
        paid_steps=charge.paid_steps,
        checkpoint=tmp_path / "run",
    )
    trainer.fit(5)
    with pytest.raises(StateError, match="5 steps are paid"):
        trainer.step()
    charge.extend()
    trainer.fit(5)
    trainer.stop()
    with pytest.raises(StateError, match="was ended after 10 of 20"):
        trainer.step()
    assert not (tmp_path / "run" / "key").exists()
    charge.release(trainer.model.state_dict())
    assert ledger.status("m, steps 6 to 10") == "committed"
    assert ledger.status("m, steps 11 to 20") == "unknown"
    whole = ledger.remaining(IDS) + ledger.spent(IDS)
    assert (ledger.spent(IDS) < 0.6 * whole).all()
    with pytest.raises(AnalysisError, match="released"):
        charge.extend()
    # Without a declaration all is paid, however early the run ends.
    (tmp_path / "b").mkdir()
    undeclared = make_ledger(tmp_path / "b", EPSILON)
    charge_training(undeclared, "m", plan)
    np.testing.assert_allclose(undeclared.spent(IDS) / whole, 1.0, atol=2e-3)


def test_stops_are_terms(tmp_path: Path) -> None:
    plan = make_plan()
    ledger = make_ledger(tmp_path, 9 * EPSILON)
    charge_training(ledger, "m", plan, stops=(5,))
    for stops in ((), (6,), (5, 10)):
        with pytest.raises(AnalysisError, match="terms"):
            charge_training(ledger, "m", plan, stops=stops)


def test_a_killed_training_goes_on_with_what_was_paid(tmp_path: Path) -> None:
    plan = make_plan()
    ledger = make_ledger(tmp_path, EPSILON)
    charge_training(ledger, "m", plan, stops=(5, 10)).extend()
    spent = ledger.spent(IDS).copy()
    again = charge_training(ledger, "m", plan, stops=(5, 10), resumed=True)
    assert again.paid_steps() == 10
    np.testing.assert_array_equal(ledger.spent(IDS), spent)


def test_who_cannot_pay_for_the_next_part_is_in_no_further_batch(tmp_path: Path) -> None:
    plan = make_plan()
    epsilon = EPSILON.copy()
    epsilon[3] = 0.8
    ledger = make_ledger(tmp_path, epsilon)
    charge = charge_training(ledger, "m", plan, stops=(5,))
    assert charge.included.all()
    assert not charge.withdrawn().any()
    charge.extend()
    assert np.flatnonzero(charge.withdrawn()).tolist() == [3]
    assert ledger.spent(IDS)[3] < ledger.spent(IDS)[4]


@pytest.mark.parametrize("stops", [(0,), (5, 5), (9, 4), (21,), (2.5,)])
def test_stops_that_do_not_rise_are_refused(tmp_path: Path, stops: tuple[Any, ...]) -> None:
    with pytest.raises(InputError, match="stops"):
        charge_training(make_ledger(tmp_path, EPSILON), "m", make_plan(), stops=stops)


def test_stops_are_for_fixed_steps(tmp_path: Path) -> None:
    budgets = Budgets(EPSILON, 1e-5, ids=IDS)
    sampled = assign(budgets, "sample", steps=9, expected_batch_size=6, clip_norm=1.0)
    ledger = make_ledger(tmp_path, 9 * EPSILON)
    with pytest.raises(InputError, match="Correlated"):
        charge_training(ledger, "m", sampled, stops=(3,))
    with pytest.raises(InputError, match="one model"):
        charge_training(ledger, "m", make_plan(), make_plan(), stops=(3,))
    with pytest.raises(StateError, match="no stops"):
        charge_training(ledger, "n", make_plan()).extend()
