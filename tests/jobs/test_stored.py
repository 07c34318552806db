"""What is stored against what was computed anew: the same, up to the last digits of numbers."""

from typing import Any

import pytest

from apiece.errors import DataError
from apiece.jobs.results import require_same

FOUND = {"a": [1.0, {"b": "x"}], "c": None, "d": True, "e": 0}


@pytest.mark.parametrize(
    "stored",
    [FOUND, {"a": [1.0 + 1e-9, {"b": "x"}], "c": None, "d": True, "e": 0}],
)
def test_what_agrees(stored: Any) -> None:
    require_same(stored, FOUND, "f")


@pytest.mark.parametrize(
    ("stored", "words"),
    [
        ({**FOUND, "c": 0}, "f.c = 0"),
        ({**FOUND, "d": 1}, "f.d = 1"),
        ({**FOUND, "e": False}, "f.e = False"),
        ({**FOUND, "a": [1.1, {"b": "x"}]}, "f.a[0] = 1.1, but by the plan it is 1.0"),
        ({**FOUND, "a": [float("nan"), {"b": "x"}]}, "f.a[0]"),
        ({**FOUND, "a": [1.0, {"b": "y"}]}, "f.a[1].b = 'y'"),
        ({**FOUND, "a": [1.0]}, "f.a"),
        ({"a": 1}, "f = "),
    ],
)
def test_what_does_not_is_named(stored: Any, words: str) -> None:
    with pytest.raises(DataError) as caught:
        require_same(stored, FOUND, "f")
    assert words in str(caught.value)
