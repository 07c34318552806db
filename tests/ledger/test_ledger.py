"""The ledger's protocol, on both databases."""

import threading
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from apiece.errors import BudgetError, DataError, InputError, StateError
from apiece.filters import GaussianFilter, costs_of
from apiece.filters.convert import SHARE, gaussian_budget, gaussian_mu
from apiece.ledger import Ledger
from apiece.ledger.codec import BLOCK
from apiece.mechanisms import Gaussian, Repeated, Sampled
from refusals import refused


def test_charges_like_the_filter_in_memory(ledger_url: str) -> None:
    ledger = Ledger.open(ledger_url)
    rng = np.random.default_rng(0)
    ids, epsilon = np.arange(100, 130), rng.choice([0.2, 0.5, 1.0], 30)
    assert ledger.enroll(ids, epsilon, 1e-6) == 30
    memory = GaussianFilter(epsilon, 1e-6, slack=SHARE)
    for step in range(12):
        norms = rng.random(30) * (rng.random(30) > 0.2)
        admitted = ledger.reserve(f"step {step}", ids, norms, 6.0)
        assert admitted.tolist() == ids[memory.admit(norms, 6.0)].tolist()
    np.testing.assert_allclose(ledger.spent(ids), memory.spent, rtol=1e-9, atol=1e-13)
    assert (ledger.spent(ids) + ledger.remaining(ids) <= gaussian_mu(epsilon, 1e-6) ** 2).all()
    assert 0 < len(admitted) < 30
    assert ledger.verify().ok


def test_ledger_charges_costs_like_the_filter(ledger_url: str) -> None:
    """Trainings and queries in turn: the same people in, and the same of both currencies spent."""
    ledger, ids = Ledger.open(ledger_url), np.arange(40)
    rng = np.random.default_rng(2)
    epsilon, delta = rng.choice([0.5, 1.0, 3.0], 40), rng.choice([1e-6, 1e-5], 40)
    ledger.enroll(ids, epsilon, delta)
    memory = GaussianFilter(epsilon, delta, slack=SHARE)
    training = [Repeated(Sampled(Gaussian(z), 0.05), 200) for z in (8.0, 4.0, 2.5)]
    costs = costs_of(training, 1e-6).of(rng.integers(0, 3, 40))
    for step in range(10):
        if step % 2:
            norms = rng.random(40)
            admitted, expected = (
                ledger.reserve(f"{step}", ids, norms, 9.0),
                memory.admit(norms, 9.0),
            )
        else:
            admitted, expected = (
                ledger.reserve_costs(f"{step}", ids, costs),
                memory.admit_costs(costs),
            )
        assert admitted.tolist() == ids[expected].tolist()
    assert 0 < len(admitted) < 40
    assert ledger.spent(ids) == pytest.approx(memory.spent, rel=1e-6)
    assert ledger.remaining_slack(ids) == pytest.approx(memory.slack_remaining, rel=1e-6, abs=1e-18)
    assert (ledger.remaining_slack(ids) >= 0).all()
    assert ledger.verify().ok


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
    limit = gaussian_budget(np.where(strict, 0.1, 1.0), 1e-6, 1e-7)
    assert admitted.tolist() == asked[(norms / 15) ** 2 <= limit].tolist()
    spent = ledger.spent(asked)
    assert ((spent > 0) == np.isin(asked, admitted)).all()
    assert not ledger.spent(np.setdiff1d(ids, asked)).any()
    assert ledger.verify() == Ledger.open(ledger_url).verify()
    assert ledger.verify().ok


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
    with refused(InputError, "norms[0]", -1):
        ledger.reserve("q", ["ann", "bob"], [-1.0, 1.0], 10.0)
    with refused(InputError, "noise_stddev"):
        ledger.reserve("q", ["ann"], 1.0, 0.0)
    with pytest.raises(InputError, match="one a person"):
        ledger.reserve("q", ["ann", "bob"], [1.0], 10.0)
    with refused(InputError, "analysis_id"):
        ledger.reserve("", ["ann"], 1.0, 10.0)
    with pytest.raises(StateError, match="unknown to this ledger"):
        ledger.commit("never")
    with refused(InputError, "result"):
        ledger.commit("never", float("nan"))
    with refused(BudgetError, "epsilon"):
        ledger.enroll(["cy"], np.nan, 1e-6)
    with refused(BudgetError, "outside"):
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


def test_sixteen_threads_share_one(ledger_url: str) -> None:
    """While people are enrolled, each is charged for their own contributions alone."""
    shared = Ledger.open(ledger_url)
    ids = np.arange(40)
    failures: list[BaseException] = []

    def work(own: int) -> None:
        try:
            shared.enroll(ids[own::8], 1.0, 1e-6)
            for k in range(3):
                shared.reserve(f"{own}-{k}", ids[own::8], (own + 1) / 20, 10.0)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(k,)) for k in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    own = (ids % 8 + 1) / 20
    assert shared.spent(ids) == pytest.approx(3 * own**2 / 100, rel=1e-9)
    assert shared.verify().ok
