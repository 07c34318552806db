"""The data of the audits: packaged tables by their public schemas, and what lies in a folder.

MNIST, ISOLET and MedMNIST are read from the folder of data sets, in the form that research/data.py
describes.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from apiece.audit import ShadowJob, train_shadows
from apiece.datasets import load, packaged_schema
from apiece.datasets.encode import encode, encode_labels
from apiece.datasets.packaged import PACKAGED
from apiece.errors import DataError
from research.data import find_data
from research.experiments.pictures import cifar_parquet, idx_folder

DATA = find_data()
CLASSES = {"german": ("good", "bad"), "credit_default": ("0", "1")}
SUBSET_SEED = 5


class Table(NamedTuple):
    """ids (n,), inputs (n, features) float32, targets (n,) int64, classes."""

    ids: np.ndarray
    inputs: np.ndarray
    targets: np.ndarray
    classes: int


@cache
def tabular(name: str, size: int) -> Table:
    """A random `size` of the rows of a packaged table; ids are the rows' numbers."""
    frame, label = load(name), PACKAGED[name].label
    chosen = np.random.default_rng(SUBSET_SEED).choice(len(frame), size, replace=False)
    ids = np.sort(chosen)
    frame = frame.iloc[ids]
    inputs = encode(frame, packaged_schema(name).features(but={label})).features
    return Table(ids, inputs, encode_labels(frame, label, CLASSES[name]), 2)


@cache
def mnist(classes: int, per_class: int) -> Table:
    """MNIST [classes, per_class]: the first digits only, a random `per_class` of each, flat."""
    images = idx_folder(DATA / "mnist", "train")
    return some_of_each(images.scaled(), images.labels, classes, per_class)


@cache
def cifar(per_class: int) -> Table:
    """CIFAR-10 (JPEG): a random `per_class` images of each class, flat, in [0, 1]."""
    images = cifar_parquet(there(DATA / "cifar10-jpeg" / "train.parquet"))
    return some_of_each(images.scaled(), images.labels, 10, per_class)


@cache
def isolet() -> Table:
    """ISOLET's training part: 617 features in [-1, 1] of 26 spoken letters."""
    path = there(DATA / "isolet" / "isolet1+2+3+4.data")
    rows = np.loadtxt(path, delimiter=",", dtype=np.float32, ndmin=2)
    targets = rows[:, -1].astype(np.int64) - 1
    return Table(np.arange(len(rows)), rows[:, :-1], targets, 26)


@cache
def medical(name: str, classes: int, per_class: int) -> Table:
    """A data set of MedMNIST v2: at most `per_class` images of each class, flat, in [0, 1]."""
    with np.load(there(DATA / "medmnist" / f"{name}.npz"), allow_pickle=False) as file:
        pixels, labels = file["train_images"], file["train_labels"][:, 0].astype(np.int64)
    return some_of_each(pixels.astype(np.float32) / np.float32(255), labels, classes, per_class)


def some_of_each(pixels: np.ndarray, labels: np.ndarray, classes: int, per_class: int) -> Table:
    """At most `per_class` random images of each of the first classes, flat."""
    generator = np.random.default_rng(SUBSET_SEED)
    found = [np.flatnonzero(labels == c) for c in range(classes)]
    kept = [generator.choice(f, min(per_class, f.size), replace=False) for f in found]
    ids = np.sort(np.concatenate(kept))
    return Table(ids, pixels[ids].reshape(ids.size, -1), labels[ids], classes)


def shadows(folder: Path, make: Callable[[], ShadowJob], mapper: Any = None) -> None:
    """Train a job's shadow models; keep their scores beside their plan. What is there stays."""
    if (folder / "scores.npz").exists():
        return
    job, more = make(), {} if mapper is None else {"mapper": mapper}
    say = partial(print, folder.name, flush=True)
    scores = train_shadows(job, folder=folder, progress=say, **more)
    (folder / "plan.json").write_text(job.plan.to_json())
    scores.save(folder / "scores.npz")


def there(path: Path) -> Path:
    """The path, or an error that names it."""
    if not path.exists():
        raise DataError(f"{path}: not there; this setting needs it")
    return path
