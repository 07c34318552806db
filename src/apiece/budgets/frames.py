"""Tables with a budget column: pandas, pyarrow, CSV and Parquet."""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from apiece import _check
from apiece._types import Floats, Integers, Json, Mask
from apiece.budgets.levels import NO_LIMIT, Levels
from apiece.datasets import read_table
from apiece.datasets.cells import Texts, parse_number, parse_numbers, read_texts, select_column
from apiece.datasets.tables import PLAIN, Dialect
from apiece.errors import BudgetError, DataError, as_given
from apiece.tables.containers import pandas_of

if TYPE_CHECKING:
    import pandas as pd

Once: TypeAlias = Callable[[Floats, str], Floats]


def _unlimited() -> str:
    return f"no limit is no epsilon; give what it is read as, as in {as_given('no_limit_cap', 8)}"


def read_frame(frame: object, dialect: Dialect = PLAIN) -> pd.DataFrame:
    """Return a pandas table from one, a pyarrow one, or a path. Raises `DataError` for no rows."""
    import pandas as pd

    if isinstance(frame, str | os.PathLike):
        return read_table(Path(frame), dialect)
    table = pandas_of(frame)
    if not isinstance(table, pd.DataFrame):
        raise DataError(f"table: a {type(frame).__name__}; give a table, or the path of its file")
    if len(table) == 0:
        raise DataError("table: no rows; give at least one record")
    return table


def read_budgets(
    table: pd.DataFrame,
    *,
    epsilon: str | None,
    delta: str | float,
    excess: str | float | None = None,
    levels: Levels | None = None,
    no_limit_cap: float | None = None,
    decimal: str = ".",
    once: Once | None = None,
    rows: Integers | None = None,
) -> Json:
    """Return what the rows of a table ask for, as `Budgets` takes it, each row read by itself.

    once: what each unit has, from what each row says and its name in a message. rows: how many of a
    file a row stands for. Raises `BudgetError` for a cell that is no budget.
    """
    count = np.ones(len(table), np.int64) if rows is None else rows

    def read(given: str | float | None, role: str) -> Any:
        if not isinstance(given, str):
            return given
        what, cells = f"{role} column {given!r}", read_texts(select_column(table, given, role))
        cap = no_limit_cap if role == "epsilon" else None
        if role == "epsilon" and levels is not None:
            values = levels.read(cells, what, decimal=decimal, no_limit_cap=cap, rows=count)
        else:
            values = _numbers(cells, what, role, decimal, cap, count)
        return values if once is None else once(values, what)

    given = {"epsilon": epsilon, "delta": delta, "excess": excess}
    columns = {role: read(each, role) for role, each in given.items()}
    return columns if levels is None else columns | {"labels": levels.names_of(columns["epsilon"])}


def _numbers(
    cells: Texts,
    what: str,
    role: str,
    decimal: str,
    no_limit_cap: float | None,
    count: Integers,
) -> Floats:
    """Return cells as numbers: ε in (0, ∞), δ in (0, 1), Δ̄ in [0, 1]."""

    def refusal(bad: Mask, why: str) -> BudgetError:
        row, many = int(np.flatnonzero(bad)[0]), int(count[bad].sum())
        also = f" ({many} such rows)" if many > 1 else ""
        cell = str(cells[row])
        shown = repr(cell) if math.isnan(parse_number(cell)) else cell
        return BudgetError(f"{what}, row {row + 1} = {shown}: {why}{also}")

    values = parse_numbers(cells, decimal)
    if role == "epsilon":
        free = np.array([cell.lower() in NO_LIMIT for cell in cells.tolist()])
        if no_limit_cap is not None:
            values[free] = _check.positive("no_limit_cap", no_limit_cap, error=BudgetError)
        elif free.any():
            raise refusal(free, _unlimited())
    if (bad := np.isnan(values)).any():
        raise refusal(bad, _why(str(cells[bad][0]), role, decimal))
    closed, below = role == "excess", math.inf if role == "epsilon" else 1.0
    good = (values >= 0) & (values <= below) if closed else (values > 0) & (values < below)
    if not good.all():
        bounds = f"[0, {below:g}]" if closed else f"(0, {below:g})"
        raise refusal(~good, f"must be in {bounds}; mend or drop these rows")
    return values


def apply_cap(epsilon: float, no_limit_cap: float | None) -> float:
    """Return `epsilon`, or where it is infinite the steward's cap."""
    if epsilon != math.inf:
        return epsilon
    if no_limit_cap is None:
        raise BudgetError(f"epsilon = inf: {_unlimited()}")
    return _check.positive("no_limit_cap", no_limit_cap, error=BudgetError)


def _why(cell: str, role: str, decimal: str) -> str:
    """Return what is wrong with a cell that is no number, and what to do."""
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
