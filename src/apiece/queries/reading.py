"""Cells of the declared kinds from what is stored, each row by itself, in a locked DuckDB.

Every engine reads with this, in its own processes and some rows at a time: a row's reading is a
function of that row, the storage types and the schema, so it does not matter which rows it meets.
"""

from __future__ import annotations

import atexit
import os
import shutil
import subprocess
import sys
import tempfile
import uuid
from collections import Counter
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeAlias

from apiece.errors import UnsupportedError
from apiece.queries import sources
from apiece.queries.schema import Schema
from apiece.queries.sources import Columns, Log
from apiece.tables import ISO, Declared

if TYPE_CHECKING:
    import duckdb
    import pyarrow as pa

# A column, and what is wrong with some of its cells.
Fault: TypeAlias = tuple[str, str]
# Of cells that lie outside their bounds.
_BEYOND: Final = "beyond"
ID_LENGTH: Final = 128
_LOCKED: Final = {
    "autoinstall_known_extensions": False,
    "autoload_known_extensions": False,
    "allow_community_extensions": False,
}
# Turns the choice of each person's first rows into heaps, which are held in memory whatever it is.
_UNBOUNDED: Final = ("top_n_window_elimination",)
# A date or time without a distance from UTC, in ASCII digits.
_MOMENT: Final = r"\d{4}-\d{1,2}-\d{1,2}([ T]\d{2}:\d{2}(:\d{2}(\.\d{1,9})?)?)?"
_PLAIN: Final = r"NOT regexp_matches(@, '[\x00-\x1f\x7f-\x9f]')"
# Of a number as text: a boolean's words are 1 and 0, and 1_000, which DuckDB takes, is none.
_WORDS: Final = "CASE lower(@) WHEN 'true' THEN 1.0::DOUBLE WHEN 'false' THEN 0.0::DOUBLE"
_POINT: Final = f"{_WORDS} ELSE CASE WHEN NOT contains(@, '_') THEN TRY_CAST(@ AS DOUBLE) END END"
# Under a decimal comma a point may stand for thousands, so what has one is no number.
_COMMA: Final = (
    f"{_WORDS} ELSE CASE WHEN NOT regexp_matches(@, '[._]') "
    "THEN TRY_CAST(replace(@, ',', '.') AS DOUBLE) END END"
)
# SQL for a cell as its kind or NULL, @ being the cell: of one that is stored as text.
_OF_TEXT: Final = {
    "text": f"CASE WHEN {_PLAIN} THEN @ END",
    "date": f"CASE WHEN regexp_full_match(@, '{_MOMENT}') THEN epoch_us(TRY_CAST(@ AS TIMESTAMP)) "
    "END",  # microseconds since 1970, in UTC
    "person": f"CASE WHEN {_PLAIN} AND length(@) BETWEEN 1 AND {ID_LENGTH} THEN @ END",
}
# Of a double: NaN is missing, and 0 has one sign.
_OF_DOUBLE: Final = {
    "numeric": "CASE WHEN NOT isnan(@) THEN @ + 0.0::DOUBLE END",
    "boolean": "CASE WHEN @ IN (0, 1) THEN @ + 0.0::DOUBLE END",
}


def _cell_sql(name: str, kind: str, column: pa.ChunkedArray, decimal: str) -> str:
    """Return SQL for a stored cell as its kind, or NULL where it is not of it."""
    import pyarrow as pa

    if kind in _OF_DOUBLE:
        number = name
        if not pa.types.is_floating(column.type):
            number = f"({(_COMMA if decimal == ',' else _POINT).replace('@', name)})"
        return _OF_DOUBLE[kind].replace("@", number)
    if pa.types.is_integer(column.type):  # a moment, or the place of a declared value
        return name
    return _OF_TEXT[kind].replace("@", name)


def connect(
    threads: int | None = None, *, spill: Path | None = None, memory: int = 2**62
) -> duckdb.DuckDBPyConnection:
    """Return a database in memory that reaches no network or extension, and no file but its own."""
    # It holds at most `memory` bytes, or four fifths of the machine's where that is less; the rest
    # lies in the folder `spill`, which it makes and removes. Without one, more is an error.
    import duckdb

    config: dict[str, str | bool | int | float | list[str]] = dict(_LOCKED)
    database = duckdb.connect(":memory:", config=config | ({"threads": threads} if threads else {}))
    if memory < _bytes(database):
        database.execute(f"SET memory_limit = '{memory}B'")
    if _UNBOUNDED in database.execute("FROM duckdb_optimizers()").fetchall():
        database.execute(f"SET disabled_optimizers = '{_UNBOUNDED[0]}'")
    # Else it would write to a folder .tmp of wherever the process runs, for all to read.
    place = "" if spill is None else str(spill).replace("'", "''")
    database.execute(f"SET temp_directory = '{place}'")
    database.execute("SET preserve_insertion_order = false")  # which would be held in memory
    database.execute("SET enable_external_access = false")
    database.execute("SET lock_configuration = true")
    return database


def _bytes(database: duckdb.DuckDBPyConnection) -> int:
    """Return the memory that a database may take, which DuckDB writes as "18.8 GiB"."""
    (said,) = database.execute("SELECT current_setting('memory_limit')").fetchall()
    number, unit = said[0].split()
    return int(float(number) * 2 ** (10 * ["bytes", "KiB", "MiB", "GiB", "TiB", "PiB"].index(unit)))


def cells(schema: Schema) -> dict[str, tuple[str, str]]:
    """Return the columns of the table `cells` after `person`: which one each reads, and as what."""
    columns = {schema.stored(*reading): reading for reading in schema.readings}
    return columns | {schema.stored_group(column): (column, "group") for column in schema.groups}


def stored(columns: Columns, schema: Schema) -> dict[str, pa.ChunkedArray]:
    """Return what is to be read, by the name that it has then.

    Doubles, moments and the places of declared groups are as they will be; the rest are texts, to
    be read as their kinds.
    """
    return converted(plain(columns, schema), schema)


def plain(columns: Columns, schema: Schema) -> dict[str, pa.ChunkedArray]:
    """Return the declared columns as they are stored; a marker of missing values is null."""
    stripped: dict[str, pa.ChunkedArray] = {}
    for column in schema.columns:
        try:
            stored = sources.plain(columns[column], exact=column == schema.person)
            stripped[column] = _without_markers(stored, column, schema)
        except UnsupportedError as error:
            raise UnsupportedError(
                f"column {column!r}: {error}; leave it out or convert it"
            ) from None
    return stripped


def converted(plain: Columns, schema: Schema) -> dict[str, pa.ChunkedArray]:
    """Return plain columns as what each is read as, by the name that it has then."""
    readings = {"person": sources.texts(plain[schema.person])}
    for name, (column, kind) in cells(schema).items():
        readings[name] = _converted(plain[column], column, kind, schema)
    return readings


def present(plain: Columns, schema: Schema) -> dict[str, int]:
    """Return of each reading how many cells there are that are not empty or a missing marker."""
    counts = {column: sources.present(stored) for column, stored in plain.items()}
    return {name: counts[column] for name, (column, _) in cells(schema).items()}


def _converted(cells: pa.ChunkedArray, column: str, kind: str, schema: Schema) -> pa.ChunkedArray:
    match kind:
        case "numeric" | "boolean":
            return sources.numbers(cells)
        case "date":
            return sources.moments(cells, schema.formats.get(column, ISO))
        case "group":
            return sources.places(cells, schema.declared(column))
    if column in schema.groups:
        return sources.declared_texts(cells, schema.declared(column))
    return sources.texts(cells)


def _without_markers(cells: pa.ChunkedArray, column: str, schema: Schema) -> pa.ChunkedArray:
    import pyarrow as pa
    import pyarrow.compute as pc

    markers = schema.missing.get(column)
    if not markers:
        return cells
    places = sources.places(cells, Declared(markers, decimal=schema.decimal))
    return pc.if_else(pc.is_valid(places), pa.scalar(None, cells.type), cells)


def count_faults(
    database: duckdb.DuckDBPyConnection, schema: Schema, present: Mapping[str, int]
) -> Counter[Fault]:
    """Return how many cells of the table `cells` were not read, or lie outside their bounds.

    Args:
        database: Whose table `cells` holds them.
        schema: What is declared.
        present: Of each reading how many cells there were (see the function `present`).
    """
    names = cells(schema)
    beyond = [
        # Counting cells is 0 where there is no row; a sum would be NULL.
        f"count(CASE WHEN {schema.stored(column, 'numeric')} NOT BETWEEN {low!r} AND {high!r} "
        "THEN 1 END)"
        for column, (low, high) in schema.bounds.items()
    ]
    counts = ", ".join([*(f"count({name})" for name in names), *beyond])
    (totals,) = database.execute(f"SELECT {counts} FROM cells").fetchall()
    faults = Counter[Fault]()
    for (name, (column, kind)), count in zip(names.items(), totals, strict=False):
        reason = "no declared value" if kind == "group" else f"not {kind}"
        faults[column, reason] += present[name] - count
    for column, count in zip(schema.bounds, totals[len(names) :], strict=True):
        faults[column, _BEYOND] += count
    return faults


def report_faults(faults: Mapping[Fault, int], log: Log) -> None:
    """Tell the steward how many cells of each column could not be read, or are clamped."""
    for (column, reason), count in faults.items():
        if count and reason == _BEYOND:
            log(f"column {column!r}: {count} cells lie outside their bounds and are clamped")
        elif count:
            log(f"column {column!r}: {count} cells are {reason}")


def types(schema: Schema) -> dict[str, str]:
    """Return the columns of the table `cells` after `person`, and what they hold."""
    as_type = {"text": "text", "date": "whole", "group": "whole"}
    return {name: as_type.get(kind, "double") for name, (_, kind) in cells(schema).items()}


def order(schema: Schema) -> str:
    """Return SQL for an order of one person's rows by their content alone, in every dialect."""
    # Rows that tie are equal in all that is declared, so which of them comes first is nobody's.
    return ", ".join(["tie", *(f"{name} NULLS FIRST" for name in cells(schema))])


def read(
    database: duckdb.DuckDBPyConnection, given: Columns, schema: Schema, *, more: bool = False
) -> None:
    """Make the table `cells`: each cell as its kind or NULL, declared groups by number."""
    # Its column `tie` is a hash of the row's content. With `more` the rows are added to those
    # there.
    import pyarrow as pa

    readings = [f"{_OF_TEXT['person'].replace('@', 'person')} AS person"]
    for name, (_, kind) in cells(schema).items():
        readings.append(f"{_cell_sql(name, kind, given[name], schema.decimal)} AS {name}")
    names = list(cells(schema))
    database.register("given", pa.table(dict(given)))
    database.execute(
        f"{'INSERT INTO cells' if more else 'CREATE TABLE cells AS'} "
        f"WITH typed AS (SELECT {', '.join(readings)} FROM given) "
        f"SELECT person, {', '.join([*names, ''])}"
        f"CAST(hash({', '.join(names) or 'person'}) >> 1 AS BIGINT) AS tie FROM typed"
    )
    database.unregister("given")


# Waits until whoever started it is gone, however that came about.
_AFTERWARDS: Final = (
    "import shutil, sys; sys.stdin.read(); shutil.rmtree(sys.argv[1], ignore_errors=True)"
)


def folder() -> Path:
    """Return a folder that is not there yet, in a room of this process in TMPDIR."""
    # The room has mode 0700. It is removed at exit, and by a process that waits for this one to end
    # where it is killed; only with the whole machine, or with both at once, it stays.
    return _room(os.getpid()) / uuid.uuid4().hex


@cache
def _room(process: int) -> Path:
    """Make this process's room; a forked one has its own."""
    room = tempfile.mkdtemp(prefix="apiece-")
    quiet = subprocess.DEVNULL
    waiting = subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", _AFTERWARDS, room],
        stdin=subprocess.PIPE,
        stdout=quiet,
        stderr=quiet,
        start_new_session=True,  # a Ctrl-C is not for it
    )

    def leave() -> None:
        if os.getpid() == process:
            shutil.rmtree(room, ignore_errors=True)
            waiting.kill()
            waiting.wait()

    atexit.register(leave)
    return Path(room)
