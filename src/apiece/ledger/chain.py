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
from typing import Any, NamedTuple

import numpy as np
import sqlalchemy as sa

from apiece import _json
from apiece._identifiers import require_canonical
from apiece._types import Integers, Json
from apiece.errors import AnalysisError, ApieceError, InputError, StateError
from apiece.ledger import codec, schema
from apiece.ledger.codec import DAMAGE, SLACK_UNIT, UNIT, keyed, root
from apiece.ledger.schema import BALANCE, CHUNK, ENTRY, HEAD, PAYLOAD, PEOPLE, SCOPE, chunks
from apiece.ledger.scopes import NO_POLICY, Permits, Policy, Scope

REMEDY = "nothing was charged; run `apiece ledger verify` and restore a backup"


class Last(NamedTuple):
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

    number: int  # From 0 on
    kind: str  # One of `KINDS`
    at: str  # When, in UTC, by the clock of the process that wrote it
    analysis: str | None  # Its id, for a reservation or a commit
    digest: str  # Of this entry and, through it, of all before


def state_root(connection: sa.Connection, salt: bytes) -> str:
    """Return the digest of all terms and balances."""
    roots = []
    for table in (PEOPLE, BALANCE):
        rows = connection.execute(sa.select(table.c.block, table.c.digest).order_by(table.c.block))
        roots.append(root(salt, ((int(block), bytes(digest)) for block, digest in rows)))
    every = sa.select(SCOPE.c.scope, SCOPE.c.block, SCOPE.c.digest)
    scopes = connection.execute(every).all()
    if scopes:  # sorted here: databases sort texts in several ways
        named = sorted((str(key), int(block), bytes(digest)) for key, block, digest in scopes)
        parts = ((f"{key} {block}".encode(), digest) for key, block, digest in named)
        roots.append(keyed(salt, *(each for pair in parts for each in pair)))
    return keyed(salt, *roots).hex()


@contextmanager
def naming_damage() -> Iterator[None]:
    """Turn what damaged content raises when it is read into a `StateError` of one line."""
    try:
        yield
    except ApieceError:
        raise
    except DAMAGE as error:
        raise StateError(
            f"ledger: what is stored cannot be read ({type(error).__name__}); {REMEDY}"
        ) from error


def append(
    connection: sa.Connection,
    salt: bytes,
    last: Last,
    body: Json,
    payloads: Iterable[tuple[int, bytes]],
) -> Last:
    """Add an entry with its packed arrays after `last`; return it as the last one."""
    return close(connection, salt, last, body, write_arrays(connection, salt, last, payloads))


def write_arrays(
    connection: sa.Connection, salt: bytes, last: Last, payloads: Iterable[tuple[int, bytes]]
) -> bytes:
    """Write an entry's arrays, some at a time; what makes them may change balances meanwhile."""
    digests, left = [], iter(payloads)
    while part := list(islice(left, CHUNK)):
        connection.execute(
            sa.insert(PAYLOAD),
            [{"number": last.number + 1, "block": block, "data": data} for block, data in part],
        )
        digests += [(block, keyed(salt, data)) for block, data in part]
    return root(salt, digests)


def require(connection: sa.Connection, last: Last) -> None:
    """Raise `StateError` where the store no longer has the entry that was written to it."""
    here = sa.select(ENTRY.c.digest).where(ENTRY.c.number == last.number)
    digest = connection.execute(here).scalar()
    if digest is None or bytes(digest) != last.digest:
        raise StateError(
            f"ledger: entry {last.number} was written and is gone, so the database was put back to "
            "an older or another state meanwhile; release nothing, and put the newest copy back"
        )


def close(connection: sa.Connection, salt: bytes, last: Last, body: Json, arrays: bytes) -> Last:
    """Add an entry after `last`, whose arrays are written, with the state as it now is."""
    number = last.number + 1
    full = {
        **body,
        "number": number,
        "at": body.get("at", time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())),
        "people": last.people,
        "state": state_root(connection, salt),
    }
    text = json.dumps(full, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    digest = codec.entry_digest(salt, last.digest, text, arrays)
    connection.execute(
        sa.insert(ENTRY).values(number=number, body=text, digest=digest, payload_root=arrays)
    )
    connection.execute(sa.update(HEAD).values(number=number, digest=digest, people=last.people))
    return Last(number, digest, last.people)


NEWEST = (
    "nothing was charged; put the newest copy of the ledger back: what it has and this one lacks "
    "was charged"
)
KINDS = ("init", "enroll", "amend", "reserve", "commit", "policy", "withdraw", "consent")


@dataclass(slots=True)
class Trail:
    """The digests of all entries met so far, and what analyses they reserved and committed."""

    salt: bytes = field(repr=False)
    digests: list[bytes] = field(default_factory=list, repr=False)
    reserved: dict[str, int] = field(default_factory=dict, repr=False)
    committed: dict[str, int] = field(default_factory=dict, repr=False)
    people: int = 0
    state: str = ""
    at: str = ""  # of the latest entry by its clock
    policy: Policy = NO_POLICY
    withdrawn: Integers = field(default_factory=lambda: np.zeros(0, np.int64), repr=False)
    permits: Permits | None = field(default=None, repr=False)

    def out(self, scope: Scope, at: str | None = None) -> Integers:
        """Return the places of all who take no part in a scope: withdrawn, or without consent."""
        if self.permits is None:
            return self.withdrawn
        barred = ~self.permits.hold(scope, at or self.now(), self.people)
        barred[self.withdrawn] = True
        return np.flatnonzero(barred)

    def now(self) -> str:
        """Return the time, and never one before the latest entry's: no period comes again."""
        return max(self.at, time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()))

    def follow(self, connection: sa.Connection, kept: Mapping[int, str]) -> Last:
        """Check all entries since the last call, the head, and the digests of all balances.

        kept: digests that were kept outside. Raises `StateError` for whatever is not as written.
        """
        schema.refuse_strangers(connection)
        met = len(self.digests)
        rows = connection.execute(
            sa.select(ENTRY).where(ENTRY.c.number >= met - 1).order_by(ENTRY.c.number)
        )
        again = met == 0
        for row in rows:
            if not again and row.number == met - 1:
                again = bytes(row.digest) == self.digests[-1]
                continue
            if not again:
                break
            self._meet(connection, row)
        if not again:
            raise put_back(met - 1, "that this process saw there")
        self._check_kept(kept)
        return self._last(connection)

    def require_seen(self, seen: Last | None) -> None:
        """Raise `StateError` where the entry that this process remembers is not in the history."""
        if seen is not None and self.digests[seen.number : seen.number + 1] != [seen.digest]:
            raise put_back(seen.number, "that this process wrote or read")

    def require(self, analysis_id: str) -> None:
        """Raise `AnalysisError` for an analysis that was never reserved."""
        if analysis_id not in self.reserved:
            raise AnalysisError(
                f"analysis {analysis_id!r}: unknown to this ledger; reserve it first"
            )

    def body(self, connection: sa.Connection, number: int) -> Json:
        """Return the content of an entry that was met, checked again."""
        return self._checked(self._row(connection, number), number)

    def bodies(self, connection: sa.Connection) -> Iterator[tuple[Json, bytes]]:
        """Yield the content and digest of all entries, oldest first, checked again."""
        for number, (body, _) in enumerate(self._rows(connection)):
            yield body, self.digests[number]

    def leaves(self, connection: sa.Connection) -> Iterator[bytes]:
        """Yield what a published head binds of each entry, oldest first, checked again."""
        for _, row in self._rows(connection):
            yield f"{row.body}\n{bytes(row.payload_root).hex()}".encode()

    def _rows(self, connection: sa.Connection) -> Iterator[tuple[Json, sa.Row[tuple[object, ...]]]]:
        rows = connection.execute(sa.select(ENTRY).order_by(ENTRY.c.number)).all()
        return ((self._checked(row, number), row) for number, row in enumerate(rows))

    def array_digests(self, connection: sa.Connection, number: int) -> dict[int, bytes]:
        """Return the digests of the packed arrays of an entry that was met, all checked again."""
        row = self._row(connection, number)
        self._checked(row, number)
        stored = schema.payloads(connection, number)
        result = {block: keyed(self.salt, data) for block, data in stored}
        if root(self.salt, result.items()) != bytes(row.payload_root):
            raise _damaged(number)
        return result

    def arrays(
        self, connection: sa.Connection, number: int, blocks: Collection[int] | None = None
    ) -> Iterator[tuple[int, bytes]]:
        """Yield the packed arrays of an entry that was met, of all blocks or of some, checked."""
        digests = self.array_digests(connection, number)
        wanted = [block for block in digests if blocks is None or block in blocks]
        for part in chunks(wanted):
            stored = self.arrays_of(connection, number, {block: digests[block] for block in part})
            yield from stored.items()

    def arrays_of(
        self, connection: sa.Connection, number: int, digests: Mapping[int, bytes]
    ) -> dict[int, bytes]:
        """Return an entry's packed arrays of some blocks, if these are their digests."""
        here = sa.and_(PAYLOAD.c.number == number, PAYLOAD.c.block.in_(list(digests)))
        rows = connection.execute(sa.select(PAYLOAD).where(here))
        result = {row.block: bytes(row.data) for row in rows}
        if {block: keyed(self.salt, data) for block, data in result.items()} != digests:
            raise _damaged(number)
        return result

    def _row(self, connection: sa.Connection, number: int) -> Any:
        row = connection.execute(sa.select(ENTRY).where(ENTRY.c.number == number)).first()
        if row is None:
            raise _damaged(number)
        return row

    def _checked(self, row: Any, number: int) -> Json:
        previous = self.digests[number - 1] if number else b""
        stored = self.digests[number] if number < len(self.digests) else bytes(row.digest)
        text, arrays = str(row.body), bytes(row.payload_root)
        if row.number != number or stored != codec.entry_digest(self.salt, previous, text, arrays):
            raise _damaged(number)
        body = json.loads(text)
        if not isinstance(body, dict) or body["number"] != number or body["kind"] not in KINDS:
            raise _damaged(number)
        return body

    def _meet(self, connection: sa.Connection, row: Any) -> None:
        number = len(self.digests)
        body = self._checked(row, number)
        kind, people = body["kind"], int(body["people"])
        if (kind == "init") != (number == 0) or people < self.people:
            raise _damaged(number)
        if kind in ("reserve", "commit"):
            known = self.reserved if kind == "reserve" else self.committed
            analysis = str(body["analysis"])
            if analysis in known or (kind == "commit" and analysis not in self.reserved):
                raise _damaged(number)
            known[analysis] = number
        if kind == "policy":
            self.policy = Policy.from_history(body["policy"])
        elif kind == "consent":
            self.permits = Permits.read(body, dict(self.arrays(connection, number)), people)
        elif kind == "withdraw":
            stored = self.arrays(connection, number)
            places = [codec.places(block, codec.unpack_mask(data)[0]) for block, data in stored]
            self.withdrawn = np.unique(np.concatenate([self.withdrawn, *places]))
        self.people, self.state = people, str(body["state"])
        self.at = max(self.at, str(body["at"]))
        self.digests.append(bytes(row.digest))

    def _check_kept(self, kept: Mapping[int, str]) -> None:
        for number, digest in kept.items():
            if number >= len(self.digests) or self.digests[number].hex() != digest:
                last = f"{len(self.digests) - 1}:{self.digests[-1].hex()}"
                raise StateError(
                    f"ledger: entry {number} is not the one whose digest was kept outside the "
                    f"database, so its history was cut short or rewritten; {NEWEST}. If no newer "
                    "copy is left, those charges are lost: to go on without them, let the head "
                    f"file, and the anchor if there is one, hold the one line {last}"
                )

    def _last(self, connection: sa.Connection) -> Last:
        """Return the last entry, if the head is it and everyone's balances are those after it."""
        rows = connection.execute(sa.select(HEAD.c.number, HEAD.c.digest, HEAD.c.people)).all()
        stored = [(row.number, bytes(row.digest), row.people) for row in rows]
        if not self.digests:
            raise StateError("ledger: its history is missing; restore a backup")
        last = Last(len(self.digests) - 1, self.digests[-1], self.people)
        if stored != [tuple(last)]:
            raise StateError(f"ledger: its head is not the last entry of its history; {REMEDY}")
        if self.state != state_root(connection, self.salt):
            raise StateError(f"ledger: balances do not match the history; {REMEDY}")
        return last


def hold(connection: sa.Connection) -> None:
    """Hold the head, so that there is one writer at a time."""
    connection.execute(sa.select(HEAD.c.number).with_for_update()).all()


def check_first_entry(connection: sa.Connection, salt: bytes) -> None:
    """Raise `StateError` where the first entry is not that of a ledger in today's units."""
    row = connection.execute(sa.select(ENTRY).where(ENTRY.c.number == 0)).first()
    if row is None:
        raise StateError("ledger: its first entry is missing; restore a backup")
    body = Trail(salt)._checked(row, 0)
    if body["units"] != [UNIT, SLACK_UNIT]:
        raise _damaged(0)
    if "migrated" in body:
        # Its accounts may be Rényi filters, which no terms here can say.
        raise StateError(
            "ledger: was copied from a format of before the first release, which is no longer "
            "read; put it away and make a new one with `apiece ledger init`, whose budgets leave "
            "room for what was charged"
        )


def put_back(number: int, described: str) -> StateError:
    """Return the error for a store that lacks an entry."""
    return StateError(
        f"ledger: entry {number} is not the one {described}, so the database was put back to an "
        f"older or another state; {NEWEST}"
    )


def _damaged(number: int) -> StateError:
    return StateError(f"ledger: entry {number} is damaged or missing; {REMEDY}")


def check_new_id(value: str) -> None:
    """Raise `InputError` for the id of a new analysis that could be written in another way."""
    require_canonical("analysis_id", value)


def check_id(value: Any) -> str:
    """Return the id of an analysis, new or old. Raises `InputError` for what cannot be one."""
    if not isinstance(value, str) or not 0 < len(value) <= 200 or not value.isprintable():
        raise InputError(f"analysis_id = {value!r}: give 1 to 200 printable characters")
    return value


def terms_of(salt: bytes, terms: Any) -> Json:
    """Return what a reservation's entry holds of its terms: a keyed digest, or nothing of none."""
    if terms is None:
        return {}
    return {"terms": keyed(salt, b"terms", checked_json("terms", terms).encode()).hex()}


def check_terms(analysis_id: str, entry: Json, asked: Json) -> None:
    """Raise `AnalysisError` for other terms or another scope than the entry has."""
    if any(entry.get(name) != asked.get(name) for name in ("terms", "scope")):
        raise AnalysisError(
            f"analysis {analysis_id!r}: in use for another analysis or other terms; use a new id"
        )


def checked_json(name: str, value: object) -> str:
    """Return a value as JSON that can be kept. Raises `InputError` where it cannot be."""
    return _json.dumps(value, name)
