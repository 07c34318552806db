"""The scan: people's bounded contributions as whole grid steps, as SQL over a registered table.

It is stable: a person's contributions are a function of that person's rows, the query, the schema
and the noise's grid. Rows are read one at a time when the table is registered; a condition, a group
and a feature are functions of one row; which rows are kept, and their sums, of one person's rows.
All sums are of whole numbers, so their order does not matter, and no expression can fail. The text
is one for every engine, but for what its dialect says.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import AbstractContextManager
from typing import Any, Protocol, runtime_checkable

import numpy as np

from apiece._types import Floats, Mask
from apiece.queries.conditions import condition_sql
from apiece.queries.dialects import Dialect, number_sql
from apiece.queries.features import Features
from apiece.queries.grammar import Query
from apiece.queries.schema import Schema

Texts = Any  # an Arrow array of text in chunks: a tenth of what Python's texts take
_HALF = 2**53  # of a sum of squares, that both halves are exact as doubles


class Contributions(Protocol):
    """What everybody adds to one query's sums, held by an engine while the query is answered."""

    def norms(self, power: int) -> tuple[Texts, Floats]:
        """Return every contributing person's id and ℓ1 or ℓ2 norm in grid steps, rounded up.

        By the bytes of the id, so that a charge that is repeated after a crash is the same one.
        """
        ...

    def totals(self, cells: int, paid: Mask | None) -> list[list[int]]:
        """Return the sums of each cell, over those of `norms` who paid (None: over all)."""
        ...


@runtime_checkable
class Registered(Protocol):
    """A table that some engine has registered; another fingerprint is another table."""

    schema: Schema
    fingerprint: str

    def contributions(
        self, query: Query, what: Features, grid: float
    ) -> AbstractContextManager[Contributions]:
        """Hold everybody's contributions to a query, in whole steps of the grid."""
        ...


def contributions_sql(
    query: Query, schema: Schema, features: Features, grid: float, dialect: Dialect
) -> str:
    """Return SQL for person, cell and whole grid steps, one row a pair, over the table `rows`.

    Of a person's rows that count at most schema.rows_per_person are kept. Raises `DataError` for a
    column that is not declared as the query uses it; it depends on no row.
    """
    kept = [f"({features.present})"]
    if query.where is not None:
        kept.append(condition_sql(query.where, schema, dialect))
    base = "0"
    if query.by is not None:
        group = schema.stored_group(query.by)
        kept.append(f"({group} IS NOT NULL)")
        base = f"{group} * {features.size}"
    width, wide = range(len(features.columns)), dialect.wide
    # A feature is at most 1 in size and 1/grid at most 2^44, so a step is exact in 64 bits and no
    # sum, nor one of squares, leaves 38 digits.
    steps = ", ".join(
        f"CAST(round(({sql}) / {number_sql(grid)}) AS BIGINT) AS k{i}"
        for i, sql in enumerate(features.columns)
    )
    cells = dialect.spread([f"({base}) + {cell}" for cell in features.cells])
    if schema.rows_per_person == 1:  # a row's cells differ, so there is nothing to add up
        sums, pairs = ", ".join(f"CAST(k{i} AS {wide}) AS k{i}" for i in width), ""
    else:
        sums = ", ".join(f"CAST(sum(CAST(k{i} AS {wide})) AS {wide}) AS k{i}" for i in width)
        pairs = "GROUP BY person, cell"
    # Without the alias Spark would read "WHERE (TRUE)" as one.
    return f"""
        WITH counted AS (
            SELECT *, row_number() OVER (PARTITION BY person ORDER BY place) AS nth
            FROM rows AS given WHERE {" AND ".join(kept)}
        ), bounded AS (SELECT * FROM counted AS given WHERE nth <= {schema.rows_per_person}),
        spread AS (SELECT person, {steps}, {cells} AS cell FROM bounded)
        SELECT person, CAST(cell AS BIGINT) AS cell, {sums} FROM spread {pairs}
        """


def powers_sql(width: int, power: int, dialect: Dialect) -> str:
    """Return SQL for every contributing person and their sum of squares or sizes, in two halves."""
    wide = dialect.wide
    powers = " + ".join(f"k{i} * k{i}" if power == 2 else f"abs(k{i})" for i in range(width))
    high = f"CAST(s {dialect.divided} {_HALF} AS BIGINT)"
    return (
        f"SELECT person, {high} AS high, CAST(s - CAST({high} AS {wide}) * {_HALF} AS BIGINT) AS "
        f"low FROM (SELECT person, CAST(sum({powers}) AS {wide}) AS s FROM contributions "
        "GROUP BY person) AS each"
    )


def norms(sums: Any, power: int) -> Floats:
    """Return norms from an Arrow table or batch of sums of powers in two halves, rounded up."""
    high, low = (sums.column(name).to_numpy().astype(np.float64) for name in ("high", "low"))
    return np.asarray((high * _HALF + low) ** (1 / power) * (1 + 2.0**-40), dtype=np.float64)


def totals_sql(width: int, among: str | None) -> str:
    """Return SQL for the sums of each cell over the persons in `among` (None: over all)."""
    join = "" if among is None else f"SEMI JOIN {among} USING (person)"
    sums = ", ".join(f"sum(k{i}) AS k{i}" for i in range(width))
    return f"SELECT cell, {sums} FROM contributions {join} GROUP BY cell"


def totals(rows: Iterable[Any], width: int, cells: int) -> list[list[int]]:
    """Return the sums, in grid steps, of each cell; 0 where nobody adds anything."""
    result = [[0] * width for _ in range(cells)]
    for cell, *values in rows:
        result[cell] = [int(v) for v in values]
    return result
