"""Connections and transactions: durable, one writer at a time, failures in one line."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from sqlalchemy import event
from sqlalchemy.engine import make_url
from sqlalchemy.exc import ArgumentError, DBAPIError, NoSuchModuleError

from apiece.errors import InputError, StateError

BUSY_SECONDS = 120


def make_engine(url: str) -> sa.Engine:
    """Return an engine for `sqlite:///file`, `postgresql://…` or the path of an SQLite file."""
    text = url if "://" in url else f"sqlite:///{url}"
    try:
        parsed = make_url(text)
        if parsed.drivername == "postgresql":
            parsed = parsed.set(drivername="postgresql+psycopg")
        if parsed.get_backend_name() not in ("sqlite", "postgresql"):
            raise InputError(
                f"ledger: {parsed.drivername!r} is not supported; give sqlite:///file.db or "
                "postgresql://user@host/name"
            )
        if parsed.get_backend_name() == "sqlite" and parsed.database in (None, "", ":memory:"):
            raise InputError("ledger: an account in memory would be lost; give sqlite:///file.db")
        engine = sa.create_engine(parsed, poolclass=sa.NullPool)
    except (ArgumentError, NoSuchModuleError, ImportError) as error:
        raise InputError(
            f"ledger: {url!r} cannot be used ({str(error).splitlines()[0]}); give "
            "sqlite:///file.db or postgresql://user@host/name"
        ) from None
    if engine.dialect.name == "sqlite":
        event.listen(engine, "connect", _sqlite_connect)
        event.listen(engine, "begin", _sqlite_begin)
    else:
        event.listen(engine, "begin", _postgres_begin)
    return engine


def _sqlite_connect(connection: Any, _record: Any) -> None:
    connection.isolation_level = None  # transactions are begun below, not by the driver
    for pragma in (
        f"busy_timeout = {BUSY_SECONDS * 1000}",
        "journal_mode = DELETE",
        "synchronous = EXTRA",  # a charge survives a power cut, the journal's removal too
        "cell_size_check = ON",
        "cache_size = -65536",
    ):
        connection.execute(f"PRAGMA {pragma}")


def _sqlite_begin(connection: sa.Connection) -> None:
    writes = connection.get_execution_options().get("apiece_writes")
    connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")


def _postgres_begin(connection: sa.Connection) -> None:
    if connection.get_execution_options().get("apiece_writes"):
        # Whatever the server's defaults: a charge is on disk before it is acknowledged, and
        # writers queue on the head's row and read after it, so each sees all before it.
        connection.exec_driver_sql("SET TRANSACTION ISOLATION LEVEL READ COMMITTED, READ WRITE")
        connection.exec_driver_sql("SET LOCAL synchronous_commit = on")
    else:
        connection.exec_driver_sql("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")


def name(engine: sa.Engine) -> str:
    """Return the ledger's address without its password."""
    return engine.url.render_as_string(hide_password=True)


def is_missing(engine: sa.Engine) -> bool:
    """Whether it is an SQLite file that does not exist; to connect to it would make it."""
    return engine.dialect.name == "sqlite" and not Path(engine.url.database or "").exists()


def without_password(url: str) -> str:
    """Return a ledger's address as it may be written down: as it is given, but for a password."""
    return name(make_engine(url)) if "@" in url else url


@contextmanager
def transaction(engine: sa.Engine, *, writes: bool) -> Iterator[sa.Connection]:
    """Run the body in one transaction: all of it happens, or none of it.

    A database's failure becomes a `StateError` of one line. Where the connection broke during
    the commit the outcome is unknown; every operation can be repeated without charging twice.
    """
    try:
        with (
            engine.connect().execution_options(apiece_writes=writes) as connection,
            connection.begin(),
        ):
            yield connection
    except DBAPIError as error:
        reason = str(error.orig).strip().splitlines()
        retry = (
            "if the failure came while committing, the charge may have been recorded: call again "
            "with the same analysis id, which charges at most once"
        )
        raise StateError(
            f"ledger {name(engine)}: {reason[0] if reason else type(error.orig).__name__}; "
            + (retry if writes else "the ledger cannot be read")
        ) from error
