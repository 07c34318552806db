"""The report: self-contained, escaped, and saying what the run says."""

import re
from dataclasses import replace
from html.parser import HTMLParser

import numpy as np
import pytest

from apiece.assignment import assign
from apiece.budgets import Budgets
from apiece.jobs import Run
from apiece.jobs.trained import Promise
from apiece.reporting import report
from apiece.reporting.closing import closing_table, gains, spent_text
from sample_runs import renamed, sample_plan, sample_run, trained


def page_of(run: Run) -> str:
    return report(run).html


@pytest.fixture(scope="module")
def run() -> Run:
    hostile = [
        trained(name, mean, plan=renamed(sample_plan(name), ["strict", "<b>weak"]))
        for name, mean in (("uniform", 0.7), ("scale", 0.8))
    ]
    made = replace(sample_run(), strategies=tuple(hostile))
    return replace(made, data=replace(made.data, source="<script>alert(1)</script>.csv"))


class Tags(HTMLParser):
    """Collects tags left open, and whatever would be fetched."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.names: set[str] = set()
        self.links: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.names.add(tag)
        if tag not in ("meta", "br", "link"):
            self.open.append(tag)
        self.links += [v or "" for k, v in attrs if k in ("src", "href", "xlink:href", "data")]

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.links += [v or "" for k, v in attrs if k in ("src", "href", "xlink:href", "data")]

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag, f"</{tag}> closes another"


def test_the_page_stands_alone(run: Run) -> None:
    page = page_of(run)
    tags = Tags()
    tags.feed(page)
    assert tags.open == []
    assert "script" not in tags.names
    assert all(link.startswith("#") or link == "data:," for link in tags.links)
    assert "@import" not in page
    assert not re.search(r"url\((?!#)", page)
    assert page.count("<svg") == 4


def test_names_from_the_data_are_escaped(run: Run) -> None:
    page = page_of(run)
    assert "<script>alert" not in page
    assert "<b>weak" not in page
    assert "&lt;b&gt;weak" in page


def test_seeded_runs_are_no_releases(run: Run) -> None:
    assert "not a release" in page_of(run)
    page = page_of(replace(run, seed=None))
    assert "not a release" not in page
    assert "cryptographic generator" in page


def test_what_is_not_covered_is_said(run: Run) -> None:
    page = page_of(run)
    for words in ("covered by no ε", "4 models were trained", "2.5</td>", "7.5</td>", "Settings"):
        assert words in page
    assert "models were trained" not in page_of(replace(run, models=1))


def test_a_difference_within_the_spread_is_not_called_a_gain(run: Run) -> None:
    assert [row.exceeds_spread for row in gains(run)] == [True]
    close = replace(run, strategies=(trained("uniform", 0.7), trained("scale", 0.71)))
    assert [row.exceeds_spread for row in gains(close)] == [False]
    assert "no clear difference" in page_of(close)
    assert "no clear difference" in closing_table(close)


def test_the_closing_table_holds_each_group_and_strategy(run: Run) -> None:
    table = closing_table(run)
    for found in run.strategies:
        assert found.strategy in table
        for promise in found.promises:
            assert promise.name in table
            assert spent_text(promise) in table
    assert "80.00 ± 1.41 %" in table


@pytest.mark.slow
@pytest.mark.parametrize("count", [21, 65])
def test_many_groups_are_shortened(count: int, run: Run) -> None:
    """Also more groups than the plan has an advantage of: nothing is then said of a guess."""
    budgets = Budgets(np.repeat(np.linspace(1, 3, count), 2), 1e-3)
    plan = assign(budgets, "scale", steps=4, expected_batch_size=20, clip_norm=1.0)
    many = replace(run, strategies=(trained("scale", 0.8, plan=plan),))
    assert f"{count - 20} more groups" in closing_table(many)
    page = page_of(many)
    assert page.count("<svg") == 4
    assert ("is not computed: it takes a curve" in page) == (count > 64)
    assert ("right, as it was made" in page) == (count <= 64)


@pytest.mark.parametrize("value", np.geomspace(1e-6, 1e3, 37).tolist())
def test_spent_is_rounded_up(value: float) -> None:
    shown = float(spent_text(Promise("a", 1, 1.0, 1e-5, value, None)).split()[0])
    assert value <= shown <= value * 1.0011
