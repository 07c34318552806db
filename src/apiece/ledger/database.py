"""Connections and transactions: durable, one writer at a time, failures in one line."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy import event
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError, DBAPIError, NoSuchModuleError

from apiece import _files
from apiece._lazy import lacking
from apiece.errors import DataError, InputError, StateError

# Text of messages about an address.
FORMS: Final = "sqlite:///file.db or postgresql://user@host/name"
PASSWORDS: Final = (
    "set PGPASSWORD in the environment, or write it into the file that PGPASSFILE names "
    "(~/.pgpass by default); if it was on a command line or in a config, change it"
)
# Driver of an address → the driver that is used.
_DRIVERS: Final = {
    "sqlite": "sqlite",
    "sqlite+pysqlite": "sqlite",
    "postgresql": "postgresql+psycopg",
    "postgresql+psycopg": "postgresql+psycopg",
}
# Parameters of the server's library that hold no secret and weaken nothing that is relied on.
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
    # A password is looked for in the raw text, before anything may quote it: `make_url` understands
    # only one of the places where it can stand.
    scheme, separator, location = address.partition("://")
    if re.search(r":[^/]*@", location if separator else address):
        raise InputError(f"ledger: the address holds a password; leave it out: {PASSWORDS}")
    try:
        url = make_url(address if separator else f"sqlite:///{address}")
    except (ArgumentError, ValueError):
        raise InputError(f"ledger: the address cannot be read; give {FORMS}") from None
    if url.drivername not in _DRIVERS:
        shown = repr(scheme) if re.fullmatch(r"[a-z0-9+]{1,30}", scheme) else "that scheme"
        raise InputError(f"ledger: {shown} is not supported; give {FORMS}")
    parameters = {name.lower() for name in url.query}
    if url.password is not None or parameters & {"password", "sslpassword"}:
        raise InputError(f"ledger: the address holds a password; leave it out: {PASSWORDS}")
    url = url.set(drivername=_DRIVERS[url.drivername])
    if url.drivername == "sqlite":
        _check_sqlite(url)
    else:
        _check_parameters(url)
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
    database = url.database or ""
    if url.query or url.host or "?" in database or "#" in database:
        raise InputError(
            "ledger: parameters after an SQLite file's name could switch off its locks "
            "(nolock, immutable, vfs); give sqlite:///file.db and nothing after it"
        )
    if database in ("", ":memory:") or database.startswith("file:"):
        raise InputError("ledger: an account in memory would be lost; give sqlite:///file.db")


def _check_parameters(url: URL) -> None:
    unknown = [name for name in url.query if name not in _PARAMETERS]
    if unknown:
        raise InputError(
            f"ledger: the address has a parameter that is not allowed in one "
            f"({len(unknown)} of {len(url.query)}); allowed: {', '.join(_PARAMETERS)}"
        )


# How long a connection to SQLite waits for another's lock.
BUSY_SECONDS = 120


def make_engine(address: str) -> sa.Engine:
    """Return an engine for `sqlite:///file`, `postgresql://…` or the path of an SQLite file."""
    url = parse_address(address)
    try:
        # Without a pool each transaction has a connection of its own, and each looks at the file
        # anew.
        engine = sa.create_engine(url, poolclass=sa.NullPool)
    except (NoSuchModuleError, ImportError):
        raise lacking("psycopg", "ledger") from None
    if engine.dialect.name == "sqlite":
        event.listen(engine, "do_connect", _look_before_connect)
        event.listen(engine, "connect", _set_pragmas)
        event.listen(engine, "begin", _begin_sqlite)
    else:
        event.listen(engine, "begin", _begin_postgres)
    return engine


# What SQLite opens beside its file, by that file's name.
SIDECARS: Final = ("-journal", "-wal", "-shm")


def check_files(path: Path, *, writes: bool) -> bool:
    """Return whether an SQLite file, and what SQLite keeps beside it, may be written to.

    Looks, and opens nothing. Raises `DataError` for a path where something else lies than a
    regular file under one name; writes: and for one of another user.
    """
    # A file of another user, or one with a second name, is read and never written to.
    is_own = True
    sidecars = [path.with_name(path.name + suffix) for suffix in SIDECARS]
    for file in (path, *sidecars):
        try:
            status = _files.look_at(file)
            _files.require_regular(file, status)
            if writes:
                _files.require_own(file, status)
            elif status is not None:
                is_own &= status.st_uid == os.geteuid() and status.st_nlink == 1
        except DataError as error:
            raise DataError(f"ledger {error}") from None
    return is_own


def _look_before_connect(_dialect: Any, _record: Any, arguments: list[Any], options: Any) -> None:
    """Look at the file before SQLite opens it; open what must not be written to to be read."""
    path = Path(arguments[0])
    if not check_files(path, writes=False):
        arguments[0] = f"{path.absolute().as_uri()}?mode=ro"
        options["uri"] = True


def _set_pragmas(connection: Any, _record: Any) -> None:
    # Transactions are begun below, not by the driver.
    connection.isolation_level = None
    for pragma in (
        f"busy_timeout = {BUSY_SECONDS * 1000}",
        # A charge survives a power cut, the journal's removal too.
        "synchronous = EXTRA",
        # A damaged page is noticed when it is read.
        "cell_size_check = ON",
        # KiB, as it is negative.
        "cache_size = -65536",
    ):
        connection.execute(f"PRAGMA {pragma}")
    # With a rollback journal all that was committed is in the one file that is copied and put back;
    # a write-ahead log would hold a part of it.
    (journal,) = connection.execute("PRAGMA journal_mode").fetchone()
    if journal != "delete" and not _is_foreign(connection):
        connection.execute("PRAGMA journal_mode = DELETE")


def _is_foreign(connection: Any) -> bool:
    """Return whether an SQLite file has tables and no ledger; its settings stay as they are."""
    (tables,) = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
    query = "SELECT count(*) FROM sqlite_master WHERE name = 'apiece_meta'"
    (ledgers,) = connection.execute(query).fetchone()
    return bool(tables and not ledgers)


def _begin_sqlite(connection: sa.Connection) -> None:
    # A writer takes its lock at once: one that reads first could find that another wrote meanwhile.
    writes = connection.get_execution_options().get("apiece_writes")
    connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")


def _begin_postgres(connection: sa.Connection) -> None:
    if connection.get_execution_options().get("apiece_writes"):
        # Whatever the server's defaults: a charge is on disk before it is acknowledged, and
        # writers queue on the head's row and read after it, so each sees all before it.
        connection.exec_driver_sql("SET TRANSACTION ISOLATION LEVEL READ COMMITTED, READ WRITE")
        connection.exec_driver_sql("SET LOCAL synchronous_commit = on")
    else:
        connection.exec_driver_sql("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")


def show_address(engine: sa.Engine) -> str:
    """Return the ledger's address; it holds no password."""
    return engine.url.render_as_string(hide_password=True)


def sqlite_file(engine: sa.Engine) -> Path | None:
    """Return the file of an SQLite database; None of another."""
    return Path(engine.url.database or "") if engine.dialect.name == "sqlite" else None


def is_missing(engine: sa.Engine) -> bool:
    """Return whether it is an SQLite file that does not exist; connecting would make it.

    Raises `DataError` where something else lies there than a file that a ledger can be in.
    """
    path = sqlite_file(engine)
    if path is None or not is_there(path):
        return path is not None
    check_files(path, writes=False)
    return False


def is_there(path: Path) -> bool:
    """Return whether anything has this name, a link too; a name that no file can have has none."""
    return os.path.lexists(path)


@contextmanager
def create_private(engine: sa.Engine) -> Iterator[None]:
    """Make an SQLite file for its owner alone, whatever the umask; take it away on failure.

    An empty file that is there is used as it is if it is its owner's alone; no mode is changed.
    """
    path = sqlite_file(engine)
    if path is None:
        yield
        return
    check_files(path, writes=True)
    is_new = False
    try:
        # SQLite would make the file with the mode that the umask leaves; it takes an empty one that
        # is there as it is.
        descriptor, is_new = _files.open_own(path, os.O_RDONLY | os.O_CREAT, 0o600)
        status = os.fstat(descriptor)
        os.close(descriptor)
    except DataError as error:
        raise DataError(f"ledger {error}") from None
    except OSError as error:
        raise StateError(f"ledger {path}: unable to open it ({error.strerror})") from None
    if status.st_size == 0 and status.st_mode & 0o077:
        raise DataError(
            f"ledger {path}: an empty file is there, which others may use (mode "
            f"{stat.S_IMODE(status.st_mode):04o}); remove it, or chmod 600 it"
        )
    try:
        yield
    except BaseException:
        # What a failure leaves behind is taken away only where this call made it and nothing was
        # written.
        if is_new and path.stat().st_size == 0:
            path.unlink()
        raise


@contextmanager
def open_transaction(engine: sa.Engine, *, writes: bool) -> Iterator[sa.Connection]:
    """Run a `transaction` of a ledger that is there: SQLite would make an empty file."""
    if is_missing(engine):
        raise StateError(f"ledger {show_address(engine)}: is not there; put its newest copy back")
    with transaction(engine, writes=writes) as connection:
        yield connection


@contextmanager
def transaction(engine: sa.Engine, *, writes: bool) -> Iterator[sa.Connection]:
    """Run the body in one transaction; a database's failure becomes a `StateError` of one line.

    Where the connection broke during the commit the outcome is unknown: every call can be repeated.
    """
    path = sqlite_file(engine)
    if path is not None and writes:
        check_files(path, writes=True)
    try:
        with (
            engine.connect().execution_options(apiece_writes=writes) as connection,
            connection.begin(),
        ):
            yield connection
    except DBAPIError as error:
        # The driver's own line: SQLAlchemy's would add the statement and its parameters, which are
        # data about people.
        lines = str(error.orig).strip().splitlines()
        reason = lines[0] if lines else type(error.orig).__name__
        if writes:
            consequence = (
                "if the failure came while committing, the charge may have been recorded: call "
                "again with the same analysis id, which charges at most once"
            )
        else:
            consequence = "the ledger cannot be read"
        raise StateError(f"ledger {show_address(engine)}: {reason}; {consequence}") from error
