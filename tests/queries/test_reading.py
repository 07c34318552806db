"""Reading: a cell is its declared kind or missing, by itself; the database reaches nothing."""

from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from apiece.errors import UnsupportedError
from apiece.queries import reading
from apiece.queries.declarations import Declarations

SCHEMA = Declarations(
    "id",
    bounds={"x": (0, 9)},
    kinds={"t": "text", "d": "date"},
    groups={"g": ["u", 7]},
    rows_per_person=1,
)
CELLS = ["", "u", "7", "7.0", "1e3", "nan", "inf", "-0", "0x7", "2024-01-31", "2024-02-30", "a\tb"]


def cells(rows: list[tuple[str | None, ...]]) -> list[tuple[Any, ...]]:
    """Read rows of id, x, t, d and g, all of them texts; return the rows of the table `cells`."""
    columns = {
        name: pa.array([row[i] for row in rows], pa.string()) for i, name in enumerate("ixtdg")
    }
    columns["id"] = columns.pop("i")
    database = reading.connect(1)
    plain = reading.unpack_columns(columns, SCHEMA)
    reading.read_cells(database, reading.convert_columns(plain, SCHEMA), SCHEMA)
    kinds = (("x", "numeric"), ("t", "text"), ("d", "date"))
    names = ["person", *(SCHEMA.stored(*kind) for kind in kinds), SCHEMA.stored_group("g"), "tie"]
    assert set(names[1:-1]) <= set(reading.list_types(SCHEMA))
    found = database.execute(f"SELECT {', '.join(names)} FROM cells").fetchall()
    database.close()
    return list(found)


@pytest.mark.parametrize(
    ("row", "found"),
    [
        (("ann", "7", "hi", "2024-01-31", "u"), ("ann", 7.0, "hi", 1706659200000000, 0)),
        (("ann", "-0", "a\tb", "2024-02-30", "7"), ("ann", 0.0, None, None, 1)),
        (("a\nb", "nan", "", "yesterday", "w"), (None, None, None, None, None)),
        ((None, None, None, None, None), (None, None, None, None, None)),
        (("x" * 129, "0x7", "0x7", "2024-01-31 18", "U"), (None, None, "0x7", None, None)),
    ],
)
def test_cells_are_of_their_kind_or_missing(
    row: tuple[str | None, ...], found: tuple[Any, ...]
) -> None:
    assert cells([row])[0][:-1] == found


rows = st.lists(st.tuples(*[st.sampled_from([None, *CELLS])] * 5), min_size=1, max_size=4)


@settings(derandomize=True, max_examples=15, deadline=None)
@given(rows)
def test_a_row_is_read_by_itself(each: list[tuple[str | None, ...]]) -> None:
    """With its tie, which orders it among the rows of its person."""
    together = sorted(map(repr, cells(each)))
    assert together == sorted(repr(cells([row])[0]) for row in each)


def test_ties_follow_the_content_alone() -> None:
    row = ("ann", "1", "t", None, "u")
    one, again = (each[-1] for each in cells([row, row]))
    assert one == again
    assert cells([("ann", "2", *row[2:])])[0][-1] != one
    assert reading.order_sql(SCHEMA).startswith("tie, ")
    assert reading.order_sql(SCHEMA).count("NULLS FIRST") == len(reading.list_types(SCHEMA))


def test_the_database_reaches_nothing(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("a\n1\n")
    for statement in (
        f"SELECT * FROM read_csv('{tmp_path}/t.csv')",
        f"COPY (SELECT 1) TO '{tmp_path}/out.csv'",
        "SET enable_external_access = true",
        "INSTALL httpfs",
    ):
        with pytest.raises(duckdb.Error):
            reading.connect().execute(statement)
    assert [path.name for path in tmp_path.iterdir()] == ["t.csv"]


def test_what_memory_does_not_hold_lies_where_it_is_told(tmp_path: Path) -> None:
    """Without a place for it more is an error: nothing is written where the process runs."""
    much = "CREATE TABLE t AS SELECT hash(i) AS x FROM range(4000000) AS _(i)"
    with pytest.raises(duckdb.OutOfMemoryException):
        reading.connect(1, memory=2**24).execute(much)
    place = tmp_path / "it's"
    database = reading.connect(1, memory=2**24, spill=place)
    database.execute(much)
    assert list(place.iterdir())
    database.close()
    assert not place.exists()
    setting = "SELECT current_setting('memory_limit')"
    most = duckdb.connect().execute(setting).fetchone()
    assert reading.connect(memory=2**60).execute(setting).fetchone() == most
    assert reading.connect(memory=2**24).execute(setting).fetchone() == ("16.0 MiB",)


def test_choosing_the_rows_of_each_person_is_not_held_in_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """DuckDB's way of first choice holds a heap for each person; it is told to take another."""
    chosen = (
        "SELECT count(*) FROM (SELECT *, row_number() OVER (PARTITION BY p ORDER BY x) AS nth "
        "FROM (SELECT i // 2 AS p, hash(i) AS x FROM range(600000) AS _(i))) WHERE nth <= 2"
    )
    database = reading.connect(1, memory=2**26, spill=tmp_path / "own")
    assert database.execute(chosen).fetchone() == (600_000,)
    if reading._UNBOUNDED in duckdb.sql("FROM duckdb_optimizers()").fetchall():
        monkeypatch.setattr(reading, "_UNBOUNDED", ("none",))
        with pytest.raises(duckdb.OutOfMemoryException):
            reading.connect(1, memory=2**26, spill=tmp_path / "own").execute(chosen)


def test_a_column_of_lists_is_named() -> None:
    columns = {name: pa.array(["a"]) for name in ("id", "t", "d", "g")}
    with pytest.raises(UnsupportedError, match=r"column 'x': .*; leave it out or convert it"):
        reading.unpack_columns(columns | {"x": pa.array([[1, 2]])}, SCHEMA)
