"""A directory from a person's id to their place; people are only ever added, so it can be kept.

It keeps sorted keys and places: 12 bytes a person for whole numbers, 20 for text, in memory while
they are few, else in temporary files (`runs`). Of text, two keyed hashes of 64 bits stand for each
id: that two people of a ledger share both is less likely than 10⁻²⁰ for 10⁹ people, and nobody
without the ledger's salt can look for such a pair.
"""

from __future__ import annotations

import os
import tempfile
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import sqlalchemy as sa

from apiece._types import Ids, Integers
from apiece.errors import DataError, StateError
from apiece.ledger.accounts import read_ids
from apiece.ledger.codec import BLOCK, REMEDY, compute_digest, find_kind

Keys = tuple[npt.NDArray[Any], ...]  # by which ids are ordered, and for text what tells them apart

HELD: Final = 2**20  # people whose keys are held in memory: 12 to 20 MB
PIECE: Final = 2**18  # people in one part of a file, but for those of one key, who stay together


@dataclass(frozen=True, slots=True, repr=False)
class SortedPart:
    """Some people, in the order of their keys."""

    keys: Keys
    places: npt.NDArray[Any]

    @property
    def size(self) -> int:
        """Return the number of people."""
        return int(self.places.size)

    def split(self, at: int) -> tuple[SortedPart, SortedPart]:
        """Return the first `at` people, and the others."""
        low, high = (tuple(k[s] for k in self.keys) for s in (slice(at), slice(at, None)))
        return SortedPart(low, self.places[:at]), SortedPart(high, self.places[at:])

    def merged(self, other: SortedPart) -> SortedPart:
        """Return the people of both."""
        at = np.searchsorted(self.keys[0], other.keys[0])
        keys = tuple(np.insert(a, at, b) for a, b in zip(self.keys, other.keys, strict=True))
        # later places may need wider numbers
        wide = np.result_type(self.places, other.places)
        return SortedPart(keys, np.insert(self.places.astype(wide), at, other.places))

    def find(self, keys: Keys) -> Integers:
        """Return the place of each key, or −1."""
        result = np.full(keys[0].size, -1, dtype=np.int64)
        at, left = np.searchsorted(self.keys[0], keys[0]), np.arange(keys[0].size)
        while left.size:  # once, but for texts whose first hash several people share
            left = left[at[left] < self.places.size]
            left = left[self.keys[0][at[left]] == keys[0][left]]
            same = np.ones(left.size, dtype=bool)
            for own, wanted in zip(self.keys[1:], keys[1:], strict=True):
                same &= own[at[left]] == wanted[left]
            result[left[same]] = self.places[at[left[same]]]
            left = left[~same]
            at[left] += 1
        return result


class SortedRun:
    """Parts whose keys lie one after another's; nobody's key is in two."""

    def __init__(self, parts: Sequence[SortedPart], firsts: npt.NDArray[Any], size: int) -> None:
        self._parts, self._firsts, self.size = parts, firsts, size

    @classmethod
    def of(cls, part: SortedPart) -> SortedRun:
        """Hold one part, which is not empty, in memory."""
        return cls([part], part.keys[0][:1], part.size)

    def merged(self, other: SortedRun) -> SortedRun:
        """Return the people of both; in memory while they are few."""
        if self.size + other.size <= HELD:  # then either is one part
            return SortedRun.of(self._parts[0].merged(other._parts[0]))
        parts, firsts = _Filed(), list[npt.NDArray[Any]]()
        for part in _zipped(iter(self._parts), iter(other._parts)):
            for piece in _pieces(part):
                parts.add(piece)
                firsts.append(piece.keys[0][:1].copy())  # a view would hold the piece
        return SortedRun(parts, np.concatenate(firsts), self.size + other.size)

    def find(self, keys: Keys) -> Integers:
        """Return the place of each key, or −1; `keys` are sorted by the first of them."""
        result = np.full(keys[0].size, -1, dtype=np.int64)
        ends = [*np.searchsorted(keys[0], self._firsts[1:]).tolist(), keys[0].size]
        for number, (start, end) in enumerate(zip([0, *ends[:-1]], ends, strict=True)):
            if start < end:
                asked = tuple(each[start:end] for each in keys)
                result[start:end] = self._parts[number].find(asked)
        return result


def _zipped(left: Iterator[SortedPart], right: Iterator[SortedPart]) -> Iterator[SortedPart]:
    """Yield the people of both in the order of their keys; a part of each is in memory."""
    one, two = next(left, None), next(right, None)
    while one is not None and two is not None:
        upto = min(one.keys[0][-1], two.keys[0][-1])
        begins = [np.searchsorted(each.keys[0], upto, side="right") for each in (one, two)]
        (low, one), (high, two) = one.split(int(begins[0])), two.split(int(begins[1]))
        yield low.merged(high)
        one, two = one if one.size else next(left, None), two if two.size else next(right, None)
    for part, rest in ((one, left), (two, right)):
        if part is not None:
            yield part
            yield from rest


def _pieces(part: SortedPart) -> Iterator[SortedPart]:
    """Cut a part where its key changes."""
    while part.size > PIECE:
        key = part.keys[0][PIECE]
        at = int(np.searchsorted(part.keys[0], key)) or int(
            np.searchsorted(part.keys[0], key, side="right")
        )
        piece, part = part.split(at)
        yield piece
    if part.size:
        yield part


class _Filed(Sequence[SortedPart]):
    """Parts in a nameless file, read by place, so that threads and forks do not move each other."""

    def __init__(self) -> None:
        with _naming_room():
            file = tempfile.TemporaryFile(prefix="apiece-")  # noqa: SIM115
        self._file, self._at = file, list[tuple[int, list[tuple[np.dtype[Any], int]]]]()
        self._end = 0
        weakref.finalize(self, file.close)

    def add(self, part: SortedPart) -> None:
        columns = [*part.keys, part.places]
        self._at.append((self._end, [(each.dtype, each.nbytes) for each in columns]))
        with _naming_room():
            for each in columns:
                self._file.write(each.tobytes())
                self._end += each.nbytes
            self._file.flush()

    def __len__(self) -> int:
        return len(self._at)

    def __getitem__(self, number: Any) -> Any:
        start, columns = self._at[number]
        result = []
        for dtype, size in columns:
            result.append(np.frombuffer(_read(self._file.fileno(), start, size), dtype))
            start += size
        return SortedPart(tuple(result[:-1]), result[-1])


def _read(file: int, start: int, size: int) -> bytes:
    result = os.pread(file, size, start)
    while len(result) < size:
        more = os.pread(file, size - len(result), start + len(result))
        if not more:
            raise StateError("ledger: its people's temporary file was cut short; open it anew")
        result += more
    return result


@contextmanager
def _naming_room() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise StateError(
            f"ledger: no room to sort its people in {tempfile.gettempdir()} ({error.strerror}); "
            "let TMPDIR name a folder with 40 bytes a person"
        ) from None


SPAN: Final = 256  # blocks that are sorted at a time: a million people


class Directory:
    """The places of all people, in the order of enrolment."""

    def __init__(self, salt: bytes) -> None:
        self.people = 0
        self.kind: str | None = None  # of the ids: "integer" or "text"
        self._salt, self._runs = salt, list[SortedRun]()

    def refresh(self, connection: sa.Connection, people: int) -> None:
        """Read the people enrolled since the last refresh."""
        if people == self.people:
            return
        runs, place, result = list(self._runs), self.people, self.kind
        blocks = read_ids(connection, self._salt, self.people // BLOCK)
        known = self.people % BLOCK
        while some := list(islice(blocks, SPAN)):
            parts = [self._keys(ids[known if n == 0 else 0 :]) for n, ids in enumerate(some)]
            keys = tuple(np.concatenate(each) for each in zip(*parts, strict=True))
            known, result = 0, find_kind(some[-1])
            if keys[0].size:
                order = np.argsort(keys[0], kind="stable")
                least = np.min_scalar_type(place + order.size)
                places = (place + order).astype(np.result_type(np.uint32, least))
                runs.append(SortedRun.of(SortedPart(tuple(each[order] for each in keys), places)))
                place += order.size
            while len(runs) > 1 and runs[-2].size < 2 * runs[-1].size:
                last = runs.pop()
                runs[-1] = runs[-1].merged(last)
        if place != people:
            raise StateError(f"ledger: {place} people where its history has {people}; {REMEDY}")
        self.people, self.kind, self._runs = people, result, runs

    def find(self, ids: Ids) -> Integers:
        """Return each id's place, or −1. Raises `DataError` for the wrong kind or an id twice."""
        if not ids.size:
            return np.zeros(0, dtype=np.int64)
        if self.kind is not None and self.kind != find_kind(ids):
            raise DataError(
                f"ids: {find_kind(ids)} ids, but this ledger's are {self.kind}; convert them"
            )
        keys = self._keys(ids)
        order = np.lexsort(keys[::-1])  # neighbours are found faster
        keys = tuple(each[order] for each in keys)
        twice = np.logical_and.reduce([each[1:] == each[:-1] for each in keys])
        if twice.any():
            person = ids[order[int(np.argmax(twice))]].item()
            raise DataError(f"ids: {person!r} occurs more than once; give each person one entry")
        result = np.full(ids.size, -1, dtype=np.int64)
        for run in self._runs:
            result[order] = np.maximum(result[order], run.find(keys))
        return result

    def require_places(self, ids: Ids) -> Integers:
        """Return each id's place. Raises `DataError` for an unknown person."""
        result = self.find(ids)
        if (result < 0).any():
            unknown = ids[np.flatnonzero(result < 0)[0]]
            raise DataError(
                f"ids: person {unknown.item()!r} has no account ({int((result < 0).sum())} such of "
                f"{ids.size}); enroll them first"
            )
        return result

    def _keys(self, ids: Ids) -> Keys:
        if ids.dtype.kind == "i":
            return (ids,)
        from pandas.util import hash_array

        texts, secret = ids.astype(object), compute_digest(self._salt, b"directory").hex()
        return tuple(
            hash_array(texts, hash_key=secret[16 * k : 16 * k + 16], categorize=False)
            for k in range(2)
        )
