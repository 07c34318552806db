"""Registering: what is read, what the steward is told, and what nobody else is."""

from datetime import date
from pathlib import Path

import duckdb
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from apiece.errors import DataError, InputError, OptionError
from apiece.queries import Schema, Session, register

SCHEMA = Schema("id", bounds={"x": (0, 10)}, kinds={"since": "date"}, groups={"g": ["a", "b"]})
LINES = [
    "id,x,g,since",
    "p1,1,a,2020-01-01",
    "p2,?,b,yesterday",
    ",3,a,2020-01-01",
    "p3,1",
    "p4,9,c,",
]


def test_the_stewards_log_and_the_fingerprint(tmp_path: Path) -> None:
    path, log = tmp_path / "people.csv", list[str]()
    path.write_text("\n".join(LINES))
    table = register(path, SCHEMA, log=log.append)
    assert log == [
        "line 5: 2 fields, not 4; left out",
        "column 'x': 1 cells are not numeric",
        "column 'since': 1 cells are not date",
        "1 rows have no id that can be one; left out",
        "registered: 3 rows of 3 people",
    ]
    assert register(path, SCHEMA, fingerprint=table.fingerprint.upper()).people.size == 3
    path.write_text("\n".join([*LINES, "p5,1,a,"]))
    with pytest.raises(DataError, match="not the table with this fingerprint"):
        register(path, SCHEMA, fingerprint=table.fingerprint)
    assert "p1" not in repr(table) + repr(Session(table, SCHEMA))
    assert table.fingerprint not in repr(table) + repr(Session(table, SCHEMA))


def test_a_registered_table_is_frozen(tmp_path: Path) -> None:
    path = tmp_path / "people.csv"
    path.write_text("\n".join(LINES))
    session = Session(path, SCHEMA)
    path.write_text("\n".join(LINES[:2]))
    found = session.ask("count()", epsilon=1e6, delta=0.5).groups[0]["estimate"]
    assert round(found, 1) == 3


@pytest.mark.parametrize("damage", ["cast", "overflow", "parquet", "quote"])
def test_what_is_wrong_with_rows_is_told_to_the_steward_alone(damage: str, tmp_path: Path) -> None:
    secret = "HIV+9223372036854775807"
    frame = pd.DataFrame({"id": ["p1"], "x": [secret], "g": ["a"], "since": [""]})
    if damage == "cast":
        source = duckdb.from_df(frame).project("id, CAST(x AS INT) AS x, g, since")
    elif damage == "overflow":
        source = duckdb.from_df(frame).project("id, g, since, 9223372036854775807 + length(x) AS x")
    elif damage == "parquet":
        source = tmp_path / "p.parquet"
        frame.to_parquet(source)
        content = bytearray(source.read_bytes())
        content[4:40] = b"\xff" * 36
        source.write_bytes(bytes(content))
    else:
        source = tmp_path / "p.csv"
        source.write_text(f'id,x,g,since\np1,"{secret},a,\n')
    log: list[str] = []
    with pytest.raises(DataError, match="cannot be registered; the reason is in the steward's log"):
        register(source, SCHEMA, log=log.append)
    assert "refused" in log[-1]
    with pytest.raises(DataError) as caught:
        Session(source, SCHEMA)
    assert "HIV" not in str(caught.value)
    assert "p1" not in str(caught.value)
    assert caught.value.__cause__ is None
    assert caught.value.__suppress_context__


def test_storage_types_read_alike() -> None:
    """The same numbers and dates, stored in any type, are the same table."""
    days = [date(2020, 1, 1), date(2024, 2, 29), None]
    xs, ids = [pa.int8(), pa.int64(), pa.float32(), pa.float64(), pa.decimal128(5, 2)], [1, 2, 3]
    times = [pa.date32(), pa.date64(), *(pa.timestamp(u) for u in ("s", "ms", "us", "ns"))]
    times += [pa.timestamp("us", tz="UTC")]
    schema = Schema("id", bounds={"x": (0, 10)}, kinds={"since": "date"}, groups={"x": [3, 4, 5]})
    rows = []
    for number, time in zip([*xs, xs[0], xs[1]], times, strict=True):
        columns = {
            "id": pa.array(ids, number),
            "x": pa.array([3, 4, None], number),
            "since": pa.array(days, pa.date32()).cast(time),
        }
        found = register(pa.table(columns), schema)
        rows.append(
            found.database.cursor().execute("SELECT * FROM rows ORDER BY person").fetchall()
        )
        assert found.people.tolist() == ["1", "2", "3"]
    assert len(rows[0]) == 3
    assert all(row == rows[0] for row in rows)


def test_dictionaries_and_categories_read_as_their_values() -> None:
    frame = pd.DataFrame({"id": ["1", "2"], "g": pd.Categorical(["a", "b"])})
    schema = Schema("id", groups={"g": ["a", "b"]})
    for source in (frame, pa.Table.from_pandas(frame)):
        groups = Session(source, schema).ask("count() by g", epsilon=1e6, delta=0.5).groups
        assert [round(g["estimate"], 1) for g in groups] == [1, 1]


def test_declarations_are_checked() -> None:
    with pytest.raises(OptionError, match="unknown name 'number'"):
        Schema("id", kinds={"x": "number"})
    with pytest.raises(InputError, match="control characters"):
        Schema("i\0d")
    with pytest.raises(InputError, match="control characters"):
        Schema("id", groups={"g": ["a\x1b[2J"]})
    with pytest.raises(InputError, match="each value once"):
        Schema("id", groups={"g": ["7", 7]})
    with pytest.raises(InputError, match="neither a text nor a number"):
        Schema("id", groups={"g": [date(2020, 1, 1)]})
    with pytest.raises(InputError, match="low must be below high"):
        Schema("id", bounds={"x": (0, 5e-324)})
    declared = Schema("id", groups={"g": np.array([1, 2])}).groups["g"]
    assert [type(v) for v in declared] == [int, int]
