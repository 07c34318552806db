"""Making a ledger, with its first people or without, or bringing an old one up to date."""

from __future__ import annotations

import secrets
from typing import Any

import sqlalchemy as sa

from apiece.errors import DataError, StateError
from apiece.ledger import chain, codec, enrolment, schema, trail, units
from apiece.ledger.anchor import Anchor
from apiece.ledger.chain import Last
from apiece.ledger.database import is_missing, made_private, name, transaction
from apiece.ledger.directory import Directory

Settings = tuple[str, float | None]  # the filter, and its order
Enrolment = tuple[codec.Ids, codec.Terms]


def version(engine: sa.Engine) -> int | None:
    """Return the version of the ledger there; None where there is none."""
    if is_missing(engine):
        return None
    with transaction(engine, writes=False) as connection:
        if not schema.exists(connection):
            return None
        return schema.check_version(_meta(connection, "schema"))


def none_there(engine: sa.Engine) -> DataError:
    """Return the error for an address without a ledger."""
    return DataError(f"ledger {name(engine)}: no ledger there; run `apiece ledger init`")


def make(engine: sa.Engine, asked: Settings, people: Enrolment | None) -> Last | None:
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
        body = {"kind": "init", "filter": asked[0], "order": asked[1], "unit": units.UNIT}
        last = chain.append(connection, salt, Last(-1, b"", 0), body, [])
        if people is not None:
            Directory(salt).find(people[0])  # refuses an id that occurs twice
            last = enrolment.add(connection, salt, last, *people)
        return last


def migrate(engine: sa.Engine, anchor: Anchor) -> None:
    """Bring a ledger's tables to the current version, and say so in its history.

    Older versions had no head file: it is begun with the last entry that they wrote.
    """
    with transaction(engine, writes=True) as connection, chain.naming_damage():
        _alone(connection)
        if schema.check_version(_meta(connection, "schema")) < schema.VERSION:
            salt = _salt(connection)
            schema.migrate(connection, salt)
            trail.hold(connection)
            kept = anchor.read()
            last = trail.Trail(salt).follow(connection, kept.digests)
            anchor.keep(last, kept)
            body = {"kind": "migrate", "schema": schema.VERSION}
            chain.append(connection, salt, last, body, [])


def read(engine: sa.Engine) -> tuple[bytes, Settings]:
    """Return a ledger's salt and settings. Raises `StateError` where they are damaged."""
    with transaction(engine, writes=False) as connection, chain.naming_damage():
        salt = _salt(connection)
        return salt, trail.settings(connection, salt)


def _salt(connection: sa.Connection) -> bytes:
    return bytes.fromhex(_meta(connection, "salt"))


def _meta(connection: sa.Connection, key: str) -> str:
    found: Any = schema.meta(connection).get(key)
    if found is None:
        raise StateError(f"ledger: its setting {key!r} is missing; restore a backup")
    return str(found)


def _alone(connection: sa.Connection) -> None:
    """Wait for another process that makes or migrates this ledger; SQLite has one writer anyway."""
    if connection.dialect.name == "postgresql":
        connection.exec_driver_sql("SELECT pg_advisory_xact_lock(7307199140915)")
