"""Records by position: one way to read tensors, TensorDatasets and map-style datasets."""

from __future__ import annotations

import hashlib
from collections.abc import Sized
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch.utils.data import Dataset, IterableDataset, TensorDataset, default_collate

from apiece.errors import DataError
from apiece.training.clipping import model_randomness, records

Indices = npt.NDArray[np.int64]
PROBES = 4096  # items of a map-style dataset that a fingerprint reads; all, if there are no more
_TOGETHER = 64  # of them in memory at a time


class Source(Protocol):
    """Inputs and targets of records, by position."""

    def __len__(self) -> int: ...

    def fetch(self, index: Indices, device: torch.device) -> tuple[Any, Any]:
        """Return inputs and targets of the records at `index`."""
        ...

    def fingerprint(self, key: bytes) -> str:
        """Return a keyed hash that changes when the records change."""
        ...


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Tensors:
    """Inputs and targets held in memory."""

    inputs: Any
    targets: Any
    size: int

    def __len__(self) -> int:
        return self.size

    def fetch(self, index: Indices, device: torch.device) -> tuple[Any, Any]:
        """Return copies of the rows at `index`, on `device`."""
        rows = torch.from_numpy(index)

        def take(tensor: torch.Tensor) -> torch.Tensor:
            return tensor.index_select(0, rows.to(tensor.device)).to(device)

        return records.tree_map(take, self.inputs), records.tree_map(take, self.targets)

    def fingerprint(self, key: bytes) -> str:
        """Hash every byte."""
        digest = hashlib.blake2b(key=key, digest_size=16)
        for tensor in records.leaves((self.inputs, self.targets)):
            digest.update(f"{tuple(tensor.shape)} {tensor.dtype}".encode())
            flat = tensor.detach().cpu().contiguous().view(-1)
            digest.update(flat.view(torch.uint8).numpy().tobytes())
        return digest.hexdigest()


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Items:
    """A map-style dataset whose items are (inputs, target)."""

    dataset: Dataset[Any]
    size: int

    def __len__(self) -> int:
        return self.size

    def fetch(self, index: Indices, device: torch.device) -> tuple[Any, Any]:
        """Return the collated items at `index`, on `device`."""
        positions = index.tolist()
        many = getattr(self.dataset, "__getitems__", None)
        items = many(positions) if many else [self.dataset[i] for i in positions]
        batch = default_collate(items)
        if not (isinstance(batch, list | tuple) and len(batch) == 2):
            raise DataError("dataset: its items must be pairs (inputs, target)")
        inputs, targets = (records.tree_map(lambda t: t.to(device), part) for part in batch)
        return inputs, targets

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
        draw = np.random.default_rng(seed).choice
        probes = np.arange(self.size)
        if self.size > PROBES:
            probes = np.sort(draw(self.size, PROBES, replace=False))
        with model_randomness(seed, ()):
            for part in np.array_split(probes, -(-probes.size // _TOGETHER)):
                inputs, targets = self.fetch(part, torch.device("cpu"))
                digest.update(Tensors(inputs, targets, part.size).fingerprint(key).encode())
        return digest.hexdigest()


def source_of(dataset: Any) -> Source:
    """Return `dataset` as a source: a pair (inputs, targets), a TensorDataset or a Dataset.

    Raises `DataError` for anything whose records cannot be read by position.
    """
    if isinstance(dataset, TensorDataset):
        *inputs, targets = dataset.tensors
        return source_of((inputs[0] if len(inputs) == 1 else tuple(inputs), targets))
    if isinstance(dataset, tuple) and len(dataset) == 2:
        return Tensors(*dataset, records.count(*dataset))
    reads = hasattr(dataset, "__getitem__") or hasattr(dataset, "__getitems__")
    if isinstance(dataset, Sized) and reads and not isinstance(dataset, IterableDataset | dict):
        return Items(dataset, len(dataset))  # type: ignore[arg-type]
    raise DataError(
        f"dataset: a {type(dataset).__name__}; Poisson sampling reads records by position: give "
        "(inputs, targets), a TensorDataset, or a map-style Dataset with a length"
    )
