"""Connections and transactions: durable, one writer at a time, failures in one line."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from sqlalchemy import event
from sqlalchemy.exc import DBAPIError, NoSuchModuleError

from apiece.errors import InputError, StateError
from apiece.ledger.address import parse_address

BUSY_SECONDS = 120


def make_engine(address: str) -> sa.Engine:
    """Return an engine for `sqlite:///file`, `postgresql://…` or the path of an SQLite file.

    Raises as `parse_address` does, and `InputError` where the database's driver is missing.
    """
    url = parse_address(address)
    try:
        engine = sa.create_engine(url, poolclass=sa.NullPool)
    except (NoSuchModuleError, ImportError):
        raise InputError(
            f"ledger: the driver for {url.get_backend_name()} is not installed; "
            "pip install 'apiece[all]'"
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
    """Return the ledger's address; it holds no password."""
    return engine.url.render_as_string(hide_password=True)


def sqlite_file(engine: sa.Engine) -> Path | None:
    """Return the file of an SQLite database; None of another."""
    return Path(engine.url.database or "") if engine.dialect.name == "sqlite" else None


def is_missing(engine: sa.Engine) -> bool:
    """Whether it is an SQLite file that does not exist; to connect to it would make it."""
    path = sqlite_file(engine)
    try:
        return path is not None and not path.exists()
    except OSError:  # a name that no file can have
        return True


@contextmanager
def made_private(engine: sa.Engine) -> Iterator[None]:
    """Make an SQLite file for its owner alone, whatever the umask; take it away on failure.

    A file that is there and empty is taken, and closed to others, before anything is in it.
    """
    path, made = sqlite_file(engine), False
    if path is None:
        yield
        return
    try:
        if not path.exists():
            os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600))
            made = True
        if path.stat().st_size == 0:
            path.chmod(0o600)
    except FileExistsError:
        if not path.exists():  # else another process was first, and made it as this one would
            raise StateError(f"ledger {path}: is a link to nowhere; remove it") from None
    except OSError as error:
        raise StateError(f"ledger {path}: unable to open it ({error.strerror})") from None
    try:
        yield
    except BaseException:
        if made and path.stat().st_size == 0:
            path.unlink()
        raise


@contextmanager
def opened(engine: sa.Engine, *, writes: bool) -> Iterator[sa.Connection]:
    """As `transaction`, of a ledger that was there: SQLite would make an empty file."""
    if is_missing(engine):
        raise StateError(f"ledger {name(engine)}: is not there; put its newest copy back")
    with transaction(engine, writes=writes) as connection:
        yield connection


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
