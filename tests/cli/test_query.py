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
        ("count()", ["--person", "id", "--ledger", "sqlite:////tmp/none/x.db"], "ledger"),
    ],
)
def test_mistakes_are_one_line(
    table: str, query: str, flags: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["query", table, query, *flags, *COST]) in (1, 2)
    captured = capsys.readouterr()
    assert says in captured.err
    assert captured.err.count("\n") == 1
    assert captured.out == ""
