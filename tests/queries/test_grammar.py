"""The query language: what it accepts, what it turns into, and that nothing else gets through."""

import duckdb
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from apiece.errors import ApieceError, InputError, OptionError
from apiece.queries import parse


def test_parts() -> None:
    query = parse("Histogram(income, 20) BY \"home town\" where a >= -1.5e3 and not b = 'it''s'")
    assert (query.aggregate, query.columns, query.numbers) == ("histogram", ("income",), (20.0,))
    assert query.by == "home town"
    assert query.where == "(\"a\" >= -1.5e3 AND (NOT (\"b\" = 'it''s')))" or query.where == (
        "((\"a\" >= -1.5e3) AND (NOT (\"b\" = 'it''s')))"
    )
    assert parse("regression(y ~ x1 + x2)").columns == ("y", "x1", "x2")
    assert parse("count()").columns == ()
    assert parse("count() where a in (1, 'x') or b is not null").where == (
        '(("a" IN (1, \'x\')) OR ("b" IS NOT NULL))'
    )


@pytest.mark.parametrize(
    "text",
    [
        "DROP TABLE people",
        "mean(income); DROP TABLE people",
        "mean(income) where 1=1",
        "mean(income) where a = b",
        "mean(income) where a = (SELECT max(a) FROM source)",
        "mean(income) where a = 1 --",
        "mean(income",
        "mean()",
        "mean(a, b)",
        "mean(income) by",
        "mean(income) where",
        "sum(income) limit 3",
        "quantile(income)",
        "quantile(income, 1.5)",
        "histogram(income, 0)",
        "regression(y)",
        "covariance(a, a)",
        "",
        "mean(where)",
        "SELECT avg(income) FROM source",
    ],
)
def test_what_is_not_a_query_is_refused(text: str) -> None:
    with pytest.raises(InputError):
        parse(text)


def test_misspelled_aggregate_names_the_right_one() -> None:
    with pytest.raises(OptionError, match="did you mean 'mean'"):
        parse("maen(income)")


@settings(max_examples=150, deadline=None, derandomize=True)
@given(st.text(max_size=30))
def test_no_text_breaks_out(text: str) -> None:
    """Whatever comes out as a condition is one expression over the named column."""
    literal = text.replace("'", "''")
    name = text.replace('"', '""')
    try:
        where = parse(f"count() where \"c{name}\" = '{literal}'").where
    except ApieceError:
        return
    assert where is not None
    statements = duckdb.extract_statements(f"SELECT {where}") if "\0" not in text else [None]
    assert len(statements) == 1
