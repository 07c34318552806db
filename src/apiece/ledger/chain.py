"""The history: every entry's digest covers its content, the balances after it, and the last one.

Who can write to the database and reads its salt can rewrite all of it, digests too: heads that are
kept outside it (`anchor`, or by hand for `verify(head=…)`) tell that as well.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from typing import NamedTuple

import sqlalchemy as sa

from apiece._types import Json
from apiece.errors import ApieceError, StateError
from apiece.ledger.codec import DAMAGE, entry_digest, keyed, root
from apiece.ledger.schema import BALANCE, CHUNK, ENTRY, HEAD, PAYLOAD, PEOPLE

REMEDY = "nothing was charged; run `apiece ledger verify` and restore a backup"


class Last(NamedTuple):
    """The last entry: its number, its digest, and how many people there are after it."""

    number: int
    digest: bytes
    people: int


class Head(NamedTuple):
    """The last entry's number and digest, to be kept outside the database.

    Attributes:
        number: 0 is the entry with the ledger's settings.
        digest: As 64 hexadecimal digits.

    Example:
        >>> Head(3, "0" * 64).number
        3
    """

    number: int
    digest: str


@dataclass(frozen=True, slots=True)
class Entry:
    """One line of the history; it holds nothing about a single person.

    Attributes:
        number: From 0 on.
        kind: "init", "enroll", "amend", "reserve" or "commit".
        at: When, in UTC, by the clock of the process that wrote it.
        analysis: Its id, for a reservation or a commit.
        digest: Of this entry and, through it, of all before.

    Example:
        >>> Entry(7, "commit", "2026-01-01T00:00:00Z", "q1", "0" * 64).analysis
        'q1'
    """

    number: int
    kind: str
    at: str
    analysis: str | None
    digest: str


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


@contextmanager
def naming_damage() -> Iterator[None]:
    """Turn what damaged content raises when it is read into a `StateError` of one line."""
    try:
        yield
    except ApieceError:
        raise
    except DAMAGE as error:
        raise StateError(
            f"ledger: what is stored cannot be read ({type(error).__name__}); {REMEDY}"
        ) from error


def append(
    connection: sa.Connection,
    salt: bytes,
    last: Last,
    body: Json,
    payloads: Iterable[tuple[int, bytes]],
) -> Last:
    """Add an entry with its packed arrays after `last`; return it as the last one."""
    return close(connection, salt, last, body, write_arrays(connection, salt, last, payloads))


def write_arrays(
    connection: sa.Connection, salt: bytes, last: Last, payloads: Iterable[tuple[int, bytes]]
) -> bytes:
    """Write the packed arrays of the entry after `last`, some at a time; return their digest.

    What makes them may change balances on the way.
    """
    digests, left = [], iter(payloads)
    while part := list(islice(left, CHUNK)):
        connection.execute(
            sa.insert(PAYLOAD),
            [{"number": last.number + 1, "block": block, "data": data} for block, data in part],
        )
        digests += [(block, keyed(salt, data)) for block, data in part]
    return root(salt, digests)


def require(connection: sa.Connection, last: Last) -> None:
    """Raise `StateError` where the store no longer has the entry that was written to it."""
    here = sa.select(ENTRY.c.digest).where(ENTRY.c.number == last.number)
    digest = connection.execute(here).scalar()
    if digest is None or bytes(digest) != last.digest:
        raise StateError(
            f"ledger: entry {last.number} was written and is gone, so the database was put back to "
            "an older or another state meanwhile; release nothing, and put the newest copy back"
        )


def close(connection: sa.Connection, salt: bytes, last: Last, body: Json, arrays: bytes) -> Last:
    """Add an entry after `last`, whose arrays are written, with the state as it now is."""
    number = last.number + 1
    full = {
        **body,
        "number": number,
        "at": body.get("at", time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())),
        "people": last.people,
        "state": state_root(connection, salt),
    }
    text = json.dumps(full, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    digest = entry_digest(salt, last.digest, text, arrays)
    connection.execute(
        sa.insert(ENTRY).values(number=number, body=text, digest=digest, payload_root=arrays)
    )
    connection.execute(sa.update(HEAD).values(number=number, digest=digest, people=last.people))
    return Last(number, digest, last.people)
