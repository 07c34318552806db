"""Declarations about a table, made before a private query: all public, none taken from rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import date
from typing import Final

import numpy as np

from apiece import _check, datasets
from apiece._types import Json
from apiece.datasets.blocks import UNREADABLE
from apiece.datasets.cells import list_markers
from apiece.errors import DataError, InputError, as_given, unknown
from apiece.tables.values import ISO, Declared, text_of

KINDS: Final = ("numeric", "text", "date", "boolean")
# The largest bound, and the inverse of the smallest distance of two: so no estimate from any noisy
# sums overflows.
LARGEST: Final = 1e60


@dataclass(frozen=True, slots=True)
class Schema:
    """What is declared about a table: ids, bounds, groups and kinds; all of it public.

    Args:
        person: Column of the person's id.
        bounds: Column → (low, high), what its values are clamped to.
        groups: Column → its declared values; rows with others are left out. A cell is a declared
            value where it is the same text, number, boolean or moment, however it is stored and
            spelled: 1, "1.0" and "01", True and "TRUE", a date and its midnight. "" is the empty
            cell.
        rows_per_person: How many rows one person brings at most; more are dropped, by a choice that
            other people's rows do not touch. Without it only `count(persons)` without "by" can be
            asked.
        kinds: Column → "numeric", "text", "date" or "boolean", how `where` and declared groups
            compare it. By default a column with bounds is numeric, one with groups has their
            values, and the person's is text; no other can be named.
        missing: Column → markers that stand for no value, as -99 or "NA". An empty cell is missing
            in any case.
        formats: Column of kind date → how its texts are written, as for `strptime`; by default as
            ISO 8601.
        decimal: The decimal mark of numbers that are texts, "." or ",".

    Raises:
        InputError: Where low ≥ high or bounds are beyond ±1e60, a group is declared twice or is not
            of the column's kind, rows_per_person is below 1, or a name or value carries control
            characters.
        OptionError: For an unknown kind.

    Example:
        >>> from apiece.queries import Schema
        >>> Schema("id", bounds={"income": (0, 200_000)}, rows_per_person=1)
        Schema(person='id', bounds={'income': (0.0, 200000.0)}, groups={}, rows_per_person=1,
               kinds={}, missing={}, formats={}, decimal='.')
    """

    person: str
    bounds: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    groups: Mapping[str, Sequence[str | float]] = field(default_factory=dict)
    rows_per_person: int | None = None
    kinds: Mapping[str, str] = field(default_factory=dict)
    missing: Mapping[str, Sequence[str | float]] = field(default_factory=dict)
    formats: Mapping[str, str] = field(default_factory=dict)
    decimal: str = "."

    def __post_init__(self) -> None:
        bounds = {}
        for name, (low, high) in self.bounds.items():
            low = _check.finite(f"{name} low", low)
            high = _check.finite(f"{name} high", high)
            is_ordered = -LARGEST <= low < high <= LARGEST
            if not (is_ordered and high - low >= 1 / LARGEST):
                raise InputError(
                    f"bounds of {name!r}: {low:g} to {high:g}; low must be below high, by "
                    f"{1 / LARGEST:g} at least, and neither beyond {LARGEST:g}"
                )
            bounds[name] = (low, high)
        for kind in self.kinds.values():
            if kind not in KINDS:
                raise unknown("kind", kind, KINDS)
        groups = {name: tuple(map(_unwrap_value, vs)) for name, vs in self.groups.items()}
        missing = {name: tuple(map(_unwrap_value, vs)) for name, vs in self.missing.items()}
        for name, values in groups.items():
            self._check_groups(name, values)
        _refuse_unreadable("column", [str(name) for name in self.columns])
        if self.rows_per_person is not None:
            _check.count("rows_per_person", self.rows_per_person)
        undeclared = [name for name in (*missing, *self.formats) if name not in self.columns]
        if undeclared:
            raise InputError(
                f"column {undeclared[0]!r}: has markers of missing values or a format, and no "
                "bounds, groups or kind; declare them"
            )
        if self.decimal not in (".", ","):
            raise InputError(f"decimal = {self.decimal!r}: must be '.' or ','")
        set_field = object.__setattr__
        set_field(self, "bounds", bounds)
        set_field(self, "groups", groups)
        set_field(self, "kinds", dict(self.kinds))
        set_field(self, "missing", missing)
        set_field(self, "formats", dict(self.formats))

    @classmethod
    def of_columns(
        cls,
        person: str,
        columns: datasets.Schema,
        *,
        bounds: Mapping[str, tuple[float, float]] | None = None,
        groups: Mapping[str, Sequence[str | float]] | None = None,
        kinds: Mapping[str, str] | None = None,
        rows_per_person: int | None = None,
        decimal: str = ".",
    ) -> Schema:
        """Return the declarations of a public schema, as `apiece schema` writes and `train` takes.

        A numeric column's range is its bounds, the values of a categorical one are its groups, and
        a date is of that kind; markers of missing values and formats of dates go with them.

        Args:
            person: Column of the person's id, which is left out of the others.
            columns: A public schema; skipped columns are not read.
            bounds: Column → (low, high), in addition to the schema's or in their place.
            groups: Column → values, in addition to the schema's or in their place.
            kinds: Column → kind, in addition to the schema's or in their place.
            rows_per_person: How many rows one person brings at most.
            decimal: The decimal mark of numbers that are texts.

        Raises:
            InputError: For declarations that `Schema` refuses.

        Example:
            >>> from apiece import datasets
            >>> from apiece.queries import Schema
            >>> people = datasets.Schema("people", {"age": datasets.Numeric(0.0, 120.0)})
            >>> Schema.of_columns("id", people, rows_per_person=1).bounds
            {'age': (0.0, 120.0)}
        """
        ranges = {}
        categories = {}
        dates = {}
        missing = {}
        formats = {}
        for name, column in columns.columns.items():
            if name == person:
                continue
            match column:
                case datasets.Numeric():
                    ranges[name] = (column.lower, column.upper)
                case datasets.Categorical():
                    categories[name] = column.values
                case datasets.Date():
                    dates[name] = "date"
                    if column.format != ISO:
                        formats[name] = column.format
                case _:
                    continue
            # The empty cell is missing in any case.
            texts = [marker for marker in list_markers(column.missing) if marker]
            if texts:
                missing[name] = texts
        return cls(
            person,
            bounds=ranges | dict(bounds or {}),
            groups=categories | dict(groups or {}),
            rows_per_person=rows_per_person,
            kinds=dates | dict(kinds or {}),
            missing=missing,
            formats=formats,
            decimal=decimal,
        )

    def _check_groups(self, name: str, values: Sequence[str | float]) -> None:
        """Refuse declared values that are empty, two of one value, or not of the declared kind."""
        declared = Declared(values, self.kinds.get(name), self.decimal)
        unreadable = declared.find_unreadable()
        if unreadable:
            raise InputError(
                f"groups of {name!r}: {unreadable[0]!r} is not {self.kinds[name]}; declare values "
                "of that kind"
            )
        if not values or declared.find_repeats() or None in map(text_of, values):
            raise InputError(f"groups of {name!r}: declare each value once, at least one")
        _refuse_unreadable(f"groups of {name!r}", [str(text_of(value)) for value in values])

    def declared(self, column: str) -> Declared:
        """Return a grouping column's declared values, which tell which of them a cell is.

        Args:
            column: A name.

        Raises:
            DataError: Where none are declared.
        """
        return Declared(self.groups_of(column), self.kinds.get(column), self.decimal)

    @property
    def terms(self) -> Json:
        """The declarations as a ledger compares them."""
        # Those that came later are left out where they say nothing, so that older entries of a
        # ledger stay comparable.
        terms = asdict(self)
        if self.decimal == ".":
            del terms["decimal"]
        for name in ("missing", "formats"):
            if not terms[name]:
                del terms[name]
        return terms

    def bounds_of(self, column: str) -> tuple[float, float]:
        """Return a column's bounds; they are never taken from the data.

        Args:
            column: A name.

        Raises:
            DataError: Where none are declared.
        """
        if column not in self.bounds:
            raise DataError(
                f"column {column!r}: no declared bounds; declare them from what is known without "
                "looking at the data, as in "
                + as_given("bounds", {column: (0, 100)}, flag=f"--bounds {column}=0:100")
            )
        return self.bounds[column]

    def groups_of(self, column: str) -> tuple[str | float, ...]:
        """Return a grouping column's declared values.

        Args:
            column: A name.

        Raises:
            DataError: Where none are declared.
        """
        if column not in self.groups:
            raise DataError(
                f"column {column!r}: no declared groups; declare them, as in "
                + as_given("groups", {column: ["A", "B"]}, flag=f"--values {column}=A,B")
            )
        return tuple(self.groups[column])

    def kind_of(self, column: str) -> str:
        """Return how a column is compared: "numeric", "text", "date" or "boolean".

        Args:
            column: A name.

        Raises:
            DataError: Where nothing about it is declared.
        """
        if column in self.kinds:
            return self.kinds[column]
        if column in self.bounds:
            return "numeric"
        if column in self.groups or column == self.person:
            return "text"
        raise DataError(
            f"column {column!r}: no declared kind; declare numeric, text, date or boolean, as in "
            f"{as_given('kinds', {column: 'text'}, flag=f'--kind {column}=text')}, or its bounds "
            "or groups"
        )

    @property
    def columns(self) -> tuple[str, ...]:
        """The declared columns, the person's first: what is read from a table, and no more."""
        names = [self.person, *self.bounds, *self.groups, *self.kinds]
        return tuple(dict.fromkeys(names))

    @property
    def readings(self) -> tuple[tuple[str, str], ...]:
        """Every (column, kind) that a query can ask for."""
        pairs = [(column, self.kind_of(column)) for column in self.columns]
        pairs += [(column, "numeric") for column in self.bounds]
        return tuple(dict.fromkeys(pairs))

    def stored(self, column: str, kind: str) -> str:
        """Return the name of a reading in the registered table, which is not the user's name.

        Args:
            column: A declared column.
            kind: One that it can be read as.
        """
        return f"c{self.readings.index((column, kind))}"

    def stored_group(self, column: str) -> str:
        """Return the name of the numbers of a column's declared groups in the registered table.

        Args:
            column: A column with declared groups.
        """
        self.groups_of(column)
        return f"g{list(self.groups).index(column)}"


def _unwrap_value(value: object) -> str | float:
    """Return a declared value as a text or number of Python's, which an answer can hold."""
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, date):
        value = text_of(value) or ""
    if not isinstance(value, (str, int, float)):
        raise InputError(f"groups: {value!r} is neither a text nor a number; give one")
    return value


def _refuse_unreadable(source: str, texts: Sequence[str]) -> None:
    """Raise `InputError` for a text with control characters; `source` names it in the message."""
    for text in texts:
        if UNREADABLE.search(text):
            raise InputError(
                f"{source}: {text!r} is not plain text; give text without control characters"
            )
