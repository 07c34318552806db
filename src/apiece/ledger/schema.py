"""The tables, their version, and how an older ledger is brought up to date."""

from __future__ import annotations

import json
from typing import Final

import sqlalchemy as sa

from apiece.errors import StateError

VERSION: Final = 2

_tables = sa.MetaData()
_bytes = sa.LargeBinary

META = sa.Table(
    "apiece_meta",
    _tables,
    sa.Column("key", sa.String(32), primary_key=True),
    sa.Column("value", sa.Text, nullable=False),
)
# The last entry. Writers lock this row, so there is one at a time.
HEAD = sa.Table(
    "apiece_head",
    _tables,
    sa.Column("one", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("number", sa.BigInteger, nullable=False),
    sa.Column("digest", _bytes, nullable=False),
    sa.Column("people", sa.BigInteger, nullable=False),
    sa.CheckConstraint("one = 1"),
)
# The history: rows are added, never changed.
ENTRY = sa.Table(
    "apiece_entry",
    _tables,
    sa.Column("number", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("body", sa.Text, nullable=False),
    sa.Column("digest", _bytes, nullable=False),
)
PAYLOAD = sa.Table(
    "apiece_payload",
    _tables,
    sa.Column("number", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("block", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("data", _bytes, nullable=False),
)
# What the history adds up to: who there is, what they allow, what they have spent.
PEOPLE = sa.Table(
    "apiece_people",
    _tables,
    sa.Column("block", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("size", sa.Integer, nullable=False),
    sa.Column("ids", _bytes, nullable=False),
    sa.Column("terms", _bytes, nullable=False),
    sa.Column("digest", _bytes, nullable=False),
)
BALANCE = sa.Table(
    "apiece_balance",
    _tables,
    sa.Column("block", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("spent", _bytes, nullable=False),
    sa.Column("digest", _bytes, nullable=False),
)
ANALYSIS = sa.Table(
    "apiece_analysis",
    _tables,
    sa.Column("id", sa.String(200), primary_key=True),
    sa.Column("reserved", sa.BigInteger, nullable=False, unique=True),
    sa.Column("committed", sa.BigInteger, unique=True),
)


def exists(connection: sa.Connection) -> bool:
    """Return whether the database holds a ledger."""
    return sa.inspect(connection).has_table(META.name)


def create(connection: sa.Connection, salt: bytes) -> None:
    """Make the tables of the current version."""
    _tables.create_all(connection)
    if connection.dialect.name == "postgresql":
        # The blobs are compressed already, or do not compress.
        for table, column in ((PAYLOAD, "data"), (BALANCE, "spent"), (PEOPLE, "ids")):
            connection.exec_driver_sql(
                f"ALTER TABLE {table.name} ALTER COLUMN {column} SET STORAGE EXTERNAL"
            )
    rows = {"schema": str(VERSION), "salt": salt.hex()}
    connection.execute(sa.insert(META), [{"key": k, "value": v} for k, v in rows.items()])


def meta(connection: sa.Connection) -> dict[str, str]:
    """Return the stored settings."""
    return {str(k): str(v) for k, v in connection.execute(sa.select(META.c.key, META.c.value))}


def check_version(stored: str) -> int:
    """Return the schema's version; raises `StateError` if it is from the future."""
    try:
        version = int(stored)
    except ValueError:
        raise StateError(f"ledger: schema version {stored!r} is not a number") from None
    if version > VERSION:
        raise StateError(
            f"ledger: its schema is version {version}, this apiece knows up to {VERSION}; "
            "use a newer apiece"
        )
    return version


def migrate(connection: sa.Connection, version: int) -> None:
    """Bring the tables from `version` to the current one, inside the caller's transaction."""
    if version < 2:
        _index_analyses(connection)
    connection.execute(sa.update(META).where(META.c.key == "schema").values(value=str(VERSION)))


def _index_analyses(connection: sa.Connection) -> None:
    """Version 1 looked analyses up by reading the history; version 2 has an index of them."""
    ANALYSIS.create(connection)
    for number, body in connection.execute(
        sa.select(ENTRY.c.number, ENTRY.c.body).order_by(ENTRY.c.number)
    ).all():
        entry = json.loads(body)
        if entry["kind"] == "reserve":
            connection.execute(sa.insert(ANALYSIS).values(id=entry["analysis"], reserved=number))
        elif entry["kind"] == "commit":
            connection.execute(
                sa.update(ANALYSIS)
                .where(ANALYSIS.c.id == entry["analysis"])
                .values(committed=number)
            )
