"""What is declared about a table is checked when it is declared, and names no column in SQL."""

import math
from datetime import date

import pytest

from apiece import datasets
from apiece.datasets import Boolean, Categorical, Date, Numeric, Schema, Skip, Text
from apiece.datasets.schema import Column
from apiece.errors import DataError, InputError, OptionError
from apiece.queries import query_cost, register
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


def test_a_schema_says_what_questions_need() -> None:
    """Ranges are bounds, values are groups; other columns are compared by their kind."""
    columns = {
        "note": Skip(),
        "id": Categorical(["a"]),
        "age": Numeric(0, 120, missing=("", "-99")),
        "rooms": Numeric(1, 9, values=range(1, 10)),
        "count": Numeric(),
        "code": Numeric(values=["1", "2.0"]),
        "town": Categorical(["A", 7, True], missing=True),
        "born": Date("1900-01-01", "2010-12-31", format="%d.%m.%Y", missing=("n/a",)),
        "since": Date(values=[date(2024, 1, 31)]),
        "smoker": Boolean(),
        "street": Text(values=["01", "1"]),
    }
    schema = Schema(columns, person="id", rows_per_person=2, decimal=",")
    assert Declarations.from_schema(schema) == Declarations(
        "id",
        bounds={"age": (0, 120), "rooms": (1, 9)},
        groups={
            "rooms": range(1, 10),
            "code": ["1", "2.0"],
            "town": ["A", 7, True],
            "since": ["2024-01-31"],
            "street": ["01", "1"],
        },
        rows_per_person=2,
        kinds={
            "count": "numeric",
            "code": "numeric",
            "born": "date",
            "since": "date",
            "smoker": "boolean",
            "street": "text",
        },
        missing={"age": ["-99"], "born": ["n/a"]},
        formats={"born": "%d.%m.%Y"},
        decimal=",",
        periods={"born": (-2208988800000000, 1293839999999999)},
    )


def test_a_table_without_a_person_is_refused_before_it_is_read() -> None:
    schema = Schema({"x": Numeric(0, 1)})
    assert Declarations.from_schema(schema).person == ""
    with pytest.raises(DataError, match=r"schema\.declare\(person='id'\)"):
        register("none.csv", schema)
    with pytest.raises(DataError, match="the column of people's ids; how many rows"):
        query_cost("mean(x)", schema, epsilon=1.0, delta=1e-6)


@pytest.mark.parametrize(
    ("column", "query"),
    [
        (Numeric(0.0, 9.0, missing=("-99",)), "count() by x"),
        (Categorical(["a", "b"]), "mean(x)"),
        (Date(format="%d.%m.%Y"), "count() by x"),
        (Boolean(), "count() by x"),
        (Text(), "count() by x"),
        (Text(), "mean(x)"),
        (Skip(), "count() where x = 'a'"),
    ],
)
def test_the_example_of_a_refusal_answers_the_question(column: Column, query: str) -> None:
    """Pasted, it is a schema of which the question can be asked; markers and formats stay."""
    schema = Schema({"x": column}, person="id", rows_per_person=1)
    with pytest.raises(DataError, match="no declared") as caught:
        query_cost(query, schema, epsilon=1.0, delta=1e-6)
    line = str(caught.value).split("as in ")[1].split(", or its bounds")[0]
    line = line.split("; SELECT DISTINCT")[0]
    names = {name: getattr(datasets, name) for name in datasets.__all__}
    mended = eval(line, names, {"schema": schema})
    assert query_cost(query, mended, epsilon=1.0, delta=1e-6).epsilon == 1
    if query == "count() by x":
        before, after = schema.columns["x"], mended.columns["x"]
        assert type(after) is type(before)
        assert getattr(after, "format", None) == getattr(before, "format", None)
        assert after.missing == getattr(before, "missing", ())
