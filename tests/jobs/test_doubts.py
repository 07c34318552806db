"""What in a table and its schema looks like a mistake: told of those, silent on sound ones."""

from typing import Any

import pandas as pd
import pytest

from apiece.datasets import Categorical, Date, Numeric
from apiece.datasets.encode import encode
from apiece.datasets.schema import Feature
from apiece.errors import DataError, InputError
from apiece.jobs.config import job_from_dict
from apiece.jobs.table import (
    assign_roles,
    describe_row_doubts,
    refuse_too_wide,
    refuse_unread,
)

COLUMNS: dict[str, Feature] = {"x": Numeric(0, 9), "y": Categorical(("a", "b"))}


def rows(x: list[str], y: list[str], **options: Any) -> list[str]:
    frame = pd.DataFrame({"x": x, "y": y})
    return describe_row_doubts(
        frame, COLUMNS, encode(frame, COLUMNS), ".", with_ids=options.get("with_ids", True)
    )


def test_nothing_is_said_of_sound_tables() -> None:
    assert rows(["1", "2"] * 20, ["a", "b"] * 20) == []


def test_features_that_do_not_fit_into_memory_are_refused() -> None:
    columns = {**COLUMNS, "zip": Categorical(tuple(map(str, range(20_000))))}
    refuse_too_wide(columns, 50_000)
    with pytest.raises(DataError, match=r"7\.5 GiB; column 'zip' alone declares 20000"):
        refuse_too_wide(columns, 100_000)


def test_a_cell_of_another_case_is_counted() -> None:
    assert rows(["1"] * 4, ["A", "b", "c", "a"]) == [
        "column 'y': 2 of 4 cells are no declared value, 1 of them but for their case"
    ]


def test_what_is_clipped_is_counted() -> None:
    said = "cells lie outside their declared range and are clipped"
    assert rows(["1", "-1", "2", "3"], ["a"] * 4) == [f"column 'x': 1 of 4 {said}"]
    units = "is the range in other units?"
    assert rows(["-1"] * 4, ["a"] * 4) == [f"column 'x': 4 of 4 {said}; {units}"]


def test_gaps_that_are_not_declared_are_told_with_the_remedy() -> None:
    assert rows(["1", "", "?", ""], ["a", "b", "", "a"]) == [
        f"column {name!r}: {count}: declare missing = true to learn from such rows"
        for name, count in (
            ("x", "3 of 4 cells are no finite number, 2 of them empty"),
            ("y", "1 of 4 cells are no declared value, 1 of them empty"),
        )
    ]


def test_a_decimal_comma_is_told_with_the_remedy() -> None:
    comma = "1 of them with a comma: if it is the decimal mark, --decimal ,"
    assert rows(["1", "1,5", "2", "none"], ["a"] * 4) == [
        f"column 'x': 2 of 4 cells are no finite number, {comma}"
    ]
    assert rows(["1", "2"], ["a,b", "1,5"])[0].startswith("column 'y'")
    frame = pd.DataFrame({"x": ["1", "1,5", "2", "none"], "y": ["a"] * 4})
    found = describe_row_doubts(
        frame, COLUMNS, encode(frame, COLUMNS, decimal=","), ",", with_ids=True
    )
    assert found == ["column 'x': 1 of 4 cells are no finite number"]


def test_dates_are_told_as_dates() -> None:
    columns: dict[str, Feature] = {"born": Date("1900-01-01", "2020-01-01")}
    frame = pd.DataFrame({"born": ["1990-05-01", "01.05.1990"]})
    assert describe_row_doubts(frame, columns, encode(frame, columns), ".", with_ids=True) == [
        "column 'born': 1 of 2 cells are no date"
    ]
    frame = pd.DataFrame({"born": ["01.05.1990"] * 2})
    with pytest.raises(DataError, match=r"no date written as '%Y-%m-%d' .*'01\.05\.1990'"):
        refuse_unread(frame, columns, encode(frame, columns), ".")


def test_one_readable_cell_is_enough_not_to_refuse() -> None:
    for y in (["A", "B", "c"], ["", "", ""]):
        frame = pd.DataFrame({"x": ["1"] * 3, "y": y})
        with pytest.raises(DataError, match="'y'"):
            refuse_unread(frame, COLUMNS, encode(frame, COLUMNS), ".")
    frame = pd.DataFrame({"x": ["1"] * 3, "y": ["A", "b", "c"]})
    refuse_unread(frame, COLUMNS, encode(frame, COLUMNS), ".")


def test_copies_are_counted_only_where_nobody_is_named() -> None:
    x, y = ["1", "1", "1", "2"], ["a", "a", "b", "b"]
    assert rows(x, y) == []
    assert rows(x, y, with_ids=False)[0].startswith("1 rows are exact copies")


def test_a_column_has_one_role() -> None:
    job = job_from_dict({}, name="x", changes={"source": "t.csv", "epsilon": "e", "delta": "e"})
    with pytest.raises(InputError, match="both as epsilon and as delta"):
        assign_roles(job.data, job.budgets, "y")
