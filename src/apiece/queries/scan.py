"""The scan: people's bounded contributions as whole grid steps, in the locked database of a table.

It is stable: a person's contributions are a function of that person's rows, the query, the schema
and the noise's grid. Rows are read one at a time when the table is registered; a condition, a group
and a feature are functions of one row; which rows are kept, and their sums, of one person's rows.
All sums are of whole numbers, so their order does not matter, and no expression can fail.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from apiece._types import Floats, Integers
from apiece.queries.conditions import condition_sql, number_sql
from apiece.queries.features import Features
from apiece.queries.grammar import Query
from apiece.queries.schema import Schema


def contributions_sql(query: Query, schema: Schema, features: Features, grid: float) -> str:
    """Return SQL for person, cell and whole grid steps, one row a pair, over the table `rows`.

    Of a person's rows that count at most schema.rows_per_person are kept. Raises `DataError` for a
    column that is not declared as the query uses it; it depends on no row.
    """
    kept = [f"({features.present})"]
    if query.where is not None:
        kept.append(condition_sql(query.where, schema))
    base = "0"
    if query.by is not None:
        group = schema.stored_group(query.by)
        kept.append(f"({group} IS NOT NULL)")
        base = f"{group} * {features.size}"
    width = range(len(features.columns))
    # A feature is at most 1 in size and 1/grid at most 2^44, so no sum leaves 128 bits.
    steps = ", ".join(
        f"CAST(round(({sql}) / {number_sql(grid)}) AS HUGEINT) AS k{i}"
        for i, sql in enumerate(features.columns)
    )
    cells = ", ".join(f"({base}) + {cell}" for cell in features.cells)
    sums = ", ".join(f"CAST(sum(k{i}) AS HUGEINT) AS k{i}" for i in width)
    return f"""
        WITH bounded AS (
            SELECT * FROM rows WHERE {" AND ".join(kept)} QUALIFY
            row_number() OVER (PARTITION BY person ORDER BY place) <= {schema.rows_per_person}
        ), steps AS (SELECT person, [{cells}] AS cells, {steps} FROM bounded),
        spread AS (SELECT * EXCLUDE (cells), unnest(cells) AS cell FROM steps)
        SELECT person, CAST(cell AS BIGINT) AS cell, {sums} FROM spread GROUP BY person, cell
        """


def norms(cursor: Any, width: int) -> tuple[Integers, Floats]:
    """Return every contributing person's number and ℓ2 norm in grid steps, rounded up."""
    squares = " + ".join(f"k{i} * k{i}" for i in range(width))
    table = cursor.sql(
        f"SELECT person, sqrt(CAST(sum({squares}) AS DOUBLE)) AS norm FROM contributions "
        "GROUP BY person ORDER BY person"
    ).to_arrow_table()
    found = table.column("norm").to_numpy() * (1 + 2.0**-40)
    return table.column("person").to_numpy(), np.asarray(found, dtype=np.float64)


def totals(cursor: Any, width: int, cells: int, admitted: Integers | None) -> list[list[int]]:
    """Return the sums, in grid steps, of each cell over the admitted persons (None: over all)."""
    join = ""
    if admitted is not None:
        import pyarrow as pa

        cursor.register("admitted", pa.table({"person": pa.array(admitted, pa.int64())}))
        join = "SEMI JOIN admitted USING (person)"
    sums = ", ".join(f"sum(k{i})" for i in range(width))
    rows = cursor.execute(f"SELECT cell, {sums} FROM contributions {join} GROUP BY cell").fetchall()
    result = [[0] * width for _ in range(cells)]
    for cell, *values in rows:
        result[cell] = [int(v) for v in values]
    return result
