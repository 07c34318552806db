"""Charging an analysis, and finding again whom it admitted: some blocks of people at a time."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any

import numpy as np
import sqlalchemy as sa

from apiece._types import Floats, Ids, Integers, Mask
from apiece.errors import AnalysisError, InputError
from apiece.filters import Costs
from apiece.filters.convert import distinct
from apiece.filters.costs import cheapest
from apiece.ledger import accounts, chain, codec
from apiece.ledger.chain import Tip, Trail, check_new_id, check_terms
from apiece.ledger.codec import BLOCK, begin_digest
from apiece.ledger.entries import ReserveEntry, StoredEntry, Subject
from apiece.ledger.schema import split_chunks
from apiece.ledger.scopes import (
    ACCOUNT,
    Ceiling,
    Policy,
    Scope,
    compute_pools,
    compute_takings,
)

# What each block was charged, packed.
Record = Iterator[tuple[int, bytes]]
# From some ids to the μ² that each person is asked for.
Losses = Callable[[Ids], Floats]


@dataclass(frozen=True, slots=True, eq=False)
class Demand:
    """What people are asked to pay, in units: one of some pairs (μ², slack)."""

    # (rows, pairs, 2)
    pairs: Integers = field(repr=False)
    # (people,) Each person's row of `pairs`; None where row i is person i's.
    row: Integers | None = field(repr=False, default=None)
    # (rows,) 2ρ, which accounts promised as ρ pay in place of a pair; None where they pay a pair.
    concentrated: Integers | None = field(repr=False, default=None)

    @classmethod
    def of(cls, costs: Costs) -> Demand:
        """Return costs in units, rounded up."""
        losses = codec.to_units(costs.loss)
        slacks = codec.to_units(costs.slack, codec.SLACK_UNIT)
        # (rows, pairs) each → (rows, pairs, 2).
        pairs = np.moveaxis(np.array([losses, slacks]), 0, -1)
        concentrated = None
        if costs.concentrated is not None:
            concentrated = codec.to_units(costs.concentrated)
        return cls(pairs, costs.group, concentrated)

    def __len__(self) -> int:
        return len(self.pairs if self.row is None else self.row)

    def __getitem__(self, part: Any) -> Demand:
        """Return the demand on some of these people."""
        if self.row is not None:
            return Demand(self.pairs, self.row[part], self.concentrated)
        concentrated = None if self.concentrated is None else self.concentrated[part]
        return Demand(self.pairs[part], concentrated=concentrated)

    def list_pairs(self) -> Integers:
        """Return the pairs of each person, (people, pairs, 2)."""
        return self.pairs if self.row is None else self.pairs[self.row]

    def list_concentrated(self) -> Integers:
        """Return what each person pays whose account was promised as ρ, (people, 2)."""
        assert self.concentrated is not None
        losses = self.concentrated if self.row is None else self.concentrated[self.row]
        return np.asarray(np.array([losses, np.zeros_like(losses)]).T)

    def choose_pairs(self, terms: codec.Terms) -> Integers:
        """Return the pair that each person pays, (people, 2), by their account's terms alone."""
        # The choice looks at limits alone, never at what is spent: so it is the same when a charge
        # is repeated, and tells nothing of earlier ones.
        pairs = self._choose_cheapest(codec.read_limits(terms))
        concentrated = codec.find_concentrated(terms)
        if self.concentrated is None or not concentrated.any():
            return pairs
        return np.where(concentrated[:, None], self.list_concentrated(), pairs)

    def _choose_cheapest(self, limits: Integers) -> Integers:
        """Return for each person the pair whose larger share of these limits is the least."""
        if self.pairs.shape[1] == 1:
            return self.list_pairs()[:, 0]
        rows = np.arange(len(self.pairs)) if self.row is None else self.row
        # People of one row and one account pay alike, and are looked at once.
        (row, *limit), kind = distinct(rows, *limits.T)
        pairs = self.pairs[row]
        cheapest_pair = cheapest(pairs[..., 0], pairs[..., 1], *limit)
        chosen_pairs = pairs[np.arange(len(pairs)), cheapest_pair]
        return np.asarray(chosen_pairs[kind])

    def encode(self) -> Iterator[bytes]:
        """Yield bytes that tell this from all that others could be asked."""
        is_single = self.pairs.shape[1] == 1
        has_slack = self.pairs[..., 1].any()
        if is_single and not has_slack:
            # The same bytes whether people share rows or not: one loss a person.
            losses = self.list_pairs()[:, 0, 0]
            yield np.ascontiguousarray(losses).tobytes()
        else:
            # The shape comes first, as the same bytes could be arrays of two shapes; then the pairs
            # and who has which.
            yield json.dumps(self.pairs.shape).encode()
            yield self.pairs.tobytes()
            yield b"" if self.row is None else self.row.tobytes()


@dataclass(frozen=True, slots=True)
class Ceilings:
    """What charges have to stay under, and the places of those who take no part."""

    ceilings: Sequence[Ceiling] = ACCOUNT
    # Places, in order.
    out: Integers = field(default_factory=lambda: np.zeros(0, np.int64), repr=False)


def find_ceilings(trail: Trail, scope: Scope, at: str) -> Ceilings:
    """Return the ceilings of a charge in a scope at a time, and who takes no part."""
    return Ceilings(trail.policy.ceilings(scope, at), trail.find_barred(scope, at))


def charge(
    connection: sa.Connection,
    salt: bytes,
    places: Integers,
    demand: Demand,
    bounds: Ceilings = Ceilings(),
) -> tuple[Mask, list[tuple[int, bytes]]]:
    """Charge each account that can bear it in all scopes; return whose could, and the record."""
    parts = dict(codec.group_by_block(places))
    scopes = [ceiling.scope for ceiling in bounds.ceilings]
    admitted = np.zeros(places.size, dtype=bool)
    payloads: list[tuple[int, bytes]] = []
    balances: dict[str, list[tuple[int, Integers]]] = {scope: [] for scope in scopes}
    # Terms and balances are checked against their digests as they are read; new balances are
    # collected by scope and written at the end, some blocks at a time.
    accounts_read = accounts.read_accounts(connection, salt, list(parts), scopes)
    for block, _, terms, stored in accounts_read:
        # `part` is over the people who are asked, `rows` over those of the block; slices where they
        # are runs, so that what follows are views.
        part = _to_slice(parts[block])
        rows = _to_slice(places[parts[block]] % BLOCK)
        limits = codec.read_limits(terms)[rows]
        charges = demand[part].choose_pairs(terms[rows])
        spent = {scope: codec.pad_pairs(stored.get(scope), terms.size) for scope in scopes}
        spent_of_part = {scope: balance[rows] for scope, balance in spent.items()}
        takings = compute_takings(bounds.ceilings, limits, spent_of_part, charges)
        # A person pays in all scopes or in none.
        can_pay = ~codec.mark_members(places[part], bounds.out)
        for _, _, over in takings:
            can_pay &= ~over
        admitted[part] = can_pay
        # What counts in a scope may be less than the charge, of a pool what is beyond the asker's
        # own share. The record has the charge.
        for scope, amount, _ in takings:
            paid = amount
            if not can_pay.all():
                paid = np.where(can_pay[:, None], amount, 0)
            spent[scope][rows] += paid
            balances[scope].append((block, spent[scope]))
        payloads.append((block, _pack_record(terms.size, rows, can_pay, charges)))
    for scope in scopes:
        accounts.write_spent(connection, salt, balances[scope], scope)
    return admitted, payloads


def _pack_record(people: int, rows: Any, can_pay: Mask, charges: Integers) -> bytes:
    """Return which people of a block pay, and their charges, in the order of enrolment."""
    mask = np.zeros(people, dtype=bool)
    mask[rows] = can_pay
    charged = codec.make_zero_pairs(people)
    charged[rows] = charges
    return codec.pack_charges(mask, charged if mask.all() else charged[mask])


def update_pools(connection: sa.Connection, salt: bytes, policy: Policy, people: int) -> None:
    """Write the spending of each shared pool, as a policy starts."""
    scopes = accounts.list_scopes(connection)
    for blocks in split_chunks(range(-(-people // BLOCK))):
        balances: dict[str, list[tuple[int, Integers]]] = {}
        for block, _, terms, spent in accounts.read_accounts(connection, salt, blocks, scopes):
            pools = compute_pools(policy, codec.read_limits(terms), spent)
            for scope, pool_spent in pools.items():
                balances.setdefault(scope, []).append((block, pool_spent))
        for scope, rows in balances.items():
            accounts.write_spent(connection, salt, rows, scope)


def _to_slice(places: Integers) -> Any:
    """Return places one after the other as a slice, which is read without a copy."""
    if places.size and (np.diff(places) == 1).all():
        return slice(int(places[0]), int(places[-1]) + 1)
    return places


def replay(
    connection: sa.Connection,
    trail: Trail,
    number: int,
    places: Integers,
    demand: Demand,
    entry: ReserveEntry,
) -> Mask:
    """Return whom an earlier reservation charged at least one pair of what is asked of them.

    Whoever has withdrawn or permits it no more is left out; nobody's place follows from others'.
    """
    admitted = np.zeros(places.size, dtype=bool)
    parts = dict(codec.group_by_block(places))
    for block, data in trail.read_arrays(connection, number, parts):
        mask, charged = codec.unpack_charges(data)
        # −1 is less than every pair: who was not charged has paid for nothing.
        paid = np.full((BLOCK, 2), -1, dtype=np.int64)
        paid[: mask.size][mask] = charged
        part = parts[block]
        paid_of_part = paid[places[part] % BLOCK][:, None]
        # (people, pairs, 2) ≤ (people, 1, 2): any pair that is paid in both of its parts is enough.
        is_paid = np.all(demand[part].list_pairs() <= paid_of_part, axis=2).any(axis=1)
        # An account that was promised as ρ has paid 2ρ in place of a pair.
        if demand.concentrated is not None:
            ((_, _, terms, _),) = accounts.read_accounts(connection, trail.salt, [block], ())
            concentrated = codec.find_concentrated(terms)[places[part] % BLOCK]
            pairs = demand[part].list_concentrated()
            is_paid |= concentrated & np.all(pairs <= paid_of_part[:, 0], axis=1)
        admitted[part] = is_paid
    barred = trail.find_barred(entry.subject.scope)
    return admitted & ~codec.mark_members(places, barred)


def find_reservation(
    connection: sa.Connection, trail: Trail, analysis_id: str, subject: Subject
) -> tuple[StoredEntry, ReserveEntry]:
    """Return the open entry that reserved this; raise `AnalysisError` for other terms first."""
    stored, entry = trail.read_reservation(connection, analysis_id)
    check_terms(analysis_id, entry.subject, subject)
    if analysis_id in trail.committed:
        raise AnalysisError(
            f"analysis {analysis_id!r}: already committed; read its result, or use a new id"
        )
    return stored, entry


def check_request(analysis_id: str, entry: ReserveEntry, request: str) -> None:
    """Raise `AnalysisError` where a reservation's entry is about other people or norms."""
    if entry.request != request:
        raise AnalysisError(
            f"analysis {analysis_id!r}: reserved with other people or norms; use a new id"
        )


def reserve_listed(
    connection: sa.Connection,
    trail: Trail,
    tip: Tip,
    analysis_id: str,
    places: Integers,
    demand: Demand,
    subject: Subject,
) -> tuple[Mask, Tip]:
    """Charge these people, or find whom an earlier reservation charged; return the last entry."""
    salt = trail.salt
    # Keyed, since places and norms are data about people and the digest stands in the history.
    digest = codec.compute_digest(salt, places.tobytes(), *demand.encode())
    request = digest.hex()
    if analysis_id in trail.reserved:
        stored, entry = find_reservation(connection, trail, analysis_id, subject)
        # Where nothing says what is asked, people and norms are all that can be compared. With
        # terms they are not compared: that they differ would be told by the error.
        if subject.terms is None:
            check_request(analysis_id, entry, request)
        return replay(connection, trail, stored.number, places, demand, entry), tip
    check_new_id(analysis_id)
    admitted = np.zeros(places.size, dtype=bool)
    at = trail.find_time()
    bounds = find_ceilings(trail, subject.scope, at)

    def charge_blocks() -> Record:
        for groups in split_chunks(codec.group_by_block(places)):
            part = _to_slice(np.concatenate([positions for _, positions in groups]))
            admitted[part], charged = charge(connection, salt, places[part], demand[part], bounds)
            yield from charged

    # The blocks are charged while their arrays are written; the entry is closed after the last of
    # them, and its digest of the state covers the new balances.
    entry = ReserveEntry(analysis_id, at, request, subject)
    return admitted, chain.append(connection, salt, tip, entry.to_body(), charge_blocks())


def reserve_all(
    connection: sa.Connection,
    trail: Trail,
    tip: Tip,
    analysis_id: str,
    losses: Losses,
    subject: Subject,
) -> tuple[int, Tip]:
    """Charge everyone, or count whom an earlier reservation charged; return the last entry."""
    if analysis_id in trail.reserved:
        return _count_reserved(connection, trail, analysis_id, losses, subject), tip
    check_new_id(analysis_id)
    salt = trail.salt
    at = trail.find_time()
    bounds = find_ceilings(trail, subject.scope, at)
    request = _begin_request(salt, tip.people)
    paid = 0

    def charge_blocks() -> Record:
        nonlocal paid
        for places, demand in _ask_everyone(connection, salt, tip.people, losses, request):
            admitted, charged = charge(connection, salt, places, demand, bounds)
            paid += int(admitted.sum())
            yield from charged

    # The request is known once everybody was asked, and so after the arrays are written.
    arrays = chain.write_arrays(connection, salt, tip, charge_blocks())
    entry = ReserveEntry(analysis_id, at, request.hexdigest(), subject)
    return paid, chain.close_entry(connection, salt, tip, entry.to_body(), arrays)


def _count_reserved(
    connection: sa.Connection, trail: Trail, analysis_id: str, losses: Losses, subject: Subject
) -> int:
    """Return how many an earlier reservation of everyone charged, who still take part."""
    stored, entry = find_reservation(connection, trail, analysis_id, subject)
    # Who came later is not asked.
    request = _begin_request(trail.salt, stored.people)
    # All are asked again, so that the digest of the request can be compared.
    for _ in _ask_everyone(connection, trail.salt, stored.people, losses, request):
        pass
    check_request(analysis_id, entry, request.hexdigest())
    barred = trail.find_barred(entry.subject.scope)
    paid = 0
    for block, data in trail.read_arrays(connection, stored.number):
        mask, _ = codec.unpack_charges(data)
        places = codec.find_places(block, mask)
        paid += int((~codec.mark_members(places, barred)).sum())
    return paid


def _begin_request(salt: bytes, people: int) -> blake2b:
    return begin_digest(salt, b"everyone", str(people).encode())


def _ask_everyone(
    connection: sa.Connection, salt: bytes, people: int, losses: Losses, request: blake2b
) -> Iterator[tuple[Integers, Demand]]:
    """Yield places of the first people and what is asked of them; `request` takes all of it in."""
    for blocks in split_chunks(range(-(-people // BLOCK))):
        pairs = []
        for block, packed, terms, _ in accounts.read_accounts(connection, salt, blocks, ()):
            # Those of the last block who came after the first reservation are left out.
            ids = codec.unpack_ids(packed, terms.size)[: people - block * BLOCK]
            loss = losses(ids)
            if loss.shape != ids.shape:
                raise InputError(f"{loss.size} norms for {ids.size} ids; give one a person")
            demand_of_block = Demand.of(Costs.fixed(loss))
            request.update(b"".join(demand_of_block.encode()))
            pairs.append(demand_of_block.pairs)
        demand = Demand(np.concatenate(pairs))
        yield blocks[0] * BLOCK + np.arange(len(demand)), demand
