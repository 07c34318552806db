"""From a person's id to their place: people are only ever added, so a directory can be kept.

It keeps sorted keys and places: 12 bytes a person for whole numbers, 20 for text, in memory while
they are few, else in temporary files (`runs`). Of text, two keyed hashes of 64 bits stand for each
id: that two people of a ledger share both is less likely than 10⁻²⁰ for 10⁹ people, and nobody
without the ledger's salt can look for such a pair.
"""

from __future__ import annotations

from itertools import islice
from typing import Final

import numpy as np
import sqlalchemy as sa

from apiece._types import Integers
from apiece.errors import DataError, StateError
from apiece.ledger.accounts import read_ids
from apiece.ledger.chain import REMEDY
from apiece.ledger.codec import BLOCK, Ids, keyed, kind
from apiece.ledger.runs import Keys, Part, Run

SPAN: Final = 256  # blocks that are sorted at a time: a million people


class Directory:
    """The places of all people, in the order of enrolment."""

    def __init__(self, salt: bytes) -> None:
        self.people = 0
        self.kind: str | None = None  # of the ids: "integer" or "text"
        self._salt, self._runs = salt, list[Run]()

    def refresh(self, connection: sa.Connection, people: int) -> None:
        """Read the people enrolled since the last refresh."""
        if people == self.people:
            return
        runs, place, found = list(self._runs), self.people, self.kind
        blocks = read_ids(connection, self._salt, self.people // BLOCK)
        known = self.people % BLOCK
        while some := list(islice(blocks, SPAN)):
            parts = [self._keys(ids[known if n == 0 else 0 :]) for n, ids in enumerate(some)]
            keys = tuple(np.concatenate(each) for each in zip(*parts, strict=True))
            known, found = 0, kind(some[-1])
            if keys[0].size:
                order = np.argsort(keys[0], kind="stable")
                least = np.min_scalar_type(place + order.size)
                places = (place + order).astype(np.result_type(np.uint32, least))
                runs.append(Run.of(Part(tuple(each[order] for each in keys), places)))
                place += order.size
            while len(runs) > 1 and runs[-2].size < 2 * runs[-1].size:
                last = runs.pop()
                runs[-1] = runs[-1].merged(last)
        if place != people:
            raise StateError(f"ledger: {place} people where its history has {people}; {REMEDY}")
        self.people, self.kind, self._runs = people, found, runs

    def find(self, ids: Ids) -> Integers:
        """Return each id's place, or −1. Raises `DataError` for the wrong kind or an id twice."""
        if not ids.size:
            return np.zeros(0, dtype=np.int64)
        if self.kind is not None and self.kind != kind(ids):
            raise DataError(
                f"ids: {kind(ids)} ids, but this ledger's are {self.kind}; convert them"
            )
        keys = self._keys(ids)
        order = np.lexsort(keys[::-1])  # neighbours are found faster
        keys = tuple(each[order] for each in keys)
        twice = np.logical_and.reduce([each[1:] == each[:-1] for each in keys])
        if twice.any():
            which = ids[order[int(np.argmax(twice))]].item()
            raise DataError(f"ids: {which!r} occurs more than once; give each person one entry")
        found = np.full(ids.size, -1, dtype=np.int64)
        for run in self._runs:
            found[order] = np.maximum(found[order], run.find(keys))
        return found

    def numbers(self, ids: Ids) -> Integers:
        """Return each id's place. Raises `DataError` for an unknown person."""
        found = self.find(ids)
        if (found < 0).any():
            unknown = ids[np.flatnonzero(found < 0)[0]]
            raise DataError(
                f"ids: person {unknown.item()!r} has no account ({int((found < 0).sum())} such of "
                f"{ids.size}); enroll them first"
            )
        return found

    def _keys(self, ids: Ids) -> Keys:
        if ids.dtype.kind == "i":
            return (ids,)
        from pandas.util import hash_array

        texts, secret = ids.astype(object), keyed(self._salt, b"directory").hex()
        return tuple(
            hash_array(texts, hash_key=secret[16 * k : 16 * k + 16], categorize=False)
            for k in range(2)
        )
