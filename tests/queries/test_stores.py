"""Folders of Parquet files and database files: the same table gives the same rows."""

from __future__ import annotations

import hashlib
import sqlite3
from pathlib import Path
from typing import Any

import duckdb
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from apiece.cli import run
from apiece.datasets import Boolean, Categorical, Date, Numeric, Schema, Text
from apiece.errors import ApieceError, DataError, InputError
from apiece.ledger import Ledger
from apiece.queries import Session, register
from apiece.queries.table import DeferredTable

SCHEMA = Schema(
    {
        "x": Numeric(0, 8),
        "g": Categorical(["u", "v"]),
        "day": Date(),
        "ill": Boolean(),
        "note": Text(),
    },
    person="id",
    rows_per_person=2,
)
PEOPLE = pd.DataFrame({
    "id": ["b", "a", "a", "c"], "x": [0.5, 2.0, None, 9.25], "g": ["u", "v", "u", "w"],
    "day": ["2024-01-31", "2024-02-29", None, "1999-12-31"], "ill": [True, False, None, True],
    "note": ["é", "it's", None, "7"],
})  # fmt: skip


def rows_of(source: Any, schema: Schema = SCHEMA, log: Any = print) -> list[tuple[Any, ...]]:
    table = register(source, schema, log=log)
    rows = table.database.sql("SELECT * FROM rows ORDER BY person, place").fetchall()
    table.close()
    return list(rows)


def write_sqlite(path: Path, frame: pd.DataFrame = PEOPLE) -> None:
    with sqlite3.connect(path) as connection:
        frame.to_sql("people", connection, index=False)
    connection.close()


def write_duckdb(path: Path) -> None:
    with duckdb.connect(str(path)) as connection:
        connection.register("frame", PEOPLE)
        connection.execute(
            "CREATE TABLE people AS SELECT id, x, g, CAST(day AS DATE) AS day, "
            "CAST(ill AS BOOLEAN) AS ill, note FROM frame"
        )


def test_every_store_gives_the_same_rows(tmp_path: Path) -> None:
    write_sqlite(tmp_path / "p.sqlite")
    write_duckdb(tmp_path / "p.duckdb")
    folder = tmp_path / "parts"
    folder.mkdir()
    PEOPLE[:2].to_parquet(folder / "a.parquet")
    PEOPLE[2:].astype({"ill": object}).to_parquet(folder / "b.parquet")
    hive = tmp_path / "hive"
    for g, part in PEOPLE.groupby("g"):
        (hive / f"g={g}").mkdir(parents=True)
        part.drop(columns="g").to_parquet(hive / f"g={g}" / "0.parquet")
    expected = rows_of(PEOPLE)
    for source in (
        f"{tmp_path}/p.sqlite::people",
        f"{tmp_path}/p.duckdb::people",
        folder,
        str(hive),
    ):
        assert rows_of(source) == expected, source


def test_a_folder_is_known_by_its_files(tmp_path: Path) -> None:
    PEOPLE[:2].to_parquet(tmp_path / "a.parquet")
    (tmp_path / "_metadata").write_bytes(b"x")
    own = hashlib.sha256((tmp_path / "a.parquet").read_bytes()).hexdigest()
    assert register(tmp_path, SCHEMA).fingerprint == own
    PEOPLE[2:].to_parquet(tmp_path / "b.parquet")
    other = hashlib.sha256((tmp_path / "b.parquet").read_bytes()).hexdigest()
    both = hashlib.sha256(f"{own}  a.parquet\n{other}  b.parquet\n".encode()).hexdigest()
    assert register(tmp_path, SCHEMA).fingerprint == both
    with pytest.raises(DataError, match="fingerprint"):
        register(tmp_path, SCHEMA, fingerprint=own)


def test_a_missing_partition_is_a_missing_cell_and_names_are_unquoted(tmp_path: Path) -> None:
    schema = Schema({"g": Categorical(["a/b", "é"])}, person="id", rows_per_person=1)
    for name, person in (("a%2Fb", 1), ("%C3%A9", 2), ("__HIVE_DEFAULT_PARTITION__", 3)):
        (tmp_path / f"g={name}").mkdir()
        pd.DataFrame({"id": [person]}).to_parquet(tmp_path / f"g={name}" / "0.parquet")
    groups = [row[-2] for row in rows_of(tmp_path, schema)]
    assert groups == [0, 1, None]


@pytest.mark.parametrize("case", ["none", "unlike", "types", "twice", "lacks"])
def test_folders_that_are_no_table_are_refused(case: str, tmp_path: Path) -> None:
    folder = tmp_path / "f"
    folder.mkdir()
    if case == "unlike":
        for name in ("g=u", "h=1"):
            (folder / name).mkdir()
            PEOPLE.drop(columns="g").to_parquet(folder / name / "0.parquet")
    if case == "types":
        PEOPLE.to_parquet(folder / "a.parquet")
        PEOPLE.assign(x=["1"] * 4).to_parquet(folder / "b.parquet")
    if case == "twice":
        (folder / "g=u").mkdir()
        PEOPLE.to_parquet(folder / "g=u" / "0.parquet")
    if case == "lacks":
        PEOPLE.drop(columns="x").to_parquet(folder / "a.parquet")
    words = {
        "none": "no Parquet file", "unlike": "unlike keys", "types": "two ways",
        "twice": "in folders' names", "lacks": "'x'",
    }  # fmt: skip
    with pytest.raises((DataError, InputError), match=words[case]):
        register(folder, SCHEMA)


def test_no_row_changes_how_another_is_read_from_sqlite(tmp_path: Path) -> None:
    """A column without types holds anything: each cell is read by itself."""
    odd = [b"\xff\x00", b"text", "x", "1e999", 2**62, -1.5, None, "\u00e9", "a\x00b"]
    frames = []
    for number, cell in enumerate([3.0, *odd]):
        path = tmp_path / f"{number}.db"
        with sqlite3.connect(path) as connection:
            connection.execute("CREATE TABLE people (id, x, g, day, ill, note)")
            connection.execute("INSERT INTO people VALUES ('a', 2, 'u', '2024-01-01', 1, 'n')")
            connection.execute("INSERT INTO people VALUES ('z', ?, ?, ?, ?, ?)", [cell] * 5)
            if isinstance(cell, bytes):
                connection.execute("UPDATE people SET note = CAST(note AS TEXT) WHERE id = 'z'")
        connection.close()
        frames.append(rows_of(f"{path}::people", log=lambda _: None)[0])
    assert all(row == frames[0] for row in frames)


def test_a_table_that_is_not_there_is_refused(tmp_path: Path) -> None:
    write_sqlite(tmp_path / "p.sqlite")
    write_duckdb(tmp_path / "p.duckdb")
    (tmp_path / "no.duckdb").write_bytes(b"not a database")
    (tmp_path / "no.db").write_bytes(b"not a database")
    for source in ("p.sqlite::other", "p.duckdb::other", "no.duckdb::people", "no.db::people"):
        with pytest.raises(DataError, match="no table"):
            register(f"{tmp_path}/{source}", SCHEMA)
    with pytest.raises(DataError, match="no such file"):
        register(f"{tmp_path}/absent.db::people", SCHEMA)
    with pytest.raises(DataError, match="'zz'"):
        register(f"{tmp_path}/p.sqlite::people", SCHEMA.declare({"x": Numeric(0, 8), "zz": Text()}))


def test_a_name_is_no_sql(tmp_path: Path) -> None:
    name = 'a"b; DROP TABLE people'
    with sqlite3.connect(tmp_path / "p.db") as connection:
        PEOPLE.to_sql(name, connection, index=False)
    connection.close()
    assert rows_of(f"{tmp_path}/p.db::{name}") == rows_of(PEOPLE)


def test_many_files_are_read_in_parts(tmp_path: Path) -> None:
    for number in range(5):
        table = pa.Table.from_pandas(PEOPLE.assign(id=[f"p{number}{k}" for k in range(4)]))
        pq.write_table(table, tmp_path / f"{number}.parquet", row_group_size=2)
    assert len(rows_of(tmp_path)) == 20


def test_the_command_reads_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_sqlite(tmp_path / "p.sqlite")
    words = ["--person", "id", "--epsilon", "50", "--delta", "0"]
    assert run(["query", f"{tmp_path}/p.sqlite::people", "count(persons)", *words]) == 0
    assert "counted: persons, each once" in capsys.readouterr().out
    folder = tmp_path / "parts"
    folder.mkdir()
    PEOPLE.to_parquet(folder / "a.parquet")
    assert run(["query", str(folder), "count(persons)", *words]) == 0


def test_a_recorded_answer_reads_no_row(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its terms name the file's digest, so the bytes are enough; other bytes are another table."""
    path = tmp_path / "p.csv"
    frame = pd.DataFrame({"id": range(50), "x": 1.0})
    frame.to_csv(path, index=False)
    url = f"sqlite:///{tmp_path}/l.db"
    Ledger.open(url).enroll(range(50), 3.0, 1e-6)
    words = ["query", str(path), "count(persons)", "--person", "id", "--epsilon", "1",
             "--delta", "0", "--ledger", url, "--analysis", "a", "--json"]  # fmt: skip
    assert run(words) == 0
    first = capsys.readouterr().out

    def refuse(*_given: Any, **_settings: Any) -> None:
        raise AssertionError("a row is read")

    monkeypatch.setattr("apiece.queries.register", refuse)
    assert run(words) == 0
    assert capsys.readouterr().out == first
    # A row more is another table, under which the name is taken.
    frame.to_csv(path, index=False, mode="a", header=False)
    assert run(words) == 2
    assert "Traceback" not in capsys.readouterr().err


def test_a_file_that_changes_before_its_rows_are_read_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "p.csv"
    frame = pd.DataFrame({"id": range(50), "x": 1.0})
    frame.to_csv(path, index=False)
    schema = Schema({"x": Numeric(0, 8)}, person="id", rows_per_person=1)
    table = DeferredTable.from_file(
        path, schema, lambda digest: register(path, schema, fingerprint=digest)
    )
    assert table.fingerprint == hashlib.sha256(path.read_bytes()).hexdigest()
    frame.to_csv(path, index=False, mode="a", header=False)
    with pytest.raises(DataError, match="fingerprint"):
        Session(table, schema).ask("count()", epsilon=1.0, delta=0)


# PostgreSQL.


def fill_postgresql(postgres: Any) -> str:
    """Return the address of a new database with the table of people."""
    psycopg = pytest.importorskip("psycopg")
    address = str(postgres.database()).replace("+psycopg", "")
    with psycopg.connect(address) as connection:
        connection.execute(
            "CREATE TABLE people (id text, x float8, g varchar(9), day date, ill bool, note text)"
        )
        rows = PEOPLE.astype(object).where(PEOPLE.notna(), None).to_numpy().tolist()
        with connection.cursor() as cursor:
            cursor.executemany("INSERT INTO people VALUES (%s, %s, %s, %s, %s, %s)", rows)
    return address


def test_postgresql_gives_the_same_rows(
    postgres: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    address = fill_postgresql(postgres)
    source = f"{address}::people"
    assert rows_of(source) == rows_of(PEOPLE)
    assert rows_of(f"{address}::public.people") == rows_of(PEOPLE)
    # In whatever order the server has the rows, it is the same table.
    import psycopg

    first = register(source, SCHEMA).fingerprint
    with psycopg.connect(address) as connection:
        connection.execute("CREATE TABLE again AS SELECT * FROM people ORDER BY note DESC")
        connection.execute("UPDATE people SET x = 2.5 WHERE x = 2")
        connection.execute("UPDATE people SET x = 2 WHERE x = 2.5")
    assert register(source, SCHEMA).fingerprint == first
    assert register(f"{address}::again", SCHEMA).fingerprint == first
    with psycopg.connect(address) as connection:
        connection.execute("UPDATE people SET x = 3 WHERE x = 2")
    assert register(source, SCHEMA).fingerprint != first
    words = ["query", source, "count(persons)", "--person", "id", "--epsilon", "100"]
    assert run([*words, "--delta", "1e-6", "--json"]) == 0
    assert '"estimate"' in capsys.readouterr().out
    folder = tmp_path / "registered"
    register(source, SCHEMA, folder=folder)
    answer = Session(folder, seed=0).ask("count()", epsilon=1e6, delta=1e-6)
    assert answer.groups[0]["estimate"] == pytest.approx(4, abs=0.01)


def test_no_row_of_postgresql_makes_an_error(postgres: Any, monkeypatch: Any) -> None:
    """Cells that a driver cannot read are missing, in each of several parts."""
    psycopg = pytest.importorskip("psycopg")
    address = str(postgres.database()).replace("+psycopg", "")
    with psycopg.connect(address) as connection:
        connection.execute(
            "CREATE TABLE odd (id int, x numeric, f float4, day timestamptz, g text, b bool)"
        )
        connection.execute(
            "INSERT INTO odd VALUES (1, 'NaN', 'Infinity', 'infinity', '', NULL), "
            "(2, 1e1000, 0.1, '2024-01-31 12:00+02', 'u', true), "
            "(3, 1.50, 'NaN', '0044-03-15 BC', 'v', false), "
            "(NULL, 2, 2, '-infinity', NULL, true)"
        )
    columns = {
        "x": Numeric(0, 8), "f": Numeric(0, 8), "day": Date(), "g": Categorical(["u", "v"]),
        "b": Boolean(),
    }  # fmt: skip
    schema = Schema(columns, person="id", rows_per_person=1)
    monkeypatch.setattr("apiece.queries.sources.CELLS", 6)
    found = {row[0]: row for row in rows_of(f"{address}::odd", schema)}
    assert len(found) == 3
    frame = pd.DataFrame({
        "id": [1, 2, 3], "x": ["NaN", "1" + "0" * 1000, "1.50"],
        "f": [float("inf"), 0.1, float("nan")],
        "day": [None, "2024-01-31 10:00", None], "g": [None, "u", "v"], "b": [None, True, False],
    }).astype(object)  # fmt: skip
    assert list(found.values()) == rows_of(frame, schema)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ("::none", "has no table 'none'"),
        ("", "names no table"),
        ("::lists", "type _int4"),
        ("::people; DROP TABLE people", "has no table"),
    ],
)
def test_what_is_no_table_of_postgresql_is_refused(change: str, words: str, postgres: Any) -> None:
    address = fill_postgresql(postgres)
    import psycopg

    with psycopg.connect(address) as connection:
        connection.execute("CREATE TABLE lists AS SELECT *, ARRAY[1] AS z FROM people")
    schema = SCHEMA.declare({"z": Numeric(0, 1)}) if "lists" in change else SCHEMA
    with pytest.raises(ApieceError, match=words):
        register(f"{address}{change}", schema)
    assert len(rows_of(f"{address}::people")) == 4


def test_a_password_is_in_no_message() -> None:
    pytest.importorskip("psycopg")
    messages: list[str] = []
    with pytest.raises(DataError) as raised:
        register("postgresql://me:secret@127.0.0.1:1/none::people", SCHEMA, log=messages.append)
    assert "secret" not in str(raised.value)
    assert "secret" not in "".join(messages)


# Excel and Polars.


def write_workbook(path: Path, *, more: bool = False) -> None:
    openpyxl = pytest.importorskip("openpyxl", reason="needs the extra excel")
    book = openpyxl.Workbook()
    sheet = book.active
    sheet.title = "people"
    sheet.append(list(PEOPLE.columns))
    cells = PEOPLE.assign(day=pd.to_datetime(PEOPLE["day"])).astype(object)
    for row in cells.where(PEOPLE.notna(), None).to_numpy().tolist():
        sheet.append(
            [cell.to_pydatetime() if isinstance(cell, pd.Timestamp) else cell for cell in row]
        )
    sheet.append([None] * 3)
    if more:
        book.create_sheet("other").append(["note"])
    book.save(path)


def test_a_workbook_gives_the_same_rows(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: Any
) -> None:
    path = tmp_path / "people.xlsx"
    write_workbook(path)
    assert rows_of(path) == rows_of(PEOPLE)
    assert rows_of(f"{path}::people") == rows_of(PEOPLE)
    assert register(path, SCHEMA).fingerprint == hashlib.sha256(path.read_bytes()).hexdigest()
    words = ["query", str(path), "count(persons)", "--person", "id", "--epsilon", "100"]
    assert run([*words, "--delta", "1e-6", "--json"]) == 0
    assert '"estimate"' in capsys.readouterr().out
    monkeypatch.setattr("apiece.queries.sources.CELLS", 6)
    assert rows_of(path) == rows_of(PEOPLE)


def test_workbooks_that_are_no_table_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "people.xlsx"
    write_workbook(path, more=True)
    assert len(rows_of(f"{path}::people")) == 4
    torn = tmp_path / "torn.xlsx"
    torn.write_bytes(path.read_bytes()[:500])
    for source, words in (
        (path, "has 2 sheets"),
        (f"{path}::none", "none is 'none'"),
        (f"{path}::other", "column 'id': not in"),
        (torn, "no workbook"),
        (tmp_path / "none.xlsx", "no such file"),
    ):
        with pytest.raises(DataError, match=words):
            register(source, SCHEMA)


def test_a_polars_frame_gives_the_same_rows() -> None:
    polars = pytest.importorskip("polars", reason="needs polars")
    frame = polars.DataFrame({
        name: [None if cell is None or cell != cell else cell for cell in PEOPLE[name].tolist()]
        for name in PEOPLE
    })  # fmt: skip
    assert rows_of(frame) == rows_of(PEOPLE)
    categories = frame.with_columns(polars.col("g").cast(polars.Categorical))
    assert rows_of(categories) == rows_of(PEOPLE)
