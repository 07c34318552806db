"""From ids to places: one place an id, and only ids of the ledger's own kind."""

import numpy as np
import pytest

from apiece.errors import DataError
from apiece.ledger.directory import Directory


def directory(ids: list[int] | list[str]) -> Directory:
    found = Directory()
    found.ids = np.array(ids)
    return found


@pytest.mark.parametrize("ids", [[7, -3, 0], ["bob", "ann", ""]])
def test_places_are_in_the_order_of_enrolment(ids: list[int] | list[str]) -> None:
    people = directory(ids)
    assert people.find(np.array(ids[::-1])).tolist() == [2, 1, 0]
    assert people.numbers(np.array(ids[1:2])).tolist() == [1]


def test_strangers() -> None:
    people = directory(["ann", "bob"])
    assert people.find(np.array(["eve", "bob"])).tolist() == [-1, 1]
    with pytest.raises(DataError, match=r"'eve' has no account \(1 such of 2"):
        people.numbers(np.array(["eve", "bob"]))


def test_the_wrong_kind_and_an_id_twice() -> None:
    people = directory([7, 8])
    with pytest.raises(DataError, match="text ids, but this ledger's are integer"):
        people.find(np.array(["7"]))
    with pytest.raises(DataError, match="7 occurs more than once"):
        people.find(np.array([7, 7]))


def test_an_empty_ledger_takes_any_kind_and_knows_nobody() -> None:
    empty = Directory()
    assert empty.kind is None
    assert empty.find(np.array(["ann"])).tolist() == [-1]
    assert empty.find(np.array([], dtype=np.int64)).size == 0
