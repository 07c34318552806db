"""Mistakes in a question are listed at once, with a line that declares what is missing."""

import shlex
from pathlib import Path

import pandas as pd
import pytest

from apiece import datasets
from apiece.cli import run
from apiece.datasets import Numeric, Schema
from apiece.errors import DataError, InputError
from apiece.queries import query_cost
from apiece.queries.declarations import Declarations
from apiece.queries.grammar import parse
from apiece.queries.mistakes import find_mistakes
from apiece.queries.question import resolve
from refusals import refused

BOTH = {"n": "numeric", "x": "text"}
AGES = Schema({"age": Numeric(0, 120)}, person="id")


def refusal(text: str, schema: Schema = AGES, epsilon: float = 1.0, delta: float = 1e-6) -> str:
    with pytest.raises(InputError) as caught:
        query_cost(text, schema, epsilon=epsilon, delta=delta)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize(
    ("text", "kinds"),
    [
        ("mean(income) by region", {}),
        ("mean(income) by region where city = 'Bonn'", {"city": "text"}),
        ("covariance(income, age) by region where since > '2024-01-01'", {"since": "date"}),
        ("histogram(income, 4) by region where n > 3 or not x is null", BOTH),
    ],
)
def test_what_is_not_declared_is_named_at_once_with_a_line_for_the_schema(
    text: str, kinds: dict[str, str]
) -> None:
    """The line, pasted, makes a schema that answers the question; what was declared stays."""
    said = refusal(text)
    assert "bounds of 'income'; values of 'region'" in said
    assert "how many rows a person brings at most" in said
    line = said.split("as in ")[-1]
    declared = {name: getattr(datasets, name) for name in datasets.__all__}
    declarations = Declarations.from_schema(eval(line, declared, {"schema": AGES}))
    assert declarations.bounds == {"age": (0, 120), "income": (0, 100)}
    assert declarations.kinds == kinds
    assert resolve(parse(text), declarations).rows == 5


def test_every_kind_of_mistake_is_listed() -> None:
    said = refusal("mean(income) by region where age = 'x' and age > 'y'", epsilon=0, delta=2)
    assert said.startswith("5 things to mend: (1) epsilon = 0")
    for part in ("(2) delta = 2", "(3) not declared", "compared with 'x'", "compared with 'y'"):
        assert part in said


@pytest.mark.parametrize(
    ("text", "declared"),
    [
        ("mean(income", ["bounds of 'income'"]),
        ("mean(income) grouped by region", ["bounds of 'income'"]),
        ("mean(income) by region whre age > 3", ["bounds of 'income'", "values of 'region'"]),
        ("mean(x) by region where city = 'Bonn' and", ["values of 'region'", "kind of 'city'"]),
        ("sum(income) by region where age >", ["bounds of 'income'", "values of 'region'"]),
    ],
)
def test_what_stands_before_a_slip_of_syntax_is_listed_too(text: str, declared: list[str]) -> None:
    said = refusal(text)
    assert "(1) query: expected" in said
    assert all(part in said for part in declared)


def test_a_single_mistake_is_said_as_ever() -> None:
    rows = Schema({"age": Numeric(0, 120)}, person="id", rows_per_person=1)
    assert refusal("mean(income)", rows).startswith("column 'income': no declared bounds")
    assert refusal("count() by region", rows).startswith("column 'region': no declared groups")
    assert refusal("count() where city = 'a'", rows).startswith("column 'city': no declared kind")
    assert refusal("mean(age)").startswith("rows_per_person: missing")
    assert refusal("mean(age)", rows, delta=0).startswith("delta = 0: mean has Gaussian noise")
    assert refusal("mean(age", rows).startswith("query: expected")
    declarations = Declarations.from_schema(rows)
    assert not find_mistakes("mean(age)", declarations, epsilon=1.0, delta=1e-6)


def test_undeclared_columns_alone_are_an_error_about_data() -> None:
    with refused(DataError, "bounds", "income", "age"):
        query_cost("covariance(income, age)", Schema({}, person="id"), epsilon=1.0, delta=1e-6)


def test_a_long_text_is_refused_in_no_time() -> None:
    assert "query: expected" in refusal("mean(age) where " + "age > 3 and " * 800)
    assert "10,000 characters" in refusal("mean(age) where " + "age > 3 and " * 2000)


def command_refusal(words: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    assert run(["query", *words]) == 2
    captured = capsys.readouterr()
    assert captured.err.count("\n") == 1
    return captured.err.strip()


def test_on_the_command_line_one_refusal_leads_to_the_answer(
    tmp_path: object, capsys: pytest.CaptureFixture[str]
) -> None:
    """The flags of the message, pasted, answer the question."""
    path = f"{tmp_path}/people.parquet"
    frame = pd.DataFrame({"id": range(9), "in come": range(9), "region": list("ABC") * 3})
    frame.to_parquet(path)
    words = [path, 'mean("in come") by region where "in come" > 2 and region = \'A\'']
    said = command_refusal(words, capsys)
    assert "--person" in said
    flags = [
        part for piece in said.split("as in ")[1:] for part in shlex.split(piece.split(";")[0])
    ]
    assert run(["query", *words, *flags]) == 0
    assert "region=A" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("flags", "lacks"),
    [
        ([], ["--person", "--epsilon", "--delta"]),
        (["--person", "id"], ["--epsilon", "--delta"]),
        (["--person", "id", "--epsilon", "1"], ["--delta"]),
        (["--epsilon", "1", "--delta", "0"], ["--person"]),
    ],
)
def test_missing_options_are_listed_with_what_is_not_declared(
    flags: list[str], lacks: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    said = command_refusal(["people.csv", "sum(income) by region", *flags], capsys)
    assert all(flag in said for flag in lacks)
    assert "--bounds income=0:100 --values region=A,B --rows-per-person 5" in said
    said = command_refusal(["people.csv", "sum(income", *flags], capsys)
    assert all(flag in said for flag in lacks)
    assert "--bounds income=0:100 --rows-per-person 5" in said


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("SELECT month(seen) AS m, count(*) FROM t GROUP BY m", "--kind seen=date"),
        ("SELECT count(*) FROM t WHERE seen > 5", "--kind seen=numeric"),
        ("SELECT count(*) FROM t WHERE lower(seen) = 'a'", "--kind seen=text"),
    ],
)
def test_a_kind_is_suggested_by_its_use(
    text: str, kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("sqlglot", reason="needs the extra sql")
    path = tmp_path / "t.csv"
    path.write_text("id,seen\n1,a\n")
    words = ["--person", "id", "--rows-per-person", "1", "--epsilon", "1", "--delta", "1e-6"]
    assert run(["query", str(path), text, *words]) == 2
    assert kind in capsys.readouterr().err
