"""A bar that fits 80 columns, shown only where somebody watches."""

import re
import sys
from typing import Any

import pytest

from apiece.cli import _command
from apiece.cli._command import Bar


@pytest.mark.parametrize("columns", [80, 100])
@pytest.mark.parametrize("text", ["plans", "sample, seed 1 of 3, step 1000 of 1000 " * 3, "[red]x"])
def test_a_bar_is_one_line(
    text: str, columns: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(_command, "PATIENCE", 0.0)
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    with Bar(3) as bar:
        bar.advance(text)
        bar.advance(text)
    shown = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", capsys.readouterr().err)
    lines = [line for line in re.split(r"[\r\n]+", shown) if line.strip()]
    assert lines
    assert all(len(line.rstrip()) <= 80 for line in lines)
    assert all("%" in line for line in lines)


def test_nobody_watches(capsys: pytest.CaptureFixture[str], monkeypatch: Any) -> None:
    monkeypatch.setattr(_command, "PATIENCE", 0.0)
    with Bar(1) as bar:
        bar.advance("plans")
    assert capsys.readouterr().err == ""
