"""Bounds that differ by group: each group clamped, scaled and answered by its own."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from apiece.cli import run
from apiece.datasets import Categorical, Numeric, Schema, read_schema
from apiece.errors import DataError, InputError
from apiece.ledger import Ledger
from apiece.queries import Session, query_cost, question, register
from apiece.queries.declarations import Declarations
from apiece.queries.grammar import parse
from apiece.queries.question import Measure, resolve

BY_JOB = {"job": {"clerk": (0, 5e4), "cook": (1e4, 3e4)}}
ENDS = {"chief": (0, 5e5), "clerk": (0, 5e4), "cook": (1e4, 3e4)}
SCHEMA = Schema(
    {
        "pay": Numeric(0, 5e5, by_group=BY_JOB),
        "age": Numeric(0, 100),
        "job": Categorical(["chief", "clerk", "cook"]),
    },
    person="id",
    rows_per_person=1,
)
PLAIN = SCHEMA.declare({"pay": Numeric(0, 5e5)})


@pytest.fixture(scope="module")
def people() -> pd.DataFrame:
    """Some pay is beyond the bounds of its group, and some of no declared group."""
    rng = np.random.default_rng(0)
    job = rng.choice([*ENDS, "other"], 3000)
    pay = np.where(job == "chief", rng.uniform(0, 6e5, 3000), rng.uniform(-1e3, 6e4, 3000))
    age = rng.uniform(0, 100, 3000)
    return pd.DataFrame({"id": range(3000), "job": job, "pay": pay, "age": age})


def clamp(people: pd.DataFrame) -> pd.DataFrame:
    """Return people of declared groups, with pay clamped to its group's bounds."""
    known = people[people["job"].isin(list(ENDS))]
    low = known["job"].map({job: ends[0] for job, ends in ENDS.items()})
    high = known["job"].map({job: ends[1] for job, ends in ENDS.items()})
    return known.assign(pay=known["pay"].clip(low, high))


EXACT = {
    "sum(pay)": lambda group: group["pay"].sum(),
    "mean(pay)": lambda group: group["pay"].mean(),
    "variance(pay)": lambda group: group["pay"].var(ddof=0),
    "covariance(pay, age)": lambda group: group["pay"].cov(group["age"], ddof=0),
    "covariance(age, pay)": lambda group: group["pay"].cov(group["age"], ddof=0),
    "median(pay)": lambda group: group["pay"].median(),
}


@pytest.mark.parametrize("statistic", EXACT)
def test_an_answer_is_of_values_clamped_by_group(people: pd.DataFrame, statistic: str) -> None:
    check_statistic(people, statistic)


def check_statistic(people: pd.DataFrame, statistic: str) -> None:
    """Compare an answer at next to no noise with what pandas says."""
    answer = Session(people, SCHEMA, seed=1).ask(f"{statistic} by job", epsilon=400, delta=1e-3)
    exact = clamp(people).groupby("job").apply(EXACT[statistic], include_groups=False)
    for group in answer.groups:
        assert group["estimate"] == pytest.approx(exact[group["job"]], rel=0.02, abs=300)


def test_sql_and_other_statistics(people: pd.DataFrame) -> None:
    pytest.importorskip("sqlglot", reason="needs the extra sql")
    answer = Session(people, SCHEMA, seed=1).ask(
        "SELECT job, avg(pay) AS pay, corr(pay, age) AS r, count(*) AS n FROM t WHERE age > 20 "
        "GROUP BY job", epsilon=900, delta=1e-3,
    )  # fmt: skip
    known = clamp(people)
    known = known[known["age"] > 20]
    for group in answer.groups:
        rows = known[known["job"] == group["job"]]
        numbers = {name: part["estimate"] for name, part in group["statistics"].items()}
        assert numbers["pay"] == pytest.approx(rows["pay"].mean(), rel=0.01)
        assert numbers["r"] == pytest.approx(rows["pay"].corr(rows["age"]), abs=0.02)
        assert numbers["n"] == pytest.approx(len(rows), abs=2)


def test_noise_is_that_of_the_groups_own_bounds(people: pd.DataFrame) -> None:
    session = Session(people, SCHEMA, seed=1)
    widths = {
        group["job"]: (group["interval"][1] - group["interval"][0]) / 2
        for group in session.ask("sum(pay) by job", epsilon=1.0, delta=1e-6).groups
    }
    assert widths["chief"] / widths["clerk"] == pytest.approx(10)
    assert widths["clerk"] / widths["cook"] == pytest.approx(5 / 3)
    # The whole question costs what it cost, and its widest group has the width of before.
    cost = query_cost("sum(pay) by job", SCHEMA, epsilon=1.0, delta=1e-6)
    plain = query_cost("sum(pay) by job", PLAIN, epsilon=1.0, delta=1e-6)
    assert cost.mu == plain.mu
    (width,) = cost.widths.values()
    assert width.margin == pytest.approx(widths["chief"])


@pytest.mark.parametrize(
    "statistic", ["sum(pay)", "mean(pay)", "variance(pay)", "covariance(pay, age)"]
)
def test_nobody_adds_more_than_the_noise_is_for(statistic: str) -> None:
    """Enumerated: the worst values in every group, against the sensitivity of the question."""
    worst = [-1e70, -5e5, 0.0, 1e4, 2e4, 3e4, 5e4, 5e5, 1e70, float("nan")]
    rows = [(job, pay, age) for job in [*ENDS, "other"] for pay in worst for age in (0.0, 100.0)]
    frame = pd.DataFrame(rows, columns=["job", "pay", "age"]).assign(id=range(len(rows)))
    asked = resolve(parse(f"{statistic} by job"), Declarations.from_schema(SCHEMA))
    grid = 2.0**-24
    with register(frame, SCHEMA).contributions(asked, grid) as contributions:
        ids, norms = contributions.norms(2)
    norm, steps = asked.sensitivity(2)
    assert len(ids) == sum(job in ENDS and pay == pay for job, pay, _ in rows)
    assert (norms * grid <= norm + steps * grid + 1e-9).all()
    assert norms.max() * grid == pytest.approx(norm, rel=1e-6)


def test_each_pays_by_their_groups_bounds(tmp_path: Path) -> None:
    frame = pd.DataFrame({"id": ["a", "b"], "job": ["clerk", "chief"], "pay": [5e4, 5e4]})
    schema = Schema(
        {"pay": Numeric(0, 5e5, by_group=BY_JOB), "job": Categorical([*ENDS])},
        person="id", rows_per_person=1,
    )  # fmt: skip
    ledger = Ledger.make(f"{tmp_path}/p.db", ["a", "b"], 5.0, 1e-5)
    Session(frame, schema, ledger).ask("sum(pay) by job", epsilon=1.0, delta=1e-6)
    clerk, chief = np.asarray(ledger.spent(["a", "b"]))
    # The clerk's pay is all of their bound, and a tenth of the chief's.
    assert clerk == pytest.approx(100 * chief, rel=1e-5)


def test_without_the_grouping_the_columns_own_bounds_hold(people: pd.DataFrame) -> None:
    answer = Session(people, SCHEMA, seed=1).ask("mean(pay)", epsilon=400, delta=1e-3)
    assert answer.groups[0]["estimate"] == pytest.approx(
        people["pay"].clip(0, 5e5).mean(), rel=0.01
    )


def test_a_planted_estimate_by_the_columns_bounds_is_found(
    people: pd.DataFrame, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        question._BoundsByGroup, "find_measure", lambda self, _, name: Measure(name, *self.whole)
    )
    with pytest.raises(AssertionError):
        check_statistic(people, "mean(pay)")


def test_a_ledger_compares_them(people: pd.DataFrame, tmp_path: Path) -> None:
    ours, plain = (Declarations.from_schema(schema).terms for schema in (SCHEMA, PLAIN))
    assert ours != plain
    assert "group_bounds" not in plain


@pytest.mark.parametrize(
    ("by_group", "word"),
    [
        ({"job": {"clerk": (0, 6e5)}}, "not within"),
        ({"job": {"clerk": (5, 5)}}, "not within"),
        ({"job": {"clerk": 5}}, "low and high"),
        ({"job": {"clerk": (0, float("nan"))}}, "finite"),
        ({"job": {"clerk": (0, 1)}, "age": {1: (0, 1)}}, "one column"),
    ],
)
def test_what_are_no_bounds_of_groups_is_refused(by_group: Any, word: str) -> None:
    with pytest.raises(DataError, match=word):
        Numeric(0, 5e5, by_group=by_group)


@pytest.mark.parametrize(
    ("by_group", "word"),
    [
        ({"job": {"nurse": (0, 1)}}, "nurse"),
        ({"town": {"Bonn": (0, 1)}}, "not declared"),
        ({"job": {"clerk": (0, 1), " clerk": (0, 2)}}, "two"),
    ],
)
def test_groups_that_nobody_declared_are_refused(by_group: Any, word: str) -> None:
    schema = SCHEMA.declare({"pay": Numeric(0, 5e5, by_group=by_group)})
    with pytest.raises(InputError, match=word):
        Declarations.from_schema(schema)


def test_a_file_and_a_registered_table_keep_them(people: pd.DataFrame, tmp_path: Path) -> None:
    path = tmp_path / "schema.toml"
    path.write_text(
        "[columns.pay]\nkind = 'numeric'\nlower = 0\nupper = 500000\n"
        "[columns.pay.by_group.job]\nclerk = [0, 50000]\ncook = [10000, 30000]\n"
    )
    assert read_schema(path).columns["pay"] == SCHEMA.columns["pay"]
    assert Schema.from_dict(json.loads(json.dumps(SCHEMA.to_dict())), "s").columns == SCHEMA.columns
    folder = tmp_path / "people.apiece"
    register(people, SCHEMA, folder=folder)
    answer = Session(str(folder), seed=1).ask("mean(pay) by job", epsilon=400, delta=1e-3)
    exact = clamp(people).groupby("job")["pay"].mean()
    assert answer.groups[1]["estimate"] == pytest.approx(exact["clerk"], rel=0.01)


def test_the_command_declares_them(
    people: pd.DataFrame, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "people.csv"
    people.to_csv(path, index=False)
    words = ["query", str(path), "mean(pay) by job", "--person", "id", "--rows-per-person", "1",
             "--values", "job=chief,clerk,cook", "--epsilon", "400", "--delta", "1e-3", "--json",
             "--bounds", "pay[job=clerk]=0:50000", "--bounds", "pay[job=cook]=1e4:3e4"]  # fmt: skip
    assert run([*words, "--bounds", "pay=0:500000"]) == 0
    groups = json.loads(capsys.readouterr().out)["groups"]
    exact = clamp(people).groupby("job")["pay"].mean()
    for group in groups:
        assert group["estimate"] == pytest.approx(exact[group["job"]], rel=0.01)
    assert run(words) == 2
    assert "pay=LOW:HIGH" in capsys.readouterr().err
