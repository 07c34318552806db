"""From ids as text to accounts: no two texts are one account, and a stranger is nobody's error."""

from pathlib import Path

import pyarrow as pa
import pytest

from apiece.ledger import Ledger
from apiece.queries import session
from apiece.queries.session import find_accounts


def ids(*texts: str) -> pa.ChunkedArray:
    return pa.chunked_array([texts[:2], texts[2:]], pa.string())


@pytest.fixture
def folder(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/session.db"


def test_whole_numbers_are_written_in_one_way(folder: str) -> None:
    ledger = Ledger.make(folder, [7, -3, 0], 1.0, 1e-6)
    given = ids("7", "07", "+7", " 7", "7.0", "-3", "-0", "0", "9" * 19, "ann", "٧")
    found, can = find_accounts(given, ledger)
    assert found.tolist() == [7, -3, 0]
    assert given.filter(pa.array(can)).to_pylist() == ["7", "-3", "0"]


def test_the_largest_numbers_are_numbers(folder: str) -> None:
    ends = [2**63 - 1, -(2**63), 10**18, -(10**18), 10**18 - 1]
    ledger = Ledger.make(folder, ends, 1.0, 1e-6)
    found, can = find_accounts(ids(*map(str, ends), str(2**63), str(-(2**63) - 1)), ledger)
    assert found.tolist() == ends
    assert can.tolist() == [True] * 5 + [False] * 2


def test_texts_are_themselves(folder: str) -> None:
    ledger = Ledger.make(folder, ["7", "07"], 1.0, 1e-6)
    found, can = find_accounts(ids("07", "7", "007", "8"), ledger)
    assert found.tolist() == ["07", "7"]
    assert can.tolist() == [True, True, False, False]


@pytest.mark.parametrize("kind", [int, str])
def test_part_by_part_it_is_the_same(
    kind: type, folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger = Ledger.make(folder, [kind(i) for i in range(0, 60, 7)], 1.0, 1e-6)
    given = ids(*(str(i) for i in range(50)), "07", "ann")
    found = []
    for part in (session._PART, 1, 3, 52):
        monkeypatch.setattr(session, "_PART", part)
        values, can = find_accounts(given, ledger)
        found.append((values.tolist(), can.tolist()))
    assert found[0][0] == [kind(i) for i in range(0, 50, 7)]
    assert all(each == found[0] for each in found)


def test_nobody(folder: str) -> None:
    ledger = Ledger.open(folder)
    found, can = find_accounts(ids("7"), ledger)
    assert (found.size, can.tolist()) == (0, [False])
    assert find_accounts(ids(), ledger)[1].size == 0
