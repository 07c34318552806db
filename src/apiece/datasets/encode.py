"""From a table and its public schema to arrays: one record at a time, nothing learned from rows.

Every row's features depend on that row and the schema alone, so encoding costs no privacy and a
record changes nobody else's features.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from apiece._types import Floats, Integers, Mask
from apiece.datasets.cells import (
    Date,
    list_markers,
    locate_values,
    read_days,
    read_numbers,
    read_texts,
    select_column,
)
from apiece.datasets.schema import Categorical, Feature, Numeric
from apiece.errors import DataError, StewardWarning
from apiece.tables import number_of

if TYPE_CHECKING:
    import pandas as pd

Features = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Encoded:
    """Features (n, d) in [-1, 1], NaN throughout a faulty row; data about people."""

    features: Features
    names: tuple[str, ...]
    faulty: Mask
    # of each column, cells neither readable nor a declared marker, and numbers that are clipped
    unread: Mapping[str, int]
    outside: Mapping[str, int]


def name_features(columns: Mapping[str, Feature]) -> tuple[str, ...]:
    """Return the names of the features that `encode` makes from `columns`, in order."""
    names: list[str] = []
    for name, kind in columns.items():
        if isinstance(kind, Categorical):
            names += [f"{name}={value}" for value in kind.values]
        else:
            names.append(name)
        if kind.missing:
            names.append(f"{name}=(missing)")
    return tuple(names)


def encode(frame: pd.DataFrame, columns: Mapping[str, Feature], *, decimal: str = ".") -> Encoded:
    """Return the features of every row of `frame` by the declared `columns`."""
    # A numeric column becomes one feature, clipped to its range and scaled to [-1, 1], and so does
    # one of dates; a categorical one an indicator a value. Where a value may be missing there is
    # one more indicator, and the middle of the scale, 0, stands for the number. A cell that should
    # be a number or a date and is none, or is infinite, makes its row faulty.
    names = name_features(columns)
    features = np.empty((len(frame), len(names)), dtype=np.float32)
    faulty = np.zeros(len(frame), dtype=np.bool_)
    unread: dict[str, int] = {}
    outside: dict[str, int] = {}
    at = 0
    for name, kind in columns.items():
        given, missing = select_column(frame, name, "feature"), list_markers(kind.missing)
        if isinstance(kind, Categorical):
            codes, absent = locate_values(given, kind.values, missing, decimal)
            bad = (codes < 0) & ~absent
            for place in range(len(kind.values)):
                features[:, at + place] = codes == place
            at += len(kind.values)
        else:
            if isinstance(kind, Date):
                values, number = read_days(given, kind), Numeric(*kind.days)
                _, absent = locate_values(given, (), missing, decimal)
            else:
                values, number = read_numbers(given, decimal), kind
                # A marker is no number, or the number that the marker is: others are not compared.
                marks = [float(number_of(mark, decimal) or math.nan) for mark in missing]
                doubtful = np.flatnonzero(np.isnan(values) | np.isin(values, marks))
                absent = np.zeros(len(frame), dtype=np.bool_)
                absent[doubtful] = locate_values(given.iloc[doubtful], (), missing, decimal)[1]
            bad = ~(np.isfinite(values) | absent)
            faulty |= bad
            beyond = (values < number.lower) | (values > number.upper)
            outside[name] = int((beyond & ~absent).sum())
            # 0 is public: a mean of the rows would tell of them.
            features[:, at] = np.where(absent, 0.0, scale(values, number))
            at += 1
        unread[name] = int(bad.sum())
        if kind.missing:
            features[:, at] = absent
            at += 1
    features[faulty] = np.nan
    return Encoded(features, names, faulty, unread, outside)


def describe_unread(encoded: Encoded, columns: Mapping[str, Feature], *kinds: type) -> str:
    """Return how many cells of which columns of some kinds, numbers and dates, were not read."""
    kinds = kinds or (Numeric, Date)
    return ", ".join(
        f"{count} in {name!r}"
        for name, count in encoded.unread.items()
        if count and type(columns[name]) in kinds
    )


def warn_unread(
    encoded: Encoded, columns: Mapping[str, Feature], *, what: str, do: str, stacklevel: int
) -> None:
    """Warn whoever holds the rows of cells that are not as declared."""
    # what: the rows' name in the message. do: what rows without a number do.
    doubts = []
    if encoded.faulty.any():
        doubts.append(
            f"{int(encoded.faulty.sum())} of {encoded.faulty.size} rows {do}, for a number or "
            f"date that is NaN, infinite or unreadable ({describe_unread(encoded, columns)})"
        )
    if cells := describe_unread(encoded, columns, Categorical):
        doubts.append(f"cells of no declared value count as none of them ({cells})")
    if doubts:
        warnings.warn(
            f"{what}: {'; '.join(doubts)}; mend them, or declare missing=True in columns where "
            "cells may be empty; a reader that knows NA leaves such cells empty: give the file's "
            "path; these counts are data about people: show them to nobody else",
            StewardWarning,
            stacklevel=stacklevel,
        )


def scale(values: Floats, kind: Numeric) -> Floats:
    """Return `values` clipped to the declared range and scaled to [-1, 1]."""
    clipped = np.clip(values, kind.lower, kind.upper) - kind.lower
    width = kind.upper - kind.lower
    share = np.log1p(clipped) / np.log1p(width) if kind.scale == "log" else clipped / width
    return np.asarray(2 * share - 1)


def unscale(scaled: Floats, kind: Numeric) -> Floats:
    """Return the values in the declared range that `scale` gives `scaled` for."""
    share, width = (np.clip(scaled, -1, 1) + 1) / 2, kind.upper - kind.lower
    above = np.expm1(share * np.log1p(width)) if kind.scale == "log" else share * width
    return np.asarray(kind.lower + above)


def encode_labels(frame: pd.DataFrame, label: str, classes: tuple[str, ...]) -> Integers:
    """Return each row's position in the declared `classes`."""
    given = select_column(frame, label, "label")
    codes, _ = locate_values(given, classes)
    bad = np.flatnonzero(codes < 0)
    if bad.size:
        cells = read_texts(given)
        shown = ", ".join(repr(c) for c in classes[:8])
        cased = str(cells[bad[0]]).casefold() in {name.casefold() for name in classes}
        remedy = ("case matters: " if cased else "") + "mend the row or the schema"
        raise DataError(
            f"label column {label!r}, row {int(bad[0]) + 1} = {cells[bad[0]]!r}: not a declared "
            f"class ({bad.size} such rows; declared: {shown}); {remedy}"
        )
    return codes


def encode_numbers(frame: pd.DataFrame, label: str, *, decimal: str = ".") -> Floats:
    """Return each row's number in the label column, as it is."""
    cells = select_column(frame, label, "label")
    values = read_numbers(cells, decimal)
    bad = np.flatnonzero(~np.isfinite(values))
    if bad.size:
        first = read_texts(cells.iloc[bad[:1]])[0]
        raise DataError(
            f"label column {label!r}, row {int(bad[0]) + 1} = {first!r}: no finite number "
            f"({bad.size} such rows); mend the rows, or leave them out"
        )
    return values
