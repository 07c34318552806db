"""Opening accounts and changing their terms."""

from __future__ import annotations

import numpy as np
import sqlalchemy as sa

from apiece._types import Integers
from apiece.errors import BudgetError
from apiece.ledger import accounts, chain, codec, units
from apiece.ledger.chain import Last
from apiece.ledger.codec import BLOCK, Ids, Terms
from apiece.ledger.trail import Origin


def amend(
    connection: sa.Connection,
    salt: bytes,
    head: Last,
    ids: Ids,
    ordinals: Integers,
    terms: Terms,
    origin: Origin,
    keep: bool = False,
) -> Last:
    """Change the terms of people who have accounts; return the head after it.

    keep: whose ε and δ are the same, whatever their slack.
    """
    groups = codec.by_block(ordinals)
    blocks = [block for block, _ in groups]
    people = accounts.read_people(connection, salt, blocks)
    spent = accounts.read_spent(connection, salt, blocks)
    rows, payloads = [], []
    for block, part in groups:
        packed, old = people[block]
        at = ordinals[part] % BLOCK
        same = (old["epsilon"][at] == terms["epsilon"][part]) & (
            old["delta"][at] == terms["delta"][part]
        )
        older = ordinals[part] < origin.people
        changed = part[(old[at] != terms[part]) & ~(same & (older | keep))]
        if not changed.size:
            continue
        if origin.renyi and (ordinals[changed] < origin.people).any():
            who = ids[changed[ordinals[changed] < origin.people][0]].item()
            raise BudgetError(
                f"person {who!r}: was charged in Rényi divergence, in the ledger that this one was "
                "migrated from, and keeps that account; enroll them under a new id for new data"
            )
        at = ordinals[changed] % BLOCK
        _refuse_lower(ids[changed], codec.limits(terms[changed]), spent[block][at])
        new, mask = old.copy(), np.zeros(old.size, dtype=bool)
        new[at], mask[at] = terms[changed], True
        rows.append((block, packed, new))
        payloads.append((block, codec.pack_masked(mask, new[mask])))
    if not rows:
        return head
    accounts.write_people(connection, salt, rows)
    return chain.append(connection, salt, head, {"kind": "amend"}, payloads)


def add(
    connection: sa.Connection,
    salt: bytes,
    head: Last,
    ids: Ids,
    terms: Terms,
) -> Last:
    """Open accounts for people who have none; return the head after it."""
    if not ids.size:
        return head
    ordinals = head.people + np.arange(ids.size)
    people, balances, payloads = [], [], []
    for block, part in codec.by_block(ordinals):
        payloads.append((block, codec.pack_enrolled(ids[part], terms[part])))
        new_ids, new_terms = ids[part], terms[part]
        spent = codec.nothing(part.size)
        if ordinals[part[0]] % BLOCK:  # the last block has room
            packed, old_terms = accounts.read_people(connection, salt, [block])[block]
            old_ids = codec.unpack_ids(packed, old_terms.size)
            new_ids = np.concatenate([old_ids, new_ids])
            new_terms = np.concatenate([old_terms, new_terms])
            old_spent = accounts.read_spent(connection, salt, [block])[block]
            spent = np.concatenate([old_spent, spent])
        people.append((block, new_ids, new_terms))
        balances.append((block, spent))
    accounts.write_people(connection, salt, people)
    accounts.write_spent(connection, salt, balances)
    after = head._replace(people=head.people + ids.size)
    return chain.append(connection, salt, after, {"kind": "enroll"}, payloads)


def _refuse_lower(ids: Ids, limits: Integers, spent: Integers) -> None:
    low = np.argwhere(limits < spent)
    if low.size:
        i, which = low[0]
        name, unit = (("budget", units.UNIT), ("slack", units.SLACK_UNIT))[which]
        raise BudgetError(
            f"person {ids[i].item()!r}: the new {name}, {limits[i, which] * unit:.6g}, is below "
            f"what is spent, {spent[i, which] * unit:.6g}; what was released cannot be taken back"
        )
