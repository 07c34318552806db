"""Public schemas: what is known about a table's columns without looking at anybody's values.

Feature encoding that learns ranges or categories from private rows leaks them, and no ε accounts
for it; nor does one account for a question's groups and bounds. So every range, category and
missing-value marker is declared, in Python or in a TOML file of tables [columns.NAME]; the guide of
the main job shows one, and `template` writes one to be filled in.
"""

from __future__ import annotations

import datetime
import hashlib
import json
import math
import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from decimal import Decimal
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, Literal

from apiece import _check
from apiece._json import read_toml
from apiece._lazy import require
from apiece._types import Json
from apiece.datasets.cells import (
    Date,
    Missing,
    Value,
    check_knots,
    list_markers,
    read_declared,
)
from apiece.datasets.tables import read_table
from apiece.errors import DataError, InputError, unknown

# A column, and some of its groups with low and high: of at most one column.
GroupBounds = tuple[tuple[str, tuple[tuple[Value, float, float], ...]], ...]


@dataclass(frozen=True, slots=True)
class Numeric:
    """A column of numbers known to lie in [lower, upper].

    Args:
        lower: What smaller numbers are clipped to. Training, and a question about sums, means or
            quantiles, need both ends; without them the column can be compared in questions.
        upper: What larger numbers are clipped to.
        scale: "linear", or "log" for long tails, in training.
        missing: True for empty cells, NaN and None, or the texts that stand for no value, of which
            "" is the empty cell. They become an indicator, and the middle of the scale in place of
            the number: a fill that no row has a say in.
        values: Numbers that questions may group by; training does not use them.
        knots: Points of the curve that training fits in place of a straight line, at least 2: they
            lie evenly between lower and upper, on the scale. 0 for a straight line.
        by_group: {"job": {"clerk": (0, 5e4)}}: narrower bounds of groups of one other column, in
            questions that are grouped by it. Groups that are not named have the column's own.

    Raises:
        DataError: Unless lower < upper, both finite or both left out, and for "log" lower at least
            0; for a value that is given twice, for another number of knots, and for bounds of a
            group that are not within the column's.

    Example:
        >>> from apiece.datasets import Numeric
        >>> Numeric(30.0, 200.0, missing=True)
        Numeric(lower=30.0, upper=200.0, scale='linear', missing=('',), values=(), knots=0, \
by_group=())
    """

    lower: float = -math.inf
    upper: float = math.inf
    scale: Literal["linear", "log"] = "linear"
    missing: Missing = ()
    values: Sequence[Value] = ()
    knots: int = 0
    by_group: GroupBounds | Mapping[str, Mapping[Any, Sequence[float]]] = ()

    def __post_init__(self) -> None:
        # The class is frozen: fields are set past it, each in its canonical form.
        object.__setattr__(self, "knots", check_knots(self.knots))
        if self.has_range:
            for end in ("lower", "upper"):
                number = _check.finite(end, getattr(self, end), error=DataError)
                object.__setattr__(self, end, number)
        object.__setattr__(self, "missing", list_markers(self.missing))
        object.__setattr__(self, "values", read_declared(self.values))
        if not self.lower < self.upper:
            raise DataError(f"lower = {self.lower:g} must be less than upper = {self.upper:g}")
        if self.scale not in ("linear", "log"):
            raise DataError(str(unknown("scale", self.scale, ["linear", "log"])))
        if self.scale == "log" and self.lower < 0:
            raise DataError(
                f"lower = {self.lower:g} with scale = 'log', which is for amounts from 0 up; give "
                'a lower end of at least 0, or scale = "linear"'
            )
        object.__setattr__(self, "by_group", self._read_group_bounds(self.by_group))

    def _read_group_bounds(self, by_group: Any) -> GroupBounds:
        """Return the bounds of groups, checked; raise `DataError` for others."""
        if not isinstance(by_group, Mapping):
            # A copy made by `replace` hands over what was read before: tuples instead of a mapping.
            by_group = {column: {v: ends for v, *ends in groups} for column, groups in by_group}
        if len(by_group) > 1 or (by_group and not self.has_range):
            raise DataError(
                "by_group: is of the groups of one column, within lower and upper; give these, and "
                "bounds as in {'job': {'clerk': (0, 5e4)}}"
            )
        read = []
        for column, groups in by_group.items():
            bounds = []
            for value, ends in groups.items():
                label = f"by_group, {column} {value!r}"
                if not isinstance(ends, Sequence) or len(ends) != 2:
                    raise DataError(f"{label}: {ends!r} is not low and high; give both")
                low, high = (_check.finite(label, end, error=DataError) for end in ends)
                if not self.lower <= low < high <= self.upper:
                    raise DataError(
                        f"{label}: {low:g} to {high:g} is not within {self.lower:g} to "
                        f"{self.upper:g}; give bounds within the column's"
                    )
                bounds.append((value, low, high))
            read.append((str(column), tuple(bounds)))
        return tuple(read)

    @property
    def group_bounds(self) -> GroupBounds:
        """The bounds of groups, as they were read."""
        assert not isinstance(self.by_group, Mapping)
        return self.by_group

    @property
    def has_range(self) -> bool:
        """Whether a range is declared; without one all numbers are meant."""
        return (self.lower, self.upper) != (-math.inf, math.inf)


@dataclass(frozen=True, slots=True)
class Categorical:
    """A column of declared values.

    Args:
        values: What a cell may be: texts, numbers, booleans or dates. A cell is a declared value
            where it is the same text, number, boolean or moment, however it is stored and spelled:
            1, "1.0" and "01", True and "TRUE", a date and its midnight. Anything else is none of
            them.
        missing: True for empty cells, NaN and None, or the texts that stand for no value, of which
            "" is the empty cell. They become an indicator.

    Raises:
        DataError: For no value, one given twice, or one that is a missing marker.

    Example:
        >>> from apiece.datasets import Categorical
        >>> Categorical(("north", "south"), missing=("?",)).values
        ('north', 'south')
    """

    values: Sequence[Value]
    missing: Missing = ()

    def __post_init__(self) -> None:
        markers = list_markers(self.missing)
        object.__setattr__(self, "values", read_declared(self.values))
        object.__setattr__(self, "missing", markers)
        # A text that is a value and a marker would say two things of one cell.
        if not self.values or set(self.labels) & set(markers):
            raise DataError("give at least one value, none of them a missing marker")

    @property
    def labels(self) -> tuple[str, ...]:
        """The values as texts: names of classes and of features."""
        return tuple(map(str, self.values))


@dataclass(frozen=True, slots=True)
class Boolean:
    """A column of truths: true or false in any case, or the numbers 1 and 0.

    Args:
        values: True, False or both, that questions may group by.
        missing: True for empty cells, NaN and None, or the texts that stand for no value, of which
            "" is the empty cell. In training they become an indicator.

    Raises:
        DataError: For a value or marker given twice.

    Example:
        >>> from apiece.datasets import Boolean
        >>> Boolean()
        Boolean(values=(), missing=())
    """

    values: Sequence[Value] = ()
    missing: Missing = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "values", read_declared(self.values))
        object.__setattr__(self, "missing", list_markers(self.missing))


@dataclass(frozen=True, slots=True)
class Text:
    """A column of texts that questions compare letter by letter; training does not use it.

    Args:
        values: Texts that questions may group by, spelled just so: "01" is not "1" here, as it may
            be in a `Categorical` column.
        missing: True for empty cells, or the texts that stand for no value, of which "" is the
            empty cell.

    Raises:
        DataError: For a value or marker given twice.

    Example:
        >>> from apiece.datasets import Text
        >>> Text(missing=("n/a",))
        Text(values=(), missing=('n/a',))
    """

    values: Sequence[Value] = ()
    missing: Missing = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "values", read_declared(self.values))
        object.__setattr__(self, "missing", list_markers(self.missing))


@dataclass(frozen=True, slots=True)
class Skip:
    """A column that is not used.

    Example:
        >>> from apiece.datasets import Skip
        >>> Skip()
        Skip()
    """


Feature = Numeric | Categorical | Date
Column = Feature | Boolean | Text | Skip
# Columns of which training makes no feature.
UNUSED: Final = (Text, Skip)


# Distinct values of a lookup table's column that questions may group by, at most.
_GROUPS: Final = 10_000
# Rows of a lookup table, at most.
_LOOKUP_ROWS: Final = 1_000_000
# A number in a text, without zeros in front, which codes have.
_PLAIN_NUMBER: Final = re.compile(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?")
# A day in a text.
_PLAIN_DAY: Final = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")


@dataclass(frozen=True, slots=True)
class Lookup:
    """A public table that says more of a column's values, as the region of each postcode.

    Its columns, but for the key, are columns of the people's table in every question: each row has
    the cells of its key, or null where the key is not in the lookup table. Their bounds and values
    are those that the lookup table has, which is public; it is never the people's own.

    Args:
        rows: The path of a CSV or Parquet file, a pandas, Polars or Arrow table, or name → cells.
        key: Its column that is compared, with each value once.
        on: The people's column that it is compared with; by default the one of the same name.
        columns: Declarations in place of those that follow: numbers have the table's bounds, texts
            its values (up to 10,000), dates its first and last day.

    Raises:
        DataError: For a file that cannot be read, a table without the key, without rows or of more
            than 1,000,000, a key that is empty or there twice, columns of unlike lengths.

    Example:
        >>> from apiece.datasets import Lookup
        >>> rows = {"postcode": ["53111", "07743"], "region": ["west", "east"]}
        >>> regions = Lookup(rows, "postcode")
        >>> regions.columns["region"].values
        ('east', 'west')
    """

    rows: Any = field(repr=False, compare=False)
    key: str
    on: str = ""
    columns: Mapping[str, Column] = field(default_factory=dict)
    # Column → its cells as Python's values, None where there is none; the key's too.
    cells: Mapping[str, tuple[Any, ...]] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        set_field = object.__setattr__
        # Names become texts first, as pandas may have numbers for them.
        cells = {str(name): column for name, column in _read_lookup(self.rows).items()}
        if self.key not in cells:
            raise DataError(
                f"lookup: no column {self.key!r}; its columns are {', '.join(sorted(cells)[:8])}"
            )
        # All columns must have as many cells as the table has rows.
        sizes = {len(column) for column in cells.values()}
        if len(sizes) > 1 or not 1 <= max(sizes) <= _LOOKUP_ROWS:
            raise DataError(
                f"lookup by {self.key!r}: give from 1 to {_LOOKUP_ROWS:,} rows, with a cell in "
                "each column"
            )
        keys = cells[self.key]
        if None in keys:
            raise DataError(f"lookup by {self.key!r}: a row has no key; give each row one")
        # By Python's equality, for which 1, 1.0 and True are one key.
        ((commonest, count),) = Counter(keys).most_common(1)
        if count > 1:
            raise DataError(
                f"lookup by {self.key!r}: {commonest!r} is there {count} times; give each key once"
            )
        # Declarations that are not given follow from the lookup table, which is public as a whole.
        columns = {}
        for name in cells.keys() - {self.key}:
            column = self.columns.get(name)
            columns[name] = _declare_public(cells[name]) if column is None else column
        unknown_names = self.columns.keys() - columns.keys()
        if unknown_names:
            raise DataError(
                f"lookup by {self.key!r}: no column {min(unknown_names)!r}; declare those it has"
            )
        # The table that was given is let go: `cells` holds its values, in Python's own types.
        set_field(self, "rows", None)
        set_field(self, "on", self.on or self.key)
        # In the order of the table, which a set of names has lost.
        set_field(self, "columns", {name: columns[name] for name in cells if name in columns})
        set_field(self, "cells", cells)

    @property
    def digest(self) -> str:
        """SHA-256 of the table, of which column is compared, and of what is declared."""
        text = json.dumps(self.to_dict(), sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()

    def to_dict(self) -> Json:
        """Return the lookup table as a schema in JSON has it, with its rows."""
        rows = {
            name: [cell.isoformat() if isinstance(cell, datetime.date) else cell for cell in cells]
            for name, cells in self.cells.items()
        }
        columns = {name: _write_column(column) for name, column in self.columns.items()}
        return {"key": self.key, "on": self.on, "rows": rows, "columns": columns}


def _read_lookup(rows: object) -> dict[str, tuple[Any, ...]]:
    """Return the cells of a public table, texts as the numbers or days that all of them are."""
    is_text = isinstance(rows, str | Path)
    if is_text:
        rows = read_table(Path(str(rows)))
    if isinstance(rows, Mapping):
        columns: dict[str, Sequence[Any]] = {name: list(cells) for name, cells in rows.items()}
    elif hasattr(rows, "to_pydict"):
        columns = rows.to_pydict()
    elif hasattr(rows, "columns") and hasattr(rows, "__getitem__"):
        columns = {str(name): list(rows[name]) for name in rows.columns}
    else:
        raise DataError(
            f"lookup: {type(rows).__name__} is no table; give a path, a pandas, Polars or Arrow "
            "table, or name → cells"
        )
    return {str(name): tuple(map(_read_public, cells)) for name, cells in columns.items()}


def _read_public(cell: object) -> object:
    """Return a cell of a public table as a text, number, boolean, day or None."""
    # NumPy's scalars become Python's.
    if hasattr(cell, "item") and not isinstance(cell, str):
        cell = cell.item()
    if isinstance(cell, datetime.datetime):
        # pandas' NaT is a datetime that does not equal itself.
        cell = cell.date() if cell == cell else None
    if isinstance(cell, str):
        return cell.strip() or None
    if isinstance(cell, int | datetime.date):
        return cell
    if isinstance(cell, float | Decimal):
        return float(cell) if math.isfinite(cell) else None
    # None, NaN and pandas' NA.
    if cell is None or cell != cell or type(cell).__name__ == "NAType":
        return None
    raise DataError(f"lookup: {cell!r} is no text, number, boolean or day; leave its column out")


def _declare_public(cells: Sequence[Any]) -> Column:
    """Return the declaration that follows from a public column's cells."""
    # What an empty cell holds says nothing of a column's kind.
    present = [cell for cell in cells if cell is not None]
    distinct = list(dict.fromkeys(present))
    # Before numbers, as True is one to Python.
    if present and all(isinstance(cell, bool) for cell in present):
        return Boolean(values=(False, True))
    if present and all(_is_number(cell) for cell in present):
        numbers = sorted(map(float, distinct))
        low = numbers[0]
        high = numbers[-1]
        if low == high:
            # A constant lies between 0 and itself, and 0 between 0 and 1.
            low = min(low, 0.0)
            high = max(high, 0.0) or float(low == 0)
        # Whole numbers that are few may be codes, which questions group by.
        is_coded = len(numbers) <= _GROUPS and all(number.is_integer() for number in numbers)
        values = tuple(map(int, numbers)) if is_coded else ()
        return Numeric(low, high, values=values)
    days = [_read_day(cell) for cell in present]
    if present and None not in days:
        ordered = sorted(day for day in days if day is not None)
        # A range needs two different ends, also where there is one day.
        last = max(ordered[-1], ordered[0] + datetime.timedelta(days=1))
        return Date(ordered[0], last)
    texts = sorted(map(str, distinct))
    return Text(values=texts if 0 < len(texts) <= _GROUPS else ())


def _is_number(cell: object) -> bool:
    if isinstance(cell, str):
        return _PLAIN_NUMBER.fullmatch(cell) is not None
    return isinstance(cell, int | float) and not isinstance(cell, bool)


def _read_day(cell: object) -> datetime.date | None:
    if isinstance(cell, datetime.date):
        return cell
    if isinstance(cell, str) and _PLAIN_DAY.fullmatch(cell):
        try:
            return datetime.date.fromisoformat(cell)
        except ValueError:
            return None
    return None


@dataclass(frozen=True, slots=True)
class Schema:
    """What is declared about a table: its columns in order, and whose rows they are; all public.

    Training reads ranges, categories and markers of missing values from it. Questions read the same
    declarations: a range is the bounds that values are clamped to, values are the groups of `by`.

    Args:
        columns: Name → declaration. Columns that are not named are not used.
        name: Of the schema, for messages.
        person: Column of the person's id, which questions need.
        rows_per_person: How many rows one person brings at most; surplus rows do not count in an
            answer, by a choice that other people's rows do not touch. A public number, never one
            counted in the rows. Without it the only question is `count(persons)` without `by`.
        decimal: The decimal mark of numbers that are texts, "." or ",".
        lookups: Name → public table whose columns questions may ask for; training does not use
            them.

    Raises:
        DataError: For what is no declaration of a column, a name that is no text, an unknown
            decimal mark, a lookup table by a column that is not declared, or one of whose columns
            has the name of another column.
        InputError: Where rows_per_person is below 1.

    Example:
        >>> from apiece.datasets import Categorical, Numeric, Schema, Skip
        >>> columns = {"age": Numeric(0, 120), "town": Categorical(("A", "B")), "note": Skip()}
        >>> schema = Schema(columns, person="id", rows_per_person=1)
        >>> list(schema.features(but=set()))
        ['age', 'town']
    """

    columns: Mapping[str, Column]
    name: str = field(default="table", kw_only=True)
    person: str | None = field(default=None, kw_only=True)
    rows_per_person: int | None = field(default=None, kw_only=True)
    decimal: str = field(default=".", kw_only=True)
    lookups: Mapping[str, Lookup] = field(default_factory=dict, kw_only=True)

    def __post_init__(self) -> None:
        if not isinstance(self.columns, Mapping):
            raise DataError(
                f"columns = {self.columns!r}: must map names to declarations, as in "
                "{'age': Numeric(0, 120)}"
            )
        columns: Mapping[Any, Any] = self.columns
        person: object = self.person
        for name, column in columns.items():
            if not isinstance(name, str) or not isinstance(column, Column):
                raise DataError(
                    f"schema {self.name}, column {name!r}: {column!r} declares no column; give "
                    "Numeric, Categorical, Date, Boolean, Text or Skip"
                )
        if person is not None and (not isinstance(person, str) or not person):
            raise DataError(f"person = {person!r}: must be the name of a column, as in 'id'")
        if self.rows_per_person is not None:
            _check.count("rows_per_person", self.rows_per_person)
        if self.decimal not in (".", ","):
            raise DataError(f"decimal = {self.decimal!r}: must be '.' or ','")
        object.__setattr__(self, "columns", dict(self.columns))
        object.__setattr__(self, "lookups", dict(self.lookups))
        self._check_lookups()

    def _check_lookups(self) -> None:
        """Refuse a lookup table by an undeclared column, and two columns of one name."""
        names = {*self.columns, self.person}
        for name, lookup in self.lookups.items():
            given: object = lookup
            if not isinstance(given, Lookup) or not name.isidentifier():
                raise DataError(
                    f"lookup {name!r}: give name → Lookup(rows, key), the name a word of SQL"
                )
            # Questions join by this column, and so must be able to read it.
            on = self.columns.get(lookup.on)
            if on is None or isinstance(on, Skip):
                raise DataError(
                    f"lookup {name}: the people's column {lookup.on!r} is not declared; declare "
                    f"it, as in {{{lookup.on!r}: Text()}} or --kind {lookup.on}=text, or name "
                    "another one: on= or NAME=FILE::KEY::COLUMN"
                )
            # The key of a lookup table is a column of its own in questions.
            for column in (*lookup.columns, f"{name}.{lookup.key}"):
                if column in names:
                    raise DataError(
                        f"lookup {name}: a column {column!r} is declared already; give it another "
                        "name in the lookup table"
                    )
                names.add(column)

    @classmethod
    def from_dict(cls, data: Mapping[str, object], name: str, *, folder: Path = Path()) -> Schema:
        """Return the schema in `data`.

        Args:
            data: As in TOML: `columns`, which maps names to declarations, and maybe `person`,
                `rows_per_person`, `decimal` and `lookups`.
            name: Of the schema, for messages.
            folder: Where the files of lookup tables lie.

        Raises:
            DataError: Where it holds anything else.
        """
        columns = data.get("columns")
        extra = sorted(set(data) - _KEYS)
        if not isinstance(columns, dict) or not columns or extra:
            found = f"{', '.join(map(repr, extra))}: no part of a schema; " if extra else ""
            raise DataError(
                f"schema {name}: {found}it must hold tables [columns.NAME], maybe [lookups.NAME], "
                "before them maybe person, rows_per_person and decimal, and nothing else"
            )
        # What is left is checked by the class, whose messages name the schema.
        settings: dict[str, Any] = {key: value for key, value in data.items() if key != "columns"}
        settings["lookups"] = _read_lookups(data.get("lookups", {}), name, folder)
        declared = {key: _read_column(key, value, name) for key, value in columns.items()}
        try:
            return cls(declared, name=name, **settings)
        except InputError as error:
            raise DataError(f"schema {name}: {error}") from None

    def declare(
        self,
        columns: Mapping[str, Column] = MappingProxyType({}),
        *,
        person: str | None = None,
        rows_per_person: int | None = None,
        decimal: str | None = None,
        lookups: Mapping[str, Lookup] = MappingProxyType({}),
    ) -> Schema:
        """Return the schema with more declarations, or with others in place of those it has.

        Args:
            columns: Name → declaration.
            person: Column of the person's id.
            rows_per_person: How many rows one person brings at most.
            decimal: The decimal mark of numbers that are texts.
            lookups: Name → public table.

        Raises:
            InputError: For declarations that the class refuses.

        Example:
            >>> from apiece.datasets import Numeric, Schema
            >>> schema = Schema({"age": Numeric(0, 120)}).declare({"pay": Numeric(0, 9e5)})
            >>> list(schema.columns)
            ['age', 'pay']
        """
        return Schema(
            {**self.columns, **columns},
            name=self.name,
            person=self.person if person is None else person,
            rows_per_person=self.rows_per_person if rows_per_person is None else rows_per_person,
            decimal=self.decimal if decimal is None else decimal,
            lookups={**self.lookups, **lookups},
        )

    def features(self, *, but: set[str]) -> dict[str, Feature]:
        """Return the declared columns that make features of training.

        They are all but those in `but`, the person's, and columns that are skipped or texts. A
        boolean is one of two categories, and values of categories are texts.

        Args:
            but: Names of columns with another use.

        Raises:
            DataError: Where none is left, and for a number or date whose range is not declared.
        """
        features: dict[str, Feature] = {}
        for name, column in self.columns.items():
            if name in but or name == self.person or isinstance(column, UNUSED):
                continue
            features[name] = self._make_feature(name, column)
        if not features:
            raise DataError(f"schema {self.name}: it declares no feature column; declare one")
        return features

    def _make_feature(self, name: str, column: Feature | Boolean) -> Feature:
        """Return the declaration of a column as training reads it."""
        if isinstance(column, Boolean):
            return Categorical(("False", "True"), missing=column.missing)
        if isinstance(column, Categorical):
            return replace(column, values=column.labels)
        if not column.has_range:
            raise DataError(
                f"schema {self.name}, column {name!r}: lower and upper are missing; training needs "
                'the public range of the column, or kind = "skip"'
            )
        return column

    def target(self, label: str) -> Categorical | Numeric:
        """Return the declaration of the label column: its classes, or the range of a number.

        Args:
            label: Its name.

        Raises:
            DataError: Where it is not declared, or not as such.
        """
        column = self.columns.get(label)
        if column is None:
            raise DataError(
                f"label {label!r}: not declared in schema {self.name}; "
                f'add [columns.{label}] with kind = "categorical" and its values, or "numeric" and '
                "its range"
            )
        # A label is read as a feature is: booleans as two categories, values as texts.
        if not isinstance(column, UNUSED):
            column = self._make_feature(label, column)
        if isinstance(column, Numeric):
            if not column.missing:
                return column
            raise DataError(
                f"label {label!r}: schema {self.name} declares that it may be missing; a row "
                "without a number to predict teaches nothing: leave missing out, and such rows"
            )
        if not isinstance(column, Categorical) or len(column.values) < 2:
            raise DataError(
                f"label {label!r}: schema {self.name} must declare it categorical with at least "
                "2 values (one class cannot be learned), or numeric with a range"
            )
        return column

    def classes(self, label: str) -> tuple[str, ...]:
        """Return the declared values of the label column, at least two.

        Args:
            label: Its name.

        Raises:
            DataError: Where it is not declared, or not as such.
        """
        column = self.target(label)
        if isinstance(column, Categorical):
            return column.labels
        raise DataError(
            f"label {label!r}: schema {self.name} must declare it categorical with at least "
            "2 values; one class cannot be learned"
        )

    def to_dict(self) -> Json:
        """Return the schema as `from_dict` reads it."""
        settings: Json = {}
        if self.person is not None:
            settings["person"] = self.person
        if self.rows_per_person is not None:
            settings["rows_per_person"] = self.rows_per_person
        if self.decimal != ".":
            settings["decimal"] = self.decimal
        if self.lookups:
            settings["lookups"] = {name: table.to_dict() for name, table in self.lookups.items()}
        columns = {name: _write_column(column) for name, column in self.columns.items()}
        return {**settings, "columns": columns}


def read_schema(path: str | Path) -> Schema:
    r"""Return the schema in a TOML file.

    Args:
        path: Of the file.

    Raises:
        DataError: Where it holds none.

    Example:
        >>> import tempfile
        >>> from pathlib import Path
        >>> from apiece.datasets import read_schema
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = Path(folder, "people.toml")
        ...     _ = path.write_text("[columns.age]\nkind = 'numeric'\nlower = 0\nupper = 9\n")
        ...     list(read_schema(path).columns)
        ['age']
    """
    path = Path(path)
    return Schema.from_dict(read_toml(path, "schema"), path.name, folder=path.parent)


# The word of a schema's file → the kind of a column.
_KINDS: Final[dict[str, type[Column]]] = {
    "numeric": Numeric,
    "categorical": Categorical,
    "date": Date,
    "boolean": Boolean,
    "text": Text,
    "skip": Skip,
}
# What a schema's file may hold at its top.
_KEYS: Final = {"columns", "person", "rows_per_person", "decimal", "lookups"}
# What a schema's file may say about a lookup table.
_LOOKUP_KEYS: Final = {"file", "rows", "key", "on", "columns"}
# Settings that a file leaves out where they say nothing.
_OPTIONAL: Final = {"values", "knots", "by_group"}
# The two ends of a range.
_ENDS: Final = {"lower", "upper"}


def _read_lookups(data: object, schema: str, folder: Path) -> dict[str, Lookup]:
    """Return the lookup tables of a schema's file, or raise `DataError`."""
    lookups: dict[str, Lookup] = {}
    tables: dict[str, Any] = data if isinstance(data, dict) else {"": None}
    for name, table in tables.items():
        # Either rows, or a file that holds them.
        location = f"schema {schema}, lookup {name!r}"
        is_known = isinstance(table, dict) and set(table) <= _LOOKUP_KEYS
        if not is_known or "key" not in table or ("file" in table) == ("rows" in table):
            raise DataError(f"{location}: give file and key, and maybe on and columns")
        # A path in a schema counts from the schema's own folder.
        rows = folder / str(table["file"]) if "file" in table else table["rows"]
        declared = table.get("columns", {})
        columns = {key: _read_column(key, value, schema) for key, value in declared.items()}
        try:
            lookups[name] = Lookup(rows, table["key"], table.get("on", ""), columns)
        except DataError as error:
            raise DataError(f"{location}: {error}") from None
    return lookups


def _read_column(key: str, value: object, schema: str) -> Column:
    """Return the declaration of a column in a schema's file, or raise `DataError`."""
    location = f"schema {schema}, column {key!r}"
    if not isinstance(value, dict) or "kind" not in value:
        raise DataError(f"{location}: kind is missing; give one of {', '.join(map(repr, _KINDS))}")
    kind = value["kind"]
    if kind not in _KINDS:
        raise DataError(f"{location}: {unknown('kind', kind, _KINDS)}")
    # Every kind may say what is missing, also one that is skipped.
    known = {"missing", *(field.name for field in fields(_KINDS[kind]))}
    settings = {name: setting for name, setting in value.items() if name != "kind"}
    for name in settings.keys() - known:
        raise DataError(f"{location}: {unknown(f'key of a {kind} column', name, known)}")
    if kind == "skip":
        return Skip()
    # Without values the class's own message names them.
    if kind == "categorical":
        settings.setdefault("values", [])
    # Ends may both be left out, for questions alone.
    absent = _ENDS - settings.keys()
    if kind in ("numeric", "date") and len(absent) == 1:
        (end,) = absent
        raise DataError(f"{location}: {end} is missing; give the public range of the column")
    try:
        column: Column = _KINDS[kind](**settings)
    except DataError as error:
        raise DataError(f"{location}: {error}") from None
    return column


def _write_column(column: Column) -> Json:
    """Return the declaration of a column as JSON values."""
    settings: Json = {"kind": next(k for k, kind in _KINDS.items() if isinstance(column, kind))}
    has_range = not isinstance(column, Numeric | Date) or column.has_range
    for attribute in fields(column):
        value = getattr(column, attribute.name)
        # What says nothing is left out.
        says_nothing = attribute.name in _OPTIONAL and not value
        if says_nothing or (attribute.name in _ENDS and not has_range):
            continue
        if attribute.name == "by_group":
            # Keys of JSON are texts.
            value = {name: {str(v): ends for v, *ends in groups} for name, groups in value}
        elif isinstance(value, tuple):
            value = list(value)
        elif isinstance(value, datetime.date):
            value = value.isoformat()
        settings[attribute.name] = value
    return settings


# Comments at the top of a template.
_INTRO: Final = """\
# Public schema of {name}: fill in every line marked '?', then pass it with --schema.
# Written from the names in the file's header{types}; no row was read.
# Give only what you know without looking at the people in this table: a questionnaire's codes, an
# official code list, a plausible range. Ranges and categories taken from the rows themselves would
# leak them, and no epsilon would account for that.
#   kind = "numeric"      lower, upper; scale = "log" for long tails; knots = 16 for a curve
#   kind = "categorical"  values = [...]
#   kind = "date"         lower = 1900-01-01, upper; format = "%d.%m.%Y" of texts
#   kind = "boolean"      true or false, 1 or 0
#   kind = "text"         for questions alone; training does not use it
#   kind = "skip"         not used
# missing = true is proposed for cells that may be empty: they get a feature of their own, and the
# middle of the range as their number. For other markers too: missing = ["", "?", "NA"]. A row
# whose number or date cannot be read is left out of training.
"""


# Beginnings of the types that a Parquet file declares, and a template's lines for such columns.
_BY_STORAGE: Final = (
    (
        ("int", "uint", "float", "double", "half", "decimal"),
        'kind = "numeric"\nlower = "?"\nupper = "?"',
    ),
    (("date", "timestamp"), 'kind = "date"\nlower = "?"\nupper = "?"'),
    (("bool",), 'kind = "categorical"\nvalues = ["True", "False"]'),
    (("",), 'kind = "categorical"\nvalues = ["?"]'),
)


def write_template(
    name: str,
    header: dict[str, str | None],
    *,
    label: str,
    but: Collection[str],
    person: str | None = None,
) -> str:
    """Return a TOML schema with one entry for each column of `header`, blanks marked '?'.

    `person` is the column of persons' ids, which the schema names.
    """
    require("tables", "tomli_w")
    import tomli_w

    has_types = any(header.values())
    parts = [_INTRO.format(name=name, types=" and its storage types" if has_types else "")]
    if person is not None:
        parts.append(tomli_w.dumps({"person": person}))
    for column, stored in header.items():
        if column in but:
            continue
        # Dumped by the library, which quotes names where TOML wants it.
        # The name of a table of TOML, quoted where it has to be.
        head = tomli_w.dumps({"columns": {column: {}}}).rstrip()
        missing = "missing = true\n"
        if column == label:
            note = "  # the label: two classes or more, or numeric with a range"
            # The label has no missing cells: a row without one teaches nothing.
            lines = 'kind = "categorical"\nvalues = ["?", "?"]'
            missing = ""
        elif stored is None:
            note = ""
            lines = 'kind = "?"'
        else:
            note = f"  # stored as {stored}"
            # The first beginning that fits; "" fits all other types.
            lines = next(lines for begins, lines in _BY_STORAGE if stored.startswith(begins))
        parts.append(f"{head}{note}\n{lines}\n{missing}")
    return "\n".join(parts)


# Declared values of a column, at most, that pass without a remark; fewer where records are fewer.
MANY_VALUES: Final = 1000
# Unused columns that a message names, at most.
_SHOWN: Final = 8
# Names of columns that look like ids, and like budgets.
_LIKE_IDS: Final = re.compile(
    r"(^|[_ ])(ids?|uu?id|guid|ssn|e-?mail)$|^(person|patient|user|name)$", re.I
)
_LIKE_BUDGETS: Final = re.compile(r"epsilon|budget|consent|privacy", re.I)
# Values that look like markers of missing values, in lower case.
_MARKERS: Final = {"", "?", "na", "n/a", "nan", "null", "missing"}


def lint(
    schema: Schema, names: Sequence[str], *, taken: Mapping[str, str], records: int | None = None
) -> list[str]:
    """Return the likely mistakes of a schema, one line each.

    `taken` maps the columns that have another use to that use, as "label".
    """
    notes = [*_lint_names(schema, names, taken)]
    person = schema.person
    if person is not None and taken.get(person) not in ("person", "skipped"):
        notes.append(
            f"schema {schema.name} says that {person!r} is the person's column, and each row is "
            f"protected by itself; pass --person {person} where a person has several rows"
        )
    for name in names:
        is_unused = isinstance(schema.columns.get(name, Skip()), UNUSED)
        if is_unused and name not in taken and name != person and _LIKE_IDS.search(name):
            notes.append(
                f"column {name!r} looks like an id, and each row is protected by itself; pass "
                f"--person {name} where a person has several rows, or --ids {name}"
            )
    for name, kind in schema.columns.items():
        if isinstance(kind, UNUSED) or taken.get(name) == "label":
            continue
        if name in taken:
            notes.append(
                f"schema {schema.name} declares {name!r} as a feature, but it is the {taken[name]} "
                'column and is left out; declare it kind = "skip"'
            )
            continue
        if _LIKE_IDS.search(name):
            notes.append(
                f"feature {name!r} looks like an id, and would be learned from; pass --ids {name}, "
                f'or --person {name} where a person has several rows, or declare it kind = "skip"'
            )
        elif _LIKE_BUDGETS.search(name):
            notes.append(
                f"feature {name!r} looks like a budget, and would be learned from; pass it as "
                '--epsilon or --delta, or declare it kind = "skip"'
            )
        if isinstance(kind, Categorical):
            notes += _lint_values(name, kind, records)
    return notes


def _lint_names(schema: Schema, names: Sequence[str], taken: Mapping[str, str]) -> Iterator[str]:
    """Yield where a schema's names of columns and a table's do not fit."""
    declared = schema.columns
    # Names that have some use need no remark.
    used = {*declared, *taken, schema.person}
    # Name in one case → undeclared column of the table that has no other use.
    free = {name.casefold(): name for name in names if name not in used}
    for name, kind in declared.items():
        if name in names or isinstance(kind, Skip):
            continue
        # A name that differs in case alone is meant, most likely.
        near = free.pop(name.casefold(), None)
        hint = "" if near is None else f"; it has {near!r}: case matters"
        yield f"schema {schema.name} declares {name!r}, which is not in the table{hint}"
    unused = [name for name in names if name in free.values()]
    if unused:
        listed = ", ".join(map(repr, unused[:_SHOWN]))
        if len(unused) > _SHOWN:
            listed += ", …"
        yield (
            f"not in schema {schema.name} and so not used: {listed}; declare "
            'them, kind = "skip" where that is meant'
        )
    for first, second in _find_cased_pairs(declared):
        yield f"schema {schema.name}: the columns {first!r} and {second!r} differ in case alone"


def _lint_values(name: str, kind: Categorical, records: int | None) -> Iterator[str]:
    """Yield the likely mistakes of a categorical column's declared values."""
    for first, second in _find_cased_pairs(kind.labels):
        yield (
            f"feature {name!r}: the values {first!r} and {second!r} differ in case alone; list "
            "one, or mend the cells"
        )
    for value in kind.labels:
        if value.casefold() in _MARKERS:
            yield (
                f"feature {name!r}: its value {value!r} looks like a marker of missing values; "
                "declare it under missing"
            )
    if records is not None and len(kind.values) > min(MANY_VALUES, records):
        yield (
            f"feature {name!r}: {len(kind.values)} declared values for {records} records; most are "
            'too rare to learn from under noise: merge them, or declare it kind = "skip"'
        )


def _find_cased_pairs(texts: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Yield each text that differs from an earlier one in case alone, after the earliest such."""
    earliest: dict[str, str] = {}
    for text in texts:
        known = earliest.setdefault(text.casefold(), text)
        if known != text:
            yield known, text
