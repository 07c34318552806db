"""Cells of a table as texts and numbers: each read by itself, whatever stands in other rows."""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt

from apiece._types import Floats
from apiece.errors import DataError

if TYPE_CHECKING:
    import pandas as pd

Texts = npt.NDArray[np.object_]
_NUMBER: Final = re.compile(r"[+-]?[0-9.,]*[0-9][0-9.,]*([eE][+-]?[0-9]+)?%?")


def column(frame: pd.DataFrame, name: str, role: str) -> pd.Series[Any]:
    """Return the column `name` of a table.

    Args:
        frame: The table.
        name: Of the column.
        role: What the column is for, for the message.

    Raises:
        DataError: Where there is none, naming its role and the nearest column.

    Example:
        >>> import pandas as pd
        >>> column(pd.DataFrame({"age": [7]}), "age", "label").tolist()
        [7]
    """
    require(name, [str(c) for c in frame.columns], role)
    found: pd.Series[Any] = frame[name]
    if found.ndim != 1:
        raise DataError(f"{role} column {name!r}: occurs twice in the table; rename one of them")
    return found


def require(name: str, names: Sequence[str], role: str) -> None:
    """Raise where `name` is not among `names`.

    Args:
        name: Of a column.
        names: Those that are there.
        role: What the column is for, for the message.

    Raises:
        DataError: With the nearest name.

    Example:
        >>> require("age", ["age", "city"], "label")
    """
    if name in names:
        return
    # Where a file has no header, the names are the first person's row: none but a near one is told,
    # and none where one is empty or a number.
    named = not any(n.strip() == "" or _NUMBER.fullmatch(n.strip()) for n in names)
    near = difflib.get_close_matches(name, names, n=1, cutoff=0.5) if named else []
    hint = f"did you mean {near[0]!r}? " if near else ""
    raise DataError(
        f"{role} column {name!r}: not in the table; {hint}it has {len(names)} columns, named by "
        "the first line of a CSV file"
    )


def texts(cells: pd.Series[Any]) -> Texts:
    """Return cells as stripped texts; a null is the empty text, a whole number has no point.

    Args:
        cells: Of any types.

    Example:
        >>> import pandas as pd
        >>> texts(pd.Series([" a", None])).tolist(), texts(pd.Series([7.0, None])).tolist()
        (['a', ''], ['7', ''])
    """
    import pandas as pd

    if pd.api.types.is_bool_dtype(cells) or pd.api.types.is_integer_dtype(cells):
        plain = cells.astype(object).map(str, na_action="ignore")
    elif pd.api.types.is_float_dtype(cells):
        plain = cells.astype(object).map(lambda v: f"{v:.17g}", na_action="ignore")
    else:
        plain = cells.astype(object).map(lambda v: str(v).strip(), na_action="ignore")
    return np.asarray(plain.where(cells.notna(), "").to_numpy(dtype=object))


def as_numbers(cells: Texts, decimal: str = ".") -> Floats:
    """Return texts as floats, NaN for what is no number; "inf" is one.

    Args:
        cells: Texts.
        decimal: "." or ",".

    Example:
        >>> as_numbers(np.array(["1,5", "2", "1.5", "x"], dtype=object), ",").tolist()
        [1.5, 2.0, nan, nan]
    """
    return np.array([_number(cell, decimal) for cell in cells.tolist()], dtype=np.float64)


def _number(cell: str, decimal: str) -> float:
    if decimal == ",":
        # A point may stand for thousands here, so what has one is not read at all.
        cell = "x" if "." in cell else cell.replace(",", ".")
    try:
        value = float(cell)
    except ValueError:
        return math.nan
    return value if cell.isascii() and "_" not in cell else math.nan


def positions(cells: Texts, values: Sequence[str]) -> npt.NDArray[np.int64]:
    """Return each cell's position in `values`, −1 where it is none of them.

    A cell that is the same number written another way ("1.0" for "1") counts as that value.

    Args:
        cells: Texts.
        values: Texts, each once.

    Example:
        >>> positions(np.array(["1.0", "2", "x"], dtype=object), ["1", "2"]).tolist()
        [0, 1, -1]
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
    value = _number(cell, ".")
    return str(int(value)) if value.is_integer() else cell
