"""Reading and writing blocks of people; a block that is not what its digest says is refused."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import sqlalchemy as sa

from apiece._types import Integers
from apiece.errors import StateError
from apiece.ledger.codec import (
    BLOCK,
    TERMS,
    Ids,
    Terms,
    block_digest,
    by_block,
    limits,
    pack_ids,
    pack_pairs,
    unpack_ids,
    unpack_pairs,
)
from apiece.ledger.schema import BALANCE, CHUNK, PEOPLE, pages


def _damaged(what: str, block: int) -> StateError:
    return StateError(
        f"ledger: {what} of block {block} are damaged; nothing was charged; run "
        "`apiece ledger verify` and restore a backup"
    )


def chunks(blocks: Sequence[Any]) -> Iterator[Sequence[Any]]:
    """Yield blocks, or what belongs to them, as many at a time as one query asks for."""
    for start in range(0, len(blocks), CHUNK):
        yield blocks[start : start + CHUNK]


def read_ids(connection: sa.Connection, salt: bytes, first_block: int) -> Iterator[Ids]:
    """Yield the ids of the blocks from `first_block` on."""
    later = sa.select(PEOPLE).where(PEOPLE.c.block >= first_block)
    for row in pages(connection, later, PEOPLE.c.block):
        _check_people(salt, row)
        yield unpack_ids(bytes(row.ids), row.size)


def _check_people(salt: bytes, row: Any) -> None:
    size = str(row.size).encode()
    expected = block_digest(salt, "people", row.block, size, bytes(row.ids), bytes(row.terms))
    if expected != bytes(row.digest):
        raise _damaged("the people", row.block)


def read_people(
    connection: sa.Connection, salt: bytes, blocks: Sequence[int]
) -> dict[int, tuple[bytes, Terms]]:
    """Return the packed ids and the terms of each block."""
    found: dict[int, tuple[bytes, Terms]] = {}
    for part in chunks(blocks):
        for row in connection.execute(sa.select(PEOPLE).where(PEOPLE.c.block.in_(part))):
            _check_people(salt, row)
            found[row.block] = bytes(row.ids), np.frombuffer(bytes(row.terms), TERMS)
    return found


def read_spent(
    connection: sa.Connection, salt: bytes, blocks: Sequence[int]
) -> dict[int, Integers]:
    """Return what the people of each block have spent, (people, 2) units of μ² and slack."""
    found: dict[int, Integers] = {}
    for part in chunks(blocks):
        for row in connection.execute(sa.select(BALANCE).where(BALANCE.c.block.in_(part))):
            spent, size = bytes(row.spent), str(row.size).encode()
            if block_digest(salt, "balance", row.block, size, spent) != bytes(row.digest):
                raise _damaged("the balances", row.block)
            found[row.block] = unpack_pairs(spent, row.size)
    return found


def read_balances(
    connection: sa.Connection, salt: bytes, ordinals: Integers
) -> tuple[Integers, Integers]:
    """Return what each person has spent and may spend, each (people, 2) units."""
    spent, limit = np.zeros((2, ordinals.size, 2), np.int64)
    groups = by_block(ordinals)
    blocks = [block for block, _ in groups]
    people = read_people(connection, salt, blocks)
    balances = read_spent(connection, salt, blocks)
    for block, part in groups:
        at = ordinals[part] % BLOCK
        spent[part], limit[part] = balances[block][at], limits(people[block][1])[at]
    return spent, limit


def write_people(
    connection: sa.Connection, salt: bytes, rows: Sequence[tuple[int, Ids | bytes, Terms]]
) -> None:
    """Insert or replace blocks of people."""
    values = []
    for block, ids, terms in rows:
        packed, raw = ids if isinstance(ids, bytes) else pack_ids(ids), terms.tobytes()
        size = len(terms)
        digest = block_digest(salt, "people", block, str(size).encode(), packed, raw)
        values.append({"block": block, "size": size, "ids": packed, "terms": raw, "digest": digest})
    _replace(connection, PEOPLE, values)


def write_spent(connection: sa.Connection, salt: bytes, rows: list[tuple[int, Integers]]) -> None:
    """Insert or replace blocks of balances."""
    values = []
    for block, spent in rows:
        raw, size = pack_pairs(spent), len(spent)
        digest = block_digest(salt, "balance", block, str(size).encode(), raw)
        values.append({"block": block, "size": size, "spent": raw, "digest": digest})
    _replace(connection, BALANCE, values)


def _replace(connection: sa.Connection, table: sa.Table, values: list[dict[str, Any]]) -> None:
    blocks = [v["block"] for v in values]
    for part in chunks(blocks):
        connection.execute(sa.delete(table).where(table.c.block.in_(part)))
    if values:
        connection.execute(sa.insert(table), values)
