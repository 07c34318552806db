"""The tree of errors is the one that the module draws, and each is caught as it says."""

import contextlib
import inspect
import io
import re
from pathlib import Path
from typing import Any

import pytest

from apiece import Budgets, cli, errors


def drawn() -> dict[str, int]:
    """Return the depth at which each error stands in the drawing."""
    lines = [line for line in (errors.__doc__ or "").splitlines() if "Error" in line]
    return {m[2]: len(m[1]) // 4 for m in (re.match(r"([│├└─ ]*)(\w+)", s) for s in lines) if m}


def depth(kind: type) -> int:
    return len([k for k in kind.__mro__ if issubclass(k, errors.ApieceError)]) - 1


def test_the_drawing_is_the_tree() -> None:
    kinds = {
        n: k
        for n, k in vars(errors).items()
        if inspect.isclass(k) and issubclass(k, Exception) and not issubclass(k, Warning)
    }
    assert drawn().keys() == kinds.keys()
    shallow = {name: depth(kind) for name, kind in kinds.items() if name != "AnalysisError"}
    assert {n: d for n, d in drawn().items() if n != "AnalysisError"} == shallow


def test_input_errors_are_value_errors() -> None:
    assert issubclass(errors.InputError, ValueError)
    assert issubclass(errors.RangeError, ArithmeticError)
    assert issubclass(errors.AnalysisError, errors.InputError)
    assert issubclass(errors.AnalysisError, errors.StateError)
    assert not issubclass(errors.StateError, errors.InputError)


@pytest.mark.parametrize(
    ("name", "hint"), [("sampel", "did you mean 'sample'"), ("SAMPLE", "'sample'"), (7, "known:")]
)
def test_an_unknown_name_names_the_nearest(name: object, hint: str) -> None:
    error = errors.unknown("strategy", name, ["scale", "sample"])
    assert isinstance(error, errors.OptionError)
    assert hint in str(error)
    assert str(error).endswith("(known: sample, scale)")


@pytest.mark.parametrize(
    ("given", "here", "there"),
    [
        (("ids",), "ids", "--ids"),
        (("no_limit_cap", 8), "no_limit_cap=8", "--no-limit-cap 8"),
        (
            ("levels", {"low": 1, "high": 8}),
            "levels={'low': 1, 'high': 8}",
            "--levels low=1,high=8",
        ),
        (("decimal", ","), "dialect=Dialect(decimal=',')", "--decimal ,"),
    ],
)
def test_a_remedy_is_in_the_words_of_who_reads_it(given: Any, here: str, there: str) -> None:
    assert errors.as_given(*given) == here
    token = errors.ON_COMMAND_LINE.set(True)
    try:
        assert errors.as_given(*given) == there
    finally:
        errors.ON_COMMAND_LINE.reset(token)


def test_the_command_line_says_options_and_python_parameters(tmp_path: Path) -> None:
    """Of one and the same refusal, and Python's again after a command."""
    table = tmp_path / "t.csv"
    table.write_text("e\nlow\n")
    words = ["plan", "--data", str(table), "--epsilon", "e", "--delta", "1e-5", "--steps", "1"]
    with contextlib.redirect_stderr(io.StringIO()) as said:
        assert cli.run([*words, "--batch-size", "1"]) == 2
    assert "--levels low=1,high=8" in said.getvalue()
    with pytest.raises(errors.BudgetError, match=r"levels={'low': 1, 'high': 8}"):
        Budgets.from_frame(table, epsilon="e", delta=1e-5)
