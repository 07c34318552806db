"""The scan by hand: one row a person and cell, in whole grid steps, and only so many rows each."""

import math
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import random_worlds

from apiece.datasets import Categorical, Numeric, Schema
from apiece.errors import DataError
from apiece.queries import register, scan
from apiece.queries.declarations import Declarations
from apiece.queries.grammar import parse
from apiece.queries.quantiles import Grid
from apiece.queries.question import Question, resolve
from apiece.queries.scan import DUCKDB, Scan, Sums
from apiece.queries.sql import parse_statement
from apiece.queries.table import DuckDBContributions, Table

GRID = 2.0**-10
SCHEMA = Schema({"x": Numeric(0, 8), "g": Categorical(["u", "v"])}, person="id", rows_per_person=2)
ROWS = pd.DataFrame({
    "id": ["a", "a", "b", "c", "c", "c", "d"],
    "x": [8.0, 4.0, 2.0, 8.0, 8.0, 8.0, None],
    "g": ["u", "v", "u", "v", "v", "v", "u"],
})  # fmt: skip


@contextmanager
def scanned(text: str, rows: pd.DataFrame = ROWS) -> Iterator[DuckDBContributions]:
    """What everybody adds to a query's sums."""
    table, query = register(rows, SCHEMA), parse(text)
    question = resolve(query, table.declarations)
    with table.contributions(question, GRID) as found:
        yield found


def test_sums_are_whole_grid_steps_of_rows_that_count() -> None:
    with scanned("sum(x) by g") as found:  # of the bound 8: 1, ½, ¼, 1, 1 and nothing
        assert found.totals(None) == {0: [1024 + 256], 1: [512 + 2 * 1024]}
        people, norms = found.norms(2)
    assert people.to_pylist() == ["a", "b", "c"]  # not d, who has no number
    exact = [math.hypot(1024, 512), 256, 2048]
    assert (norms >= exact).all()
    assert norms == pytest.approx(exact, rel=1e-11)


@pytest.mark.parametrize("seed", range(6))
def test_of_one_row_a_person_each_cell_is_there_once(seed: int, tmp_path: Path) -> None:
    """Over random tables and queries: so that nothing has to be added up before it is squared."""
    rng = random.Random(seed)
    schema = replace(random_worlds.SCHEMA, rows_per_person=1)
    table = register(random_worlds.world(rng).source(tmp_path, mine=True, seed=seed), schema)
    pairs = "count(*), count(DISTINCT (person, cell))"
    for text in (
        "quantile(x, 0.5) by city",
        "count(persons) by city, source",
        *(random_worlds.query(rng) for _ in range(5)),
    ):
        query = parse(text)
        with table.contributions(resolve(query, table.declarations), GRID) as found:
            query = f"SELECT {pairs} FROM ({found.sql}) AS contributions"
            all_, distinct = found.cursor.execute(query).fetchone()
        assert all_ == distinct


def scans_that_differ(seed: int, folder: Path) -> list[str]:
    """Return the questions to a random table of which the quicker scans are not the whole one.

    The whole one numbers everybody's rows and takes those that count.
    """
    rng = random.Random(seed)
    schema = replace(random_worlds.SCHEMA, rows_per_person=rng.randint(1, 4))
    source = random_worlds.world(rng).source(folder, mine=True, seed=seed)
    table = register(source, schema)
    texts = ["count(persons)", "count(persons) by city", "SELECT count(DISTINCT city) FROM people"]
    texts += [random_worlds.query(rng) for _ in range(3)]
    texts += [random_worlds.select(rng) for _ in range(2)]
    return [
        f"{text} of {schema.rows_per_person} rows"
        for text in texts
        for parsed in parse_statement(text).queries
        if is_different(table, resolve(parsed, table.declarations), rng)
    ]


def is_different(table: Table, question: Question, rng: random.Random) -> bool:
    """Return whether the scans that a question may have differ in what somebody adds."""
    grid = GRID if question.grid is None else 1.0
    whole = scan.contributions_sql(Scan.from_question(question, table.declarations), grid, DUCKDB)
    with table.contributions(question, grid) as found:
        pairs = sorted(found.cursor.execute(whole).fetchall())
        is_equal = sorted(found.cursor.execute(found.sql).fetchall()) == pairs
        is_equal &= found.totals(None) == add_pairs(pairs)
        if question.grid is not None:
            is_equal &= count_pairs(found, None, question) == add_pairs(pairs)
        people, _ = found.norms(2)
        ids = people.to_pylist()
        mask = np.array([rng.random() < 0.6 for _ in ids], dtype=bool)
        paid = {person for person, has_paid in zip(ids, mask, strict=True) if has_paid}
        held = [pair for pair in pairs if str(table.people[pair[0]]) in paid]
        is_equal &= found.totals(mask) == add_pairs(held)
        if question.grid is not None:
            is_equal &= count_pairs(found, mask, question) == add_pairs(held)
    return not is_equal


def add_pairs(pairs: list[tuple[int, ...]]) -> Sums:
    sums: Sums = {}
    for _, cell, *steps in pairs:
        sums[cell] = [a + b for a, b in zip(sums.get(cell, [0] * len(steps)), steps, strict=True)]
    return sums


def count_pairs(found: DuckDBContributions, paid: Any, question: Question) -> Sums:
    cells, rows = found.count_rows(paid, math.prod(question.shape))
    assert (np.diff(cells) > 0).all()
    return {cell: [count] for cell, count in zip(cells.tolist(), rows.tolist(), strict=True)}


def test_the_quicker_scans_are_the_whole_one(tmp_path: Path) -> None:
    """Over random tables, whose people have up to four rows, of which one to four count."""
    assert [line for seed in range(12) for line in scans_that_differ(seed, tmp_path)] == []


@pytest.mark.slow
@pytest.mark.parametrize("block", range(5))
def test_the_quicker_scans_are_the_whole_one_more_often(block: int, tmp_path: Path) -> None:
    seeds = range(1000 + 80 * block, 1000 + 80 * block + 80)
    assert [line for seed in seeds for line in scans_that_differ(seed, tmp_path)] == []


def no_surplus_as(change: Callable[[Question, int], bool]) -> Callable[[Question, Any], bool]:
    return lambda question, most: most is not None and change(question, most)


REAL = scan.has_no_surplus
PLANTED = {
    "rows beyond those that count": no_surplus_as(lambda _question, _most: True),
    "one row more": no_surplus_as(lambda question, most: REAL(question, most - 1)),
    "a person's groups for their rows": no_surplus_as(
        lambda question, most: REAL(replace(question, persons=True), most)
    ),
}


@pytest.mark.parametrize("name", [*PLANTED, "persons by their rows"])
def test_a_scan_that_is_too_quick_is_found(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if name in PLANTED:
        monkeypatch.setattr(scan, "has_no_surplus", PLANTED[name])
    else:
        monkeypatch.setattr(scan, "_adds_every_row", scan.has_no_surplus)
    assert any(scans_that_differ(seed, tmp_path) for seed in range(40))


def test_only_those_who_paid_are_summed() -> None:
    with scanned("sum(x) by g") as found:
        found.norms(2)
        for paid, expected in (
            ([True, False, True], {0: [1024], 1: [512 + 2048]}),
            ([False, False, False], {}),
            ([True, True, True], {0: [1024 + 256], 1: [512 + 2048]}),
        ):
            assert found.totals(np.array(paid)) == expected


def test_a_row_counts_where_its_condition_holds_and_its_group_is_declared() -> None:
    with scanned("count() where x > 3") as found:
        assert found.totals(None) == {0: [4 * 1024]}  # a twice, c at most twice
    more = pd.concat([ROWS, pd.DataFrame({"id": ["e"], "x": [1.0], "g": ["w"]})])
    with scanned("count() by g", more) as found:
        assert found.totals(None) == {0: [3 * 1024], 1: [3 * 1024]}


def test_a_row_of_a_quantile_is_on_the_point_nearest_to_its_clamped_value() -> None:
    rows = pd.DataFrame({"id": list("abcde"), "x": [8.0, -99.0, 0.1 + 0.2, 1e9, None], "g": "u"})
    column = SCHEMA.columns["x"]
    low, high = column.lower, column.upper
    grid = Grid.from_bounds(low, high)
    with scanned("quantile(x, 0.5)", rows) as found:
        totals, (people, norms) = found.totals(None), found.norms(1)
    values = {grid.value(point): rows for point, (rows,) in totals.items()}
    assert values == {high: 2 * 1024, low: 1024, 0.3: 1024}
    assert people.to_pylist() == list("abcd")
    assert norms == pytest.approx(1024)


def test_a_column_that_is_not_declared_is_refused_whatever_the_rows() -> None:
    with pytest.raises(DataError, match="'y'"):
        resolve(parse("sum(x) where y > 1"), Declarations.from_schema(SCHEMA))
