"""Charging an analysis, and finding again whom it admitted: some blocks of people at a time."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any

import numpy as np
import sqlalchemy as sa

from apiece._types import Floats, Ids, Integers, Json, Mask
from apiece.errors import AnalysisError, InputError
from apiece.filters import Costs
from apiece.filters.convert import distinct
from apiece.filters.costs import cheapest
from apiece.ledger import accounts, chain, codec
from apiece.ledger.chain import Last, Trail, check_new_id, check_terms
from apiece.ledger.codec import BLOCK, begin
from apiece.ledger.schema import chunks
from apiece.ledger.scopes import ACCOUNT, Ceiling, Policy, Scope, pools, takings

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
        units = codec.to_units(costs.loss), codec.to_units(costs.slack, codec.SLACK_UNIT)
        return cls(np.moveaxis(np.array(units), 0, -1), costs.group)

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
        (row, *limit), kind = distinct(rows, *limits.T)
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
    parts, keys = dict(codec.by_block(ordinals)), [each.scope for each in bounds.ceilings]
    admitted, payloads = np.zeros(ordinals.size, dtype=bool), []
    rows: dict[str, list[tuple[int, Integers]]] = {key: [] for key in keys}
    for block, _, terms, own in accounts.read_accounts(connection, salt, list(parts), keys):
        part, at = _run(parts[block]), _run(ordinals[parts[block]] % BLOCK)
        limits, spent = codec.limits(terms)[at], {}
        charges = asked[part].chosen(limits)
        for key in keys:
            spent[key] = accounts.padded(own.get(key), terms.size)
        near = {key: each[at] for key, each in spent.items()}
        taken = takings(bounds.ceilings, limits, near, charges)
        can = ~codec.among(ordinals[part], bounds.out)
        for _, _, over in taken:
            can &= ~over
        admitted[part] = can
        mask = np.zeros(terms.size, dtype=bool)
        mask[at] = can
        for key, amount, _ in taken:
            spent[key][at] += amount if can.all() else np.where(can[:, None], amount, 0)
            rows[key].append((block, spent[key]))
        charged = codec.nothing(terms.size)
        charged[at] = charges
        payloads.append((block, codec.pack_charges(mask, charged if mask.all() else charged[mask])))
    for key in keys:
        accounts.write_spent(connection, salt, rows[key], key)
    return admitted, payloads


def share_out(connection: sa.Connection, salt: bytes, policy: Policy, people: int) -> None:
    """Find anew what was taken of what nobody is sure of, under another policy."""
    scopes = accounts.scopes_of(connection)
    for blocks in chunks(range(-(-people // BLOCK))):
        rows: dict[str, list[tuple[int, Integers]]] = {}
        for block, _, terms, own in accounts.read_accounts(connection, salt, blocks, scopes):
            for key, taken in pools(policy, codec.limits(terms), own).items():
                rows.setdefault(key, []).append((block, taken))
        for key, each in rows.items():
            accounts.write_spent(connection, salt, each, key)


def _run(places: Integers) -> Any:
    """Return places one after the other as a slice, which is read without a copy."""
    if places.size and (np.diff(places) == 1).all():
        return slice(int(places[0]), int(places[-1]) + 1)
    return places


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
    parts = dict(codec.by_block(ordinals))
    for block, data in trail.arrays(connection, number, parts):
        mask, charged = codec.unpack_charges(data)
        part, most = parts[block], np.full((BLOCK, 2), -1, dtype=np.int64)
        most[: mask.size][mask] = charged
        paid = most[ordinals[part] % BLOCK][:, None]
        admitted[part] = np.any(np.all(asked[part].each() <= paid, axis=2), axis=1)
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
    check_new_id(analysis_id)
    admitted, at = np.zeros(ordinals.size, dtype=bool), trail.now()
    bounds = bounds_of(trail, about.get("scope", {}), at)

    def record() -> Record:
        for groups in chunks(codec.by_block(ordinals)):
            part = _run(np.concatenate([each for _, each in groups]))
            admitted[part], charged = charge(connection, salt, ordinals[part], asked[part], bounds)
            yield from charged

    body = {"kind": "reserve", "analysis": analysis_id, "request": request, "at": at, **about}
    return admitted, chain.append(connection, salt, last, body, record())


def reserve_all(
    connection: sa.Connection,
    trail: Trail,
    last: Last,
    analysis_id: str,
    losses: Losses,
    about: Json,
) -> tuple[int, Last]:
    """Charge everyone, or count whom an earlier reservation charged; return the last entry."""
    salt, paid, at = trail.salt, 0, trail.now()
    if analysis_id in trail.reserved:
        number, entry = reserved(connection, trail, analysis_id, about)
        people = int(entry["people"])
        request = begin(salt, b"everyone", str(people).encode())
        for _ in _everyone(connection, salt, people, losses, request):
            pass  # who came later is not asked
        check_request(analysis_id, entry, request.hexdigest())
        out = trail.out(entry.get("scope", {}))
        for block, data in trail.arrays(connection, number):
            places = codec.places(block, codec.unpack_charges(data)[0])
            paid += int((~codec.among(places, out)).sum())
        return paid, last
    check_new_id(analysis_id)
    bounds = bounds_of(trail, about.get("scope", {}), at)
    request = begin(salt, b"everyone", str(last.people).encode())

    def record() -> Record:
        nonlocal paid
        for places, asked in _everyone(connection, salt, last.people, losses, request):
            admitted, charged = charge(connection, salt, places, asked, bounds)
            paid += int(admitted.sum())
            yield from charged

    arrays = chain.write_arrays(connection, salt, last, record())
    body = {"kind": "reserve", "analysis": analysis_id, "request": request.hexdigest(), "at": at}
    return paid, chain.close(connection, salt, last, body | about, arrays)


def _everyone(
    connection: sa.Connection, salt: bytes, people: int, losses: Losses, request: blake2b
) -> Iterator[tuple[Integers, Demand]]:
    """Yield places of the first people and what is asked of them; `request` takes all of it in."""
    for blocks in chunks(range(-(-people // BLOCK))):
        pairs = []
        for block, packed, terms, _ in accounts.read_accounts(connection, salt, blocks, ()):
            ids = codec.unpack_ids(packed, terms.size)[: people - block * BLOCK]
            loss = losses(ids)
            if loss.shape != ids.shape:
                raise InputError(f"{loss.size} norms for {ids.size} ids; give one a person")
            asked = Demand.of(Costs.fixed(loss))
            request.update(b"".join(asked.told()))
            pairs.append(asked.pairs)
        every = Demand(np.concatenate(pairs))
        yield blocks[0] * BLOCK + np.arange(len(every)), every
