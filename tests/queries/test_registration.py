"""A table that a steward has registered in a folder: what is kept, and what is refused."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from apiece.cli import run
from apiece.datasets import Categorical, Date, Numeric, Schema
from apiece.errors import DataError, InputError
from apiece.ledger import Ledger
from apiece.queries import Session, register
from apiece.queries.registration import Registration, is_registered

SCHEMA = Schema(
    {
        "pay": Numeric(0, 100),
        "town": Categorical(["A", "B"]),
        "seen": Date("2024-01-01", "2024-12-31"),
    },
    person="id",
    rows_per_person=3,
)
SELECT = "SELECT town, count(*), avg(pay) FROM people GROUP BY town"


@pytest.fixture
def table(tmp_path: Path) -> Path:
    draws = np.random.default_rng(0)
    frame = pd.DataFrame(
        {
            "id": [f"p{k}" for k in draws.integers(0, 300, 1000)],
            "pay": draws.uniform(-10, 120, 1000).round(2),
            "town": draws.choice(["A", "B", "C"], 1000),
            "seen": "2024-05-06",
        }
    )
    frame.to_parquet(tmp_path / "people.parquet")
    return tmp_path / "people.parquet"


def test_a_registered_table_answers_as_its_source_does(table: Path, tmp_path: Path) -> None:
    folder = tmp_path / "people.apiece"
    messages: list[str] = []
    direct = register(table, SCHEMA, folder=folder, log=messages.append)
    assert folder.stat().st_mode & 0o777 == 0o700
    assert all(path.stat().st_mode & 0o777 == 0o600 for path in folder.iterdir())
    lines = (folder / "steward.log").read_text().splitlines()
    assert [json.loads(line) for line in lines[1:]] == messages
    assert any("300 people" in m or "people" in m for m in messages)
    for text in (
        SELECT,
        "SELECT month(seen) AS m, sum(pay / 2) FROM people GROUP BY m",
        "count(persons) by town",
        "median(pay) by town where pay < 60",
        "SELECT DISTINCT town FROM people",
    ):
        answers = [
            Session(source, schema, seed=7).ask(text, epsilon=1.0, delta=1e-6).groups
            for source, schema in ((direct, SCHEMA), (folder, None), (str(folder), SCHEMA))
        ]
        assert answers[0] == answers[1] == answers[2]
    assert Session(folder).schema == Registration.open(folder).schema
    with pytest.raises(InputError, match="not the one that the table was registered with"):
        Session(folder, Schema({"pay": Numeric(0, 5)}, person="id"))
    with pytest.raises(InputError, match="schema: missing"):
        Session(table)


def test_what_is_kept_is_not_believed(table: Path, tmp_path: Path) -> None:
    folder = tmp_path / "people.apiece"
    register(table, SCHEMA, folder=folder).close()
    rows = folder / "rows.duckdb"
    content = rows.read_bytes()
    rows.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    with pytest.raises(DataError, match="not those that were registered"):
        Session(folder).ask("count(persons)", epsilon=1.0, delta=0)
    rows.write_bytes(content)
    manifest = folder / "registered.json"
    text = manifest.read_text()
    manifest.write_text(text.replace('"rows_per_person": 3', '"rows_per_person": 1', 1))
    with pytest.raises(DataError, match="its schema is not the one that was registered"):
        Session(folder)
    for broken in ("", "{}", '{"apiece registered": 1}', "[1]"):
        manifest.write_text(broken)
        with pytest.raises(DataError, match="no registered table that can be read"):
            Session(folder)
    manifest.write_text(text.replace('"apiece registered": 1', '"apiece registered": 9'))
    with pytest.raises(DataError, match="another version"):
        Session(folder)


def test_a_table_that_is_refused_leaves_no_folder(table: Path, tmp_path: Path) -> None:
    folder = tmp_path / "new"
    with pytest.raises(DataError, match="not in the source"):
        register(table, SCHEMA.declare({"none": Numeric(0, 1)}), folder=folder)
    assert not folder.exists()
    folder.mkdir()
    (folder / "mine").write_text("")
    with pytest.raises(DataError, match="not empty"):
        register(table, SCHEMA, folder=folder)
    assert [path.name for path in folder.iterdir()] == ["mine"]
    assert not is_registered(folder)


DECLARED = (
    "--person id --bounds pay=0:100 --bounds seen=2024-01-01:2024-12-31 --values town=A,B "
    "--rows-per-person 3"
)


def test_the_command_keeps_a_table_and_tells_recorded_answers(
    table: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(["register", "people.parquet", *DECLARED.split(), "--out", "kept", "--json"]) == 0
    printed = capsys.readouterr()
    assert json.loads(printed.out)["folder"] == "kept"
    assert "steward: registered: 1000 rows" in printed.err
    people = [f"p{k}" for k in range(300)]
    Ledger.make("sqlite:///l.db", people, 5.0, 1e-5)
    asked = ["--epsilon", ".5", "--delta", "1e-6", "--ledger", "sqlite:///l.db"]
    named = ["query", "kept", SELECT, *asked, "--analysis", "one"]
    assert run(named) == 0
    answer = capsys.readouterr().out
    session = Session("kept", ledger=Ledger.open("sqlite:///l.db"))
    again = session.ask(SELECT, epsilon=0.5, delta=1e-6, analysis_id="one")
    assert list(again.groups[0]) == ["town", "statistics"]
    assert list(again.groups[0]["statistics"]) == ["count(*)", "avg(pay)"]
    # The rows are gone, and the answer is told by what is noted and by the ledger.
    (tmp_path / "kept" / "rows.duckdb").unlink()
    (tmp_path / "people.parquet").unlink()
    code = (
        "import sys\nfrom apiece.cli import run\n"
        f"status = run({named!r})\n"
        "heavy = ('numpy', 'scipy', 'sqlalchemy', 'duckdb', 'pandas', 'pyarrow', 'sqlglot')\n"
        "print(status, [m for m in heavy if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == f"{answer}0 []\n"
    # Another statement under that name is for the ledger, which refuses it.
    assert run([*named[:2], "SELECT count(*) FROM people", *named[3:]]) == 2
    assert "in use for another analysis" in capsys.readouterr().err
    assert run(["query", "kept", SELECT, "--rows-per-person", "2", *asked]) == 2
    assert "--rows-per-person: is as the table was registered" in capsys.readouterr().err
    # Another ledger under that address has no such answer, and there are no rows to ask.
    for path in tmp_path.glob("l.db*"):
        path.unlink()
    Ledger.make("sqlite:///l.db", people, 5.0, 1e-5)
    assert run(named) == 2
    assert "cannot be read" in capsys.readouterr().err


def test_a_question_without_a_name_is_not_charged_twice(
    table: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    register(table, SCHEMA, folder="kept").close()
    Ledger.make("sqlite:///l.db", [f"p{k}" for k in range(300)], 5.0, 1e-5)
    asked = ["query", "kept", "count(persons)", "--epsilon", ".1", "--delta", "0"]
    asked += ["--ledger", "sqlite:///l.db"]
    assert run(asked) == 0
    first = capsys.readouterr().out
    assert run(asked) == 2
    message = capsys.readouterr().err
    assert "answered before" in message
    name = message.split("--analysis ")[1].split(" ")[0]
    assert run([*asked, "--analysis", name]) == 0
    assert capsys.readouterr().out == first
    assert run([*asked, "--again"]) == 0
    assert run(["query", "kept", "count(persons)", "--epsilon", ".1", "--delta", "0"]) == 0


def test_wrong_input_of_the_command_is_refused(
    table: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    for words, text in (
        (["--bounds", "pay=0:1", "--out", "new"], "--person: missing"),
        (["--person", "id", "--out", "new", "--memory", "0"], "(0, inf)"),
        (["--person", "nobody", "--out", "new"], "'nobody'"),
        (["--person", "id", "--out", "people.parquet"], "people.parquet"),
        (["--person", "id", "--sha256", "ab", "--out", "new"], "not the table"),
    ):
        assert run(["register", "people.parquet", *words]) == 2
        assert text in capsys.readouterr().err
        assert not (tmp_path / "new").exists()


def test_two_sessions_ask_one_registered_table(tmp_path: Path) -> None:
    frame = pd.DataFrame({"id": [f"p{number}" for number in range(50)]})
    register(frame, Schema({}, person="id"), folder=tmp_path / "table").close()
    sessions = [Session(tmp_path / "table", seed=number) for number in range(2)]
    for session in (*sessions, *sessions):
        answer = session.ask("count(persons)", epsilon=1e6, delta=0)
        assert answer.groups[0]["estimate"] == pytest.approx(50, abs=0.01)
