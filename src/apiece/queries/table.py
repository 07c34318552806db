"""Registering a table: the steward's act, once, before any question; what is read then is frozen.

Every declared column is read as its declared kinds, one cell at a time, into a table of a locked
in-memory database whose columns have types that no row decided. Questions are sums over that table,
so nothing that a question does can fail on a row.
"""

from __future__ import annotations

import hashlib
import io
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from apiece.errors import ApieceError, DataError, UnsupportedError
from apiece.queries import cells, sources
from apiece.queries.conditions import MOMENT as DATE
from apiece.queries.schema import Schema
from apiece.queries.sources import Log

ID_LENGTH: Final = 128
_LOCKED: Final = {
    "enable_external_access": False,
    "autoinstall_known_extensions": False,
    "autoload_known_extensions": False,
    "allow_community_extensions": False,
}
_PLAIN: Final = r"NOT regexp_matches(@, '[\x00-\x1f\x7f-\x9f]')"
_AS: Final = {  # kind → a cell as that kind or NULL, @ being the cell
    "numeric": "CASE WHEN NOT isnan(TRY_CAST(@ AS DOUBLE)) THEN TRY_CAST(@ AS DOUBLE) END",
    "text": f"CASE WHEN {_PLAIN} THEN @ END",
    "date": f"CASE WHEN regexp_full_match(@, '{DATE}') THEN TRY_CAST(@ AS TIMESTAMP) END",
    "person": f"CASE WHEN {_PLAIN} AND length(@) BETWEEN 1 AND {ID_LENGTH} THEN @ END",
}


def nobody(_message: str) -> None:
    """Keep no steward's log."""


@dataclass(frozen=True)
class Table:
    """A registered table: what `register` has read, frozen. Its ids and rows are data about people.

    Attributes:
        schema: What was declared.
        fingerprint: SHA-256 of the file, or of the columns read from memory.
        people: The ids, as text, in the order of their numbers.
        database: The rows, in a locked database in memory.

    Example:
        >>> import pandas as pd
        >>> table = register(pd.DataFrame({"id": ["ann", "bob"]}), Schema("id"))
        >>> len(table.people), len(table.fingerprint)
        (2, 64)
    """

    schema: Schema
    fingerprint: str = field(repr=False)
    people: npt.NDArray[np.object_] = field(repr=False)
    database: Any = field(repr=False)


def register(
    source: Any, schema: Schema, *, log: Log = nobody, fingerprint: str | None = None
) -> Table:
    """Read the declared columns of `source` once; return the table that questions are asked of.

    Args:
        source: The path of one Parquet or CSV file (see `datasets.lines`), a pandas or Arrow
            table, or a DuckDB relation.
        schema: What is declared about it.
        log: Called with each line of the steward's log, which speaks of rows and is not for
            analysts.
        fingerprint: Refuse a source with another one.

    Returns:
        The table.

    Raises:
        DataError: For a file that is not there, lacks a declared column or has another fingerprint.
            Where the source itself cannot be read (a CSV file outside the dialect, a damaged
            Parquet file) the message does not depend on what is wrong; the log has the reason.
        UnsupportedError: For a column of lists and the like.

    Guarantee:
        Each row is read from itself, its storage types, the header and `schema` alone. A cell that
        is not of the declared kind is missing; a row without a person's id (text of 1 to 128
        characters, none of them a control character) contributes nothing.

    Example:
        >>> import pandas as pd
        >>> people = pd.DataFrame({"id": ["ann", "bob"], "age": ["20", "?"]})
        >>> table = register(people, Schema("id", bounds={"age": (0, 100)}), log=print)
        column 'age': 1 cells are not numeric
        registered: 2 rows of 2 people
    """
    wanted = list(dict.fromkeys(column for column, _ in schema.readings))
    try:
        columns, digest = sources.read(source, wanted, log)
        table = _build(columns, digest, schema, log)
    except (ApieceError, ModuleNotFoundError):
        raise
    except Exception as error:
        # Whatever it is, it may quote a row: the steward reads it, nobody else.
        log(f"source {sources.short(source)}: refused: {type(error).__name__}: {error}")
        raise DataError(
            f"source {sources.short(source)}: cannot be registered; the reason is in the "
            "steward's log (log=, or --steward-log FILE)"
        ) from None
    if fingerprint is not None and fingerprint.lower() != table.fingerprint:
        raise DataError(
            f"source {sources.short(source)}: not the table with this fingerprint; give that table"
        )
    return table


def _build(columns: sources.Columns, digest: str, schema: Schema, log: Log) -> Table:
    import duckdb
    import pyarrow as pa

    given = {"person": _stored(columns, schema.person, "text")}
    for column, kind in schema.readings:
        given[schema.stored(column, kind)] = _stored(columns, column, kind)
    for column in schema.groups:
        given[schema.stored_group(column)] = _stored(columns, column, "text")
    database = duckdb.connect(":memory:", config=dict(_LOCKED))
    database.execute("SET lock_configuration = true")
    database.register("given", pa.table(given))
    _read(database, schema)
    _report(database, schema, log)
    _number(database, schema)
    database.unregister("given")
    people = database.sql("SELECT person FROM people ORDER BY number").to_arrow_table()
    names = np.asarray(people.column("person").to_pylist(), dtype=object)
    return Table(schema, digest or _digest(given), names, database)


def _stored(columns: sources.Columns, column: str, kind: str) -> Any:
    try:
        return (cells.numbers if kind == "numeric" else cells.texts)(columns[column])
    except UnsupportedError as error:
        raise UnsupportedError(f"column {column!r}: {error}; leave it out or convert it") from None


def _read(database: Any, schema: Schema) -> None:
    """Make the table `cells`: what was given, each cell as its kind or NULL."""
    kinds = {"person": "person"}
    kinds |= {schema.stored(column, kind): kind for column, kind in schema.readings}
    kinds |= {schema.stored_group(column): "text" for column in schema.groups}
    readings = [f"{_AS[kind].replace('@', name)} AS {name}" for name, kind in kinds.items()]
    database.execute(f"CREATE TABLE cells AS SELECT {', '.join(readings)} FROM given")


def _number(database: Any, schema: Schema) -> None:
    """Make the tables `people` and `rows`: persons and declared groups by number.

    place: an order of rows in which those of one person stand by the hash of their content, so
    that which of them are kept is theirs alone; rows that tie are equal in all that is declared.
    """
    import pyarrow as pa

    joins, names = "", [schema.stored(column, kind) for column, kind in schema.readings]
    content = [f"cells.{name}" for name in names]
    for column in schema.groups:
        name = schema.stored_group(column)
        values = [cells.text_of(value) for value in schema.groups_of(column)]
        declared = pa.table({"value": values, "number": list(range(len(values)))})
        database.register(f"declared_{name}", declared)
        joins += f" LEFT JOIN declared_{name} ON cells.{name} = declared_{name}.value"
        content.append(f"declared_{name}.number")
        names.append(name)
    database.execute(
        "CREATE TABLE people AS SELECT person, row_number() OVER (ORDER BY person) - 1 AS number "
        "FROM (SELECT DISTINCT person FROM cells WHERE person IS NOT NULL)"
    )
    order = f"people.number, hash({', '.join(content)}), {', '.join(content)}"
    named = ", ".join(f"{c} AS {n}" for c, n in zip(content, names, strict=True))
    database.execute(
        f"CREATE TABLE rows AS SELECT people.number AS person, {named}, "
        f"row_number() OVER (ORDER BY {order}) AS place "
        f"FROM cells JOIN people USING (person){joins}"
    )
    for column in schema.groups:
        database.unregister(f"declared_{schema.stored_group(column)}")
    database.execute("DROP TABLE cells")


def _report(database: Any, schema: Schema, log: Log) -> None:
    """Tell the steward how much could not be read."""
    names = {schema.stored(column, kind): (column, kind) for column, kind in schema.readings}
    counts = ", ".join(f"count({name})" for name in ["person", *names])
    people = "count(DISTINCT person)"
    given = database.execute(f"SELECT count(*), {people}, {counts} FROM given").fetchall()[0]
    found = database.execute(f"SELECT count(*), {people}, {counts} FROM cells").fetchall()[0]
    for (column, kind), before, after in zip(names.values(), given[3:], found[3:], strict=True):
        if before > after:
            log(f"column {column!r}: {before - after} cells are not {kind}")
    if found[2] < found[0]:
        log(f"{found[0] - found[2]} rows have no id that can be one; left out")
    log(f"registered: {found[2]} rows of {found[1]} people")


def _digest(columns: Mapping[str, Any]) -> str:
    import pyarrow as pa

    sink = io.BytesIO()
    table = pa.table(dict(columns)).combine_chunks()
    with pa.ipc.new_stream(sink, table.schema) as stream:
        stream.write_table(table)
    return hashlib.sha256(sink.getvalue()).hexdigest()
