"""What an estimator is given, as declared columns: nothing is learned from the rows."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
from sklearn.utils.validation import validate_data

from apiece.datasets import (
    Categorical,
    Date,
    Feature,
    Numeric,
    Schema,
    Skip,
    encode,
    read_schema,
)
from apiece.errors import DataError, InputError

Columns = dict[str, Feature]


def frame_of(estimator: Any, X: Any, *, reset: bool) -> pd.DataFrame:
    """Return X as a table with a name for each column, checked as scikit-learn checks it.

    An array is of numbers; its columns are called x0, x1, …

    Args:
        estimator: That is fitted or asked; it keeps the number and the names of the columns.
        X: A table (pandas, or what has `to_pandas`), or an array.
        reset: Whether X is what it is fitted to.

    Raises:
        ValueError: For what is no such table, or has other columns than the one fitted to.
    """
    if hasattr(X, "to_pandas"):
        X = X.to_pandas()
    if isinstance(X, pd.DataFrame):
        if len(X) == 0:
            raise DataError("X: Found array with 0 sample(s); a minimum of 1 is required")
        validate_data(estimator, X, reset=reset, skip_check_array=True)
        return X.set_axis([str(name) for name in X.columns], axis="columns")
    array = validate_data(estimator, X, reset=reset, dtype="numeric", ensure_all_finite=False)
    return pd.DataFrame(array, columns=[f"x{i}" for i in range(array.shape[1])])


def declared(columns: Any, names: list[str]) -> Columns:
    """Return the declaration of each feature.

    Args:
        columns: A declaration by name, a `Schema` or the path of its file; or one `Numeric` for
            all columns.
        names: Of the table's columns.

    Raises:
        InputError: Where columns are not declared, or declared ones are not there.
    """
    if isinstance(columns, Numeric):
        return dict.fromkeys(names, columns)
    if isinstance(columns, str | Path):
        columns = read_schema(columns)
    if isinstance(columns, Schema):
        columns = columns.columns
    kinds = (Numeric, Categorical, Date, Skip)
    if not isinstance(columns, Mapping) or not all(isinstance(c, kinds) for c in columns.values()):
        raise InputError(
            "columns: ranges and categories read from people's rows would leak them; declare them: "
            "Numeric(lower, upper) for all columns, or a mapping of names to Numeric, Categorical, "
            "Date or Skip, or a Schema"
        )
    undeclared = [name for name in names if name not in columns]
    absent = [name for name in columns if name not in names]
    if undeclared or absent:
        what = "are not declared" if undeclared else "are declared, and not in X"
        shown = ", ".join(map(repr, (undeclared or absent)[:8]))
        raise InputError(
            f"columns: {shown} {what}; declare each column of X and no other, Skip() for one that "
            "is not to be used"
        )
    return Schema("columns", columns).features(but=set())


def features_of(frame: pd.DataFrame, columns: Columns) -> npt.NDArray[np.float32]:
    """Return the features of rows to be predicted.

    Args:
        frame: The rows.
        columns: As declared.

    Raises:
        DataError: For a row with a number that cannot be read and is no declared missing marker.
    """
    encoded = encode(frame, columns)
    if encoded.faulty.any():
        unread = encoded.unread.items()
        names = [n for n, c in unread if c and not isinstance(columns[n], Categorical)]
        raise DataError(
            f"X: {int(encoded.faulty.sum())} rows have no number or date in {names[0]!r} or a "
            "column like it, and nothing can be predicted for them; mend them, or declare missing="
            '("",) before training'
        )
    return encoded.features
