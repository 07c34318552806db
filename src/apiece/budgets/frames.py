"""Tables with a budget column: pandas, pyarrow, columns by name, CSV and Parquet."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from apiece import _check
from apiece._lazy import require
from apiece._types import Floats, Integers, Json, Mask
from apiece.budgets.levels import NO_LIMIT, Levels
from apiece.datasets.cells import Texts, parse_number, parse_numbers, read_texts, select_column
from apiece.datasets.tables import PLAIN, Dialect, PlainTable, read_columns, read_table
from apiece.errors import BudgetError, DataError, as_given
from apiece.tables.containers import pandas_of

if TYPE_CHECKING:
    import pandas as pd

# From a value a row, and its title in messages, to a value a person: `Units.once`.
Reduce: TypeAlias = Callable[[Floats, str], Floats]


def _describe_missing_cap() -> str:
    return f"no limit is no epsilon; give what it is read as, as in {as_given('no_limit_cap', 8)}"


def read_budget_table(
    frame: object, names: Collection[str], dialect: Dialect = PLAIN
) -> pd.DataFrame | PlainTable:
    """Return a table with the columns of budgets; columns by name and CSV files without pandas.

    names: of the columns that are needed. Raises `DataError` for no rows.
    """
    # A path, columns by name, or a table; only the last needs pandas.
    if isinstance(frame, str | os.PathLike):
        return read_columns(Path(frame), names, dialect)
    if isinstance(frame, Mapping):
        return _gather_columns(frame)
    return read_frame(frame, dialect)


def _gather_columns(columns: Mapping[Any, Any]) -> PlainTable:
    """Return a table from columns by name, each a list or an array."""
    cells: dict[str, list[object]] = {}
    for name, column in columns.items():
        if not isinstance(column, list | tuple | np.ndarray) or getattr(column, "ndim", 1) != 1:
            raise DataError(
                f"table: column {name!r} is a {type(column).__name__}; give each column as a list "
                "or an array with an entry a row, or the whole as a table"
            )
        cells[str(name)] = list(column)
    lengths = set(map(len, cells.values()))
    if len(lengths) > 1:
        raise DataError("table: columns of different lengths; give each one entry a row")
    if not any(lengths):
        raise DataError(_NO_ROWS)
    return PlainTable(list(cells), cells)


_NO_ROWS = "table: no rows; give at least one record"


def read_frame(frame: object, dialect: Dialect = PLAIN) -> pd.DataFrame:
    """Return a pandas table from one, a pyarrow one, or a path. Raises `DataError` for no rows."""
    require("tables")
    import pandas as pd

    if isinstance(frame, str | os.PathLike):
        return read_table(Path(frame), dialect)
    table = pandas_of(frame)
    if not isinstance(table, pd.DataFrame):
        raise DataError(f"table: a {type(frame).__name__}; give a table, or the path of its file")
    if len(table) == 0:
        raise DataError(_NO_ROWS)
    return table


def read_budget_columns(
    table: pd.DataFrame | PlainTable,
    *,
    epsilon: str | None,
    delta: str | float,
    excess: str | float | None = None,
    levels: Levels | None = None,
    no_limit_cap: float | None = None,
    decimal: str = ".",
    once: Reduce | None = None,
    rows: Integers | None = None,
) -> Json:
    """Return the arguments of `Budgets` that the rows of a table ask for, each read by itself.

    epsilon, delta, excess: names of columns, or numbers for all. once: reduces rows to persons.
    rows: how many rows of a file each row stands for. Raises `BudgetError` for a cell that is no
    budget.
    """
    counts = np.ones(len(table), np.int64) if rows is None else rows

    def read_column(column: str | float | None, role: str) -> Any:
        if not isinstance(column, str):
            return column
        title = f"{role} column {column!r}"
        cells = read_texts(select_column(table, column, role))
        # A cap is for ε alone: no δ and no Δ̄ is without limit.
        cap = no_limit_cap if role == "epsilon" else None
        if role == "epsilon" and levels is not None:
            values = levels.read(cells, title, decimal=decimal, no_limit_cap=cap, rows=counts)
        else:
            values = _parse_budgets(cells, title, role, decimal, cap, counts)
        # Each row is judged by itself before rows of one person are compared.
        return values if once is None else once(values, title)

    columns = {
        "epsilon": read_column(epsilon, "epsilon"),
        "delta": read_column(delta, "delta"),
        "excess": read_column(excess, "excess"),
    }
    if levels is not None:
        columns["labels"] = levels.names_of(columns["epsilon"])
    return columns


def _parse_budgets(
    cells: Texts,
    title: str,
    role: str,
    decimal: str,
    no_limit_cap: float | None,
    counts: Integers,
) -> Floats:
    """Return cells as numbers: ε in (0, ∞), δ in (0, 1), Δ̄ in [0, 1].

    counts: how many rows of a file each cell stands for.
    """

    def make_error(bad: Mask, reason: str) -> BudgetError:
        row = int(np.flatnonzero(bad)[0])
        bad_rows = int(counts[bad].sum())
        suffix = f" ({bad_rows} such rows)" if bad_rows > 1 else ""
        cell = str(cells[row])
        # A number is shown as it is written, anything else in quotes.
        shown = repr(cell) if math.isnan(parse_number(cell)) else cell
        return BudgetError(f"{title}, row {row + 1} = {shown}: {reason}{suffix}")

    values = parse_numbers(cells, decimal)
    if role == "epsilon":
        # By its words, before the number is judged: inf is a number too.
        unlimited = np.array([cell.lower() in NO_LIMIT for cell in cells.tolist()])
        if no_limit_cap is not None:
            values[unlimited] = _check.positive("no_limit_cap", no_limit_cap, error=BudgetError)
        elif unlimited.any():
            raise make_error(unlimited, _describe_missing_cap())
    unreadable = np.isnan(values)
    if unreadable.any():
        cell = str(cells[unreadable][0])
        raise make_error(unreadable, _describe_unreadable(cell, role, decimal))
    if role == "excess":
        valid = (values >= 0) & (values <= 1.0)
        bounds = "[0, 1]"
    elif role == "epsilon":
        valid = (values > 0) & (values < math.inf)
        bounds = "(0, inf)"
    else:
        valid = (values > 0) & (values < 1.0)
        bounds = "(0, 1)"
    if not valid.all():
        raise make_error(~valid, f"must be in {bounds}; mend or drop these rows")
    return values


def apply_cap(epsilon: float, no_limit_cap: float | None) -> float:
    """Return `epsilon`, or the steward's cap where it is infinite."""
    if epsilon != math.inf:
        return epsilon
    if no_limit_cap is None:
        raise BudgetError(f"epsilon = inf: {_describe_missing_cap()}")
    return _check.positive("no_limit_cap", no_limit_cap, error=BudgetError)


def _describe_unreadable(cell: str, role: str, decimal: str) -> str:
    """Return the mistake in a cell that is no number, and its remedy."""
    # The likeliest mistake first.
    if cell == "" or cell.lower() == "nan":
        return "empty; give every record a positive number, or drop it"
    comma = as_given("decimal", ",")
    if decimal == "." and not math.isnan(parse_number(cell, ",")):
        return f"not a number; if the comma is the decimal mark, pass {comma}"
    if decimal == "," and not math.isnan(parse_number(cell)):
        return f"not a number under {comma}; leave that out where the point is the mark"
    if cell.endswith("%"):
        return "not a number; an epsilon or delta is no share, write it as a plain number"
    if role == "epsilon":
        return (
            "not a number; give numbers, or declare the words on the consent form, as in "
            + as_given("levels", {"low": 1, "high": 8})
        )
    return "not a number; give every record a positive number"
