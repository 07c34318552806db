"""Everything shown runs: the examples of the docstrings and of docs/sensitivity.md."""

import doctest
import importlib
import re
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "sensitivity.md"
MODULES = ["attribution", "bounds", "intervals", "neural", "noise", "parse", "partial", "smooth"]
MODULES.append("symbolic")


@pytest.mark.parametrize("name", MODULES)
def test_docstrings(name):
    module = importlib.import_module(f"apiece.sensitivity.{name}")
    found = doctest.testmod(module, optionflags=doctest.ELLIPSIS)
    assert found.failed == 0


def test_page(capsys):
    namespace: dict[str, object] = {}
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert blocks
    for block in blocks:
        capsys.readouterr()
        exec(compile(block, str(PAGE), "exec"), namespace)
        shown = re.findall(r"^# (.*)$", block, re.MULTILINE)
        assert capsys.readouterr().out.splitlines() == shown


def test_figures_of_the_page_exist():
    pages = [PAGE, PAGE.parent / "results" / PAGE.name]
    figures = [
        page.parent / figure
        for page in pages
        for figure in re.findall(r"!\[.*?\]\((.*?)\)", page.read_text())
    ]
    assert len(figures) == 3
    for figure in figures:
        assert figure.read_bytes().startswith(b"\x89PNG")
