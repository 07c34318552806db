"""Derived columns are total functions of one row, and their bounds and groups follow."""

from __future__ import annotations

import math
import random
from datetime import datetime, timedelta
from typing import Any

import numpy as np
import pandas as pd
import pytest
import random_columns
from random_columns import EPOCH, SCHEMA, random_row

from apiece.datasets import Date, Numeric, Schema, Text
from apiece.errors import DataError, InputError
from apiece.queries import Session, functions, register
from apiece.queries.declarations import Declarations
from apiece.queries.derived import View
from apiece.queries.expressions import Domain
from apiece.queries.question import make_view, resolve
from apiece.queries.sql import parse_statement

pytest.importorskip("sqlglot", reason="needs the extra sql")
DECLARATIONS = Declarations.from_schema(SCHEMA)
ROWS = 60


def view_of(expression: str, declarations: Declarations = DECLARATIONS) -> View:
    """The view of a question that counts an expression."""
    (query,) = parse_statement(f"SELECT count({expression}) FROM t").queries
    return make_view(query, declarations)


def table_of(rng: random.Random) -> tuple[Any, list[dict[str, Any]]]:
    """A registered table, and its rows."""
    rows = [random_row(rng) for _ in range(ROWS)]
    frame = pd.DataFrame({"id": [f"p{k:03}" for k in range(ROWS)]})
    for name in SCHEMA.columns:
        cells = [row[name] for row in rows]
        kind = float if name in ("x", "y", "z") else object
        frame[name] = pd.Series(
            [math.nan if c is None and kind is float else c for c in cells], dtype=kind
        )
    return register(frame, SCHEMA), rows


def computed(table: Any, view: View) -> list[Any]:
    """The value of the only derived column of each row, in the order of the ids."""
    sql, _ = view.table_sql([], None)
    query = f"SELECT d0 FROM {sql} AS t ORDER BY person"
    return [value for (value,) in table.database.cursor().execute(query).fetchall()]


def expected_value(value: Any) -> Any:
    if isinstance(value, datetime):
        return (value - EPOCH) // timedelta(microseconds=1)
    return value


def differences(seed: int, count: int) -> list[str]:
    """Where values, bounds or groups of random derived columns are not what they must be."""
    rng = random.Random(seed)
    table, rows = table_of(rng)
    found = []
    for _ in range(count):
        text, value = rng.choice([random_columns.number, random_columns.text])(rng, 3)
        if text in SCHEMA.columns:
            continue
        view = view_of(text)
        if not view.derived:
            continue
        domain = view.infer(next(iter(view.derived.values())))
        for row, cell in zip(rows, computed(table, view), strict=True):
            wanted = expected_value(value(row))
            if not same(cell, wanted):
                found.append(f"{text}: {cell!r}, not {wanted!r} of {row}")
            found += [f"{text}: {fault}" for fault in faults(cell, domain)]
    table.close()
    return found


def same(cell: Any, wanted: Any) -> bool:
    if isinstance(cell, float) and isinstance(wanted, float):
        return cell == wanted or math.isclose(cell, wanted, rel_tol=1e-15)
    return bool(cell == wanted) and (cell is None) == (wanted is None)


def faults(cell: Any, domain: Domain) -> list[str]:
    """How a value is not in its domain."""
    if cell is None:
        return [] if domain.nullable else ["a null that cannot be"]
    if domain.kind == "text":
        return []
    found = []
    if not domain.low <= cell <= domain.high:
        found.append(f"{cell!r} is not in [{domain.low!r}, {domain.high!r}]")
    if domain.whole and domain.kind == "numeric" and cell != math.floor(cell):
        found.append(f"{cell!r} is not whole")
    return found


@pytest.mark.parametrize("block", range(2))
def test_values_are_those_of_python(block: int) -> None:
    """8 tables of 60 rows × 25 derived columns."""
    for seed in range(block * 100, block * 100 + 4):
        assert differences(seed, 25) == []


@pytest.mark.slow
@pytest.mark.parametrize("block", range(10))
def test_values_are_those_of_python_more_often(block: int) -> None:
    """In all 150 tables of 60 rows × 40 derived columns: 360,000 values."""
    for seed in range(1000 + block * 15, 1015 + block * 15):
        assert differences(seed, 40) == []


# Planted breaks: what a function or a rule could get wrong. The comparison must find each.


def _plant(name: str, **changes: Any) -> Any:
    def plant(patch: pytest.MonkeyPatch) -> None:
        function = functions.FUNCTIONS[name]
        from dataclasses import replace

        patch.setitem(functions.FUNCTIONS, name, replace(function, **changes))

    plant.__name__ = f"{name}: {', '.join(changes)}"
    return plant


PLANTS = [
    _plant("/", sql=lambda a: f"({a[0]} / {a[1]})"),
    _plant("floor", sql=lambda a: f"round({a[0]})"),
    _plant("*", rule=lambda d: functions.number_domain(d[0].low * d[1].low, d[0].high * d[1].high)),
    _plant("abs", rule=lambda d: d[0]),
    _plant("week", sql=lambda a: f"CAST(floor(dayofyear(make_timestamp({a[0]})) / 7) AS DOUBLE)"),
    _plant(
        "least",
        rule=lambda d: functions.number_domain(min(e.low for e in d), min(e.high for e in d)),
    ),
    _plant("clamp", sql=lambda a: f"least(greatest({a[0]}, {a[1]}), {a[2]})"),
    _plant("number", sql=lambda a: f"TRY_CAST({a[0]} AS DOUBLE)"),
    _plant("%", rule=lambda d: functions.number_domain(0, abs(d[1].high))),
]


@pytest.mark.parametrize("plant", PLANTS, ids=lambda plant: plant.__name__)
def test_a_planted_break_is_found(plant: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch)
    assert any(differences(seed, 60) for seed in range(12))


@pytest.mark.parametrize(
    ("text", "low", "high"),
    [
        ("x + y", -3, 1e9 + 12),
        ("x - y", -3 - 1e9, 12),
        ("x * x", -36, 144),
        ("x / 4", -0.75, 3),
        ("abs(x)", 0, 12),
        ("-x", -12, 3),
        ("x % 5", -3, 5),
        ("power(x, 2)", 0, 144),
        ("sqrt(x)", 0, math.sqrt(12)),
        ("clamp(z, 0, 7)", 0, 7),
        ("least(greatest(z, 0), 7)", 0, 7),
        ("CASE WHEN z > 3 THEN x ELSE 20 END", -3, 20),
        ("coalesce(x, 100)", -3, 100),
        ("least(nullif(coalesce(smoker * 1, 0), 0), x)", -3, 12),
        ("smoker", 0, 1),
        ("smoker * 3", 0, 3),
        ("x > z", 0, 1),
        ("month(born)", 1, 12),
        ("year(born)", 1950, 1999),
        ("date_diff('year', born, seen)", 2020 - 1999, 2021 - 1950),
        ("date_diff('day', born, DATE '2000-01-01')", 1, 18262),
        ("width_bucket(x, 0, 10, 5)", 0, 6),
    ],
)
def test_bounds_follow_from_those_of_columns(text: str, low: float, high: float) -> None:
    view = view_of(text)
    name = next(iter(view.derived), text)
    if name not in view.derived:
        (query,) = parse_statement(f"SELECT avg({text}) FROM t").queries
        view = make_view(query, DECLARATIONS)
    assert view.bounds_of(name) == (pytest.approx(low), pytest.approx(high))


@pytest.mark.parametrize(
    ("text", "groups"),
    [
        ("floor(x / 5)", (-1, 0, 1, 2)),
        ("floor(x / 5) * 5", (-5, 0, 5, 10)),
        ("CASE WHEN x < 5 THEN 'low' ELSE 'high' END", ("low", "high")),
        ("quarter(seen)", (1, 2, 3, 4)),
        ("year(seen)", (2020, 2021)),
        ("date_trunc('quarter', seen)",
         ("2020-01-01", "2020-04-01", "2020-07-01", "2020-10-01", "2021-01-01", "2021-04-01")),
        ("lower(town)", ("bonn", "köln", "a'b", "07")),
        ("substr(town, 1, 1)", ("B", "K", "a", "0")),
        ("coalesce(town, '?')", ("Bonn", "Köln", "a'b", "07", "?")),
        ("round(x, -1)", (-10, 0, 10, 20)),
        ("smoker AND x > 3", (False, True)),
        ("x > 3", (True, False)),
        ("CAST(floor(x / 10) AS VARCHAR) || '0s'", ("-10s", "00s", "10s")),
    ],
)  # fmt: skip
def test_groups_follow_from_what_is_declared(text: str, groups: tuple[Any, ...]) -> None:
    view = view_of(text)
    found = view.groups_of(next(iter(view.derived)))
    assert sorted(map(str, found)) == sorted(map(str, groups))


@pytest.mark.parametrize(
    ("text", "remedy"),
    [
        ("year(day)", "--bounds|Date"),
        ("floor(z)", "Numeric"),
        ("lower(note)", "Text"),
        ("x / 2", "floor"),
    ],
)
def test_groups_that_do_not_follow_are_asked_for(text: str, remedy: str) -> None:
    schema = SCHEMA.declare({"day": Date()})
    with pytest.raises(DataError, match=remedy):
        resolve(
            parse_statement(f"SELECT count(*) FROM t GROUP BY {text}").queries[0],
            Declarations.from_schema(schema),
        )


def test_an_unbounded_column_is_asked_to_be_clamped() -> None:
    (query,) = parse_statement("SELECT avg(x / y) FROM t").queries
    with pytest.raises(DataError, match=r"write clamp\(x / y, LOW, HIGH\)"):
        resolve(query, DECLARATIONS)
    (query,) = parse_statement("SELECT avg(z * 2) FROM t").queries
    with pytest.raises(DataError, match=r"declare bounds of 'z'"):
        resolve(query, DECLARATIONS)


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("town * 2", "CAST\\(town AS DOUBLE\\)"),
        ("lower(x)", "CAST\\(x AS VARCHAR\\)"),
        ("born + 1", "date_diff"),
        ("CASE WHEN x > 1 THEN 1 ELSE 'a' END", "two kinds"),
        ("CASE WHEN town > x THEN 1 END", "cannot be compared"),
        ("replace(town, 'a', 'aaaaaaaa')", "longer"),
        ("round(x, 99)", "digits"),
        ("clamp(x, 5, 1)", "below"),
        ("clamp(x, z, 1)", "constant"),
        ("width_bucket(x, 0, 10, 1e9)", "width_bucket"),
        ("power(x, 0.5)", "exponent"),
        ("CAST(x AS VARCHAR)", "not a whole number"),
        ("seen < 'yesterday'", "give a date"),
        ("seen + INTERVAL 1 DAY < 'yesterday'", "no date"),
    ],
)
def test_values_of_other_kinds_are_refused(text: str, word: str) -> None:
    with pytest.raises(InputError, match=word):
        resolve(parse_statement(f"SELECT count({text}) FROM t").queries[0], DECLARATIONS)


def test_replace_never_lengthens_a_text() -> None:
    """A cell of a million letters is not made one of a million times ten thousand."""
    with pytest.raises(InputError, match="longer"):
        view_of("length(replace(note, '', 'x'))")


def test_answers_are_those_of_pandas() -> None:
    """At negligible noise: age bands, months, rates and several statistics at once."""
    rng = np.random.default_rng(5)
    n = 3000
    frame = pd.DataFrame({
        "id": np.arange(n), "age": rng.integers(0, 110, n), "pay": rng.normal(3e4, 1e4, n).round(2),
        "town": rng.choice(["A", "B", "C"], n),
        "seen": pd.Timestamp("2020-01-01") + pd.to_timedelta(rng.integers(0, 700, n), "D"),
    })  # fmt: skip
    schema = Schema(
        {
            "age": Numeric(0, 100),
            "pay": Numeric(0, 60000),
            "town": Text(values=["A", "B"]),
            "seen": Date("2020-01-01", "2021-12-31"),
        },
        person="id",
        rows_per_person=1,
    )
    frame["pay"] = frame["pay"].clip(0, 60000)
    session = Session(frame, schema, seed=0)
    answer = session.ask(
        "SELECT floor(age / 10) * 10 AS band, count(*) AS n, avg(pay / 12) AS monthly, "
        "stddev(pay) AS s FROM people WHERE pay > 10000 GROUP BY band",
        epsilon=1e9,
        delta=1e-6,
    )
    chosen = frame[frame["pay"] > 10000]
    band = chosen["age"].clip(0, 100) // 10 * 10
    for group in answer.groups:
        rows = chosen.loc[band == group["band"], "pay"]
        statistics = group["statistics"]
        assert statistics["n"]["estimate"] == pytest.approx(len(rows), abs=1e-2)
        assert statistics["monthly"]["estimate"] == pytest.approx(rows.mean() / 12, rel=1e-5)
        assert statistics["s"]["estimate"] == pytest.approx(rows.std(), rel=1e-3)
    assert [group["band"] for group in answer.groups] == list(range(0, 101, 10))
    months = session.ask(
        "SELECT date_trunc('month', seen) AS month, town, count(*) FROM people GROUP BY 1, 2",
        epsilon=1e9,
        delta=1e-6,
    )
    counts = frame.groupby([frame["seen"].dt.strftime("%Y-%m-01"), "town"]).size()
    assert len(months.groups) == 24 * 2
    for group in months.groups:
        exact = counts.get((group["month"], group["town"]), 0)
        assert group["estimate"] == pytest.approx(exact, abs=1e-2)
