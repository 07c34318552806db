"""From ids as text to accounts: no two texts are one account, and a stranger is nobody's error."""

from pathlib import Path

import numpy as np
import pytest

from apiece.ledger import Ledger
from apiece.queries.people import with_account


def ids(*texts: str) -> np.ndarray:
    return np.array(texts, dtype=object)


@pytest.fixture
def folder(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/people.db"


def test_whole_numbers_are_written_in_one_way(folder: str) -> None:
    ledger = Ledger.make(folder, [7, -3, 0], 1.0, 1e-6)
    given = ids("7", "07", "+7", " 7", "7.0", "-3", "-0", "0", "9" * 19, "ann", "٧")
    found, can = with_account(given, ledger)
    assert found.tolist() == [7, -3, 0]
    assert given[can].tolist() == ["7", "-3", "0"]


def test_texts_are_themselves(folder: str) -> None:
    ledger = Ledger.make(folder, ["7", "07"], 1.0, 1e-6)
    found, can = with_account(ids("07", "7", "007", "8"), ledger)
    assert found.tolist() == ["07", "7"]
    assert can.tolist() == [True, True, False, False]


def test_nobody(folder: str) -> None:
    ledger = Ledger.open(folder)
    found, can = with_account(ids("7"), ledger)
    assert (found.size, can.tolist()) == (0, [False])
    assert with_account(ids(), ledger)[1].size == 0
