"""From a person's id to their place: people are only ever added, so a directory can be kept.

It holds sorted keys and places: 12 bytes a person for whole numbers, 20 for text, of which two
keyed hashes of 64 bits stand for each id: that two people of a ledger share both is less likely
than 10⁻²⁰ for 10⁹ people, and nobody without the ledger's salt can look for such a pair.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import sqlalchemy as sa

from apiece._types import Integers
from apiece.errors import DataError, StateError
from apiece.ledger.accounts import read_ids
from apiece.ledger.chain import REMEDY
from apiece.ledger.codec import BLOCK, Ids, kind
from apiece.ledger.digests import keyed

Keys = tuple[npt.NDArray[Any], ...]  # by which ids are ordered, and for text what tells them apart


@dataclass(frozen=True, slots=True, repr=False)
class _Run:
    """Some people, in the order of their keys."""

    keys: Keys
    places: npt.NDArray[Any]

    def merged(self, other: _Run) -> _Run:
        at = np.searchsorted(self.keys[0], other.keys[0])
        keys = tuple(np.insert(a, at, b) for a, b in zip(self.keys, other.keys, strict=True))
        places = self.places.astype(other.places.dtype)  # later places may need wider numbers
        return _Run(keys, np.insert(places, at, other.places))

    def find(self, keys: Keys) -> Integers:
        """Return the place of each key, or −1."""
        found = np.full(keys[0].size, -1, dtype=np.int64)
        at, left = np.searchsorted(self.keys[0], keys[0]), np.arange(keys[0].size)
        while left.size:  # once, but for texts whose first hash several people share
            left = left[at[left] < self.places.size]
            left = left[self.keys[0][at[left]] == keys[0][left]]
            same = np.ones(left.size, dtype=bool)
            for own, wanted in zip(self.keys[1:], keys[1:], strict=True):
                same &= own[at[left]] == wanted[left]
            found[left[same]] = self.places[at[left[same]]]
            left = left[~same]
            at[left] += 1
        return found


class Directory:
    """The places of all people, in the order of enrolment."""

    def __init__(self, salt: bytes) -> None:
        self.people = 0
        self.kind: str | None = None  # of the ids: "integer" or "text"
        self._salt, self._runs = salt, list[_Run]()

    def refresh(self, connection: sa.Connection, people: int) -> None:
        """Read the people enrolled since the last refresh."""
        if people == self.people:
            return
        parts, known, found = list[Keys](), self.people % BLOCK, self.kind
        for ids in read_ids(connection, self._salt, self.people // BLOCK):
            parts.append(self._keys(ids[known:]))
            known, found = 0, kind(ids)
        keys = tuple(np.concatenate(each) for each in zip(*parts, strict=True))
        size = self.people + (keys[0].size if keys else 0)
        if size != people:
            raise StateError(f"ledger: {size} people where its history has {people}; {REMEDY}")
        order = np.argsort(keys[0], kind="stable")
        places = (self.people + order).astype(np.result_type(np.uint32, np.min_scalar_type(people)))
        runs = [*self._runs, _Run(tuple(each[order] for each in keys), places)]
        while len(runs) > 1 and runs[-2].places.size < 2 * runs[-1].places.size:
            last = runs.pop()
            runs[-1] = runs[-1].merged(last)
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
