"""Names from data show themselves in tables, pages, figures and errors, and do nothing else."""

import ast
import re
import unicodedata
from functools import cache
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from apiece import Budgets, Scale, assign, cli
from apiece._text import figure_text, plain, plain_lines
from apiece.audit import Findings
from apiece.audit.membership import roc
from apiece.cli.plan import format_plan
from apiece.jobs import Run
from apiece.jobs.trained import Facts, Trained, list_promises
from apiece.reporting import report
from apiece.reporting.closing import closing_table
from apiece.reporting.closing import findings_text as audit_text
from apiece.reporting.figures import budgets as budgets_figure
from apiece.reporting.figures import rocs as rocs_figure
from apiece.reporting.plots import privacy_curves
from sample_runs import renamed

SOURCE = Path(__file__).parents[1] / "src" / "apiece"
NAMES = [
    "$x$", "$\\frac{1}{0", "$$", "a$b", "\\$x\\$", "_hidden", "<script>alert(1)</script>", "&amp;",
    "\"><img src=x onerror=alert(1)>", "{{ m }}", "{% raw %}", "\x1b[2J\x1b[31mred", "\x9b31m",
    "\x1b]0;title\x07", "a\x00b", "a\rb", "a\nforged row", "a\u2028b", "\u202egnp.exe", "\u200b",
    "\ufeffa",
    "\ud800", "\ue000", "[bold]x[/bold]", "[/]", "%s%n", "x" * 5000, " ", "\x7f", "\ufffe",
]  # fmt: skip

TAGS = re.compile(r"<(?!svg|g\b|path|use|text|defs|clipPath|rect|style|/)[a-z0-9]+")


def page_of(run: Run) -> str:
    return report(run).html


def harmless(text: str) -> bool:
    """Whether a terminal shows every character and obeys none, but for the ends of lines."""
    text.encode()
    return all(c == "\n" or c.isprintable() or unicodedata.category(c) == "Zs" for c in text)


def plan_of(name: str) -> Any:
    budgets = Budgets([1.0, 1.0, 3.0], 1e-5, labels=[name, name, "other"])
    return assign(budgets, Scale(), steps=3, expected_batch_size=1, clip_norm=1.0)


@cache
def good_plan() -> Any:
    return plan_of("good")


def run_of(name: str) -> Run:
    names = [
        name if given == "good" else given for given in good_plan().budget_groups.name.tolist()
    ]
    settings = {"batch_size": 1.0, "steps": 3, "clip_norm": 1.0, "learning_rate": 1.0}
    return Run(
        version="0", name=name, strategy=name, hidden=(), analysis=None, no_limit_cap=None,
        data=Facts(
            source=name, packaged=False, label=name, classes=(name, "b"), schema=name, features=2,
            training_records=3, test_records=1, commonest_class_share=0.5, simulated_budgets=False,
        ),
        seed=None,
        strategies=(Trained(
            strategy=name, plan=renamed(good_plan(), names), settings={**settings, "momentum": 0.0},
            seeds=(1,), test_accuracy=(0.8,), seconds=1.0,
        ),),
        models=1, totals=(),
    )  # fmt: skip


@given(st.text())
def test_plain_is_one_harmless_line_and_changes_nothing_harmless(text: str) -> None:
    assert harmless(plain(text))
    assert "\n" not in plain(text)
    assert harmless(plain_lines(text))
    if harmless(text) and "\n" not in text:
        assert plain(text) == text


@cache
def lines_of_a_good_name() -> int:
    return len(closing_table(run_of("good")).split("\n"))


@cache
def tags_of_a_good_name() -> list[str]:
    return TAGS.findall(page_of(run_of("good")))


@pytest.mark.parametrize("name", NAMES, ids=ascii)
def test_tables(name: str) -> None:
    closing = closing_table(run_of(name))
    assert harmless(closing)
    assert len(closing.split("\n")) == lines_of_a_good_name()
    found, good = (
        Findings(audit="one run", rocs={each: roc([1.0, 0.0], [True, False])})
        for each in (name, "good")
    )
    assert harmless(audit_text(found))
    assert len(audit_text(found).split("\n")) == len(audit_text(good).split("\n"))


def test_the_table_of_a_plan() -> None:
    shown = format_plan(plan_of("a\nforged row\x1b[31m"))
    assert harmless(shown)
    assert len(shown.split("\n")) == len(format_plan(good_plan()).split("\n"))


@cache
def good_curve() -> Any:
    return good_plan().curve(0)


SOME = ["<script>alert(1)</script>", "{{ m }}", "a\u2028b", "$$", "x" * 5000]
FAST = [n if n in SOME else pytest.param(n, marks=pytest.mark.slow) for n in NAMES]


@pytest.mark.parametrize("name", FAST, ids=ascii)
def test_pages(name: str) -> None:
    page = page_of(run_of(name))
    page.encode()
    assert harmless(page)
    assert TAGS.findall(page) == tags_of_a_good_name()  # no name is markup


def texts(svg: str) -> list[str]:
    return ["".join(e.itertext()) for e in ElementTree.fromstring(svg).iter() if "text" in e.tag]


@pytest.mark.parametrize("name", FAST, ids=ascii)
def test_figures(name: str) -> None:
    """Every figure is made, well formed, and has the name in it as it is, not as a formula."""
    shown = figure_text(name).replace(r"\$", "$").strip()
    svg = budgets_figure({name: list_promises(run_of(name).kept.plan)})
    assert harmless(svg)
    assert shown in [t.strip() for t in texts(svg)]
    curve = good_curve()
    privacy_curves({name: curve, "good": curve}).draw_without_rendering()
    rocs = {name: roc(np.arange(4.0), np.array([True, False, True, False]))}
    assert shown in [t.strip() for t in texts(rocs_figure(rocs))]


FIT = [n for n in NAMES if not set(n) & {"\x00", "\ud800"}]


@pytest.mark.parametrize("name", FIT, ids=ascii)
def test_columns_and_arguments_in_errors(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pd.DataFrame({name: [1.0], "b": ["x"]}).to_csv(tmp_path / "t.csv", index=False)
    for words in (
        ["plan", "--data", str(tmp_path / "t.csv"), "--epsilon", name, "--delta", name,
         "--batch-size", "1", "--steps", "1"],
        ["plan", "--data", str(tmp_path / "t.csv"), "--epsilon", "missing", "--delta", "1e-5",
         "--batch-size", "1", "--steps", "1"],
        ["audit", "--canaries", str(tmp_path / "t.csv"), "--score", name],
        ["plan", "--records", "2", "--groups", f"{name}:x:1", "--delta", "1e-5", "--steps", "1",
         "--batch-size", "1"],
        [name or "x"],
        ["plan", "--option", name],
        ["ledger", "status", f"{name}.db"],
    ):  # fmt: skip
        cli.run(words)
        said = capsys.readouterr()
        assert harmless(said.err)
        assert said.err.count("\n") <= 1
        assert "Traceback" not in said.err


def test_commands_print_through_the_one_place() -> None:
    odd = []
    for path in sorted((SOURCE / "cli").glob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call):
                name = ast.unparse(node.func)
                if name in ("click.echo", "print", "click.secho", "sys.stdout.write"):
                    odd.append((path.name, ast.unparse(node)))
    assert [name for name, _ in odd] == ["_command.py"]


@settings(max_examples=30, deadline=None)
@given(st.text(max_size=20))
def test_any_name_in_a_figure(name: str) -> None:
    shown = figure_text(name).replace(r"\$", "$").strip()
    assert harmless(shown)
