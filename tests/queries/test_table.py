"""Registering: what is read, what the steward is told, and what nobody else is."""

import random
import tempfile
from datetime import date
from functools import partial
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import random_worlds
from hypothesis import given, settings
from hypothesis import strategies as st

from apiece.datasets import Categorical, Date, Numeric, Schema, Text
from apiece.datasets.blocks import read_batches
from apiece.errors import DataError, InputError
from apiece.queries import Session, reading, register, sources
from apiece.queries import table as table_module
from apiece.queries.declarations import Declarations
from apiece.queries.grammar import parse
from apiece.queries.question import resolve
from refusals import refused

SCHEMA = Schema(
    {"x": Numeric(0, 10), "g": Categorical(["a", "b"]), "since": Date()},
    person="id",
    rows_per_person=1,
)
LINES = [
    "id,x,g,since",
    "p1,1,a,2020-01-01",
    "p2,?,b,yesterday",
    ",3,a,2020-01-01",
    "p3,1",
    "p4,-9,c,",
]


def test_the_stewards_log_and_the_fingerprint(tmp_path: Path) -> None:
    path, log = tmp_path / "people.csv", list[str]()
    path.write_text("\n".join(LINES))
    table = register(path, SCHEMA, log=log.append)
    assert log == [
        "line 5: 2 fields, not 4; left out",
        "column 'x': 1 cells are not numeric",
        "column 'since': 1 cells are not date",
        "column 'g': 1 cells are no declared value",
        "column 'x': 1 cells lie outside their bounds and are clamped",
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


@settings(derandomize=True, max_examples=20, deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 30))
def test_read_in_parts_it_is_the_same_table(seed: int, size: int) -> None:
    """Over random tables with hostile rows, down to a row at a time."""
    some, found = random_worlds.world(random.Random(seed)), []
    with tempfile.TemporaryDirectory() as folder:
        source = some.source(Path(folder), mine=True, seed=seed)
        for count in (sources.CELLS, size):
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(sources, "CELLS", count)
                patch.setattr(sources, "read_batches", partial(read_batches, block=size))
                said: list[str] = []
                table = register(source, random_worlds.SCHEMA, log=said.append)
                rows = table.database.execute("FROM rows ORDER BY person, place").fetchall()
                found.append((said, rows, table.people.tolist(), table.fingerprint))
    assert found[0] == found[1]


def many(folder: Path) -> Path:
    """300,000 rows of 150,000 people, some 150 MB when they are typed."""
    path, numbers = folder / "many.parquet", np.arange(300_000)
    ids = [f"{number:0110}" for number in numbers * 7919 % 150_000]
    pq.write_table(pa.table({"id": ids, "x": numbers % 11, "g": ["a", "b"] * 150_000}), path)
    return path


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the next table puts what memory does not hold; one thread, so that little is needed."""
    monkeypatch.setattr(reading, "make_folder_name", lambda: tmp_path / "own")
    monkeypatch.setattr(reading, "connect", partial(reading.connect, 1))
    return tmp_path / "own"


@pytest.fixture
def numbered(own: Path, monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Whether something was on disk when a table's people had been numbered."""
    seen, real = list[bool](), table_module._number_people

    def number(database: Any, declarations: Any) -> None:
        real(database, declarations)
        seen.append(own.exists())

    monkeypatch.setattr(table_module, "_number_people", number)
    return seen


def test_what_memory_does_not_hold_is_summed_to_the_bit(
    tmp_path: Path, own: Path, numbered: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    """And lies nowhere but in its own folder, and there only while the table is open."""
    schema = Schema(
        {"x": Numeric(0, 10), "g": Categorical(["a", "b"])}, person="id", rows_per_person=2
    )
    path, found = many(tmp_path), []
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    asked = parse(f"mean(x) by g where id != '{7:0110}'")
    for memory in (None, 128_000_000):
        table = register(path, schema, memory=memory)
        with table.contributions(resolve(asked, table.declarations), 2.0**-20) as shares:
            ids, norms = shares.norms(2)
            ids = ids.to_pylist()
            paid = np.array([i.endswith("3") for i in ids], dtype=bool)
            sums = shares.totals(paid), shares.totals(None)
        found.append((sums, sorted(zip(ids, norms, strict=True)), table.people.tolist()))
        table.close()
        assert not own.exists()
    assert found[0] == found[1]
    assert numbered == [False, True]
    assert not list((tmp_path / "here").iterdir())


def test_nothing_is_left_of_a_table_that_is_refused(
    tmp_path: Path, own: Path, numbered: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    """When it has been written to disk already."""
    path, said = many(tmp_path), list[str]()

    def failing(*_: Any) -> None:
        raise OSError("HIV")

    monkeypatch.setattr(table_module, "_report_reading", failing)
    with pytest.raises(DataError, match="steward's log") as caught:
        register(
            path, Schema({}, person="id", rows_per_person=1), memory=128_000_000, log=said.append
        )
    assert "HIV" not in str(caught.value)
    assert numbered == [True]
    assert not own.exists()
    with pytest.raises(DataError, match="steward's log"):
        register(path, Schema({}, person="id", rows_per_person=1), memory=1000, log=said.append)
    assert "OutOfMemory" in said[-1]
    with refused(InputError, "memory"):
        register(path, Schema({}, person="id", rows_per_person=1), memory=0)


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
    schema = Schema(
        {"x": Numeric(0, 10, values=[3, 4, 5]), "since": Date()}, person="id", rows_per_person=1
    )
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
    schema = Schema({"g": Categorical(["a", "b"])}, person="id", rows_per_person=1)
    for source in (frame, pa.Table.from_pandas(frame)):
        groups = Session(source, schema).ask("count() by g", epsilon=1e6, delta=0.5).groups
        assert [round(g["estimate"], 1) for g in groups] == [1, 1]


def test_declarations_are_checked() -> None:
    def declare(column: Any = None, name: str = "g", person: str = "id") -> Declarations:
        columns = {} if column is None else {name: column}
        return Declarations.from_schema(Schema(columns, person=person, rows_per_person=1))

    with pytest.raises(InputError, match="control characters"):
        declare(person="i\0d")
    with pytest.raises(InputError, match="control characters"):
        declare(Text(), name="x\0")
    with pytest.raises(InputError, match="control characters"):
        declare(Categorical(["a\x1b[2J"]))
    with pytest.raises(InputError, match="occurs twice"):
        declare(Categorical(["7", 7]))
    with pytest.raises(InputError, match="neither a text nor a number"):
        declare(Categorical([b"2020"]))
    with pytest.raises(InputError, match="'u' is not numeric"):
        declare(Numeric(values=[1, "u"]))
    with pytest.raises(InputError, match="low must be below high"):
        declare(Numeric(0, 5e-324))
    assert declare(Categorical([date(2020, 1, 1)])).groups["g"] == ("2020-01-01",)
    numbers = declare(Categorical(np.array([1, 2]))).groups["g"]
    assert [type(number) for number in numbers] == [int, int]


def test_of_a_clean_table_the_steward_hears_how_much_it_is(tmp_path: Path) -> None:
    lines: list[str] = []
    (tmp_path / "p.csv").write_text("id,x\na,1\nb,2\na,3\n")
    register(
        tmp_path / "p.csv",
        Schema({"x": Numeric(0, 5)}, person="id", rows_per_person=1),
        log=lines.append,
    )
    assert lines == ["registered: 3 rows of 2 people"]
