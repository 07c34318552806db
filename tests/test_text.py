"""Names from data, fit to be shown: one line, every character visible, JSON reads the same."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from apiece._text import figure_text, plain, plain_lines

anything = st.text(st.characters(), max_size=40)


@settings(max_examples=150, derandomize=True, deadline=None)
@given(anything)
def test_plain_is_printable_and_idempotent(text: str) -> None:
    shown = plain(text)
    assert shown.isprintable() or " " in shown or all(c.isprintable() or c > "\x9f" for c in shown)
    assert "\n" not in shown
    assert plain(shown) == shown
    shown.encode()


@pytest.mark.parametrize("text", ["a\x1b[31m", "\u202egnp", "\ud800", "\U0001f600", "\U000e0001"])
def test_json_reads_what_was_hidden(text: str) -> None:
    assert json.loads(f'"{plain(text)}"') == text


def test_lines_stay() -> None:
    assert plain_lines("a\nb\rc") == "a\nb\\u000dc"


@pytest.mark.parametrize(
    ("name", "shown"), [("$x$", r"\$x\$"), ("_a", " _a"), ("x" * 99, "x" * 59 + "…"), ("a", "a")]
)
def test_figures(name: str, shown: str) -> None:
    assert figure_text(name) == shown
