"""`make ring` runs the tests nearest to what changed first, and says what it left out."""

from __future__ import annotations

import importlib.machinery
import importlib.util
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def ring() -> Any:
    loader = importlib.machinery.SourceFileLoader("ring", str(ROOT / ".ci" / "ring"))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader("ring", loader))
    loader.exec_module(module)
    return module


def test_the_room_comes_first_then_the_laws(ring: Any) -> None:
    files = ring.order_tests({"src/apiece/filters/filter.py"})
    folders = [name.split("/")[1] for name in files]
    own = max(k for k, folder in enumerate(folders) if folder == "filters")
    laws = [k for k, folder in enumerate(folders) if folder == "laws"]
    assert folders[0] == "filters"
    assert own < laws[0]
    assert max(laws) < ring.FILES
    assert any(folder == "ledger" for folder in folders)  # charges by filters


def test_a_changed_test_comes_before_all(ring: Any) -> None:
    changed = {"tests/queries/test_grammar.py", "src/apiece/queries/quantiles.py"}
    assert ring.order_tests(changed)[0] == "tests/queries/test_grammar.py"


def test_what_nothing_imports_has_no_tests(ring: Any) -> None:
    assert ring.order_tests({"docs/index.md", "LICENSE"}) == []


def test_research_has_its_tests(ring: Any) -> None:
    assert "tests/research/test_store.py" in ring.order_tests({"research/store.py"})
    assert "tests/ledger/test_day.py" in ring.order_tests({"research/benchmarks/ledger_day.py"})


def test_chains_of_imports_are_followed(ring: Any) -> None:
    graph = {"a": {"b", "c"}, "b": {"d"}, "c": set(), "d": {"a"}, "lonely": {"e"}}
    assert ring.distances({"a"}, graph) == {"a": 0, "b": 1, "c": 1, "d": 2}
