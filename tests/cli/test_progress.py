"""A bar that fits 80 columns, shown only where somebody watches."""

import json
import re
import sys
import time
from typing import Any

import pytest

from apiece.cli import _command, run
from apiece.cli._command import Bar, echo


@pytest.mark.parametrize("columns", [80, 100])
@pytest.mark.parametrize("text", ["plans", "sample, seed 1 of 3, step 1000 of 1000 " * 3, "[red]x"])
def test_a_bar_is_one_line(
    text: str, columns: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(_command, "PATIENCE", 0.0)
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    with Bar(2) as bar:
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
        time.sleep(0.05)
    assert run(ACCOUNT) == 0
    assert capsys.readouterr().err == ""


ACCOUNT = ["account", "--noise-multiplier", "1", "--steps", "99", "--delta", "1e-5"]


def test_every_command_has_a_bar_which_what_it_prints_takes_away(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Before the first step, too; and what is printed is printed alone."""
    monkeypatch.setattr(_command, "PATIENCE", 0.0)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    assert run([*ACCOUNT, "--json"]) == 0
    captured = capsys.readouterr()
    assert json.loads(captured.out)["delta"] == 1e-5
    assert captured.err == ""
    assert run(ACCOUNT) == 0
    captured = capsys.readouterr()
    assert "epsilon" in captured.out
    assert "account" in captured.err
    with Bar(None, "work") as bar:
        time.sleep(0.2)
        echo("told")
        assert not bar.stands
    captured = capsys.readouterr()
    assert captured.out == "told\n"
    assert "work" in captured.err
    assert Bar.innermost is None
