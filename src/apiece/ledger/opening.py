"""Making a ledger, with its first people or without; one of an older version is not opened."""

from __future__ import annotations

import secrets
from typing import Any

import sqlalchemy as sa

from apiece.errors import DataError, StateError
from apiece.ledger import chain, codec, enrolment, schema, trail, units
from apiece.ledger.chain import Last
from apiece.ledger.database import is_missing, made_private, name, transaction
from apiece.ledger.directory import Directory

Enrolment = tuple[codec.Ids, codec.Terms]


def is_there(engine: sa.Engine) -> bool:
    """Return whether there is a ledger.

    Raises `StateError` for one of another version than the current.
    """
    if is_missing(engine):
        return False
    with transaction(engine, writes=False) as connection:
        if not schema.exists(connection):
            return False
        found = schema.check_version(meta(connection, "schema"))
        if found < schema.VERSION:
            raise StateError(
                f"ledger {name(engine)}: its schema is version {found}, which counted in another "
                f"currency; run `apiece ledger migrate {name(engine)} NEW`, and use NEW"
            )
        return True


def none_there(engine: sa.Engine) -> DataError:
    """Return the error for an address without a ledger."""
    return DataError(f"ledger {name(engine)}: no ledger there; run `apiece ledger init`")


def make(engine: sa.Engine, people: Enrolment | None) -> Last | None:
    """Make a ledger, and open accounts for its first people: all of it, or nothing is left.

    Returns its last entry; None where another process had made one first, and nothing was done.
    """
    with made_private(engine), transaction(engine, writes=True) as connection:
        _alone(connection)
        if schema.exists(connection):
            return None
        salt = secrets.token_bytes(32)
        schema.create(connection, salt)
        connection.execute(sa.insert(schema.HEAD).values(one=1, number=-1, digest=b"", people=0))
        body = {"kind": "init", "units": [units.UNIT, units.SLACK_UNIT]}
        last = chain.append(connection, salt, Last(-1, b"", 0), body, [])
        if people is not None:
            Directory(salt).find(people[0])  # refuses an id that occurs twice
            last = enrolment.add(connection, salt, last, *people)
        return last


def read(engine: sa.Engine) -> tuple[bytes, trail.Origin]:
    """Return a ledger's salt, and where it comes from. Raises `StateError` where it is damaged."""
    with transaction(engine, writes=False) as connection, chain.naming_damage():
        salt = bytes.fromhex(meta(connection, "salt"))
        return salt, trail.origin(connection, salt)


def meta(connection: sa.Connection, key: str) -> str:
    """Return a setting of the ledger. Raises `StateError` where it is missing."""
    found: Any = schema.meta(connection).get(key)
    if found is None:
        raise StateError(f"ledger: its setting {key!r} is missing; restore a backup")
    return str(found)


def _alone(connection: sa.Connection) -> None:
    """Wait for another process that makes or migrates this ledger; SQLite has one writer anyway."""
    if connection.dialect.name == "postgresql":
        connection.exec_driver_sql("SELECT pg_advisory_xact_lock(7307199140915)")
