"""Cells of a table as texts, numbers and dates: each read by itself, whatever other rows hold."""

from __future__ import annotations

import datetime
import difflib
import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeAlias, overload

import numpy as np
import numpy.typing as npt

from apiece import _check
from apiece._types import Floats, Integers, Mask
from apiece.errors import DataError, InputError
from apiece.tables.values import ISO, Declared, boolean_of, moment_of, number_of, text_of

if TYPE_CHECKING:
    import pandas as pd

    from apiece.datasets.tables import PlainTable

    Cells: TypeAlias = pd.Series[Any]

# Texts, one a cell; "" where there is no value.
Texts = npt.NDArray[np.object_]
# Markers of missing values; True is the empty cell.
Missing: TypeAlias = bool | Sequence[str]
# A declared value: a text, or a number or boolean that cells of any container are compared with.
Value: TypeAlias = str | float
# A name that may be a person's number, in a file without a header.
_NUMBER: Final = re.compile(r"[+-]?[0-9.,]*[0-9][0-9.,]*([eE][+-]?[0-9]+)?%?")


@overload
def select_column(frame: pd.DataFrame, name: str, role: str) -> Cells: ...
@overload
def select_column(
    frame: pd.DataFrame | PlainTable, name: str, role: str
) -> Cells | Sequence[object]: ...
def select_column(
    frame: pd.DataFrame | PlainTable, name: str, role: str
) -> Cells | Sequence[object]:
    """Return the column `name` of a table; `role` says in messages what it is for."""
    # Names as texts: pandas may have numbers for them.
    require_column(name, [str(column) for column in frame.columns], role)
    cells: Cells | Sequence[object] = frame[name]
    # Of two columns with one name pandas gives a table.
    if getattr(cells, "ndim", 1) != 1:
        raise DataError(f"{role} column {name!r}: occurs twice in the table; rename one of them")
    return cells


def require_column(name: str, names: Sequence[str], role: str) -> None:
    """Raise `DataError` where `name` is not among the names of a table's columns."""
    if name in names:
        return
    # Where a file has no header, the names are the first person's row: the message holds none but a
    # near one, and not even that where one of them is empty or a number.
    hint = ""
    if not any(_is_cell_like(column) for column in names):
        near = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
        if near:
            hint = f"did you mean {near[0]!r}? "
    raise DataError(
        f"{role} column {name!r}: not in the table; {hint}it has {len(names)} columns, named by "
        "the first line of a CSV file"
    )


def _is_cell_like(name: str) -> bool:
    """Whether a column's name may be the cell of a row: empty, or a number."""
    stripped = name.strip()
    return stripped == "" or _NUMBER.fullmatch(stripped) is not None


def read_texts(cells: Cells | Sequence[object]) -> Texts:
    """Return cells as texts, as `text_of` writes them; a cell without a value is the empty text."""
    return np.array([_read_text(cell) for cell in read_values(cells)], dtype=object)


def _read_text(cell: object) -> str:
    if cell is None:
        return ""
    text = text_of(cell)
    # What is neither a text, a number nor a date (a list, bytes) is shown as Python shows it.
    return str(cell).strip() if text is None else text


def read_values(cells: Cells | Sequence[object]) -> list[object]:
    """Return cells as Python's values, None for null, a narrow float by its shortest text."""
    # A column of a plain table has no type.
    if isinstance(cells, Sequence):
        return [None if is_missing(cell) else cell for cell in cells]
    from pandas.api.types import is_float_dtype

    # Asked of pandas, which knows each container's own null.
    is_null = cells.isna().to_numpy(dtype=bool).tolist()
    if is_float_dtype(cells):
        stored = _widen_floats(cells).tolist()
    else:
        stored = cells.to_numpy(dtype=object).tolist()
    return [None if null else cell for cell, null in zip(stored, is_null, strict=True)]


def is_missing(cell: object) -> bool:
    """Whether a cell of a plain table has no value: None, or NaN."""
    return cell is None or (isinstance(cell, float | np.floating) and math.isnan(cell))


def _widen_floats(cells: Cells) -> Floats:
    """Return stored floats as doubles, narrow ones by their shortest text: .1 stays .1."""
    # Arrow's types name the NumPy type that they stand for.
    dtype = getattr(cells.dtype, "numpy_dtype", cells.dtype)
    if not isinstance(dtype, np.dtype) or dtype.itemsize >= 8:
        return cells.to_numpy(dtype=np.float64, na_value=np.nan)
    narrow = cells.to_numpy(dtype=dtype, na_value=np.nan)
    # Through the shortest text that reads back as the narrow number: .1 and not .10000000149.
    return narrow.astype(str).astype(np.float64)


def read_numbers(cells: Cells, decimal: str = ".") -> Floats:
    """Return cells as floats, NaN for a cell without a number; a boolean is 1 or 0."""
    from pandas.api.types import is_bool_dtype, is_float_dtype, is_integer_dtype

    # By the stored type where it says what a cell is; texts are read one by one.
    if is_float_dtype(cells):
        return _widen_floats(cells)
    if is_bool_dtype(cells) or is_integer_dtype(cells):
        return cells.to_numpy(dtype=np.float64, na_value=np.nan)
    return np.array([_read_number(cell, decimal) for cell in read_values(cells)], dtype=np.float64)


def _read_number(cell: object, decimal: str) -> float:
    """Return the number in a cell, NaN where there is none."""
    if isinstance(cell, str):
        # Only letters can spell a truth: "1" and "0" are numbers already.
        truth = boolean_of(cell) if cell.strip().isalpha() else None
        return parse_number(cell, decimal) if truth is None else float(truth)
    if isinstance(cell, bool | np.bool_):
        return float(cell)
    number = number_of(cell)
    return parse_number(_read_text(cell)) if number is None else float(number)


def parse_numbers(cells: Texts, decimal: str = ".") -> Floats:
    """Return texts as floats, NaN for a text that is no number; "inf" is one."""
    return np.array([parse_number(cell, decimal) for cell in cells.tolist()], dtype=np.float64)


def parse_number(cell: str, decimal: str = ".") -> float:
    """Return a text as a float, NaN where it is no number."""
    if decimal == ",":
        # A point may stand for thousands here, so what has one is not read at all.
        cell = "x" if "." in cell else cell.replace(",", ".")
    try:
        value = float(cell)
    except ValueError:
        return math.nan
    # `float` takes underscores and digits of other alphabets, which no number here has.
    return value if cell.isascii() and "_" not in cell else math.nan


def locate_values(
    cells: Cells, declared: Sequence[object], missing: Sequence[str] = (), decimal: str = "."
) -> tuple[Integers, Mask]:
    """Return each cell's position among declared values, −1 where none, and which lack a value.

    A cell lacks a value where it is one of the markers `missing`. Where there are markers, so does
    an empty one: a reader that knows the marker, as pandas knows NA, leaves nothing else of it.
    """
    markers: list[str] = []
    if missing:
        # The empty text is a marker beside others, unless it is a declared value.
        markers = [marker for marker in dict.fromkeys(("", *missing)) if marker not in declared]
    known = Declared([*declared, *markers], decimal=decimal)
    # Markers come after the declared values, so that a position tells them apart.
    positions = known.positions(read_values(cells))
    absent = positions >= len(declared)
    positions[absent] = -1
    return positions, absent


def list_markers(missing: Missing) -> tuple[str, ...]:
    """Return the texts that stand for no value; True is the empty cell, as a null is read too."""
    if isinstance(missing, bool):
        return ("",) if missing else ()
    return normalize_texts("missing", missing)


def normalize_texts(name: str, values: object) -> tuple[str, ...]:
    """Return declared values as texts without blanks around them; `name` is for messages."""
    if isinstance(values, str) or not isinstance(values, Iterable):
        raise DataError(f"{name} = {values!r}: must be a list")
    texts = tuple(str(value).strip() for value in values)
    if len(set(texts)) < len(texts):
        raise DataError(f"{name}: a value occurs twice; list each once")
    return texts


def read_declared(values: object) -> tuple[Value, ...]:
    """Return declared values as texts, numbers and booleans; a date is its text, as ISO 8601."""
    if isinstance(values, str) or not isinstance(values, Iterable):
        raise DataError(f"values = {values!r}: must be a list")
    declared = tuple(map(_read_value, values))
    # One text is one value: 1 and "1" stand for the same cells.
    if len(set(map(text_of, declared))) < len(declared):
        raise DataError("values: a value occurs twice; list each once")
    return declared


def _read_value(value: object) -> Value:
    """Return a declared value as Python's own text, number or boolean, or raise `DataError`."""
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, datetime.date):
        value = text_of(value)
    if isinstance(value, str):
        return value.strip()
    # NaN and whole numbers of more than 310 digits have no text.
    if not isinstance(value, (int, float)) or text_of(value) is None:
        raise DataError(f"values: {value!r} is neither a text nor a number; give one")
    return value


# Microseconds of a day.
_DAY: Final = 86_400_000_000
# Directives of `strptime` that read alike everywhere and at any time: no names of months, no years
# of two digits.
_DIRECTIVES: Final = "YmdjHMSfz"


@dataclass(frozen=True, slots=True)
class Date:
    """A column of dates known to lie in [lower, upper]: one feature by days, or a curve.

    Args:
        lower: What earlier dates are clipped to; a date, or a text as "1900-01-31". Training needs
            both ends; without them the column can be compared in questions, and no more.
        upper: What later dates are clipped to.
        format: How texts are written, as for `strptime`: %Y, %m, %d, %j, %H, %M, %S, %f, %z. Cells
            that a Parquet file declares as dates or times need none.
        missing: True for empty cells, or the texts that stand for no value, of which "" is the
            empty cell. They become an indicator.
        values: Dates that questions may group by; training does not use them.
        knots: Points of the curve that training fits in place of a straight line, as of `Numeric`.

    Raises:
        DataError: For ends that are no dates or not in order, one end without the other, a format
            without a year of four digits, or one that depends on the locale, and another number of
            knots than of `Numeric`.

    Example:
        >>> from apiece.datasets import Date
        >>> Date("1900-01-01", "2010-12-31", format="%d.%m.%Y").lower.year
        1900
    """

    lower: datetime.date
    upper: datetime.date
    format: str = ISO
    missing: Missing = ()
    values: Sequence[Value] = ()
    knots: int = 0

    def __init__(
        self,
        lower: datetime.date | str | None = None,
        upper: datetime.date | str | None = None,
        format: str = ISO,  # noqa: A002
        missing: Missing = (),
        values: Iterable[object] = (),
        knots: int = 0,
    ) -> None:
        # Both ends or none: one of them alone declares no range.
        if (lower is None) != (upper is None):
            end = "lower" if lower is None else "upper"
            raise DataError(f"{end} is missing; give both ends of the range")
        set_field = object.__setattr__
        set_field(
            self, "lower", _check_date("lower", datetime.date.min if lower is None else lower)
        )
        set_field(
            self, "upper", _check_date("upper", datetime.date.max if upper is None else upper)
        )
        set_field(self, "format", _check_format(format))
        set_field(self, "missing", list_markers(missing))
        set_field(self, "values", read_declared(values))
        set_field(self, "knots", check_knots(knots))
        if not self.lower < self.upper:
            raise DataError(f"lower = {self.lower} must be before upper = {self.upper}")

    @property
    def has_range(self) -> bool:
        """Whether a range is declared; without one all dates of the calendar are meant."""
        return (self.lower, self.upper) != (datetime.date.min, datetime.date.max)

    @property
    def days(self) -> tuple[float, float]:
        """The ends, in days since 1970."""
        return _count_days(self.lower), _count_days(self.upper)


def check_knots(knots: object, name: str = "knots") -> int:
    """Return a number of knots, 0 or at least 2; raise `DataError` for another value."""
    try:
        count = _check.count(name, knots, least=0)
    except InputError as error:
        raise DataError(str(error)) from None
    if count == 1:
        raise DataError(f"{name} = 1: a curve has at least 2 knots; give 0 for a straight line")
    return count


def read_days(cells: Cells, kind: Date) -> Floats:
    """Return cells in days since 1970, NaN for a cell that is no date in the declared format."""
    stored = read_values(cells)
    # Each text is read once.
    known = {cell: _count_days(cell, kind.format) for cell in stored if isinstance(cell, str)}
    days = [known[cell] if isinstance(cell, str) else _count_days(cell) for cell in stored]
    return np.array(days, dtype=np.float64)


def _count_days(cell: object, form: str = ISO) -> float:
    """Return a date, a time or a text in days since 1970, NaN where it is none of them."""
    moment = moment_of(cell, form)
    return math.nan if moment is None else moment / _DAY


def _check_date(end: str, value: object) -> datetime.date:
    """Return an end of a range as a date, or raise `DataError`."""
    if isinstance(value, str):
        try:
            return datetime.date.fromisoformat(value)
        except ValueError:
            pass
    elif isinstance(value, datetime.date) and not isinstance(value, datetime.datetime):
        return value
    raise DataError(f"{end} = {value!r}: is no date; give one as in {end} = 1900-01-31")


def _check_format(value: object) -> str:
    """Return a format of `strptime` that has a full year and no locale, or raise `DataError`."""
    # "%%" is a percent sign, and no directive.
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
