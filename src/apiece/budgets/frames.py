"""Tables with a budget column: pandas, pyarrow, CSV and Parquet."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy.typing as npt

from apiece.errors import DataError, unknown


def read_frame(frame: Any) -> Any:
    """Return a pandas table from a pandas or pyarrow one, or from a path to CSV or Parquet.

    Raises `DataError` where it cannot be read or has no rows.
    """
    import pandas as pd

    if isinstance(frame, pd.DataFrame):
        table = frame
    elif hasattr(frame, "to_pandas"):
        table = frame.to_pandas()
    else:
        path = Path(frame)
        try:
            table = pd.read_parquet(path) if path.suffix == ".parquet" else pd.read_csv(path)
        except (OSError, ValueError) as error:
            reason = str(error).splitlines()[0]
            raise DataError(
                f"{path}: cannot be read ({reason}); give a CSV or Parquet file"
            ) from None
    if len(table) == 0:
        raise DataError("table: no rows; give at least one record")
    return table


def column_of(table: Any, name: str) -> npt.NDArray[Any]:
    """Return the values of column `name`; raise `DataError` where the table lacks it."""
    if name not in table.columns:
        raise DataError(str(unknown("column", name, map(str, table.columns))))
    values: npt.NDArray[Any] = table[name].to_numpy()
    return values
