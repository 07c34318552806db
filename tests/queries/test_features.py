"""Features: what one row adds is bounded by the declared norm, whatever is in the row."""

import itertools
import math

import duckdb
import pytest

from apiece.errors import DataError
from apiece.queries.declarations import Declarations
from apiece.queries.grammar import parse
from apiece.queries.question import list_moments, resolve
from apiece.queries.scan import DUCKDB, Scan

SCHEMA = Declarations("id", bounds={"x": (-2, 6), "y": (0, 1e6), "z": (-3, -1)}, rows_per_person=1)
QUERIES = [
    "count()", "count(x)", "sum(x)", "sum(z)", "mean(x)", "variance(y)", "covariance(x, y)",
    "histogram(x, 7)", "quantile(y, 0.5)", "regression(y ~ x + z)",
]  # fmt: skip
CELLS = ["NULL", "-1e308", "-3.0", "-2.0", "0.3", "6.0", "1e6", "1e308"]


@pytest.mark.parametrize("text", QUERIES)
def test_no_row_adds_more_than_the_norm(text: str) -> None:
    what = resolve(parse(text), SCHEMA)
    scan = Scan.from_question(what, SCHEMA)
    names = ", ".join(SCHEMA.stored(c, "numeric") for c in ("x", "y", "z"))
    rows = ", ".join(
        f"({', '.join(f'{cell}::DOUBLE' for cell in row)})"
        for row in itertools.product(CELLS, repeat=3)
    )
    wanted = ", ".join([scan.present, *scan.addends, scan.cell_sql(DUCKDB)])
    found = duckdb.sql(f"SELECT {wanted} FROM (VALUES {rows}) AS rows({names})").fetchall()
    assert len(found) == len(CELLS) ** 3
    for values in found:
        counts, *columns, cell = values
        if not counts:
            continue
        assert all(-1 <= v <= 1 for v in columns)
        assert 0 <= cell < what.cell_count
        assert math.hypot(*columns) <= what.sensitivity(2)[0] * (1 + 1e-12)


def test_a_missing_cell_does_not_count() -> None:
    scan = Scan.from_question(resolve(parse("mean(x)"), SCHEMA), SCHEMA)
    name = SCHEMA.stored("x", "numeric")
    assert duckdb.sql(f"SELECT {scan.present} FROM (SELECT NULL::DOUBLE AS {name})").fetchall() == [
        (False,)
    ]


def test_columns_without_bounds_are_refused() -> None:
    with pytest.raises(DataError, match="no declared bounds"):
        resolve(parse("sum(w)"), SCHEMA)


def test_moments_begin_with_the_count() -> None:
    for text in ("mean(x)", "variance(x)", "covariance(x, y)", "regression(y ~ x)"):
        assert list_moments(parse(text))[0] == ()
    assert len(list_moments(parse("regression(y ~ x + z)"))) == 1 + 3 + 6
