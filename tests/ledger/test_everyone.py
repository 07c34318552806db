"""A charge of everyone, some blocks at a time, is that of a list of all: whole or not at all."""

import tracemalloc
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import sqlalchemy as sa

from apiece.errors import AnalysisError, InputError, StateError
from apiece.ledger import Ledger, chain, codec, fold, schema
from apiece.ledger.database import transaction
from refusals import refused

SIZE = 2 * codec.BLOCK + 77


def ids_of(kind: str, size: int = SIZE) -> Any:
    numbers = np.random.default_rng(0).permutation(size)
    return numbers if kind == "integer" else np.char.add("p", numbers.astype(str))


def norms_of(ids: Any) -> Any:
    """Something of each person's own, from 0 to 1."""
    numbers = ids if ids.dtype.kind == "i" else np.char.lstrip(ids, "p").astype(int)
    return (np.asarray(numbers) * 7919 % 1000) / 999


@pytest.fixture
def a_block_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (chain, schema):
        monkeypatch.setattr(module, "CHUNK", 1)
    monkeypatch.setattr(fold, "SPAN", 1)


def made(url: str, kind: str) -> Ledger:
    ids = ids_of(kind)
    epsilon = np.random.default_rng(1).choice([0.05, 0.2, 1.0], ids.size)
    ledger = Ledger.open(url)
    ledger.enroll(ids[:5000], epsilon[:5000], 1e-6)
    ledger.enroll(ids[5000:], epsilon[5000:], 1e-6)
    return ledger


@pytest.mark.usefixtures("a_block_at_a_time")
@pytest.mark.parametrize("kind", ["integer", "text"])
def test_everyone_is_the_list_of_all(kind: str, ledger_url: str, tmp_path: Any) -> None:
    ids = ids_of(kind)
    listed, every = made(f"{tmp_path}/listed.db", kind), made(ledger_url, kind)
    for number in range(3):
        some = listed.reserve(f"q{number}", ids, norms_of(ids), 9.0)
        assert every.reserve_everyone(f"q{number}", norms_of, 9.0) == some.size
        assert np.concatenate(list(every.admitted(f"q{number}"))).tolist() == some.tolist()
        assert 0 < some.size < ids.size
    one = listed.reserve("one", ids[::-1], 0.3, 9.0)
    assert every.reserve_everyone("one", 0.3, 9.0) == one.size
    assert every.spent(ids).tolist() == listed.spent(ids).tolist()
    found = every.verify()
    assert (found.ok, found.people) == (True, ids.size)
    # whoever was charged, and in whatever order, the record is read back in that of enrolment
    assert np.concatenate(list(listed.admitted("one"))).tolist() == one[::-1].tolist()


@pytest.mark.usefixtures("a_block_at_a_time")
def test_repeated_it_charges_nobody_again(ledger_url: str) -> None:
    ledger = made(ledger_url, "integer")
    ids = ids_of("integer")
    paid, spent = ledger.reserve_everyone("q", norms_of, 9.0), ledger.spent(ids).tolist()
    ledger.enroll([SIZE + 5], 1.0, 1e-6)  # who comes later is not asked by the repetition
    again = Ledger.open(ledger_url)
    assert again.reserve_everyone("q", norms_of, 9.0) == paid
    assert again.spent(ids).tolist() == spent
    assert again.spent([SIZE + 5]).tolist() == [0.0]
    for norms, noise in ((0.5, 9.0), (norms_of, 8.0), (lambda i: norms_of(i) + 1e-6, 9.0)):
        with pytest.raises(AnalysisError, match="other people or norms"):
            again.reserve_everyone("q", norms, noise)
    with pytest.raises(AnalysisError, match="other people or norms"):
        again.reserve("q", ids, norms_of(ids), 9.0)
    ledger.reserve("listed", ids, 0.5, 9.0)
    with pytest.raises(AnalysisError, match="other people or norms"):
        ledger.reserve_everyone("listed", 0.5, 9.0)
    ledger.commit("q")
    with pytest.raises(AnalysisError, match="already committed"):
        again.reserve_everyone("q", norms_of, 9.0)
    assert sum(part.size for part in again.admitted("q")) == paid
    with pytest.raises(AnalysisError, match="unknown"):
        next(again.admitted("never"))
    assert ledger.verify().ok


def _interrupted(ids: Any) -> Any:
    if SIZE - 1 in ids:
        raise KeyboardInterrupt
    return norms_of(ids)


def _not_a_number(ids: Any) -> Any:
    return np.where(ids == ids_of("integer")[-1], np.nan, 0.5)


def _too_few(ids: Any) -> Any:
    return np.full(min(ids.size, 4000), 0.5)


@pytest.mark.usefixtures("a_block_at_a_time")
@pytest.mark.parametrize(
    ("norms", "error"),
    [
        (_interrupted, KeyboardInterrupt),
        (_not_a_number, InputError),
        (_too_few, InputError),
        (lambda _: 0.5, InputError),
        (lambda _: ["a"], InputError),
        ([0.5], InputError),
        (-1.0, InputError),
        (float("nan"), InputError),
    ],
)
def test_a_charge_that_fails_on_the_way_charges_nobody(
    norms: Callable[[Any], Any], error: type[BaseException], ledger_url: str
) -> None:
    """Blocks before the one that fails were written already, in the same transaction."""
    ledger = made(ledger_url, "integer")
    head = ledger.head()
    with pytest.raises(error):
        ledger.reserve_everyone("q", norms, 9.0)
    assert ledger.status("q") == "unknown"
    assert ledger.head() == head
    assert not ledger.spent(ids_of("integer")).any()
    assert ledger.verify().ok
    assert ledger.reserve_everyone("q", norms_of, 9.0) > 0


@pytest.mark.usefixtures("a_block_at_a_time")
@pytest.mark.parametrize("table", ["apiece_balance", "apiece_people"])
def test_damage_of_the_last_block_is_met_before_anyone_is_charged(
    table: str, ledger_url: str
) -> None:
    ledger, column = made(ledger_url, "integer"), "terms" if "people" in table else "spent"
    with transaction(ledger.engine, writes=True) as connection:
        of = schema.BALANCE if "balance" in table else schema.PEOPLE
        raw = connection.execute(sa.select(of.c[column]).where(of.c.block == 2)).scalar_one()
        edited = {column: bytes(raw)[:-1] + b"\1"}
        connection.execute(sa.update(of).where(of.c.block == 2).values(edited))
    with pytest.raises(StateError, match=r"damaged; nothing was charged"):
        ledger.reserve_everyone("q", norms_of, 9.0)
    assert ledger.status("q") == "unknown"
    found = ledger.verify()
    assert any("block 2" in problem for problem in found.problems)
    assert not any("block 0" in problem or "block 1" in problem for problem in found.problems)


def test_nobody_is_everyone_of_an_empty_ledger(ledger_url: str) -> None:
    ledger = Ledger.open(ledger_url)
    assert ledger.reserve_everyone("q", 1.0, 9.0) == 0
    assert list(ledger.admitted("q")) == []
    with refused(InputError, "noise_stddev"):
        ledger.reserve_everyone("r", 1.0, 0.0)
    assert ledger.verify().ok


def test_memory_does_not_follow_the_people(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Four times as many people: about the same peak. A list of all ids would need four times."""
    for module in (chain, schema):
        monkeypatch.setattr(module, "CHUNK", 2)
    monkeypatch.setattr(fold, "SPAN", 2)
    peaks = []
    for blocks in (8, 32):
        ids = np.arange(blocks * codec.BLOCK)
        Ledger.open(f"{tmp_path}/{blocks}.db").enroll(ids, 1.0, 1e-6)
        ledger = Ledger.open(f"{tmp_path}/{blocks}.db")
        tracemalloc.start()
        assert ledger.reserve_everyone("q", 0.5, 9.0) == ids.size
        assert sum(part.size for part in ledger.admitted("q")) == ids.size
        assert ledger.verify().ok
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] < 1.3 * peaks[0]
