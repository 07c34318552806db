"""The comparison of two source trees sees a difference in the last bit, and chance is none."""

from __future__ import annotations

import importlib.util
import math
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

ROOT = Path(__file__).parents[2]
PROGRAM = ROOT / "research" / "benchmarks" / "equality.py"


@pytest.fixture(scope="module")
def equality() -> Any:
    spec = importlib.util.spec_from_file_location("equality", PROGRAM)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_last_bit_counts(equality: Any) -> None:
    one, next_to_one = 0.1, math.nextafter(0.1, 1)
    pairs = [
        (one, next_to_one), (np.array([1.0, one]), np.array([1.0, next_to_one])), (0.0, -0.0),
        (np.zeros(2, np.float32), np.zeros(2)), ({"a": [one]}, {"a": [next_to_one]}), (1, "1"),
        (b"a", b"b"),
    ]  # fmt: skip
    for first, second in pairs:
        assert equality.plain(first) != equality.plain(second)
        assert equality.plain(first) == equality.plain(first)


def test_what_differs_from_run_to_run_is_left_out(equality: Any) -> None:
    assert equality.plain("<a at 0x7f01> in /tmp/x1 took 3.5 s") == equality.plain(
        "<a at 0x7f02> in /tmp/y2 took 4 s"
    )


@pytest.mark.slow
@pytest.mark.parametrize("planted", [False, True])
def test_a_planted_difference_of_a_rounding_is_seen(planted: bool, tmp_path: Path) -> None:
    """A copy of the tree is equal; with another rounding in one function it is not."""
    tree = tmp_path / "src"
    shutil.copytree(ROOT / "src", tree, ignore=shutil.ignore_patterns("__pycache__"))
    if planted:
        path = tree / "apiece" / "filters" / "convert.py"
        source = path.read_text(encoding="utf-8")
        assert source.count("(1 - 2 * ULP)") == 1
        path.write_text(source.replace("(1 - 2 * ULP)", "(1 - 3 * ULP)"), encoding="utf-8")
    words = [sys.executable, str(PROGRAM), str(ROOT / "src"), str(tree), "--rooms", "filters"]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == int(planted), done.stdout + done.stderr
