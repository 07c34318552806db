"""Options that declare a table's columns, ids and rows a person, for commands that ask of one."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from apiece.cli._command import (
    PATH,
    add_table_options,
    make_dialect,
    make_dict,
    option,
    parse_assignment,
    parse_interval,
)
from apiece.errors import DataError, InputError, unknown

if TYPE_CHECKING:
    from apiece._types import Flags
    from apiece.datasets import Lookup, Schema
    from apiece.datasets.cells import Value
    from apiece.datasets.schema import Column
    from apiece.datasets.tables import Dialect

# The forms of options, for their errors.
BOUNDS = "column=LOW:HIGH, as in income=0:200000"
# The bounds of a column of dates.
_DATES = re.compile(r"(?P<name>.+)=(?P<first>\d{4}-\d\d-\d\d):(?P<last>\d{4}-\d\d-\d\d)")
# The bounds of a column in one group of another.
_GROUP_BOUNDS = re.compile(r"(?P<name>.+)\[(?P<by>[^\[\]=]+)=(?P<value>.+)\]")
LOOKUPS = "NAME=FILE::KEY, as in regions=regions.csv::postcode"
KINDS = "column=numeric, text, date or boolean, as in city=text"
# The parameters of these options.
DECLARING = (
    "person", "bounds", "values", "values_of", "kinds", "columns_file", "rows_per_person",
    "separator", "decimal", "encoding", "lookups",
)  # fmt: skip


def add_declaring_options(command: object) -> Any:
    """Add the options that declare a table."""
    decorators = (
        option("--person", help="Column of persons' ids; needed."),
        option(
            "--bounds",
            multiple=True,
            help="Range of a column, as column=LOW:HIGH, numbers or dates; of a group, as "
            "pay[job=clerk]=LOW:HIGH; repeatable.",
        ),
        option(
            "--values",
            multiple=True,
            help="Groups of a column, as column=A,B,… or column=@FILE, a public file; repeatable.",
        ),
        option(
            "--values-of",
            multiple=True,
            help="Groups of a column that are another's, as column=OTHER; repeatable.",
        ),
        option(
            "--kind",
            "kinds",
            multiple=True,
            help="Kind of a column, as column=text (numeric, text, date, boolean); repeatable.",
        ),
        option(
            "--schema",
            "columns_file",
            type=PATH,
            help="Public schema, as `apiece schema` writes it.",
        ),
        option(
            "--lookup",
            "lookups",
            multiple=True,
            help="Public table that a column is looked up in, as NAME=FILE::KEY or "
            "NAME=FILE::KEY::COLUMN where the people's column has another name; repeatable.",
        ),
        add_table_options,
        option("--rows-per-person", type=int, help="Most rows that one person brings; public."),
    )
    for decorate in reversed(decorators):
        command = decorate(command)
    return command


def declare_table(flags: Flags) -> Schema:
    """Return the schema of the file, if there is one, with what the options declare."""
    from apiece.datasets import Schema, read_schema

    path = flags["columns_file"]
    schema = Schema({}) if path is None else read_schema(path)
    intervals = [
        parse_interval("--bounds", text, BOUNDS)
        for text in flags["bounds"]
        if not _DATES.fullmatch(text)
    ]
    # Three forms of one option: numbers, numbers of one group, and dates.
    bounds = make_dict("--bounds", intervals)
    by_group = _take_group_bounds(bounds)
    matches = [match for text in flags["bounds"] if (match := _DATES.fullmatch(text))]
    periods = make_dict(
        "--bounds", [(match["name"], (match["first"], match["last"])) for match in matches]
    )
    dialect = make_dialect(flags)
    values = make_dict("--values", [_parse_values(text, dialect) for text in flags["values"]])
    # After the values themselves, from which it may copy.
    values |= _copy_values(flags["values_of"], schema, values)
    assignments = [parse_assignment("--kind", text, KINDS, last=True) for text in flags["kinds"]]
    kinds = make_dict("--kind", assignments)
    columns = {
        name: _declare_column(
            name, schema.columns.get(name), bounds.get(name), values.get(name), kinds.get(name)
        )
        for name in dict.fromkeys([*bounds, *values, *kinds])
        if name not in periods
    }
    for name, (first, last) in periods.items():
        declared = schema.columns.get(name)
        columns[name] = _declare_dates(name, declared, first, last, values.get(name, ()))
    for name, groups in by_group.items():
        columns[name] = _declare_group_bounds(
            name, columns.get(name, schema.columns.get(name)), groups
        )
    return schema.declare(
        columns,
        person=flags["person"],
        rows_per_person=flags["rows_per_person"],
        decimal=flags["decimal"],
        lookups=make_dict("--lookup", [_read_lookup(text) for text in flags["lookups"]]),
    )


def _read_lookup(text: str) -> tuple[str, Lookup]:
    """Return the name and the table of `NAME=FILE::KEY::COLUMN`."""
    from apiece.datasets import Lookup

    name, source = parse_assignment("--lookup", text, LOOKUPS)
    # FILE::KEY, or FILE::KEY::COLUMN where the people's column has another name.
    path, _, columns = source.partition("::")
    key, _, on = columns.partition("::")
    if not (path and key):
        raise InputError(f"--lookup {text}: give {LOOKUPS}")
    try:
        return name, Lookup(path, key, on)
    except DataError as error:
        raise DataError(f"--lookup {name}: {error}") from None


def _declare_column(
    name: str,
    column: Column | None,
    bounds: tuple[float, float] | None,
    values: Sequence[Value] | None,
    kind: str | None,
) -> Column:
    """Return a column with the bounds, values and kind of the options, in place of what it has."""
    from apiece.datasets import Boolean, Categorical, Date, Numeric, Skip, Text

    classes: dict[str, type[Numeric | Text | Date | Boolean]] = {
        "numeric": Numeric,
        "text": Text,
        "date": Date,
        "boolean": Boolean,
    }
    if kind is not None and kind not in classes:
        raise unknown("kind", kind, classes)
    if bounds is not None and kind not in (None, "numeric"):
        raise InputError(
            f"--kind {name}={kind}: --bounds declares {name!r} as numbers; leave one of them out"
        )
    # An option declares a column that the schema's file leaves out.
    declared = None if isinstance(column, Skip) else column
    missing = () if declared is None else declared.missing
    if values is None:
        values = [] if declared is None else declared.values
    try:
        if bounds is not None:
            low, high = bounds
            return Numeric(low, high, missing=missing, values=values)
        if kind is not None and not isinstance(declared, classes[kind]):
            return classes[kind](missing=missing, values=values)
        if declared is None:
            return Categorical(values)
        return replace(declared, values=values)
    except DataError as error:
        raise DataError(f"column {name!r}: {error}") from None


def _take_group_bounds(
    bounds: dict[str, tuple[float, float]],
) -> dict[str, dict[str, dict[str, tuple[float, float]]]]:
    """Remove the bounds of groups from those of columns; return them by column and grouping."""
    by_group: dict[str, dict[str, dict[str, tuple[float, float]]]] = {}
    for text in list(bounds):
        match = _GROUP_BOUNDS.fullmatch(text)
        if match is not None:
            groups = by_group.setdefault(match["name"], {}).setdefault(match["by"], {})
            groups[match["value"]] = bounds.pop(text)
    return by_group


def _declare_group_bounds(
    name: str, column: Column | None, groups: dict[str, dict[str, tuple[float, float]]]
) -> Column:
    """Return a column of numbers with narrower bounds of some groups."""
    from apiece.datasets import Numeric

    if not isinstance(column, Numeric):
        raise InputError(f"--bounds {name}[…]: give the bounds of all too, as {name}=LOW:HIGH")
    try:
        return replace(column, by_group=groups)
    except DataError as error:
        raise DataError(f"column {name!r}: {error}") from None


def _declare_dates(
    name: str, column: Column | None, first: str, last: str, values: Sequence[Value]
) -> Column:
    """Return a column of dates between two, with the format and markers that it has."""
    from apiece.datasets import Date

    try:
        if isinstance(column, Date):
            return Date(first, last, column.format, column.missing, tuple(values) or column.values)
        return Date(first, last, values=tuple(values))
    except DataError as error:
        raise DataError(f"column {name!r}: {error}") from None


def _copy_values(
    options: Sequence[str], schema: Schema, values: dict[str, Sequence[Value]]
) -> dict[str, Sequence[Value]]:
    """Return the columns of `column=OTHER`, each with the declared values of the other."""
    pairs = [
        parse_assignment("--values-of", text, "column=OTHER, as in home=town") for text in options
    ]
    from apiece.datasets import Skip

    copied: dict[str, Sequence[Value]] = {}
    for name, other in make_dict("--values-of", pairs).items():
        declared = schema.columns.get(other)
        # What an option says goes before what the file says.
        groups = values.get(other, ())
        if not (groups or declared is None or isinstance(declared, Skip)):
            groups = declared.values
        if not groups:
            raise InputError(
                f"--values-of {name}={other}: {other!r} has no declared values; give "
                f"--values {other}=A,B or --values {other}=@FILE"
            )
        if name in values:
            raise InputError(f"--values-of {name}={other}: --values has {name!r}; leave one out")
        copied[name] = groups
    return copied


def _parse_values(text: str, dialect: Dialect) -> tuple[str, Sequence[Value]]:
    """Return the name and the values of `column=A,B`, or of `column=@FILE` those in a file."""
    name, listed = parse_assignment("--values", text, "column=A,B, as in region=north,south")
    if listed.startswith("@"):
        return name, _read_values(name, listed[1:], dialect)
    values = listed.split(",")
    for value in values:
        if value != value.strip() or not value:
            raise InputError(
                f"--values: {value!r} in {text!r} is empty, or begins or ends with a space; write "
                "column=A,B without spaces at commas (in a schema's file values are any texts)"
            )
        if values.count(value) > 1:
            raise InputError(f"--values: {value!r} occurs twice in {text!r}; give it once")
    return name, values


def _read_values(name: str, source: str, dialect: Dialect) -> Sequence[Value]:
    """Return the values in FILE, or in FILE::COLUMN: of a table by default its column `name`."""
    from apiece.datasets import read_values

    path, mark, column = source.partition("::")
    # A .txt file is a list of values, any other a table.
    if not mark and Path(path).suffix != ".txt":
        column = name
    try:
        return read_values(path, column or None, dialect)
    except DataError as error:
        raise DataError(f"--values {name}=@{source}: {error}") from None
