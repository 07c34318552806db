"""The tables and their version."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from operator import index
from typing import Any, Final, TypeAlias

import sqlalchemy as sa

from apiece.errors import StateError

VERSION: Final = 6
CHUNK: Final = 200  # rows a query: below every database's limit on parameters, and a few MB

_tables = sa.MetaData()
_whole, _bytes = sa.BigInteger, sa.LargeBinary


Kind: TypeAlias = type[sa.Integer] | type[sa.LargeBinary] | type[sa.Text] | sa.String


def _table(name: str, keys: int, **columns: Kind) -> sa.Table:
    """Return a table by its columns, none of them null; the first `keys` are its primary key."""
    own = [
        sa.Column(column, kind, primary_key=k < keys, autoincrement=False, nullable=False)
        for k, (column, kind) in enumerate(columns.items())
    ]
    return sa.Table(name, _tables, *own)


META = _table("apiece_meta", 1, key=sa.String(32), value=sa.Text)
# The last entry. Writers lock this row, so there is one at a time.
HEAD = _table("apiece_head", 1, one=sa.Integer, number=_whole, digest=_bytes, people=_whole)
HEAD.append_constraint(sa.CheckConstraint("one = 1"))
# The history: rows are added, never changed.
ENTRY = _table("apiece_entry", 1, number=_whole, body=sa.Text, digest=_bytes, payload_root=_bytes)
PAYLOAD = _table("apiece_payload", 2, number=_whole, block=_whole, data=_bytes)
# What the history adds up to: who there is, what they allow, what they have spent.
_sized: Final[dict[str, Kind]] = {"block": _whole, "size": sa.Integer}
PEOPLE = _table("apiece_people", 1, **_sized, ids=_bytes, terms=_bytes, digest=_bytes)
BALANCE = _table("apiece_balance", 1, **_sized, spent=_bytes, digest=_bytes)
# The same of one scope (a querier, a purpose, a source, a period, the pool); no row is nothing.
SCOPE = _table("apiece_scope", 2, scope=sa.String(256), **_sized, digest=_bytes, spent=_bytes)


def exists(connection: sa.Connection) -> bool:
    """Return whether the database holds a ledger."""
    return sa.inspect(connection).has_table(META.name)


def create(connection: sa.Connection, salt: bytes) -> None:
    """Make empty tables of this version."""
    _tables.create_all(connection)
    if connection.dialect.name == "postgresql":
        # The blobs are compressed already, or do not compress.
        blobs = ((PAYLOAD, "data"), (BALANCE, "spent"), (SCOPE, "spent"), (PEOPLE, "ids"))
        for table, column in blobs:
            connection.exec_driver_sql(
                f"ALTER TABLE {table.name} ALTER COLUMN {column} SET STORAGE EXTERNAL"
            )
    rows = {"schema": str(VERSION), "salt": salt.hex()}
    connection.execute(sa.insert(META), [{"key": k, "value": v} for k, v in rows.items()])
    connection.execute(sa.insert(HEAD).values(one=1, number=-1, digest=b"", people=0))


def refuse_strangers(connection: sa.Connection) -> None:
    """Raise `StateError` where something in the store could change what is written or read."""
    acting, _ = strangers(connection)
    if acting:
        raise StateError(
            f"ledger: {acting[0]} could change what is written to it or read from it "
            f"({len(acting)} such); nothing was charged; drop what apiece did not make, and run "
            "`apiece ledger verify`"
        )


def strangers(connection: sa.Connection) -> tuple[list[str], list[str]]:
    """Return what apiece did not make: what acts on its tables, and what only lies beside them."""
    if connection.dialect.name == "postgresql":
        return _postgres_strangers(connection), []
    acting, idle = [], []
    query = "SELECT type, name, upper(sql) FROM sqlite_master WHERE name NOT LIKE 'sqlite\\_%' "
    for kind, name, sql in connection.exec_driver_sql(query + "ESCAPE '\\'").all():
        own = kind == "table" and name in _tables.tables
        odd = own and ("CONFLICT" in sql or not sql.startswith("CREATE TABLE"))
        if kind in ("trigger", "view") or odd:
            acting.append(f"the {kind} {name!r}")
        elif not own:
            idle.append(f"the {kind} {name!r}")
    return acting, idle


def _postgres_strangers(connection: sa.Connection) -> list[str]:
    query = sa.text(
        "SELECT c.relname, c.relkind <> 'r' OR c.relpersistence <> 'p' OR c.relrowsecurity, "
        "EXISTS (SELECT FROM pg_trigger t WHERE t.tgrelid = c.oid AND NOT t.tgisinternal), "
        "EXISTS (SELECT FROM pg_rewrite r WHERE r.ev_class = c.oid), "
        "EXISTS (SELECT FROM pg_inherits i WHERE i.inhparent = c.oid OR i.inhrelid = c.oid) "
        "FROM pg_class c WHERE c.oid = ANY "
        "(SELECT to_regclass(n) FROM unnest(CAST(:names AS text[])) n)"
    )
    acting = []
    for name, other, *result in connection.execute(query, {"names": list(_tables.tables)}):
        kinds = zip(("a trigger", "a rule", "a table that inherits"), result, strict=True)
        acting += [f"{kind} of {name!r}" for kind, there in kinds if there]
        if other:
            acting.append(f"{name!r}, which is no plain table,")
    return acting


def meta(connection: sa.Connection) -> dict[str, str]:
    """Return the stored settings."""
    return {str(k): str(v) for k, v in connection.execute(sa.select(META.c.key, META.c.value))}


def check_version(ledger: str, stored: str) -> None:
    """Raise `StateError` for a ledger whose tables are of another version than `VERSION`."""
    try:
        version = int(stored)
    except ValueError:
        raise StateError(f"ledger {ledger}: schema version {stored!r} is not a number") from None
    if version > VERSION:
        raise StateError(
            f"ledger {ledger}: its schema is version {version}, this apiece knows version "
            f"{VERSION}; use a newer apiece"
        )
    if version < VERSION:
        raise StateError(
            f"ledger {ledger}: its schema is version {version}, from before the first release, "
            f"and this apiece knows version {VERSION}; put the ledger away and make a new one "
            "with `apiece ledger init`, whose budgets leave room for what was charged"
        )


def payloads(connection: sa.Connection, number: int) -> Iterator[tuple[int, bytes]]:
    """Yield an entry's packed arrays by block."""
    arrays = sa.select(PAYLOAD.c.block, PAYLOAD.c.data).where(PAYLOAD.c.number == number)
    # SQLite keeps 0.5 in a column of whole numbers; `index` refuses it where `int` would not.
    for block, data in pages(connection, arrays, PAYLOAD.c.block):
        yield index(block), bytes(data)


def pages(connection: sa.Connection, query: sa.Select[Any], *by: sa.Column[Any]) -> Iterator[Any]:
    """Yield a query's rows in order: some hundred are in memory, and no cursor stays open."""
    ordered = query.order_by(*by).limit(CHUNK)
    rows = connection.execute(ordered).all()
    while rows:
        yield from rows
        last = [sa.literal(getattr(rows[-1], column.name)) for column in by]
        after = by[0] > last[0] if len(by) == 1 else sa.tuple_(*by) > sa.tuple_(*last)
        rows = connection.execute(ordered.where(after)).all() if len(rows) == CHUNK else []


def chunks(blocks: Sequence[Any]) -> Iterator[Sequence[Any]]:
    """Yield blocks, or what belongs to them, as many at a time as one query asks for."""
    for start in range(0, len(blocks), CHUNK):
        yield blocks[start : start + CHUNK]
