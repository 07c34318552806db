"""A JSON text has one reading, in ordinary numbers, or is refused with one line."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from apiece import _json
from apiece.errors import DataError
from refusals import refused


@pytest.mark.parametrize(
    "text",
    ["", "{", '{"a": 1, "a": 1}', '{"b": {"a": 1, "a": 2}}', "NaN", "[Infinity]", "-Infinity",
     "1e400", "[-1e999]", "[" * 100_000, b"\xff", "'a'"],
)  # fmt: skip
def test_what_others_would_read_otherwise_is_refused(text: str | bytes) -> None:
    with refused(DataError, "plan", "JSON") as error:
        _json.loads(text, "plan")
    assert "\n" not in str(error.value)
    assert len(str(error.value)) < 300


def test_what_is_json_is_read() -> None:
    text = '{"a": [1, 2.5, null, true, "ε"], "b": {}}'
    assert _json.loads(text, "x") == {"a": [1, 2.5, None, True, "ε"], "b": {}}


@pytest.mark.parametrize(
    ("read", "good", "bad"),
    [
        (_json.number, [0, -1.5, 2**900], [True, "1", None, float("nan"), 10**400, [1]]),
        (_json.whole(9), [0, 9], [-1, 10, 1.0, True, "1", None]),
        (_json.text, ["", "a"], [1, None, ["a"]]),
        (_json.flag, [True, False], [0, 1, "true", None]),
        (_json.maybe(_json.text), [None, "a"], [1, False]),
        (_json.listed(_json.flag), [[], [True]], [None, "ab", [1], {"a": True}]),
    ],
)
def test_readers(read: _json.Reader[Any], good: list[Any], bad: list[Any]) -> None:
    for value in good:
        assert read(value, "at") == value
    for value in bad:
        with pytest.raises(DataError, match=r"^at"):
            read(value, "at")


def test_fields_are_all_there_and_no_others() -> None:
    readers, optional = {"a": _json.number}, {"b": _json.text}
    assert _json.fields({"a": 1}, "x", readers, optional) == {"a": 1.0}
    assert _json.fields({"a": 1, "b": "t"}, "x", readers, optional) == {"a": 1.0, "b": "t"}
    for value, words in (
        ({}, "'a' is missing"), ({"a": 1, "c": 2}, "'c' is unknown"), ([], "an object"),
        ({"a": 1, "b": 2}, r"x\.b = 2"), ({"a": "1"}, r"x\.a = '1'"),
    ):  # fmt: skip
        with pytest.raises(DataError, match=words):
            _json.fields(value, "x", readers, optional)


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@settings(max_examples=80, derandomize=True, deadline=None)
@given(values)
def test_any_value_is_read_or_refused_with_one_line(value: Any) -> None:
    for read in (_json.number, _json.whole(5), _json.text, _json.flag, _json.listed(_json.text)):
        said = ""
        try:
            read(value, "at")
        except DataError as error:
            said = str(error)
        assert len(said) < 1000
        assert "\n" not in said
