"""Sorted keys and places of people: of few in memory, of many in a file that has no name.

A file is read and written a part at a time, so that memory does not follow the people.
"""

from __future__ import annotations

import os
import tempfile
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from apiece._types import Integers
from apiece.errors import StateError

Keys = tuple[npt.NDArray[Any], ...]  # by which ids are ordered, and for text what tells them apart

HELD: Final = 2**20  # people whose keys are held in memory: 12 to 20 MB
PIECE: Final = 2**18  # people in one part of a file, but for those of one key, who stay together


@dataclass(frozen=True, slots=True, repr=False)
class Part:
    """Some people, in the order of their keys."""

    keys: Keys
    places: npt.NDArray[Any]

    @property
    def size(self) -> int:
        """How many they are."""
        return int(self.places.size)

    def split(self, at: int) -> tuple[Part, Part]:
        """Return the first `at` people, and the others."""
        low, high = (tuple(k[s] for k in self.keys) for s in (slice(at), slice(at, None)))
        return Part(low, self.places[:at]), Part(high, self.places[at:])

    def merged(self, other: Part) -> Part:
        """Return the people of both."""
        if not other.size:
            return self
        if not self.size:
            return other
        at = np.searchsorted(self.keys[0], other.keys[0])
        keys = tuple(np.insert(a, at, b) for a, b in zip(self.keys, other.keys, strict=True))
        # later places may need wider numbers
        wide = np.result_type(self.places, other.places)
        return Part(keys, np.insert(self.places.astype(wide), at, other.places))

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


class Run:
    """Parts whose keys lie one after another's; nobody's key is in two."""

    def __init__(self, parts: Sequence[Part], firsts: npt.NDArray[Any], size: int) -> None:
        self._parts, self._firsts, self.size = parts, firsts, size

    @classmethod
    def of(cls, part: Part) -> Run:
        """Hold one part, which is not empty, in memory."""
        return cls([part], part.keys[0][:1], part.size)

    def merged(self, other: Run) -> Run:
        """Return the people of both; in memory while they are few.

        Raises `StateError` where there is no room for a file.
        """
        if self.size + other.size <= HELD:  # then either is one part
            return Run.of(self._parts[0].merged(other._parts[0]))
        parts, firsts = _Filed(), list[npt.NDArray[Any]]()
        for part in _zipped(iter(self._parts), iter(other._parts)):
            for piece in _pieces(part):
                parts.add(piece)
                firsts.append(piece.keys[0][:1].copy())  # a view would hold the piece
        return Run(parts, np.concatenate(firsts), self.size + other.size)

    def find(self, keys: Keys) -> Integers:
        """Return the place of each key, or −1; `keys` are sorted by the first of them."""
        found = np.full(keys[0].size, -1, dtype=np.int64)
        ends = [*np.searchsorted(keys[0], self._firsts[1:]).tolist(), keys[0].size]
        for number, (start, end) in enumerate(zip([0, *ends[:-1]], ends, strict=True)):
            if start < end:
                asked = tuple(each[start:end] for each in keys)
                found[start:end] = self._parts[number].find(asked)
        return found


def _zipped(left: Iterator[Part], right: Iterator[Part]) -> Iterator[Part]:
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


def _pieces(part: Part) -> Iterator[Part]:
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


class _Filed(Sequence[Part]):
    """Parts in a file that no folder names, which ends with the process.

    It is read by place, so that threads and forked processes do not move each other.
    """

    def __init__(self) -> None:
        with _naming_room():
            file = tempfile.TemporaryFile(prefix="apiece-")  # noqa: SIM115
        self._file, self._at = file, list[tuple[int, list[tuple[np.dtype[Any], int]]]]()
        self._end = 0
        weakref.finalize(self, file.close)

    def add(self, part: Part) -> None:
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
        found = []
        for dtype, size in columns:
            found.append(np.frombuffer(_read(self._file.fileno(), start, size), dtype))
            start += size
        return Part(tuple(found[:-1]), found[-1])


def _read(file: int, start: int, size: int) -> bytes:
    found = os.pread(file, size, start)
    while len(found) < size:
        more = os.pread(file, size - len(found), start + len(found))
        if not more:
            raise StateError("ledger: its people's temporary file was cut short; open it anew")
        found += more
    return found


@contextmanager
def _naming_room() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise StateError(
            f"ledger: no room to sort its people in {tempfile.gettempdir()} ({error.strerror}); "
            "let TMPDIR name a folder with 40 bytes a person"
        ) from None
