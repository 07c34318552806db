"""Conditions become SQL that names stored columns and typed literals only, and cannot fail."""

import duckdb
import pytest

from apiece.errors import DataError, InputError
from apiece.queries.declarations import Declarations
from apiece.queries.grammar import Compare, Missing, parse
from apiece.queries.question import bind_literals
from apiece.queries.scan import bind_columns, condition_sql, number_sql, quote_text

SCHEMA = Declarations(
    "id",
    bounds={"age": (0, 100)},
    groups={"city": ["Bonn", "Köln"]},
    kinds={"since": "date"},
    rows_per_person=1,
)


def sql(where: str) -> str:
    condition = parse(f"count() where {where}").where
    assert condition is not None
    return condition_sql(bind_columns(bind_literals(condition, SCHEMA), SCHEMA))


def test_no_name_of_a_user_enters() -> None:
    assert sql("age >= 18 and not city = 'Bonn' or since is null").count("c") >= 3
    for name in ("age", "city", "since"):
        assert name not in sql("age >= 18 and not city = 'Bonn' or since is null")


@pytest.mark.parametrize("text", ["", "it's", "'; DROP TABLE rows; --", "%_\\", "Köln", "a''b"])
def test_a_text_is_exactly_that_text(text: str) -> None:
    assert duckdb.sql(f"SELECT {quote_text(text)}").fetchall() == [(text,)]


@pytest.mark.parametrize("value", [0.0, -1.5, 1e-300, 1.7976931348623157e308, 0.1, 2.0**-1074])
def test_a_number_is_exactly_that_double(value: float) -> None:
    assert duckdb.sql(f"SELECT {number_sql(value)}").fetchall() == [(value,)]


@pytest.mark.parametrize("where", ["age = 'old'", "city = 3", "since = 'yesterday'", "since > 5"])
def test_a_literal_of_another_kind_is_refused(where: str) -> None:
    with pytest.raises(InputError):
        sql(where)


@pytest.mark.parametrize("condition", [Compare("odd", "=", (1.0,)), Missing("odd")])
def test_a_column_that_is_not_declared_is_refused(condition: Compare | Missing) -> None:
    with pytest.raises(DataError, match="no declared kind"):
        condition_sql(bind_columns(bind_literals(condition, SCHEMA), SCHEMA))
