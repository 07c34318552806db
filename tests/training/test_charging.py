"""A training that a ledger pays for: everyone once, before it, for one model."""

from pathlib import Path

import numpy as np
import pytest
import torch

from apiece.accounting import privacy_curve
from apiece.assignment import assign
from apiece.budgets import Budgets
from apiece.errors import AnalysisError, DataError, InputError
from apiece.ledger import Ledger
from apiece.ledger.plans import plan_costs
from apiece.mechanisms import Gaussian
from apiece.plan import BoundPlan
from apiece.training import charge_training

WHO = ["ann", "bob", "cy", "dan"]


def plan() -> BoundPlan:
    budgets = Budgets([1.0, 3.0, 1.0, 3.0], 1e-5, ids=WHO)
    return assign(budgets, "scale", steps=4, expected_batch_size=2, clip_norm=1.0)


def ledger(folder: Path, epsilon: object = 90.0) -> Ledger:
    made = Ledger.open(f"{folder}/p.db")
    made.enroll(WHO, epsilon, 1e-5)
    return made


def test_one_charge_pays_for_one_model(tmp_path: Path) -> None:
    """Two runs under one name: the second to finish must not release its model."""
    account, made = ledger(tmp_path), plan()
    charges = [charge_training(account, "m", made) for _ in range(2)]
    spent = account.spent(WHO)
    assert (spent > 0).all()
    assert charges[0].included.all()
    assert "included" not in repr(charges[0])
    first, second = ({"w": torch.full((2,), float(k))} for k in range(2))
    digest = charges[0].release(first)
    assert charges[0].release(first) == digest
    with pytest.raises(AnalysisError, match="another model"):
        charges[1].release(second)
    assert account.spent(WHO).tolist() == spent.tolist()
    with pytest.raises(AnalysisError, match="already committed"):
        charge_training(account, "m", made)
    # a run that goes on after its release has those who paid, and only on its own terms
    assert charge_training(account, "m", made, resumed=True).release(first) == digest
    with pytest.raises(AnalysisError, match="other terms"):
        charge_training(account, "m", made, terms={"rate": 0.1}, resumed=True)


def test_who_cannot_pay_for_all_of_it_pays_nothing(tmp_path: Path) -> None:
    account, made = ledger(tmp_path, [90.0, 2.0, 90.0, 90.0]), plan()
    charge = charge_training(account, "m", made, made)
    assert charge.included.tolist() == [True, False, True, True]
    charge.release({"w": torch.ones(2)})
    again = charge_training(account, "m", made, made, resumed=True)
    assert again.included.tolist() == [True, False, True, True]
    assert account.spent(["bob"]).tolist() == [0.0]
    once = account.spent(WHO)
    charge_training(account, "once", made)
    more = (account.spent(WHO) - once)[[0, 2, 3]]
    assert (more < once[[0, 2, 3]]).all()
    assert (more * 2 >= once[[0, 2, 3]]).all()  # two together cost no more than one after the other


def test_exactly_k_of_t_steps_cost_what_draws_of_them_lose(tmp_path: Path) -> None:
    """The oracle draws outputs, and knows nothing of our bounds."""
    budgets = Budgets([1.0, 3.0, 1.0, 3.0], 1e-3, ids=WHO)
    made = assign(budgets, "allocate", steps=6, expected_batch_size=2, clip_norm=1.0)
    stage, account = made.stages[0], Ledger.open(f"{tmp_path}/p.db")
    account.enroll(WHO, 90.0, 1e-3)
    charge_training(account, "m", made).release({"w": torch.ones(2)})
    spent = account.spent(WHO)
    assert spent[1] > spent[0] > 0
    assert spent[[0, 1]].tolist() == spent[[2, 3]].tolist()
    asked, z, count = np.linspace(0, 3, 13), stage.noise_stddev, 100_000
    rng = np.random.default_rng(8)
    for g, k in enumerate(stage.times.tolist()):
        loss = np.zeros(count)
        for b in range(k):
            size = (b + 1) * 6 // k - b * 6 // k
            out = rng.normal(0, z, (count, size))
            out[np.arange(count), rng.integers(size, size=count)] += 1
            loss += np.log(np.exp((out - 0.5) / z**2).mean(axis=1))
        each = np.maximum(1 - np.exp(asked[:, None] - loss), 0)
        delta, error = each.mean(axis=1), each.std(axis=1) / np.sqrt(count)
        squared, slack = (float(pair[g][0]) for pair in plan_costs(made).rows())
        for share, enough in (
            (1.0, True),
            (0.7, False),
        ):  # less than is charged would be too little
            paid = privacy_curve(Gaussian(1 / np.sqrt(squared * share))).delta(asked).upper + slack
            assert bool((delta - 4 * error <= paid).all()) is enough


def test_who_is_asked_and_who_has_no_account(tmp_path: Path) -> None:
    account = ledger(tmp_path, 1.3)
    with pytest.raises(AnalysisError, match=r"an untouched account needs epsilon from \d"):
        charge_training(account, "poor", plan(), *[plan()] * 20)
    other = Ledger.open(f"{tmp_path}/o.db")
    other.enroll(WHO[1:], 90.0, 1e-5)
    with pytest.raises(DataError, match="'ann' has no account"):
        charge_training(other, "m", plan())
    with pytest.raises(InputError, match="bind"):
        charge_training(account, "m", plan().public())


def test_a_digest_is_of_names_kinds_shapes_and_values(tmp_path: Path) -> None:
    account, made = ledger(tmp_path), plan()
    values = torch.arange(4.0)
    states = [
        {"w": values},
        {"v": values},
        {"w": values.reshape(2, 2)},
        {"w": values.double()},
        {"w": torch.nextafter(values, values + 1)},
        {"w": values, "v": values},
    ]
    digests = set()
    for k, state in enumerate(states):
        digests.add(charge_training(account, f"m{k}", made).release(state))
    assert len(digests) == len(states)
    charge = charge_training(account, "order", made)
    first = charge.release({"a": values, "b": values + 1})
    assert charge.release({"b": values + 1, "a": values}) == first
    assert account.result("order") == {"model": first}
    with pytest.raises(InputError, match="'a' is not a tensor"):
        charge.release({"a": np.zeros(2)})  # type: ignore[dict-item]


def test_texts_of_whole_numbers_are_a_ledgers_numbers(tmp_path: Path) -> None:
    account = Ledger.make(f"{tmp_path}/p.db", [3, 1, 2], [90.0, 90.0, 0.01], 1e-5)

    def charged(ids: list[str], name: str) -> list[bool]:
        budgets = Budgets([1.0, 3.0, 3.0], 1e-5, ids=ids)
        made = assign(budgets, "scale", steps=4, expected_batch_size=2, clip_norm=1.0)
        charge = charge_training(account, name, made)
        assert charge.withdrawn().tolist() == [False] * 3
        return charge.included.tolist()  # type: ignore[no-any-return]

    assert charged(["1", "2", "3"], "one") == [True, False, True]
    assert account.spent([2]).tolist() == [0.0]
    with pytest.raises(InputError, match="1 of 3 are not whole numbers"):
        charged(["1", "02", "3"], "two")
