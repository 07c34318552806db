"""The page of an answer: its table, its charts, its promise, and only what is released."""

from __future__ import annotations

import re

import pandas as pd
import pytest

import apiece
from apiece.datasets import Categorical, Numeric, Schema
from apiece.errors import InputError
from apiece.queries import Session

SCHEMA = Schema(
    {"town": Categorical(["<b>Bonn</b>", "Jena"]), "age": Numeric(0, 100)},
    person="id", rows_per_person=1,
)  # fmt: skip


@pytest.fixture(scope="module")
def session() -> Session:
    """A table of 900 people in two towns, one of which is written to break a page."""
    towns = ["<b>Bonn</b>", "Jena", "Jena"] * 300
    people = pd.DataFrame({"id": range(900), "town": towns, "age": [20, 40, 60] * 300})
    return Session(people, SCHEMA, seed=4)


def test_a_page_has_the_rounded_numbers_and_the_promise(session: Session) -> None:
    answer = session.ask("mean(age) by town", epsilon=1.0, delta=1e-6)
    html = apiece.report(answer).html
    text = re.sub(r"<[^>]*>", " ", html)
    for row in answer.frame(rounded=True).to_dict("records"):
        for name in ("estimate", "low", "high"):
            assert f"{row[name]:,.12g}" in text
    assert answer.guarantee in text
    assert answer.analysis_id in text
    assert "right about at most 732" in text
    # One chart, of both towns.
    assert html.count("<svg") == 1
    assert "Jena" in html[html.index("<svg") :]


def test_names_from_the_data_are_escaped(session: Session) -> None:
    html = apiece.report(session.ask("count() by town", epsilon=1.0, delta=0)).html
    assert "<b>Bonn" not in html
    assert "&lt;b&gt;Bonn" in html


def test_the_same_answer_has_the_same_page_in_both_editions(session: Session) -> None:
    answer = session.ask("histogram(age, 4)", epsilon=1.0, delta=0, analysis_id="a")
    pages = {apiece.report(answer, edition=edition).html for edition in ("internal", "public")}
    assert len(pages) == 1
    with pytest.raises(InputError, match="levels"):
        apiece.report(answer, levels="low=1")


def test_several_statistics_have_a_chart_each(session: Session) -> None:
    pytest.importorskip("sqlglot", reason="needs the extra sql")
    answer = session.ask(
        "SELECT town, avg(age) AS age, count(*) AS people FROM t GROUP BY town",
        epsilon=1.0, delta=1e-6,
    )  # fmt: skip
    html = apiece.report(answer).html
    assert html.count("<svg") == 2
    for name in ("age of each group", "people of each group"):
        assert name in html


def test_found_values_are_a_list(session: Session) -> None:
    pytest.importorskip("sqlglot", reason="needs the extra sql")
    answer = session.ask("SELECT DISTINCT town FROM t", epsilon=2.0, delta=1e-5)
    html = apiece.report(answer).html
    assert "Jena</td>" in html
    assert "<svg" not in html
    nobody = session.ask("SELECT DISTINCT town FROM t WHERE age > 90", epsilon=2.0, delta=1e-9)
    assert "No group is shown" in apiece.report(nobody).html


def test_more_numbers_than_a_chart_shows_are_in_the_table(session: Session) -> None:
    answer = session.ask("histogram(age, 61)", epsilon=1.0, delta=0)
    html = apiece.report(answer).html
    assert "<svg" not in html
    assert "61 numbers" in html
    assert html.count("<tr>") == 62
