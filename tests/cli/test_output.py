"""Tables that fit a terminal, with heads of several lines."""

import pytest

from apiece.cli._command import format_table


def test_a_table_of_numbers_fits_80_columns() -> None:
    head = ["group", *["noise\nover clip"] * 7]
    lines = format_table([head, ["a name of thirty-two characters..", *["0.1234567"] * 7]])
    assert len(lines) == 4
    assert max(map(len, lines)) <= 90  # what the first column keeps of itself
    assert lines[-1].startswith("a name of t…")
    assert lines[0].split() == ["noise"] * 7


@pytest.mark.parametrize("name", ["short", "x" * 40, "東京", "a\x1b[2Jb"])
def test_rows_stand_under_their_heads(name: str) -> None:
    lines = format_table([["group", "ε\nasked", "records"], [name, "1", "20"]])
    assert max(map(len, lines)) <= 80
    assert "\x1b" not in "".join(lines)
    ends = [lines[-1].rindex("20") + 2, lines[1].rindex("records") + 7, len(lines[2])]
    assert len(set(ends)) == 1
