"""Tables with a budget column: pandas, pyarrow, CSV and Parquet."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from apiece import _check
from apiece._types import Floats
from apiece.datasets import read_table
from apiece.datasets.cells import as_numbers, column, texts
from apiece.datasets.tables import PLAIN, Dialect
from apiece.errors import BudgetError, DataError

if TYPE_CHECKING:
    import pandas as pd

NO_LIMIT = frozenset({"inf", "+inf", "infinity", "∞", "no limit", "unlimited"})
_UNLIMITED = "no limit is no epsilon; name the number it is read as, as in --no-limit-cap 8"


def read_frame(frame: Any, dialect: Dialect = PLAIN) -> pd.DataFrame:
    """Return a pandas table from a pandas or pyarrow one, or from a path to CSV or Parquet.

    Raises `DataError` where it cannot be read or has no rows.
    """
    import pandas as pd

    if isinstance(frame, pd.DataFrame):
        table = frame
    elif hasattr(frame, "to_pandas"):
        table = frame.to_pandas(ignore_metadata=True, integer_object_nulls=True)
    else:
        return read_table(Path(frame), dialect)
    if len(table) == 0:
        raise DataError("table: no rows; give at least one record")
    return table


def budget_column(
    table: pd.DataFrame,
    name: str,
    role: str,
    *,
    below: float,
    decimal: str = ".",
    no_limit_cap: float | None = None,
) -> Floats:
    """Return a column of ε, δ or Δ̄ as floats, each row read by itself."""
    cells = texts(column(table, name, role))
    values = as_numbers(cells, decimal)
    free = np.array([cell.lower() in NO_LIMIT for cell in cells.tolist()])
    if role == "epsilon" and no_limit_cap is not None:
        values[free] = _check.positive("no_limit_cap", no_limit_cap, error=BudgetError)
    elif role == "epsilon" and free.any():
        raise _refusal(cells, free, name, role, _UNLIMITED)
    bad = np.isnan(values)
    if bad.any():
        raise _refusal(cells, bad, name, role, _why(str(cells[bad][0]), decimal))
    closed = role == "excess"
    bad = ~((values >= 0) & (values <= below)) if closed else ~((values > 0) & (values < below))
    if bad.any():
        bounds = f"[0, {below:g}]" if closed else f"(0, {below:g})"
        raise _refusal(cells, bad, name, role, f"must be in {bounds}; mend or drop these rows")
    return values


def capped(epsilon: Any, no_limit_cap: float | None) -> Any:
    """Return `epsilon`, or where it is infinite the steward's cap."""
    if epsilon != math.inf:
        return epsilon
    if no_limit_cap is None:
        raise BudgetError(f"epsilon = inf: {_UNLIMITED}")
    return _check.positive("no_limit_cap", no_limit_cap, error=BudgetError)


def ids_column(table: pd.DataFrame, name: str) -> npt.NDArray[Any]:
    """Return a column of ids: whole numbers where they are stored as such, else texts."""
    cells = column(table, name, "ids")
    filled = _filled(
        cells, f"ids column {name!r}", "give every record its person's id, or leave --ids out"
    )
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
    elif _all_whole(given):
        given = [f"{int(v)}" for v in given]
    else:
        raise DataError(
            f"{what}: ids are text or whole numbers, all of one kind, and numbers with a point "
            "below 2**53; convert the column"
        )
    return _check.ids(what, given)


def _all_whole(given: list[Any]) -> bool:
    """Whether all are whole numbers of one kind, as which each of them is one text."""
    if all(isinstance(v, int | np.integer) and not isinstance(v, bool) for v in given):
        return True
    return all(isinstance(v, float) and v.is_integer() and abs(v) < 2**53 for v in given)


def _why(cell: str, decimal: str) -> str:
    if cell == "" or cell.lower() == "nan":
        return "empty; give every record a positive number, or drop it"
    if decimal == "." and not math.isnan(as_numbers(np.array([cell], dtype=object), ",")[0]):
        return "not a number; if the comma is the decimal mark, pass --decimal ,"
    if decimal == "," and not math.isnan(as_numbers(np.array([cell], dtype=object))[0]):
        return "not a number under --decimal ,; leave that out where the point is the mark"
    if cell.endswith("%"):
        return "not a number; an epsilon or delta is no share, write it as a plain number"
    return "not a number; give every record a positive number"


def _refusal(
    cells: npt.NDArray[np.object_], bad: npt.NDArray[np.bool_], name: str, role: str, why: str
) -> BudgetError:
    row, count = int(np.flatnonzero(bad)[0]), int(bad.sum())
    also = f" ({count} such rows)" if count > 1 else ""
    cell = str(cells[row])
    shown = cell if not math.isnan(as_numbers(cells[row : row + 1])[0]) else repr(cell)
    return BudgetError(f"{role} column {name!r}, row {row + 1} = {shown}: {why}{also}")
