"""One cell at a time: how what is stored becomes text or a number, whatever the other cells hold.

Every function here is total: a cell that cannot be read is missing, and is nobody's error.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from datetime import UTC, date, datetime, timedelta
from decimal import Context, Decimal
from typing import Any, Final

import numpy as np

from apiece.datasets.blocks import UNREADABLE, cell_text
from apiece.errors import UnsupportedError

_EXACT: Final = Context(prec=400)
_DIGITS: Final = 310  # of a whole number: as many as doubles reach


def text_of(cell: Any) -> str | None:
    """Return a cell as text: whole numbers without a fraction, dates as ISO 8601 in UTC.

    >>> [text_of(c) for c in ("a", 7, 7.0, 0.5, True, float("nan"), None)]
    ['a', '7', '7', '0.5', 'true', None, None]
    """
    match cell:
        case str():
            return str(cell)
        case bool() | np.bool_():
            return "true" if cell else "false"
        case int() | np.integer():
            return str(int(cell)) if abs(int(cell)) < 10**_DIGITS else None
        case float() | np.floating():
            return _number_text(float(cell))
        case Decimal():
            return _decimal_text(cell)
        case date():
            return _moment_text(cell)
    return None


def _number_text(value: float) -> str | None:
    if math.isnan(value):
        return None
    # From 2^53 on, different whole numbers are one double.
    whole = value.is_integer() and abs(value) < 2**53
    return str(int(value)) if whole else repr(value)


def _decimal_text(value: Decimal) -> str | None:
    if not (value.is_finite() and abs(value.adjusted()) <= _DIGITS):
        return None
    return format(value.normalize(_EXACT), "f") if value else "0"


def _moment_text(value: date) -> str | None:
    if value != value:  # pandas' NaT is a datetime
        return None
    if not isinstance(value, datetime):
        return value.isoformat()
    try:
        plain = value if value.tzinfo is None else value.astimezone(UTC).replace(tzinfo=None)
        return datetime(*plain.timetuple()[:6], plain.microsecond).isoformat(sep=" ")
    except (OverflowError, ValueError, NotImplementedError):  # beyond the years 1 to 9999
        return None


def texts(column: Any) -> Any:
    """Return an Arrow column as text, cell by cell; raise `UnsupportedError` for lists and such.

    Only the storage type, which is declared by the file or table, decides how cells are read.
    """
    import pyarrow as pa

    kind = column.type
    if pa.types.is_dictionary(kind):
        return texts(column.cast(kind.value_type))
    if pa.types.is_null(kind):
        return pa.chunked_array([pa.nulls(len(column), pa.string())])
    if _is_text(kind):
        return _valid(column)
    if pa.types.is_integer(kind):
        return column.cast(pa.string())
    if pa.types.is_boolean(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind):
        return as_text(column.to_pylist())
    if pa.types.is_timestamp(kind) or pa.types.is_date(kind):
        return as_text(_moments(column))
    raise UnsupportedError(f"stored as {kind}, which is neither text, a number nor a date")


def numbers(column: Any) -> Any:
    """Return an Arrow column as doubles where it holds numbers, and as text where it does not."""
    import pyarrow as pa

    kind = column.type
    if pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind):
        return column.cast(pa.float64(), safe=False)
    return texts(column)


def as_text(cells: Iterable[Any]) -> Any:
    """Return cells of any Python types as an Arrow column of text, one by one."""
    import pyarrow as pa

    column = [
        cell if type(cell) is str and cell.isascii() else _encodable(text_of(cell))
        for cell in cells
    ]
    return pa.chunked_array([pa.array(column, pa.large_string())])


def _encodable(text: str | None) -> str | None:
    return None if text is None or UNREADABLE.search(text) else text


def _is_text(kind: Any) -> bool:
    import pyarrow as pa

    return bool(
        pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind)
    )


def _valid(column: Any) -> Any:
    """Return a column of text in which cells that are not UTF-8 are missing."""
    import pyarrow as pa

    try:
        column.validate(full=True)
        return column
    except pa.ArrowInvalid:
        cells = column.cast(pa.large_binary()).to_pylist()
        return as_text([None if c is None else cell_text(c) for c in cells])


def _moments(column: Any) -> list[datetime | None]:
    """Return dates and times; None where the calendar's years 1 to 9999 do not reach."""
    import pyarrow as pa

    kind = column.type
    whole = column.cast(pa.int32()) if pa.types.is_date32(kind) else column
    unit = "D" if pa.types.is_date32(kind) else "ms" if pa.types.is_date64(kind) else kind.unit
    micros = {"D": 86_400_000_000, "s": 1_000_000, "ms": 1000, "us": 1, "ns": 1}[unit]
    start = datetime(1970, 1, 1)
    found: list[datetime | None] = []
    for cell in whole.cast(pa.int64()).to_pylist():
        try:
            after = None if cell is None else cell * micros // (1000 if unit == "ns" else 1)
            found.append(None if after is None else start + timedelta(microseconds=after))
        except OverflowError:
            found.append(None)
    return found
