"""The scan by hand: one row a person and cell, in whole grid steps, and only so many rows each."""

import math

import numpy as np
import pandas as pd
import pytest

from apiece.errors import DataError
from apiece.queries import Schema, Table, parse, register, scan
from apiece.queries.features import features

GRID = 2.0**-10
SCHEMA = Schema("id", bounds={"x": (0, 8)}, groups={"g": ["u", "v"]}, rows_per_person=2)
ROWS = pd.DataFrame({
    "id": ["a", "a", "b", "c", "c", "c", "d"],
    "x": [8.0, 4.0, 2.0, 8.0, 8.0, 8.0, None],
    "g": ["u", "v", "u", "v", "v", "v", "u"],
})  # fmt: skip


def scanned(text: str, table: Table | None = None) -> tuple[object, int, int]:
    """Make the contributions to a query; return the cursor that sees them, width and cells."""
    table = register(ROWS, SCHEMA) if table is None else table
    query = parse(text)
    what = features(query, table.schema)
    cursor = table.database.cursor()
    sql = scan.contributions_sql(query, table.schema, what, GRID)
    cursor.execute(f"CREATE TEMP TABLE contributions AS {sql}")
    groups = 1 if query.by is None else len(table.schema.groups_of(query.by))
    return cursor, len(what.columns), groups * what.size


def test_sums_are_whole_grid_steps_of_rows_that_count() -> None:
    cursor, width, cells = scanned("sum(x) by g")  # x over its bound 8: 1, ½, ¼, 1, 1 and nothing
    assert scan.totals(cursor, width, cells, None) == [[1024 + 256], [512 + 2 * 1024]]
    people, norms = scan.norms(cursor, width)
    assert people.tolist() == [0, 1, 2]  # not d, who has no number
    exact = [math.hypot(1024, 512), 256, 2048]
    assert (norms >= exact).all()
    assert norms == pytest.approx(exact, rel=1e-11)


def test_only_those_who_are_admitted_are_summed() -> None:
    cursor, width, cells = scanned("sum(x) by g")
    for admitted, expected in (
        ([0, 2], [[1024], [512 + 2048]]),
        ([3, 99], [[0], [0]]),
        ([], [[0], [0]]),
    ):
        one = np.array(admitted, dtype=np.int64)
        assert scan.totals(cursor, width, cells, one) == expected


def test_a_row_counts_where_its_condition_holds_and_its_group_is_declared() -> None:
    cursor, width, cells = scanned("count() where x > 3")
    assert scan.totals(cursor, width, cells, None) == [[4 * 1024]]  # a twice, c at most twice
    more = pd.concat([ROWS, pd.DataFrame({"id": ["e"], "x": [1.0], "g": ["w"]})])
    cursor, width, cells = scanned("count() by g", register(more, SCHEMA))
    assert scan.totals(cursor, width, cells, None) == [[3 * 1024], [3 * 1024]]


def test_every_level_of_a_quantile_is_a_cell_of_the_same_row() -> None:
    cursor, width, cells = scanned("quantile(x, 0.5)")
    totals = scan.totals(cursor, width, cells, None)
    assert totals[0][0] + totals[1][0] == 5 * 1024  # the first level holds every row once
    assert sum(total[0] for total in totals) == 10 * 5 * 1024
    _, norms = scan.norms(cursor, width)
    assert norms[1] == pytest.approx(math.sqrt(10) * 1024)


def test_a_column_that_is_not_declared_is_refused_whatever_the_rows() -> None:
    query = parse("sum(x) where y > 1")
    with pytest.raises(DataError, match="'y'"):
        scan.contributions_sql(query, SCHEMA, features(query, SCHEMA), GRID)
