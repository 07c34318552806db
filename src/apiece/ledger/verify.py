"""Recomputing a ledger from its history: what does not add up is named."""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError

from apiece.errors import StateError
from apiece.ledger import chain, codec, units
from apiece.ledger.chain import Head, block_digest
from apiece.ledger.codec import BLOCK, TERMS
from apiece.ledger.database import transaction
from apiece.ledger.schema import ANALYSIS, BALANCE, ENTRY, HEAD, PAYLOAD, PEOPLE

DAMAGE = (ValueError, KeyError, TypeError, IndexError, OverflowError, struct.error, zlib.error)


@dataclass(frozen=True, slots=True)
class Verification:
    """What was recomputed, and every problem found; `ok` where there is none."""

    entries: int
    people: int
    head: Head
    problems: tuple[str, ...]

    @property
    def ok(self) -> bool:
        """Whether history and balances agree, digest by digest and unit by unit."""
        return not self.problems


@dataclass(slots=True)
class _Fold:
    """Everyone's ids, terms and spending, as the history alone tells them."""

    ids: list[codec.Ids] = field(default_factory=list)
    terms: list[codec.Terms] = field(default_factory=list)
    spent: list[codec.Integers] = field(default_factory=list)
    analyses: dict[str, tuple[int, int | None]] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)

    def apply(self, number: int, body: dict[str, Any], payloads: list[tuple[int, bytes]]) -> None:
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
                reserved, committed = self.analyses.get(body["analysis"], (None, None))
                if reserved is None or committed is not None:
                    self.problems.append(f"entry {number}: commits what is not reserved")
                else:
                    self.analyses[body["analysis"]] = (reserved, number)
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
        if analysis in self.analyses:
            self.problems.append(f"entry {number}: analysis {analysis!r} is reserved twice")
        self.analyses[analysis] = (number, None)
        for block, data in payloads:
            mask, charges = codec.unpack_masked(data, "<i8")
            if (charges < 0).any() or (charges > units.CAP).any():
                self.problems.append(f"entry {number}: charges of block {block} out of range")
            self.spent[block][mask] += charges
            self._check_limits(number, block)

    def _check_limits(self, number: int, block: int) -> None:
        if (self.spent[block] > self.terms[block]["limit"]).any():
            self.problems.append(f"entry {number}: someone in block {block} is over budget")


def verify(engine: sa.Engine, salt: bytes, head: Head | None) -> Verification:
    """Return what `Ledger.verify` promises; damage becomes a problem, not an exception."""
    fold = _Fold()
    last = Head(-1, "")
    try:
        with transaction(engine, writes=False) as connection:
            _check_file(connection, fold.problems)
            last = _walk(connection, salt, head, fold)
            _compare(connection, salt, last, fold)
    except (StateError, DBAPIError) as error:
        fold.problems.append(str(error).splitlines()[0])
    people = sum(ids.size for ids in fold.ids)
    return Verification(last.number + 1, people, last, tuple(fold.problems))


def _check_file(connection: sa.Connection, problems: list[str]) -> None:
    if connection.dialect.name == "sqlite":
        found = [str(r[0]) for r in connection.exec_driver_sql("PRAGMA integrity_check(20)")]
        problems += [f"database file: {line}" for line in found if line != "ok"]


def _walk(connection: sa.Connection, salt: bytes, kept: Head | None, fold: _Fold) -> Head:
    """Recompute the chain of digests, folding each entry; return the last one's."""
    previous, expected = b"", 0
    seen = kept is None
    for number, body, digest, payloads in _entries(connection):
        if number != expected:
            fold.problems.append(f"entry {expected}: missing")
        if digest != chain.entry_digest(salt, previous, body, chain.payload_root(salt, payloads)):
            fold.problems.append(f"entry {number}: its digest is not that of its content")
        try:
            content = json.loads(body)
            if content["number"] != number:
                fold.problems.append(f"entry {number}: says it is entry {content['number']}")
            fold.apply(number, content, payloads)
        except DAMAGE as error:
            fold.problems.append(f"entry {number}: cannot be read ({type(error).__name__})")
        previous, expected = digest, number + 1
        if kept is not None and kept.number == number:
            seen = digest.hex() == kept.digest
    if not seen and kept is not None:
        fold.problems.append(f"entry {kept.number}: not the one whose digest was kept")
    return Head(expected - 1, previous.hex())


def _entries(
    connection: sa.Connection,
) -> Iterator[tuple[int, str, bytes, list[tuple[int, bytes]]]]:
    numbers = {int(n) for (n,) in connection.execute(sa.select(PAYLOAD.c.number).distinct())}
    rows = connection.execute(sa.select(ENTRY).order_by(ENTRY.c.number)).all()
    for row in rows:
        payloads = []
        if row.number in numbers:
            payloads = [
                (int(block), bytes(data))
                for block, data in connection.execute(
                    sa.select(PAYLOAD.c.block, PAYLOAD.c.data)
                    .where(PAYLOAD.c.number == row.number)
                    .order_by(PAYLOAD.c.block)
                )
            ]
        numbers.discard(row.number)
        yield int(row.number), str(row.body), bytes(row.digest), payloads
    if numbers:
        raise StateError(f"entry {min(numbers)}: has charges but is missing")


def _compare(connection: sa.Connection, salt: bytes, last: Head, fold: _Fold) -> None:
    """Compare the tables with what the history adds up to."""
    problems = fold.problems
    head = connection.execute(sa.select(HEAD)).all()
    stored = [(int(r.number), bytes(r.digest).hex(), int(r.people)) for r in head]
    if stored != [(last.number, last.digest, sum(ids.size for ids in fold.ids))]:
        problems.append("head: not the last entry of the history")
    body = connection.execute(sa.select(ENTRY.c.body).where(ENTRY.c.number == last.number)).scalar()
    if chain.stated_root(body) != chain.state_root(connection, salt):
        problems.append("balances: their digests are not those of the last entry")
    _compare_people(connection, salt, fold)
    _compare_balances(connection, salt, fold)
    found = {
        str(r.id): (int(r.reserved), None if r.committed is None else int(r.committed))
        for r in connection.execute(sa.select(ANALYSIS))
    }
    if found != fold.analyses:
        odd = sorted(k for k in found | fold.analyses if found.get(k) != fold.analyses.get(k))
        problems.append(f"analyses: {odd[0]!r} is not as in the history ({len(odd)} such)")


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
