"""What docs/training.md shows runs."""

import re
from pathlib import Path


def test_the_page_runs():
    page = Path(__file__).parents[2] / "docs" / "training.md"
    code = re.findall(r"```python\n(.*?)```", page.read_text(), flags=re.DOTALL)
    names = {}
    for block in code:
        exec(block, names)
    assert names["trainer"].step_number == 20
