"""The history as far as this process has checked it: what is decided, is decided from this.

Every entry is checked when it is first met, against the one before it, and once more when its
content is read again. A history that no longer continues what this process saw is refused.
"""

from __future__ import annotations

import json
import operator
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import sqlalchemy as sa

from apiece._types import Json
from apiece.errors import AnalysisError, InputError, StateError
from apiece.ledger.accounts import chunks
from apiece.ledger.chain import REMEDY, Last, state_root
from apiece.ledger.codec import entry_digest, keyed, root
from apiece.ledger.schema import ENTRY, HEAD, PAYLOAD, payloads, refuse_strangers
from apiece.ledger.units import SLACK_UNIT, UNIT

NEWEST = (
    "nothing was charged; put the newest copy of the ledger back: what it has and this one lacks "
    "was charged"
)
KINDS = ("init", "enroll", "amend", "reserve", "commit")


@dataclass(slots=True)
class Trail:
    """The digests of all entries met so far, and what analyses they reserved and committed."""

    salt: bytes = field(repr=False)
    digests: list[bytes] = field(default_factory=list, repr=False)
    reserved: dict[str, int] = field(default_factory=dict, repr=False)
    committed: dict[str, int] = field(default_factory=dict, repr=False)
    people: int = 0
    state: str = ""

    def follow(self, connection: sa.Connection, kept: Mapping[int, str]) -> Last:
        """Check all entries since the last call, the head, and the digests of all balances.

        kept: digests of entries that were kept outside the database. Raises `StateError` where
        anything is not what was written, or the history is not the one that was followed so far.
        """
        refuse_strangers(connection)
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
            self._meet(row)
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
        for number, row in enumerate(
            connection.execute(sa.select(ENTRY).order_by(ENTRY.c.number)).all()
        ):
            yield self._checked(row, number), self.digests[number]

    def array_digests(self, connection: sa.Connection, number: int) -> dict[int, bytes]:
        """Return the digests of the packed arrays of an entry that was met, all checked again."""
        row = self._row(connection, number)
        self._checked(row, number)
        found = {block: keyed(self.salt, data) for block, data in payloads(connection, number)}
        if root(self.salt, found.items()) != bytes(row.payload_root):
            raise _damaged(number)
        return found

    def arrays(
        self, connection: sa.Connection, number: int, digests: Mapping[int, bytes]
    ) -> dict[int, bytes]:
        """Return an entry's packed arrays of some blocks, if these are their digests."""
        found: dict[int, bytes] = {}
        for part in chunks(list(digests)):
            here = sa.and_(PAYLOAD.c.number == number, PAYLOAD.c.block.in_(part))
            for row in connection.execute(sa.select(PAYLOAD).where(here)):
                found[row.block] = bytes(row.data)
        if {block: keyed(self.salt, data) for block, data in found.items()} != digests:
            raise _damaged(number)
        return found

    def _row(self, connection: sa.Connection, number: int) -> Any:
        row = connection.execute(sa.select(ENTRY).where(ENTRY.c.number == number)).first()
        if row is None:
            raise _damaged(number)
        return row

    def _checked(self, row: Any, number: int) -> Json:
        previous = self.digests[number - 1] if number else b""
        stored = self.digests[number] if number < len(self.digests) else bytes(row.digest)
        text, arrays = str(row.body), bytes(row.payload_root)
        if row.number != number or stored != entry_digest(self.salt, previous, text, arrays):
            raise _damaged(number)
        body = json.loads(text)
        if not isinstance(body, dict) or body["number"] != number or body["kind"] not in KINDS:
            raise _damaged(number)
        return body

    def _meet(self, row: Any) -> None:
        number = len(self.digests)
        body = self._checked(row, number)
        kind, people = body["kind"], int(body["people"])
        if (kind == "init") != (number == 0) or people < self.people:
            raise _damaged(number)
        if kind in ("reserve", "commit"):
            which = self.reserved if kind == "reserve" else self.committed
            analysis = str(body["analysis"])
            if analysis in which or (kind == "commit" and analysis not in self.reserved):
                raise _damaged(number)
            which[analysis] = number
        self.people, self.state = people, str(body["state"])
        self.digests.append(bytes(row.digest))

    def _check_kept(self, kept: Mapping[int, str]) -> None:
        for number, digest in kept.items():
            if number >= len(self.digests) or self.digests[number].hex() != digest:
                raise StateError(
                    f"ledger: entry {number} is not the one whose digest was kept outside the "
                    f"database, so its history was cut short or rewritten; {NEWEST}"
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


class Origin(NamedTuple):
    """Who was in an older ledger that this one was migrated from: its first `people`.

    Where that counted in Rényi divergence their accounts keep the terms that they then had.
    """

    people: int
    renyi: bool


def origin(connection: sa.Connection, salt: bytes) -> Origin:
    """Return where the ledger comes from, by its first entry, whose units are checked."""
    row = connection.execute(sa.select(ENTRY).where(ENTRY.c.number == 0)).first()
    if row is None:
        raise StateError("ledger: its first entry is missing; restore a backup")
    body = Trail(salt)._checked(row, 0)
    if body["units"] != [UNIT, SLACK_UNIT]:
        raise _damaged(0)
    older = body.get("migrated")
    if older is None:
        return Origin(0, False)
    return Origin(operator.index(older["people"]), older["order"] is not None)


def put_back(number: int, which: str) -> StateError:
    """Return the error for a store that lacks an entry."""
    return StateError(
        f"ledger: entry {number} is not the one {which}, so the database was put back to an older "
        f"or another state; {NEWEST}"
    )


def _damaged(number: int) -> StateError:
    return StateError(f"ledger: entry {number} is damaged or missing; {REMEDY}")


def check_id(value: Any) -> str:
    """Return the id of an analysis. Raises `InputError` for what cannot be one."""
    if not isinstance(value, str) or not 0 < len(value) <= 200 or not value.isprintable():
        raise InputError(f"analysis_id = {value!r}: give 1 to 200 printable characters")
    return value


def check_result(result: Any) -> None:
    """Raise `InputError` for a result that JSON cannot hold."""
    _checked_json("result", result)


def terms_of(salt: bytes, terms: Any) -> Json:
    """Return what a reservation's entry holds of its terms: a keyed digest, or nothing of none."""
    if terms is None:
        return {}
    return {"terms": keyed(salt, b"terms", _checked_json("terms", terms).encode()).hex()}


def check_terms(analysis_id: str, entry: Json, asked: Json) -> None:
    """Raise `AnalysisError` where a reservation's entry holds other terms than those of `terms_of`.

    Reservations of ledgers older than version 4 hold none. The message depends on nothing else.
    """
    if entry.get("terms") != asked.get("terms"):
        raise AnalysisError(
            f"analysis {analysis_id!r}: in use for another analysis or other terms; use a new id"
        )


def _checked_json(name: str, value: Any) -> str:
    try:
        return json.dumps(value, allow_nan=False, sort_keys=True)
    except (TypeError, ValueError) as error:
        raise InputError(f"{name}: {error}; give a JSON value") from None
