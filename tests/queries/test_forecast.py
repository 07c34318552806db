"""What is said before anybody pays is what the answer has."""

from __future__ import annotations

import itertools
import json
import math
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from apiece._types import Json
from apiece.cli import run
from apiece.datasets import Categorical, Numeric, Schema
from apiece.errors import InputError
from apiece.ledger import Ledger
from apiece.queries import Session, least_epsilon, query_cost
from apiece.queries.adjusting import list_rows, make_consistent

pytest.importorskip("sqlglot", reason="needs the extra sql")
SCHEMA = Schema(
    {"x": Numeric(-2, 8), "y": Numeric(0, 4), "g": Categorical(["a", "b"])},
    person="id",
    rows_per_person=1,
)
ROWS = 2000
SELECT = (
    "SELECT g, count(*), sum(x), avg(x), stddev(x), corr(x, y), median(y), histogram(x, 4) "
    "FROM t GROUP BY g"
)


def even_table() -> pd.DataFrame:
    """Rows spread evenly over the bounds, as the made-up ones are."""
    rng = np.random.default_rng(3)
    n = 2 * ROWS
    return pd.DataFrame(
        {
            "id": range(n),
            "x": rng.uniform(-2, 8, n),
            "y": rng.uniform(0, 4, n),
            "g": ["a", "b"] * ROWS,
        }
    )


@pytest.mark.parametrize("delta", [1e-6, 0.0])
def test_widths_are_those_of_the_answer(delta: float) -> None:
    sql = SELECT if delta else "SELECT g, count(*), sum(x), histogram(x, 4) FROM t GROUP BY g"
    cost = query_cost(sql, SCHEMA, epsilon=1.0, delta=delta, rows=ROWS)
    answer = Session(even_table(), SCHEMA, seed=2).ask(sql, epsilon=1.0, delta=delta)
    for group in answer.groups:
        for statistic, _, estimate in list_rows(group):
            width = cost.widths[statistic]
            if "interval" not in estimate:
                assert 0 < width.margin < 4
                continue
            low, high = estimate["interval"]
            near = 1e-9 if width.rows is None else 0.15
            assert (high - low) / 2 == pytest.approx(width.margin, rel=near), statistic
    public = {name for name, width in cost.widths.items() if width.rows is None}
    assert public == {name for name in cost.widths if name.startswith(("count", "sum", "hist"))}


@pytest.mark.parametrize(
    ("text", "within", "delta"),
    [
        ("count()", "50", 0.0),
        ("count() by g", "±2%", 1e-6),
        ("sum(x)", "400", 1e-6),
        ("mean(x)", "1%", 1e-6),
        ("median(y)", "5%", 0.0),
        ("SELECT count(*), avg(x) FROM t", "3%", 1e-6),
    ],
)
def test_the_least_epsilon_is_enough_and_hardly_more(text: str, within: str, delta: float) -> None:
    epsilon = least_epsilon(text, SCHEMA, within=within, delta=delta, rows=ROWS)
    number = float(within.strip("±%")) / (100 if "%" in within else 1)
    scale = {"count": ROWS, "sum": 1.0, "mean": 10.0, "median": 4.0, "avg": 10.0}

    def shares(epsilon: float) -> list[float]:
        cost = query_cost(text, SCHEMA, epsilon=epsilon, delta=delta, rows=ROWS)
        names = [name.partition("(")[0] for name in cost.widths]
        limits = [number * scale[n] if "%" in within else number for n in names]
        return [w.margin / limit for w, limit in zip(cost.widths.values(), limits, strict=True)]

    assert max(shares(epsilon)) <= 1
    assert max(shares(epsilon * 0.98)) > 1


@pytest.mark.parametrize("within", ["", "0", "two", "-%", "5 %%"])
def test_a_width_that_is_none_is_refused(within: str) -> None:
    with pytest.raises(InputError, match="as in '50' or '2%'"):
        least_epsilon("count()", SCHEMA, within=within, delta=0.0)


def test_a_width_that_no_epsilon_gives_is_refused() -> None:
    with pytest.raises(InputError, match="wider interval"):
        least_epsilon("mean(x)", SCHEMA, within="1e-9", delta=1e-6)


def table_file(folder: Path) -> str:
    path = folder / "t.csv"
    even_table().to_csv(path, index=False)
    return str(path)


WORDS = ["--person", "id", "--rows-per-person", "1", "--bounds", "x=-2:8", "--delta", "1e-6"]


def test_the_command_says_the_width_and_finds_epsilon(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = table_file(tmp_path)
    assert run(["query", path, "count()", *WORDS, "--epsilon", "1", "--cost"]) == 0
    assert "half the width of the 95 % interval in one group:\n  ±8.2" in capsys.readouterr().out
    assert run(["query", path, "mean(x)", *WORDS, "--within", "1%", "--cost", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["widths"]["mean(x)"]["margin"] <= 0.1
    assert document["widths"]["mean(x)"]["rows"] == 1000
    assert run(["query", path, "count()", *WORDS, "--within", "20", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    low, high = answer["groups"][0]["interval"]
    assert 19 < (high - low) / 2 <= 20
    assert run(["query", path, "count()", *WORDS, "--within", "20", "--epsilon", "1"]) == 2
    assert "leave one of them out" in capsys.readouterr().err


def test_the_same_question_is_not_charged_twice_by_accident(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = table_file(tmp_path)
    url = f"sqlite:///{tmp_path}/p.db"
    ledger = Ledger.open(url)
    ledger.enroll(range(2 * ROWS), 3.0, 1e-6)
    words = ["query", path, "count()", *WORDS, "--epsilon", "0.5", "--ledger", url]
    assert run([*words, "--json"]) == 0
    first = json.loads(capsys.readouterr().out)
    spent = float(ledger.spent([0])[0])
    assert run(words) == 2
    refusal = capsys.readouterr().err
    assert "charged twice" in refusal
    assert first["analysis_id"] in refusal
    assert float(ledger.spent([0])[0]) == spent
    assert run([*words, "--analysis", first["analysis_id"], "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == first
    assert float(ledger.spent([0])[0]) == spent
    assert run([*words, "--again"]) == 0
    assert float(ledger.spent([0])[0]) == pytest.approx(2 * spent)
    # Another question, or the same at another price, is another one.
    capsys.readouterr()
    assert run([*words[:-4], "--epsilon", "0.25", *words[-2:]]) == 0
    assert run(["query", path, "count(x)", *words[3:]]) == 0


def test_a_chart_of_the_answer(tmp_path: Path) -> None:
    path = table_file(tmp_path)
    figure = tmp_path / "answer.svg"
    select = "SELECT floor(x / 2) AS band, count(*), avg(x) FROM t GROUP BY band"
    words = ["query", path, select, *WORDS, "--epsilon", "5", "--figure", str(figure)]
    assert run(words) == 0
    text = figure.read_text()
    assert "avg(x)" in text
    assert "count(*)" in text


def test_answers_as_tables() -> None:
    session = Session(even_table(), SCHEMA, seed=2)
    answer = session.ask(SELECT, epsilon=1.0, delta=1e-6)
    frame = answer.frame()
    assert frame.columns.tolist() == ["g", "statistic", "estimate", "low", "high", "part"]
    assert len(frame) == 2 * (6 + 4)
    means = frame[(frame["statistic"] == "avg(x)") & (frame["g"] == "a")]
    assert (means["low"] < means["estimate"]).all()
    rounded = answer.frame(rounded=True)
    counts = rounded[rounded["statistic"] == "count(*)"]
    assert (counts["estimate"] == counts["estimate"].round(0)).all()
    exact = frame[frame["statistic"] == "count(*)"]
    assert (counts["low"].to_numpy() <= exact["low"].to_numpy()).all()
    assert (counts["high"].to_numpy() >= exact["high"].to_numpy()).all()
    with pytest.raises(InputError, match="pandas"):
        answer.frame(library="arrow")


def test_answers_as_polars() -> None:
    polars = pytest.importorskip("polars", reason="needs polars")
    answer = Session(even_table(), SCHEMA, seed=2).ask("count() by g", epsilon=1.0, delta=0)
    assert isinstance(answer.frame(library="polars"), polars.DataFrame)


def test_margins_add_up_and_are_nearer_to_the_truth() -> None:
    """Over 40 draws of noise, consistent counts are non-negative, add up and err less."""
    schema = Schema(
        {"a": Categorical([*"uvw"]), "b": Categorical([*"xyz"])}, person="id", rows_per_person=1
    )
    rng = np.random.default_rng(8)
    frame = pd.DataFrame(
        {"id": range(300), "a": rng.choice([*"uv"], 300), "b": rng.choice([*"xy"], 300)}
    )
    errors = np.zeros(2)
    for seed in range(40):
        session = Session(frame, schema, seed=seed)
        answers = [
            session.ask(text, epsilon=0.1, delta=0)
            for text in ("count() by a, b", "count() by a", "count() by b", "count()")
        ]
        adjusted = answers[0].consistent(*answers[1:])
        cells = {(g["a"], g["b"]): g["estimate"] for g in adjusted[0].groups}
        assert min(cells.values()) >= 0
        for group in adjusted[1].groups:
            parts = sum(value for (a, _), value in cells.items() if a == group["a"])
            assert group["estimate"] == pytest.approx(parts, abs=1e-6)
        assert adjusted[3].groups[0]["estimate"] == pytest.approx(sum(cells.values()))
        truth = frame.groupby(["a", "b"]).size()
        for number, answer in enumerate((answers[0], adjusted[0])):
            errors[number] += sum(
                (g["estimate"] - truth.get((g["a"], g["b"]), 0)) ** 2 for g in answer.groups
            )
    assert errors[1] < 0.7 * errors[0]


def test_answers_are_made_consistent_in_whichever_order() -> None:
    """Where a column has one value, the finer answer has as many groups as the coarser one."""
    schema = Schema(
        {"g": Categorical(["a"]), "level": Categorical(["x", "y"])}, person="id", rows_per_person=1
    )
    frame = pd.DataFrame({"id": range(900), "g": "a", "level": ["x", "y", "y"] * 300})
    session = Session(frame, schema, seed=1)
    texts = ("count()", "count() by g", "count() by level", "count() by g, level")
    answers = [session.ask(text, epsilon=1.0, delta=0.0) for text in texts]
    for order in itertools.permutations(answers):
        adjusted = order[0].consistent(*order[1:])
        totals = [sum(group["estimate"] for group in answer.groups) for answer in adjusted]
        assert totals == pytest.approx([900.0] * 4, abs=30.0)
        assert max(totals) - min(totals) < 1e-6


@pytest.mark.parametrize("text", ["count() by level", "median(x) by level"])
def test_a_table_has_a_column_called_level(text: str) -> None:
    schema = Schema(
        {"level": Categorical(["x", "y"]), "x": Numeric(0, 9)}, person="id", rows_per_person=1
    )
    frame = pd.DataFrame({"id": range(90), "level": ["x", "y", "y"] * 30, "x": 3})
    answer = Session(frame, schema, seed=1).ask(text, epsilon=1.0, delta=0.0)
    assert answer.frame().columns.tolist() == ["level", "estimate", "low", "high"]
    assert answer.frame()["level"].tolist() == ["x", "y"]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("low", "count() by low"),
        ("part", "histogram(x, 2) by part"),
        ("statistic", "SELECT statistic, count(*), sum(x) FROM t GROUP BY statistic"),
    ],
)
def test_a_table_never_loses_a_group(name: str, text: str) -> None:
    schema = Schema(
        {name: Categorical(["x", "y"]), "x": Numeric(0, 9)}, person="id", rows_per_person=1
    )
    frame = pd.DataFrame({"id": range(90), name: ["x", "y", "y"] * 30, "x": 3})
    answer = Session(frame, schema, seed=1).ask(text, epsilon=1.0, delta=0.0)
    assert [group[name] for group in answer.groups] == ["x", "y"]
    with pytest.raises(InputError, match=f"column '{name}' of its own"):
        answer.frame()


def test_what_cannot_be_made_consistent_is_refused() -> None:
    session = Session(even_table(), SCHEMA, seed=2)
    mean = session.ask("mean(x) by g", epsilon=1.0, delta=1e-6)
    with pytest.raises(InputError, match="count or sum"):
        mean.consistent()
    groups = session.ask("count() by g", epsilon=1.0, delta=0)
    total = session.ask(
        "SELECT floor(x / 5) AS b, count(*) FROM t GROUP BY b", epsilon=1.0, delta=0
    )
    with pytest.raises(InputError, match="grouping columns"):
        groups.consistent(total)
    assert math.isfinite(groups.consistent()[0].groups[0]["estimate"])


@pytest.mark.parametrize(
    ("text", "other", "word"),
    [
        ("SELECT g, sum(x) / count(*) AS m FROM t GROUP BY g", None, "one count or sum"),
        ("SELECT g, count(*) FROM t GROUP BY g LIMIT 1", None, "all groups"),
        ("SELECT g, count(*) AS n FROM t GROUP BY g HAVING n > 5", None, "all groups"),
        ("count() by g", "count() where x > 5", "different rows"),
        ("sum(x) by g", "count()", "different rows"),
        ("SELECT g, sum(x) FROM t GROUP BY g", "SELECT sum(x * 2) FROM t", "different rows"),
    ],
)
def test_what_does_not_add_up_is_refused(text: str, other: str | None, word: str) -> None:
    """Each of these would be made to agree with something that it is not about."""
    pytest.importorskip("sqlglot", reason="needs the extra sql")
    session = Session(even_table(), SCHEMA, seed=2)
    texts = [text] if other is None else [text, other]
    first, *others = [session.ask(one, epsilon=1.0, delta=1e-6) for one in texts]
    with pytest.raises(InputError, match=word):
        first.consistent(*others)


def test_one_text_in_two_languages_adds_up() -> None:
    pytest.importorskip("sqlglot", reason="needs the extra sql")
    session = Session(even_table(), SCHEMA, seed=2)
    groups = session.ask("SELECT g, sum(x) FROM t GROUP BY g", epsilon=1.0, delta=1e-6)
    total = session.ask("sum(x)", epsilon=1.0, delta=1e-6)
    groups, total = groups.consistent(total)
    parts = sum(group["estimate"] for group in groups.groups)
    assert total.groups[0]["estimate"] == pytest.approx(parts)


def test_persons_of_several_groups_do_not_add_up() -> None:
    frame = even_table().assign(id=lambda table: table["id"] // 2)
    session = Session(frame, SCHEMA.declare(rows_per_person=2), seed=2)
    by_group = session.ask("count(persons) by g", epsilon=1.0, delta=1e-6)
    with pytest.raises(InputError, match="several groups"):
        by_group.consistent(session.ask("count(persons)", epsilon=1.0, delta=1e-6))


def test_an_answer_without_groups_is_no_equation() -> None:
    groups: list[Json] = [
        {"town": "A", "estimate": 3.0, "interval": [1.0, 5.0]},
        {"town": "B", "estimate": -2.0, "interval": [-4.0, 0.0]},
    ]
    question = "count() by town"
    adjusted, empty = make_consistent([(question, groups), (question, [])])
    assert [group["estimate"] for group in adjusted] == [3.0, 0.0]
    assert empty == []
    with pytest.raises(InputError, match="no answer has a group"):
        make_consistent([(question, []), (question, [])])
