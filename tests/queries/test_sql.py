"""Questions in SQL: what they mean, what is refused, and what several statistics cost."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from apiece.cli import run
from apiece.datasets import Boolean, Categorical, Date, Numeric, Schema, Text
from apiece.errors import DataError, InputError
from apiece.filters.convert import gaussian_mu
from apiece.ledger import Ledger
from apiece.queries import Session, query_cost, register
from apiece.queries.declarations import Declarations
from apiece.queries.fields import is_sql
from apiece.queries.grammar import parse
from apiece.queries.parts import make_parts
from apiece.queries.question import resolve
from apiece.queries.sql import parse_statement

pytest.importorskip("sqlglot", reason="needs the extra sql")
SCHEMA = Schema(
    {
        "x": Numeric(0, 10),
        "y": Numeric(-5, 5),
        "town": Categorical(["A", "B"]),
        "ill": Boolean(),
        "day": Date("2024-01-01", "2024-03-31"),
        "note": Text(),
    },
    person="id",
    rows_per_person=2,
)
DECLARATIONS = Declarations.from_schema(SCHEMA)
SMALL = Schema(SCHEMA.columns, person="id", rows_per_person=1)


@pytest.mark.parametrize(
    ("sql", "short"),
    [
        ("SELECT count(*) FROM t", "count()"),
        ("select COUNT(1) from t;", "count()"),
        ("SELECT count(x) FROM t WHERE x > 3", "count(x) where x > 3"),
        ("SELECT count(DISTINCT id) FROM t", "count(persons)"),
        ("SELECT town, avg(x) FROM t GROUP BY town", "mean(x) by town"),
        ("SELECT t.town, avg(t.x) FROM people AS t GROUP BY 1", "mean(x) by town"),
        ("SELECT sum(x) FROM t WHERE NOT (town = 'A' OR ill)", None),
        ("SELECT sum(x) FROM t WHERE town <> 'A' AND x IS NOT NULL",
         "sum(x) where town <> 'A' and not x is null"),
        ("SELECT median(x) FROM t WHERE 3 < x", "median(x) where x > 3"),
        ("SELECT quantile_cont(x, [0.25, 0.75]) FROM t", "quantile(x, .25, .75)"),
        ("SELECT percentile_cont(0.9) WITHIN GROUP (ORDER BY x) FROM t", "quantile(x, .9)"),
        ("SELECT var_pop(x) FROM t", "variance(x)"),
        ("SELECT covar_pop(x, y) FROM t", "covariance(x, y)"),
        ("SELECT histogram(x, 5) FROM t WHERE town IN ('A', 'B')",
         "histogram(x, 5) where town in ('A', 'B')"),
        ("SELECT count(*) FROM t WHERE x BETWEEN 2 AND 3", "count() where x >= 2 and x <= 3"),
        ("SELECT count(*) FROM t WHERE day >= DATE '2024-02-01'", None),
        ('SELECT avg("x") FROM "my table"', "mean(x)"),
        ("-- how many?\nSELECT count(*) FROM t", "count()"),
    ],
)  # fmt: skip
def test_a_select_is_the_question_of_the_short_form(sql: str, short: str | None) -> None:
    assert is_sql(sql)
    (query,) = parse_statement(sql).queries
    question = resolve(query, DECLARATIONS)
    if short is None:
        return
    other = resolve(parse(short), DECLARATIONS)
    parts = ("measures", "where", "groups", "bins", "persons", "rows", "shape")
    for part in parts:
        assert getattr(question, part) == getattr(other, part), part


@pytest.mark.parametrize(
    ("sql", "words"),
    [
        ("SELECT * FROM t", ["rows are never shown"]),
        ("SELECT town FROM t", ["GROUP BY town"]),
        ("SELECT DISTINCT ON (town) town FROM t", []),
        ("SELECT avg(x) FROM t JOIN u ON t.id = u.id", ["JOIN"]),
        ("SELECT avg(x) FROM (SELECT * FROM t)", ["SUBQUERY"]),
        ("SELECT avg(x) FROM t WHERE x > (SELECT avg(x) FROM t)", ["SUBQUERY"]),
        ("SELECT avg(x) OVER (PARTITION BY town) FROM t", ["WINDOW"]),
        ("SELECT count(*) FROM t UNION SELECT count(*) FROM t", ["UNION", "one SELECT"]),
        ("WITH a AS (SELECT 1) SELECT count(*) FROM a", ["WITH"]),
        ("SELECT string_agg(note, ',') FROM t", ["texts of rows"]),
        ("SELECT avgg(x) FROM t", ["'avgg'", "did you mean 'avg'"]),
        ("SELECT mode(town) FROM t", ["MODE", "LIMIT 1"]),
        ("SELECT count(*) FROM t WHERE day > CURRENT_DATE", ["CURRENT DATE", "DATE '2024-01-31'"]),
        ("SELECT count(*) FROM t WHERE random() < 0.5", ["RAND"]),
        ("SELECT count(*) FROM t WHERE regexp_matches(note, 'a')", ["LIKE"]),
        ("SELECT coalesce(sum(x), 0) FROM t", ["by itself"]),
        ("SELECT sum(x) / y FROM t", []),
        ("SELECT sum(x) / count(*) FROM t HAVING count(*) > 3", []),
        ("SELECT town, sum(x) / count(*) FROM t GROUP BY town ORDER BY count(*)", ["select it"]),
        ("SELECT round(sum(x), 99) FROM t", ["digits"]),
        ("SELECT avg(sum(x)) FROM t", ["statistic of a statistic"]),
        ("SELECT count(*) FROM t; SELECT count(*) FROM t", ["2 statements"]),
        ("DELETE FROM t", []),
        ("SELECT", ["without FROM"]),
        ("SELECT avg(x FROM t", ["cannot read the SQL"]),
        ("SELECT avg(x)", ["FROM"]),
        ("SELECT count(*) FROM t GROUP BY 3", ["1 columns"]),
        ("SELECT town, count(*) FROM t GROUP BY ROLLUP (town)", ["GROUP BY"]),
        ("SELECT count(*), count(*) FROM t", ["twice", "AS"]),
        ("SELECT count(*) AS town, town FROM t GROUP BY town", ["twice"]),
        ("SELECT avg(x) FROM t ORDER BY 1", ["no GROUP BY"]),
        ("SELECT town, avg(x) FROM t GROUP BY town HAVING count(*) > 3", ["not selected"]),
        ("SELECT quantile(x, 2) FROM t", ["(0, 1)"]),
        ("SELECT EXTRACT(century FROM day), count(*) FROM t GROUP BY 1", ["'century'"]),
        ("SELECT corr(x, x) FROM t", ["itself"]),
        ("SELECT count(*) FROM read_csv('/etc/passwd')", []),
        ("SELECT count(*) FROM t WHERE note = $1", []),
        ("SELECT " + "(" * 200 + "x" + ")" * 200 + " FROM t", ["nested more than 50"]),
        ("SELECT " + ", ".join(f"sum(x + {k})" for k in range(21)) + " FROM t", ["at most 20"]),
    ],
)
def test_what_is_not_answered_is_refused_by_its_name(sql: str, words: list[str]) -> None:
    with pytest.raises(InputError) as caught:
        query_cost(sql, SCHEMA, epsilon=1.0, delta=1e-6)
    message = str(caught.value)
    assert "\n" not in message
    assert "\x1b" not in message
    for word in words:
        assert word in message


def test_all_that_is_missing_is_said_at_once() -> None:
    schema = Schema({}, person="id")
    sql = "SELECT grade, avg(pay / 12), year(hired) FROM t WHERE lower(unit) = 'it' GROUP BY 1, 3"
    with pytest.raises(DataError) as caught:
        query_cost(sql, schema, epsilon=1.0, delta=1e-6)
    message = str(caught.value)
    for word in ("bounds of 'pay'", "values of 'grade'", "'hired'", "'unit'", "rows a person"):
        assert word in message


def table_of(rows: int) -> pd.DataFrame:
    """Persons for each way to bring so many rows, at the bounds and between."""
    cells = [
        (x, y, town, ill)
        for x in (0.0, 10.0, None)
        for y in (-5.0, 5.0)
        for town in "AB"
        for ill in (True, False)
    ]
    frame = []
    number = 0
    for first in cells:
        for second in cells if rows > 1 else [first]:
            frame += [(number, *row, "2024-01-15", "n") for row in [first, second][:rows]]
            number += 1
    return pd.DataFrame(frame, columns=["id", "x", "y", "town", "ill", "day", "note"])


SELECTS = [
    "SELECT count(*), avg(x), stddev(y) FROM t",
    "SELECT town, sum(x * y), count(DISTINCT id), corr(x, y) FROM t GROUP BY town",
    "SELECT count(DISTINCT town), avg(ill) FROM t",
    "SELECT median(x), avg(x), histogram(y, 4) FROM t WHERE x + y > -9",
    "SELECT floor(x / 4) AS b, count(*), max(y) FROM t GROUP BY b",
]
PURE = [
    "SELECT count(*), sum(x), median(y) FROM t",
    "SELECT town, count(DISTINCT id), count(*) FROM t GROUP BY town",
    "SELECT count(DISTINCT town), sum(CASE WHEN x > 3 THEN 1 END) FROM t",
]


@pytest.mark.parametrize("rows", [1, 2])
@pytest.mark.parametrize(
    ("sql", "delta"), [*((s, 1e-6) for s in SELECTS), *((s, 0.0) for s in PURE)]
)
def test_the_widest_person_is_charged_at_most_the_promise(
    sql: str, delta: float, rows: int, tmp_path: Path
) -> None:
    """Every person of a table of the widest ones; the largest charge is near the promise."""
    schema = Schema(SCHEMA.columns, person="id", rows_per_person=rows)
    frame = table_of(rows)
    ledger = Ledger.open(f"sqlite:///{tmp_path}/p.db")
    people = list(dict.fromkeys(frame["id"].tolist()))
    ledger.enroll(people, 50.0, 1e-4)
    session = Session(frame, schema, ledger, seed=1)
    session.ask(sql, epsilon=0.5, delta=delta, analysis_id="a")
    cost = query_cost(sql, schema, epsilon=0.5, delta=delta)
    spent = np.asarray(ledger.spent(people))
    assert spent.max() <= cost.mu**2 * (1 + 1e-9)
    assert spent.max() >= 0.5 * cost.mu**2
    if delta:
        assert cost.mu <= float(gaussian_mu(0.5, delta)) * (1 + 1e-9)


def test_parts_of_a_request_add_up_to_its_budget() -> None:
    questions = [resolve(q, DECLARATIONS) for q in parse_statement(SELECTS[3]).queries]
    for shares in (None, [1.0, 2.0, 3.0]):
        parts = make_parts(questions, 0.7, 1e-6, shares)
        total = math.hypot(*(part.largest_mu for part in parts))
        assert 0.999 * float(gaussian_mu(0.7, 1e-6)) < total <= float(gaussian_mu(0.7, 1e-6))
    pure = [resolve(q, DECLARATIONS) for q in parse_statement(PURE[0]).queries]
    parts = make_parts(pure, 0.7, 0.0, [1.0, 2.0, 1.0])
    assert 0.7 * (1 - 1e-9) < sum(part.epsilon for part in parts) <= 0.7


def test_shares_are_those_that_are_asked_for() -> None:
    sql = "SELECT sum(x), sum(y) FROM t"
    frame = pd.DataFrame({"id": range(2000), "x": 3.0, "y": 1.0, "town": "A", "ill": True})
    frame["day"] = "2024-01-02"
    frame["note"] = "n"
    table = register(frame, SMALL)
    widths = {}
    for split in ([9.0, 1.0], [1.0, 9.0]):
        answer = Session(table, SMALL, seed=2).ask(sql, epsilon=1.0, delta=1e-6, split=split)
        first, second = answer.groups[0]["statistics"].values()
        widths[split[0]] = [e["interval"][1] - e["interval"][0] for e in (first, second)]
    assert widths[9.0][0] == pytest.approx(widths[1.0][0] / 3, rel=1e-6)
    assert widths[9.0][1] == pytest.approx(widths[1.0][1] * 3, rel=1e-6)
    with pytest.raises(InputError, match="2 statistics; give one each"):
        query_cost(sql, SMALL, epsilon=1.0, delta=1e-6, split=[1.0])


def test_by_default_every_sum_has_the_same_noise() -> None:
    questions = [
        resolve(q, DECLARATIONS)
        for q in parse_statement("SELECT count(*), avg(x), stddev(y), sum(x) FROM t").queries
    ]
    scales = [part.scale for part in make_parts(questions, 1.0, 1e-6)]
    assert scales == pytest.approx([scales[0]] * 4, rel=1e-5)


def test_who_cannot_pay_is_in_no_statistic(tmp_path: Path) -> None:
    frame = pd.DataFrame({"id": range(400), "x": [float(k % 2 * 10) for k in range(400)]})
    schema = Schema({"x": Numeric(0, 10)}, person="id", rows_per_person=1)
    ledger = Ledger.open(f"sqlite:///{tmp_path}/p.db")
    # Those with x = 10 can pay; the others cannot.
    ledger.enroll(range(400), [20.0 if k % 2 else 1e-3 for k in range(400)], 1e-6)
    session = Session(frame, schema, ledger, seed=1)
    sql = "SELECT count(*) AS n, avg(x) AS m FROM t"
    answer = session.ask(sql, epsilon=10.0, delta=1e-6, analysis_id="a")
    statistics = answer.groups[0]["statistics"]
    assert statistics["n"]["estimate"] == pytest.approx(200, abs=5)
    assert statistics["m"]["estimate"] > 9.5
    again = session.ask(sql, epsilon=10.0, delta=1e-6, analysis_id="a")
    assert again.groups == answer.groups


def test_distinct_values_are_those_that_somebody_has(tmp_path: Path) -> None:
    schema = Schema(
        {"v": Categorical([str(k) for k in range(50)]), "g": Categorical(["a", "b"])},
        person="id",
        rows_per_person=3,
    )
    frame = pd.DataFrame({"id": np.arange(300) // 3, "v": (np.arange(300) % 30).astype(str)})
    frame["g"] = np.where(np.arange(300) % 30 < 10, "a", "b")
    session = Session(frame, schema, seed=4)
    whole = session.ask("SELECT count(DISTINCT v) FROM t", epsilon=1e5, delta=0)
    assert whole.groups[0]["estimate"] == pytest.approx(30, abs=0.01)
    assert whole.counted == "values"
    groups = session.ask("SELECT g, count(DISTINCT v) FROM t GROUP BY g", epsilon=1e5, delta=0)
    assert [g["estimate"] for g in groups.groups] == pytest.approx([10, 20], abs=0.01)


def test_a_person_moves_a_count_of_distinct_values_by_at_most_the_charge(tmp_path: Path) -> None:
    """Of each of 40 persons: their own values lacking, the count falls by at most the charge."""
    rng = np.random.default_rng(1)
    schema = Schema({"v": Categorical([str(k) for k in range(60)])}, person="id", rows_per_person=4)
    frame = pd.DataFrame(
        {"id": rng.integers(0, 40, 120), "v": rng.integers(0, 60, 120).astype(str)}
    )
    sql = "SELECT count(DISTINCT v) FROM t"
    question = resolve(parse_statement(sql).queries[0], Declarations.from_schema(schema))
    table = register(frame, schema)
    with table.contributions(question, 1.0) as held:
        ids, norms = held.norms(1)
        everybody = sum(count > 0 for (count,) in held.totals(None).values())
    assert norms.max() <= 4 * (1 + 1e-9)
    for person, norm in zip(ids.to_pylist(), norms, strict=True):
        others = register(frame[frame["id"] != int(person)], schema)
        with others.contributions(question, 1.0) as held:
            without = sum(count > 0 for (count,) in held.totals(None).values())
        assert 0 <= everybody - without <= norm
        others.close()


def test_groups_are_ordered_and_chosen_by_noisy_numbers() -> None:
    schema = Schema({"v": Categorical([*"abcd"])}, person="id", rows_per_person=1)
    frame = pd.DataFrame(
        {"id": range(1000), "v": ["a"] * 100 + ["b"] * 400 + ["c"] * 300 + ["d"] * 200}
    )
    session = Session(frame, schema, seed=4)
    sql = "SELECT v, count(*) AS n FROM t GROUP BY v HAVING count(*) > 150 ORDER BY n DESC LIMIT 2"
    answer = session.ask(sql, epsilon=10.0, delta=0)
    assert [group["v"] for group in answer.groups] == ["b", "c"]
    sql = "SELECT v AS letter, count(*) FROM t GROUP BY letter ORDER BY letter DESC"
    answer = session.ask(sql, epsilon=10.0, delta=0)
    assert [group["letter"] for group in answer.groups] == ["d", "c", "b", "a"]


def test_min_and_max_say_which_quantiles_they_are() -> None:
    schema = Schema({"x": Numeric(0, 100)}, person="id", rows_per_person=1)
    frame = pd.DataFrame({"id": range(5000), "x": np.linspace(20, 70, 5000)})
    session = Session(frame, schema, seed=4)
    group = session.ask("SELECT max(x) FROM t", epsilon=1.0, delta=0).groups[0]
    assert group["level"] == 0.99
    assert group["estimate"] == pytest.approx(69.5, abs=1)
    assert group["rank_margin"] < 100


def test_the_command_answers_a_select(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    frame = pd.DataFrame(
        {"id": range(500), "pay": 2400.0, "seen": ["2024-01-10", "2024-02-20"] * 250}
    )
    frame.to_csv(tmp_path / "t.csv", index=False)
    words = [
        "query", str(tmp_path / "t.csv"),
        "SELECT month(seen) AS m, avg(pay / 12), count(*) FROM t WHERE year(seen) = 2024 "
        "GROUP BY m LIMIT 2",
        "--person", "id", "--rows-per-person", "1", "--bounds", "pay=0:12000",
        "--bounds", "seen=2024-01-01:2024-12-31", "--epsilon", "50", "--delta", "1e-6",
        "--split", "1,1",
    ]  # fmt: skip
    assert run([*words, "--json"]) == 0
    document: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert [group["m"] for group in document["groups"]] == [1, 2]
    assert document["groups"][0]["statistics"]["avg(pay / 12)"]["estimate"] == pytest.approx(
        200, abs=5
    )
    assert run(words) == 0
    assert "m=1  count(*)  2" in capsys.readouterr().out
    assert run([*words[:-1], "1,b"]) == 2
    assert "--split 2,1,1" in capsys.readouterr().err
    assert run([*words, "--cost"]) == 0
    assert "nobody more than (50, 1e-06)" in capsys.readouterr().out


def test_arithmetic_is_of_noisy_numbers() -> None:
    """Each statistic is asked once, intervals cover, and a division by 0 has no number."""
    frame = pd.DataFrame({"id": range(1000), "x": 4.0, "y": [1.0, -1.0] * 500, "town": "A"})
    frame["ill"] = [True, False, False, False] * 250
    frame["day"] = "2024-01-02"
    frame["note"] = "n"
    table = register(frame, SMALL)
    sql = (
        "SELECT town, 100.0 * count(*) FILTER (WHERE ill) / count(*) AS rate, count(*) AS n, "
        "round(sum(x) / count(*), 1) AS mean, -count(*) AS less, "
        "count(*) / (count(*) - count(*)) AS z FROM t GROUP BY town ORDER BY rate DESC"
    )
    statement = parse_statement(sql)
    assert len(statement.queries) == 3
    answer = Session(table, SMALL, seed=3).ask(sql, epsilon=100.0, delta=1e-6)
    groups = {group["town"]: group["statistics"] for group in answer.groups}
    statistics = groups["A"]
    assert statistics["rate"]["estimate"] == pytest.approx(25, abs=0.1)
    assert statistics["mean"]["estimate"] == 4.0
    assert statistics["less"]["estimate"] == -statistics["n"]["estimate"]
    assert statistics["z"] == {"estimate": None}
    assert answer.frame().shape[0] == 2 * 5
    plain = Session(table, SMALL, seed=3).ask("SELECT count(*) FROM t", epsilon=1.0, delta=0)
    assert "statistics" not in plain.groups[0]
    single = Session(table, SMALL, seed=3).ask(
        "SELECT sum(x) / count(*) FROM t", epsilon=9.0, delta=0
    )
    assert single.groups[0]["estimate"] == pytest.approx(4, abs=0.1)


def test_conditions_that_differ_in_a_late_digit_are_two() -> None:
    """A condition in an expression is told from another by all digits of its numbers."""
    schema = Schema({"pay": Numeric(0, 2e6)}, person="id", rows_per_person=1)
    frame = pd.DataFrame({"id": range(500), "pay": 1234567.25})
    answer = Session(frame, schema, seed=2).ask(
        "SELECT sum(CASE WHEN pay > 1234567.125 THEN 1 ELSE 0 END) AS low, "
        "sum(CASE WHEN pay > 1234567.5 THEN 1 ELSE 0 END) AS high FROM t",
        epsilon=100.0,
        delta=1e-6,
    )
    statistics = answer.groups[0]["statistics"]
    assert statistics["low"]["estimate"] == pytest.approx(500, abs=1)
    assert statistics["high"]["estimate"] == pytest.approx(0, abs=1)


@pytest.mark.parametrize(
    "text",
    [
        'SELECT avg("a + b"), avg(a + b) AS e FROM t',
        'SELECT avg(a + b) AS e, avg("a + b") FROM t',
        'SELECT floor(a / 5), avg("floor(a / 5)") FROM t GROUP BY floor(a / 5)',
    ],
)
def test_a_column_that_is_called_as_an_expression_is_another(text: str) -> None:
    bounds = Numeric(0, 100)
    names = ("a", "b", "a + b", "floor(a / 5)")
    schema = Schema(dict.fromkeys(names, bounds), person="id", rows_per_person=1)
    frame = pd.DataFrame({"id": range(500), **dict(zip(names, (1, 2, 50, 70), strict=True))})
    session = Session(frame, schema, seed=2)
    with pytest.raises(InputError, match="written alike"):
        session.ask(text, epsilon=10.0, delta=1e-6)
    for single, mean in (("a + b", 3), ('"a + b"', 50)):
        answer = session.ask(f"SELECT avg({single}) FROM t", epsilon=100.0, delta=1e-6)
        assert answer.groups[0]["estimate"] == pytest.approx(mean, abs=1)


def test_the_interval_of_a_ratio_covers() -> None:
    frame = pd.DataFrame(
        {"id": range(600), "x": 4.0, "y": 1.0, "town": "A", "ill": [True, False] * 300}
    )
    frame["day"] = "2024-01-02"
    frame["note"] = "n"
    table = register(frame, SMALL)
    covered = 0
    for seed in range(120):
        answer = Session(table, SMALL, seed=seed).ask(
            "SELECT count(*) FILTER (WHERE ill) / count(*) FROM t", epsilon=0.5, delta=1e-6
        )
        low, high = answer.groups[0]["interval"]
        covered += low <= 0.5 <= high
    # Of 120 runs at 95 %, 105 or more but for one time in ten thousand.
    assert covered >= 105
