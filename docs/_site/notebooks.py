"""The tutorials as notebooks: `python docs/_site/notebooks.py` writes examples/notebooks/ anew.

A tutorial is the source; its text becomes cells of text, its Python blocks cells of code.
"""

import json
import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
TUTORIALS = ROOT / "docs" / "tutorials"
NOTEBOOKS = ROOT / "examples" / "notebooks"
BLOCK = re.compile(r"```python\n(.*?)```\n?", re.DOTALL)
LINK = re.compile(r"\]\(\.\./([\w-]+\.md[^)]*)\)")


def notebook(text: str) -> str:
    """Return a tutorial as the text of a notebook file."""
    cells: list[dict[str, Any]] = []
    parts = BLOCK.split(LINK.sub(r"](../../docs/\1)", text))
    for number, part in enumerate(parts):
        if not part.strip():
            continue
        kind = "code" if number % 2 else "markdown"
        cell = {"cell_type": kind, "id": f"cell-{len(cells)}", "metadata": {}}
        cell["source"] = part.strip().splitlines(keepends=True)
        if kind == "code":
            cell |= {"execution_count": None, "outputs": []}
        cells.append(cell)
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    whole = {"cells": cells, "metadata": {"kernelspec": kernel}, "nbformat": 4, "nbformat_minor": 5}
    return json.dumps(whole, indent=1, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    NOTEBOOKS.mkdir(exist_ok=True)
    for page in sorted(TUTORIALS.glob("*.md")):
        (NOTEBOOKS / f"{page.stem}.ipynb").write_text(notebook(page.read_text()))
