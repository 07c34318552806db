"""Charging an analysis, and finding again whom it admitted: some blocks of people at a time."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import sqlalchemy as sa

from apiece._types import Floats, Integers, Json, Mask
from apiece.errors import AnalysisError, InputError
from apiece.filters import Costs
from apiece.filters.costs import cheapest
from apiece.ledger import accounts, chain, codec
from apiece.ledger.chain import Last, Trail, check_terms
from apiece.ledger.codec import BLOCK, Ids, begin
from apiece.ledger.schema import chunks
from apiece.ledger.scopes import ACCOUNT, WHOLE, Ceiling, Policy, Scope, beyond, pools
from apiece.ledger.scopes import part as share_of

Record = Iterator[tuple[int, bytes]]  # what each block was charged
Losses = Callable[[Ids], Floats]


@dataclass(frozen=True, slots=True, eq=False)
class Demand:
    """What people are asked to pay, in units: one of some pairs (μ², slack).

    pairs: (rows, pairs, 2). row: (people,) each one's row; None where row i is person i's.
    """

    pairs: Integers = field(repr=False)
    row: Integers | None = field(repr=False, default=None)

    @classmethod
    def of(cls, costs: Costs) -> Demand:
        """Return costs in units, rounded up."""
        return cls(codec.pairs(costs), costs.group)

    def __len__(self) -> int:
        return len(self.pairs if self.row is None else self.row)

    def __getitem__(self, part: Any) -> Demand:
        """Return what some of them are asked."""
        if self.row is None:
            return Demand(self.pairs[part])
        return Demand(self.pairs, self.row[part])

    def each(self) -> Integers:
        """Return the pairs of each person, (people, pairs, 2)."""
        return self.pairs if self.row is None else self.pairs[self.row]

    def chosen(self, limits: Integers) -> Integers:
        """Return what each pays, (people, 2), chosen by their own account's limits alone."""
        if self.pairs.shape[1] == 1:
            return self.each()[:, 0]
        rows = np.arange(len(self.pairs)) if self.row is None else self.row
        (row, *limit), kind = codec.distinct(rows, *limits.T)
        pairs = self.pairs[row]
        at = cheapest(pairs[..., 0], pairs[..., 1], *limit)
        return np.asarray(pairs[np.arange(len(pairs)), at][kind])

    def told(self) -> Iterator[bytes]:
        """Yield what tells this from all that others could be asked."""
        if self.pairs.shape[1] == 1 and not self.pairs[..., 1].any():
            yield np.ascontiguousarray(self.each()[:, 0, 0]).tobytes()
        else:
            yield json.dumps(self.pairs.shape).encode()
            yield self.pairs.tobytes()
            yield b"" if self.row is None else self.row.tobytes()


@dataclass(frozen=True, slots=True)
class Ceilings:
    """What charges have to stay under, and the places of those who take no part."""

    ceilings: Sequence[Ceiling] = ACCOUNT
    out: Integers = field(default_factory=lambda: np.zeros(0, np.int64), repr=False)


def bounds_of(trail: Trail, scope: Scope, at: str) -> Ceilings:
    """Return what a charge in a scope has to stay under at a time."""
    return Ceilings(trail.policy.ceilings(scope, at), trail.out(scope, at))


def charge(
    connection: sa.Connection,
    salt: bytes,
    ordinals: Integers,
    asked: Demand,
    bounds: Ceilings = Ceilings(),
) -> tuple[Mask, list[tuple[int, bytes]]]:
    """Charge each account that can bear it in all scopes; return whose could, and the record."""
    groups = codec.by_block(ordinals)
    blocks = [block for block, _ in groups]
    people = accounts.read_people(connection, salt, blocks)
    balances = {
        each.scope: accounts.read_spent(connection, salt, blocks, each.scope)
        for each in bounds.ceilings
    }
    admitted = np.zeros(ordinals.size, dtype=bool)
    rows: dict[str, list[tuple[int, Integers]]] = {key: [] for key in balances}
    payloads = []
    for block, part in groups:
        terms, part, at = people[block][1], _run(part), _run(ordinals[part] % BLOCK)
        limits = codec.limits(terms)[at]
        charges = asked[part].chosen(limits)
        can = ~codec.among(ordinals[part], bounds.out)
        spent, taken = {}, {}
        for key, share, own in bounds.ceilings:
            spent[key] = accounts.padded(balances[key].get(block), terms.size)
            taken[key] = charges
            if own is not None:
                before, sure = spent[own[0]][at], share_of(limits, own[1])
                taken[key] = beyond(before + charges, sure) - beyond(before, sure)
            most = limits if share == WHOLE else share_of(limits, share)
            total = spent[key][at] + taken[key]
            can &= (total[:, 0] <= most[:, 0]) & (total[:, 1] <= most[:, 1])
        admitted[part] = can
        mask = np.zeros(terms.size, dtype=bool)
        mask[at] = can
        for key, amount in taken.items():
            if can.all():
                spent[key][at] += amount
            else:
                spent[key][at] += np.where(can[:, None], amount, 0)
            rows[key].append((block, spent[key]))
        charged = codec.nothing(terms.size)
        charged[at] = charges
        payloads.append((block, codec.pack_charges(mask, charged if mask.all() else charged[mask])))
    for key, each in rows.items():
        accounts.write_spent(connection, salt, each, key)
    return admitted, payloads


def share_out(connection: sa.Connection, salt: bytes, policy: Policy, people: int) -> None:
    """Find anew what was taken of what nobody is sure of, under another policy."""
    scopes = accounts.scopes_of(connection)
    for blocks in chunks(range(-(-people // BLOCK))):
        terms = accounts.read_people(connection, salt, blocks)
        spent = {key: accounts.read_spent(connection, salt, blocks, key) for key in scopes}
        rows: dict[str, list[tuple[int, Integers]]] = {}
        for block in blocks:
            own = {key: each[block] for key, each in spent.items() if block in each}
            for key, taken in pools(policy, codec.limits(terms[block][1]), own).items():
                rows.setdefault(key, []).append((block, taken))
        for key, each in rows.items():
            accounts.write_spent(connection, salt, each, key)


def _run(places: Integers) -> Any:
    """Return places one after the other as a slice, which is read without a copy."""
    if places.size and (np.diff(places) == 1).all():
        return slice(int(places[0]), int(places[-1]) + 1)
    return places


def charge_listed(
    connection: sa.Connection,
    salt: bytes,
    ordinals: Integers,
    asked: Demand,
    admitted: Mask,
    bounds: Ceilings,
) -> Record:
    """Charge these people as the record is read; `admitted` says afterwards who could pay."""
    for groups in chunks(codec.by_block(ordinals)):
        part = _run(np.concatenate([each for _, each in groups]))
        admitted[part], record = charge(connection, salt, ordinals[part], asked[part], bounds)
        yield from record


def replay(
    connection: sa.Connection,
    trail: Trail,
    number: int,
    ordinals: Integers,
    asked: Demand,
    entry: Json,
) -> Mask:
    """Return whom an earlier reservation charged at least one pair of what is asked of them.

    Whoever has withdrawn or permits it no more is left out; nobody's place follows from others'.
    """
    admitted = np.zeros(ordinals.size, dtype=bool)
    digests = trail.array_digests(connection, number)
    for groups in chunks(codec.by_block(ordinals)):
        there = {block: digests[block] for block, _ in groups if block in digests}
        stored = trail.arrays(connection, number, there)
        for block, part in groups:
            if block not in stored:
                continue
            mask, charged = codec.unpack_charges(stored[block])
            most = np.full((BLOCK, 2), -1, dtype=np.int64)
            most[: mask.size][mask] = charged
            paid = most[ordinals[part] % BLOCK][:, None]
            admitted[part] = (asked[part].each() <= paid).all(axis=2).any(axis=1)
    return admitted & ~codec.among(ordinals, trail.out(entry.get("scope", {})))


def reserved(
    connection: sa.Connection, trail: Trail, analysis_id: str, about: Json
) -> tuple[int, Json]:
    """Return the open entry that reserved this; raise `AnalysisError` for other terms first."""
    number = trail.reserved[analysis_id]
    entry = trail.body(connection, number)
    check_terms(analysis_id, entry, about)
    if analysis_id in trail.committed:
        raise AnalysisError(
            f"analysis {analysis_id!r}: already committed; read its result, or use a new id"
        )
    return number, entry


def check_request(analysis_id: str, entry: Json, request: str) -> None:
    """Raise `AnalysisError` where a reservation's entry is about other people or norms."""
    if entry["request"] != request:
        raise AnalysisError(
            f"analysis {analysis_id!r}: reserved with other people or norms; use a new id"
        )


@dataclass
class Everyone:
    """A charge of the first `people` accounts, of which a few thousand are in memory at a time."""

    salt: bytes = field(repr=False)
    people: int
    losses: Losses = field(repr=False)
    bounds: Ceilings = field(default=Ceilings(), repr=False)
    paid: int = field(default=0, init=False, repr=False)
    _asked: Any = field(default=None, init=False, repr=False)

    def charges(self, connection: sa.Connection) -> Iterator[tuple[Integers, Demand]]:
        """Yield places and what is asked; afterwards `request` tells them from all others."""
        self._asked = begin(self.salt, b"everyone", str(self.people).encode())
        for blocks in chunks(range(-(-self.people // BLOCK))):
            rows = accounts.read_people(connection, self.salt, blocks)
            charges = [self._charges(*rows[block], self.people - block * BLOCK) for block in blocks]
            places = blocks[0] * BLOCK + np.arange(sum(map(len, charges)))
            yield places, Demand(np.concatenate(charges))

    def _charges(self, packed: bytes, terms: codec.Terms, most: int) -> Integers:
        ids = codec.unpack_ids(packed, terms.size)[:most]
        loss = codec.nonnegative("losses", self.losses(ids))
        if loss.shape != ids.shape:
            raise InputError(f"{loss.size} norms or losses for {ids.size} ids; give one a person")
        charges = codec.whole(loss)
        self._asked.update(b"".join(Demand(charges).told()))
        return charges

    def charge(self, connection: sa.Connection) -> Record:
        """Charge them as the record is read; `paid` says afterwards how many could pay."""
        for places, asked in self.charges(connection):
            admitted, record = charge(connection, self.salt, places, asked, self.bounds)
            self.paid += int(admitted.sum())
            yield from record

    def replay(
        self, connection: sa.Connection, trail: Trail, analysis_id: str, number: int, entry: Json
    ) -> int:
        """Return how many an earlier, identical reservation admitted; it is checked first."""
        for _ in self.charges(connection):
            pass
        check_request(analysis_id, entry, self.request)
        paid, out = 0, trail.out(entry.get("scope", {}))
        digests = trail.array_digests(connection, number)
        for blocks in chunks(list(digests)):
            some = {block: digests[block] for block in blocks}
            for block, data in trail.arrays(connection, number, some).items():
                places = block * BLOCK + np.flatnonzero(codec.unpack_charges(data)[0])
                paid += int((~codec.among(places, out)).sum())
        return paid

    @property
    def request(self) -> str:
        """Return a digest of the demand, to which another call is compared."""
        return str(self._asked.hexdigest())


def reserve_listed(
    connection: sa.Connection,
    trail: Trail,
    last: Last,
    analysis_id: str,
    ordinals: Integers,
    asked: Demand,
    about: Json,
) -> tuple[Mask, Last]:
    """Charge these people, or find whom an earlier reservation charged; return the last entry."""
    salt = trail.salt
    request = codec.keyed(salt, ordinals.tobytes(), *asked.told()).hex()
    if analysis_id in trail.reserved:
        number, entry = reserved(connection, trail, analysis_id, about)
        if "terms" not in about:
            check_request(analysis_id, entry, request)
        return replay(connection, trail, number, ordinals, asked, entry), last
    admitted, at = np.zeros(ordinals.size, dtype=bool), trail.now()
    bounds = bounds_of(trail, about.get("scope", {}), at)
    record = charge_listed(connection, salt, ordinals, asked, admitted, bounds)
    body = {"kind": "reserve", "analysis": analysis_id, "request": request, "at": at, **about}
    return admitted, chain.append(connection, salt, last, body, record)


def reserve_all(
    connection: sa.Connection,
    trail: Trail,
    last: Last,
    analysis_id: str,
    losses: Losses,
    about: Json,
) -> tuple[int, Last]:
    """Charge everyone, or count whom an earlier reservation charged; return the last entry."""
    if analysis_id in trail.reserved:
        number, entry = reserved(connection, trail, analysis_id, about)
        everyone = Everyone(trail.salt, int(entry["people"]), losses)
        return everyone.replay(connection, trail, analysis_id, number, entry), last
    at = trail.now()
    bounds = bounds_of(trail, about.get("scope", {}), at)
    everyone = Everyone(trail.salt, last.people, losses, bounds)
    arrays = chain.write_arrays(connection, trail.salt, last, everyone.charge(connection))
    body = {"kind": "reserve", "analysis": analysis_id, "request": everyone.request, "at": at}
    body |= about
    return everyone.paid, chain.close(connection, trail.salt, last, body, arrays)
