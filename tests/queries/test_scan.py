"""The scan by hand: one row a person and cell, in whole grid steps, and only so many rows each."""

import math
import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import random_worlds

from apiece.datasets import Categorical, Numeric, Schema
from apiece.errors import DataError
from apiece.queries import register
from apiece.queries.declarations import Declarations
from apiece.queries.grammar import parse
from apiece.queries.quantiles import Grid
from apiece.queries.question import resolve
from apiece.queries.table import DuckDBContributions

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
            all_, distinct = found.cursor.execute(f"SELECT {pairs} FROM contributions").fetchone()
        assert all_ == distinct


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
