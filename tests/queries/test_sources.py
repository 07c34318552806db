"""Where a table comes from: one file, or one table in memory, read literally."""

import functools
import hashlib
import os
from pathlib import Path
from typing import Any

import duckdb
import pandas as pd
import pyarrow as pa
import pytest

from apiece.datasets import Categorical, Numeric, Schema
from apiece.datasets.blocks import read_batches
from apiece.errors import DataError, InputError
from apiece.queries import register, sources, spark
from apiece.queries.declarations import Declarations
from refusals import refused

PEOPLE = pd.DataFrame({
    "id": [3, 1, 2], "x": [0.5, 2.0, 1.5], "g": ["u", "v", "u"], "other": ["never", "read", "x"],
})  # fmt: skip
SCHEMA = Schema({"x": Numeric(0, 8), "g": Categorical(["u", "v"])}, person="id", rows_per_person=1)
DECLARATIONS = Declarations.from_schema(SCHEMA)


def quiet(_: str) -> None:
    pass


def read(source: Any, wanted: list[str]) -> tuple[list[sources.Columns], str]:
    with sources.read_source(source, wanted, quiet) as (parts, digest):
        return list(parts), digest


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
    parts, digest = read(path, ["x", "id"])
    assert [list(columns) for columns in parts] == [["x", "id"]]
    assert digest == hashlib.sha256(path.read_bytes()).hexdigest()
    assert read(PEOPLE, ["x"])[1] == ""


@pytest.mark.parametrize("kind", ["csv", "parquet"])
@pytest.mark.parametrize("count", [0, 1, 9, 10, 11, 95])
def test_a_file_is_read_in_parts(
    kind: str, count: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Row groups of 3 and blocks of 16 bytes, gathered to 10 rows of two columns."""
    import pyarrow.parquet as pq

    monkeypatch.setattr(sources, "CELLS", 20)
    blocks = functools.partial(read_batches, block=16)
    monkeypatch.setattr(sources, "read_batches", blocks)
    ids = [f"p{i}" for i in range(count)]
    table = pa.table({"id": ids, "x": ["7"] * count, "g": pa.array(ids).dictionary_encode()})
    path = tmp_path / f"p.{kind}"
    if kind == "csv":
        table.to_pandas().to_csv(path, index=False)
    else:
        pq.write_table(table, path, row_group_size=3)
    parts, _ = read(path, ["g", "id"])
    sizes = [len(part["id"]) for part in parts]
    assert [
        cell for part in parts for cell in sources.convert_to_texts(part["g"]).to_pylist()
    ] == ids
    assert [cell for part in parts for cell in part["id"].to_pylist()] == ids
    assert all(10 <= size < 20 for size in sizes[:-1])
    assert len(sizes) == max(1, sum(sizes[:-1]) // 10 + (sizes[-1] > 0))


def test_what_is_known_of_row_groups_before_a_row_is_read(tmp_path: Path) -> None:
    path = tmp_path / "p.parquet"
    PEOPLE.to_parquet(path, row_group_size=2)
    groups, empty, rows = sources.read_layout(path, ["x", "id"])
    assert (groups, rows, empty.column_names, empty.num_rows) == (2, 3, ["x", "id"], 0)
    about = path.stat()
    parts = [
        sources.read_row_group(path, number, ["x", "id"], (about.st_size, about.st_mtime_ns))
        for number in range(groups)
    ]
    assert [part["id"].to_pylist() for part in parts] == [[3, 1], [2]]
    with refused(DataError, "'y'", "4 columns"):
        sources.read_layout(path, ["x", "y"])
    with pytest.raises(DataError, match="changed while it was read"):
        sources.read_row_group(path, 0, ["x"], (about.st_size, about.st_mtime_ns + 1))


def test_a_file_and_a_folder_of_files_are_split_at_their_row_groups(tmp_path: Path) -> None:
    paths = [tmp_path / "1.parquet", tmp_path / "2.parquet"]
    for path in paths:
        PEOPLE.to_parquet(path, row_group_size=2)
    for source, files in ((paths[0], paths[:1]), (tmp_path, paths)):
        parts, rows = spark._list_parts(source, DECLARATIONS)
        assert [(name, number) for name, _, _, number in parts] == [
            (str(path), number) for path in files for number in (0, 1)
        ]
        assert rows == 3 * len(files)
    PEOPLE.assign(x="7").to_parquet(tmp_path / "3.parquet")
    with pytest.raises(DataError, match="other columns than the first file's"):
        spark._list_parts(tmp_path, DECLARATIONS)
    for none in (tmp_path / "p.csv", tmp_path / "empty"):
        none.mkdir()
        with pytest.raises(InputError, match="no Parquet file"):
            spark._list_parts(none, DECLARATIONS)


def test_a_file_that_changes_while_it_is_read_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "p.parquet"
    PEOPLE.to_parquet(path)

    def changed() -> None:
        with sources.read_source(path, ["x"], quiet) as (parts, _):
            assert len(list(parts)) == 1
            os.utime(path, (1, 1))

    with pytest.raises(DataError, match="changed while it was read"):
        changed()


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
    assert [list(columns) for columns in read(source, ["id"])[0]] == [["id"]]
    with refused(DataError, "'x'", "twice", "3 columns"):
        read(source, ["id", "x"])
    with pytest.raises(DataError, match="column 'ID': not in the source"):
        read(source, ["ID"])


@pytest.mark.parametrize("source", [None, 7, [[1, 2]], {"id": [1]}, b"p.csv"])
def test_what_is_no_source(source: object) -> None:
    with pytest.raises(InputError, match="not a path, a pandas or an Arrow table"):
        read(source, ["id"])


def test_files_that_cannot_be_read_or_whose_kind_is_not_said(tmp_path: Path) -> None:
    (tmp_path / "folder.csv").mkdir()
    for path in (tmp_path / "none.csv", tmp_path / "folder.csv", f"{'x' * 300}.csv"):
        with pytest.raises(DataError, match=r"^source '.*cannot be read \("):
            read(path, ["id"])
    for name in ("t.json", "t", "t.gz", ".csv", "t.xlsx"):
        with pytest.raises(InputError, match=r"neither a \.parquet nor a \.csv file"):
            read(tmp_path / name, ["id"])


def test_a_message_names_a_source_briefly() -> None:
    assert sources.shorten_name("p.csv") == "'p.csv'"
    assert sources.shorten_name(PEOPLE) == "'DataFrame'"
    assert len(sources.shorten_name("x" * 500)) == 60
