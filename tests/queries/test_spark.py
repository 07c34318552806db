"""Spark and DuckDB agree to the bit before the noise, over random tables, hostile rows and queries.

`make test-extras` runs these; without pyspark or Java they are skipped.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from random_worlds import COLUMNS, HOSTILE, SCHEMA, TYPES, _row, query

from apiece.cli import run
from apiece.datasets import Categorical, Date, Numeric, Schema
from apiece.errors import DataError, InputError, UnsupportedError
from apiece.ledger import Ledger
from apiece.queries import Session, reading, register, scan, spark
from apiece.queries.grammar import parse
from apiece.queries.question import resolve
from apiece.queries.scan import SPARK, SqlDialect, encode_text, number_sql, quote_text
from apiece.queries.spark import register_on_spark

pytestmark = [
    pytest.mark.skipif(shutil.which("java") is None, reason="Java is not installed"),
    pytest.mark.filterwarnings("default"),
]
GRIDS = (2.0**-20, 0.2, 0.5)  # some have ties


@pytest.fixture(scope="module")
def session() -> Iterator[Any]:
    sql = pytest.importorskip("pyspark.sql", reason="pyspark is not installed")
    os.environ["PYSPARK_PYTHON"] = sys.executable
    made = sql.SparkSession.builder.master("local[2]").appName("tests")
    for name, value in {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.shuffle.partitions": "2",
        "spark.log.level": "OFF",
    }.items():
        made = made.config(name, value)
    found = made.getOrCreate()
    yield found
    found.stop()


def rows(rng: random.Random, kind: str) -> pa.Table:
    """People with a few rows each; all columns as text with odd cells, or as declared types."""
    people = [f"p{i}" if rng.random() < 0.8 else str(i) for i in range(rng.randint(1, 8))]
    people += [rng.choice(HOSTILE)]
    form = "csv" if kind == "text" else "arrow"
    cells = [_row(rng, p, form, 0.3) for p in people for _ in range(rng.randint(1, 4))]
    rng.shuffle(cells)
    types = [pa.string()] * 6 if kind == "text" else TYPES
    return pa.table(
        [pa.array([r[i] for r in cells], types[i]) for i in range(6)], names=list(COLUMNS)
    )


def written(table: pa.Table, folder: Path, rng: random.Random) -> tuple[Path, Path]:
    """The same rows as one file and as several, whose rows lie in any order."""
    one, several = folder / "one.parquet", folder / "several"
    several.mkdir(parents=True)
    pq.write_table(table, one)
    order = list(range(table.num_rows))
    rng.shuffle(order)
    for number, part in enumerate(np.array_split(order, 2)):
        shuffled = table.take(pa.array(part, pa.int64()))
        pq.write_table(shuffled, several / f"part {number}.parquet", row_group_size=3)
    return one, several


def shares(table: Any, text: str, grid: float) -> list[tuple[Any, ...]]:
    """Everybody's contributions."""
    with table.contributions(resolve(parse(text), table.declarations), grid) as held:
        if isinstance(table, spark.SparkTable):
            return sorted((p, c, *map(int, ks)) for p, c, *ks in held.rows.collect())
        found = held.cursor.execute(held.sql).fetchall()
        return sorted((table.people[p], c, *ks) for p, c, *ks in found)


def sums(table: Any, text: str) -> Any:
    """What is charged and what the noise is added to: everybody's norm, sums with some left out."""
    question = resolve(parse(text), table.declarations)
    with table.contributions(question, GRIDS[0]) as held:
        ids, norms = held.norms(2)
        paid = np.array([len(i) % 3 > 0 for i in ids.to_pylist()], dtype=bool)
        some = held.totals(paid)
        everybody = held.totals(None)
    return list(zip(ids.to_pylist(), norms.tolist(), strict=True)), some, everybody


def differences(
    session: Any, seed: int, folder: Path, questions: int, first: Sequence[str] = ("count()",)
) -> Iterator[str]:
    """The questions to one random table on which the engines differ: `first`, then random ones."""
    rng = random.Random(seed)
    one, several = written(rows(rng, rng.choice(["text", "typed"])), folder / str(seed), rng)
    schema = replace(SCHEMA, rows_per_person=1 + seed % 2)
    here = register(one, schema)
    there = register_on_spark(several, schema, spark=session, workspace=folder)
    for text in [*first, *(query(rng) for _ in range(questions))]:
        grid = rng.choice(GRIDS)
        if shares(here, text, grid) != shares(there, text, grid):
            yield text
    if sums(here, text) != sums(there, text):
        yield f"{text}: norms or sums"


def test_engines_agree_to_the_bit(session: Any, tmp_path: Path) -> None:
    """3 tables × 6 questions."""
    for seed in range(3):
        assert not list(differences(session, seed, tmp_path, 5))


@pytest.mark.slow
@pytest.mark.parametrize("block", range(5))
def test_engines_agree_to_the_bit_more_often(block: int, session: Any, tmp_path: Path) -> None:
    """In all 50 tables × 10 questions = 500 pairs of a table and a question."""
    for seed in range(1000 + 10 * block, 1010 + 10 * block):
        assert not list(differences(session, seed, tmp_path, 10))


@pytest.mark.parametrize("text", ["", "it's", "a''b", "\\", "\\'", "'; DROP", "Köln", "%_", "\t"])
def test_a_text_is_exactly_that_text(text: str, session: Any) -> None:
    assert session.sql(f"SELECT {encode_text(text)}").collect()[0][0] == text


@pytest.mark.parametrize("value", [0.0, -1.5, 1e-300, 1.7976931348623157e308, 0.1, 2.0**-1074])
def test_a_number_is_exactly_that_double(value: float, session: Any) -> None:
    assert session.sql(f"SELECT {number_sql(value)}").collect()[0][0] == value


def test_roundings_are_equal_at_and_beside_ties(session: Any) -> None:
    """Away from zero at ties; a double next to a tie goes the way it lies."""
    import duckdb

    ties = [k + 0.5 for k in (0.0, 1, 2, -1, -2, -3, 2.0**20, -(2.0**40), 2.0**44)]
    values = [v for t in ties for v in (np.nextafter(t, -np.inf), t, np.nextafter(t, np.inf))]
    sql = ", ".join(f"CAST(round({number_sql(float(v))}) AS BIGINT)" for v in values)
    here = duckdb.sql(f"SELECT {sql}").fetchall()[0]
    assert tuple(session.sql(f"SELECT {sql}").collect()[0]) == here


# Planted breaks: what a translation could get wrong. The law must find each.


def _quoting(monkeypatch: pytest.MonkeyPatch) -> None:
    dialect = SqlDialect(quote_text, SPARK.wide, SPARK.divided, SPARK.element)
    monkeypatch.setattr(spark, "SPARK", dialect)


def _rounding(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = scan.contributions_sql
    monkeypatch.setattr(
        scan,
        "contributions_sql",
        lambda *args, **named: plain(*args, **named).replace(
            "round(", "bround(" if args[-1] is SPARK else "round("
        ),
    )


def _order(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another order of a person's rows, so another choice of those that count."""
    plain = reading.order_sql
    freeze = spark._freeze_rows

    def frozen(*args: Any) -> None:
        with pytest.MonkeyPatch.context() as inner:
            inner.setattr(reading, "order_sql", lambda schema: plain(schema).replace("tie", "-tie"))
            freeze(*args)

    monkeypatch.setattr(spark, "_freeze_rows", frozen)


def _greatest(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a person's rows the largest counts, not the sum."""
    plain = scan.contributions_sql
    monkeypatch.setattr(
        scan,
        "contributions_sql",
        lambda *args, **named: plain(*args, **named).replace(
            *(("sum(CAST(k", "max(CAST(k") if args[-1] is SPARK else ("", ""))
        ),
    )


@pytest.mark.parametrize(
    ("plant", "first"),
    [
        (_quoting, ["count() where source = '\\a'"]),
        (_rounding, ["sum(x)", "mean(x)"]),
        (_greatest, ["sum(x)"]),
        (_order, ["mean(x)", 'covariance(x, "y ""z""")']),
    ],
)
def test_planted_breaks_are_found(
    plant: Any, first: list[str], session: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch)
    assert any(
        text for seed in range(20, 30) for text in differences(session, seed, tmp_path, 0, first)
    )


def test_answers_and_charges_are_those_of_duckdb(session: Any, tmp_path: Path) -> None:
    """With a ledger: the same people pay the same, and the same answer comes out, to the bit."""
    rng = random.Random(5)
    one, several = written(rows(rng, "typed"), tmp_path / "t", rng)
    here = register(one, SCHEMA)
    there = register_on_spark(several, SCHEMA, spark=session, workspace=tmp_path)
    ids = here.people.tolist()[1:]  # one has no account
    spent, answers = [], []
    for number, table in enumerate((here, there)):
        ledger = Ledger.open(f"sqlite:///{tmp_path}/{number}.db")
        ledger.enroll(ids, rng_epsilons(len(ids)), 1e-6)
        asking = Session(table, SCHEMA, ledger, seed=1)
        answers.append(
            [
                asking.ask(text, epsilon=0.4, delta=1e-6, analysis_id=text).groups
                for text in ("count() by city", "sum(x)", "mean(x)")
            ]
        )
        spent.append(ledger.spent(ids).tolist())
    assert answers[0] == answers[1]
    assert spent[0] == spent[1]
    assert max(spent[0]) > 0


def rng_epsilons(size: int) -> Any:
    return np.random.default_rng(0).choice([0.3, 1.0, 4.0], size)


def test_the_steward_reads_of_each_column_what_could_not_be_read(
    session: Any, tmp_path: Path
) -> None:
    """The same lines as of one machine, over row groups, files and empty cells."""
    table = pa.table({
        "id": ["a", "b", None, "d", "e", "f"],
        "x": ["1", "?", "3", "9", None, ""],
        "g": ["yes", "no", "perhaps", "Yes", None, "perhaps"],
        "day": ["2024-01-03", "soon", "2024-02-31", None, "2024-01-04", "x"],
    })  # fmt: skip
    schema = Schema(
        {"x": Numeric(0, 5), "g": Categorical(["yes", "no"]), "day": Date()},
        person="id",
        rows_per_person=1,
    )
    one, several = written(table, tmp_path / "rows", random.Random(0))
    expected: list[str] = []
    register(table, schema, log=expected.append).close()
    assert "column 'g': 3 cells are no declared value" in expected
    for source in (one, several):
        messages: list[str] = []
        folder = tmp_path / source.name
        folder.mkdir()
        register_on_spark(source, schema, spark=session, workspace=folder, log=messages.append)
        assert messages == expected


def test_what_cannot_be_read_is_refused(session: Any, tmp_path: Path) -> None:
    schema, said = Schema({"x": Numeric(0, 1)}, person="id", rows_per_person=1), list[str]()
    ask = {"spark": session, "workspace": tmp_path, "log": said.append}
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match="no Parquet file"):
        register_on_spark(tmp_path / "empty", schema, **ask)
    with pytest.raises(DataError, match="no such file"):
        register_on_spark(tmp_path / "none.parquet", schema, **ask)
    for number, kind in enumerate([pa.float64(), pa.string()]):
        (tmp_path / "two").mkdir(exist_ok=True)
        table = pa.table({"id": ["a"], "x": pa.array([1]).cast(kind)})
        pq.write_table(table, tmp_path / "two" / f"{number}.parquet")
    with pytest.raises(DataError, match="other columns"):
        register_on_spark(tmp_path / "two", schema, **ask)
    pq.write_table(pa.table({"id": ["a"], "x": [[1.0]]}), tmp_path / "list.parquet")
    with pytest.raises(UnsupportedError, match="neither text, a number nor a date"):
        register_on_spark(tmp_path / "list.parquet", schema, **ask)
    (tmp_path / "torn.parquet").write_bytes(b"PAR1" + b"?" * 100 + b"PAR1")
    with pytest.raises(DataError, match="steward's log"):
        register_on_spark(tmp_path / "torn.parquet", schema, **ask)
    with pytest.raises(DataError, match="fingerprint"):
        register_on_spark(tmp_path / "two" / "0.parquet", schema, fingerprint="0" * 64, **ask)
    assert any("refused" in line for line in said)


def test_a_file_that_changes_while_it_is_read_is_refused(tmp_path: Path) -> None:
    from apiece.queries import sources

    path = tmp_path / "p.parquet"
    pq.write_table(pa.table({"id": ["a"]}), path)
    about = path.stat()
    assert sources.read_row_group(path, 0, ["id"], (about.st_size, about.st_mtime_ns))
    with pytest.raises(DataError, match="changed while"):
        sources.read_row_group(path, 0, ["id"], (about.st_size, about.st_mtime_ns - 1))


@pytest.mark.usefixtures("session")
def test_its_workers_run_this_python(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PYSPARK_PYTHON")
    spark.start_spark("local[2]")
    assert os.environ["PYSPARK_PYTHON"] == sys.executable
    monkeypatch.setenv("PYSPARK_PYTHON", "another")
    spark.start_spark("local[2]")
    assert os.environ["PYSPARK_PYTHON"] == "another"


def test_the_command_asks_spark(
    session: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pq.write_table(pa.table({"id": list("abcd") * 50, "x": [0.5] * 200}), tmp_path / "p.parquet")
    asked = [
        *(
            "query",
            str(tmp_path / "p.parquet"),
            "count()",
            "--person",
            "id",
            "--json",
            "--rows-per-person",
            "1",
        ),
        *("--epsilon", "1000", "--delta", "1e-6", "--engine"),
    ]
    assert run([*asked, "spark"]) == 0
    answer = json.loads(capsys.readouterr().out.strip().splitlines()[-1])
    assert answer["groups"][0]["estimate"] == pytest.approx(4, abs=1)
    for engine, said in (("dask", "give duckdb"), ("spark://nobody:1", "needs --workspace")):
        assert run([*asked, engine]) == 2
        assert said in capsys.readouterr().err


def test_bins_follow_their_edges_on_spark_too(session: Any, tmp_path: Path) -> None:
    """Values on edges and beside them, in few bins and in many."""
    tenths = np.arange(101) / 10
    values = np.concatenate([tenths, np.nextafter(tenths, -np.inf), np.nextafter(tenths, np.inf)])
    ids = pa.array([f"p{number}" for number in range(values.size)])
    path = tmp_path / "people.parquet"
    pq.write_table(pa.table({"id": ids, "x": values}), path)
    schema = Schema({"x": Numeric(0, 10)}, person="id", rows_per_person=1)
    there = register_on_spark(path, schema, spark=session, workspace=tmp_path)
    for bins in (100, 7, 10_000):
        question = resolve(parse(f"histogram(x, {bins})"), there.declarations)
        with there.contributions(question, 1.0) as held:
            found = held.totals(None)
        assert question.bins is not None
        expected, _ = np.histogram(np.clip(values, 0, 10), bins=question.bins.edges)
        assert {cell: count for cell, (count,) in found.items()} == {
            cell: count for cell, count in enumerate(expected.tolist()) if count
        }
