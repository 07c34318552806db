"""Recomputing a ledger from its history: what does not add up is named."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np
import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError

from apiece._types import Integers, Json
from apiece.errors import StateError
from apiece.ledger import chain, codec, units
from apiece.ledger.chain import Head
from apiece.ledger.codec import BLOCK, TERMS
from apiece.ledger.database import transaction
from apiece.ledger.digests import block_digest, entry_digest, payload_root
from apiece.ledger.schema import BALANCE, ENTRY, HEAD, PAYLOAD, PEOPLE, VERSION, meta, payloads


@dataclass(frozen=True, slots=True)
class Verification:
    """What was recomputed, and every problem found; `ok` where there is none.

    Attributes:
        entries: How many were read.
        people: How many have accounts, by the history.
        head: The last entry that was read.
        problems: One line each; they may name persons' places.

    Example:
        >>> from apiece.ledger.chain import Head
        >>> Verification(1, 0, Head(0, "0" * 64), ()).ok
        True
    """

    entries: int
    people: int
    head: Head
    problems: tuple[str, ...] = field(repr=False)

    @property
    def ok(self) -> bool:
        """Whether history and balances agree, digest by digest and unit by unit."""
        return not self.problems


@dataclass(slots=True, repr=False)
class _Fold:
    """Everyone's ids, terms and spending, as the history alone tells them."""

    ids: list[codec.Ids] = field(default_factory=list)
    terms: list[codec.Terms] = field(default_factory=list)
    spent: list[Integers] = field(default_factory=list)
    reserved: set[str] = field(default_factory=set)
    committed: set[str] = field(default_factory=set)
    problems: list[str] = field(default_factory=list)

    def apply(self, number: int, body: Json, payloads: list[tuple[int, bytes]]) -> None:
        kind = body["kind"]
        match kind:
            case "enroll":
                for block, data in payloads:
                    self._enroll(block, data)
            case "amend":
                for block, data in payloads:
                    self._amend(number, block, data)
            case "reserve":
                self._reserve(number, body["analysis"], payloads)
            case "commit":
                if body["analysis"] not in self.reserved or body["analysis"] in self.committed:
                    self.problems.append(f"entry {number}: commits what is not reserved")
                self.committed.add(body["analysis"])
            case "init" | "migrate":
                pass
            case _:
                self.problems.append(f"entry {number}: unknown kind {kind!r}")

    def _enroll(self, block: int, data: bytes) -> None:
        ids, terms = codec.unpack_enrolled(data)
        if block == len(self.ids):
            self.ids.append(ids[:0])
            self.terms.append(terms[:0])
            self.spent.append(np.zeros(0, dtype=np.int64))
        self.ids[block] = np.concatenate([self.ids[block], ids])
        self.terms[block] = np.concatenate([self.terms[block], terms])
        self.spent[block] = np.concatenate([self.spent[block], np.zeros(ids.size, np.int64)])

    def _amend(self, number: int, block: int, data: bytes) -> None:
        mask, new = codec.unpack_masked(data, TERMS)
        terms = self.terms[block].copy()
        terms[mask] = new
        self.terms[block] = terms
        self._check_limits(number, block)

    def _reserve(self, number: int, analysis: str, payloads: list[tuple[int, bytes]]) -> None:
        if analysis in self.reserved:
            self.problems.append(f"entry {number}: analysis {analysis!r} is reserved twice")
        self.reserved.add(analysis)
        for block, data in payloads:
            mask, charges = codec.unpack_masked(data, "<i8")
            if (charges < 0).any() or (charges > units.CAP).any():
                self.problems.append(f"entry {number}: charges of block {block} out of range")
            self.spent[block][mask] += charges
            self._check_limits(number, block)

    def _check_limits(self, number: int, block: int) -> None:
        if (self.spent[block] > self.terms[block]["limit"]).any():
            self.problems.append(f"entry {number}: someone in block {block} is over budget")


def verify(engine: sa.Engine, salt: bytes, kept: Mapping[int, str]) -> Verification:
    """Return what `Ledger.verify` promises; damage becomes a problem, not an exception.

    kept: digests of entries that were kept outside the database.
    """
    fold = _Fold()
    last = Head(-1, "")
    try:
        with transaction(engine, writes=False) as connection:
            _check_file(connection, fold.problems)
            last = _walk(connection, salt, kept, fold)
            _compare(connection, salt, last, fold)
    except (StateError, DBAPIError, *codec.DAMAGE) as error:
        said = str(error).splitlines() or [type(error).__name__]
        fold.problems.append(f"stopped: {said[0]}")
    people = sum(ids.size for ids in fold.ids)
    return Verification(last.number + 1, people, last, tuple(fold.problems))


def _check_file(connection: sa.Connection, problems: list[str]) -> None:
    if connection.dialect.name == "sqlite":
        found = [str(r[0]) for r in connection.exec_driver_sql("PRAGMA integrity_check(20)")]
        problems += [f"database file: {line}" for line in found if line != "ok"]


def _walk(connection: sa.Connection, salt: bytes, kept: Mapping[int, str], fold: _Fold) -> Head:
    """Recompute the chain of digests, folding each entry; return the last one's."""
    previous, expected = b"", 0
    wanted = dict(kept)
    for number, body, digest, stored, arrays in _entries(connection):
        if number != expected:
            fold.problems.append(f"entry {expected}: missing")
        root = payload_root(salt, arrays.items())
        if root != stored or digest != entry_digest(salt, previous, body, root):
            fold.problems.append(f"entry {number}: its digest is not that of its content")
        try:
            content = json.loads(body)
            if content["number"] != number:
                fold.problems.append(f"entry {number}: says it is entry {content['number']}")
            fold.apply(number, content, list(arrays.items()))
        except codec.DAMAGE as error:
            fold.problems.append(f"entry {number}: cannot be read ({type(error).__name__})")
        previous, expected = digest, number + 1
        if wanted.get(number) == digest.hex():
            del wanted[number]
    fold.problems += [f"entry {n}: not the one whose digest was kept" for n in sorted(wanted)]
    return Head(expected - 1, previous.hex())


def _entries(
    connection: sa.Connection,
) -> Iterator[tuple[int, str, bytes, bytes, dict[int, bytes]]]:
    numbers = {_whole(n) for (n,) in connection.execute(sa.select(PAYLOAD.c.number).distinct())}
    for row in connection.execute(sa.select(ENTRY).order_by(ENTRY.c.number)).all():
        number = _whole(row.number)
        arrays = payloads(connection, number) if number in numbers else {}
        numbers.discard(number)
        yield number, str(row.body), bytes(row.digest), bytes(row.payload_root), arrays
    if numbers:
        raise StateError(f"entry {min(numbers)}: has charges but is missing")


def _whole(number: object) -> int:
    """Return a number that is stored as a whole one: SQLite keeps a fraction as it is given."""
    if type(number) is not int:
        raise StateError(f"number {number!r}: is not a whole one")
    return number


def _compare(connection: sa.Connection, salt: bytes, last: Head, fold: _Fold) -> None:
    """Compare the tables with what the history adds up to."""
    problems = fold.problems
    head = connection.execute(sa.select(HEAD)).all()
    stored = [(_whole(r.number), bytes(r.digest).hex(), _whole(r.people)) for r in head]
    if stored != [(last.number, last.digest, sum(ids.size for ids in fold.ids))]:
        problems.append("head: not the last entry of the history")
    body = connection.execute(sa.select(ENTRY.c.body).where(ENTRY.c.number == last.number)).scalar()
    if json.loads(str(body))["state"] != chain.state_root(connection, salt):
        problems.append("balances: their digests are not those of the last entry")
    if meta(connection) != {"schema": str(VERSION), "salt": salt.hex()}:
        problems.append("settings: not those with which the ledger was opened")
    _compare_people(connection, salt, fold)
    _compare_balances(connection, salt, fold)


def _compare_people(connection: sa.Connection, salt: bytes, fold: _Fold) -> None:
    blocks = 0
    for row in connection.execute(sa.select(PEOPLE).order_by(PEOPLE.c.block)):
        blocks += 1
        size, ids, terms = str(row.size).encode(), bytes(row.ids), bytes(row.terms)
        good = (
            row.block < len(fold.ids)
            and row.size == fold.ids[row.block].size
            and ids == codec.pack_ids(fold.ids[row.block])
            and terms == fold.terms[row.block].tobytes()
            and bytes(row.digest) == block_digest(salt, "people", row.block, size, ids, terms)
        )
        if not good:
            fold.problems.append(f"people: block {row.block} is not as in the history")
    if blocks != len(fold.ids):
        fold.problems.append(f"people: {blocks} blocks, {len(fold.ids)} in the history")


def _compare_balances(connection: sa.Connection, salt: bytes, fold: _Fold) -> None:
    blocks = 0
    for row in connection.execute(sa.select(BALANCE).order_by(BALANCE.c.block)):
        blocks += 1
        spent = bytes(row.spent)
        good = (
            row.block < len(fold.spent)
            and spent == fold.spent[row.block].astype("<i8").tobytes()
            and bytes(row.digest) == block_digest(salt, "balance", row.block, spent)
        )
        if not good:
            fold.problems.append(
                f"balances: block {row.block} (people {row.block * BLOCK} to "
                f"{row.block * BLOCK + BLOCK - 1}) is not what the history adds up to"
            )
    if blocks != len(fold.spent):
        fold.problems.append(f"balances: {blocks} blocks, {len(fold.spent)} in the history")
