"""Reading a table of people from CSV or Parquet, every cell as it stands."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from apiece.errors import BudgetError, DataError, InputError

if TYPE_CHECKING:
    import pandas as pd

Floats = npt.NDArray[np.float64]
PARQUET = (".parquet", ".pq")


def read_table(path: str | Path) -> pd.DataFrame:
    """Return the rows of a CSV (.csv, .tsv, also compressed) or Parquet file.

    CSV cells stay texts, stripped of the blanks after a delimiter, so that a category called "NA"
    is not taken for a missing value: what is missing is for the schema to say.
    Raises `DataError` for a path that cannot be read, a file without rows or repeated columns.
    """
    import pandas as pd

    path = Path(path)
    try:
        if path.suffix in PARQUET:
            frame = pd.read_parquet(path)
        else:
            separator = "\t" if ".tsv" in path.suffixes else ","
            frame = pd.read_csv(
                path,
                sep=separator,
                dtype=str,
                keep_default_na=False,
                skipinitialspace=True,
                encoding="utf-8-sig",
                index_col=False,
            )
    except (OSError, ValueError) as error:
        reason = " ".join(str(error).split())[:160]
        raise DataError(f"{path}: cannot be read ({reason}); give a CSV or Parquet file") from None
    if frame.empty:
        raise DataError(f"{path}: it has no rows; give a table with one row a record")
    frame.columns = frame.columns.astype(str)
    return frame


def read_header(path: str | Path) -> dict[str, str | None]:
    """Return the names of the columns, with the storage type where the file's header has one.

    A CSV's first line and a Parquet file's schema are read, and no row.
    """
    import pandas as pd
    import pyarrow.parquet as pq

    path = Path(path)
    try:
        if path.suffix in PARQUET:
            return {field.name: str(field.type) for field in pq.read_schema(path)}
        separator = "\t" if ".tsv" in path.suffixes else ","
        head = pd.read_csv(path, sep=separator, nrows=0, encoding="utf-8-sig")
    except (OSError, ValueError) as error:
        reason = " ".join(str(error).split())[:160]
        raise DataError(f"{path}: cannot be read ({reason}); give a CSV or Parquet file") from None
    return dict.fromkeys(str(name).strip() for name in head.columns)


def column(frame: pd.DataFrame, name: str, role: str) -> pd.Series[Any]:
    """Return the column `name`, or raise `DataError` naming its role and the nearest column."""
    require(name, list(frame.columns), role)
    found: pd.Series[Any] = frame[name]
    return found


def require(name: str, names: Sequence[str], role: str) -> None:
    """Raise `DataError` where `name` is not among `names`, with the nearest one."""
    if name in names:
        return
    near = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
    hint = f"did you mean {near[0]!r}? " if near else ""
    shown = ", ".join(names[:12]) + (", …" if len(names) > 12 else "")
    raise DataError(f"{role} column {name!r}: not in the table; {hint}(columns: {shown})")


def numbers(
    frame: pd.DataFrame, name: str, role: str, error: type[InputError] = BudgetError
) -> Floats:
    """Return a column as floats; raise `error` naming the first row that is no number."""
    import pandas as pd

    cells = column(frame, name, role)
    values = pd.to_numeric(cells, errors="coerce").to_numpy(dtype=np.float64, na_value=np.nan)
    bad = np.flatnonzero(np.isnan(values))
    if bad.size:
        cell = cells.iloc[int(bad[0])]
        what = "empty" if pd.isna(cell) or str(cell).strip() == "" else "not a number"
        raise error(
            f"{role} column {name!r}, row {int(bad[0]) + 1} = {cell!r}: {what} "
            f"({bad.size} such rows); give every record a positive number"
        )
    return values


def texts(cells: pd.Series[Any]) -> npt.NDArray[np.object_]:
    """Return cells as stripped texts; a null is the empty text, a whole number has no point."""
    import pandas as pd

    if pd.api.types.is_bool_dtype(cells) or pd.api.types.is_integer_dtype(cells):
        plain = cells.astype(object).map(str, na_action="ignore")
    elif pd.api.types.is_float_dtype(cells):
        plain = cells.astype(object).map(lambda v: f"{v:.17g}", na_action="ignore")
    else:
        plain = cells.astype(object).map(lambda v: str(v).strip(), na_action="ignore")
    return np.asarray(plain.where(cells.notna(), "").to_numpy(dtype=object))


def positions(cells: npt.NDArray[np.object_], values: Sequence[str]) -> npt.NDArray[np.int64]:
    """Return each cell's position in `values`, −1 where it is none of them.

    A cell that is the same number written another way ("1.0" for "1") counts as that value.
    """
    import pandas as pd

    index = pd.Index(list(values), dtype=object)
    found = np.asarray(index.get_indexer(pd.Index(cells, dtype=object)), dtype=np.int64)
    rest = found < 0
    if rest.any():
        plain = {
            cell: _plain_number(cell) for cell in pd.unique(cells[rest]) if isinstance(cell, str)
        }
        renamed = np.array([plain.get(cell, cell) for cell in cells[rest]], dtype=object)
        found[rest] = index.get_indexer(pd.Index(renamed, dtype=object))
    return found


def _plain_number(cell: str) -> str:
    try:
        value = float(cell)
    except ValueError:
        return cell
    return str(int(value)) if value.is_integer() else cell
