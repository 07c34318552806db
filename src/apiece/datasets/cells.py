"""Cells of a table as texts, numbers and dates: each read by itself, whatever other rows hold."""

from __future__ import annotations

import datetime
import difflib
import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt

from apiece._types import Floats
from apiece.errors import DataError

if TYPE_CHECKING:
    import pandas as pd

    Cells: TypeAlias = pd.Series[Any]

Texts = npt.NDArray[np.object_]
Missing: TypeAlias = bool | Sequence[str]
_NUMBER: Final = re.compile(r"[+-]?[0-9.,]*[0-9][0-9.,]*([eE][+-]?[0-9]+)?%?")


def column(frame: pd.DataFrame, name: str, role: str) -> Cells:
    """Return the column `name` of a table."""
    require(name, [str(c) for c in frame.columns], role)
    series: Cells = frame[name]
    if series.ndim != 1:
        raise DataError(f"{role} column {name!r}: occurs twice in the table; rename one of them")
    return series


def require(name: str, names: Sequence[str], role: str) -> None:
    """Raise where `name` is not among `names`."""
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


def texts(cells: Cells) -> Texts:
    """Return cells as stripped texts; a null is the empty text, a whole number has no point."""
    import pandas as pd

    given, null = cells.to_numpy(dtype=object).tolist(), cells.isna().to_numpy(dtype=bool)
    written = "{:.17g}".format if pd.api.types.is_float_dtype(cells) else lambda it: str(it).strip()
    texts = ["" if none else written(it) for it, none in zip(given, null.tolist(), strict=True)]
    return np.array(texts, dtype=object)


def numbers(cells: Cells, decimal: str = ".") -> Floats:
    """Return cells as floats, NaN for what is no number; stored numbers are taken as they are."""
    from pandas.api.types import is_bool_dtype, is_float_dtype, is_integer_dtype

    if not is_bool_dtype(cells) and (is_float_dtype(cells) or is_integer_dtype(cells)):
        return cells.to_numpy(dtype=np.float64, na_value=np.nan)
    return as_numbers(texts(cells), decimal)


def as_numbers(cells: Texts, decimal: str = ".") -> Floats:
    """Return texts as floats, NaN for what is no number; "inf" is one."""
    return np.array([as_number(cell, decimal) for cell in cells.tolist()], dtype=np.float64)


def as_number(cell: str, decimal: str = ".") -> float:
    """Return a text as a float, NaN for what is no number."""
    if decimal == ",":
        # A point may stand for thousands here, so what has one is not read at all.
        cell = "x" if "." in cell else cell.replace(",", ".")
    try:
        value = float(cell)
    except ValueError:
        return math.nan
    return value if cell.isascii() and "_" not in cell else math.nan


def positions(cells: Texts, values: Sequence[str]) -> npt.NDArray[np.int64]:
    """Return each cell's position in `values`, −1 where it is none of them."""
    # A cell that is the same number written another way ("1.0" for "1") counts as that value.
    import pandas as pd

    index = pd.Index(list(values), dtype=object)
    places = np.asarray(index.get_indexer(pd.Index(cells, dtype=object)), dtype=np.int64)
    if any(value == _plain_number(value) for value in values if not math.isnan(as_number(value))):
        rest = np.flatnonzero(places < 0)
        codes, others = pd.factorize(cells[rest])
        plain = pd.Index([_plain_number(cell) for cell in others], dtype=object)
        places[rest] = index.get_indexer(plain)[codes]
    return places


def _plain_number(cell: str) -> str:
    value = as_number(cell)
    return str(int(value)) if value.is_integer() else cell


def markers(missing: Missing) -> tuple[str, ...]:
    """Return the texts that stand for no value; True is the empty cell, as a null is read too."""
    return ("",) * missing if isinstance(missing, bool) else texts_of("missing", missing)


def texts_of(name: str, values: object) -> tuple[str, ...]:
    """Return declared values as texts, each once."""
    if isinstance(values, str) or not isinstance(values, Iterable):
        raise DataError(f"{name} = {values!r}: must be a list")
    texts = tuple(str(value).strip() for value in values)
    if len(set(texts)) < len(texts):
        raise DataError(f"{name}: a value occurs twice; list each once")
    return texts


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
        missing: As of `Numeric`.

    Raises:
        DataError: For ends that are no dates or not in order, and a format without a year of four
            digits, or one that depends on the locale.

    Example:
        >>> Date("1900-01-01", "2010-12-31", format="%d.%m.%Y").lower.year
        1900
    """

    lower: datetime.date
    upper: datetime.date
    format: str = "%Y-%m-%d"
    missing: Missing = ()

    def __init__(
        self,
        lower: datetime.date | str,
        upper: datetime.date | str,
        format: str = "%Y-%m-%d",  # noqa: A002
        missing: Missing = (),
    ) -> None:
        put = object.__setattr__
        put(self, "lower", _date("lower", lower))
        put(self, "upper", _date("upper", upper))
        put(self, "format", _format(format))
        put(self, "missing", markers(missing))
        if not self.lower < self.upper:
            raise DataError(f"lower = {self.lower} must be before upper = {self.upper}")

    @property
    def days(self) -> tuple[float, float]:
        """The ends, in days since 1970."""
        return _days(self.lower, ""), _days(self.upper, "")


def days_of(cells: Cells, kind: Date, texts: Sequence[str]) -> Floats:
    """Return cells in days since 1970, NaN for what is no date in the declared format."""
    given = [
        cell if isinstance(cell, datetime.date) else text
        for cell, text in zip(cells.tolist(), texts, strict=True)
    ]
    known = {each: _days(each, kind.format) for each in dict.fromkeys(given)}
    return np.array([known[each] for each in given], dtype=np.float64)


def _days(value: datetime.date | str, form: str) -> float:
    """Return a date, a time or a text in days since 1970."""
    if isinstance(value, str):
        try:
            return _days(datetime.datetime.strptime(value, form), form)
        except (ValueError, OverflowError):
            return math.nan
    if value != value:  # pandas' "not a time"
        return math.nan
    if not isinstance(value, datetime.datetime):
        value = datetime.datetime(value.year, value.month, value.day)
    if value.tzinfo is not None:
        value = value.astimezone(datetime.UTC).replace(tzinfo=None)
    return (value - _EPOCH) / datetime.timedelta(days=1)


def _date(end: str, value: object) -> datetime.date:
    if isinstance(value, str):
        try:
            return datetime.date.fromisoformat(value)
        except ValueError:
            pass
    elif isinstance(value, datetime.date) and not isinstance(value, datetime.datetime):
        return value
    raise DataError(f"{end} = {value!r}: is no date; give one as in {end} = 1900-01-31")


def _format(value: object) -> str:
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
