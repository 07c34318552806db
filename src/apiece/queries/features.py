"""Each aggregate as a vector of bounded features, summed over rows: what one row adds, at most."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import combinations_with_replacement
from typing import Final

from apiece.queries.dialects import number_sql
from apiece.queries.grammar import Query
from apiece.queries.schema import Schema

LEVELS: Final = 10  # of the tree of a quantile: 2^10 leaves over the declared bounds


@dataclass(frozen=True, slots=True)
class Features:
    """What a row adds: `columns` (SQL, in [−1, 1]) to each of its `cells`.

    cells: SQL expressions of the cell's number, one a level; at each a row adds its columns once.
    present: SQL condition of a row that counts at all. norm: ℓ2 bound on what a row adds.
    size: number of cells in a group.
    """

    columns: tuple[str, ...]
    cells: tuple[str, ...]
    present: str
    norm: float
    size: int


def _clamped(column: str, schema: Schema) -> str:
    low, high = schema.bounds_of(column)
    value = schema.stored(column, "numeric")
    return f"least(greatest({value}, {number_sql(low)}), {number_sql(high)})"


def scaled(column: str, schema: Schema) -> str:
    """Return SQL for a column, clamped to its bounds and scaled to [−1, 1]."""
    low, high = schema.bounds_of(column)
    middle, half = number_sql((low + high) / 2), number_sql((high - low) / 2)
    return f"least(greatest(({_clamped(column, schema)} - {middle}) / {half}, -1.0), 1.0)"


def _present(columns: tuple[str, ...], schema: Schema) -> str:
    """Return SQL for: every column is a number. What is missing or NaN contributes nothing."""
    for column in columns:
        schema.bounds_of(column)
    return " AND ".join(f"({schema.stored(c, 'numeric')} IS NOT NULL)" for c in columns)


def _position(column: str, bins: int, schema: Schema) -> str:
    unit = f"(({scaled(column, schema)} + 1) / 2)"
    return f"least(CAST(floor({unit} * {bins}) AS BIGINT), {bins - 1})"


def features(query: Query, schema: Schema) -> Features:
    """Return what a row adds to the query's sums, from the declared bounds alone."""
    columns = query.columns
    if query.aggregate == "count":
        given = "TRUE"
        if columns:
            given = f"{schema.stored(columns[0], schema.kind_of(columns[0]))} IS NOT NULL"
        return Features(("1.0",), ("0",), given, 1.0, 1)
    present = _present(columns, schema)
    match query.aggregate:
        case "sum":
            low, high = schema.bounds_of(columns[0])
            value = f"{_clamped(columns[0], schema)} / {number_sql(max(abs(low), abs(high)))}"
            return Features((value,), ("0",), present, 1.0, 1)
        case "histogram":
            bins = int(query.numbers[0]) if query.numbers else 10
            where = _position(columns[0], bins, schema)
            return Features(("1.0",), (where,), present, 1.0, bins)
        case "quantile":
            leaf = _position(columns[0], 2**LEVELS, schema)
            # Level l has 2^l nodes, which start at 2^l − 2.
            nodes = tuple(
                f"({2**level - 2} + CAST(floor({leaf} / {number_sql(2.0 ** (LEVELS - level))}) "
                "AS BIGINT))"
                for level in range(1, LEVELS + 1)
            )
            return Features(("1.0",), nodes, present, math.sqrt(LEVELS), 2 ** (LEVELS + 1) - 2)
    moments = moment_names(query)
    values = {c: scaled(c, schema) for c in columns}
    sql = [" * ".join(f"({values[c]})" for c in names) or "1.0" for names in moments]
    # Every coordinate is at most 1, and the first is 1.
    return Features(tuple(sql), ("0",), present, math.sqrt(len(moments)), 1)


def moment_names(query: Query) -> list[tuple[str, ...]]:
    """Return which products of columns the sums of an aggregate of moments are: 1 first."""
    columns = query.columns
    match query.aggregate:
        case "mean":
            return [(), (columns[0],)]
        case "variance":
            return [(), (columns[0],), (columns[0], columns[0])]
        case "covariance":
            x, y = columns
            return [(), (x,), (y,), (x, y)]
        case _:
            singles: list[tuple[str, ...]] = [(c,) for c in columns]
            return [(), *singles, *combinations_with_replacement(columns, 2)]
