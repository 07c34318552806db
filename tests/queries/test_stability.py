"""The law of the scan: one person's rows change that person's contribution and nothing else.

Over random tables, hostile rows and random queries, without noise: everybody else's contributions
and norms are equal to the bit with and without the person, the sums differ by the person's own, and
if the person has no account every answer and every error is the same.
"""

from __future__ import annotations

import csv
import random
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pandas as pd
import pytest
from random_worlds import COLUMNS, DECLARATIONS, HEADER, SCHEMA, UNCLEAR, query, select, world

from apiece.errors import ApieceError, DataError
from apiece.ledger.scopes import Policy
from apiece.queries import Session, functions, reading, register, session
from apiece.queries.derived import SqlWriter
from apiece.queries.question import resolve
from apiece.queries.sql import parse_statement
from apiece.queries.table import Table

GRID = 2.0**-20
Shares = dict[str, dict[tuple[int, int], tuple[int, ...]]]


@dataclass
class Everyone:
    """A ledger in which these people have accounts without a limit."""

    people: list[str]
    norms: dict[str, float] = field(default_factory=dict)
    id_kind = "text"
    policy = Policy()

    def status(self, _analysis: str, _terms: Any) -> str:
        return "unknown"

    def enrolled(self, ids: Any) -> Any:
        return np.isin(ids, self.people)

    def reserve(self, _analysis: str, ids: Any, norms: Any, _stddev: float, *, terms: Any) -> Any:
        self.norms = dict(zip(ids.tolist(), norms.tolist(), strict=True))
        return ids

    def reserve_costs(self, _analysis: str, ids: Any, costs: Any, *, terms: Any) -> Any:
        loss = costs.loss[:, 0] if costs.group is None else costs.loss[costs.group, 0]
        self.norms = dict(zip(ids.tolist(), loss.tolist(), strict=True))
        return ids

    def commit(self, _analysis: str, result: Any) -> Any:
        return result


def shares(found: Table, text: str) -> Shares:
    """Everybody's contributions, in whole grid steps; nobody's if all are zero."""
    result: Shares = {}
    for number, parsed in enumerate(parse_statement(text).queries):
        question = resolve(parsed, DECLARATIONS)
        with found.contributions(question, GRID) as held:
            rows = held.cursor.execute(held.sql).fetchall()
        for person, cell, *steps in rows:
            result.setdefault(str(found.people[person]), {})[number, cell] = tuple(steps)
    return result


def answer(found: Table, text: str, ledger: Everyone) -> str:
    """What the analyst gets, without noise: the answer or the error, as text."""
    try:
        asking = Session(found, SCHEMA, ledger, seed=0)  # type: ignore[arg-type]
        return repr(asking.ask(text, epsilon=1.0, delta=1e-6, analysis_id="a").groups)
    except ApieceError as error:
        return f"{type(error).__name__}: {error}"


def registered(read: Callable[..., Table], source: Any) -> Table | str:
    try:
        return read(source, SCHEMA)
    except (ApieceError, duckdb.Error) as error:
        return str(error)


def violations(
    seed: int,
    folder: Path,
    questions: int,
    read: Callable[..., Table] = register,
    draw: Callable[[random.Random], str] = query,
) -> list[str]:
    """Return how the law fails over `questions` random queries on one random table."""
    rng = random.Random(seed)
    some = world(rng)
    # In another order each time: that of rows is nobody's.
    without, with_ = (
        registered(read, some.source(folder, mine=mine, seed=seed + mine)) for mine in (False, True)
    )
    if isinstance(without, str) or isinstance(with_, str):
        same = type(without) is type(with_)
        return [] if same else [f"{some.form}: registered or not depends on a row"]
    found, others = [], without.people.tolist()
    for text in (draw(rng) for _ in range(questions)):
        before, after = shares(without, text), shares(with_, text)
        if before != {person: share for person, share in after.items() if person in others}:
            found.append(f"{some.form}: {text}: another's contribution")
        ledgers = Everyone(others), Everyone(others)
        if answer(without, text, ledgers[0]) != answer(with_, text, ledgers[1]):
            found.append(f"{some.form}: {text}: an answer without the person")
        if ledgers[0].norms != ledgers[1].norms:
            found.append(f"{some.form}: {text}: another's charge")
    return found


@pytest.fixture
def quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "draw_rounded_gaussians", lambda count, _bits: [0] * count)


@pytest.mark.parametrize("block", range(2))
def test_others_are_unchanged_to_the_bit(block: int, tmp_path: Path, quiet: None) -> None:
    """16 tables × 4 queries."""
    for seed in range(block * 1000, block * 1000 + 8):
        assert not violations(seed, tmp_path, 4)


@pytest.mark.slow
@pytest.mark.parametrize("block", range(10))
def test_others_are_unchanged_to_the_bit_more_often(
    block: int, tmp_path: Path, quiet: None
) -> None:
    """In all 600 tables × 5 queries = 3,000 triples of a table, one person's rows and a query."""
    for seed in range(10_000 + block * 60, 10_000 + block * 60 + 60):
        assert not violations(seed, tmp_path, 5)


def test_others_are_unchanged_by_derived_columns(tmp_path: Path, quiet: None) -> None:
    """4 tables × 6 SELECTs whose columns overflow, divide by zero and cast what is no number."""
    for seed in range(500, 504):
        assert not violations(seed, tmp_path, 6, draw=select)


@pytest.mark.slow
@pytest.mark.parametrize("block", range(10))
def test_others_are_unchanged_by_derived_columns_more_often(
    block: int, tmp_path: Path, quiet: None
) -> None:
    """In all 500 tables × 5 SELECTs."""
    for seed in range(20_000 + block * 50, 20_000 + block * 50 + 50):
        assert not violations(seed, tmp_path, 5, draw=select)


def test_selects_are_answered(tmp_path: Path, quiet: None) -> None:
    """The search is of answers, and not of refusals."""
    table = register(world(random.Random(3)).source(tmp_path, mine=True, seed=0), SCHEMA)
    texts = [select(random.Random(seed)) for seed in range(40)]
    answers = [answer(table, text, Everyone(table.people.tolist())) for text in texts]
    refusals = [text for text in answers if "Error" in text]
    assert len(refusals) <= 4, refusals


def test_the_generator_reaches_what_it_is_for() -> None:
    """Answers are not empty, and a good part of the persons' rows is odd."""
    forms, oddities = set(), 0
    for seed in range(60):
        some = world(random.Random(seed))
        forms.add(some.form)
        oddities += any("?" in str(row) or "9999" in str(row) for row in some.mine)
    assert forms == {"csv", "frame", "arrow", "parquet"}
    assert oddities >= 5


@pytest.mark.parametrize("line", UNCLEAR)
def test_a_file_whose_records_are_unclear_is_refused_before_any_question(
    line: bytes, tmp_path: Path
) -> None:
    """Wherever the line stands; the message names no row, the steward's log does."""
    good = [b"p%d,a,1,1,Bonn,2020-01-01" % i for i in range(5)]
    messages = set()
    for at in range(6):
        said: list[str] = []
        path = tmp_path / "people.csv"
        path.write_bytes(b"\n".join([HEADER, *good[:at], line, *good[at:]]))
        with pytest.raises(DataError, match="the reason is in the steward's log") as caught:
            register(path, SCHEMA, log=said.append)
        messages.add(str(caught.value))
        assert f"line {at + 2}:" in said[-1]
    assert len(messages) == 1


# Planted breaks: scans as a database would do them if left alone. The law must find each.


def _sniffed(source: Any, schema: Any) -> Table:
    """A reader that guesses dialect and types from rows."""
    if not isinstance(source, Path):
        return register(source, schema)
    pattern = str(source).replace("[", "[[]").replace("*", "[*]")
    return register(duckdb.sql(f"SELECT * FROM read_csv('{pattern}')").to_arrow_table(), schema)


def _swallowing(source: Any, schema: Any) -> Table:
    """A reader of CSV in which a quote that opens on one line closes on another."""
    if not isinstance(source, Path) or source.suffix != ".csv":
        return register(source, schema)
    with source.open(newline="", encoding="utf-8", errors="replace") as file:
        rows = [r for r in csv.reader(file) if len(r) == len(COLUMNS)]
    return register(pd.DataFrame(rows[1:], columns=list(COLUMNS), dtype=object), schema)


def _renumbered(source: Any, schema: Any) -> Table:
    """Groups numbered in the order in which the data has them."""
    found = register(source, schema)
    for column in found.declarations.groups:
        name = found.declarations.stored_group(column)
        found.database.execute(
            f"CREATE OR REPLACE TABLE rows AS SELECT * REPLACE (CASE WHEN {name} IS NOT NULL "
            f"THEN dense_rank() OVER (ORDER BY {name}) - 1 END AS {name}) FROM rows"
        )
    return found


def _in_order(source: Any, schema: Any) -> Table:
    """Which of a person's rows are kept depends on where they stand in the file."""
    found = register(source, schema)
    found.database.execute(
        "CREATE OR REPLACE TABLE rows AS SELECT * REPLACE "
        "((place * 2654435761) % (SELECT count(*) + 7 FROM rows) AS place) FROM rows"
    )
    return found


def _clamped_to_data(source: Any, schema: Any) -> Table:
    """Outliers are cut at what the data has."""
    found = register(source, schema)
    name = found.declarations.stored("x", "numeric")
    found.database.execute(
        f"CREATE OR REPLACE TABLE rows AS SELECT * REPLACE "
        f"(least({name}, (SELECT quantile_cont({name}, 0.9) FROM rows)) AS {name}) FROM rows"
    )
    return found


@pytest.mark.parametrize(
    "broken", [_sniffed, _renumbered, _in_order, _clamped_to_data], ids=lambda f: f.__name__
)
def test_a_planted_break_is_found(
    broken: Callable[..., Table], tmp_path: Path, quiet: None
) -> None:
    assert any(violations(seed, tmp_path, 4, broken) for seed in range(25))


def test_a_planted_cast_that_fails_is_found_in_a_derived_column(
    tmp_path: Path, quiet: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = SqlWriter.nest
    monkeypatch.setattr(
        SqlWriter, "nest", lambda self, table: real(self, table).replace("TRY_CAST", "CAST")
    )
    with pytest.raises(duckdb.ConversionException):
        _ = [violations(seed, tmp_path, 6, draw=select) for seed in range(40)]


def test_a_planted_look_at_all_rows_is_found(
    tmp_path: Path, quiet: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A derived number that moves with the number of rows."""
    function = functions.FUNCTIONS["clamp"]
    moved = replace(
        function, sql=lambda arguments: f"({function.sql(arguments)} + (count(*) OVER () % 3))"
    )
    monkeypatch.setitem(functions.FUNCTIONS, "clamp", moved)
    assert any(violations(seed, tmp_path, 6, draw=select) for seed in range(25))


def test_a_planted_cast_that_fails_is_found(
    tmp_path: Path, quiet: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    kinds = {k: v.replace("TRY_CAST", "CAST") for k, v in reading._OF_TEXT.items()}
    monkeypatch.setattr(reading, "_OF_TEXT", kinds)
    monkeypatch.setattr(reading, "_POINT", reading._POINT.replace("TRY_CAST", "CAST"))
    assert any(violations(seed, tmp_path, 4) for seed in range(25))


def test_a_planted_swallowing_quote_is_found(tmp_path: Path) -> None:
    """With a reader that lets quotes span lines, one person writes and hides others' rows."""
    good = [b"p%d,a,1,1,Bonn,2020-01-01" % i for i in range(5)]
    caught = 0
    for line in UNCLEAR:
        found = []
        for rows in (good, [line, *good]):
            path = tmp_path / "people.csv"
            path.write_bytes(b"\n".join([HEADER, *rows]))
            mine = shares(_swallowing(path, SCHEMA), "count() by city")
            found.append({person: mine.get(person) for person in ("p0", "p1", "p2")})
        caught += found[0] != found[1]
    assert caught >= 3
