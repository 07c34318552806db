"""Permits: who consents to which scope until when, kept beside the accounts and held to by all.

One entry says it of everybody. From then on whoever is not in it, or came later, permits nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import date

import numpy as np

from apiece._types import Integers, Json, Mask
from apiece.budgets.consents import permitted
from apiece.ledger import codec
from apiece.ledger.codec import BLOCK
from apiece.ledger.scopes import Scope


@dataclass(frozen=True, slots=True)
class Permits:
    """What people permit, by their places.

    until: (people,) each one's last day, as `date.toordinal`; 0 of those who permit nothing.
    allowed: (people, queriers, purposes).
    """

    queriers: tuple[str, ...]
    purposes: tuple[str, ...]
    until: Integers = field(repr=False)
    allowed: Mask = field(repr=False)

    @classmethod
    def read(cls, body: Json, blocks: Mapping[int, bytes], people: int) -> Permits:
        """Return what an entry and its arrays say of so many people."""
        queriers, purposes = tuple(body["queriers"]), tuple(body["purposes"])
        cells = len(queriers) * len(purposes)
        until, allowed = np.zeros(people, np.int64), np.zeros((people, cells), dtype=bool)
        for block, data in blocks.items():
            mask, rest = codec.unpack_mask(data)
            places, size = block * BLOCK + np.flatnonzero(mask), int(mask.sum())
            until[places] = np.frombuffer(rest[: 4 * size], "<u4")
            bits = np.unpackbits(np.frombuffer(rest[4 * size :], np.uint8), count=size * cells)
            allowed[places] = bits.reshape(size, cells)
        shape = (people, len(queriers), len(purposes))
        return cls(queriers, purposes, until, allowed.reshape(shape))

    def pack(self, block: int) -> bytes:
        """Return what is stored of one block; `read` is the inverse."""
        part = slice(block * BLOCK, (block + 1) * BLOCK)
        mask = self.until[part] > 0
        until, bits = self.until[part][mask].astype("<u4"), np.packbits(self.allowed[part][mask])
        return codec.pack_mask(mask, until.tobytes() + bits.tobytes())

    def hold(self, scope: Scope, at: str, people: int) -> Mask:
        """Return which of the first people permit all that a scope leaves open, at an ISO time."""
        own = permitted(self.allowed[:people], self.queriers, self.purposes, scope)
        result = np.zeros(people, dtype=bool)
        result[: own.size] = own & (self.until[:people] >= date.fromisoformat(at[:10]).toordinal())
        return result
