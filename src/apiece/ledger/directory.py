"""A directory from a person's id to their place; people are only ever added, so it can be kept.

It keeps sorted keys and places: 12 bytes a person for whole numbers, 20 for text, in memory while
they are few, else in temporary files (`runs`). Of text, two keyed hashes of 64 bits stand for each
id: that two people of a ledger share both is less likely than 10⁻²⁰ for 10⁹ people, and nobody
without the ledger's salt can look for such a pair.

People are kept in sorted runs, the oldest first. A new run is merged with the one before it unless
that is at least twice as large: so there are at most log₂(people) runs, and a person is moved about
as often.

The database keeps no index of ids. One of SQLite's own (a table WITHOUT ROWID of 16-byte digests,
filled in sorted batches and searched by a join) takes several times as long to fill and to search
for many people at once, and more than twice the room. It would also be one more thing in the file
that could be changed, and would have to be checked against the history.
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
from apiece.ledger.accounts import yield_ids
from apiece.ledger.codec import BLOCK, REMEDY, compute_digest, find_kind

# One column, or two for text: ids are ordered by the first, and told apart by both.
Keys = tuple[npt.NDArray[Any], ...]

# People whose keys are held in memory: 12 to 20 MB.
HELD: Final = 2**20
# People in one part of a file, but for those of one key, who stay together.
PIECE: Final = 2**18
# Blocks that are sorted at a time: a million people.
SPAN: Final = 256


def _select(keys: Keys, part: slice | npt.NDArray[Any]) -> Keys:
    """Return some rows of the columns of keys."""
    return tuple(column[part] for column in keys)


@dataclass(frozen=True, slots=True, repr=False)
class SortedPart:
    """Some people, in the order of their keys."""

    keys: Keys
    places: npt.NDArray[Any]

    @property
    def size(self) -> int:
        """Return the number of people."""
        return int(self.places.size)

    def split(self, count: int) -> tuple[SortedPart, SortedPart]:
        """Return the first `count` people, and the others."""
        low = SortedPart(_select(self.keys, slice(count)), self.places[:count])
        high = SortedPart(_select(self.keys, slice(count, None)), self.places[count:])
        return low, high

    def merge(self, other: SortedPart) -> SortedPart:
        """Return the people of both."""
        # Where each key of the other goes among these; `np.insert` moves every column alike.
        positions = np.searchsorted(self.keys[0], other.keys[0])
        keys = tuple(
            np.insert(column, positions, other_column)
            for column, other_column in zip(self.keys, other.keys, strict=True)
        )
        # Later places may need wider numbers.
        dtype = np.result_type(self.places, other.places)
        places = np.insert(self.places.astype(dtype), positions, other.places)
        return SortedPart(keys, places)

    def find(self, keys: Keys) -> Integers:
        """Return the place of each key, or −1."""
        ordering_key = self.keys[0]
        wanted_key = keys[0]
        places = np.full(wanted_key.size, -1, dtype=np.int64)
        # Where each key is looked for, and the keys that are still looked for.
        positions = np.searchsorted(ordering_key, wanted_key)
        open_rows = np.arange(wanted_key.size)
        # One round, but for texts whose first hash several people share: these stand side by side.
        while open_rows.size:
            open_rows = open_rows[positions[open_rows] < self.places.size]
            open_rows = open_rows[ordering_key[positions[open_rows]] == wanted_key[open_rows]]
            matches = np.ones(open_rows.size, dtype=bool)
            for column, wanted in zip(self.keys[1:], keys[1:], strict=True):
                matches &= column[positions[open_rows]] == wanted[open_rows]
            found_rows = open_rows[matches]
            places[found_rows] = self.places[positions[found_rows]]
            open_rows = open_rows[~matches]
            positions[open_rows] += 1
        return places


class SortedRun:
    """Parts whose keys lie one after another's; nobody's key is in two."""

    def __init__(
        self, parts: Sequence[SortedPart], first_keys: npt.NDArray[Any], size: int
    ) -> None:
        self._parts = parts
        # The lowest key of each part.
        self._first_keys = first_keys
        self.size = size

    @classmethod
    def of(cls, part: SortedPart) -> SortedRun:
        """Hold one part, which is not empty, in memory."""
        return cls([part], part.keys[0][:1], part.size)

    def merge(self, other: SortedRun) -> SortedRun:
        """Return the people of both; in memory while they are few."""
        size = self.size + other.size
        if size <= HELD:
            # Runs of so few people are one part each.
            return SortedRun.of(self._parts[0].merge(other._parts[0]))
        # Neither run need fit into memory: both are read, merged and written part by part.
        parts = _FileParts()
        first_keys: list[npt.NDArray[Any]] = []
        for part in _merge_parts(iter(self._parts), iter(other._parts)):
            for piece in _split_pieces(part):
                parts.add(piece)
                # A copy: a view would hold the piece.
                first_keys.append(piece.keys[0][:1].copy())
        return SortedRun(parts, np.concatenate(first_keys), size)

    def find(self, keys: Keys) -> Integers:
        """Return the place of each key, or −1; `keys` are sorted by the first of them."""
        size = keys[0].size
        places = np.full(size, -1, dtype=np.int64)
        # The keys from starts[i] to ends[i] can be in part i alone.
        cuts = np.searchsorted(keys[0], self._first_keys[1:]).tolist()
        starts = [0, *cuts]
        ends = [*cuts, size]
        for number, (start, end) in enumerate(zip(starts, ends, strict=True)):
            if start < end:
                wanted = _select(keys, slice(start, end))
                places[start:end] = self._parts[number].find(wanted)
        return places


def _merge_parts(left: Iterator[SortedPart], right: Iterator[SortedPart]) -> Iterator[SortedPart]:
    """Yield the people of both in the order of their keys; a part of each is in memory."""
    left_part = next(left, None)
    right_part = next(right, None)
    while left_part is not None and right_part is not None:
        # Up to the lower of the two ends both parts are complete: what follows comes later.
        left_keys = left_part.keys[0]
        right_keys = right_part.keys[0]
        end = min(left_keys[-1], right_keys[-1])
        left_count = int(np.searchsorted(left_keys, end, side="right"))
        right_count = int(np.searchsorted(right_keys, end, side="right"))
        left_low, left_high = left_part.split(left_count)
        right_low, right_high = right_part.split(right_count)
        yield left_low.merge(right_low)
        left_part = left_high if left_high.size else next(left, None)
        right_part = right_high if right_high.size else next(right, None)
    if left_part is not None:
        yield left_part
        yield from left
    if right_part is not None:
        yield right_part
        yield from right


def _split_pieces(part: SortedPart) -> Iterator[SortedPart]:
    """Cut a part where its key changes."""
    while part.size > PIECE:
        keys = part.keys[0]
        key = keys[PIECE]
        # Before the key that the cut would divide, or behind it where nothing is before it.
        count = int(np.searchsorted(keys, key))
        if count == 0:
            count = int(np.searchsorted(keys, key, side="right"))
        piece, part = part.split(count)
        yield piece
    if part.size:
        yield part


class _FileParts(Sequence[SortedPart]):
    """Parts in a nameless file, read by place, so that threads and forks do not move each other."""

    def __init__(self) -> None:
        with _naming_room():
            file = tempfile.TemporaryFile(prefix="apiece-")  # noqa: SIM115
        self._file = file
        # Where each part starts, and the type and the bytes of its columns.
        self._layout: list[tuple[int, list[tuple[np.dtype[Any], int]]]] = []
        self._end = 0
        # The file goes with this object: arrays that were read from it are copies.
        weakref.finalize(self, file.close)

    def add(self, part: SortedPart) -> None:
        """Write a part behind the others."""
        columns = [*part.keys, part.places]
        sizes = [(column.dtype, column.nbytes) for column in columns]
        self._layout.append((self._end, sizes))
        with _naming_room():
            for column in columns:
                self._file.write(column.tobytes())
                self._end += column.nbytes
            self._file.flush()

    def __len__(self) -> int:
        return len(self._layout)

    def __getitem__(self, number: Any) -> Any:
        start, columns = self._layout[number]
        arrays = []
        for dtype, size in columns:
            content = _read_bytes(self._file.fileno(), start, size)
            arrays.append(np.frombuffer(content, dtype))
            start += size
        *keys, places = arrays
        return SortedPart(tuple(keys), places)


def _read_bytes(file: int, start: int, size: int) -> bytes:
    content = os.pread(file, size, start)
    while len(content) < size:
        chunk = os.pread(file, size - len(content), start + len(content))
        if not chunk:
            raise StateError("ledger: its people's temporary file was cut short; open it anew")
        content += chunk
    return content


@contextmanager
def _naming_room() -> Iterator[None]:
    """Turn a failure to write a temporary file into a `StateError` that says where and how much."""
    try:
        yield
    except OSError as error:
        raise StateError(
            f"ledger: no room to sort its people in {tempfile.gettempdir()} ({error.strerror}); "
            "let TMPDIR name a folder with 40 bytes a person"
        ) from None


class Directory:
    """The places of all people, in the order of enrolment."""

    def __init__(self, salt: bytes) -> None:
        self.people = 0
        # The kind of all ids, "integer" or "text"; None while there are none.
        self.kind: str | None = None
        self._salt = salt
        # The older a run, the larger it is.
        self._runs: list[SortedRun] = []

    def refresh(self, connection: sa.Connection, people: int) -> None:
        """Read the people enrolled since the last refresh."""
        if people == self.people:
            return
        # Everything is built beside and put in place at the end, so that a failure leaves the
        # directory as it is.
        runs = list(self._runs)
        kind = self.kind
        people_read = self.people
        blocks = yield_ids(connection, self._salt, self.people // BLOCK)
        # People of the first block who are in the directory already.
        known = self.people % BLOCK
        while span := list(islice(blocks, SPAN)):
            span[0] = span[0][known:]
            known = 0
            kind = find_kind(span[-1])
            part = self._sort(span, people_read)
            if part.size:
                runs.append(SortedRun.of(part))
                people_read += part.size
            while len(runs) > 1 and runs[-2].size < 2 * runs[-1].size:
                newest = runs.pop()
                runs[-1] = runs[-1].merge(newest)
        if people_read != people:
            raise StateError(
                f"ledger: {people_read} people where its history has {people}; {REMEDY}"
            )
        self.people = people
        self.kind = kind
        self._runs = runs

    def _sort(self, blocks: Sequence[Ids], first_place: int) -> SortedPart:
        """Return the people of some blocks, of whom the first has `first_place`."""
        columns = zip(*(self._keys(ids) for ids in blocks), strict=True)
        keys = tuple(np.concatenate(column) for column in columns)
        order = np.argsort(keys[0], kind="stable")
        # Four bytes a place, or more where there are too many people for that.
        widest = np.min_scalar_type(first_place + order.size)
        places = (first_place + order).astype(np.result_type(np.uint32, widest))
        return SortedPart(_select(keys, order), places)

    def find(self, ids: Ids) -> Integers:
        """Return each id's place, or −1. Raises `DataError` for the wrong kind or an id twice."""
        if not ids.size:
            return np.zeros(0, dtype=np.int64)
        kind = find_kind(ids)
        if self.kind is not None and self.kind != kind:
            raise DataError(f"ids: {kind} ids, but this ledger's are {self.kind}; convert them")
        keys = self._keys(ids)
        # Sorted: neighbours are found faster.
        order = np.lexsort(keys[::-1])
        keys = _select(keys, order)
        # Sorted by all columns: equal keys are neighbours.
        repeats = np.logical_and.reduce([column[1:] == column[:-1] for column in keys])
        if repeats.any():
            person = ids[order[int(np.argmax(repeats))]].item()
            raise DataError(f"ids: {person!r} occurs more than once; give each person one entry")
        places = np.full(ids.size, -1, dtype=np.int64)
        for run in self._runs:
            # Nobody is in two runs.
            places[order] = np.maximum(places[order], run.find(keys))
        return places

    def require_places(self, ids: Ids) -> Integers:
        """Return each id's place. Raises `DataError` for an unknown person."""
        places = self.find(ids)
        unknown = np.flatnonzero(places < 0)
        if unknown.size:
            person = ids[unknown[0]].item()
            raise DataError(
                f"ids: person {person!r} has no account ({unknown.size} such of "
                f"{ids.size}); enroll them first"
            )
        return places

    def _keys(self, ids: Ids) -> Keys:
        """Return the keys of ids: whole numbers themselves, or two keyed hashes of 64 bits."""
        if ids.dtype.kind == "i":
            return (ids,)
        from pandas.util import hash_array

        texts = ids.astype(object)
        # A secret of its own, so that nothing is told about the salt's other uses.
        secret = compute_digest(self._salt, b"directory").hex()
        # pandas' hash takes a key of 16 characters.
        first = hash_array(texts, hash_key=secret[:16], categorize=False)
        second = hash_array(texts, hash_key=secret[16:32], categorize=False)
        return first, second
