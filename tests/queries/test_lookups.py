"""Lookup tables: what DuckDB's join says, their declarations, and what is refused."""

from __future__ import annotations

import datetime
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from apiece import Ledger
from apiece.datasets import Boolean, Date, Lookup, Numeric, Schema, Text, read_schema
from apiece.errors import ApieceError, DataError, InputError
from apiece.queries import Session, query_cost, register

PEOPLE = pd.DataFrame({
    "id": [f"p{number}" for number in range(40)],
    "pay": [float(number % 9) for number in range(40)],
    "postcode": [["01234", "53111", "07743", "99999", ""][number % 5] for number in range(40)],
})  # fmt: skip
REGIONS = {
    "postcode": ["01234", "53111", "07743", "80331"],
    "region": ["east", "west", "east", "south"],
    "density": [2.5, 7.0, None, 9.0],
    "since": ["1990-10-03", "1949-05-23", "1990-10-03", "1949-05-23"],
}
CODES = {"pay": [0, 1, 2], "band": ["none", "low", "low"]}
COLUMNS = {"pay": Numeric(0, 10), "postcode": Text()}


def schema_of(**lookups: Lookup) -> Schema:
    found = lookups or {"regions": Lookup(REGIONS, "postcode"), "bands": Lookup(CODES, "pay")}
    return Schema(COLUMNS, person="id", rows_per_person=1, lookups=found)


def answer(session: Session, text: str) -> list[tuple[Any, ...]]:
    """Return the groups of an answer whose noise is next to nothing, rounded."""
    groups = session.ask(text, epsilon=1e7, delta=1e-6).groups
    return [tuple(round_cell(value) for value in flatten(group)) for group in groups]


def flatten(group: dict[str, Any]) -> list[Any]:
    """Return the group's own values and the estimates of its statistics."""
    statistics = group.get("statistics", {"": group})
    values = [value for name, value in group.items() if name in KEYS]
    return values + [statistic["estimate"] for statistic in statistics.values()]


# Columns by which these tests group.
KEYS = ("region", "band", "y")


def round_cell(value: Any) -> Any:
    return round(value, 1) + 0.0 if isinstance(value, float) else value


@pytest.fixture(scope="module")
def session() -> Session:
    return Session(PEOPLE, schema_of(), seed=0)


@pytest.mark.parametrize(
    "text",
    [
        "SELECT count(*) FROM people JOIN regions ON people.postcode = regions.postcode",
        "SELECT count(*) FROM people JOIN regions USING (postcode)",
        "SELECT count(*) FROM people p INNER JOIN regions r ON r.postcode = p.postcode",
        "SELECT count(*) FROM people LEFT JOIN regions USING (postcode)",
        "SELECT count(*) FROM people LEFT JOIN regions USING (postcode) WHERE region IS NULL",
        "SELECT count(*) FROM people p LEFT JOIN regions r ON p.postcode = r.postcode "
        "WHERE r.postcode IS NULL AND pay > 3",
        "SELECT r.region, count(*), avg(pay) FROM people JOIN regions r USING (postcode) "
        "GROUP BY r.region ORDER BY r.region",
        "SELECT region, count(*) FROM people JOIN regions USING (postcode) "
        "WHERE since < DATE '1980-01-01' OR density > 2 GROUP BY region ORDER BY region",
        "SELECT sum(density), avg(pay * density) FROM people JOIN regions USING (postcode)",
        "SELECT band, region, count(*) FROM people JOIN regions USING (postcode) "
        "JOIN bands USING (pay) GROUP BY band, region ORDER BY band, region",
        "SELECT count(CASE WHEN region = 'east' THEN density END) FROM people "
        "LEFT JOIN regions USING (postcode)",
        "SELECT count(DISTINCT region) FROM people JOIN regions USING (postcode)",
        "SELECT year(since) - 1900 AS y, count(*) FROM people JOIN regions USING (postcode) "
        "WHERE year(since) = 1990 GROUP BY y HAVING count(*) > 1",
    ],
)
def test_joins_are_those_of_duckdb(session: Session, text: str) -> None:
    database = duckdb.connect()
    frames = {"people": PEOPLE, "regions": pd.DataFrame(REGIONS), "bands": pd.DataFrame(CODES)}
    for name, frame in frames.items():
        database.register(f"{name}_frame", frame)
        cells = "* REPLACE (since::DATE AS since)" if name == "regions" else "*"
        # An empty cell is a missing one.
        null = "* REPLACE (nullif(postcode, '') AS postcode)" if name == "people" else cells
        database.execute(f"CREATE TABLE {name} AS SELECT {null} FROM {name}_frame")
    expected = [tuple(map(as_number, row)) for row in database.execute(text).fetchall()]
    # DuckDB has no line for a declared group without rows.
    shown = [tuple(map(as_number, row)) for row in answer(session, text)]
    assert [row for row in shown if row in expected or 0.0 not in row] == expected


def as_number(value: Any) -> Any:
    return round(float(value), 1) + 0.0 if isinstance(value, int | float) else value


def test_todays_form_has_the_columns_too(session: Session) -> None:
    assert answer(session, "count() by region") == [("east", 16), ("south", 0), ("west", 8)]
    assert answer(session, 'count() where "regions.postcode" is null') == [(16,)]
    assert answer(session, "sum(density) where region = 'west'") == [(56,)]


def test_declarations_follow_from_the_public_table() -> None:
    columns = Lookup(REGIONS, "postcode").columns
    assert columns["region"] == Text(values=["east", "south", "west"])
    assert columns["density"] == Numeric(2.5, 9.0)
    assert columns["since"] == Date("1949-05-23", "1990-10-03")
    codes = Lookup({"k": ["a", "b"], "n": ["1", "3"], "zip": ["01", "02"], "b": [True, None]}, "k")
    assert codes.columns["n"] == Numeric(1, 3, values=(1, 3))
    assert codes.columns["zip"] == Text(values=["01", "02"])
    assert codes.columns["b"] == Boolean(values=(False, True))
    one = Lookup({"k": ["a", "b"], "n": [4, 4], "z": [0, 0], "m": [-2, -2]}, "k").columns
    assert [(c.lower, c.upper) for c in one.values()] == [(0, 4), (0, 1), (-2, 0)]
    wide = Lookup(REGIONS, "postcode", columns={"density": Numeric(0, 20)})
    assert wide.columns["density"] == Numeric(0, 20)


@pytest.mark.parametrize("form", ["csv", "parquet", "frame", "arrow", "file"])
def test_every_container_is_the_same_table(form: str, tmp_path: Path) -> None:
    frame = pd.DataFrame(REGIONS)
    rows: Any = frame
    if form == "arrow":
        rows = pa.Table.from_pandas(frame, preserve_index=False)
    elif form == "parquet":
        rows = tmp_path / "regions.parquet"
        frame.to_parquet(rows)
    elif form in ("csv", "file"):
        rows = tmp_path / "regions.csv"
        frame.to_csv(rows, index=False)
    lookup = Lookup(rows, "postcode")
    if form == "file":
        path = tmp_path / "people.toml"
        path.write_text(
            "person = 'id'\nrows_per_person = 1\n[columns.pay]\nkind = 'numeric'\nlower = 0\n"
            "upper = 10\n[columns.postcode]\nkind = 'text'\n[lookups.regions]\n"
            "file = 'regions.csv'\nkey = 'postcode'\n"
        )
        lookup = read_schema(path).lookups["regions"]
    expected = Lookup(REGIONS, "postcode")
    assert dict(lookup.columns) == dict(expected.columns)
    session = Session(PEOPLE, schema_of(regions=lookup), seed=0)
    assert answer(session, "sum(density) by region") == [("east", 20), ("south", 0), ("west", 56)]


def test_a_registered_table_keeps_its_lookups(tmp_path: Path) -> None:
    table = register(PEOPLE, schema_of(), folder=tmp_path / "kept")
    asked = "SELECT region, count(*) FROM people JOIN regions USING (postcode) GROUP BY region"
    expected = answer(Session(table, schema_of(), seed=0), asked)
    assert answer(Session(tmp_path / "kept", seed=0), asked) == expected
    assert Schema.from_dict(schema_of().to_dict(), "again").lookups == schema_of().lookups


def test_another_lookup_table_is_another_question() -> None:
    other = {**REGIONS, "region": ["east", "west", "west", "south"]}
    schemas = [schema_of(), schema_of(regions=Lookup(other, "postcode"))]
    tables = [register(PEOPLE, schema) for schema in schemas]
    assert tables[0].declarations.terms != tables[1].declarations.terms
    # A table without any is compared as before there were some.
    assert "lookups" not in register(PEOPLE, Schema(COLUMNS, person="id")).declarations.terms


def test_a_marker_of_a_missing_key_finds_nothing() -> None:
    schema = Schema(
        {**COLUMNS, "postcode": Text(missing=("99999",))},
        person="id",
        rows_per_person=1,
        lookups={"regions": Lookup({"postcode": ["99999"], "region": ["none"]}, "postcode")},
    )
    assert answer(Session(PEOPLE, schema, seed=0), "count(region)") == [(0,)]


@pytest.mark.parametrize(
    ("rows", "key", "named"),
    [
        ({"k": ["a", "a"], "v": [1, 2]}, "k", "'a' is there 2 times"),
        ({"k": ["a", None], "v": [1, 2]}, "k", "no key"),
        ({"k": ["a"], "v": [1, 2]}, "k", "a cell in each column"),
        ({"k": [], "v": []}, "k", "1 to"),
        ({"k": ["a"]}, "other", "no column 'other'"),
        ({"k": ["a"], "v": [[1]]}, "k", "no text, number"),
        (7, "k", "no table"),
    ],
)
def test_what_is_no_lookup_table_is_refused(rows: Any, key: str, named: str) -> None:
    with pytest.raises(DataError, match=named):
        Lookup(rows, key)


def test_lookups_that_do_not_fit_the_schema_are_refused() -> None:
    for lookup, named in (
        (Lookup({"x": ["a"], "v": [1]}, "x"), "'x' is not declared"),
        (Lookup({"postcode": ["a"], "pay": [1]}, "postcode"), "'pay' is declared already"),
    ):
        with pytest.raises(DataError, match=named):
            schema_of(regions=lookup)
    twice = {"pay": ["1", "1.0"], "band": ["a", "b"]}
    for lookup, named in (
        (Lookup(twice, "pay"), "same value as another"),
        (Lookup({"pay": ["x"], "band": ["a"]}, "pay"), "no value of the kind"),
        (Lookup({"id": ["p1"], "band": ["a"]}, "id"), "people's ids"),
    ):
        schema = Schema({**COLUMNS, "id": Text()}, person="id", lookups={"bands": lookup})
        with pytest.raises(InputError, match=named):
            register(PEOPLE, schema)


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("SELECT count(*) FROM people JOIN towns USING (postcode)", "no declared lookup table"),
        ("SELECT count(*) FROM people JOIN regions USING (pay)", "declared by postcode"),
        ("SELECT count(*) FROM people p JOIN regions r ON p.pay = r.density", "declared by"),
        ("SELECT count(*) FROM people RIGHT JOIN regions USING (postcode)", "JOIN is not answered"),
        ("SELECT count(*) FROM people CROSS JOIN regions", "JOIN is not answered"),
        ("SELECT count(*) FROM people JOIN regions ON pay > 3", "JOIN is not answered"),
        ("SELECT count(*) FROM people p JOIN people q ON p.pay = q.pay", "no declared lookup"),
        ("SELECT count(*) FROM people, regions", "JOIN is not answered"),
        ("SELECT count(*) FROM people JOIN regions r ON postcode = pay", "ON must compare"),
        ("SELECT count(*) FROM people JOIN (SELECT 1) r ON r.a = people.pay", "JOIN is not"),
    ],
)
def test_other_joins_are_refused_by_name(session: Session, text: str, named: str) -> None:
    with pytest.raises(ApieceError, match=named):
        session.ask(text, epsilon=1.0, delta=1e-6)
    with pytest.raises(ApieceError, match=named):
        query_cost(text, schema_of(), epsilon=1.0, delta=1e-6)


def test_whoever_has_no_match_is_charged_nothing(tmp_path: Path) -> None:
    ledger = Ledger.open(f"sqlite:///{tmp_path}/p.db")
    ledger.enroll(PEOPLE["id"].tolist(), 2.0, 1e-6)
    session = Session(PEOPLE, schema_of(), ledger, seed=0)
    session.ask(
        "SELECT sum(density) FROM people JOIN regions USING (postcode)", epsilon=0.5, delta=1e-6
    )
    spent = np.asarray(ledger.spent(PEOPLE["id"].tolist()))
    dense = PEOPLE["postcode"].map(dict(zip(REGIONS["postcode"], REGIONS["density"], strict=True)))
    assert ((spent > 0) == dense.notna()).all()
    # Of the clamped value's size, by the public table's bounds.
    assert spent[1] == pytest.approx(spent[0] * (7 / 2.5) ** 2, rel=1e-5)


def test_days_may_be_given_as_days() -> None:
    lookup = Lookup({"k": ["a"], "d": [datetime.date(2020, 1, 31)]}, "k")
    assert lookup.columns["d"] == Date("2020-01-31", "2020-02-01")
    assert Schema.from_dict(
        Schema({"k": Text()}, lookups={"l": lookup}).to_dict(), "again"
    ).lookups["l"].columns == dict(lookup.columns)


# Several tables of the same people.


VISITS = pd.DataFrame({"id": ["a", "a", "a", "b", "c"], "cost": [1.0, 2.0, 3.0, 4.0, 5.0]})
LABS = pd.DataFrame({"who": ["b", "d"], "cost": [9.0, 1.0]})
TABLES = {"visits": VISITS, "labs": LABS}
SCHEMAS = {
    "visits": Schema({"cost": Numeric(0, 10)}, person="id", rows_per_person=2),
    "labs": Schema({"cost": Numeric(0, 20)}, person="who", rows_per_person=1),
}


def test_each_table_has_rows_a_person_of_its_own() -> None:
    session = Session(TABLES, SCHEMAS, seed=0)
    assert answer(session, "SELECT count(*) FROM visits") == [(4,)]
    assert answer(session, "SELECT sum(cost) FROM labs") == [(10,)]
    assert session.ask("count()", epsilon=1e7, delta=1e-6, table="labs").rows_per_person == 1
    for text, named in (
        ("count()", "it names none"),
        ("SELECT count(*) FROM visit", "did you mean 'visits'"),
        ("SELECT count(*) FROM visits JOIN labs ON visits.id = labs.who", "no declared lookup"),
    ):
        with pytest.raises(ApieceError, match=named):
            session.ask(text, epsilon=1.0, delta=1e-6)
    with pytest.raises(InputError, match="no table 'other'"):
        Session(TABLES, {**SCHEMAS, "other": SCHEMAS["labs"]})
    with pytest.raises(InputError, match="of several tables"):
        Session(VISITS, SCHEMAS)


def test_charges_of_all_tables_are_to_the_same_persons(tmp_path: Path) -> None:
    people = ["a", "b", "c", "d"]
    ledger = Ledger.open(f"sqlite:///{tmp_path}/p.db")
    ledger.enroll(people, 8.0, 1e-6)
    session = Session(TABLES, SCHEMAS, ledger, seed=0)
    spent = [np.asarray(ledger.spent(people))]
    for table in TABLES:
        session.ask(f"SELECT sum(cost) FROM {table}", epsilon=0.5, delta=1e-6)
        spent.append(np.asarray(ledger.spent(people)))
    of_visits = spent[1] - spent[0]
    of_labs = spent[2] - spent[1]
    assert (of_visits > 0).tolist() == [True, True, True, False]
    assert (of_labs > 0).tolist() == [False, True, False, True]
    # A table by itself charges the same.
    for name, own in (("visits", of_visits), ("labs", of_labs)):
        alone = Ledger.open(f"sqlite:///{tmp_path}/{name}.db")
        alone.enroll(people, 8.0, 1e-6)
        Session(TABLES[name], SCHEMAS[name], alone, seed=0).ask(
            "sum(cost)", epsilon=0.5, delta=1e-6
        )
        assert np.asarray(alone.spent(people)) == pytest.approx(own, rel=1e-6)


def test_the_noise_of_two_tables_is_not_the_same() -> None:
    session = Session({"a": VISITS, "b": VISITS}, SCHEMAS["visits"], seed=0)
    answers = [
        session.ask("count()", epsilon=0.1, delta=1e-6, table=name).groups[0]["estimate"]
        for name in ("a", "b")
    ]
    assert answers[0] != answers[1]
