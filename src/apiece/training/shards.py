"""Records in files larger than memory, read when they are drawn: Parquet files, and tar files.

Both are map-style datasets, so that `Trainer` draws positions at each record's own rate and only
then asks for the records. Of a tar file exactly the records drawn are read; of a Parquet file the
row groups that hold one, so write them with row groups of some hundred rows.
"""

from __future__ import annotations

import os
import tarfile
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from apiece._types import Integers
from apiece.errors import DataError


class ParquetShards:
    """The rows of a folder's Parquet files, in the order of the files' names, read when drawn.

    Each item is (inputs, target): the numbers of the input columns as float32, and the target as
    int64 where its column holds whole numbers and as float32 elsewhere. A row with a missing cell
    has NaN as inputs, so that training leaves it out and no other row is read otherwise for it.

    Args:
        folder: With files named *.parquet that have the same columns.
        inputs: Names of columns of numbers.
        target: Name of the column of the target.

    Raises:
        DataError: For a folder without such files, and files that lack a column or store it
            otherwise.

    Example:
        >>> import tempfile, pandas as pd
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     pd.DataFrame({"x": [1.0, 2.0], "y": [0, 1]}).to_parquet(f"{folder}/0.parquet")
        ...     shards = ParquetShards(folder, inputs=["x"], target="y")
        ...     len(shards), [tensor.tolist() for tensor in shards[1]]
        (2, [[2.0], 1])
    """

    def __init__(
        self, folder: str | os.PathLike[str], *, inputs: Sequence[str], target: str
    ) -> None:
        self.inputs, self.target = list(inputs), target
        self.files = sorted(Path(folder).glob("*.parquet"))
        if not self.files:
            raise DataError(f"{folder}: no *.parquet files in it")
        sizes: list[int] = []
        self._groups: list[tuple[int, int]] = []
        self._footers: dict[Path, Any] = {}  # so that each is read once
        for number, path in enumerate(self.files):
            file = self._open(path)
            self._footers[path] = file.metadata
            for k in range(file.num_row_groups):
                self._groups.append((number, k))
                sizes.append(file.metadata.row_group(k).num_rows)
        self._starts = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
        self.read = 0  # row groups, so far

    def __len__(self) -> int:
        return int(self._starts[-1])

    def __getitem__(self, position: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the record at `position`."""
        return self.__getitems__([position])[0]

    def __getitems__(self, positions: Sequence[int]) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """Return the records at `positions`, reading each row group that holds one, once."""
        wanted = np.asarray(positions, dtype=np.int64)
        if not ((wanted >= 0) & (wanted < len(self))).all():
            raise IndexError(f"positions: beyond the {len(self)} records")
        found: list[Any] = [None] * wanted.size
        owner = np.searchsorted(self._starts, wanted, side="right") - 1
        for group in np.unique(owner):
            places = np.flatnonzero(owner == group)
            inputs, targets = self._read(int(group), wanted[places] - self._starts[group])
            for place, x, y in zip(places.tolist(), inputs, targets, strict=True):
                found[place] = (x, y)
        return found

    def column(self, name: str) -> npt.NDArray[Any]:
        """Return one column of all records, for `Trainer(people=…)`; it must fit in memory.

        Args:
            name: Of a column, such as that of the persons' ids.
        """
        import pyarrow as pa

        parts = [self._open(path, name).read(columns=[name]).column(name) for path in self.files]
        return np.asarray(pa.chunked_array([c for p in parts for c in p.chunks]).to_numpy())

    def _read(self, group: int, rows: Integers) -> tuple[torch.Tensor, torch.Tensor]:
        import pyarrow as pa

        number, k = self._groups[group]
        columns = list(dict.fromkeys([*self.inputs, self.target]))
        table = self._open(self.files[number]).read_row_group(k, columns=columns)
        self.read += 1
        table = table.take(pa.array(rows))
        x = np.stack([_floats(table.column(name)) for name in self.inputs], axis=1)
        target = table.column(self.target)
        y: npt.NDArray[Any] = _floats(target)
        x[~np.isfinite(y)] = np.nan
        if pa.types.is_integer(target.type):
            y = target.fill_null(0).to_numpy().astype(np.int64)
        return torch.from_numpy(x), torch.from_numpy(np.ascontiguousarray(y))

    def _open(self, path: Path, *also: str) -> Any:
        import pyarrow as pa
        import pyarrow.parquet as pq

        try:
            file = pq.ParquetFile(path, metadata=self._footers.get(path))
        except (OSError, ValueError) as error:
            reason = " ".join(str(error).split())[:160]
            raise DataError(f"{path}: cannot be read ({reason})") from None
        schema = file.schema_arrow
        for name in (*self.inputs, self.target, *also):
            if schema.names.count(name) != 1:
                raise DataError(f"{path}: no column {name!r}; it has {', '.join(schema.names)}")
        for name in (*self.inputs, self.target):
            kind = schema.field(name).type
            if not (pa.types.is_integer(kind) or pa.types.is_floating(kind)):
                raise DataError(f"{path}: column {name!r} is stored as {kind}, not as numbers")
        return file


def _floats(column: Any) -> npt.NDArray[np.float32]:
    import pyarrow as pa

    values = column.cast(pa.float64(), safe=False).to_numpy()  # NaN where missing
    return np.asarray(values, dtype=np.float32)


class TarShards:
    """The records of a folder's tar files, as WebDataset writes them, read when drawn.

    A record is the files that follow one another under one name and differ in what comes after its
    first dot. The headers are read once; of a record that is drawn, its bytes and nothing else.

    Args:
        folder: With files named *.tar, not compressed.
        decode: Makes (inputs, target) of a record: ending → bytes.

    Raises:
        DataError: For a folder without such files, one that is no plain tar file, and a name that
            comes back.

    Example:
        >>> import io, tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     with tarfile.open(f"{folder}/0.tar", "w") as tar:
        ...         for name, data in {"a.x": b"12", "a.cls": b"1", "b.x": b"3"}.items():
        ...             member = tarfile.TarInfo(name)
        ...             member.size = len(data)
        ...             tar.addfile(member, io.BytesIO(data))
        ...     shards = TarShards(folder, decode=lambda parts: parts)
        ...     shards.names.tolist(), shards[0]
        (['a', 'b'], {'x': b'12', 'cls': b'1'})
    """

    def __init__(
        self, folder: str | os.PathLike[str], *, decode: Callable[[Mapping[str, bytes]], Any]
    ) -> None:
        self.decode = decode
        self.files = sorted(Path(folder).glob("*.tar"))
        if not self.files:
            raise DataError(f"{folder}: no *.tar files in it")
        names: list[str] = []
        endings: dict[str, int] = {}
        # Of each part its file, ending, place and size; of each record its first part.
        held = [array(kind) for kind in "iiqqq"]
        for number, path in enumerate(self.files):
            before = None
            for name, ending, offset, size in _members(path):
                if name != before:
                    names.append(name)
                    held[4].append(len(held[0]))
                before = name
                known = endings.setdefault(ending, len(endings))
                for kept, value in zip(held, (number, known, offset, size), strict=False):
                    kept.append(value)
        self._endings = list(endings)
        self._parts = [np.asarray(kept) for kept in held[:4]]
        self._starts = np.append(np.asarray(held[4]), self._parts[0].size)
        self.names = np.array(names, dtype=str)
        if np.unique(self.names).size < self.names.size:
            raise DataError(f"{folder}: two records have one name; write a record's files together")

    def __len__(self) -> int:
        return self._starts.size - 1

    def __getitem__(self, position: int) -> Any:
        """Return the record at `position`, decoded."""
        if not 0 <= position < len(self):
            raise IndexError(f"position {position}: beyond the {len(self)} records")
        found = {}
        own = slice(self._starts[position], self._starts[position + 1])
        parts = (kept[own].tolist() for kept in self._parts)
        for number, ending, offset, size in zip(*parts, strict=True):
            with self.files[number].open("rb") as file:
                found[self._endings[ending]] = os.pread(file.fileno(), size, offset)
        return self.decode(found)


def _members(path: Path) -> Iterator[tuple[str, str, int, int]]:
    """Yield name, ending, offset and size of each file in a tar file."""
    try:
        with tarfile.open(path, "r:") as tar:
            while (member := tar.next()) is not None:
                tar.members.clear()  # type: ignore[attr-defined]  # it would keep them all
                if member.isreg():
                    name, _, ending = member.name.partition(".")
                    yield name, ending, member.offset_data, member.size
    except (OSError, tarfile.TarError) as error:
        raise DataError(f"{path}: not a plain tar file ({type(error).__name__})") from None
