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

from apiece._lazy import require
from apiece._types import AnyArray, Integers
from apiece.errors import DataError, StewardWarning
from apiece.training.clipping import records
from apiece.training.clipping.ambient import keep_streams, model_randomness
from apiece.training.clipping.guards import read_tree
from apiece.training.identity import bytes_of

Indices = npt.NDArray[np.int64]

# Records of the same shapes: their positions in an index, their inputs and their targets.
AlikeRecords = tuple[Indices, object, object]

# Items of a map-style dataset that a fingerprint reads; all, if there are no more.
PROBES = 4096

# Probes in memory at a time.
_PROBES_AT_A_TIME = 64

# How messages name the two halves of a record.
_HALVES = ("inputs", "targets")

# Opacus' samplers, in which each record has the same chance.
_POISSON_SAMPLERS = ("UniformWithReplacementSampler", "DistributedUniformWithReplacementSampler")


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
        # Selected on the device where the tensor is: only the batch is moved.
        rows = torch.from_numpy(index)

        def take(tensor: torch.Tensor) -> torch.Tensor:
            return tensor.index_select(0, rows.to(tensor.device)).to(device)

        return records.tree_map(take, self.inputs), records.tree_map(take, self.targets)

    def read_alike(self, index: Indices, device: torch.device) -> Iterator[AlikeRecords]:
        """Yield the records at `index` at once: rows of a tensor have one shape."""
        yield np.arange(index.size), *self.fetch(index, device)

    def fingerprint(self, key: bytes) -> str:
        """Hash every byte."""
        digest = hashlib.blake2b(key=key, digest_size=16)
        for tensor in records.leaves((self.inputs, self.targets)):
            shape = tuple(tensor.shape)
            # Shape and type go before the bytes, which alone could be of another tensor.
            digest.update(f"{shape} {tensor.dtype}".encode())
            digest.update(bytes_of(tensor))
        return digest.hexdigest()


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Items:
    """A map-style dataset whose items are (inputs, target), or dicts with labels.

    collate: makes records of items. A function that pads a batch to its longest item would make one
    record's inputs depend on who else is there. So it gets one item at a time, and records of the
    same shapes are joined. None for torch's own, which gets records of one form.
    """

    dataset: Dataset[object]
    size: int
    collate: Callable[[list[object]], object] | None = None

    def __len__(self) -> int:
        return self.size

    def fetch(self, index: Indices, device: torch.device) -> tuple[object, object]:
        """Return the records at `index`, where they are of the same shapes."""
        groups = list(self.read_alike(index, device))
        if len(groups) > 1:
            raise DataError(
                f"dataset: records of {len(groups)} shapes where they must be of one (a "
                "person's rows are clipped together); pad all to one length in the dataset"
            )
        _, inputs, targets = groups[0]
        return inputs, targets

    def read_alike(self, index: Indices, device: torch.device) -> Iterator[AlikeRecords]:
        """Yield records of the same shapes: their positions in `index`, inputs and targets."""
        if self.collate is None:
            yield from self._collate_by_default(index, device)
            return
        # Each item alone, so that a collate function cannot pad one record by another's length.
        pairs = [self._collate_alone(item, device) for item in self._read_items(index)]
        groups: dict[object, list[int]] = {}
        for position, pair in enumerate(pairs):
            shapes = tuple((tensor.shape, tensor.dtype) for tensor in records.leaves(pair))
            # Values beside the tensors are this record's own: one of another must not stand for it.
            form = records.outline(pair)
            groups.setdefault((shapes, form), []).append(position)
        # Tensors have one row each (checked in `_collate_alone`): joined along the first axis.
        for positions in groups.values():
            columns = zip(*(records.leaves(pairs[k]) for k in positions), strict=True)
            joined = [torch.cat(column) for column in columns]
            inputs, targets = records.fill(pairs[positions[0]], joined)
            yield np.array(positions), inputs, targets

    def _collate_alone(self, item: object, device: torch.device) -> tuple[object, ...]:
        """Return inputs and targets of one item, as `collate` makes them; an error unless one."""
        assert self.collate is not None
        halves = _move_halves(self.collate([item]), device)
        inputs, targets = (
            read_tree(f"dataset: {name}", half) for name, half in zip(_HALVES, halves, strict=True)
        )
        if (count := records.count(inputs, targets)) != 1:
            raise DataError(
                f"dataset: collate_fn made {count} records of one item; a share is bounded "
                "only where each item is one record"
            )
        return inputs, targets

    def _collate_by_default(self, index: Indices, device: torch.device) -> Iterator[AlikeRecords]:
        """Yield records as torch's own collate makes them, those of one form at a time.

        From records of two types together it would make one of them the other's type.
        """
        items = self._read_items(index)
        groups: dict[object, list[int]] = {}
        for position, item in enumerate(items):
            groups.setdefault(_describe_form(item), []).append(position)
        for positions in groups.values():
            collated = default_collate([items[k] for k in positions])
            inputs, targets = _move_halves(collated, device)
            yield np.array(positions, dtype=np.int64), inputs, targets
        if not items:
            # The error is torch's.
            yield np.arange(0), *_move_halves(default_collate(items), device)

    def fingerprint(self, key: bytes) -> str:
        """Hash the dataset's own `fingerprint()` if it has one, else its length and its items.

        Of more than `PROBES` items, so many are read, at positions drawn by the run's secret key: a
        share s of changed items goes unnoticed with probability (1 − s)^4096 at most. Torch's
        generator is set while they are read, so that random transforms give the same each time.
        """
        # Keyed by the run's secret: the digest stands in a file, and must not tell the data.
        digest = hashlib.blake2b(str(self.size).encode(), key=key, digest_size=16)
        fingerprint = getattr(self.dataset, "fingerprint", None)
        if callable(fingerprint):
            digest.update(str(fingerprint()).encode())
            return digest.hexdigest()
        # The probes are drawn by the key, too, so that nobody can know which items are not looked
        # at.
        seed = int.from_bytes(hashlib.blake2b(b"probes", key=key, digest_size=8).digest(), "little")
        probes = np.arange(self.size)
        if self.size > PROBES:
            generator = np.random.default_rng(seed)
            probes = np.sort(generator.choice(self.size, PROBES, replace=False))
        with model_randomness(seed, ()):
            # In parts of `_PROBES_AT_A_TIME`, rounded up, since a dataset may not fit in memory.
            for part in np.array_split(probes, -(-probes.size // _PROBES_AT_A_TIME)):
                for _, inputs, targets in self.read_alike(part, torch.device("cpu")):
                    tensors = Tensors(inputs, targets, part.size)
                    digest.update(tensors.fingerprint(key).encode())
        return digest.hexdigest()

    def _read_items(self, index: Indices) -> list[object]:
        """Return the items at `index`, in one call where the dataset has `__getitems__`."""
        positions = index.tolist()
        # `__getitems__` is torch's protocol for reading many items at once.
        read_many = getattr(self.dataset, "__getitems__", None)
        if read_many:
            return list(read_many(positions))
        return [self.dataset[position] for position in positions]


Source: TypeAlias = Tensors | Items  # inputs and targets of records, by position


def look_at_items(source: Source) -> None:
    """Warn where a dataset's first item is another one when it is read again, with the last one.

    A share is bounded only where an item is made of its own record. Python's, NumPy's and torch's
    streams are set to the same state for each reading, and put back; so a transform may draw.
    """
    if isinstance(source, Tensors) or len(source) < 2:
        return
    try:
        # Once alone and once beside another, under the same state of all streams: any difference is
        # no chance.
        alone = _read_first_record(source, [0])
        beside = _read_first_record(source, [0, len(source) - 1])
    except (DataError, RuntimeError):  # items that do not fit together are the first step's error
        return
    is_same = len(alone) == len(beside) and all(map(torch.equal, alone, beside))
    if not is_same:
        warnings.warn(
            "dataset: its first item is another one when it is read again beside the last; a "
            "share is bounded only where an item is made of its own record: let it depend on "
            "neither other items nor earlier readings",
            StewardWarning,
            stacklevel=3,
        )


def _read_first_record(source: Source, index: list[int]) -> list[torch.Tensor]:
    """Return the tensors of the first record of `index`, read with all streams set anew."""
    with keep_streams():
        random.seed(0)
        np.random.seed(0)  # noqa: NPY002
        torch.default_generator.manual_seed(0)
        groups = list(source.read_alike(np.array(index), torch.device("cpu")))
    # Among the groups that came out, the one that holds the first record.
    positions, *trees = next(group for group in groups if 0 in group[0])
    row = positions.tolist().index(0)
    return [tensor[row] for tensor in records.leaves(trees)]


def _describe_form(item: object) -> object:
    """Return shapes, types and names of a record, equal for all that are collated together.

    Raises `DataError` for a value that torch's own collate makes no tensor of.
    """
    if isinstance(item, torch.Tensor):
        return item.shape, item.dtype
    # Kinds of numbers that torch has tensors of: Booleans, whole, real and complex ones.
    if isinstance(item, np.ndarray) and item.dtype.kind in "biufc":
        return item.shape, item.dtype.str
    if isinstance(item, Mapping):
        return type(item), tuple((name, _describe_form(part)) for name, part in item.items())
    if isinstance(item, list | tuple):
        return type(item), tuple(map(_describe_form, item))
    if isinstance(item, bool | int | float | complex | str | bytes | np.number | np.bool_):
        return type(item)
    kind = type(item).__name__
    if isinstance(item, np.ndarray):
        kind = f"numpy.ndarray of {item.dtype}"
    raise DataError(
        f"dataset: an item holds a {kind}, of which no tensor is made; give tensors, arrays of "
        "numbers or numbers (0 where there is no target), or a DataLoader with a collate_fn"
    )


def _move_halves(batch: object, device: torch.device) -> tuple[object, object]:
    """Return inputs and targets of a collated batch, on `device`."""
    inputs, targets = _split_halves(batch)

    def move(tensor: torch.Tensor) -> torch.Tensor:
        return tensor.to(device)

    return records.tree_map(move, inputs), records.tree_map(move, targets)


def _split_halves(batch: object) -> tuple[object, object]:
    """Return inputs and targets of a batch: a pair, or a mapping with labels."""
    if isinstance(batch, list | tuple) and len(batch) == 2:
        return batch[0], batch[1]
    if isinstance(batch, Mapping):
        for name in ("labels", "label"):
            if name in batch:
                return {key: value for key, value in batch.items() if key != name}, batch[name]
    raise DataError("dataset: its items must be pairs (inputs, target) or dicts with 'labels'")


def source_of(dataset: object, *, order: object = None) -> Source:
    """Return `dataset` as a source: (inputs, targets), a TensorDataset, a Dataset or a DataLoader.

    A mapping of tensors with "labels" stands for a pair. Of a DataLoader its dataset and
    `collate_fn` are taken; the plan decides who is in a batch. order: where it is that loader, its
    order is checked elsewhere, batch by batch.

    Raises `DataError` for anything whose records cannot be read by position, and for a DataLoader
    that draws some records oftener than others, or leaves some out.
    """
    if isinstance(dataset, DataLoader):
        if dataset is not order:
            _check_even(dataset)
        # What the loader wraps is read by position; its sampler and batch size are not used.
        source = source_of(dataset.dataset)
        # Opacus wraps the user's function.
        collate = getattr(dataset.collate_fn, "wrapped_collator_fn", dataset.collate_fn)
        if collate is default_collate:
            return source
        return Items(dataset.dataset, len(source), collate)
    if isinstance(dataset, Mapping) and "labels" in dataset:
        dataset = _split_halves(dataset)
    if isinstance(dataset, TensorDataset):
        # The last tensor is the target, all others are inputs.
        *inputs, targets = dataset.tensors
        return source_of((inputs[0] if len(inputs) == 1 else tuple(inputs), targets))
    if isinstance(dataset, tuple) and len(dataset) == 2:
        inputs, targets = map(read_tree, _HALVES, dataset)
        return Tensors(inputs, targets, records.count(inputs, targets))
    is_indexed = hasattr(dataset, "__getitem__") or hasattr(dataset, "__getitems__")
    is_map_style = is_indexed and not isinstance(dataset, IterableDataset | dict)
    if isinstance(dataset, Sized) and is_map_style:
        return Items(dataset, len(dataset))  # type: ignore[arg-type]
    raise DataError(
        f"dataset: a {type(dataset).__name__}; Poisson sampling reads records by position: give "
        "(inputs, targets), a TensorDataset, or a map-style Dataset with a length"
    )


def _check_even(loader: DataLoader[Any]) -> None:
    """Raise `DataError` unless the loader draws all records alike."""
    batches = loader.batch_sampler
    sampler: Any = batches.sampler if isinstance(batches, BatchSampler) else batches
    # Shuffled or in order, each record once a pass, is as even as equal chances.
    is_even = type(sampler).__name__ in _POISSON_SAMPLERS
    if type(sampler) in (RandomSampler, SequentialSampler):
        # A sampler of fewer draws than records would leave some out of each pass.
        is_even = len(sampler) == len(sampler.data_source) == len(loader.dataset)  # type: ignore[arg-type]
        is_even &= not getattr(sampler, "replacement", False)
    if not is_even:
        raise DataError(
            f"dataset: its loader draws by a {type(sampler).__name__}, but the plan says how often "
            "each record takes part; give a loader with shuffle=True and no sampler, and a smaller "
            "dataset for fewer records"
        )


def _list_files(folder: str | os.PathLike[str], pattern: str) -> list[Path]:
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
        require("train", "pyarrow")
        self.inputs = list(inputs)
        self.target = target
        self.files = _list_files(folder, "*.parquet")
        sizes: list[int] = []
        # Of each row group the number of its file, and its number in the file.
        # Row groups, not rows, are what a Parquet file can be read by.
        self._groups: list[tuple[int, int]] = []
        # Of each file its footer, so that it is read once.
        self._footers: dict[Path, object] = {}
        for file_number, path in enumerate(self.files):
            file = self._open(path)
            self._footers[path] = file.metadata
            for group_number in range(file.num_row_groups):
                self._groups.append((file_number, group_number))
                sizes.append(file.metadata.row_group(group_number).num_rows)
        # The position of each row group's first record, and the number of records.
        self._starts = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
        self.read = 0  # number of row groups read so far

    def __len__(self) -> int:
        return int(self._starts[-1])

    def __getitem__(self, position: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the record at `position`."""
        return self.__getitems__([position])[0]

    def __getitems__(self, positions: Sequence[int]) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """Return the records at `positions`; a row group that holds some is read once."""
        index = np.asarray(positions, dtype=np.int64)
        if not ((index >= 0) & (index < len(self))).all():
            raise IndexError(f"positions: beyond the {len(self)} records")
        items: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
        # (positions,): the row group that each is in.
        group_of_record = np.searchsorted(self._starts, index, side="right") - 1
        for group in np.unique(group_of_record):
            # One read for all of the records in a row group, whatever their order.
            in_group = np.flatnonzero(group_of_record == group)
            rows = index[in_group] - self._starts[group]
            inputs, targets = self._read_rows(int(group), rows)
            pairs = zip(inputs, targets, strict=True)
            items |= zip(in_group.tolist(), pairs, strict=True)
        # Back in the order that was asked for, in which positions may repeat.
        return [items[number] for number in range(index.size)]

    def column(self, name: str) -> AnyArray:
        """Return one column of all records, for `Trainer(people=…)`; it must fit in memory.

        Args:
            name: Name of the column, such as that of the persons' ids.
        """
        import pyarrow as pa

        chunks = []
        for path in self.files:
            table = self._open(path, name).read(columns=[name])
            chunks += table.column(name).chunks
        return np.asarray(pa.chunked_array(chunks).to_numpy())

    def _read_rows(self, group: int, rows: Integers) -> tuple[torch.Tensor, torch.Tensor]:
        """Return inputs and targets of some rows, counted from 0, of a row group."""
        import pyarrow as pa

        file_number, group_number = self._groups[group]
        # The target may be among the inputs: each column is read once.
        columns = list(dict.fromkeys([*self.inputs, self.target]))
        table = self._open(self.files[file_number]).read_row_group(group_number, columns=columns)
        self.read += 1
        table = table.take(pa.array(rows))
        inputs = np.stack([_read_floats(table.column(name)) for name in self.inputs], axis=1)
        target = table.column(self.target)
        targets: AnyArray = _read_floats(target)
        # A row without a target is left out like one with a missing input.
        # NaN in the inputs makes the loss NaN, and clipping leaves such a record out.
        inputs[~np.isfinite(targets)] = np.nan
        # Whole numbers stay exact as int64; a missing one stands as 0 in a row that is left out
        # already.
        if pa.types.is_integer(target.type):
            targets = target.fill_null(0).to_numpy().astype(np.int64)
        return torch.from_numpy(inputs), torch.from_numpy(np.ascontiguousarray(targets))

    def _open(self, path: Path, *extra_columns: str) -> Any:
        """Return a Parquet file; raise `DataError` unless it has the columns, as numbers."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        try:
            file = pq.ParquetFile(path, metadata=self._footers.get(path))
        except (OSError, ValueError) as error:
            reason = " ".join(str(error).split())[:160]
            raise DataError(f"{path}: cannot be read ({reason})") from None
        schema = file.schema_arrow
        for name in (*self.inputs, self.target, *extra_columns):
            if schema.names.count(name) != 1:
                raise DataError(f"{path}: no column {name!r}; it has {', '.join(schema.names)}")
        for name in (*self.inputs, self.target):
            kind = schema.field(name).type
            if not (pa.types.is_integer(kind) or pa.types.is_floating(kind)):
                raise DataError(f"{path}: column {name!r} is stored as {kind}, not as numbers")
        return file


def _read_floats(column: Any) -> npt.NDArray[np.float32]:
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
        self.files = _list_files(folder, "*.tar")
        names: list[str] = []
        endings: dict[str, int] = {}
        # Typed arrays: millions of Python's numbers would take several times the memory.
        file_numbers = array("i")
        ending_numbers = array("i")
        offsets = array("q")
        sizes = array("q")
        starts = array("q")
        for file_number, path in enumerate(self.files):
            # A record never reaches over files: the first member of each file begins one.
            previous = None
            for name, ending, offset, size in _read_members(path):
                if name != previous:
                    names.append(name)
                    starts.append(len(file_numbers))
                previous = name
                file_numbers.append(file_number)
                ending_numbers.append(endings.setdefault(ending, len(endings)))
                offsets.append(offset)
                sizes.append(size)
        self._endings = list(endings)
        # Of each part of a record: its file, its ending, where it begins, and its bytes.
        self._parts = [
            np.asarray(column) for column in (file_numbers, ending_numbers, offsets, sizes)
        ]
        # Of each record its first part, and the number of parts.
        # With the end of the last record, so that record k has the parts from start k to start k +
        # 1.
        self._starts = np.append(np.asarray(starts), len(file_numbers))
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
        parts = slice(self._starts[position], self._starts[position + 1])
        columns = (column[parts].tolist() for column in self._parts)
        for file_number, ending_number, offset, size in zip(*columns, strict=True):
            with self.files[file_number].open("rb") as file:
                # `pread` reads at an offset without moving a position, and so serves several
                # threads.
                data = os.pread(file.fileno(), size, offset)
            record[self._endings[ending_number]] = data
        return self.decode(record)


def _read_members(path: Path) -> Iterator[tuple[str, str, int, int]]:
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
