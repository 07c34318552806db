"""Accounts of people who were promised ρ: charged by ρ, and by nothing whose ρ is infinite."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from apiece import Composed, Gaussian, Laplace, Ledger, Repeated, Sampled, privacy_curve
from apiece.accounting import concentrated_rho
from apiece.accounting.concentrated import concentrated_epsilon
from apiece.accounting.renyi import _step_divergence
from apiece.cli import run
from apiece.errors import BudgetError, InputError
from apiece.filters import Costs, costs_of
from apiece.ledger import check_receipt, codec, proofs, receipt, reserve_alike
from apiece.mechanisms import Allocated, Concentrated, DiscreteGaussian, Finite, Stated


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    """Ann was promised ρ = .5, and bob an ε."""
    ledger = Ledger.make(f"{tmp_path}/people.db", ["ann"], rho=0.5, delta=1e-6)
    ledger.enroll(["bob"], 9.0, 1e-6)
    return ledger


def pay(ledger: Ledger, name: str, mechanism: object) -> list[str]:
    """Return who pays for a mechanism."""
    return reserve_alike(ledger, name, costs_of([mechanism], 1e-6)).tolist()  # type: ignore[list-item]


@pytest.mark.parametrize("rho", [1e-4, 0.07, 0.5, 2.56, 50.0])
@pytest.mark.parametrize("delta", [1e-12, 1e-5, 0.1])
def test_the_epsilon_of_a_rho_holds_and_is_close(rho: float, delta: float) -> None:
    found = float(concentrated_epsilon(rho, delta))
    gaussian = float(privacy_curve(Gaussian(1 / math.sqrt(2 * rho))).epsilon(delta).lower)
    simple = rho + 2 * math.sqrt(rho * math.log(1 / delta))
    assert gaussian <= found <= simple
    best = float(privacy_curve(Concentrated(rho)).epsilon(delta).upper)
    assert found == pytest.approx(best, rel=2e-3, abs=1e-9)


STEPS = (
    Gaussian(1.3), Laplace(0.7), Laplace(4.0), Sampled(Gaussian(2.0), 0.1), Allocated(2.0, 5),
    DiscreteGaussian(3.0, 2), Finite([0.6, 0.4], [0.3, 0.7]), Stated(1.5), Stated(20.0),
    Sampled(Laplace(0.5), 0.3),
)  # fmt: skip


@pytest.mark.parametrize("step", STEPS, ids=repr)
def test_no_divergence_is_above_rho_times_its_order(step: object) -> None:
    orders = 1 + np.geomspace(1e-3, 300, 60)
    # Computed by the Rényi accountant, from above: by rounding alone where it is exact.
    divergences = _step_divergence(step, orders)  # type: ignore[arg-type]
    rho = concentrated_rho(step)  # type: ignore[arg-type]
    assert (divergences <= rho * orders * (1 + 1e-9) + 1e-12).all()


def test_rho_adds_up_and_is_infinite_where_all_may_be_told() -> None:
    assert concentrated_rho(Repeated(Gaussian(10.0), 50)) == pytest.approx(0.25)
    assert concentrated_rho(Composed(Concentrated(0.1), Gaussian(2.0))) == pytest.approx(0.225)
    assert concentrated_rho(Composed(Gaussian(2.0), Stated(0.1, 1e-9))) == math.inf
    assert concentrated_rho(Finite([0.5, 0.5, 0.0], [0.5, 0.4, 0.1])) == math.inf
    # Sampling lowers ε and not ρ: at large orders the record is as visible as without the coin.
    orders = np.array([3000.0])
    sampled = _step_divergence(Sampled(Gaussian(2.0), 0.1), orders)
    assert float(sampled[0] / orders[0]) > 0.99 * concentrated_rho(Gaussian(2.0))


def test_what_has_that_rho_is_paid_to_the_last_unit(ledger: Ledger) -> None:
    assert "ann" in pay(ledger, "a", Concentrated(0.25 - 1e-12))
    # μ²/2 = 1/8, twice.
    assert ledger.reserve("b", ["ann"], norms=1.0, noise_stddev=2.0).tolist() == ["ann"]
    assert ledger.reserve("c", ["ann"], norms=1.0, noise_stddev=2.0).tolist() == ["ann"]
    assert "ann" not in pay(ledger, "d", Concentrated(1e-9))
    assert ledger.verify().ok


def test_a_rho_above_the_promise_is_not_paid(ledger: Ledger) -> None:
    assert "ann" not in pay(ledger, "a", Concentrated(0.5 * (1 + 1e-9)))
    assert "ann" in pay(ledger, "b", Concentrated(0.5 * (1 - 1e-9)))


@pytest.mark.parametrize("mechanism", [
    Stated(0.01, 1e-9), Composed(Gaussian(100.0), Stated(0.01, 1e-12)),
    Finite([0.999999, 1e-6], [1.0, 0.0]),
])  # fmt: skip
def test_what_has_an_infinite_rho_is_not_paid(ledger: Ledger, mechanism: object) -> None:
    assert "ann" not in pay(ledger, "a", mechanism)
    # A pair with a slack, from a query that finds groups, as little.
    paid = ledger.reserve_costs("b", ["ann", "bob"], Costs.fixed([1e-3, 1e-3], 1e-9))
    assert paid.tolist() == ["bob"]
    assert ledger.verify().ok


def test_an_account_of_epsilon_pays_concentrated_by_pairs(ledger: Ledger) -> None:
    assert pay(ledger, "a", Concentrated(0.3)) == ["ann", "bob"]
    blocks = {
        person: spent
        for ids, _, spents in ledger.account_blocks()
        for person, spent in zip(ids.tolist(), spents.tolist(), strict=True)
    }
    ann, bob = blocks["ann"], blocks["bob"]
    # Ann pays 2ρ alone; of bob more, since no Gaussian without slack stands for ρ.
    assert ann[0] * codec.UNIT == pytest.approx(0.6, rel=1e-9)
    assert ann[1] == 0 < bob[1]


def test_asked_again_nobody_pays_twice(ledger: Ledger) -> None:
    costs = costs_of([Concentrated(0.3)], 1e-6)
    first = reserve_alike(ledger, "a", costs, terms={"what": 1})
    again = reserve_alike(ledger, "a", costs, terms={"what": 1})
    assert first.tolist() == again.tolist() == ["ann", "bob"]
    # More than was paid takes in nobody.
    more = costs_of([Concentrated(0.4)], 1e-6)
    assert "ann" not in reserve_alike(ledger, "a", more, terms={"what": 1}).tolist()


def test_a_promise_of_rho_does_not_become_one_of_epsilon_once_spent(ledger: Ledger) -> None:
    ledger.enroll(["ann"], 3.0, 1e-6)
    ledger.enroll(["ann"], rho=0.5, delta=1e-6)
    pay(ledger, "a", Concentrated(0.3))
    with pytest.raises(BudgetError, match="promised rho"):
        ledger.enroll(["ann"], 30.0, 1e-6)
    with pytest.raises(BudgetError, match=r"rho = 0\.2 is below what is spent, rho = 0\.3"):
        ledger.enroll(["ann"], rho=0.2, delta=1e-6)
    # What bob spent has a slack.
    with pytest.raises(BudgetError, match="slack"):
        ledger.enroll(["bob"], rho=50.0, delta=1e-6)
    assert ledger.enroll(["ann"], rho=0.6, delta=1e-6) == 0
    assert ledger.verify().ok


def test_a_receipt_says_rho_and_the_epsilon_of_what_was_spent(ledger: Ledger) -> None:
    pay(ledger, "a", Concentrated(0.3))
    account = receipt(ledger, "ann")
    assert account.rho == pytest.approx(0.5)
    assert account.epsilon == pytest.approx(float(concentrated_epsilon(0.5, 1e-6)))
    assert account.told == pytest.approx(float(concentrated_epsilon(0.3, 1e-6)))
    assert account.spent == pytest.approx(0.6)
    assert receipt(ledger, "bob").rho is None


def test_a_receipt_of_a_promise_can_be_checked(ledger: Ledger) -> None:
    ledger.enroll(["eve"], rho=0.5, delta=1e-6)
    assert len(ledger.reserve("q", ["ann", "bob"], norms=1.0, noise_stddev=1.1)) == 2
    head = ledger.publish()
    for person in ("ann", "bob", "eve"):
        assert check_receipt(ledger.prove(person, head), head) == []


def test_an_account_beyond_its_promise_is_found(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger.reserve("q", ["ann"], norms=1.0, noise_stddev=1.1)
    list_leaves = proofs._list_account_leaves

    def lower_limits(*arguments: Any) -> Iterator[bytes]:
        for leaf in list_leaves(*arguments):
            fields = json.loads(leaf)
            fields[4] = 1
            yield json.dumps(fields, separators=(",", ":")).encode()

    monkeypatch.setattr(proofs, "_list_account_leaves", lower_limits)
    head = ledger.publish()
    assert check_receipt(ledger.prove("ann", head), head) == ["account: over its budget"]
    assert check_receipt(ledger.prove("bob", head), head) == []


@pytest.mark.parametrize("terms", [
    {"epsilon": 1.0, "rho": 1.0, "delta": 1e-6}, {"delta": 1e-6}, {"rho": 1.0},
    {"rho": 1.0, "delta": 1e-6, "slack": 0.1},
])  # fmt: skip
def test_a_promise_is_one_of_both(ledger: Ledger, terms: dict[str, float]) -> None:
    with pytest.raises(InputError):
        ledger.enroll(["eve"], **terms)


@pytest.mark.parametrize("rho", [0.0, -1.0, math.nan, math.inf, 1e-17, 1e9])
def test_what_is_no_rho_is_refused(ledger: Ledger, rho: float) -> None:
    with pytest.raises(BudgetError):
        ledger.enroll(["eve"], rho=rho, delta=1e-6)


def test_the_command_opens_such_accounts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table = tmp_path / "people.csv"
    table.write_text("id,promised\nann,0.5\nbob,0.05\n")
    url = f"sqlite:///{tmp_path}/people.db"
    options = ["--data", str(table), "--person", "id", "--rho", "promised", "--delta", "1e-6"]
    assert run(["ledger", "init", url, *options]) == 0
    assert run(["ledger", "charge", url, '{"concentrated": {"rho": 0.1}}', "--analysis", "a"]) == 0
    capsys.readouterr()
    assert run(["ledger", "receipt", url, "ann"]) == 0
    assert "ρ = 0.5, which is ε = " in capsys.readouterr().out
    spent = [receipt(Ledger.open(url), person).spent for person in ("ann", "bob")]
    assert spent[0] > 0 == spent[1]
    for extra in (["--epsilon", "promised"], ["--slack", "0.1"]):
        assert run(["ledger", "init", url, *options, *extra]) == 2
