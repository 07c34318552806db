"""Where a ledger is: addresses that hold no password and switch off no safeguard."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Final

from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError

from apiece.errors import InputError

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

    Raises `InputError` for a password, wherever it stands, for parameters of SQLite, which could
    switch off locks (`nolock=1`, `immutable=1`), and for what is not an address. No message repeats
    anything that may be a password.
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
    """Return the address as it is given, if a ledger may lie there.

    Args:
        address: As of `Ledger.open`.

    Raises:
        InputError: For an address with a password, or with parameters that could weaken the
            database.

    Example:
        >>> check_address("sqlite:///people.db")
        'sqlite:///people.db'
    """
    parse_address(address)
    return address


def database_files(address: str) -> list[Path]:
    """Return the file of an SQLite address and its head file; none of another, or of no address.

    Args:
        address: As of `Ledger.open`.

    Example:
        >>> database_files("postgresql://host/name")
        []
    """
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
