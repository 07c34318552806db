"""Blocks of people: what is written is read, and a block that is not its digest is refused."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import sqlalchemy as sa

from apiece.errors import StateError
from apiece.ledger import accounts, codec, schema
from apiece.ledger.schema import BALANCE, PEOPLE

from .tables import SALT, pairs, terms

BLOCKS = schema.CHUNK + 3  # more than one query asks for


@pytest.fixture
def people(tables: sa.Connection) -> sa.Connection:
    """Two people a block, who may spend and have spent a number of their own."""
    each = range(BLOCKS)
    accounts.write_people(
        tables, SALT, [(b, np.array([2 * b, 2 * b + 1]), terms(10 * b, 10 * b + 1)) for b in each]
    )
    accounts.write_spent(tables, SALT, [(b, pairs(b, 7 * b, slack=b % 3)) for b in each])
    return tables


def test_what_is_written_is_read(people: sa.Connection) -> None:
    asked = [BLOCKS - 1, 0, 5]
    found = accounts.read_people(people, SALT, asked)
    spent = accounts.read_spent(people, SALT, asked)
    for block in asked:
        packed, own = found[block]
        assert codec.unpack_ids(packed, 2).tolist() == [2 * block, 2 * block + 1]
        assert own["limit"].tolist() == [10 * block, 10 * block + 1]
        assert spent[block].tolist() == pairs(block, 7 * block, slack=block % 3).tolist()
    assert len(accounts.read_people(people, SALT, list(range(BLOCKS)))) == BLOCKS
    assert [i.tolist() for i in accounts.yield_ids(people, SALT, BLOCKS - 1)] == [
        [2 * BLOCKS - 2, 2 * BLOCKS - 1]
    ]


def test_balances_come_in_the_order_asked(people: sa.Connection) -> None:
    places = np.array([3 * codec.BLOCK + 1, 1, 3 * codec.BLOCK])
    spent, limit = accounts.read_balances(people, SALT, places)
    assert spent.tolist() == [[21, 0], [0, 0], [3, 0]]
    assert limit.tolist() == [[31, 0], [1, 0], [30, 0]]


def test_a_block_is_replaced(people: sa.Connection) -> None:
    accounts.write_spent(people, SALT, [(1, pairs(8, 9, slack=4))])
    assert accounts.read_spent(people, SALT, [1, 2])[1].tolist() == [[8, 4], [9, 4]]
    assert accounts.read_spent(people, SALT, [2])[2].tolist() == [[2, 2], [14, 2]]
    count = people.execute(sa.select(sa.func.count()).select_from(BALANCE)).scalar()
    assert count == BLOCKS


READS: list[Callable[[sa.Connection], Any]] = [
    lambda c: accounts.read_people(c, SALT, [1]),
    lambda c: list(accounts.yield_ids(c, SALT, 0)),
    lambda c: accounts.read_spent(c, SALT, [1]),
    lambda c: accounts.read_balances(c, SALT, np.array([codec.BLOCK])),
]


@pytest.mark.parametrize("read", READS)
@pytest.mark.parametrize("change", ["another's content", "another salt", "another size"])
def test_what_is_not_its_digest_is_refused(
    read: Callable[[sa.Connection], Any], change: str, people: sa.Connection
) -> None:
    read(people)
    if change == "another's content":  # digest and all, in another place
        for table in (PEOPLE, BALANCE):
            other = people.execute(sa.select(table).where(table.c.block == 2)).one()._mapping
            values = {name: value for name, value in other.items() if name != "block"}
            people.execute(sa.update(table).where(table.c.block == 1).values(values))
    elif change == "another size":
        people.execute(sa.update(PEOPLE).values(size=1))
        people.execute(sa.update(BALANCE).values(spent=b"\0" * 8))
    else:
        for table in (PEOPLE, BALANCE):
            people.execute(sa.update(table).values(digest=b"\x02" * 32))
    with pytest.raises(StateError, match=r"of block \d+ are damaged; nothing was charged"):
        read(people)
