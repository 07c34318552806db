"""apiece synthesize: from a CSV file to a table, a statement and a page."""

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

pytest.importorskip("mbi", reason="needs the extra synthesis")

from apiece import Synthetic, cli
from apiece.synthesis.statement import require_bound

SCHEMA = """
person = "id"
rows_per_person = 1
[columns.age]
kind = "numeric"
lower = 0
upper = 89
[columns.married]
kind = "categorical"
values = ["yes", "no"]
"""
BASE = (
    "synthesize people.csv --schema people.toml --epsilon consent --levels low=0.5,high=2 "
    "--delta 1e-6 --bins 6"
)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    draws = np.random.default_rng(0)
    age = draws.integers(0, 90, 800)
    people = pd.DataFrame({"id": [f"p{k}" for k in range(800)], "age": age})
    people["married"] = np.where((age >= 18) & (draws.random(800) < 0.6), "yes", "no")
    people["consent"] = draws.choice(["low", "high"], 800)
    people.to_csv("people.csv", index=False)
    Path("people.toml").write_text(SCHEMA)
    return tmp_path


def run(words: str) -> int:
    return cli.run(words.split(" "))


def test_a_table_its_statement_its_model_and_a_page(folder: Path, capsys) -> None:
    words = [*BASE.split(" "), "--rule", "age < 18 and married = yes", "--page", "p.html"]
    assert cli.run([*words, "--checkpoint", "c.json", "--json", "--out", "out.parquet"]) == 0
    document = json.loads(capsys.readouterr().out)
    table = pd.read_parquet("out.parquet")
    assert len(table) == document["rows"]
    assert not ((table["age"] < 18) & (table["married"] == "yes")).any()
    require_bound(json.loads(Path("out.statement.json").read_text()), "out.parquet")
    assert len(Synthetic.load("out.model.json").frame(7)) == 7
    assert "Public edition" in Path("p.html").read_text()
    # Once more from the checkpoint: nothing is measured again.
    assert cli.run([*words[:-1], "q.html", "--checkpoint", "c.json", "--out", "more.csv"]) == 0
    assert Synthetic.load("more.model.json").measurements[0].values.tolist() == (
        Synthetic.load("out.model.json").measurements[0].values.tolist()
    )


def test_the_cost_is_known_before(folder: Path, capsys) -> None:
    assert run(f"{BASE} --cost --json") == 0
    columns = json.loads(capsys.readouterr().out)["columns"]
    assert [column["column"] for column in columns] == ["age", "married"]
    assert all(0 < column["by_noise"] < 0.5 for column in columns)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("", "--out: missing"),
        ("--out t.csv --analysis x", "give --ledger too"),
        ("--out t.csv --bins age=x", "--bins"),
        ("--out t.csv --bins age=3 --bins age=4", "given twice"),
        ("--out t.csv --workload most", "workload"),
        ("--out t.csv --rake 2", "rake = 2"),
        ("--out t.txt", "t.txt"),
        ("--out people.csv", "people.csv"),
        ("--out t.csv --ledger sqlite:///none.db", "none.db"),
    ],
)
def test_mistakes_are_one_line(folder: Path, capsys, words: str, message: str) -> None:
    # --bins stands twice where it is asked for again: columns by name alone are taken.
    base = BASE.replace(" --bins 6", "") if "--bins" in words else BASE
    assert run(f"{base} {words}".strip()) == 2
    said = capsys.readouterr().err.strip()
    assert message in said
    assert len(said.splitlines()) == 1
