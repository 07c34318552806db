"""Declarations about a table before a private query: all of them public, none looked up."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import date
from typing import Final

import numpy as np

from apiece import _check, datasets
from apiece._types import Json
from apiece.datasets.blocks import UNREADABLE
from apiece.datasets.cells import markers
from apiece.errors import DataError, InputError, as_given, unknown
from apiece.tables import ISO, Declared, text_of

KINDS: Final = ("numeric", "text", "date", "boolean")
# Of bounds, and of what they are apart its inverse: no estimate from any noisy sums overflows.
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
            low, high = _check.finite(f"{name} low", low), _check.finite(f"{name} high", high)
            if not (-LARGEST <= low < high <= LARGEST and high - low >= 1 / LARGEST):
                raise InputError(
                    f"bounds of {name!r}: {low:g} to {high:g}; low must be below high, by "
                    f"{1 / LARGEST:g} at least, and neither beyond {LARGEST:g}"
                )
            bounds[name] = (low, high)
        for kind in self.kinds.values():
            if kind not in KINDS:
                raise unknown("kind", kind, KINDS)
        groups = {name: tuple(map(_plain, values)) for name, values in self.groups.items()}
        missing = {name: tuple(map(_plain, values)) for name, values in self.missing.items()}
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
        put = object.__setattr__
        put(self, "bounds", bounds)
        put(self, "groups", groups)
        put(self, "kinds", dict(self.kinds))
        put(self, "missing", missing)
        put(self, "formats", dict(self.formats))

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
            bounds: More of them, or others than the schema's.
            groups: The same.
            kinds: The same.
            rows_per_person: As of `Schema`.
            decimal: As of `Schema`.

        Raises:
            InputError: As `Schema`.

        Example:
            >>> from apiece import datasets
            >>> from apiece.queries import Schema
            >>> people = datasets.Schema("people", {"age": datasets.Numeric(0.0, 120.0)})
            >>> Schema.of_columns("id", people, rows_per_person=1).bounds
            {'age': (0.0, 120.0)}
        """
        used = {name: kind for name, kind in columns.columns.items() if name != person}
        own_bounds, own_groups, own_kinds = {}, {}, {}
        missing, formats = {}, {}
        for name, kind in used.items():
            match kind:
                case datasets.Numeric():
                    own_bounds[name] = (kind.lower, kind.upper)
                case datasets.Categorical():
                    own_groups[name] = kind.values
                case datasets.Date():
                    own_kinds[name] = "date"
                    formats[name] = kind.format
                case _:
                    continue
            if given := [each for each in markers(kind.missing) if each]:
                missing[name] = given
        return cls(
            person,
            bounds=own_bounds | dict(bounds or {}),
            groups=own_groups | dict(groups or {}),
            rows_per_person=rows_per_person,
            kinds=own_kinds | dict(kinds or {}),
            missing=missing,
            formats={name: form for name, form in formats.items() if form != ISO},
            decimal=decimal,
        )

    def _check_groups(self, name: str, values: Sequence[str | float]) -> None:
        """Refuse declared values that are empty, two of one value, or not of the declared kind."""
        declared = Declared(values, self.kinds.get(name), self.decimal)
        if wrong := declared.unreadable():
            raise InputError(
                f"groups of {name!r}: {wrong[0]!r} is not {self.kinds[name]}; declare values of "
                "that kind"
            )
        if not values or declared.repeated() or None in map(text_of, values):
            raise InputError(f"groups of {name!r}: declare each value once, at least one")
        _refuse_unreadable(f"groups of {name!r}", [str(text_of(value)) for value in values])

    def declared(self, column: str) -> Declared:
        """Return a grouping column's declared values, with which its cells are compared.

        Args:
            column: A name.

        Raises:
            DataError: Where none are declared.
        """
        return Declared(self.groups_of(column), self.kinds.get(column), self.decimal)

    @property
    def terms(self) -> Json:
        """What a ledger compares: the declarations, without those that say nothing."""
        said = asdict(self)
        if self.decimal == ".":
            del said["decimal"]
        return {name: v for name, v in said.items() if v or name not in ("missing", "formats")}

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
        return tuple(dict.fromkeys((self.person, *self.bounds, *self.groups, *self.kinds)))

    @property
    def readings(self) -> tuple[tuple[str, str], ...]:
        """Every (column, kind) that a query can ask for."""
        pairs = [(column, self.kind_of(column)) for column in self.columns]
        pairs += [(column, "numeric") for column in self.bounds]
        return tuple(dict.fromkeys(pairs))

    def stored(self, column: str, kind: str) -> str:
        """Return the name of a reading in the registered table; no name of a user's enters SQL.

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


def _plain(value: object) -> str | float:
    """Return a declared value as plain Python, which an answer can hold."""
    value = value.item() if isinstance(value, np.generic) else value
    if isinstance(value, date):
        value = text_of(value) or ""
    if not isinstance(value, (str, int, float)):
        raise InputError(f"groups: {value!r} is neither a text nor a number; give one")
    return value


def _refuse_unreadable(what: str, texts: Sequence[str]) -> None:
    for text in texts:
        if UNREADABLE.search(text):
            raise InputError(
                f"{what}: {text!r} is not plain text; give text without control characters"
            )
