"""The database of a ledger as this process has checked it: each transaction follows its history."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import sqlalchemy as sa

from apiece.errors import StateError
from apiece.ledger import chain, opening
from apiece.ledger.anchor import Anchor, Heads, memory_of
from apiece.ledger.chain import Head, Last
from apiece.ledger.database import opened, sqlite_file
from apiece.ledger.directory import Directory
from apiece.ledger.trail import Trail, hold
from apiece.ledger.verify import Verification, verify


@dataclass(slots=True)
class Reading:
    """A transaction on a history that was checked, and its last entry."""

    connection: sa.Connection
    last: Last


class Store:
    """The database of a ledger, its history and people as far as they were followed.

    Threads may share one: one of them reads or writes at a time. What any store of this process
    wrote or read, all of them remember.
    """

    def __init__(self, engine: sa.Engine, anchor: Anchor) -> None:
        self.engine, self._anchor = engine, anchor
        self.salt, self.origin = opening.read(engine)
        self.trail, self._directory = Trail(self.salt), Directory(self.salt)
        self._memory, self._mutex = memory_of(self.salt), threading.RLock()

    def directory(self, reading: Reading) -> Directory:
        """Return the places of everyone there is."""
        self._directory.refresh(reading.connection, reading.last.people)
        return self._directory

    def verify(self, head: Head | None) -> Verification:
        """Recompute everything from the history, and hold it against all heads that are kept."""
        found = self._anchor.read(whole=True)
        kept, seen = found.digests, self._memory.last
        own = None if seen is None else Head(seen.number, seen.digest.hex())
        for each in (own, head):
            if each is not None and kept.setdefault(*each) != each.digest:
                raise StateError(f"head {each.number}: another digest of that entry is kept")
        gone = None if found.beside else self._anchor.beside
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
        """As `reading`, with the only right to write; `last` is remembered after it.

        The store is looked at once more then: a copy may have been put in its place meanwhile.
        """
        with self._mutex, self._memory.writing:
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
