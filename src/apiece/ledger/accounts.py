"""Accounts in blocks: opened, changed, read, written, exported; none that is not its digest's."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import sqlalchemy as sa

from apiece._files import EXPORT, writing
from apiece._types import Integers
from apiece.errors import BudgetError, DataError, StateError
from apiece.ledger import chain
from apiece.ledger.chain import Entry, Last, Origin
from apiece.ledger.codec import (
    BLOCK,
    SLACK_UNIT,
    TERMS,
    UNIT,
    Ids,
    Terms,
    block_digest,
    by_block,
    limits,
    nothing,
    pack_enrolled,
    pack_ids,
    pack_masked,
    pack_pairs,
    unpack_ids,
    unpack_pairs,
)
from apiece.ledger.schema import BALANCE, PEOPLE, chunks, pages

if TYPE_CHECKING:
    import pyarrow as pa

TABLES: Final = ("accounts", "history", "paid")
GROUP: Final = 64  # blocks in one of a file's row groups: a quarter of a million people
_CONTENT: Final = {  # what is stored of a block, as digests call it and as messages do
    PEOPLE: ("people", "people", ("ids", "terms")),
    BALANCE: ("balance", "balances", ("spent",)),
}


def _checked(salt: bytes, table: sa.Table, row: Any) -> list[bytes]:
    """Return what is stored of a block. Raises `StateError` where it is not its digest's."""
    kind, called, columns = _CONTENT[table]
    content = [bytes(getattr(row, column)) for column in columns]
    size = str(row.size).encode()
    if block_digest(salt, kind, row.block, size, *content) != bytes(row.digest):
        raise StateError(
            f"ledger: the {called} of block {row.block} are damaged; nothing was charged; run "
            "`apiece ledger verify` and restore a backup"
        )
    return content


def _rows(
    connection: sa.Connection, salt: bytes, table: sa.Table, blocks: Sequence[int]
) -> Iterator[tuple[int, int, list[bytes]]]:
    """Yield number, size and content of blocks, checked."""
    for part in chunks(blocks):
        for row in connection.execute(sa.select(table).where(table.c.block.in_(part))):
            yield row.block, row.size, _checked(salt, table, row)


def read_ids(connection: sa.Connection, salt: bytes, first_block: int) -> Iterator[Ids]:
    """Yield the ids of the blocks from `first_block` on."""
    later = sa.select(PEOPLE).where(PEOPLE.c.block >= first_block)
    for row in pages(connection, later, PEOPLE.c.block):
        yield unpack_ids(_checked(salt, PEOPLE, row)[0], row.size)


def read_people(
    connection: sa.Connection, salt: bytes, blocks: Sequence[int]
) -> dict[int, tuple[bytes, Terms]]:
    """Return the packed ids and the terms of each block."""
    rows = _rows(connection, salt, PEOPLE, blocks)
    return {block: (ids, np.frombuffer(terms, TERMS)) for block, _, (ids, terms) in rows}


def read_spent(
    connection: sa.Connection, salt: bytes, blocks: Sequence[int]
) -> dict[int, Integers]:
    """Return what the people of each block have spent, (people, 2) units of μ² and slack."""
    rows = _rows(connection, salt, BALANCE, blocks)
    return {block: unpack_pairs(spent, size) for block, size, (spent,) in rows}


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
    packed = [
        (block, len(terms), [ids if isinstance(ids, bytes) else pack_ids(ids), terms.tobytes()])
        for block, ids, terms in rows
    ]
    _replace(connection, salt, PEOPLE, packed)


def write_spent(connection: sa.Connection, salt: bytes, rows: list[tuple[int, Integers]]) -> None:
    """Insert or replace blocks of balances."""
    packed = [(block, len(spent), [pack_pairs(spent)]) for block, spent in rows]
    _replace(connection, salt, BALANCE, packed)


def _replace(
    connection: sa.Connection,
    salt: bytes,
    table: sa.Table,
    rows: Sequence[tuple[int, int, list[bytes]]],
) -> None:
    kind, _, columns = _CONTENT[table]
    for part in chunks([block for block, *_ in rows]):
        connection.execute(sa.delete(table).where(table.c.block.in_(part)))
    values = [
        {
            "block": block,
            "size": size,
            **dict(zip(columns, content, strict=True)),
            "digest": block_digest(salt, kind, block, str(size).encode(), *content),
        }
        for block, size, content in rows
    ]
    if values:
        connection.execute(sa.insert(table), values)


def amend(
    connection: sa.Connection,
    salt: bytes,
    head: Last,
    ids: Ids,
    ordinals: Integers,
    terms: Terms,
    origin: Origin,
    keep: bool = False,
) -> Last:
    """Change the terms of people who have accounts; return the head after it.

    keep: whose ε and δ are the same, whatever their slack.
    """
    groups = by_block(ordinals)
    blocks = [block for block, _ in groups]
    people = read_people(connection, salt, blocks)
    spent = read_spent(connection, salt, blocks)
    rows, payloads = [], []
    for block, part in groups:
        packed, old = people[block]
        at = ordinals[part] % BLOCK
        same = (old["epsilon"][at] == terms["epsilon"][part]) & (
            old["delta"][at] == terms["delta"][part]
        )
        older = ordinals[part] < origin.people
        changed = part[(old[at] != terms[part]) & ~(same & (older | keep))]
        if not changed.size:
            continue
        if origin.renyi and (ordinals[changed] < origin.people).any():
            who = ids[changed[ordinals[changed] < origin.people][0]].item()
            raise BudgetError(
                f"person {who!r}: was charged in Rényi divergence, in the ledger that this one was "
                "migrated from, and keeps that account; enroll them under a new id for new data"
            )
        at = ordinals[changed] % BLOCK
        _refuse_lower(ids[changed], limits(terms[changed]), spent[block][at])
        new, mask = old.copy(), np.zeros(old.size, dtype=bool)
        new[at], mask[at] = terms[changed], True
        rows.append((block, packed, new))
        payloads.append((block, pack_masked(mask, new[mask])))
    if not rows:
        return head
    write_people(connection, salt, rows)
    return chain.append(connection, salt, head, {"kind": "amend"}, payloads)


def add(
    connection: sa.Connection,
    salt: bytes,
    head: Last,
    ids: Ids,
    terms: Terms,
) -> Last:
    """Open accounts for people who have none; return the head after it."""
    if not ids.size:
        return head
    ordinals = head.people + np.arange(ids.size)
    people, balances, payloads = [], [], []
    for block, part in by_block(ordinals):
        payloads.append((block, pack_enrolled(ids[part], terms[part])))
        new_ids, new_terms = ids[part], terms[part]
        spent = nothing(part.size)
        if ordinals[part[0]] % BLOCK:  # the last block has room
            packed, old_terms = read_people(connection, salt, [block])[block]
            old_ids = unpack_ids(packed, old_terms.size)
            new_ids = np.concatenate([old_ids, new_ids])
            new_terms = np.concatenate([old_terms, new_terms])
            old_spent = read_spent(connection, salt, [block])[block]
            spent = np.concatenate([old_spent, spent])
        people.append((block, new_ids, new_terms))
        balances.append((block, spent))
    write_people(connection, salt, people)
    write_spent(connection, salt, balances)
    after = head._replace(people=head.people + ids.size)
    return chain.append(connection, salt, after, {"kind": "enroll"}, payloads)


def _refuse_lower(ids: Ids, limit: Integers, spent: Integers) -> None:
    """Raise `BudgetError` for a limit below what is spent."""
    low = np.argwhere(limit < spent)
    if low.size:
        i, kind = low[0]
        name, unit = (("budget", UNIT), ("slack", SLACK_UNIT))[kind]
        raise BudgetError(
            f"person {ids[i].item()!r}: the new {name}, {limit[i, kind] * unit:.6g}, is below "
            f"what is spent, {spent[i, kind] * unit:.6g}; what was released cannot be taken back"
        )


def write_parquet(parts: Iterable[pa.Table], path: str | Path, inputs: Iterable[Path]) -> int:
    """Write the rows to a Parquet file as they come; return how many."""
    import pyarrow.parquet as pq

    rows = 0
    with writing(path, EXPORT, inputs) as file, ExitStack() as opened:
        writer = None
        for part in parts:
            if writer is None:
                schema = part.schema.with_metadata({"apiece": "ledger export"})
                writer = opened.enter_context(pq.ParquetWriter(file, schema))
            writer.write_table(part.replace_schema_metadata(schema.metadata))
            rows += part.num_rows
    return rows


def account_rows(blocks: Iterable[tuple[Ids, Terms, Integers]]) -> Iterator[pa.Table]:
    """Yield id, ε, δ, and of μ² and slack the limit and what is spent, some accounts at a time."""
    import pyarrow as pa

    several, none = iter(blocks), True
    while some := list(islice(several, GROUP)):
        ids, rows, spent = (np.concatenate(each) for each in zip(*some, strict=True))
        none = False
        yield pa.table(
            {
                "id": pa.array(ids),
                "epsilon": np.ascontiguousarray(rows["epsilon"]),
                "delta": np.ascontiguousarray(rows["delta"]),
                "limit": rows["limit"] * UNIT,
                "spent": spent[:, 0] * UNIT,
                "slack": rows["slack"] * SLACK_UNIT,
                "slack_spent": spent[:, 1] * SLACK_UNIT,
            }
        )
    if none:
        raise DataError("ledger: it has no accounts to export; enroll people first")


def paid_rows(blocks: Iterable[Ids]) -> Iterator[pa.Table]:
    """Yield the ids of those who paid for an analysis, some thousands at a time."""
    import pyarrow as pa

    none = True
    for ids in blocks:
        none = False
        yield pa.table({"id": pa.array(ids)})
    if none:
        raise DataError("ledger: nobody paid for this analysis; there is nothing to export")


def history_rows(entries: Iterable[Entry]) -> pa.Table:
    """Return number, kind, at, analysis and digest of every entry; nothing about one person."""
    import pyarrow as pa

    kept = list(entries)
    return pa.table(
        {
            name: pa.array([getattr(entry, name) for entry in kept])
            for name in ("number", "kind", "at", "analysis", "digest")
        }
    )
