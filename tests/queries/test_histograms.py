"""Histograms: a row is counted between the very edges that the answer returns, as numpy counts."""

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from apiece.cli import run
from apiece.datasets import Categorical, Numeric, Schema, load
from apiece.errors import InputError
from apiece.queries import Session, register, scan
from apiece.queries.declarations import Declarations
from apiece.queries.grammar import parse
from apiece.queries.question import Bins, resolve
from apiece.queries.scan import ClampedColumn, SqlDialect

# Noise of 10⁻⁵ rows: a count is what it rounds to.
NEGLIGIBLE = {"epsilon": 1e10, "delta": 1e-6}
# Bounds, number of bins, values: many of them on edges.
GRIDS: dict[str, tuple[float, float, int, np.ndarray]] = {
    "whole numbers": (0, 10, 10, np.arange(10.0)),
    "whole numbers, both ends": (0, 9, 9, np.arange(10.0)),
    "tenths": (0, 1, 10, np.arange(11) / 10),
    "hundredths": (0, 1, 100, np.arange(101) / 100),
    "thirds": (0, 1, 3, np.arange(31) / 30),
    "ages": (0, 120, 24, np.arange(121.0)),
    "ages of adults": (17, 90, 73, np.arange(17.0, 91.0)),
    "percent": (0, 100, 7, np.arange(101.0)),
    "around zero": (-1, 1, 20, np.arange(-10, 11) / 10),
    "negative": (-50.5, -0.5, 25, np.arange(-101, 0) / 2),
    "money": (0, 0.7, 7, np.arange(71) / 100),
    "huge": (-1e60, 1e60, 10, np.linspace(-1e60, 1e60, 41)),
    "far from zero": (1e15, 1e15 + 16, 16, 1e15 + np.arange(0, 16.5, 0.5)),
    "tiny": (0, 1e-9, 10, np.arange(11) * 1e-10),
    "uneven": (0.1, 1.3, 12, np.arange(131) / 100),
    "many": (0, 100, 1000, np.arange(1001) / 10),
}


def counted(values: Any, low: float, high: float, bins: int) -> tuple[list[int], list[float]]:
    """Return the counts and the edges of a question, of one row a person."""
    rows = pd.DataFrame({"person": np.arange(len(values)), "x": values})
    schema = Schema({"x": Numeric(low, high)}, person="person", rows_per_person=1)
    (group,) = Session(rows, schema).ask(f"histogram(x, {bins})", **NEGLIGIBLE).groups
    return [round(each["estimate"]) for each in group["bins"]], group["edges"]


def disagrees(values: np.ndarray, low: float, high: float, bins: int) -> bool:
    """Return whether the counts are others than numpy's between the edges that are returned."""
    counts, edges = counted(values, low, high, bins)
    expected, _ = np.histogram(np.clip(values.astype(np.float64), low, high), bins=edges)
    return counts != expected.tolist() or sum(counts) != len(values)


@pytest.mark.parametrize("name", GRIDS)
def test_what_is_counted_follows_the_edges_that_are_returned(name: str) -> None:
    low, high, bins, values = GRIDS[name]
    beside = [values, np.nextafter(values, -np.inf), np.nextafter(values, np.inf)]
    assert not disagrees(np.concatenate(beside), low, high, bins)


def test_whole_numbers_lie_each_in_their_own_bin() -> None:
    counts, edges = counted(np.arange(10_000) % 10, 0, 10, 10)
    assert counts == [1000] * 10
    assert edges == list(range(11))


def test_an_edge_is_what_its_decimals_say() -> None:
    """So that what is written 0.3 lies on the edge 0.3, and not below 3 · 0.1."""
    counts, edges = counted(np.arange(10_000) % 10 / 10, 0, 1, 10)
    assert edges == [0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0]
    assert counts == [1000] * 10


def test_the_last_bin_has_both_its_ends_and_outliers_lie_in_the_outer_bins() -> None:
    counts, _ = counted(np.array([-7.0, 0.0, 2.0, 4.0, 4.0, np.inf, -np.inf]), 0, 4, 2)
    assert counts == [3, 4]


def test_ages_of_adult() -> None:
    ages = load("adult")["age"].to_numpy()
    assert not disagrees(ages, 0, 100, 20)
    assert not disagrees(ages, 17, 90, 10)


@pytest.mark.parametrize("kind", [pa.float32(), pa.float16(), pa.int8(), pa.decimal128(6, 1)])
def test_other_types_are_counted_as_the_numbers_that_they_are(kind: pa.DataType) -> None:
    tenths = [round(each / 10, 1) for each in range(0, 100, 1 if kind.bit_width > 8 else 10)]
    if pa.types.is_floating(kind):
        column = pa.array(np.array(tenths).astype(kind.to_pandas_dtype()), kind)
    else:
        column = pa.array(tenths).cast(kind)
    schema = Schema({"x": Numeric(0, 10)}, person="person", rows_per_person=1)
    table = pa.table({"person": [str(each) for each in range(len(tenths))], "x": column})
    (group,) = Session(table, schema).ask("histogram(x, 100)", **NEGLIGIBLE).groups
    # A narrow float is the number that it is written as, as in a CSV file: .1, not .10000000149.
    values = np.array([float(each) for each in column.to_pylist()])
    if pa.types.is_floating(kind):
        values = np.array(tenths).astype(kind.to_pandas_dtype()).astype(str).astype(float)
    expected, _ = np.histogram(values, bins=group["edges"])
    assert [round(each["estimate"]) for each in group["bins"]] == expected.tolist()


BOUND = st.floats(-1e9, 1e9) | st.integers(-1000, 1000).map(float)


@settings(max_examples=15, derandomize=True, deadline=None)
@given(BOUND, st.floats(1e-3, 1e9) | st.integers(1, 1000).map(float), st.integers(1, 40))
def test_any_grid(low: float, width: float, bins: int) -> None:
    high = low + width
    edges = np.array(resolve(parse(f"histogram(x, {bins})"), _declarations(low, high)).bins.edges)
    middles = (edges[1:] + edges[:-1]) / 2
    beside = [edges, np.nextafter(edges, -np.inf), np.nextafter(edges, np.inf), middles]
    assert not disagrees(np.concatenate(beside), low, high, bins)


def _declarations(low: float, high: float) -> Declarations:
    return Declarations("person", bounds={"x": (low, high)}, rows_per_person=1)


def test_bins_that_numbers_of_64_bits_cannot_tell_apart_are_refused() -> None:
    with pytest.raises(InputError, match="too near for numbers of 64 bits; give fewer bins"):
        resolve(parse("histogram(x, 10)"), _declarations(1e15, 1e15 + 1))
    assert len(resolve(parse("histogram(x, 8)"), _declarations(1e15, 1e15 + 1)).bins) == 8


def test_printed_edges_read_back_as_the_edges(
    tmp_path: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "people.parquet"
    pd.DataFrame({"person": range(50), "x": np.arange(50) / 50}).to_parquet(path)
    words = ["--person", "person", "--bounds", "x=0:1", "--rows-per-person", "1"]
    words += ["--epsilon", "1", "--delta", "0"]
    assert run(["query", str(path), "histogram(x, 7)", *words]) == 0
    printed = capsys.readouterr().out.splitlines()[:7]
    ends = [line.split("  ")[0].split(" to ") for line in printed]
    edges = resolve(parse("histogram(x, 7)"), _declarations(0, 1)).bins.edges
    assert [(float(low), float(high)) for low, high in ends] == list(pairwise(edges))


# Planted breaks: bins that do not follow their edges. The comparison with numpy finds each.


def _by_width(column: ClampedColumn, bins: Bins, _dialect: SqlDialect) -> str:
    """By division alone, as the bins were found before."""
    unit = f"(({column.scaled_sql} + 1) / 2)"
    return f"least(CAST(floor({unit} * {len(bins)}) AS BIGINT), {len(bins) - 1})"


def _closed_on_the_right(column: ClampedColumn, bins: Bins, dialect: SqlDialect) -> str:
    return REAL(column, bins, dialect).replace(" < ", " <= ").replace(" >= ", " > ")


def _open_at_the_end(column: ClampedColumn, bins: Bins, dialect: SqlDialect) -> str:
    high = scan.number_sql(bins.measure.high)
    return f"CASE WHEN {column.clamped_sql} < {high} THEN {REAL(column, bins, dialect)} ELSE 0 END"


def _of_other_edges(column: ClampedColumn, bins: Bins, dialect: SqlDialect) -> str:
    """The edges of numpy's linspace, which are not those that are returned."""
    edges = np.linspace(bins.measure.low, bins.measure.high, len(bins) + 1)
    return REAL(column, replace(bins, edges=tuple(edges.tolist())), dialect)


REAL = ClampedColumn.bin_sql


@pytest.mark.parametrize(
    "name", ["_by_width", "_closed_on_the_right", "_open_at_the_end", "_of_other_edges"]
)
def test_planted_bins_are_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    broken: Callable[[ClampedColumn, Bins, SqlDialect], str] = globals()[name]
    monkeypatch.setattr(ClampedColumn, "bin_sql", broken)
    low, high, bins, values = GRIDS["tenths"]
    assert disagrees(values, low, high, bins)


def test_bins_of_several_groups_and_rows_are_told_apart() -> None:
    rows = pd.DataFrame({"person": [1, 1, 2, 2], "x": [1, 2, 2, 0], "g": ["a", "b", "b", "b"]})
    columns = {"x": Numeric(0, 2), "g": Categorical(["a", "b"])}
    schema = Schema(columns, person="person", rows_per_person=2)
    groups = Session(register(rows, schema), schema).ask("histogram(x, 2) by g", **NEGLIGIBLE)
    found = [[round(each["estimate"]) for each in group["bins"]] for group in groups.groups]
    assert found == [[0, 1], [1, 2]]
