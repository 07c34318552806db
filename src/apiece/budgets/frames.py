"""Tables with a budget column: pandas, pyarrow, CSV and Parquet."""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import numpy.typing as npt

from apiece import _check
from apiece._types import Floats, Ids, Integers, Json, Mask
from apiece.budgets.levels import NO_LIMIT, Levels
from apiece.datasets import read_table
from apiece.datasets.cells import Texts, as_number, as_numbers, column, texts
from apiece.datasets.tables import PLAIN, Dialect
from apiece.errors import BudgetError, DataError, as_given

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
    to_pandas = getattr(frame, "to_pandas", None)
    table = to_pandas(ignore_metadata=True, integer_object_nulls=True) if to_pandas else frame
    if not isinstance(table, pd.DataFrame):
        raise DataError(f"table: a {type(frame).__name__}; give a table, or the path of its file")
    if len(table) == 0:
        raise DataError("table: no rows; give at least one record")
    return table


def budget_columns(
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

    def read(given: str | float | None, role: str, below: float) -> Any:
        if not isinstance(given, str):
            return given
        what, cells = f"{role} column {given!r}", texts(column(table, given, role))
        cap = no_limit_cap if role == "epsilon" else None
        if role == "epsilon" and levels is not None:
            values = levels.read(cells, what, decimal=decimal, no_limit_cap=cap, rows=count)
        else:
            values = _numbers(cells, what, role, below, decimal, cap, count)
        return values if once is None else once(values, what)

    found = {"epsilon": read(epsilon, "epsilon", math.inf), "delta": read(delta, "delta", 1.0)}
    found["excess"] = read(excess, "excess", 1.0)
    return found if levels is None else found | {"labels": levels.names_of(found["epsilon"])}


def _numbers(
    cells: Texts,
    what: str,
    role: str,
    below: float,
    decimal: str,
    no_limit_cap: float | None,
    count: Integers,
) -> Floats:
    """Return cells as numbers in (0, below), of Δ̄ in [0, below]."""

    def refusal(bad: Mask, why: str) -> BudgetError:
        row, many = int(np.flatnonzero(bad)[0]), int(count[bad].sum())
        also = f" ({many} such rows)" if many > 1 else ""
        cell = str(cells[row])
        shown = repr(cell) if math.isnan(as_number(cell)) else cell
        return BudgetError(f"{what}, row {row + 1} = {shown}: {why}{also}")

    values = as_numbers(cells, decimal)
    if role == "epsilon":
        free = np.array([cell.lower() in NO_LIMIT for cell in cells.tolist()])
        if no_limit_cap is not None:
            values[free] = _check.positive("no_limit_cap", no_limit_cap, error=BudgetError)
        elif free.any():
            raise refusal(free, _unlimited())
    if (bad := np.isnan(values)).any():
        raise refusal(bad, _why(str(cells[bad][0]), role, decimal))
    closed = role == "excess"
    good = (values >= 0) & (values <= below) if closed else (values > 0) & (values < below)
    if not good.all():
        bounds = f"[0, {below:g}]" if closed else f"(0, {below:g})"
        raise refusal(~good, f"must be in {bounds}; mend or drop these rows")
    return values


def capped(epsilon: float, no_limit_cap: float | None) -> float:
    """Return `epsilon`, or where it is infinite the steward's cap."""
    if epsilon != math.inf:
        return epsilon
    if no_limit_cap is None:
        raise BudgetError(f"epsilon = inf: {_unlimited()}")
    return _check.positive("no_limit_cap", no_limit_cap, error=BudgetError)


def ids_column(table: pd.DataFrame, name: str) -> Ids:
    """Return a column of ids: whole numbers where they are stored as such, else texts."""
    cells = column(table, name, "ids")
    remedy = f"give every record its person's id, or leave {as_given('ids')} out"
    filled = _filled(cells, f"ids column {name!r}", remedy)
    whole = all(isinstance(v, int | np.integer) and not isinstance(v, bool) for v in cells)
    return _check.record_ids(f"ids column {name!r}", cells.tolist() if whole else filled)


def person_column(table: pd.DataFrame, name: str) -> npt.NDArray[np.str_]:
    """Return a column of persons' ids, as texts; a person may have many rows."""
    remedy = "give every row its person's id, or leave the row out"
    return _filled(column(table, name, "person"), f"person column {name!r}", remedy)


def _filled(cells: pd.Series[Any], what: str, remedy: str) -> npt.NDArray[np.str_]:
    """Return cells as texts, none of which is empty; two ids never become one."""
    given, missing = cells.to_numpy(dtype=object).tolist(), cells.isna().to_numpy(dtype=bool)
    empty = [k for k, v in enumerate(given) if missing[k] or (isinstance(v, str) and not v.strip())]
    if empty:
        raise DataError(f"{what}, row {empty[0] + 1}: empty ({len(empty)} such rows); {remedy}")
    if all(isinstance(v, str) for v in given):
        padded = [k for k, v in enumerate(given) if v != v.strip()]
        if padded:
            raise DataError(
                f"{what}, row {padded[0] + 1}: blanks around the id ({len(padded)} such rows); "
                "remove them, so that it is the id that accounts and other tables have"
            )
    elif all(isinstance(v, int | np.integer) and not isinstance(v, bool) for v in given) or all(
        isinstance(v, float) and v.is_integer() and abs(v) < 2**53 for v in given
    ):
        given = [f"{int(v)}" for v in given]
    else:
        raise DataError(
            f"{what}: ids are text or whole numbers, all of one kind, and numbers with a point "
            "below 2**53; convert the column"
        )
    return _check.ids(what, given)


def _why(cell: str, role: str, decimal: str) -> str:
    """Return what is wrong with a cell that is no number, and what to do."""
    if cell == "" or cell.lower() == "nan":
        return "empty; give every record a positive number, or drop it"
    comma = as_given("decimal", ",")
    if decimal == "." and not math.isnan(as_number(cell, ",")):
        return f"not a number; if the comma is the decimal mark, pass {comma}"
    if decimal == "," and not math.isnan(as_number(cell)):
        return f"not a number under {comma}; leave that out where the point is the mark"
    if cell.endswith("%"):
        return "not a number; an epsilon or delta is no share, write it as a plain number"
    if role == "epsilon":
        return (
            "not a number; give numbers, or declare the words on the consent form, as in "
            + as_given("levels", {"low": 1, "high": 8})
        )
    return "not a number; give every record a positive number"
