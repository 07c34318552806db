"""The database of a ledger as this process has checked it: each transaction follows its history."""

from __future__ import annotations

import secrets
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import sqlalchemy as sa

from apiece._types import Ids, Integers
from apiece.errors import DataError, StateError
from apiece.ledger import accounts, chain, codec, schema
from apiece.ledger.anchor import Anchor, Heads, memory_of
from apiece.ledger.chain import Head, Tip, Trail, lock_head
from apiece.ledger.database import (
    create_private,
    is_missing,
    open_transaction,
    show_address,
    sqlite_file,
    transaction,
)
from apiece.ledger.directory import Directory
from apiece.ledger.entries import InitEntry
from apiece.ledger.verify import LedgerVerification, verify

# New people's ids and terms.
Enrolment = tuple[Ids, codec.Terms]
# The number of the lock of PostgreSQL under which ledgers are made; no other program has it.
_CREATION_LOCK = 7307199140915


def is_there(engine: sa.Engine) -> bool:
    """Return whether there is a ledger."""
    if is_missing(engine):
        return False
    with transaction(engine, writes=False) as connection:
        if not schema.has_ledger(connection):
            return False
        schema.check_version(show_address(engine), read_setting(connection, "schema"))
    return True


def report_missing(engine: sa.Engine) -> DataError:
    """Return the error for an address without a ledger."""
    return DataError(f"ledger {show_address(engine)}: no ledger there; run `apiece ledger init`")


def make_ledger(engine: sa.Engine, people: Enrolment | None) -> Tip | None:
    """Make a ledger, all or nothing; return its last entry, None where one was there first."""
    if people is not None:
        ids, _ = people
        codec.require_canonical_ids(ids)
    with create_private(engine), transaction(engine, writes=True) as connection:
        _lock_creation(connection)
        if schema.has_ledger(connection):
            return None
        if connection.dialect.name == "sqlite" and sa.inspect(connection).get_table_names():
            raise StateError(
                f"ledger {show_address(engine)}: is a database of something else; it is left "
                "untouched, give the name of a new file"
            )
        # The salt is made with the ledger, never changes and never leaves it; it is also by what a
        # ledger is known.
        salt = secrets.token_bytes(32)
        schema.create_tables(connection, salt)
        # Before the first entry, which is number 0 and follows no digest.
        start = Tip(-1, b"", 0)
        tip = chain.append(connection, salt, start, InitEntry().to_body(), [])
        if people is not None:
            ids, terms = people
            # Finding nobody refuses an id that occurs twice.
            Directory(salt).find(ids)
            tip = accounts.open_accounts(connection, salt, tip, ids, terms)
        return tip


def read_salt(engine: sa.Engine) -> bytes:
    """Return a ledger's salt. Raises `StateError` where its first entry is damaged."""
    with transaction(engine, writes=False) as connection, chain.naming_damage():
        salt = bytes.fromhex(read_setting(connection, "salt"))
        chain.check_first_entry(connection, salt)
        return salt


def read_setting(connection: sa.Connection, key: str) -> str:
    """Return a setting of the ledger. Raises `StateError` where it is missing."""
    setting = schema.read_settings(connection).get(key)
    if setting is None:
        raise StateError(f"ledger: its setting {key!r} is missing; restore a backup")
    return setting


def _lock_creation(connection: sa.Connection) -> None:
    """Wait for another process that makes this ledger; SQLite has one writer anyway."""
    if connection.dialect.name == "postgresql":
        connection.exec_driver_sql(f"SELECT pg_advisory_xact_lock({_CREATION_LOCK})")


@dataclass(slots=True)
class Reading:
    """A transaction on a history that was checked, and its last entry."""

    connection: sa.Connection
    tip: Tip


class LedgerStore:
    """The database of a ledger, its history and people as far as they were followed.

    One thread reads or writes at a time; what any store of this process saw, all of them remember.
    """

    def __init__(self, engine: sa.Engine, anchor: Anchor) -> None:
        self.engine = engine
        self.salt = read_salt(engine)
        self.trail = Trail(self.salt)
        self._anchor = anchor
        self._directory = Directory(self.salt)
        # `trail` and `_directory` follow this store's connection and are guarded by `_mutex`;
        # `_memory` is one for all stores of the ledger in this process.
        self._memory = memory_of(self.salt)
        self._mutex = threading.RLock()

    def directory(self, reading: Reading) -> Directory:
        """Return the places of everyone there is."""
        self._directory.refresh(reading.connection, reading.tip.people)
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

        keep, lower: see `amend_accounts`.
        """
        connection = writing.connection
        # Three kinds of people: new ones, who get accounts; those who withdrew, who stay as they
        # are; all others, whose terms may change.
        places = self.directory(writing).find(ids)
        is_new = places < 0
        codec.require_canonical_ids(ids[is_new])
        amended = ~is_new & ~codec.mark_members(places, self.trail.withdrawn)
        tip = accounts.amend_accounts(
            connection,
            self.salt,
            writing.tip,
            ids[amended],
            places[amended],
            terms[amended],
            keep,
            lower,
            self.trail.policy,
        )
        # The places that `open_accounts` gives: after everybody, in this order.
        places[is_new] = tip.people + np.arange(int(is_new.sum()))
        writing.tip = accounts.open_accounts(connection, self.salt, tip, ids[is_new], terms[is_new])
        return places

    def verify(self, head: Head | None) -> LedgerVerification:
        """Recompute everything from the history, and hold it against all heads that are kept."""
        heads = self._anchor.read(whole=True)
        digests = heads.digests
        seen = self._memory.tip
        # All that is known of the ledger must agree before the database is asked.
        for known in (None if seen is None else seen.head, head):
            if known is not None and digests.setdefault(*known) != known.digest:
                raise StateError(
                    f"head {known.number}: the head file has another digest for that entry; "
                    "one of the two is of another history: find out which was changed"
                )
        lost_file = None
        if not heads.beside and self._anchor.beside is not None:
            lost_file = self._anchor.beside.label
        return verify(self.engine, self.salt, digests, lost_file)

    @property
    def files(self) -> list[Path]:
        """The files of an SQLite ledger, and those in which heads are kept."""
        store = sqlite_file(self.engine)
        heads = [file.path for file in self._anchor.files]
        return heads if store is None else [store, *heads]

    @contextmanager
    def reading(self) -> Iterator[Reading]:
        """Read from a history that was checked to its end, one thread at a time."""
        with self._mutex:
            # Whatever is remembered before the database is looked at is in what is seen of it.
            seen = self._memory.tip
            heads = self._anchor.read()
            with open_transaction(self.engine, writes=False) as connection, chain.naming_damage():
                tip = self._follow(connection, seen, heads)
                # Kept before anything of it goes out.
                self._anchor.keep(tip, heads, must=False)
                yield Reading(connection, tip)

    @contextmanager
    def writing(self) -> Iterator[Reading]:
        """Write to a checked history, as its only writer; `tip` is remembered afterwards.

        The store is looked at once more then: a copy may have been put in its place meanwhile.
        """
        with self._mutex, self._memory.writing:
            # Before a charge that could not be kept.
            self._anchor.check_writable()
            with open_transaction(self.engine, writes=True) as connection, chain.naming_damage():
                lock_head(connection)
                # Nobody writes from here on, and so these are no older than the store.
                seen = self._memory.tip
                heads = self._anchor.read()
                writing = Reading(connection, self._follow(connection, seen, heads))
                yield writing
            # The transaction is durable here. First the memory, then the files, and a last look
            # whether the store that was written to is still the one at the address.
            self._memory.see(writing.tip)
            self._anchor.keep(writing.tip, heads)
            with open_transaction(self.engine, writes=False) as connection:
                chain.require_entry(connection, writing.tip)

    def _follow(self, connection: sa.Connection, seen: Tip | None, heads: Heads) -> Tip:
        """Return the last entry of a history that has all that is remembered of it."""
        tip = self.trail.follow(connection, heads.digests)
        self.trail.require_seen(seen)
        self._anchor.require_any(tip, heads, charged=bool(self.trail.reserved))
        self._memory.see(tip)
        return tip
