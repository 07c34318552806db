"""Recomputing a ledger from its history: what does not add up is named."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any, Final

import numpy as np
import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError

from apiece._identifiers import find_flaw, find_flawed, find_period
from apiece._types import Ids, Integers, Json, Mask
from apiece.errors import InputError, StateError
from apiece.ledger import accounts, codec, schema
from apiece.ledger.accounts import PERSONS, Stored, padded
from apiece.ledger.chain import Head, Trail, state_root
from apiece.ledger.codec import BLOCK, TERMS, entry_digest, payload_root
from apiece.ledger.database import transaction
from apiece.ledger.schema import BALANCE, ENTRY, HEAD, PAYLOAD, PEOPLE, SCOPE, VERSION
from apiece.ledger.scopes import ACCOUNT, NO_POLICY, Ceiling, Permits, Policy, pools, takings

SPAN: Final = 256  # blocks folded at a time: a million people


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
        >>> from apiece.ledger import Head, LedgerVerification
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


@dataclass(slots=True, repr=False)
class _FoldedBlock:
    """Ids, terms and spending of a block of people, as the history alone tells them."""

    ids: Ids
    terms: codec.Terms
    spent: dict[str, Integers]  # by scope; "" is the whole account
    limits: Integers = field(init=False)

    def __post_init__(self) -> None:
        self.limits = codec.limits(self.terms)


@dataclass(slots=True, repr=False)
class _Fold:
    """The entries' content and, some blocks at a time, the sums of their arrays."""

    bodies: dict[int, Json] = field(default_factory=dict)
    policy: Policy = NO_POLICY
    policies: dict[int, Policy] = field(default_factory=dict)
    waiting: list[int] = field(default_factory=list)  # entries with policies, to be applied
    ceilings: dict[int, list[Ceiling]] = field(default_factory=dict)
    withdrawn: dict[int, Mask] = field(default_factory=dict)
    consented: float = math.inf  # the first entry with consents
    permits: dict[int, Permits] = field(default_factory=dict)  # by block
    reserved: set[str] = field(default_factory=set)
    committed: set[str] = field(default_factory=set)
    blocks: dict[int, _FoldedBlock] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)
    older: dict[str, int] = field(default_factory=dict)  # odd identifiers by what they are of

    def _note_odd(self, what: str, many: int) -> None:
        if many:
            self.older[what] = self.older.get(what, 0) + many

    def _note_odd_scope(self, scope: Json) -> None:
        every = self.policy.every
        for kind, names in scope.items():
            for each in [names] if isinstance(names, str) else names:
                odd = find_flaw(each) is not None
                if kind == "period" and every is not None:
                    odd = find_period(each, every) is None
                self._note_odd(f"names of a {kind} in charges", odd)

    @property
    def notes(self) -> list[str]:
        """Return a line for each kind of identifier that older ledgers took."""
        return [
            f"{many} {what} could be written in another way, and a new one would be refused; they "
            "are read as they are"
            for what, many in self.older.items()
        ]

    def meet(self, number: int, body: Json) -> None:
        """Note what an entry is; its arrays come later."""
        kind = body["kind"]
        match kind:
            case "enroll" | "amend" | "init" | "withdraw":
                pass
            case "consent":
                self.consented = min(self.consented, number)
            case "policy":
                after, before = Policy.from_history(body["policy"]), self.policy
                if after.version <= before.version or (after.unit != before.unit and self.reserved):
                    self.problems.append(f"entry {number}: a policy that cannot follow the last")
                self.policy = self.policies[number] = after
            case "reserve":
                if body["analysis"] in self.reserved:
                    self.problems.append(
                        f"entry {number}: analysis {body['analysis']!r} is reserved twice"
                    )
                self.reserved.add(body["analysis"])
                self._note_odd("ids of analyses", find_flaw(body["analysis"]) is not None)
                self._note_odd_scope(body.get("scope", {}))
                try:
                    self.ceilings[number] = self.policy.ceilings_in_history(
                        body.get("scope"), body["at"]
                    )
                except InputError as error:
                    self.problems.append(f"entry {number}: {error}")
                    self.ceilings[number] = list(ACCOUNT)
            case "commit":
                if body["analysis"] not in self.reserved or body["analysis"] in self.committed:
                    self.problems.append(f"entry {number}: commits what is not reserved")
                self.committed.add(body["analysis"])
            case _:
                self.problems.append(f"entry {number}: unknown kind {kind!r}")
        self.bodies[number] = body

    def apply(self, number: int, block: int, data: bytes) -> None:
        """Add an entry's array of one block to what the earlier ones made of it."""
        match self.bodies.get(number, {}).get("kind"):
            case "enroll":
                ids, terms = codec.unpack_enrolled(data)
                flawed = find_flawed(ids)
                self._note_odd("ids of persons", 0 if flawed is None else flawed[1])
                spent = {"": codec.nothing(ids.size)}
                if block in self.blocks:
                    old = self.blocks[block]
                    ids, terms = np.concatenate([old.ids, ids]), np.concatenate([old.terms, terms])
                    spent = {**old.spent, "": padded(old.spent[""], ids.size)}
                self.blocks[block] = _FoldedBlock(ids, terms, spent)
            case "amend":
                mask, rest = codec.unpack_mask(data)
                terms = self.blocks[block].terms.copy()
                terms[mask] = np.frombuffer(rest, TERMS)
                own = self.blocks[block] = replace(self.blocks[block], terms=terms)
                if self.bodies[number].get("pools"):
                    own.spent |= pools(self._policy_at(number), own.limits, own.spent)
                if (own.spent[""] > own.limits).any():
                    self.problems.append(f"entry {number}: someone in block {block} is over budget")
            case "withdraw":
                mask = codec.unpack_mask(data)[0]
                self.withdrawn.setdefault(block, np.zeros(BLOCK, bool))[: mask.size] |= mask
            case "consent":
                self.permits[block] = Permits.read(self.bodies[number], {0: data}, BLOCK)
            case "reserve":
                self._charge(number, block, data)

    def _policy_at(self, number: int) -> Policy:
        """Return the policy that held when an entry was written."""
        earlier = [each for each in self.policies if each < number]
        return self.policies[max(earlier)] if earlier else NO_POLICY

    def share_out(self, before: int) -> None:
        """Let the policies of the entries before this one begin to hold."""
        for number in [each for each in self.waiting if each < before]:
            self.waiting.remove(number)
            for own in self.blocks.values():
                own.spent |= pools(self.policies[number], own.limits, own.spent)

    def _charge(self, number: int, block: int, data: bytes) -> None:
        """Add what an entry charged to all that it counts in; note what it may not have charged."""
        (mask, charges), own = codec.unpack_charges(data), self.blocks[block]
        if charges.size and not (charges.min() >= 0 and charges.max() <= codec.CAP):
            self.problems.append(f"entry {number}: charges of block {block} out of range")
        gone = self.withdrawn.get(block)
        if gone is not None and (gone[: mask.size] & mask).any():
            self.problems.append(f"entry {number}: someone in block {block} had withdrawn")
        if self.consented < number:
            said, body = self.permits.get(block), self.bodies[number]
            scope, at = body.get("scope", {}), body["at"]
            if (mask if said is None else mask & ~said.hold(scope, at, mask.size)).any():
                self.problems.append(f"entry {number}: someone in block {block} did not permit it")
        people = len(own.limits)
        who = np.zeros(people, dtype=bool)
        who[: mask.size] = mask
        full = charges
        if not who.all():  # nothing of the others
            full = codec.nothing(people)
            full[who] = charges
        ceilings = self.ceilings[number]
        own.spent |= {key: padded(own.spent.get(key), people) for key, *_ in ceilings}
        for key, taken, over in takings(ceilings, own.limits, own.spent, full):
            if (over & who).any():
                limit = f"scope {key!r}" if key else "budget"
                self.problems.append(f"entry {number}: someone in block {block} is over {limit}")
            own.spent[key] += taken


def verify(
    engine: sa.Engine, salt: bytes, kept: Mapping[int, str], gone: str | None = None
) -> LedgerVerification:
    """Return what `Ledger.verify` promises; damage becomes a problem, not an exception.

    The entries are read once for their digests and once more, a million people at a time, for what
    they add up to. kept: digests kept outside, by entry. gone: a head file that is missing.
    """
    fold = _Fold()
    last, people = Head(-1, ""), 0
    try:
        with transaction(engine, writes=False) as connection:
            _check_file(connection, fold.problems)
            last = _walk(connection, salt, kept, fold)
            if gone is not None and fold.reserved:
                fold.problems.append(f"{gone}: missing or empty")
            people = _compare(connection, salt, fold)
            _compare_head(connection, salt, last, people, fold.problems)
    except (StateError, DBAPIError, *codec.DAMAGE) as error:
        said = str(error).splitlines() or [type(error).__name__]
        fold.problems.append(f"stopped: {said[0]}")
    problems, notes = tuple(dict.fromkeys(fold.problems)), tuple(fold.notes)
    return LedgerVerification(last.number + 1, people, last, problems, notes)


def _check_file(connection: sa.Connection, problems: list[str]) -> None:
    for result in schema.strangers(connection):
        problems += [f"database: {each} is not of this ledger" for each in result]
    if connection.dialect.name == "sqlite":
        result = [str(r[0]) for r in connection.exec_driver_sql("PRAGMA integrity_check(20)")]
        problems += [f"database file: {line}" for line in result if line != "ok"]


def _walk(connection: sa.Connection, salt: bytes, kept: Mapping[int, str], fold: _Fold) -> Head:
    """Recompute the chain of digests, noting each entry; return the last one's."""
    previous, expected = b"", 0
    wanted = dict(kept)
    for number, body, digest, stored, root in _entries(connection, salt):
        if number != expected:
            fold.problems.append(f"entry {expected}: missing")
        if root != stored or digest != entry_digest(salt, previous, body, root):
            fold.problems.append(f"entry {number}: its digest is not that of its content")
        try:
            content = json.loads(body)
            if content["number"] != number:
                fold.problems.append(f"entry {number}: says it is entry {content['number']}")
            fold.meet(number, content)
        except codec.DAMAGE as error:
            fold.problems.append(f"entry {number}: cannot be read ({type(error).__name__})")
        previous, expected = digest, number + 1
        if wanted.get(number) == digest.hex():
            del wanted[number]
    fold.problems += [f"entry {n}: not the one whose digest was kept" for n in sorted(wanted)]
    return Head(expected - 1, previous.hex())


def _entries(
    connection: sa.Connection, salt: bytes
) -> Iterator[tuple[int, str, bytes, bytes, bytes]]:
    """Yield number, body, digest, and the digest of the arrays as stored and as recomputed."""
    numbers = {_whole(n) for (n,) in connection.execute(sa.select(PAYLOAD.c.number).distinct())}
    for row in connection.execute(sa.select(ENTRY).order_by(ENTRY.c.number)).all():
        number = _whole(row.number)
        root = payload_root(salt, schema.payloads(connection, number) if number in numbers else ())
        numbers.discard(number)
        yield number, str(row.body), bytes(row.digest), bytes(row.payload_root), root
    if numbers:
        raise StateError(f"entry {min(numbers)}: has charges but is missing")


def _whole(number: object) -> int:
    """Return a number that is stored as a whole one: SQLite keeps a fraction as it is given."""
    if type(number) is not int:
        raise StateError(f"number {number!r}: is not a whole one")
    return number


def _compare(connection: sa.Connection, salt: bytes, fold: _Fold) -> int:
    """Compare people and balances with what the history adds up to; return how many people."""
    there = [
        {_whole(n) for (n,) in connection.execute(sa.select(table.c.block).distinct())}
        for table in (PAYLOAD, PEOPLE, BALANCE, SCOPE)
    ]
    numbers = sorted(set().union(*there))
    sizes: list[int] = []
    for start in range(0, len(numbers), SPAN):
        part = numbers[start : start + SPAN]
        _apply(connection, part, fold)
        fold.share_out(len(fold.bodies))
        _compare_blocks(connection, salt, part, fold)
        sizes += [fold.blocks[b].ids.size if b in fold.blocks else 0 for b in part]
    filled = len(sizes) - sizes.count(0)
    if numbers[:filled] != list(range(filled)) or any(n != BLOCK for n in sizes[: filled - 1]):
        fold.problems.append("people: the history leaves places free between them")
    for name, result in zip(("people", "balances"), there[1:3], strict=True):
        if len(result) != filled:
            fold.problems.append(f"{name}: {len(result)} blocks, {filled} in the history")
    return sum(sizes)


def accounts_after(
    trail: Trail, connection: sa.Connection, size: int
) -> Iterator[tuple[Ids, codec.Terms, dict[str, Integers], Mask]]:
    """Yield ids, terms, spending and who had withdrawn after so many entries, block by block."""
    if size == len(trail.digests):  # as it is now, by the checked tables
        every, whole = range(-(-trail.people // BLOCK)), accounts.whole_accounts(connection)
        for block, packed, terms, spent in accounts.read_accounts(
            connection, trail.salt, every, whole
        ):
            gone = codec.among(block * BLOCK + np.arange(terms.size), trail.withdrawn)
            yield codec.unpack_ids(packed, terms.size), terms, spent, gone
        return
    fold, last = _Fold(), 0
    for body, _ in trail.bodies(connection):
        if body["number"] < size:
            trail.array_digests(connection, body["number"])
            fold.meet(body["number"], body)
            last = body["people"]
    blocks = range(-(-last // BLOCK))
    for start in range(0, len(blocks), SPAN):
        _apply(connection, blocks[start : start + SPAN], fold, size)
        for block, own in fold.blocks.items():
            gone = fold.withdrawn.get(block, np.zeros(BLOCK, bool))[: own.ids.size]
            yield own.ids, own.terms, own.spent, gone
    if fold.problems:
        raise StateError(f"ledger: {fold.problems[0]}; run `apiece ledger verify`")


def _apply(
    connection: sa.Connection, part: Sequence[int], fold: _Fold, before: int | None = None
) -> None:
    """Fold what entries say about these blocks alone, oldest first; those before one, or all."""
    fold.blocks, fold.waiting = {}, list(fold.policies)
    for row in _between(connection, PAYLOAD, part, PAYLOAD.c.number):
        if before is not None and row.number >= before:
            break
        try:
            fold.share_out(row.number)
            fold.apply(row.number, row.block, bytes(row.data))
        except codec.DAMAGE as error:
            said = f"entry {row.number}: cannot be read ({type(error).__name__})"
            fold.problems.append(said)


def _between(
    connection: sa.Connection, table: sa.Table, part: Sequence[int], *first: sa.Column[Any]
) -> Iterator[Any]:
    """Yield the rows of some blocks, by block, or first by another column."""
    block = table.c.block
    rows = sa.select(table).where(block.between(part[0], part[-1]))
    return schema.pages(connection, rows, *first, block)


def _compare_blocks(
    connection: sa.Connection, salt: bytes, part: Sequence[int], fold: _Fold
) -> None:
    """Compare stored blocks of people and balances with what was folded of them."""

    def same(row: Any, rows: Stored, size: int, packed: list[bytes]) -> bool:
        stored = [bytes(getattr(row, column)) for column in rows.columns]
        digest = rows.digest(salt, row.block, row.size, stored)
        return row.size == size and stored == packed and bytes(row.digest) == digest

    for row in _between(connection, PEOPLE, part):
        own = fold.blocks.get(row.block)
        packed = [] if own is None else [codec.pack_ids(own.ids), own.terms.tobytes()]
        if own is None or not same(row, PERSONS, own.ids.size, packed):
            fold.problems.append(f"people: block {row.block} is not as in the history")
    left = {(key, block) for block, own in fold.blocks.items() for key in own.spent if key}
    scopes = _between(connection, SCOPE, part, SCOPE.c.scope)
    for row in chain(_between(connection, BALANCE, part), scopes):
        key = getattr(row, "scope", "")
        spent = fold.blocks[row.block].spent.get(key) if row.block in fold.blocks else None
        left.discard((key, row.block))
        rows = accounts.balances_of(key)
        if spent is None or not same(row, rows, len(spent), [codec.pack_pairs(spent)]):
            of = f"scope {key!r}, " if key else ""
            fold.problems.append(
                f"balances: {of}block {row.block} (people {row.block * BLOCK} to "
                f"{row.block * BLOCK + BLOCK - 1}) is not what the history adds up to"
            )
    for key, block in sorted(left):
        fold.problems.append(f"balances: scope {key!r}, block {block} is missing")


def _compare_head(
    connection: sa.Connection, salt: bytes, last: Head, people: int, problems: list[str]
) -> None:
    """Compare the head, the settings and the digest of all balances with the last entry."""
    head = connection.execute(sa.select(HEAD)).all()
    stored = [(_whole(r.number), bytes(r.digest).hex(), _whole(r.people)) for r in head]
    if stored != [(last.number, last.digest, people)]:
        problems.append("head: not the last entry of the history")
    body = connection.execute(sa.select(ENTRY.c.body).where(ENTRY.c.number == last.number)).scalar()
    if json.loads(str(body))["state"] != state_root(connection, salt):
        problems.append("balances: their digests are not those of the last entry")
    if schema.meta(connection) != {"schema": str(VERSION), "salt": salt.hex()}:
        problems.append("settings: not those with which the ledger was opened")
