"""The scan: people's bounded contributions as whole grid steps, in DuckDB."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from apiece.errors import DataError, InputError
from apiece.queries.features import Features
from apiece.queries.grammar import Query, quoted
from apiece.queries.schema import Schema

Floats = npt.NDArray[np.float64]
READERS = {".parquet": "read_parquet", ".csv": "read_csv", ".json": "read_json"}


def connect(source: Any) -> Any:
    """Return a DuckDB connection with the source as the view `source`.

    source: a path to Parquet, CSV or JSON; a pandas or Arrow table; a DuckDB relation; or the
    text of one SELECT statement. Raises `DataError` for a source that cannot be read, `InputError`
    for SQL that is not one query.
    """
    import duckdb

    if isinstance(source, duckdb.DuckDBPyRelation):
        source = source.to_arrow_table()
    connection = duckdb.connect(":memory:")
    try:
        if isinstance(source, (str, Path)):
            connection.execute(f"CREATE TEMP VIEW source AS {_select(connection, str(source))}")
        else:
            connection.register("source", source)
        connection.execute("SELECT * FROM source LIMIT 0")
    except duckdb.Error as error:
        raise DataError(f"source {_short(source)}: {str(error).splitlines()[0]}") from None
    return connection


def _select(connection: Any, text: str) -> str:
    import duckdb

    reader = READERS.get(Path(text).suffix.lower())
    if reader is not None and "\n" not in text and not text.lower().lstrip().startswith("select "):
        return f"SELECT * FROM {reader}('{text.replace(chr(39), chr(39) * 2)}')"
    try:
        statements = connection.extract_statements(text)
    except duckdb.Error:
        statements = []
    if len(statements) != 1 or statements[0].type != duckdb.StatementType.SELECT:
        raise InputError(
            f"source {_short(text)}: neither a .parquet, .csv or .json file nor one SELECT "
            "statement; give one of them"
        )
    return str(statements[0].query).rstrip().rstrip(";")


def _short(source: Any) -> str:
    text = str(source) if isinstance(source, (str, Path)) else type(source).__name__
    return repr(text if len(text) <= 60 else text[:57] + "…")


def contributions(
    connection: Any, query: Query, schema: Schema, features: Features, grid: float
) -> None:
    """Fill the table `contributions`: person, cell and whole grid steps, one row a pair.

    Rows of a person beyond schema.rows_per_person are dropped by the hash of their content.
    """
    _check_columns(connection, query, schema)
    kept = [f"({features.present})", f"{quoted(schema.person)} IS NOT NULL"]
    if query.where:
        kept.append(query.where)
    base = "0"
    if query.by is not None:
        base = _group_number(query.by, schema, features.size)
        kept.append(f"{base} IS NOT NULL")
    steps = ", ".join(
        f"CAST(round(({sql}) / {grid!r}) AS HUGEINT) AS k{i}"
        for i, sql in enumerate(features.columns)
    )
    sums = ", ".join(f"CAST(sum(k{i}) AS HUGEINT) AS k{i}" for i in range(len(features.columns)))
    cells = ", ".join(f"({base}) + {cell}" for cell in features.cells)
    person = quoted(schema.person)
    _run(
        connection,
        f"""
        CREATE OR REPLACE TEMP TABLE contributions AS
        WITH rows AS (
            SELECT {person} AS person, [{cells}] AS cells, {steps},
                   hash(source) AS content
            FROM source WHERE {" AND ".join(kept)}
        ), bounded AS (
            SELECT * FROM rows QUALIFY
            row_number() OVER (PARTITION BY person ORDER BY content) <= {schema.rows_per_person}
        ), spread AS (SELECT * EXCLUDE (cells), unnest(cells) AS cell FROM bounded)
        SELECT person, CAST(cell AS BIGINT) AS cell, {sums} FROM spread GROUP BY person, cell
        """,
    )


def _check_columns(connection: Any, query: Query, schema: Schema) -> None:
    have = [row[0] for row in connection.execute("DESCRIBE SELECT * FROM source").fetchall()]
    wanted = [schema.person, *query.columns, *([query.by] if query.by else [])]
    for name in wanted:
        if name not in have:
            raise DataError(f"column {name!r}: not in the source (it has {', '.join(have)})")


def _group_number(column: str, schema: Schema, size: int) -> str:
    cases = " ".join(
        f"WHEN '{str(value).replace(chr(39), chr(39) * 2)}' THEN {i * size}"
        for i, value in enumerate(schema.groups_of(column))
    )
    return f"(CASE CAST({quoted(column)} AS VARCHAR) {cases} END)"


def norms(connection: Any, width: int) -> tuple[npt.NDArray[Any], Floats]:
    """Return every contributing person's id and ℓ2 norm in grid steps, rounded up."""
    squares = " + ".join(f"CAST(k{i} AS DOUBLE) * CAST(k{i} AS DOUBLE)" for i in range(width))
    table = connection.sql(
        f"SELECT person, sqrt(sum({squares})) AS norm FROM contributions GROUP BY person "
        "ORDER BY person"
    ).to_arrow_table()
    found = table.column("norm").to_numpy() * (1 + 2.0**-40)
    people = table.column("person")
    plain = (
        people.to_numpy() if str(people.type).startswith(("int", "uint")) else people.to_pylist()
    )
    return np.asarray(plain), np.asarray(found, dtype=np.float64)


def totals(connection: Any, width: int, cells: int, admitted: Any | None) -> list[list[int]]:
    """Return the sums, in grid steps, of each cell over the admitted persons (None: over all)."""
    join = ""
    if admitted is not None:
        import pyarrow as pa

        connection.register(
            "admitted", pa.table({"person": pa.array(np.asarray(admitted).tolist())})
        )
        join = "SEMI JOIN admitted USING (person)"
    sums = ", ".join(f"sum(k{i})" for i in range(width))
    sql = f"SELECT cell, {sums} FROM contributions {join} GROUP BY cell"
    result = [[0] * width for _ in range(cells)]
    for cell, *values in _run(connection, sql).fetchall():
        result[cell] = [int(v) for v in values]
    return result


def _run(connection: Any, sql: str) -> Any:
    import duckdb

    try:
        return connection.execute(sql)
    except duckdb.Error as error:
        raise DataError(f"query: {str(error).splitlines()[0]}") from None
