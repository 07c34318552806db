"""The examples in the docstrings of research/ hold."""

import doctest
import importlib

import pytest

from research import ROOT

MODULES = sorted(path.stem for path in (ROOT / "research").glob("[!_]*.py"))


@pytest.mark.parametrize("name", MODULES)
def test_examples_hold(name: str) -> None:
    assert doctest.testmod(importlib.import_module(f"research.{name}")).failed == 0


def test_there_are_examples() -> None:
    finder = doctest.DocTestFinder()
    modules = [importlib.import_module(f"research.{name}") for name in MODULES]
    assert sum(bool(test.examples) for module in modules for test in finder.find(module)) >= 8
