"""A column of dates: the format is declared, and every cell is read by it alone."""

from __future__ import annotations

import datetime
import math
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from apiece._types import Floats
from apiece.errors import DataError

if TYPE_CHECKING:
    import pandas as pd

_EPOCH = datetime.datetime(1970, 1, 1)
# What reads alike everywhere and at any time: no names of months, no years of two digits.
_DIRECTIVES = "YmdjHMSfz"


@dataclass(frozen=True, slots=True)
class Date:
    """A column of dates known to lie in [lower, upper]: one feature, by days.

    Args:
        lower: What earlier dates are clipped to; a date, or a text as "1900-01-31".
        upper: What later dates are clipped to.
        format: How texts are written, as for `strptime`: %Y, %m, %d, %j, %H, %M, %S, %f, %z. Cells
            that a Parquet file declares as dates or times need none.
        missing: Texts that stand for no value.

    Raises:
        DataError: For ends that are no dates or in no order, and a format without a year of four
            digits or that reads otherwise in another place.

    Example:
        >>> Date("1900-01-01", "2010-12-31", format="%d.%m.%Y").lower.year
        1900
    """

    lower: datetime.date
    upper: datetime.date
    format: str = "%Y-%m-%d"
    missing: tuple[str, ...] = ()

    def __init__(
        self,
        lower: datetime.date | str,
        upper: datetime.date | str,
        format: str = "%Y-%m-%d",  # noqa: A002
        missing: tuple[str, ...] = (),
    ) -> None:
        put = object.__setattr__
        put(self, "lower", _date("lower", lower))
        put(self, "upper", _date("upper", upper))
        put(self, "format", _format(format))
        put(self, "missing", tuple(missing))
        if not self.lower < self.upper:
            raise DataError(f"lower = {self.lower} must be before upper = {self.upper}")

    @property
    def days(self) -> tuple[float, float]:
        """The ends, in days since 1970."""
        return _days(_at(self.lower)), _days(_at(self.upper))


def days_of(cells: pd.Series[Any], kind: Date, texts: list[str]) -> Floats:
    """Return cells in days since 1970, NaN for what is no date in the declared format.

    Args:
        cells: As they are.
        kind: Their declaration.
        texts: The cells as texts.

    Guarantee:
        Each cell is read by itself and the declaration.

    Example:
        >>> import pandas as pd
        >>> written = ["02.01.1970", "1970-01-02", ""]
        >>> kind = Date("1900-01-01", "2010-12-31", "%d.%m.%Y")
        >>> days_of(pd.Series(written), kind, written).tolist()
        [1.0, nan, nan]
    """
    import pandas as pd

    if pd.api.types.is_datetime64_any_dtype(cells):
        known: dict[Any, float] = {}
        return np.array([_known(cell, known) for cell in cells.tolist()], dtype=np.float64)
    read: dict[str, float] = {}
    found = [
        _of_date(cell) if isinstance(cell, datetime.date) else _of_text(text, kind.format, read)
        for cell, text in zip(cells.tolist(), texts, strict=True)
    ]
    return np.array(found, dtype=np.float64)


def _known(cell: Any, read: dict[Any, float]) -> float:
    if cell not in read:
        read[cell] = _of_date(cell)
    return read[cell]


def _of_date(cell: Any) -> float:
    """Return the days of a date or a time; NaN for pandas' "not a time"."""
    if cell != cell:
        return math.nan
    return _days(cell if isinstance(cell, datetime.datetime) else _at(cell))


def _of_text(text: str, form: str, read: dict[str, float]) -> float:
    if text not in read:
        try:
            read[text] = _days(datetime.datetime.strptime(text, form))
        except (ValueError, OverflowError):
            read[text] = math.nan
    return read[text]


def _days(time: datetime.datetime) -> float:
    if time.tzinfo is not None:
        time = time.astimezone(datetime.UTC).replace(tzinfo=None)
    return (time - _EPOCH) / datetime.timedelta(days=1)


def _at(day: datetime.date) -> datetime.datetime:
    return datetime.datetime(day.year, day.month, day.day)


def _date(end: str, value: Any) -> datetime.date:
    if isinstance(value, str):
        try:
            return datetime.date.fromisoformat(value)
        except ValueError:
            pass
    elif isinstance(value, datetime.date) and not isinstance(value, datetime.datetime):
        return value
    raise DataError(f"{end} = {value!r}: is no date; give one as in {end} = 1900-01-31")


def _format(value: Any) -> str:
    if not isinstance(value, str) or "%Y" not in value.replace("%%", ""):
        raise DataError(
            f'format = {value!r}: must have a year of four digits, %Y, as in format = "%d.%m.%Y"'
        )
    for directive in re.findall("%(.?)", value.replace("%%", "")):
        if not directive or directive not in _DIRECTIVES:
            raise DataError(
                f"format = {value!r}: %{directive} is not taken, as it may read otherwise in "
                f"another place; give one of {', '.join('%' + d for d in _DIRECTIVES)}"
            )
    return value
