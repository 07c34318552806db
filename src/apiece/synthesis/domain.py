"""The cells of a table: declared categories, bins of declared ranges, gaps; and what cannot be.

All of it follows from the schema, the bins and the rules that are given, and from no row. A column
of categories has a cell a value; a number or a date has a cell a bin of its declared range; where
cells may be empty there is one more cell, the gap. A rule names what no row can be, as
"age < 18 and marital = married"; its thresholds become edges of bins, so that it holds of every
synthetic row and not of most.
"""

from __future__ import annotations

import datetime
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt

from apiece import _check
from apiece._types import Floats, Integers, Json, Mask
from apiece.datasets.cells import (
    Date,
    Missing,
    list_markers,
    locate_values,
    read_days,
    read_numbers,
    select_column,
)
from apiece.datasets.schema import UNUSED, Boolean, Categorical, Column, Numeric, Schema, Text
from apiece.errors import DataError, InputError
from apiece.synthesis.marginals import Clique
from apiece.tables.values import Declared, moment_of, number_of

if TYPE_CHECKING:
    import pandas as pd

# Bins of a number or a date, for all columns, or by name: how many, or their edges.
Bins: TypeAlias = int | Mapping[str, int | Sequence[float]]

# Bins of a column's range where nothing else is said.
DEFAULT_BINS: Final = 16
# Significant digits of a synthetic number that is not whole.
_DIGITS: Final = 6
# Microseconds in a day.
_DAY: Final = 86_400_000_000
# "age < 18": column, operator, value; longer operators come first, so that "<=" is not read as "<".
_CONDITION: Final = re.compile(r"(.+?)\s*(<=|>=|!=|=|<|>)\s*(.+)")
# "age is missing", or "is not missing".
_GAP: Final = re.compile(r"(.+?)\s+is\s+(not\s+)?missing")
# A rule is all of its conditions together.
_AND: Final = re.compile(r"\s+and\s+")


@dataclass(frozen=True, slots=True)
class Cells:
    """The cells of one column.

    Attributes:
        name: Of the column.
        declared: The declaration that cells are read by.
        values: The declared values, where it has some; one a cell.
        edges: Of the bins, in order, else empty; a bin is from its edge up to the next.
        whole: Whether synthetic numbers are whole.
        gap: Whether the last cell is that of rows without a value.
    """

    name: str
    declared: Column
    values: tuple[Any, ...] = ()
    edges: tuple[float, ...] = ()
    whole: bool = False
    gap: bool = False

    @property
    def size(self) -> int:
        """How many cells there are."""
        # n edges bound n − 1 bins; of values there are no edges.
        return len(self.values) + max(len(self.edges) - 1, 0) + self.gap

    @property
    def labels(self) -> tuple[str, ...]:
        """A name for each cell."""
        names = [str(value) for value in self.values]
        for low, high in zip(self.edges[:-1], self.edges[1:], strict=True):
            # A bin of whole numbers is shown by the last number in it.
            names.append(f"{self._show(low)} to {self._show(high - 1 if self.whole else high)}")
        return (*names, "(missing)") if self.gap else tuple(names)

    def _show(self, edge: float) -> str:
        if isinstance(self.declared, Date):
            return str(_date_of(edge))
        return f"{edge:g}"

    def encode(self, frame: pd.DataFrame, decimal: str) -> tuple[Integers, Mask]:
        """Return each row's cell, and which rows have none."""
        cells = select_column(frame, self.name, "table")
        missing: Missing = getattr(self.declared, "missing", ())
        markers = list_markers(missing)
        if self.values:
            # −1 stands for a cell that is no declared value.
            codes, absent = locate_values(cells, self.values, markers, decimal)
        else:
            codes, absent = self._place_in_bins(cells, markers, decimal)
        if self.gap:
            # A gap is a cell like others where it is declared; else such a row has none.
            codes = np.where(absent, self.size - 1, codes)
        return codes, codes < 0

    def _place_in_bins(
        self, cells: Any, markers: Sequence[str], decimal: str
    ) -> tuple[Integers, Mask]:
        """Return each row's bin, −1 where it has no number, and which rows have a marker."""
        if isinstance(self.declared, Date):
            values = read_days(cells, self.declared)
        else:
            values = read_numbers(cells, decimal)
        # Only what reads as no number, or as a marker's, is compared with the markers.
        numbers = [float(number_of(marker, decimal) or math.nan) for marker in markers]
        doubtful = np.flatnonzero(np.isnan(values) | np.isin(values, numbers))
        absent = np.zeros(len(cells), dtype=np.bool_)
        _, absent[doubtful] = locate_values(cells.iloc[doubtful], (), markers, decimal)
        # A marker that reads as a number, as 99, is a gap and no number.
        readable = np.isfinite(values) & ~absent
        # Inner edges alone: what lies beyond the range falls into the first or the last bin.
        inner = np.array(self.edges[1:-1])
        # A value at an edge belongs to the bin that begins there.
        bins = np.searchsorted(inner, np.where(readable, values, 0.0), side="right")
        return np.where(readable, bins, -1), absent

    def decode(self, codes: Integers, generator: np.random.Generator) -> Any:
        """Return a column of values: a bin's are even within it."""
        import pandas as pd

        gap = codes == self.size - 1 if self.gap else np.zeros(len(codes), bool)
        # A gap has no bin: any stands in while numbers are drawn.
        inside = np.where(gap, 0, codes)
        if self.values:
            values = np.array([_plain(value) for value in self.values], dtype=object)
            cells = values[inside]
            cells[gap] = None
            return pd.Series(cells, name=self.name).infer_objects()
        numbers = self._draw_numbers(inside, generator)
        if isinstance(self.declared, Date):
            days = [None if g else _date_of(day) for g, day in zip(gap, numbers, strict=True)]
            return pd.Series(days, name=self.name, dtype=object)
        if self.whole:
            column = pd.Series(numbers.astype(np.int64), name=self.name)
            return column.astype("Int64").mask(gap) if gap.any() else column
        return pd.Series(np.where(gap, np.nan, numbers), name=self.name)

    def _draw_numbers(self, bins: Integers, generator: np.random.Generator) -> Floats:
        """Return a number for each row, even within its bin, on a log scale where declared."""
        edges = np.array(self.edges)
        low = edges[bins]
        high = edges[bins + 1]
        share = generator.random(len(bins))
        if getattr(self.declared, "scale", "linear") == "log":
            # As in training: the distance from the lower end, and 1.
            origin = self.edges[0] - 1
            # Geometric between the ends of the bin, measured from below the range.
            numbers = origin + (low - origin) * ((high - origin) / (low - origin)) ** share
        else:
            numbers = low + (high - low) * share
        if self.whole:
            # Rounded down, so that each whole number of a bin is as likely as another.
            return np.asarray(np.clip(np.floor(numbers), low, high - 1))
        return np.array([float(f"{number:.{_DIGITS}g}") for number in numbers]).clip(low, high)


@dataclass(frozen=True, slots=True)
class Domain:
    """The cells of every column of a table, and what no row can be.

    Attributes:
        columns: In the order of the schema.
        rules: Texts of what cannot be.
        zeros: Marginal → log potential: 0 where a cell is possible, −∞ where it is not.
        decimal: The decimal mark of numbers that are texts.
    """

    columns: tuple[Cells, ...]
    rules: tuple[str, ...] = ()
    zeros: Mapping[Clique, Floats] = field(default_factory=dict, repr=False)
    decimal: str = "."

    @classmethod
    def from_schema(
        cls, schema: Schema, *, bins: Bins = DEFAULT_BINS, rules: Iterable[str] = (),
        but: Iterable[str] = (),
    ) -> Domain:  # fmt: skip
        """Return the domain of a schema.

        Args:
            schema: Of the table. Columns of texts without declared values are not used.
            bins: How many bins a number or a date has, for all columns, or by name; or edges.
            rules: What no row can be, as "age < 18 and marital = married".
            but: Names of columns that have another use.

        Raises:
            DataError: For a column without a range or values, and one without anything to tell.
            InputError: For bins and rules that do not fit the columns.
        """
        texts = tuple(rules)
        left_out = {schema.person, *but}
        declared = {
            name: column
            for name, column in schema.columns.items()
            if name not in left_out and _is_used(column)
        }
        if not declared:
            raise DataError(
                f"schema {schema.name}: it declares no column to synthesize; declare one"
            )
        if isinstance(bins, Mapping):
            for name in bins:
                if name not in declared or not isinstance(declared[name], Numeric | Date):
                    raise InputError(f"bins {name!r}: no column of numbers or dates has this name")
        # Rules are read first: their thresholds become edges of bins.
        parsed = [[_parse_condition(part, text) for part in _AND.split(text)] for text in texts]
        cuts: dict[str, list[tuple[str, str]]] = {}
        for conditions in parsed:
            for name, operator, value in conditions:
                if name not in declared:
                    raise InputError(f"rule: no column {name!r} is synthesized; name one that is")
                cuts.setdefault(name, []).append((operator, value))
        # In the order of the schema, by which columns are numbered from here on.
        columns = tuple(
            _make_cells(schema.name, name, column, bins, cuts.get(name, []))
            for name, column in declared.items()
        )
        positions = {column.name: k for k, column in enumerate(columns)}
        zeros: dict[Clique, Floats] = {}
        for text, conditions in zip(texts, parsed, strict=True):
            clique, potential = _rule_out(text, conditions, columns, positions)
            # Two rules on the same columns add up: −∞ where either rules out.
            zeros[clique] = zeros[clique] + potential if clique in zeros else potential
        # A marginal without a possible cell would leave no row at all.
        for clique, potential in zeros.items():
            if not np.isfinite(potential).any():
                names = ", ".join(columns[column].name for column in clique)
                raise InputError(f"rules on {names}: leave no row possible; take one of them back")
        return cls(columns, texts, zeros, schema.decimal)

    @property
    def sizes(self) -> tuple[int, ...]:
        """How many cells each column has."""
        return tuple(column.size for column in self.columns)

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the columns."""
        return tuple(column.name for column in self.columns)

    def encode(self, frame: pd.DataFrame) -> tuple[npt.NDArray[np.int32], Mask]:
        """Return each row's cells, and which rows cannot be read or are what cannot be.

        A row's cells follow from that row alone.
        """
        codes = np.empty((len(frame), len(self.columns)), dtype=np.int32)
        faulty = np.zeros(len(frame), dtype=np.bool_)
        for k, column in enumerate(self.columns):
            cells, unread = column.encode(frame, self.decimal)
            # Any cell stands in for an unread one: the row is faulty.
            codes[:, k] = np.where(unread, 0, cells)
            faulty |= unread
        for clique, potential in self.zeros.items():
            shape = [self.sizes[column] for column in clique]
            # Row-major over the clique's columns, as potentials are.
            cell = np.ravel_multi_index(tuple(codes[:, list(clique)].T), shape)
            faulty |= np.isneginf(potential[cell])
        return codes, faulty

    def decode(self, codes: npt.NDArray[np.int32], generator: np.random.Generator) -> pd.DataFrame:
        """Return a table of values from rows of cells."""
        import pandas as pd

        series = {
            column.name: column.decode(codes[:, k].astype(np.int64), generator)
            for k, column in enumerate(self.columns)
        }
        return pd.DataFrame(series)

    def to_dict(self) -> Json:
        """Return what is public of the domain as JSON values."""
        return {
            "columns": [{"name": c.name, "cells": list(c.labels)} for c in self.columns],
            "rules": list(self.rules),
        }


def _is_used(column: Column) -> bool:
    """Whether a column is synthesized: all but those that are skipped and open texts."""
    if isinstance(column, Text):
        return bool(column.values)
    return not isinstance(column, UNUSED)


def _make_cells(
    schema: str, name: str, column: Column, bins: Bins, cuts: Sequence[tuple[str, str]]
) -> Cells:
    """Return the cells of a declared column, with edges where rules cut."""
    missing: Missing = getattr(column, "missing", ())
    gap = bool(list_markers(missing))
    # Both truths are values, whatever questions may group by.
    if isinstance(column, Boolean):
        return Cells(name, column, values=(False, True), gap=gap)
    if isinstance(column, Categorical | Text) or column.values:  # type: ignore[union-attr]
        return Cells(name, column, values=tuple(column.values), gap=gap)  # type: ignore[union-attr]
    assert isinstance(column, Numeric | Date)
    if not column.has_range:
        raise DataError(
            f"schema {schema}, column {name!r}: lower and upper are missing; give the public "
            'range, its values, or kind = "skip"'
        )
    wanted = bins.get(name, DEFAULT_BINS) if isinstance(bins, Mapping) else bins
    if isinstance(column, Date):
        lower, upper = column.days
        whole = True
    else:
        lower, upper = column.lower, column.upper
        # Whole ends declare whole numbers.
        whole = lower.is_integer() and upper.is_integer()
    if isinstance(wanted, Sequence):
        edges = _check_edges(name, wanted, lower, upper)
        whole = whole and all(float(edge).is_integer() for edge in edges)
    else:
        count = _check.count(f"bins of {name!r}", wanted)
        # With fewer whole numbers than bins, edges cannot be whole.
        whole = whole and upper - lower >= count
        edges = _divide_range(lower, upper, count, getattr(column, "scale", "linear"), whole)
    if whole:
        # A bin of whole numbers ends before the next: the last one holds the upper end.
        edges[-1] = upper + 1
    for operator, value in cuts:
        threshold = _read_threshold(name, column, operator, value)
        edge = None if threshold is None else _find_edge(threshold, operator, whole)
        if edge is not None and edges[0] < edge < edges[-1]:
            # Beyond the range a threshold divides nothing.
            edges = np.unique(np.append(edges, edge))
    return Cells(name, column, edges=tuple(map(float, edges)), whole=whole, gap=gap)


def _find_edge(threshold: float, operator: str, whole: bool) -> float:
    """Return the edge from which on a value is no longer, or is for the first time, meant."""
    if operator in ("<=", ">"):
        # "<= 5" and "> 5" part the line just above 5: at 6 among whole numbers, else at the next
        # double.
        return math.floor(threshold) + 1 if whole else math.nextafter(threshold, math.inf)
    return math.ceil(threshold) if whole else threshold


def _check_edges(name: str, wanted: Sequence[float], lower: float, upper: float) -> Floats:
    """Return edges that were given, with the ends of the range, or raise `InputError`."""
    edges = np.asarray(wanted, np.float64)
    inside = np.isfinite(edges).all() and (np.diff(edges) > 0).all()
    if not (inside and edges.size and lower <= edges[0] and edges[-1] <= upper):
        raise InputError(
            f"bins {name!r} = {list(wanted)}: must rise from {lower:g} to {upper:g}; give edges"
        )
    # The ends of the range are edges, whether they were given or not.
    return np.unique(np.concatenate([[lower], edges, [upper]]))


def _divide_range(lower: float, upper: float, count: int, scale: str, whole: bool) -> Floats:
    """Return the edges of even bins, on a log scale where that is declared."""
    share = np.linspace(0, 1, count + 1)
    width = upper - lower
    # As features are scaled: 1 is added to the distance from the lower end.
    distance = np.expm1(share * np.log1p(width)) if scale == "log" else share * width
    edges = lower + distance
    edges[-1] = upper
    # Rounded edges may coincide where bins are narrow.
    return np.unique(np.rint(edges)) if whole else edges


def _parse_condition(part: str, rule: str) -> tuple[str, str, str]:
    """Return the column, the operator and the value of a condition, or raise `InputError`."""
    gap = _GAP.fullmatch(part.strip())
    if gap is not None:
        return gap.group(1).strip(), "!missing" if gap.group(2) else "missing", ""
    match = _CONDITION.fullmatch(part.strip())
    if match is None:
        raise InputError(
            f"rule {rule!r}: {part!r} is no condition; write as in 'age < 18 and "
            "marital = married', with <, <=, =, !=, >=, > or 'is missing'"
        )
    name, operator, value = match.groups()
    return name.strip(), operator, value.strip()


def _read_threshold(name: str, column: Numeric | Date, operator: str, text: str) -> float | None:
    """Return the number or day of a condition on a binned column; None for gaps."""
    if operator.endswith("missing"):
        return None
    if operator in ("=", "!="):
        raise InputError(
            f"rule on {name!r}: = compares declared values, and this column has bins; give a range "
            "with <, <=, >= or >, or declare its values"
        )
    if isinstance(column, Date):
        moment = moment_of(text)
        number = None if moment is None else moment / _DAY
    else:
        plain = number_of(text)
        number = None if plain is None else float(plain)
    if number is None:
        raise InputError(
            f"rule on {name!r}: {text!r} is no value of its kind; give a number or date"
        )
    return number


def _rule_out(
    text: str,
    conditions: Sequence[tuple[str, str, str]],
    columns: Sequence[Cells],
    positions: Mapping[str, int],
) -> tuple[Clique, Floats]:
    """Return the marginal of a rule, and its log potential."""
    masks: dict[int, Mask] = {}
    for name, operator, value in conditions:
        position = positions[name]
        mask = _find_cells(columns[position], operator, value, text)
        masks[position] = masks[position] & mask if position in masks else mask
    clique = tuple(sorted(masks))
    ruled_out = np.ones((), dtype=bool)
    for position in clique:
        # (cells of the first column, …): true where every condition is met.
        ruled_out = np.logical_and.outer(ruled_out, masks[position])
    return clique, np.where(ruled_out, -np.inf, 0.0).ravel()


def _find_cells(cells: Cells, operator: str, value: str, rule: str) -> Mask:
    """Return which cells of a column meet a condition."""
    gap = np.zeros(cells.size, dtype=bool)
    if cells.gap:
        gap[-1] = True
    if operator.endswith("missing"):
        if not cells.gap:
            raise InputError(
                f"rule {rule!r}: no cell of {cells.name!r} may be missing by the schema; declare it"
            )
        return ~gap if operator.startswith("!") else gap
    if cells.values:
        return _find_values(cells, operator, value, rule) & ~gap
    assert isinstance(cells.declared, Numeric | Date)
    threshold = _read_threshold(cells.name, cells.declared, operator, value)
    assert threshold is not None
    edge = _find_edge(threshold, operator, cells.whole)
    if operator in ("<", "<="):
        # A bin meets the condition only as a whole: its edges were cut at the threshold.
        mask = np.array(cells.edges[1:]) <= edge
    else:
        mask = np.array(cells.edges[:-1]) >= edge
    return np.append(mask, False) if cells.gap else mask


def _find_values(cells: Cells, operator: str, value: str, rule: str) -> Mask:
    """Return which declared values meet a condition."""
    size = cells.size
    if operator in ("=", "!="):
        position = Declared(cells.values).position(value)
        if position < 0:
            raise InputError(f"rule {rule!r}: {value!r} is no declared value of {cells.name!r}")
        mask = np.arange(size) == position
        return np.asarray(~mask if operator == "!=" else mask)
    numbers = [number_of(declared) for declared in cells.values]
    threshold = number_of(value)
    if threshold is None or None in numbers:
        raise InputError(
            f"rule {rule!r}: {operator} compares numbers, and {cells.name!r} or {value!r} has none"
        )
    array = np.array([float(number or math.nan) for number in numbers])
    bound = float(threshold)
    masks = {"<": array < bound, "<=": array <= bound, ">": array > bound, ">=": array >= bound}
    mask = np.zeros(size, dtype=bool)
    # The last cell, the gap, meets no comparison.
    mask[: array.size] = masks[operator]
    return mask


def _plain(value: Any) -> Any:
    """Return a declared value as a table has it."""
    return value.item() if isinstance(value, np.generic) else value


def _date_of(day: float) -> datetime.date:
    """Return the date that is so many days after the beginning of 1970."""
    return datetime.date(1970, 1, 1) + datetime.timedelta(days=int(day))
