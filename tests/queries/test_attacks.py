"""What an analyst must not learn from messages, and what one row must not do to the others'."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from apiece.datasets import Categorical, Numeric, Schema
from apiece.errors import ApieceError
from apiece.ledger import Ledger
from apiece.queries import Session

NOISELESS, AFFORDABLE = 1e10, 50.0  # noise of 7e-6, and of a tenth
HEADER = "id,region,age,diagnosis,source"
COLUMNS = {
    "age": Numeric(0, 100),
    "region": Categorical(["1", "2"]),
    "diagnosis": Categorical(["flu", "HIV"]),
}
SCHEMA = Schema(COLUMNS, person="id", rows_per_person=1)


def ask(source: Any, query: str, schema: Schema = SCHEMA, **more: Any) -> list[dict[str, Any]]:
    session = Session(source, schema, seed=0, **more)
    epsilon = NOISELESS if "ledger" not in more else AFFORDABLE
    return session.ask(query, epsilon=epsilon, delta=0.5).groups


def estimates(source: Any, query: str, schema: Schema = SCHEMA) -> list[float]:
    return [round(group["estimate"], 2) for group in ask(source, query, schema)]


def outcome(source: Any, query: str, **more: Any) -> str:
    try:
        return repr(ask(source, query, **more))
    except ApieceError as error:
        return str(error)


def csv(folder: Path, *extra: str, name: str = "people.csv") -> Path:
    """A thousand people, half in region 1 and half in region 2, and what is added."""
    rows = [f"p{i},{1 + i % 2},{20 + i % 50},flu,web" for i in range(1000)]
    path = folder / name
    path.parent.mkdir(exist_ok=True)
    path.write_text("\n".join([HEADER, *rows[:500], *extra, *rows[500:]]) + "\n", newline="")
    return path


ORACLES = [
    "count() where id = 'p7' and diagnosis in (1)",
    "count() where id = 'p7' and diagnosis = 1",
    "count() where id = 'p7' and diagnosis < 1e3",
    "count() where id = 'p7' and age in ('x', 'y')",
    "count() where id = 'p7' and age = 'flu'",
    "count() where not (id = 7 and age > 30)",
    "count() where id = 'p7' and age > 30 and diagnosis = 1",
    "count() where id = 'p7' and age > 60 and diagnosis = 1",
]


@pytest.mark.parametrize("form", ["csv", "parquet", "frame"])
@pytest.mark.parametrize("query", ORACLES)
def test_no_cell_and_no_row_shows_in_a_message(query: str, form: str, tmp_path: Path) -> None:
    """Whether there is an error, and its text, is the query's and not the person's."""
    seen = set()
    for number, mine in enumerate(("p7,1,27,HIV,web", "p7,1,64,flu,web", "p7,?,,42,web")):
        rows = ["p1,1,20,flu,web", mine, "p2,2,30,flu,web"]
        frame = pd.DataFrame([r.split(",") for r in rows], columns=HEADER.split(","))
        source: Any = frame
        if form == "csv":
            source = csv(tmp_path / str(number), mine)
        elif form == "parquet":
            source = tmp_path / f"{number}.parquet"
            frame.to_parquet(source)
        said = outcome(source, query)
        assert "HIV" not in said
        seen.add(said.replace(str(tmp_path / str(number)), ""))
    assert len(seen) == 1


@pytest.mark.parametrize(
    "row",
    [
        "v,1.5,30,flu,web",
        "v,1,?,flu,web",
        "v,1,30",
        "v,1,30,flu,web,more,and more",
        "v;1;30;flu;web",
        "v,one,thirty,1.5,web",
        "v,1,1e999,flu,web",
        "v,1,30,'flu,web",
        "v,1,2020-01-01,flu,web",
        "'v','1','30','flu','web'",
        "v,true,true,true,true",
        "v\t1\t30\tflu\tweb",
        "# v,1,30,flu,web",
        'v,"1","3""0",flu,web',
        "v," + "9" * 3_000_000 + ",30,flu,web",
    ],
)
# A reader that looks at the head alone sees the first row, and one that looks at all sees it too.
@pytest.mark.parametrize(
    "place", ["first", *(pytest.param(p, marks=pytest.mark.slow) for p in ("middle", "last"))]
)
def test_one_row_changes_nobody_elses_reading(row: str, place: str, tmp_path: Path) -> None:
    plain = csv(tmp_path)
    before = estimates(plain, "count() by region"), estimates(plain, "sum(age) by region")
    lines = plain.read_text().splitlines()
    lines.insert({"first": 1, "middle": 500, "last": len(lines)}[place], row)
    plain.write_text("\n".join(lines))
    after = estimates(plain, "count() by region"), estimates(plain, "sum(age) by region")
    assert all(0 <= a - b <= 1 for a, b in zip(after[0], before[0], strict=True))
    assert all(0 <= a - b <= 100 for a, b in zip(after[1], before[1], strict=True))


@pytest.mark.parametrize("odd", ["1.5", "?", "9007199254740993", "1e3", ""])
def test_ids_are_text_and_never_merge(odd: str, tmp_path: Path) -> None:
    """Read as doubles, the first four are one person or two; one odd id must not make them so."""
    ids = ["9007199254740992", "9007199254740994", "007", "7", "7.0", " 7", "0x7", "7e0"]
    path = tmp_path / "people.csv"
    for extra in ([], [odd]):
        path.write_text("id,x\n" + "".join(f"{i},1\n" for i in [*ids, *extra]))
        found = estimates(
            path, "sum(x)", Schema({"x": Numeric(0, 1)}, person="id", rows_per_person=1)
        )
        assert found == [8 + (1 if extra and extra != [""] else 0)]


@pytest.mark.parametrize("name", ["source", "rows", "person", "content", "cells", "k0", "people"])
def test_no_column_name_changes_which_rows_are_kept(name: str) -> None:
    """Of twenty rows of each person one is kept; which one, their content says, not their order."""
    frame = pd.DataFrame({"id": [f"p{i % 50}" for i in range(1000)], "x": range(1000)})
    frame[name] = "same"
    schema = Schema(
        {"x": Numeric(0, 1000), name: Categorical(["same"])}, person="id", rows_per_person=1
    )
    sums = [
        estimates(frame.sample(frac=1, random_state=seed), f"sum(x) by {name}", schema)
        for seed in range(4)
    ]
    assert all(s == sums[0] for s in sums)
    assert estimates(frame, "count()", schema) == [50]


@pytest.mark.parametrize("strangers", [[], ["s1"], ["s1", "s2", "s3"], ["P1"], [" p1"]])
def test_who_has_no_account_changes_neither_answer_nor_message(
    strangers: list[str], tmp_path: Path
) -> None:
    ledger = Ledger.open(f"sqlite:///{tmp_path}/p.db")
    ledger.enroll([f"p{i}" for i in range(1000)], 900.0, 0.5)
    rows = [f"{name},1,99,HIV,web" for name in strangers]
    queries = ["count()", "count() where age > 98", "count() where diagnosis = 'HIV'"]
    for number, query in enumerate(queries):
        said = [
            outcome(csv(tmp_path / str(i), *r), query, ledger=ledger)
            for i, r in enumerate(([], rows))
        ]
        assert said[0] == said[1], (number, query)
        assert "account" not in said[1]


@pytest.mark.parametrize("pattern", ["people[1].csv", "p*.csv", "people?.csv", "{a,b}.csv"])
def test_a_path_is_one_file(pattern: str, tmp_path: Path) -> None:
    """Beside a file whose name is a pattern lie files that the pattern matches."""
    for other in ("people1.csv", "people2.csv", "pxyz.csv", "a.csv", "b.csv"):
        csv(tmp_path, "v,1,30,flu,web", name=other)
    assert estimates(csv(tmp_path, name=pattern), "count()") == [1000]
    with pytest.raises(ApieceError, match="no such file"):
        ask(tmp_path / "peopl[e]1.csv", "count()")
    with pytest.raises(ApieceError, match="no such file"):
        ask(tmp_path / "**" / "people1.csv", "count()")


@pytest.mark.parametrize("folder", ["id=7", "region=2", "age=99"])
def test_folder_names_are_no_columns(folder: str, tmp_path: Path) -> None:
    path = tmp_path / folder / "part.parquet"
    path.parent.mkdir()
    columns = {"id": ["a", "b", "c"], "region": ["1", "1", "2"], "age": [1.0, 2.0, 3.0]}
    pq.write_table(pa.table({**columns, "diagnosis": ["flu"] * 3, "source": ["x"] * 3}), path)
    assert estimates(path, "count() by region") == [2, 1]
    assert estimates(path, "sum(age)") == [6]


@pytest.mark.parametrize(
    "address",
    [
        "http://127.0.0.1:9/people.csv",
        "https://127.0.0.1:9/people.parquet",
        "s3://bucket/people.parquet",
        "file:///etc/passwd.csv",
        "/dev/stdin.csv",
        "hf://datasets/a/b.parquet",
    ],
)
def test_an_address_is_no_path(address: str) -> None:
    with pytest.raises(ApieceError, match="no such file"):
        ask(address, "count()")


def test_the_database_reaches_no_file_no_network_and_no_extension(tmp_path: Path) -> None:
    import duckdb

    from apiece.queries import register

    path = csv(tmp_path)
    cursor = register(path, SCHEMA).database.cursor()
    for sql in (
        f"SELECT * FROM read_csv('{path}')",
        f"SELECT * FROM '{path}'",
        f"COPY rows TO '{tmp_path}/out.csv'",
        f"ATTACH '{tmp_path}/other.db'",
        "INSTALL httpfs",
        "LOAD httpfs",
        "SELECT * FROM 'http://127.0.0.1:9/a.csv'",
        "SET enable_external_access = true",
        "SET autoload_known_extensions = true",
        "SET lock_configuration = false",
    ):
        with pytest.raises(duckdb.Error, match=r"(?i)disabled|locked|cannot"):
            cursor.execute(sql)


def test_ids_with_odd_characters_are_nobody(tmp_path: Path) -> None:
    """With them cut or replaced they would be somebody else."""
    odd = [
        "a\0",
        "a\0b",
        "\0a",
        "a\x1b",
        "a\ud800",
        "\udc00a",
        "a\n",
        "a\x85",
        "",
        None,
        float("nan"),
    ]
    frame = pd.DataFrame({"id": ["a", "b", *odd], "x": 1.0}, dtype=object)
    schema = Schema({"x": Numeric(0, 1)}, person="id", rows_per_person=5)
    ledger = Ledger.open(f"sqlite:///{tmp_path}/p.db")
    ledger.enroll(["a", "b"], 900.0, 0.5)
    session = Session(frame, schema, ledger, seed=0)
    assert round(session.ask("sum(x)", epsilon=800.0, delta=0.5).groups[0]["estimate"], 1) == 2
    spent = ledger.spent(["a", "b"])
    assert spent[0] == spent[1] > 0


@pytest.mark.parametrize("ids", [["7", "07", "7.0", "+7", "٧", "7_", "7 "], ["-1", "--1", "−1"]])
def test_text_becomes_a_number_in_a_ledger_in_one_way(ids: list[str], tmp_path: Path) -> None:
    ledger = Ledger.open(f"sqlite:///{tmp_path}/p.db")
    ledger.enroll([7, -1], 900.0, 0.5)
    frame = pd.DataFrame({"id": ids, "x": 1.0})
    session = Session(
        frame,
        Schema({"x": Numeric(0, 1)}, person="id", rows_per_person=1),
        ledger,
        seed=0,
    )
    assert round(session.ask("sum(x)", epsilon=800.0, delta=0.5).groups[0]["estimate"], 1) == 1


def test_a_column_twice_and_a_column_of_lists_are_refused(tmp_path: Path) -> None:
    schema = Schema({"x": Numeric(0, 1)}, person="id", rows_per_person=1)
    path = tmp_path / "people.csv"
    path.write_text("id,x,x\na,1,0\n")
    with pytest.raises(ApieceError, match="column 'x': twice"):
        ask(path, "sum(x)", schema)
    table = pa.table({"id": ["a"], "x": [[1.0]]})
    with pytest.raises(ApieceError, match="column 'x': stored as list"):
        ask(table, "sum(x)", schema)


def test_invalid_utf8_in_a_parquet_file_is_a_missing_cell(tmp_path: Path) -> None:
    raw = pa.array([b"p1", b"p\xff", b"p3"], pa.binary()).view(pa.string())
    table = pa.table({"id": raw, "x": [1.0, 1.0, 1.0]})
    pq.write_table(table, tmp_path / "p.parquet")
    schema = Schema({"x": Numeric(0, 1)}, person="id", rows_per_person=1)
    assert estimates(tmp_path / "p.parquet", "sum(x)", schema) == [2]


@pytest.mark.parametrize("size", [10_000, pytest.param(100_000, marks=pytest.mark.slow)])
def test_many_groups(size: int) -> None:
    frame = pd.DataFrame({"id": range(size), "g": [f"g{i // 2}" for i in range(size)]})
    schema = Schema(
        {"g": Categorical([f"g{i}" for i in range(size)])}, person="id", rows_per_person=1
    )
    groups = ask(frame, "count() by g", schema)
    assert [round(g["estimate"]) for g in groups] == [2] * (size // 2) + [0] * (size // 2)
    assert [g["g"] for g in groups] == list(schema.columns["g"].values)
