"""Arrays from a table and its public schema: one record at a time, nothing learned from rows.

Every row's features depend on that row and the schema alone, so encoding costs no privacy and a
record changes nobody else's features.
"""

from __future__ import annotations

import datetime
import math
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

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
from apiece.tables.values import number_of

if TYPE_CHECKING:
    import pandas as pd

    from apiece.datasets.cells import Cells

# Declared classes that a message names, at most.
_SHOWN: Final = 8
Features = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Encoded:
    """Features (n, d) in [-1, 1], NaN throughout a faulty row; data about people."""

    features: Features
    names: tuple[str, ...]
    faulty: Mask
    # Column → how many of its cells are neither readable nor a declared marker.
    unread: Mapping[str, int]
    # Column → how many of its numbers lie outside the declared range, and are clipped.
    outside: Mapping[str, int]


def name_features(columns: Mapping[str, Feature]) -> tuple[str, ...]:
    """Return the names of the features that `encode` makes from `columns`, in order."""
    names: list[str] = []
    for name, kind in columns.items():
        if isinstance(kind, Categorical):
            names += [f"{name}={value}" for value in kind.labels]
        elif kind.knots:
            names += [f"{name}@{label}" for label in label_knots(kind)]
        else:
            names.append(name)
        if kind.missing:
            names.append(f"{name}=(missing)")
    return tuple(names)


def encode(frame: pd.DataFrame, columns: Mapping[str, Feature], *, decimal: str = ".") -> Encoded:
    """Return the features of every row of `frame` by the declared `columns`.

    A numeric column becomes one feature, clipped to its range and scaled to [-1, 1], and so does
    one of dates; with knots, the shares in [0, 1] of the two knots about the number, 0 of others,
    so that a linear model fits a curve. A categorical column becomes an indicator a value. Where a
    value may be missing there is one more indicator; for the number stands the middle of the scale,
    0, or no knot. A cell that should be a number or a date and is none, or is infinite, makes its
    row faulty.
    """
    names = name_features(columns)
    # (rows, features), filled column by column.
    features = np.empty((len(frame), len(names)), dtype=np.float32)
    faulty = np.zeros(len(frame), dtype=np.bool_)
    unread: dict[str, int] = {}
    outside: dict[str, int] = {}
    # Index of the next feature.
    index = 0
    for name, kind in columns.items():
        cells = select_column(frame, name, "feature")
        if isinstance(kind, Categorical):
            markers = list_markers(kind.missing)
            codes, absent = locate_values(cells, kind.labels, markers, decimal)
            # Neither a declared value nor a marker: all indicators of such a cell are 0.
            is_unread = (codes < 0) & ~absent
            for code in range(len(kind.labels)):
                features[:, index + code] = codes == code
            index += len(kind.labels)
        else:
            values, limits, absent = _read_column(cells, kind, decimal)
            is_unread = ~(np.isfinite(values) | absent)
            faulty |= is_unread
            # NaN compares as False, and is counted as unread.
            is_outside = (values < limits.lower) | (values > limits.upper)
            outside[name] = int((is_outside & ~absent).sum())
            scaled = scale(values, limits)
            width = max(kind.knots, 1)
            shares = _share_knots(scaled, kind.knots) if kind.knots else scaled[:, None]
            # 0 is public: a mean of the rows would tell of them.
            features[:, index : index + width] = np.where(absent[:, None], 0.0, shares)
            index += width
        unread[name] = int(is_unread.sum())
        if kind.missing:
            features[:, index] = absent
            index += 1
    # NaN throughout: a faulty row must not be learned from in part.
    features[faulty] = np.nan
    return Encoded(features, names, faulty, unread, outside)


def _share_knots(scaled: Floats, knots: int) -> Floats:
    """Return the share (n, knots) of each knot in numbers of [-1, 1]; a row's shares sum to 1."""
    # In steps from one knot to the next. NaN, of a row without a number, stays NaN.
    steps = (scaled + 1) / 2 * (knots - 1)
    # Only the two knots about a number are nearer than one step: their shares add up to 1.
    return np.asarray(np.clip(1 - np.abs(steps[:, None] - np.arange(knots)), 0, None))


def locate_knots(kind: Numeric | Date) -> Floats:
    """Return where the knots of a column's curve lie: numbers, or days since 1970."""
    # Dates are numbers of days between the ends.
    limits = Numeric(*kind.days) if isinstance(kind, Date) else kind
    return unscale(np.linspace(-1, 1, kind.knots), limits)


def label_knots(kind: Numeric | Date) -> tuple[str, ...]:
    """Return the knots of a column's curve as texts: numbers, or dates."""
    positions = locate_knots(kind)
    if isinstance(kind, Date):
        epoch = datetime.date(1970, 1, 1)
        # Rounded down to whole days.
        return tuple(str(epoch + datetime.timedelta(days=math.floor(d))) for d in positions)
    return tuple(f"{position:.12g}" for position in positions)


def _read_column(cells: Cells, kind: Numeric | Date, decimal: str) -> tuple[Floats, Numeric, Mask]:
    """Return the numbers of a column, or its days, their range, and which cells are absent."""
    # Markers are looked up first, as a date may be one of them.
    markers = list_markers(kind.missing)
    if isinstance(kind, Date):
        _, absent = locate_values(cells, (), markers, decimal)
        return read_days(cells, kind), Numeric(*kind.days), absent
    values = read_numbers(cells, decimal)
    # A cell that is a marker reads as no number, or as the number that the marker is: only such
    # cells are compared with the markers, one by one.
    numbers = [float(number_of(marker, decimal) or math.nan) for marker in markers]
    doubtful = np.flatnonzero(np.isnan(values) | np.isin(values, numbers))
    absent = np.zeros(len(cells), dtype=np.bool_)
    _, absent[doubtful] = locate_values(cells.iloc[doubtful], (), markers, decimal)
    return values, kind, absent


def describe_unread(encoded: Encoded, columns: Mapping[str, Feature], *kinds: type) -> str:
    """Return as text how many cells were not read, by column; by default of numbers and dates."""
    kinds = kinds or (Numeric, Date)
    return ", ".join(
        f"{count} in {name!r}"
        for name, count in encoded.unread.items()
        if count and type(columns[name]) in kinds
    )


def warn_unread(
    encoded: Encoded, columns: Mapping[str, Feature], *, what: str, do: str, stacklevel: int
) -> None:
    """Warn the steward of cells that are not as declared.

    In the message `what` names the rows, and `do` says what happens to rows without a number.
    """
    doubts = []
    if encoded.faulty.any():
        doubts.append(
            f"{int(encoded.faulty.sum())} of {encoded.faulty.size} rows {do}, for a number or "
            f"date that is NaN, infinite or unreadable ({describe_unread(encoded, columns)})"
        )
    categorical = describe_unread(encoded, columns, Categorical)
    if categorical:
        doubts.append(f"cells of no declared value count as none of them ({categorical})")
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
    # On a log scale 1 is added to the distance from the lower end, which may be 0.
    # log1p(distance)/log1p(width) is 0 at the lower end and 1 at the upper one.
    distance = np.clip(values, kind.lower, kind.upper) - kind.lower
    width = kind.upper - kind.lower
    share = np.log1p(distance) / np.log1p(width) if kind.scale == "log" else distance / width
    return np.asarray(2 * share - 1)


def unscale(scaled: Floats, kind: Numeric) -> Floats:
    """Return the values in the declared range whose scaled values these are."""
    share = (np.clip(scaled, -1, 1) + 1) / 2
    width = kind.upper - kind.lower
    # The inverse of `scale`, within the range.
    distance = np.expm1(share * np.log1p(width)) if kind.scale == "log" else share * width
    return np.asarray(kind.lower + distance)


def encode_labels(frame: pd.DataFrame, label: str, classes: tuple[str, ...]) -> Integers:
    """Return each row's position in the declared `classes`."""
    cells = select_column(frame, label, "label")
    # Undeclared labels and empty cells alike are none of the classes.
    codes, _ = locate_values(cells, classes)
    bad = np.flatnonzero(codes < 0)
    if not bad.size:
        return codes
    # The message may show the cell, as the steward reads their own table.
    row = int(bad[0])
    text = read_texts(cells)[row]
    remedy = "mend the row or the schema"
    if str(text).casefold() in {name.casefold() for name in classes}:
        remedy = f"case matters: {remedy}"
    shown = ", ".join(map(repr, classes[:_SHOWN]))
    raise DataError(
        f"label column {label!r}, row {row + 1} = {text!r}: not a declared "
        f"class ({bad.size} such rows; declared: {shown}); {remedy}"
    )


def encode_numbers(frame: pd.DataFrame, label: str, *, decimal: str = ".") -> Floats:
    """Return each row's number in the label column, as it is."""
    cells = select_column(frame, label, "label")
    values = read_numbers(cells, decimal)
    bad = np.flatnonzero(~np.isfinite(values))
    if bad.size:
        row = int(bad[0])
        text = read_texts(cells.iloc[[row]])[0]
        raise DataError(
            f"label column {label!r}, row {row + 1} = {text!r}: no finite number "
            f"({bad.size} such rows); mend the rows, or leave them out"
        )
    return values
