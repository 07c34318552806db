"""Accounts in blocks: opened, changed, read, written, exported; none that is not its digest's."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import sqlalchemy as sa

from apiece._files import EXPORT, writing
from apiece._text import rounded_up
from apiece._types import Ids, Integers
from apiece.errors import BudgetError, DataError, StateError
from apiece.ledger import chain, codec
from apiece.ledger.chain import Entry, Last
from apiece.ledger.codec import BLOCK, SLACK_UNIT, TERMS, UNIT, Terms
from apiece.ledger.schema import BALANCE, PEOPLE, SCOPE, chunks, pages
from apiece.ledger.scopes import NO_POLICY, Policy, pools
from apiece.numerics.gaussian import gaussian_epsilon_above

if TYPE_CHECKING:
    import pyarrow as pa

TABLES: Final = ("accounts", "history", "paid")
GROUP: Final = 64  # blocks in one of a file's row groups: a quarter of a million people


class Stored(NamedTuple):
    """Which rows hold something of each block, and how their digests call it."""

    table: sa.Table
    kind: str
    columns: tuple[str, ...]
    scope: str = ""

    def of(self, blocks: Sequence[int]) -> sa.ColumnElement[bool]:
        """Return SQL for the rows of some blocks."""
        here = self.table.c.block.in_(blocks)
        return sa.and_(self.table.c.scope == self.scope, here) if self.scope else here

    def digest(self, salt: bytes, block: int, size: int, content: Sequence[bytes]) -> bytes:
        """Return the digest of a row."""
        return codec.block_digest(salt, self.kind, block, str(size).encode(), *content)

    def checked(self, salt: bytes, row: sa.Row[Any]) -> list[bytes]:
        """Return what is stored of a block. Raises `StateError` where it is not its digest's."""
        content = [bytes(getattr(row, column)) for column in self.columns]
        if self.digest(salt, row.block, row.size, content) != bytes(row.digest):
            called = "people" if self.table is PEOPLE else "balances"
            raise StateError(
                f"ledger: the {called} of block {row.block} are damaged; {chain.REMEDY}"
            )
        return content

    def rows(
        self, connection: sa.Connection, salt: bytes, blocks: Sequence[int]
    ) -> Iterator[tuple[int, int, list[bytes]]]:
        """Yield number, size and content of blocks, checked."""
        for part in chunks(blocks):
            for row in connection.execute(sa.select(self.table).where(self.of(part))):
                yield row.block, row.size, self.checked(salt, row)

    def replace(
        self,
        connection: sa.Connection,
        salt: bytes,
        rows: Sequence[tuple[int, int, list[bytes]]],
    ) -> None:
        """Insert or replace number, size and content of blocks."""
        for part in chunks([block for block, *_ in rows]):
            connection.execute(sa.delete(self.table).where(self.of(part)))
        values = [
            {
                **({"scope": self.scope} if self.scope else {}),
                "block": block,
                "size": size,
                **dict(zip(self.columns, content, strict=True)),
                "digest": self.digest(salt, block, size, content),
            }
            for block, size, content in rows
        ]
        if values:
            connection.execute(sa.insert(self.table), values)


PERSONS: Final = Stored(PEOPLE, "people", ("ids", "terms"))


def balances_of(scope: str) -> Stored:
    """Return where the spending in a scope is; "" is that of whole accounts."""
    if not scope:
        return Stored(BALANCE, "balance", ("spent",))
    return Stored(SCOPE, f"scope {scope}", ("spent",), scope)


def scopes_of(connection: sa.Connection) -> list[str]:
    """Return the scopes in which anybody was charged, and "" of whole accounts."""
    keys = connection.execute(sa.select(SCOPE.c.scope).distinct()).scalars()
    return ["", *sorted(map(str, keys))]


def whole_accounts(connection: sa.Connection) -> list[str]:
    """Return those of them that hold a whole account, or one of a period."""
    return [key for key in scopes_of(connection) if key[:1] in ("", "@")]


def read_ids(connection: sa.Connection, salt: bytes, first_block: int) -> Iterator[Ids]:
    """Yield the ids of the blocks from `first_block` on."""
    later = sa.select(PEOPLE).where(PEOPLE.c.block >= first_block)
    for row in pages(connection, later, PEOPLE.c.block):
        yield codec.unpack_ids(PERSONS.checked(salt, row)[0], row.size)


def read_people(
    connection: sa.Connection, salt: bytes, blocks: Sequence[int]
) -> dict[int, tuple[bytes, Terms]]:
    """Return the packed ids and the terms of each block."""
    rows = PERSONS.rows(connection, salt, blocks)
    return {block: (ids, np.frombuffer(terms, TERMS)) for block, _, (ids, terms) in rows}


def read_spent(
    connection: sa.Connection, salt: bytes, blocks: Sequence[int], scope: str = ""
) -> dict[int, Integers]:
    """Return what people have spent, (people, 2) units; in a scope of those who were there then."""
    rows = balances_of(scope).rows(connection, salt, blocks)
    return {block: codec.unpack_pairs(spent, size) for block, size, (spent,) in rows}


def read_accounts(
    connection: sa.Connection, salt: bytes, blocks: Sequence[int], scopes: Sequence[str] = ("",)
) -> Iterator[tuple[int, bytes, Terms, dict[str, Integers]]]:
    """Yield each block, its packed ids, its terms, and by scope what is spent where anything is."""
    for part in chunks(blocks):
        people = read_people(connection, salt, part)
        spent = {key: read_spent(connection, salt, part, key) for key in scopes}
        for block in part:
            own = {key: each[block] for key, each in spent.items() if block in each}
            yield block, *people[block], own


def padded(spent: Integers | None, people: int) -> Integers:
    """Return what so many people of a block have spent, who came later nothing."""
    if spent is not None and len(spent) == people:
        return spent
    result = codec.nothing(people)
    if spent is not None:
        result[: len(spent)] = spent
    return result


def read_balances(
    connection: sa.Connection, salt: bytes, ordinals: Integers, scope: str = ""
) -> tuple[Integers, Integers]:
    """Return what each person has spent and may spend, each (people, 2) units."""
    spent, limit = np.zeros((2, ordinals.size, 2), np.int64)
    parts = dict(codec.by_block(ordinals))
    for block, _, terms, own in read_accounts(connection, salt, list(parts), [scope]):
        part = parts[block]
        at = ordinals[part] % BLOCK
        spent[part] = padded(own.get(scope), terms.size)[at]
        limit[part] = codec.limits(terms)[at]
    return spent, limit


def write_people(
    connection: sa.Connection, salt: bytes, rows: Sequence[tuple[int, Ids | bytes, Terms]]
) -> None:
    """Insert or replace blocks of people."""
    packed = ((b, ids if isinstance(ids, bytes) else codec.pack_ids(ids), t) for b, ids, t in rows)
    PERSONS.replace(connection, salt, [(b, len(t), [ids, t.tobytes()]) for b, ids, t in packed])


def write_spent(
    connection: sa.Connection, salt: bytes, rows: list[tuple[int, Integers]], scope: str = ""
) -> None:
    """Insert or replace blocks of balances."""
    packed = [(block, len(spent), [codec.pack_pairs(spent)]) for block, spent in rows]
    balances_of(scope).replace(connection, salt, packed)


def amend(
    connection: sa.Connection,
    salt: bytes,
    head: Last,
    ids: Ids,
    ordinals: Integers,
    terms: Terms,
    keep: bool = False,
    lower: list[Integers] | None = None,
    policy: Policy = NO_POLICY,
) -> Last:
    """Change the terms of people who have accounts; return the head after it.

    keep: those of the same ε and δ, whatever their slack. lower: leave out, and note the places of,
    who has spent more than their new limit; without it that is refused. policy: the one that holds,
    whose sure shares are parts of the new accounts from now on: what was taken of the rest is found
    anew.
    """
    parts, rows, payloads = dict(codec.by_block(ordinals)), [], []
    pooled: dict[str, list[tuple[int, Integers]]] = {}
    every = scopes_of(connection)
    for block, packed, old, balances in read_accounts(connection, salt, list(parts), every):
        spent = {key: each for key, each in balances.items() if key[:1] in ("", "@")}
        part = parts[block]
        at = ordinals[part] % BLOCK
        same = (old["epsilon"][at] == terms["epsilon"][part]) & (
            old["delta"][at] == terms["delta"][part]
        )
        changed = part[(old[at] != terms[part]) & ~(same & keep)]
        if not changed.size:
            continue
        at = ordinals[changed] % BLOCK
        most = np.max([padded(each, old.size)[at] for each in spent.values()], axis=0)
        if lower is None:
            _refuse_lower(ids[changed], terms[changed], most)
        else:
            low = (codec.limits(terms[changed]) < most).any(axis=1)
            lower.append(ordinals[changed[low]])
            changed, at = changed[~low], at[~low]
        new, mask = old.copy(), np.zeros(old.size, dtype=bool)
        new[at], mask[at] = terms[changed], True
        rows.append((block, packed, new))
        payloads.append((block, codec.pack_mask(mask, new[mask].tobytes())))
        for key, taken in pools(policy, codec.limits(new), balances).items():
            pooled.setdefault(key, []).append((block, taken))
    if not rows:
        return head
    write_people(connection, salt, rows)
    for key, taken_by_block in pooled.items():
        write_spent(connection, salt, taken_by_block, key)
    body = {"kind": "amend"} | ({"pools": True} if policy.sure else {})
    return chain.append(connection, salt, head, body, payloads)


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
    for block, part in codec.by_block(ordinals):
        payloads.append((block, codec.pack_enrolled(ids[part], terms[part])))
        new_ids, new_terms = ids[part], terms[part]
        spent = codec.nothing(part.size)
        if ordinals[part[0]] % BLOCK:  # the last block has room
            ((_, packed, old_terms, old),) = read_accounts(connection, salt, [block])
            new_ids = np.concatenate([codec.unpack_ids(packed, old_terms.size), new_ids])
            new_terms = np.concatenate([old_terms, new_terms])
            spent = np.concatenate([old[""], spent])
        people.append((block, new_ids, new_terms))
        balances.append((block, spent))
    write_people(connection, salt, people)
    write_spent(connection, salt, balances)
    after = head._replace(people=head.people + ids.size)
    return chain.append(connection, salt, after, {"kind": "enroll"}, payloads)


def _refuse_lower(ids: Ids, terms: Terms, spent: Integers) -> None:
    """Raise `BudgetError` for a limit below what is spent."""
    low = np.argwhere(codec.limits(terms) < spent)
    if not low.size:
        return
    i, of_slack = low[0]
    who, delta, slack = ids[i].item(), float(terms["delta"][i]), terms["slack"][i] * SLACK_UNIT
    told = f"the new slack, {slack:.6g}, is below what is spent, {spent[i, 1] * SLACK_UNIT:.6g}"
    remedy = "keep delta, or give a larger one"
    if not of_slack:
        rest = np.array([(delta - slack) / (1 - slack)])
        least = gaussian_epsilon_above(np.sqrt(spent[i, :1] * UNIT), rest)[0]
        told = (
            f"epsilon = {terms['epsilon'][i]:g} at delta = {delta:g} is below what is spent, "
            f"epsilon = {rounded_up(least, 6)}"
        )
        remedy = "give at least that"
    raise BudgetError(f"person {who!r}: {told}; what was released cannot be taken back: {remedy}")


def write_parquet(
    parts: Iterable[pa.Table], path: str | Path, inputs: Iterable[Path], none: str = ""
) -> int:
    """Write the rows to a Parquet file as they come; return how many.

    none: what is wrong where nothing comes. Raises `DataError` then.
    """
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
        if writer is None:
            raise DataError(f"ledger: {none}")
    return rows


def account_rows(blocks: Iterable[tuple[Ids, Terms, Integers]]) -> Iterator[pa.Table]:
    """Yield id, ε, δ, and of μ² and slack the limit and what is spent, some accounts at a time."""
    import pyarrow as pa

    several = iter(blocks)
    while some := list(islice(several, GROUP)):
        ids, rows, spent = (np.concatenate(each) for each in zip(*some, strict=True))
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
