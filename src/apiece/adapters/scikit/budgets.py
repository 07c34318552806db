"""Budgets as `fit` is given them: one for all, or one a row; of persons, the same in all rows."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from apiece import _check
from apiece.budgets import Budgets
from apiece.errors import BudgetError, DataError


def budgets_of(epsilon: Any, delta: Any, people: npt.NDArray[Any] | None, rows: int) -> Budgets:
    """Return the budgets of the records, or of the persons, that are trained on.

    Args:
        epsilon: For all, or one entry a row.
        delta: The same.
        people: (rows,) Each row's person; None where each row is a record of its own.
        rows: How many there are.

    Raises:
        BudgetError: For values that are no budgets, another number of them, or two rows of one
            person that differ.
    """
    if epsilon is None:
        raise BudgetError("epsilon: missing; give fit an ε for all, or one for each row")
    values = [
        _of_rows("epsilon", _check.positive_array("epsilon", epsilon, error=BudgetError), rows),
        _of_rows(
            "delta", _check.positive_array("delta", delta, below=1.0, error=BudgetError), rows
        ),
    ]
    if people is None:
        return Budgets(*values)
    ids, first, person = np.unique(people, return_index=True, return_inverse=True)
    for name, each in zip(("epsilon", "delta"), values, strict=True):
        if (each != each[first][person]).any():
            raise BudgetError(
                f"{name}: rows of one person differ in it; a person has one budget, and each of "
                "their rows must say the same"
            )
    return Budgets(*(each[first] for each in values), ids=ids)


def ids_of(people: Any, rows: int) -> npt.NDArray[Any] | None:
    """Return each row's person as texts or whole numbers; None where nobody is named.

    Args:
        people: (rows,) Ids.
        rows: How many there are.

    Raises:
        DataError: For another number of ids, or ids of another kind.
    """
    if people is None:
        return None
    ids = _check.ids("people", people)
    if ids.shape != (rows,):
        raise DataError(f"people: {ids.size} ids; give one for each of {rows} rows")
    return ids


def _of_rows(name: str, values: npt.NDArray[np.float64], rows: int) -> npt.NDArray[np.float64]:
    if values.shape not in ((), (rows,)):
        raise BudgetError(
            f"{name}: shape {values.shape} for {rows} rows; give one number, or one for each row"
        )
    return np.broadcast_to(values, rows)
