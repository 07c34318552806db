"""The data of the audits: packaged tables by their public schemas, and MNIST.

MNIST is read from the folder named by APIECE_DATA (default: ../shared/data).
"""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path
from typing import NamedTuple

import numpy as np

from apiece.datasets import PACKAGED, encode, encode_labels, idx_folder, load, packaged_schema

DATA = Path(os.environ.get("APIECE_DATA", Path(__file__).parents[2] / "shared" / "data"))
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
    generator = np.random.default_rng(SUBSET_SEED)
    digits = [np.flatnonzero(images.labels == digit) for digit in range(classes)]
    ids = np.sort(np.concatenate([generator.choice(d, per_class, replace=False) for d in digits]))
    pixels = images.scaled()[ids].reshape(ids.size, -1)
    return Table(ids, pixels, images.labels[ids], classes)
