"""Copies of a ledger on SQLite: a backup of a live one, and its way back, never behind a head.

A backup is the database with another first word, so that neither SQLite nor apiece takes it for a
ledger: nobody can be charged in a copy by mistake. It comes back where no ledger lies, once all
that the head file, the anchor and this process know of the ledger is in it.
"""

from __future__ import annotations

import os
import shutil
import sqlite3
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Final

from apiece import _files
from apiece._files import BACKUP, writing
from apiece.errors import DataError, InputError, StateError, UnsupportedError
from apiece.ledger import database, store
from apiece.ledger.anchor import Anchor, memory_of
from apiece.ledger.chain import Head, Tip
from apiece.ledger.database import is_there, make_engine, show_address, sqlite_file
from apiece.ledger.ledger import Ledger
from apiece.ledger.verify import verify

# The first bytes of a backup, and those of an SQLite file, of which there are as many.
MARK: Final = b"apiece backup 1\0"
SQLITE: Final = b"SQLite format 3\0"
POSTGRES: Final = (
    "is in PostgreSQL, whose own tools copy it while it is used: pg_dump --format=custom "
    "--table='apiece_*', and pg_restore --single-transaction into a database without a ledger; "
    "keep the anchor as it is, and run `apiece ledger verify` before anything is charged"
)


def back_up_ledger(ledger: Ledger, path: str | Path) -> Head:
    """Copy a ledger to a file while it is used, as it is at one moment; the file is whole or not.

    Args:
        ledger: On SQLite.
        path: A new file, or an earlier backup, which is replaced. It is its owner's alone, and data
            about people as the ledger is.

    Returns:
        The last entry in the copy. Keep it apart from the copy: `restore_ledger` asks for it where
        no head file and no anchor are left.

    Raises:
        StateError: Where the history does not hold.
        DataError: Where the file cannot be written.
        UnsupportedError: For a ledger in PostgreSQL; it says which tools copy that.

    Example:
        >>> import tempfile
        >>> from apiece import Ledger
        >>> from apiece.ledger import back_up_ledger
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     ledger = Ledger.make(f"{folder}/people.db", ["ann"], 1.0, 1e-6)
        ...     head = back_up_ledger(ledger, f"{folder}/people.backup")
        ...     head == ledger.head()
        True
    """
    if sqlite_file(ledger.engine) is None:
        raise UnsupportedError(f"ledger {show_address(ledger.engine)}: {POSTGRES}")
    target = Path(path)
    with writing(target, BACKUP, ledger.store.files) as file, ledger.store.reading() as reading:
        source = reading.connection.connection.driver_connection
        assert isinstance(source, sqlite3.Connection)
        # SQLite writes into a file of its own, which no name leads to: what has the backup's name
        # never begins with the first word of a database.
        with _nameless_database(target.parent) as (copy, content):
            # Within the transaction that was checked: the copy is of the state that `tip` names.
            source.backup(copy)
            content.seek(0)
            mark = content.read(len(SQLITE))
            if mark != SQLITE:
                raise StateError(
                    f"ledger {show_address(ledger.engine)}: could not be copied; try again"
                )
            file.write(MARK)
            shutil.copyfileobj(content, file, 2**20)
        return reading.tip.head


@contextmanager
def _nameless_database(folder: Path) -> Iterator[tuple[sqlite3.Connection, IO[bytes]]]:
    """Yield an empty database in a file that no name leads to, and the file."""
    descriptor, file = tempfile.mkstemp(dir=folder, prefix=".apiece-")
    path = Path(file)
    try:
        with os.fdopen(descriptor, "rb") as content:
            copy = sqlite3.connect(path, isolation_level=None)
            try:
                # Nothing is rolled back, and so nothing has to be found by a name.
                copy.execute("PRAGMA journal_mode = OFF")
                # Opens the file, which SQLite does at the first statement; then its name can go.
                copy.execute("SELECT count(*) FROM sqlite_master").fetchone()
                path.unlink()
                yield copy, content
            finally:
                copy.close()
    finally:
        path.unlink(missing_ok=True)


def restore_ledger(
    backup: str | Path,
    url: str,
    *,
    head: Head | None = None,
    anchor: str | os.PathLike[str] | None = None,
) -> Head:
    """Put a backup where its ledger was: all of it, or nothing.

    What is there must be put away before. The head file that is there, and the anchor, stay and go
    on; without both, `head` is needed.

    Args:
        backup: A file that `back_up_ledger` wrote.
        url: The address of an SQLite file, which is not there.
        head: The last entry that is known of the ledger, as `back_up_ledger` and `status` say it.
        anchor: A file with digests of the entries; see `Ledger.open`.

    Returns:
        The last entry of the ledger.

    Raises:
        DataError: For what is no backup, and a ledger that is there.
        InputError: Where nothing says which entry is the last that is known.
        StateError: For a backup that is damaged, of another ledger, or behind what is kept.
        UnsupportedError: For an address in PostgreSQL.

    Guarantee:
        A backup that lacks an entry whose digest is kept, in the head file, the anchor, this
        process or `head`, is refused: what that entry charged cannot be spent again.

    Example:
        >>> import tempfile
        >>> from pathlib import Path
        >>> from apiece import Ledger
        >>> from apiece.ledger import back_up_ledger, restore_ledger
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     ledger = Ledger.make(f"{folder}/people.db", ["ann"], 1.0, 1e-6)
        ...     _ = back_up_ledger(ledger, f"{folder}/people.backup")
        ...     Path(folder, "people.db").unlink()
        ...     restore_ledger(f"{folder}/people.backup", f"{folder}/people.db") == ledger.head()
        True
    """
    engine = make_engine(url)
    path = sqlite_file(engine)
    if path is None:
        raise UnsupportedError(f"ledger {show_address(engine)}: {POSTGRES}")
    _require_free(path)
    heads = Anchor.of(anchor, path)
    # Before anything is copied: at the end the head has to be kept.
    heads.check_writable()
    # The backup has to hold every entry that any of these knows.
    digests = heads.read(whole=True).digests
    if head is not None and digests.setdefault(head.number, head.digest) != head.digest:
        raise StateError(
            f"head {head.number}: the head file has another digest for that entry; "
            "one of the two is of another history: find out which was changed"
        )
    if not digests:
        raise InputError(
            f"ledger {path}: no head file and no anchor is there, so nothing says whether this "
            "backup is the newest; give the last head that you know, as head (--head "
            "NUMBER:DIGEST): `apiece ledger backup` printed it"
        )
    # Checked as it will lie there, in a private folder beside the place, and moved once all holds.
    with _stage_backup(Path(backup), path) as staged:
        tip = _check_backup(Path(backup), staged, heads, digests)
        # The head first: without its ledger it is refused, and the backup is put back again.
        heads.keep(tip, heads.read(whole=True))
        # Looked at again, since the check of a large backup takes its time.
        _require_free(path)
        # The name appears with the whole content or not at all, and is on the disk before the
        # caller goes on.
        staged.rename(path)
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
    # From here on this process knows the entry, as if it had read it from the ledger.
    memory_of(store.read_salt(engine)).see(tip)
    return tip.head


def _require_free(path: Path) -> None:
    """Raise `DataError` where a ledger is, or what SQLite would take for a part of it."""
    database.check_files(path, writes=True)
    if is_there(path) and path.stat().st_size:
        raise DataError(
            f"ledger {path}: is there; put it away first (mv {path} {path}.old), with nobody "
            "charging it, and leave its head file where it is"
        )
    for suffix in database.SIDECARS:
        if is_there(path.with_name(path.name + suffix)):
            raise DataError(
                f"ledger {path}: {path.name}{suffix} of another state is there, and SQLite would "
                "play it back into the backup; put it away with the file that it belongs to"
            )


@contextmanager
def _stage_backup(backup: Path, path: Path) -> Iterator[Path]:
    """Yield a copy of the backup as a database, in a private folder beside where it will be."""
    folder = path.with_name(f".{path.name}.restore")
    _files.require_own_folder(folder)
    staged = folder / "ledger.db"
    try:
        # What a kill left.
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(mode=0o700)
        with backup.open("rb") as source:
            if source.read(len(MARK)) != MARK:
                raise DataError(
                    f"{backup}: is no backup; give a file that `apiece ledger backup` wrote"
                )
            descriptor, _ = _files.open_own(staged, os.O_RDWR | os.O_CREAT, 0o600)
            with os.fdopen(descriptor, "wb") as file:
                file.write(SQLITE)
                shutil.copyfileobj(source, file, 2**20)
                file.flush()
                os.fsync(descriptor)
        yield staged
    except OSError as error:
        raise DataError(f"{backup}: cannot be restored ({error.strerror or error})") from None
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _check_backup(backup: Path, staged: Path, heads: Anchor, digests: dict[int, str]) -> Tip:
    """Return the last entry of a backup in which all is that is known; recompute all of it."""
    engine = make_engine(str(staged))
    if not store.is_there(engine):
        raise StateError(f"{backup}: holds no ledger; give another backup")
    salt = store.read_salt(engine)
    known = dict(digests)
    # What this process saw of the ledger counts as if it were kept.
    seen = memory_of(salt).tip
    if seen is not None:
        known.setdefault(seen.number, seen.digest.hex())
    # Twice: first whether the backup holds in itself, then whether it has what is known. So damage,
    # an older copy and another ledger have messages of their own.
    verification = verify(engine, salt, {})
    if not verification.ok:
        raise StateError(f"{backup}: is damaged ({verification.problems[0]}); give another backup")
    head = verification.head
    newest = max(known)
    if newest > head.number:
        files = " and ".join(file.label for file in heads.files)
        raise StateError(
            f"{backup}: ends with entry {head.number}, and entry {newest} of this ledger is "
            "known: what the entries between charged could be spent again; give a later copy. If "
            "there is none, their charges are lost: to go on without them, let "
            f"{files} hold the one line {head.number}:{head.digest}, and restore again"
        )
    comparison = verify(engine, salt, known)
    if not comparison.ok:
        raise StateError(f"{backup}: is of another ledger ({comparison.problems[0]})")
    return Tip(head.number, bytes.fromhex(head.digest), verification.people)
