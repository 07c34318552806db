"""Connections and transactions: durable, one writer at a time, failures in one line."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy import event
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError, DBAPIError, NoSuchModuleError

from apiece._lazy import lacking
from apiece.errors import InputError, StateError

FORMS: Final = "sqlite:///file.db or postgresql://user@host/name"
PASSWORDS: Final = (
    "set PGPASSWORD in the environment, or write it into the file that PGPASSFILE names "
    "(~/.pgpass by default); if it was on a command line or in a config, change it"
)
_DRIVERS: Final = {
    "sqlite": "sqlite",
    "sqlite+pysqlite": "sqlite",
    "postgresql": "postgresql+psycopg",
    "postgresql+psycopg": "postgresql+psycopg",
}
# Of the server's library, those that hold no secret and weaken nothing that is relied on.
_PARAMETERS: Final = (
    "application_name", "channel_binding", "connect_timeout", "gssencmode", "host", "hostaddr",
    "keepalives", "krbsrvname", "passfile", "port", "require_auth", "requirepeer", "service",
    "sslcert", "sslcrl", "sslkey", "sslmode", "sslnegotiation", "sslrootcert",
    "target_session_attrs", "tcp_user_timeout",
)  # fmt: skip


def parse_address(address: str) -> URL:
    """Return the address of a ledger, as SQLAlchemy has it; a path is that of an SQLite file.

    Raises `InputError`, which repeats nothing that may be a password, for one wherever it stands,
    and for parameters of SQLite, which could switch off locks (`nolock=1`, `immutable=1`).
    """
    if not str(address).isprintable():
        raise InputError(f"ledger: not an address; give {FORMS}")
    scheme, separator, rest = address.partition("://")
    if re.search(r":[^/]*@", rest if separator else address):
        raise InputError(f"ledger: the address holds a password; leave it out: {PASSWORDS}")
    try:
        url = make_url(address if separator else f"sqlite:///{address}")
    except (ArgumentError, ValueError):
        raise InputError(f"ledger: the address cannot be read; give {FORMS}") from None
    if url.drivername not in _DRIVERS:
        named = repr(scheme) if re.fullmatch(r"[a-z0-9+]{1,30}", scheme) else "that scheme"
        raise InputError(f"ledger: {named} is not supported; give {FORMS}")
    if url.password is not None or {"password", "sslpassword"} & {k.lower() for k in url.query}:
        raise InputError(f"ledger: the address holds a password; leave it out: {PASSWORDS}")
    url = url.set(drivername=_DRIVERS[url.drivername])
    _check_sqlite(url) if url.drivername == "sqlite" else _check_parameters(url)
    return url


def check_address(address: str) -> str:
    """Return the address as it is given, if a ledger may lie there."""
    parse_address(address)
    return address


def database_files(address: str) -> list[Path]:
    """Return the file of an SQLite address and its head file; none of another, or of no address."""
    try:
        url = parse_address(address)
    except InputError:
        return []
    if url.drivername != "sqlite":
        return []
    store = Path(str(url.database))
    return [store, head_file(store)]


def head_file(store: Path) -> Path:
    """Return where the head file of an SQLite file lies, through whichever link that is opened."""
    return Path(os.path.realpath(store) + ".head")


def _check_sqlite(url: URL) -> None:
    if url.query or url.host or "?" in (url.database or "") or "#" in (url.database or ""):
        raise InputError(
            "ledger: parameters after an SQLite file's name could switch off its locks "
            "(nolock, immutable, vfs); give sqlite:///file.db and nothing after it"
        )
    if url.database in (None, "", ":memory:") or str(url.database).startswith("file:"):
        raise InputError("ledger: an account in memory would be lost; give sqlite:///file.db")


def _check_parameters(url: URL) -> None:
    odd = [k for k in url.query if k not in _PARAMETERS]
    if odd:
        raise InputError(
            f"ledger: the address has a parameter that is not allowed in one "
            f"({len(odd)} of {len(url.query)}); allowed: {', '.join(_PARAMETERS)}"
        )


BUSY_SECONDS = 120


def make_engine(address: str) -> sa.Engine:
    """Return an engine for `sqlite:///file`, `postgresql://…` or the path of an SQLite file."""
    url = parse_address(address)
    try:
        engine = sa.create_engine(url, poolclass=sa.NullPool)
    except (NoSuchModuleError, ImportError):
        raise lacking("psycopg", "ledger") from None
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
    """Return whether it is an SQLite file that does not exist; connecting would make it."""
    path = sqlite_file(engine)
    return path is not None and not is_there(path)


def is_there(path: Path) -> bool:
    """Return whether there is such a file; a name that no file can have has none."""
    try:
        return path.exists()
    except OSError:
        return False


@contextmanager
def made_private(engine: sa.Engine) -> Iterator[None]:
    """Make an SQLite file for its owner alone, whatever the umask; take it away on failure."""
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
    """Run a `transaction` of a ledger that is there: SQLite would make an empty file."""
    if is_missing(engine):
        raise StateError(f"ledger {name(engine)}: is not there; put its newest copy back")
    with transaction(engine, writes=writes) as connection:
        yield connection


@contextmanager
def transaction(engine: sa.Engine, *, writes: bool) -> Iterator[sa.Connection]:
    """Run the body in one transaction; a database's failure becomes a `StateError` of one line.

    Where the connection broke during the commit the outcome is unknown: every call can be repeated.
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
