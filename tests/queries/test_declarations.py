"""What is declared about a table is checked when it is declared, and names no column in SQL."""

import math

import pytest

from apiece.errors import DataError, InputError, OptionError
from apiece.queries.declarations import Declarations


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"bounds": {"x": (1, 1)}}, "low must be below high"),
        ({"bounds": {"x": (2, 1)}}, "low must be below high"),
        ({"bounds": {"x": (0, math.nan)}}, "must be finite"),
        ({"bounds": {"x": (-1.7e308, 1.7e308)}}, "low must be below high"),
        ({"groups": {"g": []}}, "declare each value once"),
        ({"groups": {"g": ["a", "a"]}}, "declare each value once"),
        ({"groups": {"g": [7, "7"]}}, "declare each value once"),
        ({"groups": {"g": [None]}}, "neither a text nor a number"),
        ({"groups": {"g": ["a\nb"]}}, "not plain text"),
        ({"bounds": {"x\x00": (0, 1)}}, "not plain text"),
        ({"rows_per_person": 0}, "rows_per_person"),
    ],
)
def test_what_is_refused(given: dict[str, object], words: str) -> None:
    with pytest.raises(InputError, match=words):
        Declarations("id", **given)  # type: ignore[arg-type]


def test_an_unknown_kind_names_the_nearest() -> None:
    with pytest.raises(OptionError, match="did you mean 'numeric'"):
        Declarations("id", kinds={"x": "numerik"}, rows_per_person=1)


def test_kinds_follow_from_what_is_declared() -> None:
    schema = Declarations(
        "id", bounds={"x": (0, 1)}, groups={"g": ["a"]}, kinds={"d": "date"}, rows_per_person=1
    )
    assert [schema.kind_of(c) for c in ("id", "x", "g", "d")] == ["text", "numeric", "text", "date"]
    for ask in (schema.kind_of, schema.bounds_of, schema.groups_of):
        with pytest.raises(DataError, match="'odd'"):
            ask("odd")


def test_stored_names_are_distinct_and_say_nothing() -> None:
    schema = Declarations(
        "id", bounds={"x": (0, 1)}, groups={"x": ["0", "1"], "g": ["a"]}, rows_per_person=1
    )
    names = [schema.stored(*reading) for reading in schema.readings]
    names += [schema.stored_group(column) for column in schema.groups]
    assert len(set(names)) == len(names)
    assert all(name[0] in "cg" and name[1:].isdecimal() for name in names)


def test_it_does_not_change_with_what_it_was_made_from() -> None:
    bounds = {"x": (0.0, 1.0)}
    schema = Declarations("id", bounds=bounds, rows_per_person=1)
    bounds["x"] = (0.0, 9.0)
    assert schema.bounds_of("x") == (0.0, 1.0)
