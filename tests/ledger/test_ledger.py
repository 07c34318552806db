"""The ledger's protocol, on both databases."""

from fractions import Fraction

import numpy as np
import pytest
import sqlalchemy as sa
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from apiece.errors import BudgetError, DataError, InputError, OptionError, StateError
from apiece.filters import GaussianFilter, RenyiFilter, gaussian_mu
from apiece.ledger import Ledger
from apiece.ledger.codec import BLOCK


def test_charges_like_the_filter_in_memory(ledger_url: str) -> None:
    ledger = Ledger.open(ledger_url)
    rng = np.random.default_rng(0)
    ids, epsilon = np.arange(100, 130), rng.choice([0.2, 0.5, 1.0], 30)
    assert ledger.enroll(ids, epsilon, 1e-6) == 30
    memory = GaussianFilter(epsilon, 1e-6)
    for step in range(12):
        norms = rng.random(30) * (rng.random(30) > 0.2)
        admitted = ledger.reserve(f"step {step}", ids, norms, 6.0)
        assert admitted.tolist() == ids[memory.admit(norms, 6.0)].tolist()
    np.testing.assert_allclose(ledger.spent(ids), memory.spent, rtol=1e-9, atol=1e-13)
    assert (ledger.spent(ids) + ledger.remaining(ids) <= gaussian_mu(epsilon, 1e-6) ** 2).all()
    assert 0 < len(admitted) < 30
    assert ledger.verify().ok


def test_renyi_ledger_charges_like_the_renyi_filter(ledger_url: str) -> None:
    ledger = Ledger.open(ledger_url, method="renyi", order=12)
    ledger.enroll(["a", "b"], [1.2, 3.0], 1e-6)
    memory = RenyiFilter([1.2, 3.0], 1e-6, order=12)
    for step in range(8):
        admitted = ledger.reserve(f"{step}", ["b", "a"], [1.0, 0.8], 5.0)
        expected = memory.admit([0.8, 1.0], 5.0)
        assert sorted(admitted) == [i for i, e in zip("ab", expected, strict=True) if e]
    assert Ledger.open(ledger_url).order == 12
    with pytest.raises(InputError, match="cannot change"):
        Ledger.open(ledger_url, method="gaussian")


def test_reserve_is_idempotent_until_commit(ledger_url: str) -> None:
    ledger = Ledger.open(ledger_url)
    ledger.enroll(["ann", "bob", "cy"], [0.05, 1.0, 1.0], 1e-6)
    first = ledger.reserve("q", ["cy", "ann", "bob"], 1.0, 10.0)
    spent = ledger.spent(["ann", "bob", "cy"])
    again = Ledger.open(ledger_url).reserve("q", ["cy", "ann", "bob"], 1.0, 10.0)
    assert first.tolist() == again.tolist() == ["cy", "bob"]
    assert ledger.spent(["ann", "bob", "cy"]).tolist() == spent.tolist()
    assert spent[0] == 0
    assert spent[1] == pytest.approx(0.01, rel=1e-9)
    assert spent[1] >= 0.01
    with pytest.raises(StateError, match="other people or norms"):
        ledger.reserve("q", ["cy", "ann", "bob"], 0.5, 10.0)
    assert ledger.status("q") == "reserved"
    assert ledger.commit("q", {"answer": 7.5}) == {"answer": 7.5}
    # A second process that computed another noisy answer must release the first one.
    assert ledger.commit("q", {"answer": 9.1}) == {"answer": 7.5}
    assert ledger.result("q") == {"answer": 7.5}
    with pytest.raises(StateError, match="already committed"):
        ledger.reserve("q", ["cy", "ann", "bob"], 1.0, 10.0)
    assert ledger.status("q") == "committed"
    assert ledger.verify().ok


def test_many_blocks_in_any_order(ledger_url: str) -> None:
    ledger = Ledger.open(ledger_url)
    rng = np.random.default_rng(1)
    ids = rng.permutation(3 * BLOCK + 10)
    ledger.enroll(ids[: BLOCK + 5], 1.0, 1e-6)  # the second enrolment fills a block up
    ledger.enroll(ids[BLOCK + 5 :], 0.1, 1e-6)
    asked = rng.permutation(ids)[: 2 * BLOCK]
    norms = rng.random(asked.size)
    admitted = ledger.reserve("q", asked, norms, 15.0)
    strict = np.isin(asked, ids[BLOCK + 5 :])
    limit = np.where(strict, gaussian_mu(0.1, 1e-6), gaussian_mu(1.0, 1e-6)) ** 2
    assert admitted.tolist() == asked[(norms / 15) ** 2 <= limit].tolist()
    spent = ledger.spent(asked)
    assert ((spent > 0) == np.isin(asked, admitted)).all()
    assert not ledger.spent(np.setdiff1d(ids, asked)).any()
    assert ledger.verify() == Ledger.open(ledger_url).verify()
    assert ledger.verify().ok


def test_budgets_change_but_not_below_what_is_spent(ledger_url: str) -> None:
    ledger = Ledger.open(ledger_url)
    ledger.enroll([1, 2], 1.0, 1e-6)
    ledger.reserve("q", [1], 1.0, 5.0)
    with pytest.raises(BudgetError, match=r"person 1.*0\.04"):
        ledger.enroll([3, 2, 1], [1.0, 0.5, 0.1], 1e-6)
    with pytest.raises(DataError, match="no account"):
        ledger.spent([3])  # nothing of the refused call was kept
    assert ledger.enroll([1, 2, 3], [2.0, 0.5, 1.0], 1e-6) == 1
    assert ledger.enroll([1, 2, 3], [2.0, 0.5, 1.0], 1e-6) == 0
    kinds = [entry.kind for entry in ledger.history()]
    assert kinds == ["init", "enroll", "reserve", "amend", "enroll"]
    assert ledger.remaining([1])[0] == pytest.approx(float(gaussian_mu(2.0, 1e-6)) ** 2 - 0.04)
    assert ledger.verify().ok


def test_truncated_and_rewritten_history_is_found_with_the_head(ledger_url: str) -> None:
    ledger = Ledger.open(ledger_url)
    ledger.enroll([1, 2], 1.0, 1e-6)
    ledger.reserve("q", [1], 1.0, 10.0)
    kept = ledger.head()
    ledger.reserve("r", [2], 1.0, 10.0)
    assert ledger.verify(kept).ok
    other = kept._replace(digest="00" * 32)
    assert not ledger.verify(other).ok
    assert not ledger.verify(kept._replace(number=99)).ok


def test_bad_input(ledger_url: str) -> None:
    ledger = Ledger.open(ledger_url)
    ledger.enroll(["ann", "bob"], 1.0, 1e-6)
    with pytest.raises(DataError, match="'eve' has no account"):
        ledger.reserve("q", ["ann", "eve"], 1.0, 10.0)
    with pytest.raises(DataError, match="more than once"):
        ledger.reserve("q", ["ann", "ann"], 1.0, 10.0)
    with pytest.raises(DataError, match="integer ids, but this ledger's are text"):
        ledger.reserve("q", [1], 1.0, 10.0)
    with pytest.raises(InputError, match=r"norms\[1\] = nan"):
        ledger.reserve("q", ["ann", "bob"], [1.0, np.nan], 10.0)
    with pytest.raises(InputError, match=r"norms\[0\] = -1"):
        ledger.reserve("q", ["ann", "bob"], [-1.0, 1.0], 10.0)
    with pytest.raises(InputError, match="noise_stddev"):
        ledger.reserve("q", ["ann"], 1.0, 0.0)
    with pytest.raises(InputError, match="one a person"):
        ledger.reserve("q", ["ann", "bob"], [1.0], 10.0)
    with pytest.raises(InputError, match="analysis_id"):
        ledger.reserve("", ["ann"], 1.0, 10.0)
    with pytest.raises(StateError, match="unknown to this ledger"):
        ledger.commit("never")
    with pytest.raises(InputError, match="result"):
        ledger.commit("never", float("nan"))
    with pytest.raises(BudgetError, match="epsilon"):
        ledger.enroll(["cy"], np.nan, 1e-6)
    with pytest.raises(BudgetError, match="outside"):
        ledger.enroll(["cy"], 1e-12, 1e-20)
    with pytest.raises(DataError, match="all of one kind"):
        ledger.enroll([1.5], 1.0, 1e-6)
    with pytest.raises(DataError, match="flat list"):
        ledger.enroll([], 1.0, 1e-6)
    assert not ledger.spent(["ann", "bob"]).any()
    assert [e.kind for e in ledger.history()] == ["init", "enroll"]


def test_addresses() -> None:
    with pytest.raises(InputError, match="in memory"):
        Ledger.open("sqlite://")
    with pytest.raises(InputError, match="not supported"):
        Ledger.open("mysql://x")
    with pytest.raises(StateError, match="cannot be read") as error:
        Ledger.open("postgresql://me@127.0.0.1:1/none")
    assert "\n" not in str(error.value)
    with pytest.raises(OptionError, match="renyi"):
        Ledger.open("x.db", method="reny")
    with pytest.raises(InputError, match="order"):
        Ledger.open("x.db", method="renyi")


def test_missing_ledger_is_not_made_where_unwanted(ledger_url: str) -> None:
    with pytest.raises(DataError, match="apiece ledger init"):
        Ledger.open(ledger_url, create=False)


def test_schema_of_the_future_is_refused(ledger_url: str) -> None:
    ledger = Ledger.open(ledger_url)
    with ledger.engine.execution_options(apiece_writes=True).begin() as connection:
        connection.execute(sa.text("UPDATE apiece_meta SET value = '99' WHERE key = 'schema'"))
    with pytest.raises(StateError, match="version 99"):
        Ledger.open(ledger_url)


@pytest.mark.parametrize("version", [1, 2])
def test_an_older_version_is_migrated(ledger_url: str, version: int) -> None:
    ledger = Ledger.open(ledger_url)
    ledger.enroll([1, 2], 1.0, 1e-6)
    ledger.reserve("q", [1], 1.0, 10.0)
    ledger.reserve("r", [1, 2], 1.0, 10.0)
    ledger.commit("q", 4)
    with ledger.engine.execution_options(apiece_writes=True).begin() as connection:
        if version == 2:  # version 1 had no such table, and neither has version 3
            connection.exec_driver_sql(
                "CREATE TABLE apiece_analysis (id VARCHAR(200) PRIMARY KEY, reserved BIGINT)"
            )
        connection.exec_driver_sql("ALTER TABLE apiece_entry DROP COLUMN payload_root")
        connection.exec_driver_sql(
            f"UPDATE apiece_meta SET value = '{version}' WHERE key = 'schema'"
        )
    migrated = Ledger.open(ledger_url)
    assert migrated.result("q") == 4
    assert migrated.status("r") == "reserved"
    assert migrated.reserve("r", [1, 2], 1.0, 10.0).tolist() == [1, 2]
    assert [e.kind for e in migrated.history()][-1] == "migrate"
    assert migrated.verify().ok


def test_a_clock_set_back_changes_nothing(ledger_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    ledger = Ledger.open(ledger_url)
    ledger.enroll([1], 0.5, 1e-6)
    ledger.reserve("a", [1], 1.0, 20.0)
    monkeypatch.setattr("time.gmtime", lambda: (1999, 1, 1, 0, 0, 0, 4, 1, 0))
    ledger.reserve("b", [1], 1.0, 20.0)
    entries = list(ledger.history())
    assert entries[-1].at < entries[-2].at
    assert [e.number for e in entries] == [0, 1, 2, 3]
    assert ledger.spent([1])[0] >= 2 / 400
    assert ledger.reserve("c", [1], 1.0, 5.0).size == 0
    assert ledger.verify().ok


@settings(
    max_examples=25,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(
    steps=st.lists(
        st.tuples(st.floats(0, 1), st.floats(0, 1), st.floats(0.5, 20)), min_size=1, max_size=8
    )
)
def test_no_sequence_passes_a_budget(
    steps: list[tuple[float, float, float]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    ledger = Ledger.open(f"sqlite:///{tmp_path_factory.mktemp('law')}/p.db")
    ledger.enroll([1, 2], [0.3, 2.0], 1e-5)
    exact = {1: Fraction(0), 2: Fraction(0)}
    for k, (a, b, stddev) in enumerate(steps):
        for person in ledger.reserve(str(k), [1, 2], [a, b], stddev):
            exact[int(person)] += (Fraction(a if person == 1 else b) / Fraction(stddev)) ** 2
    for person, epsilon in ((1, 0.3), (2, 2.0)):
        assert exact[person] <= Fraction(float(ledger.spent([person])[0]))
        assert exact[person] <= Fraction(float(gaussian_mu(epsilon, 1e-5))) ** 2
