"""From ids to places: one place an id, and only ids of the ledger's own kind."""

from typing import Any

import numpy as np
import pytest
import sqlalchemy as sa

from apiece._types import Ids
from apiece.errors import DataError, StateError
from apiece.ledger import accounts, codec
from apiece.ledger.directory import Directory
from refusals import refused

from .tables import SALT


def write(tables: sa.Connection, ids: np.ndarray) -> None:
    """Let the people of a ledger be these, in this order."""
    terms = np.zeros(ids.size, codec.TERMS)
    parts = [slice(a, a + codec.BLOCK) for a in range(0, ids.size, codec.BLOCK)]
    rows = [(block, ids[part], terms[part]) for block, part in enumerate(parts)]
    accounts.write_people(tables, SALT, rows)


def directory(tables: sa.Connection, ids: list[int] | list[str]) -> Directory:
    write(tables, np.array(ids))
    found = Directory(SALT)
    found.refresh(tables, len(ids))
    return found


@pytest.mark.parametrize("ids", [[7, -3, 0], ["bob", "ann", ""], ["a\0b", "a", "köln"]])
def test_places_are_in_the_order_of_enrolment(
    ids: list[int] | list[str], tables: sa.Connection
) -> None:
    people = directory(tables, ids)
    assert people.find(np.array(ids[::-1])).tolist() == [2, 1, 0]
    assert people.require_places(np.array(ids[1:2])).tolist() == [1]


@pytest.mark.parametrize("kind", ["integer", "text"])
def test_people_who_come_in_parts_of_any_size_are_found(kind: str, tables: sa.Connection) -> None:
    """Against a dictionary: parts that fill blocks and begin them, ids in no order."""
    rng = np.random.default_rng(0)
    every: Any = rng.permutation(30_000)
    if kind == "text":
        every = every.astype(str)
    ids, strangers = every[:20_000], every[20_000:]
    people, truth = Directory(SALT), {each: place for place, each in enumerate(ids.tolist())}
    for size in (1, 2, 4095, 4096, 4097, 4500, 12_000, 12_001, 20_000):
        write(tables, ids[:size])
        people.refresh(tables, size)
        asked = rng.permutation(np.concatenate([ids, strangers[:50]]))
        expected = [place if (place := truth.get(i, size)) < size else -1 for i in asked.tolist()]
        assert people.find(asked).tolist() == expected
    assert people.kind == kind


def test_texts_that_share_one_hash_are_told_apart(
    tables: sa.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = Directory._keys

    def colliding(self: Directory, ids: Ids) -> Any:
        first, second = keys(self, ids)
        return first % np.uint64(3), second

    monkeypatch.setattr(Directory, "_keys", colliding)
    ids = [f"p{i}" for i in range(60)]
    people = directory(tables, ids[:50])
    assert people.find(np.array(ids[::-1])).tolist() == [-1] * 10 + list(range(49, -1, -1))
    with pytest.raises(DataError, match="'p4' occurs more than once"):
        people.find(np.array([*ids, "p4"]))


def test_strangers(tables: sa.Connection) -> None:
    people = directory(tables, ["ann", "bob"])
    assert people.find(np.array(["eve", "bob"])).tolist() == [-1, 1]
    with pytest.raises(DataError, match=r"'eve' has no account \(1 such of 2"):
        people.require_places(np.array(["eve", "bob"]))


def test_the_wrong_kind_and_an_id_twice(tables: sa.Connection) -> None:
    people = directory(tables, [7, 8])
    with pytest.raises(DataError, match="text ids, but this ledger's are integer"):
        people.find(np.array(["7"]))
    with pytest.raises(DataError, match="7 occurs more than once"):
        people.find(np.array([7, 8, 7]))


def test_an_empty_ledger_takes_any_kind_and_knows_nobody(tables: sa.Connection) -> None:
    empty = Directory(SALT)
    empty.refresh(tables, 0)
    assert empty.kind is None
    assert empty.find(np.array(["ann"])).tolist() == [-1]
    assert empty.find(np.array([], dtype=np.int64)).size == 0
    with refused(StateError, 0, "people", 3):
        empty.refresh(tables, 3)
