"""Cells as texts and numbers: each by itself, whatever stands in other rows."""

import math

import numpy as np
import pandas as pd
import pytest

from apiece.datasets.cells import (
    locate_values,
    parse_numbers,
    read_numbers,
    read_texts,
    require_column,
    select_column,
)
from apiece.errors import DataError


@pytest.mark.parametrize(
    ("cells", "found"),
    [
        (pd.Series([" a ", None, "NA"]), ["a", "", "NA"]),
        (pd.Series([1, 2]), ["1", "2"]),
        (pd.Series([1.0, None, 0.1]), ["1", "", "0.1"]),
        (pd.Series([True, False]), ["true", "false"]),
        (pd.Series([3, None], dtype="Int64"), ["3", ""]),
    ],
)
def test_texts(cells: pd.Series, found: list[str]) -> None:
    assert read_texts(cells).tolist() == found


@pytest.mark.parametrize(
    ("cell", "decimal", "number"),
    [
        ("1.5", ".", 1.5),
        ("1,5", ",", 1.5),
        ("1.500", ",", math.nan),  # thousands, or not: nobody can tell
        ("1_000", ".", math.nan),
        ("١", ".", math.nan),
        ("", ".", math.nan),
        ("inf", ".", math.inf),
        ("nan", ".", math.nan),
        ("1e3", ".", 1000.0),
        (" 1", ".", 1.0),
        ("0x10", ".", math.nan),
        ("1e400", ".", math.inf),
        ("1.5", ",", math.nan),
    ],
)
def test_numbers(cell: str, decimal: str, number: float) -> None:
    (found,) = parse_numbers(np.array([cell], dtype=object), decimal)
    assert found == pytest.approx(number, nan_ok=True)
    np.testing.assert_array_equal(read_numbers(pd.Series([cell]), decimal), [number])


@pytest.mark.parametrize(
    "cells",
    [
        pd.Series([2**53 + 1, -(2**62) - 1]),
        pd.Series([2**64 - 1], dtype="uint64"),
        pd.Series([0.1, -0.0, np.inf, None]),
        pd.Series([0.1], dtype="float32"),
        pd.Series([3, None], dtype="Int64"),
        pd.Series([1, "2", None, "x"], dtype=object),
    ],
)
def test_stored_numbers_are_what_their_texts_say(cells: pd.Series) -> None:
    stored = read_numbers(cells) + 0.0  # zero has one sign in texts
    assert stored.tobytes() == parse_numbers(read_texts(cells)).tobytes()
    assert stored.tobytes() == read_numbers(pd.Series(read_texts(cells))).tobytes()


@pytest.mark.parametrize("form", ["bool", "boolean", "object", "TRUE", "true", "True"])
def test_a_boolean_is_one_number_however_it_is_stored(form: str) -> None:
    truth = pd.Series([True, False])
    spelled = {"TRUE": truth.astype(str).str.upper(), "true": truth.astype(str).str.lower()}
    cells = spelled.get(form, truth.astype(str) if form == "True" else None)
    cells = truth.astype(form) if cells is None else cells
    assert read_numbers(cells).tolist() == [1.0, 0.0]


def test_positions_know_the_same_number_written_another_way() -> None:
    cells = pd.Series(["1.0", "01", "2", "-0", "b", "1.5", ""])
    places, absent = locate_values(cells, ["1", "2", "b", "0"])
    assert places.tolist() == [0, 0, 1, 3, 2, -1, -1]
    assert not absent.any()


def test_with_a_marker_an_empty_cell_is_missing_too() -> None:
    """pandas leaves null where a file has NA, and nothing says which it was."""
    cells = pd.Series(["NA", None, "", " ", "a", "b"])
    places, absent = locate_values(cells, ["a"], ("NA",))
    assert places.tolist() == [-1, -1, -1, -1, 0, -1]
    assert absent.tolist() == [True, True, True, True, False, False]


def test_a_row_does_not_change_how_another_is_read() -> None:
    cells = np.array(["1", "x", "2.5"], dtype=object)
    alone = [parse_numbers(cells[k : k + 1])[0] for k in range(3)]
    np.testing.assert_array_equal(parse_numbers(cells), alone)


def test_columns_that_are_not_there() -> None:
    frame = pd.DataFrame([[1, 2, 3]], columns=["age", "city", "city"])
    assert select_column(frame, "age", "label").tolist() == [1]
    with pytest.raises(DataError, match="did you mean 'age'"):
        select_column(frame, "aeg", "label")
    with pytest.raises(DataError, match="twice"):
        select_column(frame, "city", "label")
    with pytest.raises(DataError, match=r"label column 'x'.*columns: a, …|label column 'x'"):
        require_column("x", ["a"] * 20, "label")
