"""Records by position: one way to read tensors, TensorDatasets and map-style datasets."""

from __future__ import annotations

import hashlib
import os
import random
import tarfile
import warnings
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence, Sized
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    TensorDataset,
    default_collate,
)

from apiece._types import AnyArray, Integers
from apiece.errors import DataError, StewardWarning
from apiece.training.clipping import records
from apiece.training.clipping.ambient import model_randomness, streams_kept
from apiece.training.clipping.guards import read_tree
from apiece.training.identity import bytes_of

Indices = npt.NDArray[np.int64]
Together = tuple[Indices, object, object]  # places in an index, and inputs and targets there
PROBES = 4096  # items of a map-style dataset that a fingerprint reads; all, if there are no more
_TOGETHER = 64  # of them in memory at a time
_HALVES = ("inputs", "targets")
_POISSON = ("UniformWithReplacementSampler", "DistributedUniformWithReplacementSampler")  # Opacus'


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Tensors:
    """Inputs and targets held in memory."""

    inputs: object
    targets: object
    size: int

    def __len__(self) -> int:
        return self.size

    def fetch(self, index: Indices, device: torch.device) -> tuple[object, object]:
        """Return copies of the rows at `index`, on `device`."""
        rows = torch.from_numpy(index)

        def take(tensor: torch.Tensor) -> torch.Tensor:
            return tensor.index_select(0, rows.to(tensor.device)).to(device)

        return records.tree_map(take, self.inputs), records.tree_map(take, self.targets)

    def alike(self, index: Indices, device: torch.device) -> Iterator[Together]:
        """Yield all of them at once."""
        yield np.arange(index.size), *self.fetch(index, device)

    def fingerprint(self, key: bytes) -> str:
        """Hash every byte."""
        digest = hashlib.blake2b(key=key, digest_size=16)
        for tensor in records.leaves((self.inputs, self.targets)):
            digest.update(f"{tuple(tensor.shape)} {tensor.dtype}".encode())
            digest.update(bytes_of(tensor))
        return digest.hexdigest()


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Items:
    """A map-style dataset whose items are (inputs, target), or dicts with labels.

    collate: makes records of items. A function that pads a batch to its longest item would have one
    record's inputs depend on who else is there. So it is given one item at a time, and records of
    the same shapes go together. None for torch's own, which is given records of one form.
    """

    dataset: Dataset[object]
    size: int
    collate: Callable[[list[object]], object] | None = None

    def __len__(self) -> int:
        return self.size

    def fetch(self, index: Indices, device: torch.device) -> tuple[object, object]:
        """Return the records at `index`, where they are of the same shapes."""
        (_, inputs, targets), *others = self.alike(index, device)
        if others:
            raise DataError(
                f"dataset: records of {1 + len(others)} shapes where they must be of one (a "
                "person's rows are clipped together); pad all to one length in the dataset"
            )
        return inputs, targets

    def alike(self, index: Indices, device: torch.device) -> Iterator[Together]:
        """Yield records of the same shapes: their places in `index`, inputs and targets."""
        if self.collate is None:
            yield from self._alike_by_default(index, device)
            return
        made = [
            tuple(
                read_tree(f"dataset: {name}", part)
                for name, part in zip(_HALVES, _on(device, self.collate([item])), strict=True)
            )
            for item in self._read(index)
        ]
        groups: dict[object, list[int]] = {}
        for place, (inputs, targets) in enumerate(made):
            if (count := records.count(inputs, targets)) != 1:
                raise DataError(
                    f"dataset: collate_fn made {count} records of one item; a share is bounded "
                    "only where each item is one record"
                )
            shapes = tuple((t.shape, t.dtype) for t in records.leaves((inputs, targets)))
            # Values beside the tensors are this record's own: one of another must not stand for it.
            form = records.outline((inputs, targets))
            groups.setdefault((shapes, form), []).append(place)
        for places in groups.values():
            stacks = zip(*(records.leaves(made[k]) for k in places), strict=True)
            inputs, targets = records.fill(made[places[0]], [torch.cat(s) for s in stacks])
            yield np.array(places), inputs, targets

    def _alike_by_default(self, index: Indices, device: torch.device) -> Iterator[Together]:
        """Yield the same as torch's own collate makes them, records of one form at a time.

        Given records of two types together it would read one of them as the other's.
        """
        items = self._read(index)
        groups: dict[object, list[int]] = {}
        for place, item in enumerate(items):
            groups.setdefault(_form_of(item), []).append(place)
        for places in groups.values():
            inputs, targets = _on(device, default_collate([items[k] for k in places]))
            yield np.array(places, dtype=np.int64), inputs, targets
        if not items:  # as torch has it
            yield np.arange(0), *_on(device, default_collate(items))

    def fingerprint(self, key: bytes) -> str:
        """Hash the dataset's own `fingerprint()` if it has one, else its length and its items.

        Of more than `PROBES` items, so many are read, at places drawn by the run's secret key: a
        share s of changed items goes unnoticed with probability (1 − s)^4096 at most. Torch's
        generator is set while they are read, so that random transforms give the same each time.
        """
        digest = hashlib.blake2b(str(self.size).encode(), key=key, digest_size=16)
        own = getattr(self.dataset, "fingerprint", None)
        if callable(own):
            digest.update(str(own()).encode())
            return digest.hexdigest()
        seed = int.from_bytes(hashlib.blake2b(b"probes", key=key, digest_size=8).digest(), "little")
        probes = np.arange(self.size)
        if self.size > PROBES:
            probes = np.sort(np.random.default_rng(seed).choice(self.size, PROBES, replace=False))
        with model_randomness(seed, ()):
            for part in np.array_split(probes, -(-probes.size // _TOGETHER)):
                for _, inputs, targets in self.alike(part, torch.device("cpu")):
                    digest.update(Tensors(inputs, targets, part.size).fingerprint(key).encode())
        return digest.hexdigest()

    def _read(self, index: Indices) -> list[object]:
        """Return the items at `index`, read together where the dataset can."""
        positions = index.tolist()
        many = getattr(self.dataset, "__getitems__", None)
        return list(many(positions)) if many else [self.dataset[i] for i in positions]


Source: TypeAlias = Tensors | Items  # inputs and targets of records, by position


def look_at_items(source: Source) -> None:
    """Warn where a dataset's first item is another one when it is read again, with the last one.

    A share is bounded only where an item is made of its own record. Python's, NumPy's and torch's
    streams begin alike for each reading, and are left as they were; so a transform may draw.
    """
    if isinstance(source, Tensors) or len(source) < 2:
        return
    try:
        alone, beside = (_first_of(source, index) for index in ([0], [0, len(source) - 1]))
    except (DataError, RuntimeError):  # items that do not fit together; a step says so
        return
    if len(alone) != len(beside) or not all(map(torch.equal, alone, beside)):
        warnings.warn(
            "dataset: its first item is another one when it is read again beside the last; a "
            "share is bounded only where an item is made of its own record: let it depend on "
            "neither other items nor earlier readings",
            StewardWarning,
            stacklevel=3,
        )


def _first_of(source: Source, index: list[int]) -> list[torch.Tensor]:
    """Return the tensors of the first record of `index`, read by streams that begin anew."""
    with streams_kept():
        random.seed(0)
        np.random.seed(0)  # noqa: NPY002
        torch.default_generator.manual_seed(0)
        groups = list(source.alike(np.array(index), torch.device("cpu")))
    places, *trees = next(group for group in groups if 0 in group[0])
    return [tensor[places.tolist().index(0)] for tensor in records.leaves(trees)]


def _form_of(item: object) -> object:
    """Return what records that are collated together have in common: shapes, types and names.

    Raises `DataError` for a value that torch's own collate makes no tensor of.
    """
    if isinstance(item, torch.Tensor):
        return item.shape, item.dtype
    if isinstance(item, np.ndarray) and item.dtype.kind in "biufc":
        return item.shape, item.dtype.str
    if isinstance(item, Mapping):
        return type(item), tuple((name, _form_of(part)) for name, part in item.items())
    if isinstance(item, list | tuple):
        return type(item), tuple(map(_form_of, item))
    if isinstance(item, bool | int | float | complex | str | bytes | np.number | np.bool_):
        return type(item)
    kind = f"numpy.ndarray of {item.dtype}" if isinstance(item, np.ndarray) else type(item).__name__
    raise DataError(
        f"dataset: an item holds a {kind}, of which no tensor is made; give tensors, arrays of "
        "numbers or numbers (0 where there is no target), or a DataLoader with a collate_fn"
    )


def _on(device: torch.device, batch: object) -> tuple[object, object]:
    """Return inputs and targets of a collated batch, on `device`."""
    inputs, targets = (records.tree_map(lambda t: t.to(device), part) for part in _halves(batch))
    return inputs, targets


def _halves(batch: object) -> tuple[object, object]:
    """Return inputs and targets of a batch: a pair, or a mapping with labels."""
    if isinstance(batch, list | tuple) and len(batch) == 2:
        return batch[0], batch[1]
    if isinstance(batch, Mapping):
        for name in ("labels", "label"):
            if name in batch:
                return {key: value for key, value in batch.items() if key != name}, batch[name]
    raise DataError("dataset: its items must be pairs (inputs, target) or dicts with 'labels'")


def source_of(dataset: object) -> Source:
    """Return `dataset` as a source: (inputs, targets), a TensorDataset, a Dataset or a DataLoader.

    A mapping of tensors with "labels" stands for a pair. Of a DataLoader its dataset and
    `collate_fn` are taken; who is in a batch is the plan's to say.

    Raises `DataError` for anything whose records cannot be read by position, and for a DataLoader
    that draws some records oftener than others, or leaves some out.
    """
    if isinstance(dataset, DataLoader):
        _check_even(dataset)
        of, collate = source_of(dataset.dataset), dataset.collate_fn
        collate = getattr(collate, "wrapped_collator_fn", collate)  # Opacus' own around it
        if collate is default_collate:
            return of
        return Items(dataset.dataset, len(of), collate)
    if isinstance(dataset, Mapping) and "labels" in dataset:
        dataset = _halves(dataset)
    if isinstance(dataset, TensorDataset):
        *inputs, targets = dataset.tensors
        return source_of((inputs[0] if len(inputs) == 1 else tuple(inputs), targets))
    if isinstance(dataset, tuple) and len(dataset) == 2:
        inputs, targets = map(read_tree, _HALVES, dataset)
        return Tensors(inputs, targets, records.count(inputs, targets))
    reads = hasattr(dataset, "__getitem__") or hasattr(dataset, "__getitems__")
    if isinstance(dataset, Sized) and reads and not isinstance(dataset, IterableDataset | dict):
        return Items(dataset, len(dataset))  # type: ignore[arg-type]
    raise DataError(
        f"dataset: a {type(dataset).__name__}; Poisson sampling reads records by position: give "
        "(inputs, targets), a TensorDataset, or a map-style Dataset with a length"
    )


def _check_even(loader: DataLoader[Any]) -> None:
    """Raise `DataError` unless each record has its turn."""
    batches = loader.batch_sampler
    sampler: Any = batches.sampler if isinstance(batches, BatchSampler) else batches
    even = type(sampler).__name__ in _POISSON
    if type(sampler) in (RandomSampler, SequentialSampler):
        even = len(sampler) == len(sampler.data_source) == len(loader.dataset)  # type: ignore[arg-type]
        even &= not getattr(sampler, "replacement", False)
    if not even:
        raise DataError(
            f"dataset: its loader draws by a {type(sampler).__name__}, but the plan says how often "
            "each record takes part; give a loader with shuffle=True and no sampler, and a smaller "
            "dataset for fewer records"
        )


def _files_of(folder: str | os.PathLike[str], pattern: str) -> list[Path]:
    """Return the files of a folder, by name; raise `DataError` for none."""
    files = sorted(Path(folder).glob(pattern))
    if not files:
        raise DataError(f"{folder}: no {pattern} files in it")
    return files


class ParquetShards:
    """The rows of a folder's Parquet files, in the order of the files' names, read when drawn.

    Each item is (inputs, target): the numbers of the input columns as float32, and the target as
    int64 where its column holds whole numbers and as float32 elsewhere. A row with a missing cell
    has NaN as inputs, so that training leaves it out; no other row is read differently for it.

    Args:
        folder: With files named *.parquet that have the same columns.
        inputs: Names of columns of numbers.
        target: Name of the column of the target.

    Raises:
        DataError: For a folder without such files, and files that lack a column or store it
            otherwise.

    Example:
        >>> import tempfile, pandas as pd
        >>> from apiece.training import ParquetShards
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
        self.files = _files_of(folder, "*.parquet")
        sizes: list[int] = []
        self._groups: list[tuple[int, int]] = []
        self._footers: dict[Path, object] = {}  # so that each is read once
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
        items: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
        owner = np.searchsorted(self._starts, wanted, side="right") - 1
        for group in np.unique(owner):
            places = np.flatnonzero(owner == group)
            inputs, targets = self._read(int(group), wanted[places] - self._starts[group])
            pairs = zip(inputs, targets, strict=True)
            items |= zip(places.tolist(), pairs, strict=True)
        return [items[place] for place in range(wanted.size)]

    def column(self, name: str) -> AnyArray:
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
        y: AnyArray = _floats(target)
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
        >>> import tarfile
        >>> import io, tempfile
        >>> from apiece.training import TarShards
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
        self, folder: str | os.PathLike[str], *, decode: Callable[[Mapping[str, bytes]], object]
    ) -> None:
        self.decode = decode
        self.files = _files_of(folder, "*.tar")
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

    def __getitem__(self, position: int) -> object:
        """Return the record at `position`, decoded."""
        if not 0 <= position < len(self):
            raise IndexError(f"position {position}: beyond the {len(self)} records")
        record = {}
        own = slice(self._starts[position], self._starts[position + 1])
        parts = (kept[own].tolist() for kept in self._parts)
        for number, ending, offset, size in zip(*parts, strict=True):
            with self.files[number].open("rb") as file:
                record[self._endings[ending]] = os.pread(file.fileno(), size, offset)
        return self.decode(record)


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
