"""The history: every entry's digest covers its content, the balances after it, and the last one.

Who can write to the database and reads its salt can rewrite all of it, digests too: heads that are
kept outside it (`anchor`, or by hand for `verify(head=…)`) tell that as well.
"""

from __future__ import annotations

import json
import time
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Final, NamedTuple

import numpy as np
import sqlalchemy as sa

from apiece import _json
from apiece._identifiers import require_canonical
from apiece._types import Integers, Json
from apiece.errors import AnalysisError, ApieceError, InputError, StateError
from apiece.ledger import codec, schema
from apiece.ledger.codec import (
    DAMAGE,
    REMEDY,
    SLACK_UNIT,
    UNIT,
    combine_digests,
    compute_digest,
)
from apiece.ledger.entries import (
    CommitEntry,
    HistoryState,
    InitEntry,
    ReserveEntry,
    StoredEntry,
    Subject,
    UnknownEntry,
    report_damage,
)
from apiece.ledger.schema import BALANCE, CHUNK, ENTRY, HEAD, PAYLOAD, PEOPLE, SCOPE, split_chunks
from apiece.ledger.scopes import Scope

# The end of messages about a store that was put back.
_NEWEST: Final = (
    "nothing was charged; put the newest copy of the ledger back: what it has and this one lacks "
    "was charged"
)


class Tip(NamedTuple):
    """The last entry: its number, its digest, and how many people there are after it."""

    number: int
    digest: bytes
    people: int

    @property
    def head(self) -> Head:
        """Return what is kept of it outside the database."""
        return Head(self.number, self.digest.hex())


class Head(NamedTuple):
    """The last entry's number and digest (64 hexadecimal digits), to be kept outside the database.

    Attributes:
        number: 0 is the entry with the ledger's settings.
        digest: Of this entry and all before it.

    Example:
        >>> from apiece.ledger import Head
        >>> Head(3, "0" * 64).number
        3
    """

    number: int
    digest: str


@dataclass(frozen=True, slots=True)
class Entry:
    """One line of the history; it holds nothing about a single person."""

    # From 0 on.
    number: int
    # The kind of a class in `entries`: "init", "enroll", "reserve" and so on.
    kind: str
    # When it was written, in UTC, by the clock of the process that wrote it.
    at: str
    # The id of the analysis, for a reservation or a commit.
    analysis: str | None
    # Of this entry and, through it, of all before.
    digest: str


def digest_state(connection: sa.Connection, salt: bytes) -> str:
    """Return the digest of all terms and balances."""
    # People and balances of whole accounts have one root each, always; balances of scopes have one
    # where there are any: a ledger without them has these two alone.
    roots = []
    for table in (PEOPLE, BALANCE):
        by_block = sa.select(table.c.block, table.c.digest).order_by(table.c.block)
        rows = connection.execute(by_block)
        digests = ((int(block), bytes(digest)) for block, digest in rows)
        roots.append(combine_digests(salt, digests))
    of_scopes = sa.select(SCOPE.c.scope, SCOPE.c.block, SCOPE.c.digest)
    # Sorted here: databases sort texts in several ways.
    scopes = sorted(
        (str(key), int(block), bytes(digest))
        for key, block, digest in connection.execute(of_scopes)
    )
    if scopes:
        parts = []
        for key, block, digest in scopes:
            parts += [f"{key} {block}".encode(), digest]
        roots.append(compute_digest(salt, *parts))
    return compute_digest(salt, *roots).hex()


@contextmanager
def naming_damage() -> Iterator[None]:
    """Turn what damaged content raises when it is read into a `StateError` of one line."""
    try:
        yield
    # What is raised here on purpose says more than the type of an error.
    except ApieceError:
        raise
    except DAMAGE as error:
        raise StateError(
            f"ledger: what is stored cannot be read ({type(error).__name__}); {REMEDY}"
        ) from error


def append(
    connection: sa.Connection,
    salt: bytes,
    tip: Tip,
    body: Json,
    payloads: Iterable[tuple[int, bytes]],
) -> Tip:
    """Add an entry with its packed arrays after `tip`; return it as the last one."""
    arrays = write_arrays(connection, salt, tip, payloads)
    return close_entry(connection, salt, tip, body, arrays)


def write_arrays(
    connection: sa.Connection, salt: bytes, tip: Tip, payloads: Iterable[tuple[int, bytes]]
) -> bytes:
    """Write an entry's arrays, some at a time; return their digest.

    What makes the arrays may change balances meanwhile.
    """
    number = tip.number + 1
    digests = []
    # Some arrays at a time: those of a charge of everybody outgrow the memory.
    arrays = iter(payloads)
    while part := list(islice(arrays, CHUNK)):
        rows = [{"number": number, "block": block, "data": data} for block, data in part]
        connection.execute(sa.insert(PAYLOAD), rows)
        digests += [(block, compute_digest(salt, data)) for block, data in part]
    return combine_digests(salt, digests)


def close_entry(connection: sa.Connection, salt: bytes, tip: Tip, body: Json, arrays: bytes) -> Tip:
    """Add an entry after `tip`, whose arrays are written, with the state as it now is."""
    number = tip.number + 1
    full = {
        **body,
        "number": number,
        "at": body.get("at", _read_clock()),
        "people": tip.people,
        "state": digest_state(connection, salt),
    }
    # One spelling of each body: it is stored as text, and the digest is that of the text.
    text = json.dumps(full, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    digest = codec.digest_entry(salt, tip.digest, text, arrays)
    connection.execute(
        sa.insert(ENTRY).values(number=number, body=text, digest=digest, payload_root=arrays)
    )
    # The head is in the same transaction as the entry, so that one is never there without the
    # other.
    connection.execute(sa.update(HEAD).values(number=number, digest=digest, people=tip.people))
    return Tip(number, digest, tip.people)


def require_entry(connection: sa.Connection, tip: Tip) -> None:
    """Raise `StateError` where the store no longer has the entry that was written to it."""
    stored = sa.select(ENTRY.c.digest).where(ENTRY.c.number == tip.number)
    digest = connection.execute(stored).scalar()
    if digest is None or bytes(digest) != tip.digest:
        raise StateError(
            f"ledger: entry {tip.number} was written and is gone, so the database was put back to "
            "an older or another state meanwhile; release nothing, and put the newest copy back"
        )


def lock_head(connection: sa.Connection) -> None:
    """Hold the head, so that there is one writer at a time."""
    connection.execute(sa.select(HEAD.c.number).with_for_update()).all()


def _select_entry(number: int) -> sa.Select[Any]:
    return sa.select(ENTRY).where(ENTRY.c.number == number)


def _select_entries(first: int = 0) -> sa.Select[Any]:
    """Return SQL for the entries from number `first` on, oldest first."""
    return sa.select(ENTRY).where(ENTRY.c.number >= first).order_by(ENTRY.c.number)


def _read_clock() -> str:
    """Return the time in UTC, ISO 8601, to the second."""
    # Times are compared as texts, so that all of them must have this one form.
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


@dataclass(slots=True)
class Trail(HistoryState):
    """The digests of all entries met so far, and what these entries say."""

    salt: bytes = field(repr=False, kw_only=False)
    digests: list[bytes] = field(default_factory=list, repr=False)
    # The digest of all terms and balances after the last entry, in hexadecimal digits.
    state: str = ""
    # When the latest entry was written, by its clock.
    at: str = ""

    def find_barred(self, scope: Scope, at: str | None = None) -> Integers:
        """Return the places of all who take no part in a scope: withdrawn, or without consent."""
        if self.permits is None:
            return self.withdrawn
        barred = ~self.permits.hold(scope, at or self.find_time(), self.people)
        barred[self.withdrawn] = True
        return np.flatnonzero(barred)

    def find_time(self) -> str:
        """Return the time, and never one before the latest entry's: no period comes again."""
        return max(self.at, _read_clock())

    def follow(self, connection: sa.Connection, kept: Mapping[int, str]) -> Tip:
        """Check all entries since the last call, the head, and the digests of all balances.

        kept: digests that were kept outside. Raises `StateError` for whatever is not as written.
        """
        # Nothing that is read before this check counts: a trigger or a view could answer in the
        # tables' place.
        schema.refuse_strangers(connection)
        met = len(self.digests)
        # From the last entry that was met, which has to be there still.
        rows = connection.execute(_select_entries(met - 1))
        # The first row is the last entry that was met, and has to have its digest; all others are
        # new.
        is_same_history = met == 0
        for row in rows:
            if is_same_history:
                self._meet(connection, row)
            elif row.number == met - 1 and bytes(row.digest) == self.digests[-1]:
                is_same_history = True
            else:
                break
        if not is_same_history:
            raise report_put_back(met - 1, "that this process saw there")
        # Three comparisons of the history, each with what is written elsewhere: digests kept
        # outside, the head, and the balances.
        self._check_kept(kept)
        return self._find_tip(connection)

    def require_seen(self, seen: Tip | None) -> None:
        """Raise `StateError` where the entry that this process remembers is not in the history."""
        if seen is None:
            return
        followed = seen.number < len(self.digests)
        if not followed or self.digests[seen.number] != seen.digest:
            raise report_put_back(seen.number, "that this process wrote or read")

    def require(self, analysis_id: str) -> None:
        """Raise `AnalysisError` for an analysis that was never reserved."""
        if analysis_id not in self.reserved:
            raise AnalysisError(
                f"analysis {analysis_id!r}: unknown to this ledger; reserve it first"
            )

    def read_entry(self, connection: sa.Connection, number: int) -> StoredEntry:
        """Return an entry that was met, checked again."""
        return self._check(self._read_row(connection, number), number)

    def read_reservation(
        self, connection: sa.Connection, analysis_id: str
    ) -> tuple[StoredEntry, ReserveEntry]:
        """Return the entry that reserved an analysis, which was reserved."""
        stored = self.read_entry(connection, self.reserved[analysis_id])
        if not isinstance(stored.content, ReserveEntry):
            raise report_damage(stored.number)
        return stored, stored.content

    def read_result(self, connection: sa.Connection, analysis_id: str) -> Any:
        """Return the result with which an analysis was committed, which was committed."""
        stored = self.read_entry(connection, self.committed[analysis_id])
        if not isinstance(stored.content, CommitEntry):
            raise report_damage(stored.number)
        return stored.content.result

    def read_entries(self, connection: sa.Connection) -> Iterator[tuple[StoredEntry, bytes]]:
        """Yield all entries and their digests, oldest first, checked again."""
        for number, (entry, _) in enumerate(self._read_rows(connection)):
            yield entry, self.digests[number]

    def list_leaves(self, connection: sa.Connection) -> Iterator[bytes]:
        """Yield what a published head binds of each entry, oldest first, checked again."""
        for _, row in self._read_rows(connection):
            arrays = bytes(row.payload_root).hex()
            yield f"{row.body}\n{arrays}".encode()

    def _read_rows(
        self, connection: sa.Connection
    ) -> Iterator[tuple[StoredEntry, sa.Row[tuple[object, ...]]]]:
        rows = connection.execute(sa.select(ENTRY).order_by(ENTRY.c.number)).all()
        return ((self._check(row, number), row) for number, row in enumerate(rows))

    def digest_arrays(self, connection: sa.Connection, number: int) -> dict[int, bytes]:
        """Return the digests of the packed arrays of an entry that was met, all checked again."""
        row = self._read_row(connection, number)
        self._check(row, number)
        payloads = schema.read_payloads(connection, number)
        digests = {block: compute_digest(self.salt, data) for block, data in payloads}
        if combine_digests(self.salt, digests.items()) != bytes(row.payload_root):
            raise report_damage(number)
        return digests

    def read_arrays(
        self, connection: sa.Connection, number: int, blocks: Collection[int] | None = None
    ) -> Iterator[tuple[int, bytes]]:
        """Yield the packed arrays of an entry that was met, of all blocks or of some, checked."""
        digests = self.digest_arrays(connection, number)
        # All digests are recomputed once; the arrays are read again in parts, each against its
        # digest, since all of them may not fit into memory.
        wanted = [block for block in digests if blocks is None or block in blocks]
        for part in split_chunks(wanted):
            expected = {block: digests[block] for block in part}
            yield from self.read_blocks(connection, number, expected).items()

    def read_blocks(
        self, connection: sa.Connection, number: int, digests: Mapping[int, bytes]
    ) -> dict[int, bytes]:
        """Return an entry's packed arrays of some blocks, if these are their digests."""
        in_entry = PAYLOAD.c.number == number
        in_blocks = PAYLOAD.c.block.in_(list(digests))
        rows = connection.execute(sa.select(PAYLOAD).where(sa.and_(in_entry, in_blocks)))
        arrays = {row.block: bytes(row.data) for row in rows}
        computed = {block: compute_digest(self.salt, data) for block, data in arrays.items()}
        if computed != digests:
            raise report_damage(number)
        return arrays

    def _read_row(self, connection: sa.Connection, number: int) -> Any:
        row = connection.execute(_select_entry(number)).first()
        if row is None:
            raise report_damage(number)
        return row

    def _check(self, row: Any, number: int) -> StoredEntry:
        """Return the entry in a row, if it is number `number` and as it was written."""
        # Of an entry that was met before the digest is the one seen then; of a new one that in the
        # row, which the next lines recompute. Both cover the digest of the entry before.
        previous = self.digests[number - 1] if number else b""
        is_met = number < len(self.digests)
        digest = self.digests[number] if is_met else bytes(row.digest)
        text = str(row.body)
        expected = codec.digest_entry(self.salt, previous, text, bytes(row.payload_root))
        if row.number != number or digest != expected:
            raise report_damage(number)
        # The number stands in the body too, which the digest covers: an entry cannot be moved.
        body = json.loads(text)
        if not isinstance(body, dict) or body["number"] != number:
            raise report_damage(number)
        entry = StoredEntry.read(body)
        if isinstance(entry.content, UnknownEntry):
            raise report_damage(number)
        return entry

    def _meet(self, connection: sa.Connection, row: Any) -> None:
        """Check the next entry and take in what it says."""
        number = len(self.digests)
        entry = self._check(row, number)
        is_first = number == 0
        # There is one first entry, and people are only ever added.
        if isinstance(entry.content, InitEntry) != is_first or entry.people < self.people:
            raise report_damage(number)

        def read_arrays() -> Iterator[tuple[int, bytes]]:
            return self.read_arrays(connection, number)

        # The state changes before the digest is added. Where an entry cannot follow, `update`
        # raises, and the next call meets the same entry again.
        entry.content.update(self, number, entry.people, read_arrays)
        self.people = entry.people
        self.state = entry.state
        # Clocks may go back; the latest time that any entry had is what later ones are not before.
        self.at = max(self.at, entry.at)
        self.digests.append(bytes(row.digest))

    def _check_kept(self, kept: Mapping[int, str]) -> None:
        newest = len(self.digests) - 1
        for number, digest in kept.items():
            if number > newest or self.digests[number].hex() != digest:
                tip = f"{newest}:{self.digests[-1].hex()}"
                raise StateError(
                    f"ledger: entry {number} is not the one whose digest was kept outside the "
                    f"database, so its history was cut short or rewritten; {_NEWEST}. If no newer "
                    "copy is left, those charges are lost: to go on without them, let the head "
                    f"file, and the anchor if there is one, hold the one line {tip}"
                )

    def _find_tip(self, connection: sa.Connection) -> Tip:
        """Return the last entry, if the head is it and everyone's balances are those after it."""
        rows = connection.execute(sa.select(HEAD)).all()
        stored = [(row.number, bytes(row.digest), row.people) for row in rows]
        if not self.digests:
            raise StateError("ledger: its history is missing; restore a backup")
        tip = Tip(len(self.digests) - 1, self.digests[-1], self.people)
        if stored != [tuple(tip)]:
            raise StateError(f"ledger: its head is not the last entry of its history; {REMEDY}")
        # The last entry has the digest of all digests of blocks; each block is held against its own
        # when it is read.
        if self.state != digest_state(connection, self.salt):
            raise StateError(f"ledger: balances do not match the history; {REMEDY}")
        return tip


def check_first_entry(connection: sa.Connection, salt: bytes) -> None:
    """Raise `StateError` where the first entry is not that of a ledger in today's units."""
    row = connection.execute(_select_entry(0)).first()
    if row is None:
        raise StateError("ledger: its first entry is missing; restore a backup")
    entry = Trail(salt)._check(row, 0).content
    if not isinstance(entry, InitEntry) or entry.units != [UNIT, SLACK_UNIT]:
        raise report_damage(0)
    if entry.is_copy:
        # Its accounts may be Rényi filters, which no terms here can say.
        raise StateError(
            "ledger: was copied from a format of before the first release, which is no longer "
            "read; put it away and make a new one with `apiece ledger init`, whose budgets leave "
            "room for what was charged"
        )


def report_put_back(number: int, described: str) -> StateError:
    """Return the error for a store that lacks an entry."""
    return StateError(
        f"ledger: entry {number} is not the one {described}, so the database was put back to an "
        f"older or another state; {_NEWEST}"
    )


def check_new_id(value: str) -> None:
    """Raise `InputError` for the id of a new analysis that could be written in another way."""
    require_canonical("analysis_id", value)


def check_id(value: Any) -> str:
    """Return the id of an analysis, new or old. Raises `InputError` for what cannot be one."""
    if not isinstance(value, str) or not value.isprintable() or not 0 < len(value) <= 200:
        raise InputError(f"analysis_id = {value!r}: give 1 to 200 printable characters")
    return value


def digest_terms(salt: bytes, terms: Any) -> str | None:
    """Return the keyed digest of a reservation's terms in hexadecimal digits; None of none."""
    if terms is None:
        return None
    return compute_digest(salt, b"terms", to_json("terms", terms).encode()).hex()


def check_terms(analysis_id: str, stored: Subject, asked: Subject) -> None:
    """Raise `AnalysisError` for other terms or another scope than an analysis was reserved for."""
    if (stored.terms, stored.scope) != (asked.terms, asked.scope):
        raise AnalysisError(
            f"analysis {analysis_id!r}: in use for another analysis or other terms; use a new id"
        )


def to_json(name: str, value: object) -> str:
    """Return a value as JSON that can be kept. Raises `InputError` where it cannot be."""
    return _json.dumps(value, name)
