"""The history: every entry's digest covers its content, the balances after it, and the last one.

Digests are keyed with a random salt that stays in the ledger, so a published one tells nothing
about the people behind it. Who can write to the database can rewrite all of it, digests too:
keep the head's digest somewhere else, and `verify(head=…)` finds that as well.
"""

from __future__ import annotations

import hashlib
import json
import struct
import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import sqlalchemy as sa

from apiece.errors import StateError
from apiece.ledger.schema import BALANCE, ENTRY, HEAD, PAYLOAD, PEOPLE

SIZE: Final = 32


Locked = tuple[int, bytes, int]  # the head: number, digest, people


class Head(NamedTuple):
    """The last entry's number and digest, to be kept outside the database."""

    number: int
    digest: str


@dataclass(frozen=True, slots=True)
class Entry:
    """One line of the history; it holds nothing about a single person."""

    number: int
    kind: str
    at: str
    analysis: str | None
    digest: str


def keyed(salt: bytes, *parts: bytes) -> bytes:
    """Return the keyed hash of parts, each preceded by its length."""
    state = hashlib.blake2b(key=salt, digest_size=SIZE)
    for part in parts:
        state.update(struct.pack("<Q", len(part)))
        state.update(part)
    return state.digest()


def root(salt: bytes, digests: Iterable[tuple[int, bytes]]) -> bytes:
    """Return one digest for those of many blocks, in the order given."""
    packed = b"".join(struct.pack("<q", block) + digest for block, digest in digests)
    return keyed(salt, packed)


def block_digest(salt: bytes, table: str, block: int, *content: bytes) -> bytes:
    """Return the digest of one row of the people or balances."""
    return keyed(salt, table.encode(), struct.pack("<q", block), *content)


def state_root(connection: sa.Connection, salt: bytes) -> str:
    """Return the digest of everyone's terms and balances, from the digests of their blocks."""
    roots = [
        root(
            salt,
            (
                (int(block), bytes(digest))
                for block, digest in connection.execute(
                    sa.select(table.c.block, table.c.digest).order_by(table.c.block)
                )
            ),
        )
        for table in (PEOPLE, BALANCE)
    ]
    return keyed(salt, *roots).hex()


def entry_digest(salt: bytes, previous: bytes, body: str, payload_root: bytes) -> bytes:
    """Return an entry's digest."""
    return keyed(salt, previous, body.encode(), payload_root)


def payload_root(salt: bytes, payloads: Iterable[tuple[int, bytes]]) -> bytes:
    """Return the digest of an entry's packed arrays."""
    return root(salt, ((block, keyed(salt, data)) for block, data in payloads))


def lock(connection: sa.Connection, salt: bytes) -> Locked:
    """Return the last entry's number, its digest and the number of people; hold them for us.

    Raises `StateError` where the balances are not those that the last entry vouches for, so that
    nothing is charged to a damaged account.
    """
    row = connection.execute(
        sa.select(HEAD.c.number, HEAD.c.digest, HEAD.c.people).with_for_update()
    ).first()
    if row is None:
        raise StateError("ledger: its head is missing; run `apiece ledger verify`")
    body = connection.execute(sa.select(ENTRY.c.body).where(ENTRY.c.number == row.number)).scalar()
    stated = stated_root(body)
    if stated is None or stated != state_root(connection, salt):
        raise StateError(
            "ledger: balances do not match the history; nothing was charged; run "
            "`apiece ledger verify` and restore a backup"
        )
    return int(row.number), bytes(row.digest), int(row.people)


def stated_root(body: Any) -> str | None:
    """Return the digest of the state that an entry vouches for; None in a damaged entry."""
    try:
        return str(json.loads(body)["state"])
    except (TypeError, ValueError, KeyError):
        return None


def append(
    connection: sa.Connection,
    salt: bytes,
    head: Locked,
    body: dict[str, Any],
    payloads: list[tuple[int, bytes]],
) -> int:
    """Add an entry after `head`, with the state as it now is; return its number."""
    number = head[0] + 1
    full = {
        **body,
        "number": number,
        "at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "people": head[2],
        "state": state_root(connection, salt),
    }
    text = json.dumps(full, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    digest = entry_digest(salt, head[1], text, payload_root(salt, payloads))
    connection.execute(sa.insert(ENTRY).values(number=number, body=text, digest=digest))
    if payloads:
        connection.execute(
            sa.insert(PAYLOAD),
            [{"number": number, "block": block, "data": data} for block, data in payloads],
        )
    connection.execute(sa.update(HEAD).values(number=number, digest=digest, people=head[2]))
    return number
