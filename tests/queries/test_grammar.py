"""The query language: what it accepts, what it turns into, and that nothing else gets through."""

import duckdb
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from apiece.errors import ApieceError, DataError, InputError, OptionError
from apiece.queries.declarations import Declarations
from apiece.queries.grammar import Combined, Compare, Missing, Negated, parse
from apiece.queries.question import bind_literals
from apiece.queries.scan import bind_columns, condition_sql


def test_parts() -> None:
    query = parse("Histogram(income, 20) BY \"home town\" where a >= -1.5e3 and not b = 'it''s'")
    assert (query.aggregate, query.columns, query.numbers) == ("histogram", ("income",), (20.0,))
    assert query.by == ("home town",)
    assert query.where == Combined(
        "and",
        (Compare("a", ">=", (-1500.0,)), Negated(Compare("b", "=", ("it's",)))),
    )
    assert parse("regression(y ~ x1 + x2)").columns == ("y", "x1", "x2")
    assert parse("count()").columns == ()
    for text in ("count() by a, b", "count() BY (a, b)"):
        assert parse(text).by == ("a", "b")
    counted = [parse(text) for text in ("count(Persons)", "count(rows)", 'count("rows")')]
    assert [(each.counted, each.columns) for each in counted] == [
        ("persons", ()), ("rows", ()), ("", ("rows",)),
    ]  # fmt: skip
    median = parse("median(x)")
    assert (median.aggregate, median.numbers, median.text) == ("quantile", (0.5,), "median(x)")
    assert parse("quantile(x, .75, .25)").numbers == (0.25, 0.75)
    assert parse("quantile(x, .5, log)").log
    assert parse("covariance(x, log)").columns == ("x", "log")
    assert parse("count() where a in (1, 'x') or b is not null").where == Combined(
        "or", (Compare("a", "in", (1.0, "x")), Negated(Missing("b")))
    )
    assert parse("count() where a not in (1) and (b = 2 or c = 3)").where == Combined(
        "and",
        (
            Negated(Compare("a", "in", (1.0,))),
            Combined("or", (Compare("b", "=", (2.0,)), Compare("c", "=", (3.0,)))),
        ),
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
        "quantile(income, 0.5, 0.5)",
        "quantile(income, log)",
        "median(income, 0.5)",
        "interval(income, 0.2, 0.5)",
        "count(persons, rows)",
        "count() by a, a",
        "count() by (a, b",
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


@settings(max_examples=120, deadline=None, derandomize=True)
@given(st.text(max_size=30), st.sampled_from(["=", "<", "in", "is null"]))
def test_no_text_breaks_out(text: str, sign: str) -> None:
    """Whatever comes out as a condition is one expression over the declared column."""
    name = "c" + text.replace('"', '""')
    literal = "'" + text.replace("'", "''") + "'"
    right = {"in": f"in ({literal})", "is null": "is null"}.get(sign, f"{sign} {literal}")
    try:
        schema = Declarations("id", kinds={"c" + text: "text"}, rows_per_person=1)
        where = parse(f'count() where "{name}" {right}').where
        assert where is not None
        sql = condition_sql(bind_columns(bind_literals(where, schema), schema))
    except ApieceError:
        return
    database = duckdb.default_connection()
    database.execute("CREATE OR REPLACE TEMP TABLE t AS SELECT ? AS c1, 'other' AS c0", [text])
    assert len(database.extract_statements(f"SELECT {sql} FROM t")) == 1
    expected = {"=": True, "in": True, "<": False, "is null": False}[sign]
    assert database.execute(f"SELECT {sql} FROM t").fetchall() == [(expected,)]


@pytest.mark.parametrize(
    "text",
    [
        "count() where a = \u0661\u0662",  # Arabic digits
        "count() where a = \uff11",  # a fullwidth digit
        "count() where a = 1\u0660",
        "quantile(a, \u0660.5)",
        "histogram(a, 1\u06f0)",
        "count() where a = 'x\0y'",
        "count() where a = '\ud800'",
        'count() where "a\x1b[2J" = 1',
        "count() where a = '\x9b31m'",
    ],
)
def test_digits_are_ascii_and_text_is_plain(text: str) -> None:
    with pytest.raises(InputError, match=r"query: .*\Z"):
        parse(text)


@pytest.mark.parametrize(
    "text",
    [
        "count() where " + "(" * 3000 + "a = 1" + ")" * 3000,
        "count() where " + "not " * 2000 + "a = 1",
        "count() where " + "not (" * 1500 + "a = 1" + ")" * 1500,
        "count() where " + "(a = 1 or " * 900 + "a = 1" + ")" * 900,
    ],
    ids=["brackets", "not", "not brackets", "or"],
)
def test_deep_nesting_is_refused(text: str) -> None:
    with pytest.raises(InputError, match="nested more than 50 deep"):
        parse(text)


def test_long_flat_conditions_are_answered() -> None:
    terms = " or ".join(f"a = {i}" for i in range(800))
    where = parse(f"count() where {terms}").where
    assert where is not None
    schema = Declarations("id", kinds={"a": "numeric"}, rows_per_person=1)
    sql = condition_sql(bind_columns(bind_literals(where, schema), schema))
    found = duckdb.connect().execute(f"SELECT {sql} FROM (SELECT 799.0::DOUBLE AS c1)").fetchall()
    assert found == [(True,)]


@pytest.mark.parametrize(
    ("kind", "literal", "good"),
    [
        ("numeric", "18", True),
        ("numeric", "'18'", False),
        ("numeric", "1e999", False),
        ("numeric", "-1e999", False),
        ("text", "'18'", True),
        ("text", "18", False),
        ("date", "'2024-02-29'", True),
        ("date", "'2024-02-29 10:30'", True),
        ("date", "'2023-02-29'", False),
        ("date", "'2024-02-29T10:30+02:00'", True),
        ("date", "'yesterday'", False),
        ("date", "20240229", False),
        ("date", "'\u0662\u0660\u0662\u0664-01-01'", False),
    ],
)
def test_columns_are_compared_by_their_declared_kind(kind: str, literal: str, good: bool) -> None:
    where = parse(f"count() where a >= {literal}").where
    assert where is not None
    schema = Declarations("id", kinds={"a": kind}, rows_per_person=1)
    if good:
        assert "c1 >=" in condition_sql(bind_columns(bind_literals(where, schema), schema))
        return
    with pytest.raises(InputError, match=f"declared {kind}"):
        condition_sql(bind_columns(bind_literals(where, schema), schema))


def test_a_column_without_a_kind_is_refused() -> None:
    where = parse("count() where a >= 1").where
    assert where is not None
    schema = Declarations("id", bounds={"b": (0, 1)}, rows_per_person=1)
    with pytest.raises(DataError, match="no declared kind"):
        condition_sql(bind_columns(bind_literals(where, schema), schema))
