"""apiece query: one document, or one line of what was wrong."""

import json
from pathlib import Path

import pandas as pd
import pytest

from apiece.cli import run
from apiece.datasets import Boolean, Numeric, Text, read_schema
from apiece.errors import AnalysisError
from apiece.ledger import Ledger
from apiece.queries import Session


@pytest.fixture
def table(tmp_path: Path) -> str:
    path = tmp_path / "people.parquet"
    frame = pd.DataFrame({"id": range(300), "income": 50_000.0, "region": ["n", "s", "n"] * 100})
    frame.to_parquet(path)
    return str(path)


FLAGS = [
    "--person",
    "id",
    "--rows-per-person",
    "1",
    "--bounds",
    "income=0:200000",
    "--values",
    "region=n,s",
]
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


@pytest.mark.parametrize("question", ["count()", "median(income)", "histogram(income, 2)"])
def test_a_column_may_be_called_level(
    question: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table = tmp_path / "people.csv"
    table.write_text("id,level,income\n" + "".join(f"{i},{'xy'[i % 2]},5\n" for i in range(60)))
    flags = ["--person", "id", "--rows-per-person", "1", "--bounds", "income=0:9"]
    words = ["query", str(table), f"{question} by level", *flags, "--values", "level=x,y", *COST]
    assert run(words) == 0
    text = capsys.readouterr().out
    assert "level=x" in text
    assert "level=y" in text


@pytest.mark.parametrize("spent", [["--epsilon", "0.3", "--delta", "1e-6"], COST])
def test_the_cost_is_told_of_no_row_and_no_account(
    spent: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """Where there is neither a table nor a ledger, it is the same."""
    words = ["query", "none.csv", "mean(income) by region", *FLAGS, *spent, "--ledger", "none.db"]
    assert run([*words, "--cost", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert [told["epsilon"], told["delta"]] == [float(spent[1]), 1e-6]
    assert run([*words, "--cost"]) == 0
    text = capsys.readouterr().out
    assert f"costs nobody more than ({told['epsilon']:g}, 1e-06)" in text
    assert "counted: persons, each once" in text
    assert run(words) == 2


def test_laplace_noise_at_delta_0(
    table: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    url = f"sqlite:///{tmp_path}/p.db"
    Ledger.open(url).enroll(range(300), [0.1] * 150 + [3.0] * 150, 1e-6)
    words = ["query", table, "count() by region", *FLAGS, "--epsilon", ".5", "--delta", "0"]
    assert run([*words, "--ledger", url, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert sum(group["estimate"] for group in found["groups"]) == pytest.approx(150, abs=60)
    assert "exact Laplace noise" in found["guarantee"]
    words[2] = "mean(income)"
    assert run(words) == 2
    assert "delta = 0" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("query", "flags", "says"),
    [
        ("mean(wage)", FLAGS, "no declared bounds"),
        ("DROP TABLE x", FLAGS, "query"),
        ("meen(income)", FLAGS, "did you mean 'mean'"),
        ("count()", ["--person", "id"], "rows_per_person: missing"),
        (
            "count(persons) by region",
            ["--person", "id", "--values", "region=n,s"],
            "--rows-per-person",
        ),
        ("count()", ["--person", "id", "--bounds", "income=0"], "LOW:HIGH"),
        ("count()", ["--person", "who", "--rows-per-person", "1"], "not in the source"),
        ("count()", ["--person", "id", "--analysis", "a"], "--ledger"),
        (
            "count(persons)",
            ["--person", "id", "--ledger", "sqlite:////tmp/none/x.db"],
            "ledger init",
        ),
        ("sum(income) where income > ", FLAGS, "where"),
        ("sum(income); DROP TABLE x", FLAGS, "cannot read"),
        ("mean(income) by town", FLAGS, "no declared groups"),
        ("count() by town", [*FLAGS, "--values", "town=a,b"], "not in the source"),
        ("count() where town = 'a'", FLAGS, "no declared kind"),
        ("count() where town = 'a'", [*FLAGS, "--kind", "town=words"], "unknown name 'words'"),
        ("count() where town = 'a'", [*FLAGS, "--kind", "town"], "is not column="),
        ("count() where income = 'a'", FLAGS, "declared numeric"),
        ("count()", [*FLAGS, "--sha256", "00"], "fingerprint"),
        ("count()", [*FLAGS, "--steward-log", "/none/there"], "cannot be written"),
        ("count()", [*FLAGS, "--memory", "0"], "--memory"),
        ("count()", [*FLAGS, "--memory", "1", "--engine", "spark"], "leave it out"),
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
        "people.ods",
        "SELECT 1 FROM",
        "people.json",
        "ATTACH 'x.db'",
    ],
)
def test_a_source_that_is_no_file_is_one_line(
    source: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["query", source, "count(persons)", "--person", "id", *COST]) == 2
    captured = capsys.readouterr()
    assert "neither a .parquet nor a .csv file" in captured.err
    assert captured.err.count("\n") == 1


def test_a_stranger_is_left_out_and_a_used_name_is_one_line(
    table: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Who has no account has no budget: no part in the answer, nor in what is said of it."""
    url, log = f"sqlite:///{tmp_path}/p.db", tmp_path / "steward.log"
    ledger = Ledger.open(url)
    ledger.enroll(range(299), 3.0, 1e-6)
    words = [*FLAGS[:4], "--ledger", url, "--analysis", "q", *COST]
    asked = ["query", table, "count()", *words]
    assert run([*asked, "--steward-log", str(log), "--json"]) == 0
    said = capsys.readouterr()
    assert "1 of 300 people" not in said.out + said.err
    assert "1 of 300 people have no account" in log.read_text()
    assert log.stat().st_mode & 0o777 == 0o600
    assert (ledger.spent(range(299)) > 0).all()
    ledger.enroll([299], 3.0, 1e-6)
    assert run([*asked, "--json"]) == 0
    assert capsys.readouterr().out == said.out
    assert run(["query", table, "sum(income)", *words, "--bounds", "income=0:9"]) == 2
    assert "in use for another analysis" in capsys.readouterr().err


def test_a_nan_contributes_nothing_and_pays_nothing(tmp_path: Path) -> None:
    url, path = f"sqlite:///{tmp_path}/p.db", tmp_path / "people.parquet"
    frame = pd.DataFrame({"id": [1, 2, 3], "income": [float("nan"), float("inf"), 9.0]})
    frame.to_parquet(path)
    ledger = Ledger.open(url)
    ledger.enroll([1, 2, 3], 3.0, 1e-6)
    flags = [*FLAGS[:4], "--ledger", url, "--bounds", "income=0:9"]
    assert run(["query", str(path), "sum(income)", *flags, *COST]) == 0
    spent = ledger.spent([1, 2, 3])
    assert spent[0] == 0
    assert spent[2] > 0


def test_an_answer_says_what_it_counts(table: str, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--person", "id", "--values", "region=n,s", "--bounds", "income=0:200000", *COST]
    assert run(["query", table, "count(persons)", *words]) == 0
    assert "counted: persons, each once" in capsys.readouterr().out
    words += ["--rows-per-person", "3"]
    assert run(["query", table, "count(rows) by region", *words, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["counted"], told["rows_per_person"]) == ("rows", 3)
    assert run(["query", table, "quantile(income, .25, .75) by region", *words]) == 0
    told = capsys.readouterr().out.splitlines()
    assert [line.split("  ")[:2] for line in told[:4]] == [
        ["region=n", "0.25"], ["region=n", "0.75"], ["region=s", "0.25"], ["region=s", "0.75"],
    ]  # fmt: skip


SCHEMA = """
person = "id"
rows_per_person = 1

[columns.income]
kind = "numeric"
lower = 0
upper = 200000
scale = "log"

[columns.region]
kind = "categorical"
values = ["n", "s"]

[columns.since]
kind = "date"
lower = 2000-01-01
upper = 2030-01-01
format = "%d.%m.%Y"
missing = ["n/a"]
"""


def test_a_schema_file_and_options_declare_what_python_does(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The ledger compares the declarations: asked again on the same ones, the answer is the same.

    Options stand in place of what the file says.
    """
    table = tmp_path / "people.csv"
    rows = [f"{number},{number},n,01.02.2024,{number % 2}" for number in range(300)]
    table.write_text("\n".join(["id,income,region,since,flag", *rows]))
    path = tmp_path / "people.toml"
    path.write_text(SCHEMA)
    url = f"sqlite:///{tmp_path}/p.db"
    ledger = Ledger.open(url)
    ledger.enroll(range(300), 9.0, 1e-6)
    words = ["query", str(table), "count() by region", "--schema", str(path), *COST, "--json"]
    words += ["--ledger", url, "--analysis"]
    declared = read_schema(path)
    changes = ["--bounds", "income=0:9", "--values", "income=1,2", "--rows-per-person", "2"]
    changes += ["--kind", "region=text", "--kind", "flag=boolean"]
    changed = declared.declare(
        {
            "income": Numeric(0, 9, values=["1", "2"]),
            "region": Text(values=["n", "s"]),
            "flag": Boolean(),
        },
        rows_per_person=2,
    )
    for name, flags, schema in (("file", [], declared), ("both", changes, changed)):
        assert run([*words, name, *flags]) == 0
        recorded = json.loads(capsys.readouterr().out)
        session = Session(table, schema, ledger)
        ask = {"epsilon": 2.0, "delta": 1e-6, "analysis_id": name}
        assert session.ask("count() by region", **ask).to_dict() == recorded
    with pytest.raises(AnalysisError):
        Session(table, declared, ledger).ask("count() by region", **ask)


def test_a_public_table_is_joined(
    table: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    public = tmp_path / "parts.csv"
    public.write_text("code,side\nn,up\ns,down\n")
    asked = "SELECT side, count(*) FROM people JOIN parts ON region = parts.code GROUP BY side"
    words = ["query", table, asked.replace("ON region", "ON people.region"), *FLAGS, "--json"]
    words += ["--epsilon", "100", "--delta", "1e-6"]
    assert run([*words, "--lookup", f"parts={public}::code::region"]) == 0
    groups = json.loads(capsys.readouterr().out)["groups"]
    assert [(group["side"], round(group["estimate"], -1)) for group in groups] == [
        ("down", 100),
        ("up", 200),
    ]
    for flag, named in (
        (f"parts={public}::code", "'code' is not declared"),
        (f"parts={public}::none", "no column 'none'"),
        ("parts", "NAME=FILE::KEY"),
        (f"parts={public}", "NAME=FILE::KEY"),
    ):
        assert run([*words, "--lookup", flag]) == 2
        assert named in capsys.readouterr().err


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--bounds", "income=0:9", "--kind", "income=text"], "declares 'income' as numbers"),
        (["--kind", "income=words"], "unknown name 'words'"),
        (["--bounds", "income=9:1"], "income"),
        (["--decimal", ";"], "decimal"),
    ],
)
def test_declarations_that_contradict_each_other(
    flags: list[str], words: str, table: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["query", table, "count()", "--person", "id", *COST, *flags]) == 2
    said = capsys.readouterr().err
    assert words in said
    assert said.count("\n") == 1
