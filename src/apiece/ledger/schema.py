"""The tables and their version."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from operator import index
from typing import Any, Final, TypeAlias

import sqlalchemy as sa

from apiece.errors import StateError

# Tables of another version are refused, never changed.
VERSION: Final = 6
# Rows a query: below every database's limit on parameters, and a few MB.
CHUNK: Final = 200

Kind: TypeAlias = type[sa.Integer] | type[sa.LargeBinary] | type[sa.Text] | sa.String

_tables = sa.MetaData()
_long = sa.BigInteger
_bytes = sa.LargeBinary


def _make_table(name: str, keys: int, **kinds: Kind) -> sa.Table:
    """Return a table by its columns, none of them null; the first `keys` are its primary key."""
    columns = [
        sa.Column(column, kind, primary_key=k < keys, autoincrement=False, nullable=False)
        for k, (column, kind) in enumerate(kinds.items())
    ]
    return sa.Table(name, _tables, *columns)


META = _make_table("apiece_meta", 1, key=sa.String(32), value=sa.Text)
# The last entry. Writers lock this row, so there is one at a time.
HEAD = _make_table("apiece_head", 1, one=sa.Integer, number=_long, digest=_bytes, people=_long)
HEAD.append_constraint(sa.CheckConstraint("one = 1"))
# The history: rows are added, never changed.
ENTRY = _make_table(
    "apiece_entry", 1, number=_long, body=sa.Text, digest=_bytes, payload_root=_bytes
)
# The packed arrays of an entry, one row a block of people.
PAYLOAD = _make_table("apiece_payload", 2, number=_long, block=_long, data=_bytes)
# What the history adds up to: who there is, what they allow, what they have spent.
_sized: Final[dict[str, Kind]] = {"block": _long, "size": sa.Integer}
PEOPLE = _make_table("apiece_people", 1, **_sized, ids=_bytes, terms=_bytes, digest=_bytes)
BALANCE = _make_table("apiece_balance", 1, **_sized, spent=_bytes, digest=_bytes)
# Balances of one scope (a querier, a purpose, a source, a period, the pool). A block without a row
# has spent nothing there.
SCOPE = _make_table("apiece_scope", 2, scope=sa.String(256), **_sized, digest=_bytes, spent=_bytes)


def has_ledger(connection: sa.Connection) -> bool:
    """Return whether the database holds a ledger."""
    return sa.inspect(connection).has_table(META.name)


def create_tables(connection: sa.Connection, salt: bytes) -> None:
    """Make empty tables of this version."""
    _tables.create_all(connection)
    if connection.dialect.name == "postgresql":
        # The blobs are compressed already, or do not compress.
        blobs = ((PAYLOAD, "data"), (BALANCE, "spent"), (SCOPE, "spent"), (PEOPLE, "ids"))
        for table, column in blobs:
            connection.exec_driver_sql(
                f"ALTER TABLE {table.name} ALTER COLUMN {column} SET STORAGE EXTERNAL"
            )
    settings = {"schema": str(VERSION), "salt": salt.hex()}
    rows = [{"key": key, "value": value} for key, value in settings.items()]
    connection.execute(sa.insert(META), rows)
    connection.execute(sa.insert(HEAD).values(one=1, number=-1, digest=b"", people=0))


def refuse_strangers(connection: sa.Connection) -> None:
    """Raise `StateError` where something in the store could change what is written or read."""
    acting, _ = list_strangers(connection)
    if acting:
        raise StateError(
            f"ledger: {acting[0]} could change what is written to it or read from it "
            f"({len(acting)} such); nothing was charged; drop what apiece did not make, and run "
            "`apiece ledger verify`"
        )


def list_strangers(connection: sa.Connection) -> tuple[list[str], list[str]]:
    """Return what apiece did not make: what acts on its tables, and what only lies beside them."""
    if connection.dialect.name == "postgresql":
        return _list_postgres_strangers(connection), []
    acting: list[str] = []
    idle: list[str] = []
    query = (
        "SELECT type, name, upper(sql) FROM sqlite_master "
        "WHERE name NOT LIKE 'sqlite\\_%' ESCAPE '\\'"
    )
    for kind, name, sql in connection.exec_driver_sql(query).all():
        stranger = f"the {kind} {name!r}"
        is_ours = kind == "table" and name in _tables.tables
        # A conflict clause lets a row that is written replace another without a word.
        is_altered = is_ours and ("CONFLICT" in sql or not sql.startswith("CREATE TABLE"))
        if kind in ("trigger", "view") or is_altered:
            acting.append(stranger)
        elif not is_ours:
            idle.append(stranger)
    return acting, idle


def _list_postgres_strangers(connection: sa.Connection) -> list[str]:
    query = sa.text(
        "SELECT c.relname, c.relkind <> 'r' OR c.relpersistence <> 'p' OR c.relrowsecurity, "
        "EXISTS (SELECT FROM pg_trigger t WHERE t.tgrelid = c.oid AND NOT t.tgisinternal), "
        "EXISTS (SELECT FROM pg_rewrite r WHERE r.ev_class = c.oid), "
        "EXISTS (SELECT FROM pg_inherits i WHERE i.inhparent = c.oid OR i.inhrelid = c.oid) "
        "FROM pg_class c WHERE c.oid = ANY "
        "(SELECT to_regclass(n) FROM unnest(CAST(:names AS text[])) n)"
    )
    acting: list[str] = []
    rows = connection.execute(query, {"names": list(_tables.tables)})
    for name, is_special, has_trigger, has_rule, has_heir in rows:
        if has_trigger:
            acting.append(f"a trigger of {name!r}")
        if has_rule:
            acting.append(f"a rule of {name!r}")
        if has_heir:
            acting.append(f"a table that inherits of {name!r}")
        if is_special:
            acting.append(f"{name!r}, which is no plain table,")
    return acting


def read_settings(connection: sa.Connection) -> dict[str, str]:
    """Return the stored settings: the schema's version and the salt."""
    rows = connection.execute(sa.select(META.c.key, META.c.value))
    return {str(key): str(value) for key, value in rows}


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


def read_payloads(connection: sa.Connection, number: int) -> Iterator[tuple[int, bytes]]:
    """Yield an entry's packed arrays by block."""
    arrays = sa.select(PAYLOAD.c.block, PAYLOAD.c.data).where(PAYLOAD.c.number == number)
    # SQLite keeps 0.5 in a column of whole numbers; `index` refuses it where `int` would not.
    for block, data in read_pages(connection, arrays, PAYLOAD.c.block):
        yield index(block), bytes(data)


def read_pages(
    connection: sa.Connection, query: sa.Select[Any], *keys: sa.Column[Any]
) -> Iterator[Any]:
    """Yield a query's rows in the order of their keys, which tell them apart.

    Some hundred rows are in memory, and no cursor stays open: the caller may write meanwhile.
    """
    page = query.order_by(*keys).limit(CHUNK)
    rows = connection.execute(page).all()
    while rows:
        yield from rows
        if len(rows) < CHUNK:
            return
        # The next page begins after the last key, and not at a number of rows, which could shift
        # between two pages.
        values = [sa.literal(getattr(rows[-1], key.name)) for key in keys]
        if len(keys) == 1:
            later = keys[0] > values[0]
        else:
            later = sa.tuple_(*keys) > sa.tuple_(*values)
        rows = connection.execute(page.where(later)).all()


def split_chunks(blocks: Sequence[Any]) -> Iterator[Sequence[Any]]:
    """Yield blocks, or what belongs to them, as many at a time as one query asks for."""
    for start in range(0, len(blocks), CHUNK):
        yield blocks[start : start + CHUNK]
