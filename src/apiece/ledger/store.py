"""The database of a ledger as this process has checked it: each transaction follows its history."""

from __future__ import annotations

import secrets
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import sqlalchemy as sa

from apiece._types import Ids, Integers
from apiece.errors import DataError, StateError
from apiece.ledger import accounts, chain, codec, schema
from apiece.ledger.anchor import Anchor, Heads, memory_of
from apiece.ledger.chain import Head, Last, Trail, hold
from apiece.ledger.database import is_missing, made_private, name, opened, sqlite_file, transaction
from apiece.ledger.directory import Directory
from apiece.ledger.verify import LedgerVerification, verify

Enrolment = tuple[Ids, codec.Terms]


def is_there(engine: sa.Engine) -> bool:
    """Return whether there is a ledger."""
    if is_missing(engine):
        return False
    with transaction(engine, writes=False) as connection:
        if not schema.exists(connection):
            return False
        schema.check_version(name(engine), meta(connection, "schema"))
    return True


def none_there(engine: sa.Engine) -> DataError:
    """Return the error for an address without a ledger."""
    return DataError(f"ledger {name(engine)}: no ledger there; run `apiece ledger init`")


def make(engine: sa.Engine, people: Enrolment | None) -> Last | None:
    """Make a ledger, all or nothing; return its last entry, None where one was there first."""
    if people is not None:
        codec.require_canonical_ids(people[0])
    with made_private(engine), transaction(engine, writes=True) as connection:
        _alone(connection)
        if schema.exists(connection):
            return None
        if connection.dialect.name == "sqlite" and sa.inspect(connection).get_table_names():
            raise StateError(
                f"ledger {name(engine)}: is a database of something else; it is left untouched, "
                "give the name of a new file"
            )
        salt = secrets.token_bytes(32)
        schema.create(connection, salt)
        body = {"kind": "init", "units": [codec.UNIT, codec.SLACK_UNIT]}
        last = chain.append(connection, salt, Last(-1, b"", 0), body, [])
        if people is not None:
            Directory(salt).find(people[0])  # refuses an id that occurs twice
            last = accounts.add(connection, salt, last, *people)
        return last


def read_salt(engine: sa.Engine) -> bytes:
    """Return a ledger's salt. Raises `StateError` where its first entry is damaged."""
    with transaction(engine, writes=False) as connection, chain.naming_damage():
        salt = bytes.fromhex(meta(connection, "salt"))
        chain.check_first_entry(connection, salt)
        return salt


def meta(connection: sa.Connection, key: str) -> str:
    """Return a setting of the ledger. Raises `StateError` where it is missing."""
    result: Any = schema.meta(connection).get(key)
    if result is None:
        raise StateError(f"ledger: its setting {key!r} is missing; restore a backup")
    return str(result)


def _alone(connection: sa.Connection) -> None:
    """Wait for another process that makes this ledger; SQLite has one writer anyway."""
    if connection.dialect.name == "postgresql":
        connection.exec_driver_sql("SELECT pg_advisory_xact_lock(7307199140915)")


@dataclass(slots=True)
class Reading:
    """A transaction on a history that was checked, and its last entry."""

    connection: sa.Connection
    last: Last


class LedgerStore:
    """The database of a ledger, its history and people as far as they were followed.

    One thread reads or writes at a time; what any store of this process saw, all of them remember.
    """

    def __init__(self, engine: sa.Engine, anchor: Anchor) -> None:
        self.engine, self._anchor = engine, anchor
        self.salt = read_salt(engine)
        self.trail, self._directory = Trail(self.salt), Directory(self.salt)
        self._memory, self._mutex = memory_of(self.salt), threading.RLock()

    def directory(self, reading: Reading) -> Directory:
        """Return the places of everyone there is."""
        self._directory.refresh(reading.connection, reading.last.people)
        return self._directory

    def enroll(
        self,
        writing: Reading,
        ids: Ids,
        terms: codec.Terms,
        *,
        keep: bool,
        lower: list[Integers] | None = None,
    ) -> Integers:
        """Change the terms of who has an account and did not withdraw, add the others; all places.

        keep, lower: as of `amend`.
        """
        places = self.directory(writing).find(ids)
        new, at = places < 0, writing.connection
        codec.require_canonical_ids(ids[new])
        known = ~new & ~codec.among(places, self.trail.withdrawn)
        own = ids[known], places[known], terms[known]
        last = accounts.amend(at, self.salt, writing.last, *own, keep, lower, self.trail.policy)
        places[new] = last.people + np.arange(int(new.sum()))
        writing.last = accounts.add(at, self.salt, last, ids[new], terms[new])
        return places

    def verify(self, head: Head | None) -> LedgerVerification:
        """Recompute everything from the history, and hold it against all heads that are kept."""
        result = self._anchor.read(whole=True)
        kept, seen = result.digests, self._memory.last
        for each in (None if seen is None else seen.head, head):
            if each is not None and kept.setdefault(*each) != each.digest:
                raise StateError(f"head {each.number}: another digest of that entry is kept")
        gone = None if result.beside else self._anchor.beside
        return verify(self.engine, self.salt, kept, None if gone is None else gone.called)

    @property
    def files(self) -> list[Path]:
        """The files of an SQLite ledger, and those in which heads are kept."""
        store = sqlite_file(self.engine)
        kept = [file.path for file in self._anchor.files]
        return kept if store is None else [store, *kept]

    @contextmanager
    def reading(self) -> Iterator[Reading]:
        """Read from a history that was checked to its end, one thread at a time."""
        with self._mutex:
            # Whatever is remembered before the database is looked at is in what is seen of it.
            seen, kept = self._memory.last, self._anchor.read()
            with opened(self.engine, writes=False) as connection, chain.naming_damage():
                last = self._followed(connection, seen, kept)
                self._anchor.keep(last, kept, must=False)  # before anything of it goes out
                yield Reading(connection, last)

    @contextmanager
    def writing(self) -> Iterator[Reading]:
        """Write to a checked history, as its only writer; `last` is remembered afterwards.

        The store is looked at once more then: a copy may have been put in its place meanwhile.
        """
        with self._mutex, self._memory.writing:
            self._anchor.check_writable()  # before a charge that could not be kept
            with opened(self.engine, writes=True) as connection, chain.naming_damage():
                hold(connection)
                seen, kept = self._memory.last, self._anchor.read()  # nobody writes now
                writing = Reading(connection, self._followed(connection, seen, kept))
                yield writing
            self._memory.see(writing.last)
            self._anchor.keep(writing.last, kept)
            with opened(self.engine, writes=False) as connection:
                chain.require(connection, writing.last)

    def _followed(self, connection: sa.Connection, seen: Last | None, kept: Heads) -> Last:
        """Return the last entry of a history that has all that is remembered of it."""
        last = self.trail.follow(connection, kept.digests)
        self.trail.require_seen(seen)
        self._anchor.require_any(last, kept, charged=bool(self.trail.reserved))
        self._memory.see(last)
        return last
