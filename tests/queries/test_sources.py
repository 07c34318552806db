"""Where a table comes from: one file, or one table in memory, read literally."""

import hashlib
from pathlib import Path

import duckdb
import pandas as pd
import pyarrow as pa
import pytest

from apiece.errors import DataError, InputError
from apiece.queries import Schema, register, sources

PEOPLE = pd.DataFrame({
    "id": [3, 1, 2], "x": [0.5, 2.0, 1.5], "g": ["u", "v", "u"], "other": ["never", "read", "x"],
})  # fmt: skip
SCHEMA = Schema("id", bounds={"x": (0, 8)}, groups={"g": ["u", "v"]})


def quiet(_: str) -> None:
    pass


def test_every_source(tmp_path: Path) -> None:
    PEOPLE.to_parquet(tmp_path / "p.parquet")
    PEOPLE.to_csv(tmp_path / "p.csv", index=False)
    rows = [
        register(source, SCHEMA)
        .database.sql("SELECT * FROM rows ORDER BY person, place")
        .fetchall()
        for source in (
            PEOPLE,
            PEOPLE.astype({"g": "category", "other": "string"}),
            pa.Table.from_pandas(PEOPLE),
            tmp_path / "p.parquet",
            str(tmp_path / "p.csv"),
            duckdb.sql(f"SELECT * FROM read_parquet('{tmp_path}/p.parquet')"),
        )
    ]
    assert len(rows[0]) == 3
    assert all(each == rows[0] for each in rows[1:])


@pytest.mark.parametrize("name", ["p.csv", "p.PARQUET"])
def test_a_file_is_known_by_its_bytes_and_only_what_is_wanted_is_read(
    name: str, tmp_path: Path
) -> None:
    path = tmp_path / name
    PEOPLE.to_csv(path, index=False) if name == "p.csv" else PEOPLE.to_parquet(path)
    columns, digest = sources.read(path, ["x", "id"], quiet)
    assert list(columns) == ["x", "id"]
    assert digest == hashlib.sha256(path.read_bytes()).hexdigest()
    assert sources.read(PEOPLE, ["x"], quiet)[1] == ""


@pytest.mark.parametrize("form", ["frame", "arrow", "csv", "parquet"])
def test_each_wanted_column_is_there_once(form: str, tmp_path: Path) -> None:
    table = pa.table([pa.array(["a"])] * 3, names=["id", "x", "x"])
    source: object = table
    if form == "frame":
        source = pd.DataFrame([["a"] * 3], columns=["id", "x", "x"])
    elif form == "csv":
        source = tmp_path / "t.csv"
        Path(str(source)).write_text("id,x,x\na,a,a\n")
    elif form == "parquet":
        import pyarrow.parquet as pq

        source = tmp_path / "t.parquet"
        pq.write_table(table, source)
    assert list(sources.read(source, ["id"], quiet)[0]) == ["id"]
    with pytest.raises(DataError, match=r"column 'x': twice in the source .*it has id, x, x"):
        sources.read(source, ["id", "x"], quiet)
    with pytest.raises(DataError, match="column 'ID': not in the source"):
        sources.read(source, ["ID"], quiet)


@pytest.mark.parametrize("source", [None, 7, [[1, 2]], {"id": [1]}, b"p.csv"])
def test_what_is_no_source(source: object) -> None:
    with pytest.raises(InputError, match="not a path, a pandas or an Arrow table"):
        sources.read(source, ["id"], quiet)


def test_files_that_cannot_be_read_or_whose_kind_is_not_said(tmp_path: Path) -> None:
    (tmp_path / "folder.csv").mkdir()
    for path in (tmp_path / "none.csv", tmp_path / "folder.csv", f"{'x' * 300}.csv"):
        with pytest.raises(DataError, match=r"^source '.*cannot be read \("):
            sources.read(path, ["id"], quiet)
    for name in ("t.txt", "t", "t.csv.gz", ".csv"):
        with pytest.raises(InputError, match=r"neither a \.parquet nor a \.csv file"):
            sources.read(tmp_path / name, ["id"], quiet)


def test_a_message_names_a_source_briefly() -> None:
    assert sources.short("p.csv") == "'p.csv'"
    assert sources.short(PEOPLE) == "'DataFrame'"
    assert len(sources.short("x" * 500)) == 60
