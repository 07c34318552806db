"""What docs/sensitivity.md shows runs."""

import re
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "sensitivity.md"


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
