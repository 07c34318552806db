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
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Final

from apiece.errors import UnsupportedError
from apiece.queries import sources
from apiece.queries.schema import Schema
from apiece.queries.sources import Columns

if TYPE_CHECKING:
    import duckdb
    import pyarrow as pa

ID_LENGTH: Final = 128
MOMENT: Final = r"\d{4}-\d{2}-\d{2}([ T]\d{2}:\d{2}(:\d{2}(\.\d{1,6})?)?)?"  # ASCII digits
_LOCKED: Final = {
    "autoinstall_known_extensions": False,
    "autoload_known_extensions": False,
    "allow_community_extensions": False,
}
# Turns the choice of each person's first rows into heaps, which are held in memory whatever it is.
_UNBOUNDED: Final = ("top_n_window_elimination",)
_PLAIN: Final = r"NOT regexp_matches(@, '[\x00-\x1f\x7f-\x9f]')"
_AS: Final = {  # kind → a cell as that kind or NULL, @ being the cell; 0 has one sign
    "numeric": "CASE WHEN NOT isnan(TRY_CAST(@ AS DOUBLE)) THEN TRY_CAST(@ AS DOUBLE) + 0.0::DOUBLE"
    " END",
    "text": f"CASE WHEN {_PLAIN} THEN @ END",
    "date": f"CASE WHEN regexp_full_match(@, '{MOMENT}') THEN epoch_us(TRY_CAST(@ AS TIMESTAMP)) "
    "END",  # microseconds since 1970, in UTC
    "group": f"CASE WHEN {_PLAIN} THEN @ END",
    "person": f"CASE WHEN {_PLAIN} AND length(@) BETWEEN 1 AND {ID_LENGTH} THEN @ END",
}


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
    """Return what is to be read, by the name that it has then: texts, or doubles as they are."""
    given = {}
    for name, (column, kind) in ({"person": (schema.person, "text")} | cells(schema)).items():
        converted = sources.numbers if kind == "numeric" else sources.texts
        try:
            given[name] = converted(columns[column])
        except UnsupportedError as error:
            raise UnsupportedError(
                f"column {column!r}: {error}; leave it out or convert it"
            ) from None
    return given


def types(schema: Schema) -> dict[str, str]:
    """Return the columns of the table `cells` after `person`, and what they hold."""
    as_type = {"numeric": "double", "text": "text", "date": "whole", "group": "whole"}
    return {name: as_type[kind] for name, (_, kind) in cells(schema).items()}


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

    tables, joins, content = {"given": pa.table(dict(given))}, "", {}
    readings = [f"{_AS['person'].replace('@', 'person')} AS person"]
    for name, (column, kind) in cells(schema).items():
        readings.append(f"{_AS[kind].replace('@', name)} AS {name}")
        content[name] = f"texts.{name}"
        if kind == "group":
            values = [sources.text_of(value) for value in schema.groups_of(column)]
            numbers = list(range(len(values)))
            tables[f"declared_{name}"] = pa.table({"value": values, "number": numbers})
            joins += f" LEFT JOIN declared_{name} ON texts.{name} = declared_{name}.value"
            content[name] = f"declared_{name}.number"
    named = ", ".join(f"{sql} AS {name}" for name, sql in content.items())
    for name, table in tables.items():
        database.register(name, table)
    database.execute(
        f"{'INSERT INTO cells' if more else 'CREATE TABLE cells AS'} "
        f"WITH texts AS (SELECT {', '.join(readings)} FROM given) "
        f"SELECT person, {named}, CAST(hash({', '.join(content.values())}) >> 1 AS BIGINT) AS tie "
        f"FROM texts{joins}"
    )
    for name in tables:
        database.unregister(name)


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
