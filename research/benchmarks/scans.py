"""Ten million rows of a million persons: each question's time beside DuckDB's plain aggregate.

The table is registered once, as `apiece register` does, and asked without a ledger, so that a time
is that of parsing, scan and noise. DuckDB answers the same text, without privacy, over a database
file of its own with the same rows and as many threads. Runs alternate; a ratio is that of medians.
A session of fifty questions, with a ledger in which every person has an account, is on a smaller
table. OpenDP's frames of Polars need an interpreter that has `opendp[polars]`. Each part takes
minutes; a part that is not asked for stays as it is stored:

    python -m research.benchmarks.scans --parts scan surplus ledger --opendp opendp/bin/python \\
        --out research/results/scans.json
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from apiece import Ledger
from apiece.datasets import Categorical, Numeric, Schema
from apiece.queries import Session, register
from research.benchmarks.ledger import emit, machine

DELTA = 1e-6
# Bound of pay, in euros.
HIGH = 200_000.0
TOWNS = tuple(f"town {number}" for number in range(20))
# Rows that a person brings at most.
MOST = 40
# Rows that count of a person, in a table of which some bring more.
FEW = 8
PARTS = ("scan", "surplus", "ledger")
QUESTIONS = (
    "SELECT count(*) FROM people",
    "SELECT sum(pay) FROM people",
    "SELECT avg(pay) FROM people WHERE age >= 40",
    "SELECT town, count(*) FROM people GROUP BY town",
    "SELECT town, avg(pay), stddev(pay) FROM people GROUP BY town",
    "SELECT floor(age / 10) * 10 AS band, sum(pay) FROM people GROUP BY band",
    "SELECT sum(CASE WHEN age < 30 THEN pay * 1.1 ELSE pay END) FROM people",
    "SELECT median(pay) FROM people",
    "SELECT town, median(age) FROM people GROUP BY town",
    "SELECT count(DISTINCT id) FROM people",
    "SELECT town, count(DISTINCT id) FROM people GROUP BY town",
)


def make_rows(rows: int, people: int) -> pa.Table:
    """Return rows of people: whose, what they earned, how old they were, and where."""
    rng = np.random.default_rng(0)
    # Most rows that chance gives to one of them are fewer than `MOST`.
    return pa.table({
        "id": rng.integers(0, people, rows),
        "pay": np.clip(rng.lognormal(10.3, 0.8, rows), 0, HIGH).round(2),
        "age": rng.integers(18, 100, rows),
        "town": pa.array(TOWNS).take(pa.array(rng.integers(0, len(TOWNS), rows))),
    })  # fmt: skip


def make_schema(rows: int) -> Schema:
    columns = {
        "pay": Numeric(0, HIGH),
        "age": Numeric(0, 120),
        "town": Categorical(TOWNS),
    }
    return Schema(columns, person="id", rows_per_person=rows)


def measure(run: Callable[[], Any]) -> float:
    begin = time.perf_counter()
    run()
    return time.perf_counter() - begin


def compare(
    session: Session, database: Any, texts: Sequence[str], repeats: int
) -> list[dict[str, Any]]:
    """Return of each question the seconds of both, in turn."""
    found = []
    for text in texts:
        seconds: dict[str, list[float]] = {"apiece": [], "duckdb": []}
        # The first run of each is not counted: it reads the rows of a file that is new to it.
        for repeat in range(repeats + 1):
            plain = measure(lambda: database.execute(text).fetchall())  # noqa: B023
            private = measure(lambda: session.ask(text, epsilon=1.0, delta=DELTA))  # noqa: B023
            if repeat:
                seconds["duckdb"].append(plain)
                seconds["apiece"].append(private)
        medians = {name: float(np.median(values)) for name, values in seconds.items()}
        ratio = medians["apiece"] / medians["duckdb"]
        found.append({"question": text, "seconds": seconds, "ratio_of_medians": ratio})
        print(f"{ratio:.2f} {medians} {text}", file=sys.stderr, flush=True)
    return found


def ask_fifty(folder: Path, ledger: Ledger | None, count: int = 50) -> dict[str, Any]:
    """Return the seconds of a session of different questions on one registered table."""
    begin = time.perf_counter()
    session = Session(folder, ledger=ledger)
    seconds = []
    for number in range(count):
        text = QUESTIONS[number % len(QUESTIONS)]
        age = 20 + number
        where = f" WHERE age >= {age}"
        text = text.replace(" WHERE age >= 40", "").replace(" FROM people", f" FROM people{where}")
        asked = text
        seconds.append(measure(lambda: session.ask(asked, epsilon=0.1, delta=DELTA)))  # noqa: B023
    return {
        "seconds": time.perf_counter() - begin,
        "median_of_a_question": float(np.median(seconds)),
        "longest": max(seconds),
    }


def ask_opendp(python: str, path: Path) -> dict[str, Any]:
    """Return the seconds of the questions that OpenDP's frames answer."""
    script = Path(__file__).resolve().with_name("opendp_scans.py")
    words = [str(Path(python).absolute()), str(script), str(path), str(MOST)]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def run_scan(rows: int, people: int, repeats: int, opendp: str | None, most: int) -> dict[str, Any]:
    """Return the times of the scan of a table of whose people `most` rows each count."""
    found: dict[str, Any] = {"rows": rows, "people": people, "rows_that_count": most}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        path = folder / "people.parquet"
        pq.write_table(make_rows(rows, people), path)
        if opendp is not None:
            found["opendp_seconds"] = ask_opendp(opendp, path)
        copy = str(folder / "people.duckdb")
        with duckdb.connect(copy) as database:
            query = f"CREATE TABLE people AS FROM read_parquet('{path}')"
            found["duckdb_seconds_of_copy"] = measure(lambda: database.execute(query))
        registered = folder / "registered"
        found["seconds_of_register"] = measure(
            lambda: register(path, make_schema(most), folder=registered).close()
        )
        session = Session(registered, log=lambda message: print(message, file=sys.stderr))
        texts = QUESTIONS if most == MOST else QUESTIONS[:5]
        with duckdb.connect(copy, read_only=True) as database:
            found["questions"] = compare(session, database, texts, repeats)
    return found


def run_ledger(rows: int, people: int) -> dict[str, Any]:
    """Return the times of fifty questions that are charged to everybody's account."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        table = folder / "table"
        register(make_rows(rows, people), make_schema(MOST), folder=table).close()
        ledger = Ledger.open(f"sqlite:///{folder}/people.db")
        ledger.enroll(np.arange(people), 8.0, DELTA)
        fifty = ask_fifty(table, ledger)
    return {"rows": rows, "people": people, "fifty_questions": fifty}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=10**7)
    parser.add_argument("--people", type=int, default=10**6)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--parts", nargs="*", choices=PARTS, default=PARTS)
    parser.add_argument("--opendp", help="Interpreter that has opendp[polars].")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    rows, people, repeats = arguments.rows, arguments.people, arguments.repeats
    out = arguments.out
    found: dict[str, Any] = {"machine": machine()}
    if out is not None and out.exists():
        found = {**json.loads(out.read_text()), **found}
    if "scan" in arguments.parts:
        found["scan"] = run_scan(rows, people, repeats, arguments.opendp, MOST)
    if "surplus" in arguments.parts:
        # A tenth of the people and rows: of everybody the rows that count are chosen.
        found["surplus"] = run_scan(rows // 10, people // 10, repeats, None, FEW)
    if "ledger" in arguments.parts:
        found["ledger"] = run_ledger(rows // 10, people // 10)
    emit(found, out)


if __name__ == "__main__":
    main()
