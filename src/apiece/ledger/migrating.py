"""Copying a ledger of versions 1 to 4, which counted in one number, into one of the present.

A Gaussian ledger counted μ², as now. A Rényi ledger of order α counted divergence ρ: at that order
a Gaussian of μ² costs α·μ²/2, so ρ becomes 2ρ/α, and so does the budget. These accounts stay Rényi
filters, with the slack beside; docs/mathematics.md, section 11.

The history is checked whole, and written anew entry by entry under the same salt, so that the terms
of reservations stay what they were.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import sqlalchemy as sa

from apiece._types import Floats, Ids, Integers, Json
from apiece.errors import StateError
from apiece.filters.convert import renyi_budget
from apiece.ledger import accounts, chain, codec, database, schema, store
from apiece.ledger.anchor import Anchor, Heads
from apiece.ledger.chain import Head, Last
from apiece.ledger.codec import BLOCK, block_digest, entry_digest, payload_root
from apiece.ledger.database import is_missing, made_private, make_engine, name, sqlite_file
from apiece.ledger.schema import pages, payloads

_TERMS: Final = np.dtype([("epsilon", "<f8"), ("delta", "<f8"), ("limit", "<i8")])
_OWN: Final = ("number", "people", "state")  # of an entry, written anew


@dataclass(frozen=True, slots=True)
class Older:
    """The content of an older ledger, once it is checked."""

    salt: bytes = field(repr=False)
    order: float | None
    last: Last
    bodies: list[Json] = field(repr=False)
    blocks: dict[int, tuple[Ids, Any]] = field(repr=False)  # people's ids and terms

    def now(self, charges: Integers) -> Integers:
        """Return charges in today's units of μ², rounded up."""
        if self.order is None:
            return charges
        with np.errstate(over="ignore"):
            result = np.ceil(charges * (2 / self.order) * (1 + 16 * codec.ULP))
        return np.asarray(np.minimum(result, codec.CAP).astype(np.int64))

    def terms(self, block: int, spent: Integers) -> codec.Terms:
        """Return the accounts of a block, of whom each has spent so much, in today's units."""
        old = self.blocks[block][1]
        result = np.zeros(old.size, dtype=codec.TERMS)
        epsilon, delta = old["epsilon"].copy(), old["delta"].copy()
        result["epsilon"], result["delta"] = epsilon, delta
        result["limit"], result["slack"] = codec.account_limits(epsilon, delta).T
        if self.order is not None:
            charged = spent > 0
            told = result["slack"] * codec.SLACK_UNIT
            limit = self._renyi(epsilon, (delta - told) / (1 - told) * (1 - 8 * codec.ULP))
            result["limit"] = np.where(charged, limit, result["limit"])
        # Where a slack leaves less than what is spent there is none, and the account is as it was.
        over = spent > result["limit"]
        was = old["limit"] if self.order is None else self._renyi(epsilon, delta)
        result["limit"] = np.where(over, np.maximum(was, spent), result["limit"])
        result["slack"] = np.where(over, 0, result["slack"])
        return result

    def _renyi(self, epsilon: Floats, delta: Floats) -> Integers:
        order = self.order or 0.0
        budget = 2 * renyi_budget(epsilon, delta, order) / order
        whole = np.floor(budget * (1 - 8 * codec.ULP) / codec.UNIT)
        return np.clip(whole, 0, codec.CAP - 1).astype(np.int64)


def migrate_ledger(old: str, new: str, *, anchor: str | os.PathLike[str] | None = None) -> Head:
    """Copy a ledger of an older version into a new one: all of it, or nothing is left.

    The old one stays as it is: put it away, so that nobody charges it with an older apiece. An
    anchor of the new one is begun with the head that is returned.

    Args:
        old: Its address, as of `Ledger.open`.
        new: An address where there is no ledger.
        anchor: The old one's.

    Returns:
        The last entry of the new ledger.

    Raises:
        DataError: Where there is no old one.
        StateError: Where the old one is damaged or of this version, or there is a new one.

    Guarantee:
        Accounts, charges and answers are the same; nobody has more left than before. Who was
        charged by a Rényi ledger stays on a Rényi filter of that order, with the slack beside it,
        and their account cannot be changed.

    Example:
        >>> import tempfile
        >>> from apiece.ledger import Ledger, migrate_ledger
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     _ = Ledger.make(f"{folder}/new.db", ["ann"], 1.0, 1e-6)
        ...     migrate_ledger(f"{folder}/new.db", f"{folder}/newer.db")
        Traceback (most recent call last):
            ...
        apiece.errors.StateError: ledger ...: is of version 6 already; open it
    """
    return _migrated(make_engine(old), make_engine(new), anchor).head


def _migrated(old: sa.Engine, new: sa.Engine, anchor: Any) -> Last:
    if is_missing(old):
        raise store.none_there(old)
    kept = Anchor.of(anchor, sqlite_file(old)).read(whole=True)
    beside = Anchor.of("", sqlite_file(new))
    if store.is_there(new):
        raise StateError(f"ledger {name(new)}: exists already; give an address of a new one")
    beside.require_none(name(new))
    with database.opened(old, writes=False) as source, chain.naming_damage():
        result = _read(source, name(old), kept)
        spent = _spent(source, result)
        with made_private(new), database.transaction(new, writes=True) as target:
            schema.create(target, result.salt)
            last = _write(source, target, result, spent)
    beside.keep(last)
    return last


def _read(connection: sa.Connection, called: str, kept: Heads) -> Older:
    """Check an older ledger and return what it has but for its charges."""
    version = schema.check_version(store.meta(connection, "schema"))
    if version >= schema.UNITS:
        raise StateError(f"ledger {called}: is of version {version} already; open it")
    schema.refuse_strangers(connection)
    salt, wanted = bytes.fromhex(store.meta(connection, "salt")), kept.digests
    previous, bodies = b"", []
    entries = connection.exec_driver_sql(
        "SELECT number, body, digest FROM apiece_entry ORDER BY number"
    ).all()
    for at, (number, body, digest) in enumerate(entries):
        root = payload_root(salt, payloads(connection, at))
        if number != at or bytes(digest) != entry_digest(salt, previous, str(body), root):
            raise _damaged(f"entry {at} is")
        if wanted.pop(at, bytes(digest).hex()) != bytes(digest).hex():
            raise _damaged(f"entry {at} is not the one that was kept, or is")
        previous = bytes(digest)
        bodies.append(json.loads(body))
    if wanted or not bodies:
        raise _damaged("its last entries are")
    people, state = int(bodies[-1]["people"]), str(bodies[-1]["state"])
    head = connection.execute(sa.select(schema.HEAD)).one()
    last = Last(len(bodies) - 1, previous, people)
    if (head.number, bytes(head.digest), head.people) != tuple(last):
        raise _damaged("its head is")
    if state != chain.state_root(connection, salt, scoped=False):
        raise _damaged("its balances are")
    order = bodies[0]["order"]
    return Older(
        salt, None if order is None else float(order), last, bodies, _people(connection, salt)
    )


def _people(connection: sa.Connection, salt: bytes) -> dict[int, tuple[Ids, Any]]:
    result = {}
    for row in pages(connection, sa.select(schema.PEOPLE), schema.PEOPLE.c.block):
        size, ids, terms = str(row.size).encode(), bytes(row.ids), bytes(row.terms)
        if bytes(row.digest) != block_digest(salt, "people", row.block, size, ids, terms):
            raise _damaged(f"the people of block {row.block} are")
        own = np.frombuffer(terms, _TERMS)
        result[row.block] = codec.unpack_ids(ids, own.size), own
    return result


def _spent(connection: sa.Connection, older: Older) -> dict[int, Integers]:
    """Return what each block's people have spent, once in today's units, by the history."""
    spent = {b: np.zeros((2, terms.size), np.int64) for b, (_, terms) in older.blocks.items()}
    for body in older.bodies:
        if body["kind"] == "reserve":
            for block, data in payloads(connection, body["number"]):
                mask, rest = codec.unpack_mask(data)
                at, charges = np.flatnonzero(mask), np.frombuffer(rest, "<i8")
                spent[block][0][at] += charges
                spent[block][1][at] += older.now(charges)
    rows = connection.exec_driver_sql("SELECT block, spent, digest FROM apiece_balance").all()
    for block, data, digest in rows:
        raw = bytes(data)
        good = bytes(digest) == block_digest(older.salt, "balance", block, raw)
        if not good or block not in spent or raw != spent[block][0].astype("<i8").tobytes():
            raise _damaged(f"the balances of block {block} are")
    return {block: both[1] for block, both in spent.items()}


def _write(
    source: sa.Connection, target: sa.Connection, older: Older, spent: dict[int, Integers]
) -> Last:
    """Write the history anew; return its last entry."""
    salt, terms = older.salt, {b: older.terms(b, each) for b, each in spent.items()}
    origin = {
        "people": older.last.people,
        "order": older.order,
        "head": f"{older.last.number}:{older.last.digest.hex()}",
    }
    last = Last(-1, b"", 0)
    for body in older.bodies:
        kept = {key: value for key, value in body.items() if key not in _OWN}
        arrays = payloads(source, body["number"])
        match body["kind"]:
            case "init":
                own = {"kind": "init", "units": [codec.UNIT, codec.SLACK_UNIT], "migrated": origin}
                last = chain.append(target, salt, last, {**own, "at": body["at"]}, [])
            case "enroll":
                some = [codec.unpack_enrolled(data, _TERMS)[0] for _, data in arrays]
                ids = np.concatenate(some)
                places = last.people + np.arange(ids.size)
                own_terms = np.concatenate(
                    [terms[b][places[part] % BLOCK] for b, part in codec.by_block(places)]
                )
                last = accounts.add(target, salt, last, ids, own_terms)
            case "reserve":
                last = chain.append(target, salt, last, kept, _charged(target, older, arrays))
            case "commit":
                last = chain.append(target, salt, last, kept, [])
    return last


def _charged(
    target: sa.Connection, older: Older, arrays: Iterator[tuple[int, bytes]]
) -> Iterator[tuple[int, bytes]]:
    """Add an entry's charges to the new balances, block by block; yield the new record."""
    for block, data in arrays:
        mask, rest = codec.unpack_mask(data)
        charges = np.frombuffer(rest, "<i8")
        pairs = np.stack([older.now(charges), np.zeros_like(charges)], axis=-1)
        spent = accounts.read_spent(target, older.salt, [block])[block]
        spent[np.flatnonzero(mask)] += pairs
        accounts.write_spent(target, older.salt, [(block, spent)])
        yield block, codec.pack_charges(mask, pairs)


def _damaged(what: str) -> StateError:
    return StateError(f"ledger: {what} damaged; nothing was migrated; restore a backup")
