"""Charging an analysis, and finding again whom it admitted."""

from __future__ import annotations

import numpy as np
import sqlalchemy as sa

from apiece._types import Integers, Mask
from apiece.errors import AnalysisError
from apiece.ledger import accounts, codec
from apiece.ledger.codec import BLOCK
from apiece.ledger.trail import Trail


def charge(
    connection: sa.Connection, salt: bytes, ordinals: Integers, charges: Integers
) -> tuple[Mask, list[tuple[int, bytes]]]:
    """Add each charge to the balance that can bear it; return who could, and the record."""
    groups = codec.by_block(ordinals)
    blocks = [block for block, _ in groups]
    people = accounts.read_people(connection, salt, blocks)
    balances = accounts.read_spent(connection, salt, blocks)
    admitted = np.zeros(ordinals.size, dtype=bool)
    rows, payloads = [], []
    for block, part in groups:
        spent, at = balances[block], ordinals[part] % BLOCK
        total = spent[at] + charges[part]
        can = total <= people[block][1]["limit"][at]
        admitted[part] = can
        mask = np.zeros(spent.size, dtype=bool)
        mask[at[can]] = True
        charged = np.zeros(spent.size, dtype=np.int64)
        charged[at[can]] = charges[part][can]
        rows.append((block, spent + charged))
        payloads.append((block, codec.pack_masked(mask, charged[mask].astype("<i8"))))
    accounts.write_spent(connection, salt, rows)
    return admitted, payloads


def replay(
    connection: sa.Connection, trail: Trail, analysis_id: str, request: str, ordinals: Integers
) -> Mask:
    """Return whom an earlier, identical reservation admitted; what it left is checked first."""
    number = trail.reserved[analysis_id]
    if analysis_id in trail.committed:
        raise AnalysisError(
            f"analysis {analysis_id!r}: already committed; read its result, or use a new id"
        )
    if trail.body(connection, number)["request"] != request:
        raise AnalysisError(
            f"analysis {analysis_id!r}: reserved with other people or norms; use a new id"
        )
    admitted = np.zeros(ordinals.size, dtype=bool)
    stored = trail.arrays(connection, number)
    for block, part in codec.by_block(ordinals):
        mask, _ = codec.unpack_masked(stored[block], "<i8")
        admitted[part] = mask[ordinals[part] % BLOCK]
    return admitted
