"""The report: self-contained, escaped, and saying what the metrics say."""

import copy
import re
from html.parser import HTMLParser
from typing import Any

import numpy as np
import pytest

from apiece.assignment import assign
from apiece.budgets import Budgets
from apiece.jobs.release import checklist
from apiece.reporting import closing_table, render
from apiece.reporting.closing import beats, spent_text


@pytest.fixture(scope="module")
def metrics() -> dict[str, Any]:
    budgets = Budgets.from_groups([("strict", 0.5, 1.0), ("<b>weak", 0.5, 3.0)], 100, 1e-3)
    strategies = []
    for name, mean in (("uniform", 0.7), ("scale", 0.8)):
        plan = assign(budgets, name, steps=4, expected_batch_size=20, clip_norm=1.0)
        strategies.append(
            {
                "strategy": name,
                "seeds": [0, 2],
                "settings": {
                    "batch_size": 20,
                    "steps": 4,
                    "clip_norm": 1.0,
                    "learning_rate": 1.0,
                    "momentum": 0.0,
                },
                "test_accuracy": [mean - 0.01, mean + 0.01],
                "test_accuracy_mean": mean,
                "test_accuracy_stddev": 0.014,
                "seconds": 1.0,
                "plan": plan.to_dict(),
            }
        )
    groups = [
        {"name": g, "delta": 1e-3, "epsilon_spent": e} for g, e in (("strict", 2.5), ("weak", 7.5))
    ]
    found = {
        "apiece": "0",
        "name": "x",
        "data": {
            "source": "<script>alert(1)</script>.csv",
            "packaged": False,
            "label": "y",
            "classes": ["a", "b"],
            "schema": "s",
            "features": 3,
            "training_records": 100,
            "test_records": 20,
            "commonest_class_share": 0.6,
            "simulated_budgets": False,
        },
        "training": {
            "strategy": "scale",
            "hidden": [],
        },
        "randomness": {"seed": 0, "noise": "reproducible"},
        "strategies": strategies,
        "all_models": {"models": 4, "groups": groups},
        "no_limit_cap": None,
    }
    return found | {"release": checklist(found)}


class Tags(HTMLParser):
    """Collects tags left open, and whatever would be fetched."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.names: set[str] = set()
        self.links: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.names.add(tag)
        if tag not in ("meta", "br"):
            self.open.append(tag)
        self.links += [v or "" for k, v in attrs if k in ("src", "href", "xlink:href", "data")]

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.links += [v or "" for k, v in attrs if k in ("src", "href", "xlink:href", "data")]

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag, f"</{tag}> closes another"


def test_the_page_stands_alone(metrics: dict[str, Any]) -> None:
    page = render(metrics)
    tags = Tags()
    tags.feed(page)
    assert tags.open == []
    assert "script" not in tags.names
    assert all(link.startswith("#") for link in tags.links)
    assert "@import" not in page
    assert not re.search(r"url\((?!#)", page)
    assert page.count("<svg") == 2


def test_names_from_the_data_are_escaped(metrics: dict[str, Any]) -> None:
    page = render(metrics)
    assert "<script>alert" not in page
    assert "<b>weak" not in page
    assert "&lt;b&gt;weak" in page


def test_seeded_runs_are_no_releases(metrics: dict[str, Any]) -> None:
    assert "not a release" in render(metrics)
    released = copy.deepcopy(metrics) | {"randomness": {"seed": None, "noise": "operating system"}}
    for strategy in released["strategies"]:
        strategy["seeds"] = None
    released["release"] = checklist(released)
    page = render(released)
    assert "not a release" not in page
    assert "cryptographic generator" in page


def test_what_is_not_covered_is_said(metrics: dict[str, Any]) -> None:
    page = render(metrics)
    for words in ("covered by no ε", "4 models were trained", "ε ≤ 2.5", "ε ≤ 7.5", "Settings"):
        assert words in page
    alone = copy.deepcopy(metrics)
    alone["all_models"]["models"] = 1
    assert "models were trained" not in render(alone)


def test_a_difference_within_the_spread_is_not_called_a_gain(metrics: dict[str, Any]) -> None:
    assert [row["exceeds_spread"] for row in beats(metrics)] == [True]
    close = copy.deepcopy(metrics)
    close["strategies"][1]["test_accuracy_mean"] = 0.71
    assert [row["exceeds_spread"] for row in beats(close)] == [False]
    assert "no clear difference" in render(close)
    assert "no clear difference" in closing_table(close)


def test_the_closing_table_holds_each_group_and_strategy(metrics: dict[str, Any]) -> None:
    table = closing_table(metrics)
    for strategy in metrics["strategies"]:
        assert strategy["strategy"] in table
        for group in strategy["plan"]["groups"]:
            assert group["name"] in table
            assert spent_text(group) in table
    assert "80.00 ± 1.40 %" in table


def test_many_groups_are_shortened(metrics: dict[str, Any]) -> None:
    many = copy.deepcopy(metrics)
    for strategy in many["strategies"]:
        strategy["plan"]["groups"] *= 30
    assert "40 more groups" in closing_table(many)
    assert render(many).count("<svg") == 2


@pytest.mark.parametrize("value", np.geomspace(1e-6, 1e3, 37).tolist())
def test_spent_is_rounded_up(value: float) -> None:
    shown = float(spent_text({"epsilon_spent": value, "saturated": False}))
    assert value <= shown <= value * 1.0011
