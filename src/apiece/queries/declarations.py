"""Declarations about a table as questions use them: all public, none taken from rows.

A `Schema` says of each column what it is. Questions ask the other way round: which columns have
bounds, which have groups, and by which kind is each compared. A ledger compares them in this form.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import date
from typing import Final

import numpy as np

from apiece import _check
from apiece._types import Json
from apiece.datasets.blocks import UNREADABLE
from apiece.datasets.cells import Date, list_markers
from apiece.datasets.schema import Boolean, Lookup, Numeric, Schema, Skip, Text
from apiece.errors import DataError, InputError, as_given, unknown
from apiece.tables.values import ISO, Declared, moment_of, text_of

# (value, low, high) of some groups.
GroupBounds = tuple[tuple[str | float, float, float], ...]
KINDS: Final = ("numeric", "text", "date", "boolean")
# The largest bound, and the inverse of the smallest distance of two: so no estimate from any noisy
# sums overflows.
LARGEST: Final = 1e60
# Declarations of an example: nobody's bounds and values.
EXAMPLE_BOUNDS: Final = (0, 100)
EXAMPLE_VALUES: Final = ("A", "B")
# Microseconds of a day.
_DAY: Final = 86_400_000_000
# Kind of a column → its declaration in a schema, and values for an example.
_COLUMNS: Final[dict[str, tuple[str, tuple[str | float, ...]]]] = {
    "numeric": ("Numeric", (1, 2)),
    "text": ("Text", EXAMPLE_VALUES),
    "date": ("Date", ("2024-01-31",)),
    "boolean": ("Boolean", (True, False)),
}


@dataclass(frozen=True, slots=True)
class Declarations:
    """What is declared about a table, by what a question needs: ids, bounds, groups and kinds.

    Raises `InputError` where low ≥ high or bounds are beyond ±1e60, a group is declared twice or is
    not of the column's kind, rows_per_person is below 1, or a name or value carries control
    characters; `OptionError` for an unknown kind.
    """

    # Column of the person's id; "" where none is declared.
    person: str
    # Column → (low, high), what its values are clamped to.
    bounds: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    # Column → its declared values; rows with others are left out. "" is the empty cell.
    groups: Mapping[str, Sequence[str | float]] = field(default_factory=dict)
    # How many rows one person brings at most; None where it is not declared.
    rows_per_person: int | None = None
    # Column → "numeric", "text", "date" or "boolean", how conditions and declared groups compare
    # it. By default a column with bounds is numeric, one with groups has their values.
    kinds: Mapping[str, str] = field(default_factory=dict)
    # Column → markers that stand for no value, as -99 or "NA". An empty cell is always missing.
    missing: Mapping[str, Sequence[str | float]] = field(default_factory=dict)
    # Column of kind date → how its texts are written, where that is not ISO 8601.
    formats: Mapping[str, str] = field(default_factory=dict)
    # The decimal mark of numbers that are texts, "." or ",".
    decimal: str = "."
    # Column of kind date → its first and last moment, in microseconds since 1970.
    periods: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    # Column → another one, and (value, low, high) of some of its groups.
    group_bounds: Mapping[str, tuple[str, GroupBounds]] = field(default_factory=dict)
    # Name → public table whose columns are among those above.
    lookups: Mapping[str, Lookup] = field(default_factory=dict)

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
        # A frozen instance sets its checked fields past its own guard.
        set_field = object.__setattr__
        set_field(self, "bounds", bounds)
        set_field(self, "groups", groups)
        set_field(self, "kinds", dict(self.kinds))
        set_field(self, "missing", missing)
        set_field(self, "formats", dict(self.formats))
        set_field(self, "periods", dict(self.periods))
        set_field(self, "group_bounds", dict(self.group_bounds))
        for name, (by, members) in self.group_bounds.items():
            self._check_group_bounds(name, by, members)
        set_field(self, "lookups", dict(self.lookups))
        self._check_keys()

    def _check_group_bounds(self, name: str, by: str, members: GroupBounds) -> None:
        """Refuse bounds of groups that are not declared, or of one group twice."""
        if by not in self.groups:
            raise InputError(
                f"bounds of {name!r} by {by!r}: the groups of {by!r} are not declared; declare them"
            )
        declared = self.declared(by)
        places = [declared.position(value) for value, _, _ in members]
        if -1 in places:
            value = members[places.index(-1)][0]
            raise unknown(f"group of {by!r}", value, [*map(str, declared.values)])
        if len(set(places)) < len(places):
            raise InputError(f"bounds of {name!r} by {by!r}: a group has two; give each once")

    @classmethod
    def from_schema(cls, schema: Schema) -> Declarations:
        """Return the declarations of a schema; skipped columns are not read.

        A range is a column's bounds, and its values are its groups. A column of categories is
        compared by what each value is; any other by the kind that it is declared as.
        """
        bounds: dict[str, tuple[float, float]] = {}
        groups: dict[str, Sequence[str | float]] = {}
        kinds: dict[str, str] = {}
        missing: dict[str, Sequence[str | float]] = {}
        formats: dict[str, str] = {}
        periods: dict[str, tuple[int, int]] = {}
        group_bounds: dict[str, tuple[str, GroupBounds]] = {}
        # The columns of a lookup table are as if they were the people's, and one more of it says
        # whether a row's key is there.
        columns = dict(schema.columns)
        for name, lookup in schema.lookups.items():
            columns |= {**lookup.columns, flag_of(name, lookup): Boolean()}
        for name, column in columns.items():
            if name == schema.person or isinstance(column, Skip):
                continue
            match column:
                case Numeric() if column.has_range:
                    bounds[name] = (column.lower, column.upper)
                    for by, members in column.group_bounds:
                        group_bounds[name] = (by, members)
                case Numeric():
                    kinds[name] = "numeric"
                case Date():
                    kinds[name] = "date"
                    if column.format != ISO:
                        formats[name] = column.format
                    if column.has_range:
                        periods[name] = _read_period(column)
                case Boolean():
                    kinds[name] = "boolean"
                case Text():
                    kinds[name] = "text"
            if column.values:
                groups[name] = column.values
            # The empty cell is missing in any case.
            texts = [marker for marker in list_markers(column.missing) if marker]
            if texts:
                missing[name] = texts
        return cls(
            schema.person or "",
            bounds=bounds,
            groups=groups,
            rows_per_person=schema.rows_per_person,
            kinds=kinds,
            missing=missing,
            formats=formats,
            decimal=schema.decimal,
            periods=periods,
            group_bounds=group_bounds,
            lookups=schema.lookups,
        )

    def _check_keys(self) -> None:
        """Refuse a lookup table by people's ids, and two of its keys that are one value."""
        for name, lookup in self.lookups.items():
            if lookup.on == self.person:
                raise InputError(
                    f"lookup {name}: by the column of people's ids, of which nothing is public; "
                    "register a table of people by itself"
                )
            keys = lookup.cells[lookup.key]
            declared = self.lookup_keys(lookup)
            for number, key in enumerate(keys):
                # The first declared value that equals a key must be that key itself.
                if declared.position(key) != number:
                    raise InputError(
                        f"lookup {name}: key {key!r} is no value of the kind of {lookup.on!r}, or "
                        "the same value as another key; give each key once, as it is declared"
                    )

    def lookup_keys(self, lookup: Lookup) -> Declared:
        """Return the keys of a lookup table, as the people's column is compared with them.

        Args:
            lookup: One of `lookups`.
        """
        # Cells and keys are compared by the kind of the people's column.
        kind = self.kinds.get(lookup.on)
        if kind is None and lookup.on in self.bounds:
            kind = "numeric"
        return Declared(lookup.cells[lookup.key], kind, self.decimal)

    def write_example(
        self,
        column: str,
        *,
        needs_bounds: bool = False,
        needs_groups: bool = False,
        kind: str | None = None,
    ) -> str:
        """Return a column's declaration in Python: what it has, and an example of what it needs.

        Args:
            column: A name.
            needs_bounds: Whether to add bounds.
            needs_groups: Whether to add groups.
            kind: One that the column is to have, where it has none.
        """
        bounds = EXAMPLE_BOUNDS if needs_bounds else self.bounds.get(column)
        kind = self.kinds.get(column, kind)
        if bounds is not None:
            # Bounds are of numbers, whatever the column was compared as.
            kind = "numeric"
        name = "Categorical"
        examples: tuple[str | float, ...] = EXAMPLE_VALUES
        if kind is not None:
            name, examples = _COLUMNS[kind]
        values = examples if needs_groups else self.groups.get(column, ())
        arguments: list[str] = []
        if bounds is not None:
            arguments += map(repr, bounds)
        if column in self.formats and kind == "date":
            arguments.append(f"format={self.formats[column]!r}")
        if values:
            arguments.append(f"{'' if kind is None else 'values='}{list(values)!r}")
        if column in self.missing:
            arguments.append(f"missing={list(self.missing[column])!r}")
        if column in self.group_bounds and bounds is not None:
            by, members = self.group_bounds[column]
            groups = {value: (low, high) for value, low, high in members}
            arguments.append(f"by_group={ {by: groups}!r}")
        return f"{name}({', '.join(arguments)})"

    def require_person(self) -> None:
        """Raise `DataError` where the column of people's ids is not declared."""
        if not self.person:
            raise DataError(
                "person: missing; name the column of people's ids, as in "
                + as_given("schema.declare(person='id')", flag="--person id")
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
        terms = asdict(replace(self, lookups={}))
        del terms["lookups"]
        if self.lookups:
            terms["lookups"] = {name: lookup.digest for name, lookup in self.lookups.items()}
        # Only derived columns are made from dates between bounds; their questions add them.
        del terms["periods"]
        if self.decimal == ".":
            del terms["decimal"]
        for name in ("missing", "formats", "group_bounds"):
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
            example = self.write_example(column, needs_bounds=True)
            raise DataError(
                f"column {column!r}: no declared bounds; declare them from what is known without "
                "looking at the data, as in "
                + as_given(
                    f"schema.declare({{{column!r}: {example}}})",
                    flag=f"--bounds {column}=0:100",
                )
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
            example = self.write_example(column, needs_groups=True)
            raise DataError(
                f"column {column!r}: no declared groups; declare them, as in "
                + as_given(
                    f"schema.declare({{{column!r}: {example}}})",
                    flag=f"--values {column}=A,B",
                )
                + f"; SELECT DISTINCT {column} finds those that enough people have, with a delta"
            )
        return tuple(self.groups[column])

    def kind_of(self, column: str, *, example: str = "text") -> str:
        """Return how a column is compared: "numeric", "text", "date" or "boolean".

        Args:
            column: A name.
            example: The kind that a message declares it as.

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
            + as_given(
                f"schema.declare({{{column!r}: {_COLUMNS[example][0]}()}})",
                flag=f"--kind {column}={example}",
            )
            + ", or its bounds or groups"
        )

    @property
    def columns(self) -> tuple[str, ...]:
        """The declared columns, the person's first, with those of lookup tables."""
        names = [self.person, *self.bounds, *self.groups, *self.kinds]
        return tuple(dict.fromkeys(names))

    @property
    def read_columns(self) -> tuple[str, ...]:
        """The columns that are read from the people's table, and no more."""
        public = {
            column
            for name, lookup in self.lookups.items()
            for column in (*lookup.columns, flag_of(name, lookup))
        }
        return tuple(column for column in self.columns if column not in public)

    @property
    def readings(self) -> tuple[tuple[str, str], ...]:
        """Every (column, kind) that a query can ask for."""
        # A column with bounds and a kind of its own is read twice: by its kind for conditions, and
        # as a number.
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


def flag_of(name: str, lookup: Lookup) -> str:
    """Return the name of the column that is true where a row's key is in a lookup table."""
    return f"{name}.{lookup.key}"


def _read_period(column: Date) -> tuple[int, int]:
    """Return the first and the last microsecond of the days of a column's declared range."""
    first = moment_of(column.lower)
    last = moment_of(column.upper)
    assert first is not None
    assert last is not None
    # Up to the last microsecond of the last day.
    return first, last + _DAY - 1


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
