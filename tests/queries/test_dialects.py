"""What engines write differently: every text and every double is said exactly."""

import math

import duckdb
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from apiece.queries.scan import DUCKDB, SPARK, encode_text, number_sql, quote_text


@settings(derandomize=True, max_examples=80, deadline=None)
@given(st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=8))
def test_a_text_is_itself(text: str) -> None:
    """Whatever it holds: quotes, backslashes, comments and the ends of statements."""
    assert duckdb.sql(f"SELECT {quote_text(text)}").fetchall() == [(text,)]
    assert bytes.fromhex(encode_text(text).split("'")[1]).decode() == text
    assert set(encode_text(text)) <= set("CAST(X'0123456789abcdef' AS STRING)")


@pytest.mark.parametrize("text", ["'; DROP TABLE rows; --", "\\'", "''", "ε\n"])
def test_no_text_ends_early(text: str) -> None:
    assert duckdb.sql(f"SELECT {DUCKDB.text(text)} = {DUCKDB.text(text)}, 7").fetchall() == [
        (True, 7)
    ]


@settings(derandomize=True, max_examples=80, deadline=None)
@given(st.floats(allow_nan=False, allow_infinity=False))
def test_a_double_is_itself_to_the_bit(value: float) -> None:
    ((found,),) = duckdb.sql(f"SELECT {number_sql(value)}").fetchall()
    assert (found, math.copysign(1, found)) == (value, math.copysign(1, value))


def test_whole_numbers_and_one_of_several() -> None:
    wide, divided = DUCKDB.wide, DUCKDB.divided
    places = "(VALUES (0), (1)) AS places(place)"
    element = DUCKDB.element(["7", f"17 {divided} 5"], "place")
    rows = duckdb.sql(f"SELECT CAST({10**37} AS {wide}) * 9, {element} FROM {places}")
    assert rows.fetchall() == [(9 * 10**37, 7), (9 * 10**37, 3)]
    assert (SPARK.wide, SPARK.divided) == ("DECIMAL(38, 0)", "DIV")
    assert SPARK.element(["a", "b"], "place") == "array(a, b)[CAST(place AS INT)]"
