"""The data of S5's experiments, encoded with constants that depend on no record.

Reads the original files from the folder named by APIECE_DATA (default: ../shared/data).
"""

from __future__ import annotations

import csv
import gzip
import os
from pathlib import Path
from typing import NamedTuple

import numpy as np

DATA = Path(os.environ.get("APIECE_DATA", Path(__file__).parents[2] / "shared" / "data"))
SUBSET_SEED = 5
GERMAN_NUMERIC = {1: 72.0, 4: 20000.0, 7: 4.0, 10: 4.0, 12: 75.0, 15: 4.0, 17: 2.0}
GERMAN_CODES = {
    0: ["A11", "A12", "A13", "A14"],
    2: ["A30", "A31", "A32", "A33", "A34"],
    3: ["A40", "A41", "A42", "A43", "A44", "A45", "A46", "A47", "A48", "A49", "A410"],
    5: ["A61", "A62", "A63", "A64", "A65"],
    6: ["A71", "A72", "A73", "A74", "A75"],
    8: ["A91", "A92", "A93", "A94", "A95"],
    9: ["A101", "A102", "A103"],
    11: ["A121", "A122", "A123", "A124"],
    13: ["A141", "A142", "A143"],
    14: ["A151", "A152", "A153"],
    16: ["A171", "A172", "A173", "A174"],
    18: ["A191", "A192"],
    19: ["A201", "A202"],
}


class Table(NamedTuple):
    """ids (n,), inputs (n, features) float32, targets (n,) int64, classes."""

    ids: np.ndarray
    inputs: np.ndarray
    targets: np.ndarray
    classes: int


def german() -> Table:
    """German Credit: 1,000 records, 63 features (7 numbers scaled, 56 codes one-hot)."""
    lines = (DATA / "tabular" / "german.data").read_text().split("\n")
    rows = [line.split() for line in lines if line]
    columns = [
        np.array([[float(row[at]) / top] for row in rows]) for at, top in GERMAN_NUMERIC.items()
    ]
    columns += [
        np.array([[float(row[at] == code) for code in codes] for row in rows])
        for at, codes in GERMAN_CODES.items()
    ]
    targets = np.array([int(row[20]) - 1 for row in rows])
    return Table(np.arange(len(rows)), np.hstack(columns).astype(np.float32), targets, 2)


def credit_default(size: int) -> Table:
    """Credit Default: a random `size` of the 30,000 clients, by their ID; 33 features."""
    with (DATA / "tabular" / "credit_default.csv").open() as file:
        rows = list(csv.DictReader(file))
    chosen = np.sort(np.random.default_rng(SUBSET_SEED).choice(len(rows), size, replace=False))
    rows = [rows[at] for at in chosen]

    def number(name: str) -> np.ndarray:
        return np.array([[float(row[name])] for row in rows])

    months = ["0", "2", "3", "4", "5", "6"]
    parts = [number("LIMIT_BAL") / 1e6, number("AGE") / 80]
    parts += [number(f"PAY_{m}") / 8 for m in months]
    for name in [f"BILL_AMT{m}" for m in range(1, 7)] + [f"PAY_AMT{m}" for m in range(1, 7)]:
        amount = number(name)
        parts.append(np.sign(amount) * np.log1p(np.abs(amount)) / 14)
    parts += [number("SEX") == v for v in (1, 2)]
    parts += [number("EDUCATION") == v for v in range(7)]
    parts += [number("MARRIAGE") == v for v in range(4)]
    targets = np.array([int(row["default"]) for row in rows])
    ids = np.array([int(row["ID"]) for row in rows])
    return Table(ids, np.hstack(parts).astype(np.float32), targets, 2)


def mnist(classes: int, per_class: int) -> Table:
    """MNIST [classes, per_class]: the first digits only, a random `per_class` of each."""
    folder = DATA / "mnist"
    with gzip.open(next(folder.glob("train-images*")), "rb") as file:
        images = np.frombuffer(file.read(), np.uint8, offset=16).reshape(-1, 784)
    with gzip.open(next(folder.glob("train-labels*")), "rb") as file:
        labels = np.frombuffer(file.read(), np.uint8, offset=8)
    generator = np.random.default_rng(SUBSET_SEED)
    chosen = np.sort(
        np.concatenate(
            [
                generator.choice(np.flatnonzero(labels == digit), per_class, replace=False)
                for digit in range(classes)
            ]
        )
    )
    inputs = images[chosen].astype(np.float32) / 255
    return Table(chosen, inputs, labels[chosen].astype(np.int64), classes)
