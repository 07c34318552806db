"""apiece query: one document, or one line of what was wrong."""

import json
from pathlib import Path

import pandas as pd
import pytest

from apiece.cli import run
from apiece.ledger import Ledger


@pytest.fixture
def table(tmp_path: Path) -> str:
    path = tmp_path / "people.parquet"
    frame = pd.DataFrame({"id": range(300), "income": 50_000.0, "region": ["n", "s", "n"] * 100})
    frame.to_parquet(path)
    return str(path)


FLAGS = ["--person", "id", "--bounds", "income=0:200000", "--values", "region=n,s"]
COST = ["--epsilon", "2", "--delta", "1e-6"]


def test_group_by_with_a_ledger(
    table: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    url = f"sqlite:///{tmp_path}/p.db"
    ledger = Ledger.open(url)
    ledger.enroll(range(300), 3.0, 1e-6)
    words = ["query", table, "mean(income) by region", *FLAGS, *COST, "--ledger", url]
    assert run([*words, "--analysis", "q", "--json"]) == 0
    first = json.loads(capsys.readouterr().out)
    assert [g["region"] for g in first["groups"]] == ["n", "s"]
    assert first["relation"] == "add_remove"
    assert ledger.status("q") == "committed"
    assert run([*words, "--analysis", "q", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == first
    assert run(words) == 0
    text = capsys.readouterr().out
    assert "region=n" in text
    assert "guarantee: (2, 1e-06)-DP" in text


@pytest.mark.parametrize(
    ("query", "flags", "says"),
    [
        ("mean(wage)", FLAGS, "no declared bounds"),
        ("DROP TABLE x", FLAGS, "query"),
        ("meen(income)", FLAGS, "did you mean 'mean'"),
        ("count()", ["--person", "id", "--bounds", "income=0"], "LOW:HIGH"),
        ("count()", ["--person", "who"], "not in the source"),
        ("count()", ["--person", "id", "--analysis", "a"], "--ledger"),
        ("count()", ["--person", "id", "--ledger", "sqlite:////tmp/none/x.db"], "ledger init"),
        ("sum(income) where income > ", FLAGS, "where"),
        ("sum(income); DROP TABLE x", FLAGS, "cannot read"),
        ("mean(income) by town", FLAGS, "not in the source"),
    ],
)
def test_mistakes_are_one_line(
    table: str, query: str, flags: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["query", table, query, *flags, *COST]) == 2
    captured = capsys.readouterr()
    assert says in captured.err
    assert captured.err.count("\n") == 1
    assert captured.out == ""


@pytest.mark.parametrize(
    "source",
    [
        "DELETE FROM people",
        "SELECT 1 AS id; DROP TABLE people",
        "COPY (SELECT 1) TO 'x.csv'",
        "people.xlsx",
        "SELECT 1 FROM",
        "ATTACH 'x.db'",
    ],
)
def test_a_source_that_is_no_query_is_one_line(
    source: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["query", source, "count()", "--person", "id", *COST]) == 2
    captured = capsys.readouterr()
    assert "one SELECT" in captured.err
    assert captured.err.count("\n") == 1


def test_a_stranger_and_a_used_name_are_one_line(
    table: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nobody is charged for a query about somebody the ledger does not know."""
    url = f"sqlite:///{tmp_path}/p.db"
    ledger = Ledger.open(url)
    ledger.enroll(range(299), 3.0, 1e-6)
    words = ["--person", "id", "--ledger", url, "--analysis", "q", *COST]
    assert run(["query", table, "count()", *words]) == 2
    assert "person 299 has no account" in capsys.readouterr().err
    assert not ledger.spent(range(299)).any()
    ledger.enroll([299], 3.0, 1e-6)
    assert run(["query", table, "count()", *words]) == 0
    assert run(["query", table, "sum(income)", *words, "--bounds", "income=0:9"]) == 2
    assert "committed for another query" in capsys.readouterr().err


def test_a_nan_contributes_nothing_and_pays_nothing(tmp_path: Path) -> None:
    url, path = f"sqlite:///{tmp_path}/p.db", tmp_path / "people.parquet"
    frame = pd.DataFrame({"id": [1, 2, 3], "income": [float("nan"), float("inf"), 9.0]})
    frame.to_parquet(path)
    ledger = Ledger.open(url)
    ledger.enroll([1, 2, 3], 3.0, 1e-6)
    flags = ["--person", "id", "--ledger", url, "--bounds", "income=0:9"]
    assert run(["query", str(path), "sum(income)", *flags, *COST]) == 0
    spent = ledger.spent([1, 2, 3])
    assert spent[0] == 0
    assert spent[2] > 0
