"""Recomputing a ledger from its history: what does not add up is named."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

import numpy as np
import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError

from apiece._types import Ids, Integers, Mask
from apiece.errors import StateError
from apiece.ledger import accounts, codec, fold, schema
from apiece.ledger.accounts import PEOPLE_ROWS, BlockRows
from apiece.ledger.chain import Head, Trail, digest_state
from apiece.ledger.codec import BLOCK, digest_entry, digest_payloads
from apiece.ledger.database import transaction
from apiece.ledger.entries import LedgerEntry, read_entry
from apiece.ledger.fold import Fold, FoldedBlock
from apiece.ledger.schema import BALANCE, ENTRY, HEAD, PAYLOAD, PEOPLE, SCOPE, VERSION

# What each entry says, by its number; those that cannot be read are missing.
Contents = dict[int, LedgerEntry]


@dataclass(frozen=True, slots=True)
class LedgerVerification:
    """The outcome of recomputing a ledger; `ok` where no problem was found.

    Attributes:
        entries: How many were read.
        people: How many have accounts, by the history.
        head: The last entry that was read.
        problems: One line each; they may name persons' places.
        notes: What is no problem and should be known, a line each: identifiers of an older ledger
            that a new one would refuse.

    Example:
        >>> from apiece.ledger import Head
        >>> from apiece.ledger.verify import LedgerVerification
        >>> LedgerVerification(1, 0, Head(0, "0" * 64), ()).ok
        True
    """

    entries: int
    people: int
    head: Head
    problems: tuple[str, ...] = field(repr=False)
    notes: tuple[str, ...] = field(default=(), repr=False)

    @property
    def ok(self) -> bool:
        """Whether history and balances agree, digest by digest and unit by unit."""
        return not self.problems


def verify(
    engine: sa.Engine, salt: bytes, kept: Mapping[int, str], lost_file: str | None = None
) -> LedgerVerification:
    """Recompute a ledger from its history; damage becomes a problem, not an exception.

    The entries are read once for their digests and once more, a million people at a time, for what
    they add up to.

    kept: digests kept outside, by entry. lost_file: a head file that is missing.
    """
    sums = Fold()
    contents: Contents = {}
    head = Head(-1, "")
    people = 0
    try:
        # One transaction, so that history and tables are of one moment.
        with transaction(engine, writes=False) as connection:
            _check_file(connection, sums.problems)
            head = _check_digests(connection, salt, kept, sums, contents)
            if lost_file is not None and sums.reserved:
                sums.problems.append(f"{lost_file}: missing or empty")
            people = _compare_tables(connection, salt, sums, contents)
            _compare_head(connection, salt, head, people, sums.problems)
    # Whatever damage stops the reading is a problem like the others, and those found before it
    # stay.
    except (StateError, DBAPIError, *codec.DAMAGE) as error:
        lines = str(error).splitlines() or [type(error).__name__]
        sums.problems.append(f"stopped: {lines[0]}")
    problems = tuple(dict.fromkeys(sums.problems))
    return LedgerVerification(head.number + 1, people, head, problems, tuple(sums.notes))


def _check_file(connection: sa.Connection, problems: list[str]) -> None:
    """Note what in the database is not of the ledger, and what SQLite finds wrong with its file."""
    acting, idle = schema.list_strangers(connection)
    problems += [f"database: {stranger} is not of this ledger" for stranger in (*acting, *idle)]
    if connection.dialect.name == "sqlite":
        rows = connection.exec_driver_sql("PRAGMA integrity_check(20)")
        lines = [str(line) for (line,) in rows]
        problems += [f"database file: {line}" for line in lines if line != "ok"]


def _check_digests(
    connection: sa.Connection, salt: bytes, kept: Mapping[int, str], sums: Fold, contents: Contents
) -> Head:
    """Recompute the chain of digests, and check each entry's content; return the last one's head.

    What can be read is added to `contents`.
    """
    previous = b""
    expected = 0
    wanted = dict(kept)
    # Arrays, digest, number and content of each entry are checked apart, so that each fault is
    # named. The next entry follows the stored digest, right or wrong: one fault does not become a
    # fault of all that come after.
    for number, body, digest, stored_arrays, arrays in _read_entries(connection, salt):
        if number != expected:
            sums.report(expected, "missing")
        if arrays != stored_arrays or digest != digest_entry(salt, previous, body, arrays):
            sums.report(number, "its digest is not that of its content")
        try:
            content = json.loads(body)
            if content["number"] != number:
                sums.report(number, f"says it is entry {content['number']}")
            entry = read_entry(content)
            entry.check(sums, number)
            contents[number] = entry
        except codec.DAMAGE as error:
            sums.report(number, f"cannot be read ({type(error).__name__})")
        previous = digest
        expected = number + 1
        # What is left in `wanted` at the end was never met.
        if wanted.get(number) == digest.hex():
            del wanted[number]
    for number in sorted(wanted):
        sums.report(number, "not the one whose digest was kept")
    return Head(expected - 1, previous.hex())


def _read_entries(
    connection: sa.Connection, salt: bytes
) -> Iterator[tuple[int, str, bytes, bytes, bytes]]:
    """Yield number, body, digest, and the digest of the arrays as stored and as recomputed."""
    with_arrays = connection.execute(sa.select(PAYLOAD.c.number).distinct())
    numbers = {_require_whole(number) for (number,) in with_arrays}
    for row in connection.execute(sa.select(ENTRY).order_by(ENTRY.c.number)).all():
        number = _require_whole(row.number)
        payloads = schema.read_payloads(connection, number) if number in numbers else ()
        arrays = digest_payloads(salt, payloads)
        numbers.discard(number)
        yield number, str(row.body), bytes(row.digest), bytes(row.payload_root), arrays
    # Arrays without an entry are of one that somebody took out.
    if numbers:
        raise StateError(f"entry {min(numbers)}: has charges but is missing")


def _require_whole(number: object) -> int:
    """Return a number that is stored as a whole one: SQLite keeps a fraction as it is given."""
    if type(number) is not int:
        raise StateError(f"number {number!r}: is not a whole one")
    return number


def _compare_tables(connection: sa.Connection, salt: bytes, sums: Fold, contents: Contents) -> int:
    """Compare people and balances with what the history adds up to; return how many people."""
    # Blocks that any table has: one that only the tables have is as wrong as one that only the
    # history has.
    payload_blocks = _list_blocks(connection, PAYLOAD)
    people_blocks = _list_blocks(connection, PEOPLE)
    balance_blocks = _list_blocks(connection, BALANCE)
    scope_blocks = _list_blocks(connection, SCOPE)
    blocks = sorted(payload_blocks | people_blocks | balance_blocks | scope_blocks)
    sizes: list[int] = []
    # Blocks do not depend on one another: a span of them is folded over the whole history, compared
    # and forgotten.
    for start in range(0, len(blocks), fold.SPAN):
        part = blocks[start : start + fold.SPAN]
        _fold_blocks(connection, part, sums, contents)
        # Policies after the last charge hold too.
        sums.start_policies(len(contents))
        _compare_blocks(connection, salt, part, sums)
        sizes += [sums.blocks[block].ids.size if block in sums.blocks else 0 for block in part]
    # People fill their blocks one after the other: all are full but the last, and behind it is
    # none.
    filled = len(sizes) - sizes.count(0)
    has_gaps = blocks[:filled] != list(range(filled))
    if has_gaps or any(size != BLOCK for size in sizes[: filled - 1]):
        sums.problems.append("people: the history leaves places free between them")
    for name, stored in (("people", people_blocks), ("balances", balance_blocks)):
        if len(stored) != filled:
            sums.problems.append(f"{name}: {len(stored)} blocks, {filled} in the history")
    return sum(sizes)


def _list_blocks(connection: sa.Connection, table: sa.Table) -> set[int]:
    rows = connection.execute(sa.select(table.c.block).distinct())
    return {_require_whole(block) for (block,) in rows}


def read_accounts_after(
    trail: Trail, connection: sa.Connection, size: int
) -> Iterator[tuple[Ids, codec.Terms, dict[str, Integers], Mask]]:
    """Yield ids, terms, spending and who had withdrawn after so many entries, block by block."""
    if size == len(trail.digests):
        # As it is now: the tables say it, and are checked.
        blocks = range(-(-trail.people // BLOCK))
        scopes = accounts.list_account_scopes(connection)
        rows = accounts.read_accounts(connection, trail.salt, blocks, scopes)
        for block, packed, terms, spent in rows:
            places = block * BLOCK + np.arange(terms.size)
            withdrawn = codec.mark_members(places, trail.withdrawn)
            yield codec.unpack_ids(packed, terms.size), terms, spent, withdrawn
        return
    sums = Fold()
    contents: Contents = {}
    people = 0
    for entry, _ in trail.read_entries(connection):
        if entry.number < size:
            # Raises for damaged arrays, which folding reads without a look at their digests.
            trail.digest_arrays(connection, entry.number)
            entry.content.check(sums, entry.number)
            contents[entry.number] = entry.content
            people = entry.people
    blocks = range(-(-people // BLOCK))
    for start in range(0, len(blocks), fold.SPAN):
        _fold_blocks(connection, blocks[start : start + fold.SPAN], sums, contents, size)
        for block, folded in sums.blocks.items():
            mask = sums.withdrawn.get(block, np.zeros(BLOCK, bool))
            yield folded.ids, folded.terms, folded.spent, mask[: folded.ids.size]
    if sums.problems:
        raise StateError(f"ledger: {sums.problems[0]}; run `apiece ledger verify`")


def _fold_blocks(
    connection: sa.Connection,
    part: Sequence[int],
    sums: Fold,
    contents: Contents,
    end: int | None = None,
) -> None:
    """Sum what entries say about these blocks alone, oldest first; those before `end`, or all."""
    # A span goes through the whole history by itself, and so through all policies.
    sums.blocks = {}
    sums.waiting = list(sums.policies)
    # By entry first: what one does to a block rests on those before it.
    for row in _read_rows(connection, PAYLOAD, part, PAYLOAD.c.number):
        if end is not None and row.number >= end:
            break
        try:
            sums.start_policies(row.number)
            entry = contents.get(row.number)
            if entry is not None:
                entry.fold_block(sums, row.number, row.block, bytes(row.data))
        except codec.DAMAGE as error:
            sums.report(row.number, f"cannot be read ({type(error).__name__})")


def _read_rows(
    connection: sa.Connection, table: sa.Table, part: Sequence[int], *keys: sa.Column[Any]
) -> Iterator[Any]:
    """Yield the rows of some blocks, by other keys first if there are any, and by block."""
    block = table.c.block
    # `part` is a run of the sorted list of all blocks, so that whatever lies between its ends is in
    # it.
    rows = sa.select(table).where(block.between(part[0], part[-1]))
    return schema.read_pages(connection, rows, *keys, block)


def _is_as_folded(salt: bytes, row: Any, rows: BlockRows, size: int, expected: list[bytes]) -> bool:
    """Return whether a stored row is what was folded, and its digest is that of its content."""
    # Size, content and digest: the digest alone would pass a row that was replaced by an older one
    # with its own digest.
    stored = [bytes(getattr(row, column)) for column in rows.columns]
    digest = rows.digest(salt, row.block, row.size, stored)
    return row.size == size and stored == expected and bytes(row.digest) == digest


def _compare_blocks(
    connection: sa.Connection, salt: bytes, part: Sequence[int], sums: Fold
) -> None:
    """Compare stored blocks of people and balances with what was folded of them."""
    for row in _read_rows(connection, PEOPLE, part):
        people = sums.blocks.get(row.block)
        if people is None or not _has_people(salt, row, people):
            sums.problems.append(f"people: block {row.block} is not as in the history")
    # Balances that the history has and the tables lack, until they are met.
    missing = {(key, block) for block, people in sums.blocks.items() for key in people.spent if key}
    balances = _read_rows(connection, BALANCE, part)
    scopes = _read_rows(connection, SCOPE, part, SCOPE.c.scope)
    for row in chain(balances, scopes):
        key = getattr(row, "scope", "")
        missing.discard((key, row.block))
        people = sums.blocks.get(row.block)
        spent = None if people is None else people.spent.get(key)
        if spent is None or not _has_spent(salt, row, key, spent):
            of_scope = f"scope {key!r}, " if key else ""
            first = row.block * BLOCK
            sums.problems.append(
                f"balances: {of_scope}block {row.block} (people {first} to {first + BLOCK - 1}) "
                "is not what the history adds up to"
            )
    for key, block in sorted(missing):
        sums.problems.append(f"balances: scope {key!r}, block {block} is missing")


def _has_people(salt: bytes, row: Any, people: FoldedBlock) -> bool:
    expected = [codec.pack_ids(people.ids), people.terms.tobytes()]
    return _is_as_folded(salt, row, PEOPLE_ROWS, people.ids.size, expected)


def _has_spent(salt: bytes, row: Any, key: str, spent: Integers) -> bool:
    rows = accounts.select_balances(key)
    return _is_as_folded(salt, row, rows, len(spent), [codec.pack_pairs(spent)])


def _compare_head(
    connection: sa.Connection, salt: bytes, head: Head, people: int, problems: list[str]
) -> None:
    """Compare the head, the settings and the digest of all balances with the last entry."""
    stored = []
    for row in connection.execute(sa.select(HEAD)).all():
        number = _require_whole(row.number)
        stored.append((number, bytes(row.digest).hex(), _require_whole(row.people)))
    if stored != [(head.number, head.digest, people)]:
        problems.append("head: not the last entry of the history")
    # The last entry has the digest of the state after it, the tables give the one there is.
    last_body = sa.select(ENTRY.c.body).where(ENTRY.c.number == head.number)
    body = json.loads(str(connection.execute(last_body).scalar()))
    if body["state"] != digest_state(connection, salt):
        problems.append("balances: their digests are not those of the last entry")
    if schema.read_settings(connection) != {"schema": str(VERSION), "salt": salt.hex()}:
        problems.append("settings: not those with which the ledger was opened")
