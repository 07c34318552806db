"""Cells of the declared kinds from what is stored, each row by itself, in a locked DuckDB.

Every engine reads with this, in its own processes and some rows at a time: a row's reading is a
function of that row, the storage types and what is declared, whatever rows it meets.
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
from apiece.queries.declarations import Declarations
from apiece.queries.sources import Columns, Log
from apiece.tables.values import ISO, Declared

if TYPE_CHECKING:
    import duckdb
    import pyarrow as pa

# A column, and what is wrong with some of its cells.
Fault: TypeAlias = tuple[str, str]
# The fault of cells that lie outside their bounds.
_BEYOND: Final = "beyond"
# Characters of an id, at most: longer texts are no ids but content.
ID_LENGTH: Final = 128
# Settings of a database that loads no code.
_LOCKED: Final = {
    "autoinstall_known_extensions": False,
    "autoload_known_extensions": False,
    "allow_community_extensions": False,
}
# Optimizers that are switched off. This one turns the choice of each person's first rows into
# heaps, which are held in memory whatever its limit.
_UNBOUNDED: Final = ("top_n_window_elimination",)
# A date or time without a distance from UTC, in ASCII digits.
_MOMENT: Final = r"\d{4}-\d{1,2}-\d{1,2}([ T]\d{2}:\d{2}(:\d{2}(\.\d{1,9})?)?)?"
# SQL for text without control characters, @ being the cell.
_PLAIN: Final = r"NOT regexp_matches(@, '[\x00-\x1f\x7f-\x9f]')"
# SQL for a number that is stored as text: a boolean's words are 1 and 0, and 1_000, which DuckDB
# takes for a number, is none.
_WORDS: Final = "CASE lower(@) WHEN 'true' THEN 1.0::DOUBLE WHEN 'false' THEN 0.0::DOUBLE"
_POINT: Final = f"{_WORDS} ELSE CASE WHEN NOT contains(@, '_') THEN TRY_CAST(@ AS DOUBLE) END END"
# Under a decimal comma a point may stand for thousands, so what has one is no number.
_COMMA: Final = (
    f"{_WORDS} ELSE CASE WHEN NOT regexp_matches(@, '[._]') "
    "THEN TRY_CAST(replace(@, ',', '.') AS DOUBLE) END END"
)
# Kind → SQL for a cell that is stored as text, as that kind or NULL. A date is in microseconds
# since 1970, in UTC.
_OF_TEXT: Final = {
    "text": f"CASE WHEN {_PLAIN} THEN @ END",
    "date": f"CASE WHEN regexp_full_match(@, '{_MOMENT}') THEN epoch_us(TRY_CAST(@ AS TIMESTAMP)) "
    "END",
    "person": f"CASE WHEN {_PLAIN} AND length(@) BETWEEN 1 AND {ID_LENGTH} THEN @ END",
}
# Kind → SQL for a double as that kind or NULL: NaN is missing, and 0 has one sign.
_OF_DOUBLE: Final = {
    "numeric": "CASE WHEN NOT isnan(@) THEN @ + 0.0::DOUBLE END",
    "boolean": "CASE WHEN @ IN (0, 1) THEN @ + 0.0::DOUBLE END",
}


def _cell_sql(name: str, kind: str, column: pa.ChunkedArray, decimal: str) -> str:
    """Return SQL for a stored cell as a value of its kind, or NULL where it is none."""
    import pyarrow as pa

    # Booleans are the doubles 1 and 0. What is stored as a number is one already; all else comes as
    # text.
    if kind in _OF_DOUBLE:
        number = name
        if not pa.types.is_floating(column.type):
            conversion = _COMMA if decimal == "," else _POINT
            number = f"({conversion.replace('@', name)})"
        return _OF_DOUBLE[kind].replace("@", number)
    # A moment, or the position of a declared value.
    if pa.types.is_integer(column.type):
        return name
    return _OF_TEXT[kind].replace("@", name)


def connect(
    threads: int | None = None,
    *,
    spill: Path | None = None,
    memory: int = 2**62,
    stored: Path | None = None,
) -> duckdb.DuckDBPyConnection:
    """Return a database in memory that reaches no network or extension, and no file but its own.

    With `stored` it is the database in that file, which is only read. It holds at most `memory`
    bytes, or four fifths of the machine's where that is less; the rest lies in the folder `spill`,
    which it makes and removes. Without one, more is an error.
    """
    import duckdb

    config: dict[str, str | bool | int | float | list[str]] = dict(_LOCKED)
    if threads:
        config["threads"] = threads
    # The settings that follow hold for the database's life: its configuration is locked at the end.
    if stored is None:
        database = duckdb.connect(":memory:", config=config)
    else:
        database = duckdb.connect(str(stored), read_only=True, config=config)
        # A file that this process has open already is the same database, set and locked before.
        ((is_locked,),) = database.execute(
            "SELECT current_setting('lock_configuration')"
        ).fetchall()
        if is_locked:
            return database
    if memory < _memory_limit(database):
        database.execute(f"SET memory_limit = '{memory}B'")
    if _UNBOUNDED in database.execute("FROM duckdb_optimizers()").fetchall():
        database.execute(f"SET disabled_optimizers = '{_UNBOUNDED[0]}'")
    # Else it would write to a folder .tmp of wherever the process runs, for all to read.
    spill_text = "" if spill is None else str(spill).replace("'", "''")
    database.execute(f"SET temp_directory = '{spill_text}'")
    # The order of insertion would be held in memory.
    database.execute("SET preserve_insertion_order = false")
    database.execute("SET enable_external_access = false")
    database.execute("SET lock_configuration = true")
    return database


def _memory_limit(database: duckdb.DuckDBPyConnection) -> int:
    """Return the bytes of memory that a database may take, which DuckDB writes as "18.8 GiB"."""
    ((text,),) = database.execute("SELECT current_setting('memory_limit')").fetchall()
    number, unit = text.split()
    power = ["bytes", "KiB", "MiB", "GiB", "TiB", "PiB"].index(unit)
    return int(float(number) * 2 ** (10 * power))


def list_cells(declarations: Declarations) -> dict[str, tuple[str, str]]:
    """Return the columns of the table `cells` after `person`: name → the column read, its kind."""
    columns = {declarations.stored(*reading): reading for reading in declarations.readings}
    return columns | {
        declarations.stored_group(column): (column, "group") for column in declarations.groups
    }


def unpack_columns(columns: Columns, declarations: Declarations) -> dict[str, pa.ChunkedArray]:
    """Return the declared columns as they are stored; a marker of missing values is null."""
    return {column: unpack_cells(columns, column, declarations) for column in declarations.columns}


def unpack_cells(columns: Columns, column: str, declarations: Declarations) -> pa.ChunkedArray:
    """Return one of the declared columns as `unpack_columns` does."""
    try:
        cells = sources.unpack_column(columns[column], exact=column == declarations.person)
        return _remove_markers(cells, column, declarations)
    except UnsupportedError as error:
        raise UnsupportedError(f"column {column!r}: {error}; leave it out or convert it") from None


def convert_columns(plain: Columns, declarations: Declarations) -> dict[str, pa.ChunkedArray]:
    """Return the columns to be read, by their names in the table `cells`, from unpacked ones.

    Doubles, moments and the positions of declared groups are as they will be; the others are texts,
    to be read as their kinds.
    """
    readings = {"person": sources.convert_to_texts(plain[declarations.person])}
    for name, (column, kind) in list_cells(declarations).items():
        readings[name] = _convert_cells(plain[column], column, kind, declarations)
    return readings


def count_present(plain: Columns, declarations: Declarations) -> dict[str, int]:
    """Return for each reading how many cells are neither empty nor a missing marker.

    Where "" is a declared group, an empty cell is one too.
    """
    counts: dict[str, int] = {}
    for name, (column, kind) in list_cells(declarations).items():
        cells = plain[column]
        named = kind in ("text", "group") and column in declarations.groups
        if named and declarations.declared(column).has_empty():
            counts[name] = len(cells)
        else:
            counts[name] = sources.count_present(cells)
    return counts


def _convert_cells(
    cells: pa.ChunkedArray, column: str, kind: str, declarations: Declarations
) -> pa.ChunkedArray:
    """Return the cells of an unpacked column as what a kind is read from."""
    match kind:
        case "numeric" | "boolean":
            return sources.convert_to_numbers(cells)
        case "date":
            return sources.convert_to_moments(cells, declarations.formats.get(column, ISO))
        case "group":
            return sources.locate_declared(cells, declarations.declared(column))
    if column in declarations.groups:
        return sources.convert_to_declared_texts(cells, declarations.declared(column))
    return sources.convert_to_texts(cells)


def _remove_markers(
    cells: pa.ChunkedArray, column: str, declarations: Declarations
) -> pa.ChunkedArray:
    """Return the cells of a column in which the declared markers of missing values are null."""
    import pyarrow as pa
    import pyarrow.compute as pc

    markers = declarations.missing.get(column)
    if not markers:
        return cells
    # A marker is found as a declared value is: -99 is also -99.0, in whatever container.
    positions = sources.locate_declared(cells, Declared(markers, decimal=declarations.decimal))
    return pc.if_else(pc.is_valid(positions), pa.scalar(None, cells.type), cells)


def count_faults(
    database: duckdb.DuckDBPyConnection, declarations: Declarations, present: Mapping[str, int]
) -> Counter[Fault]:
    """Return how many cells of the table `cells` were not read, or lie outside their bounds.

    Args:
        database: Holds the table `cells`.
        declarations: Of the table.
        present: Reading → how many cells there were to read (see `count_present`).
    """
    names = list_cells(declarations)
    # Counting cells is 0 where there is no row; a sum would be NULL.
    beyond = [
        f"count(CASE WHEN {declarations.stored(column, 'numeric')} "
        f"NOT BETWEEN {low!r} AND {high!r} THEN 1 END)"
        for column, (low, high) in declarations.bounds.items()
    ]
    counts = [f"count({name})" for name in names]
    query = f"SELECT {', '.join(counts + beyond)} FROM cells"
    (totals,) = database.execute(query).fetchall()
    faults = Counter[Fault]()
    for (name, (column, kind)), count in zip(names.items(), totals, strict=False):
        reason = "no declared value" if kind == "group" else f"not {kind}"
        faults[column, reason] += present[name] - count
    for column, count in zip(declarations.bounds, totals[len(names) :], strict=True):
        faults[column, _BEYOND] += count
    return faults


def report_faults(faults: Mapping[Fault, int], log: Log) -> None:
    """Log how many cells of each column could not be read, or are clamped."""
    for (column, reason), count in faults.items():
        if count and reason == _BEYOND:
            log(f"column {column!r}: {count} cells lie outside their bounds and are clamped")
        elif count:
            log(f"column {column!r}: {count} cells are {reason}")


def list_types(declarations: Declarations) -> dict[str, str]:
    """Return the columns of the table `cells` after `person`, each with its type of storage."""
    storage = {"text": "text", "date": "whole", "group": "whole"}
    return {
        name: storage.get(kind, "double") for name, (_, kind) in list_cells(declarations).items()
    }


def order_sql(declarations: Declarations) -> str:
    """Return SQL for an order of one person's rows by their content alone, in every dialect."""
    # Rows that tie are equal in all that is declared, so which of them comes first is nobody's.
    keys = ["tie"]
    keys += [f"{name} NULLS FIRST" for name in list_cells(declarations)]
    return ", ".join(keys)


def read_cells(
    database: duckdb.DuckDBPyConnection,
    columns: Columns,
    declarations: Declarations,
    *,
    append: bool = False,
) -> None:
    """Make the table `cells`: each cell as its kind or NULL, declared groups by number.

    Its column `tie` is a hash of the row's content. With `append` the rows are added to it.
    """
    import pyarrow as pa

    # Every cell becomes its value or NULL by an expression that cannot fail, whatever the row
    # holds.
    readings = [f"{_OF_TEXT['person'].replace('@', 'person')} AS person"]
    for name, (_, kind) in list_cells(declarations).items():
        cell = _cell_sql(name, kind, columns[name], declarations.decimal)
        readings.append(f"{cell} AS {name}")
    names = list(list_cells(declarations))
    # Shifted by a bit, an unsigned hash is a BIGINT, which Spark has too.
    database.register("stored_columns", pa.table(dict(columns)))
    database.execute(
        f"{'INSERT INTO cells' if append else 'CREATE TABLE cells AS'} "
        f"WITH typed AS (SELECT {', '.join(readings)} FROM stored_columns) "
        f"SELECT person, {', '.join([*names, ''])}"
        f"CAST(hash({', '.join(names) or 'person'}) >> 1 AS BIGINT) AS tie FROM typed"
    )
    database.unregister("stored_columns")


# A program that removes a folder when its input ends: when the process that started it is gone,
# however that came about.
_REMOVE_AFTERWARDS: Final = (
    "import shutil, sys; sys.stdin.read(); shutil.rmtree(sys.argv[1], ignore_errors=True)"
)


def make_folder_name() -> Path:
    """Return the path of a folder that is not there yet, in this process's room in TMPDIR."""
    return _make_room(os.getpid()) / uuid.uuid4().hex


@cache
def _make_room(process: int) -> Path:
    """Make the folder of a process for its rows; a forked process has its own."""
    # The room has mode 0700. It is removed at exit, and by a process that waits for this one to end
    # where it is killed; only with the whole machine, or with both at once, it stays.
    room = tempfile.mkdtemp(prefix="apiece-")
    # In a session of its own, so that a Ctrl-C is not for it.
    remover = subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", _REMOVE_AFTERWARDS, room],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )

    def remove_room() -> None:
        # A forked child inherits this handler, and must not take its parent's rows.
        if os.getpid() == process:
            shutil.rmtree(room, ignore_errors=True)
            remover.kill()
            remover.wait()

    atexit.register(remove_room)
    return Path(room)
