"""What an analysis may be called, and what it may release."""

import math

import pytest

from apiece.errors import InputError
from apiece.ledger.analyses import check_id, check_result


@pytest.mark.parametrize("value", ["", "x" * 201, "a\nb", "a\x1b[0m", "\u202e", None, 7, b"a"])
def test_ids_that_are_refused(value: object) -> None:
    with pytest.raises(InputError, match=r"^analysis_id = "):
        check_id(value)


@pytest.mark.parametrize("value", ["q1", "x" * 200, "mean age, 2026", "Größe/3"])
def test_ids_that_are_taken(value: str) -> None:
    assert check_id(value) == value


@pytest.mark.parametrize("result", [math.nan, [math.inf], object(), {1, 2}, b"x"])
def test_results_that_are_no_json(result: object) -> None:
    with pytest.raises(InputError, match=r"^result: .*give a JSON value"):
        check_result(result)


@pytest.mark.parametrize("result", [None, 1.5, [1, "ε"], {"a": {"b": []}}])
def test_results_that_are(result: object) -> None:
    """A result of another kind in the same place is refused: it was looked at."""
    check_result(result)
    with pytest.raises(InputError):
        check_result([result, object()])
