"""Keyed digests: of an entry, of its arrays, of a block of people.

They are keyed with a random salt that stays in the ledger, so a published one tells nothing about
the people behind it.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterable
from typing import Final

SIZE: Final = 32


def begin(salt: bytes, *parts: bytes) -> hashlib.blake2b:
    """Begin a keyed hash with parts, each preceded by its length."""
    state = hashlib.blake2b(key=salt, digest_size=SIZE)
    for part in parts:
        state.update(struct.pack("<Q", len(part)))
        state.update(part)
    return state


def keyed(salt: bytes, *parts: bytes) -> bytes:
    """Return the keyed hash of parts, each preceded by its length."""
    return begin(salt, *parts).digest()


def root(salt: bytes, digests: Iterable[tuple[int, bytes]]) -> bytes:
    """Return one digest for those of many blocks, in the order given."""
    packed = b"".join(struct.pack("<q", block) + digest for block, digest in digests)
    return keyed(salt, packed)


def block_digest(salt: bytes, table: str, block: int, *content: bytes) -> bytes:
    """Return the digest of one row of the people or balances."""
    return keyed(salt, table.encode(), struct.pack("<q", block), *content)


def entry_digest(salt: bytes, previous: bytes, body: str, payload_root: bytes) -> bytes:
    """Return an entry's digest."""
    return keyed(salt, previous, body.encode(), payload_root)


def payload_root(salt: bytes, payloads: Iterable[tuple[int, bytes]]) -> bytes:
    """Return the digest of an entry's packed arrays."""
    return root(salt, ((block, keyed(salt, data)) for block, data in payloads))
