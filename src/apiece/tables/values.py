"""Values of cells: what a cell says, whatever container it lies in and however it is spelled.

A value is a text, a number, a boolean or a moment. A stored type says which; a cell of a text table
has no type, and is compared with a declared value by each kind that the declared value has. So 1,
"1.0" and "01" are one number, True and "TRUE" one boolean, a date and its midnight one moment. No
other row is looked at, and which kinds there are follows from what is declared alone.
"""

from __future__ import annotations

import math
import re
import unicodedata
from collections.abc import Callable, Hashable, Iterable, Sequence
from contextlib import suppress
from datetime import UTC, date, datetime, timedelta
from decimal import Context, Decimal, InvalidOperation
from typing import Final

import numpy as np
import numpy.typing as npt

# Digits of a whole number that is exact, at most: as many as doubles reach.
_DIGITS: Final = 310
# Arithmetic on decimals that rounds none of so many digits.
_EXACT: Final = Context(prec=400)
# From here on different whole numbers are one double.
_WHOLE: Final = 2**53
# From which moments are counted, in UTC.
_EPOCH: Final = datetime(1970, 1, 1)
# Types of cells that have a value; others, as lists, have none and cannot be looked up.
_SCALARS: Final = (str, bool, int, float, Decimal, date, np.generic)
# Texts of booleans, in lower case.
_WORDS: Final = {"true": True, "false": False}
# A number as people write it in ASCII: at least one digit, and an exponent of four digits at most.
_NUMBER: Final = re.compile(r"[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]{1,4})?", re.ASCII)
# A date or time as ISO 8601 writes it, and its distance from UTC.
_MOMENT: Final = re.compile(
    r"\d{4}-\d{1,2}-\d{1,2}"
    r"([ T]\d{2}:\d{2}(:\d{2}(\.\d{1,9})?)?(Z|[+-]\d{2}(:?\d{2})?)?)?",
    re.ASCII,
)
# The format of dates where none is declared.
ISO: Final = "%Y-%m-%d"
# Everything before a distance from UTC; there is a clock, with a colon, in front of it.
_OFFSET: Final = re.compile(r"(.*:.*?)([+-])(\d{2}):?(\d{2})?")


def text_of(cell: object) -> str | None:
    """Return a cell as text: stripped, in normal form C, whole numbers without a fraction.

    Dates are written as ISO 8601 in UTC. A null, NaN, a list and the like are None.
    """
    match cell:
        case str():
            return plain_text(cell)
        case bool() | np.bool_():
            return "true" if cell else "false"
        case int() | np.integer():
            number = int(cell)
            # Longer numbers have no text: nothing exact is known of them beyond doubles.
            return str(number) if abs(number) < 10**_DIGITS else None
        case float() | np.floating():
            if math.isnan(cell):
                return None
            # Narrow floats by their shortest text, as people wrote them.
            double = widen_float(cell)
            # Above 2⁵³ a double stands for several whole numbers, and is written with its exponent.
            if double.is_integer() and abs(double) < _WHOLE:
                return str(int(double))
            return repr(double)
        case Decimal():
            # The exponent is checked first: 1E+999999 would be written out in full otherwise.
            if not cell.is_finite() or abs(cell.adjusted()) > _DIGITS:
                return None
            # "f" without exponent; a zero may have a sign or many digits, and is "0".
            return format(cell.normalize(_EXACT), "f") if cell else "0"
        case date():
            return _write_moment(cell)
    return None


def plain_text(text: str) -> str:
    """Return a text without blanks around it, in Unicode's normal form C."""
    return unicodedata.normalize("NFC", str(text).strip())


def widen_float(value: float | np.floating) -> float:
    """Return the double of a number's shortest text: .1 for the float32 nearest to .1."""
    if isinstance(value, np.float32 | np.float16):
        return float(str(value))
    return float(value)


def number_of(cell: object, decimal: str = ".") -> str | None:
    """Return the number in a cell as text, the same for all its spellings; None if there is none.

    Whole numbers are exact to 310 digits, others are written as the nearest double. Numbers are
    finite. Texts have the decimal mark `decimal`. A boolean is no number here.

    >>> number_of("1.0"), number_of("-.50"), number_of(np.float32(0.1)), number_of("0,5", ",")
    ('1', '-0.5', '0.1', '0.5')
    """
    match cell:
        case bool() | np.bool_():
            return None
        case str():
            text = cell.strip()
            if decimal == ",":
                # A point may stand for thousands here, so what has one is no number.
                # An empty text is no number.
                text = "" if "." in text else text.replace(",", ".")
            return _normalize_number(text) if _NUMBER.fullmatch(text) else None
        case int() | np.integer():
            return text_of(cell)
        case float() | np.floating():
            return _normalize_number(repr(widen_float(cell))) if math.isfinite(cell) else None
        case Decimal():
            return _normalize_number(str(cell)) if cell.is_finite() else None
    return None


def _normalize_number(text: str) -> str | None:
    """Return the one text of a number: digits if it is whole, its nearest double's otherwise."""
    # Decimal reads all digits, so that whole numbers stay exact.
    try:
        value = Decimal(text)
    except InvalidOperation:
        return None
    if not value:
        return "0"
    if abs(value.adjusted()) > _DIGITS:
        return None
    # Digits and exponent in their shortest form: 1.0, 1e0 and 1 are one number.
    plain = value.normalize(_EXACT)
    if plain == plain.to_integral_value(context=_EXACT):
        return format(plain, "f")
    return repr(float(plain))


def boolean_of(cell: object, decimal: str = ".") -> bool | None:
    """Return the truth in a cell: a boolean, true or false in any case, or the number 1 or 0."""
    match cell:
        case bool() | np.bool_():
            return bool(cell)
        # ASCII alone, as other alphabets have letters that look or fold alike.
        case str() if cell.isascii() and (word := cell.strip().lower()) in _WORDS:
            return _WORDS[word]
    # Numbers other than 1 and 0 are no truth.
    return {"1": True, "0": False}.get(number_of(cell, decimal) or "")


def moment_of(cell: object, form: str = ISO) -> int | None:
    """Return a date or time in microseconds since 1970, in UTC; None for what is neither.

    A text is read in a format of `strptime`, by default as ISO 8601, where a time of day and a
    distance from UTC may follow; without that distance it is in UTC.

    >>> moment_of(date(1970, 1, 2)) == moment_of("1970-01-02 01:00+01:00") == 86_400_000_000
    True
    """
    if isinstance(cell, str):
        text = cell.strip()
        # ISO 8601 is read here: `strptime` knows neither offsets without minutes nor fractions
        # beyond microseconds.
        if form == ISO:
            return _moment_of_text(text) if _MOMENT.fullmatch(text) else None
        try:
            cell = datetime.strptime(text, form)
        except (ValueError, OverflowError):
            return None
    # pandas' NaT is a datetime that does not equal itself.
    if not isinstance(cell, date) or cell != cell:
        return None
    if not isinstance(cell, datetime):
        # A date is its midnight in UTC.
        return _count_microseconds(datetime(cell.year, cell.month, cell.day))
    # Pandas' timestamps and shifted ones may lie beyond the years 1 to 9999.
    with suppress(OverflowError, ValueError, NotImplementedError):
        # With a distance from UTC: moved to UTC, and then without one.
        if cell.tzinfo is not None:
            cell = cell.astimezone(UTC).replace(tzinfo=None)
        return _count_microseconds(datetime(*cell.timetuple()[:6], cell.microsecond))
    return None


def _moment_of_text(text: str) -> int | None:
    """Return the moment of a text of the form `_MOMENT`, in microseconds since 1970, in UTC."""
    offset = timedelta(0)
    if text.endswith("Z"):
        text = text[:-1]
    # The sign of the offset is the last one after a colon: days have hyphens as well.
    elif (match := _OFFSET.fullmatch(text)) is not None:
        text, sign, hours, minutes = match.groups()
        offset = timedelta(hours=int(hours), minutes=int(minutes or 0))
        if int(hours) > 23 or int(minutes or 0) > 59:
            return None
        offset = -offset if sign == "-" else offset
    day_text, _, time = text.replace("T", " ").partition(" ")
    clock, _, fraction = time.partition(".")
    parts = [int(part) for part in clock.split(":") if part]
    # Missing parts of the clock are zero.
    hour, minute, second = (*parts, 0, 0, 0)[:3]
    # Digits beyond microseconds are cut off.
    microseconds = int(fraction[:6].ljust(6, "0"))
    try:
        year, month, day = map(int, day_text.split("-"))
        moment = datetime(year, month, day, hour, minute, second)
        # Local time minus its distance from UTC is UTC.
        moment += timedelta(microseconds=microseconds) - offset
    except (ValueError, OverflowError):
        return None
    return _count_microseconds(moment)


def _count_microseconds(moment: datetime) -> int:
    """Return the microseconds from the beginning of 1970 to a moment."""
    # Floor division of timedeltas is exact.
    return (moment - _EPOCH) // timedelta(microseconds=1)


def _write_moment(value: date) -> str | None:
    """Return a date or a moment as ISO 8601 writes it, in UTC; None beyond the years 1 to 9999."""
    if not isinstance(value, datetime):
        return value.isoformat()
    moment = moment_of(value)
    if moment is None:
        return None
    return (_EPOCH + timedelta(microseconds=moment)).isoformat(sep=" ")


# Kind → the form of a cell, with a decimal mark, by which cells of that kind are compared.
_FORMS: Final[dict[str, Callable[[object, str], Hashable]]] = {
    "text": lambda cell, _: text_of(cell),
    "boolean": boolean_of,
    "numeric": number_of,
    "date": lambda cell, _: moment_of(cell),
}


class Declared:
    """Declared values of a column, with which its cells are compared by kind.

    Args:
        values: The texts, numbers, booleans or dates that were declared.
        kind: The kind by which cells are compared, "text", "numeric", "boolean" or "date". Without
            one a cell is compared by the kind that it is stored as; where it is stored as text, by
            its spelling, and if no declared value has that, as a boolean (where all values but ""
            are such), a number or a moment.
        decimal: The decimal mark of numbers that are texts.

    A spelling that is a declared value is that value. What two declared values have in common, as
    the number 1 of "1" and "01", names neither: a stored number 1 is then no declared value.

    >>> codes = Declared(["01", "02", "n/a"])
    >>> [codes.position(cell) for cell in ("01", "2.0", 2, True, " n/a", None)]
    [0, 1, 1, -1, 2, -1]
    """

    def __init__(
        self, values: Sequence[object], kind: str | None = None, decimal: str = "."
    ) -> None:
        self.values = tuple(values)
        self.kind = kind
        self.decimal = decimal
        kinds = list(_FORMS) if kind is None else [kind]
        # "" is the empty cell, which columns of every kind may have.
        self._filled = tuple(value for value in self.values if text_of(value) != "")
        # A column of 0 and 1 among other numbers has no booleans.
        if kind is None and any(boolean_of(value) is None for value in self._filled):
            kinds.remove("boolean")
        # Kind → form → position of the value that has it.
        self._positions = {name: self._index_forms(name) for name in kinds}

    def _index_forms(self, kind: str) -> dict[Hashable, int]:
        """Return form → position for the values of a kind; −1 for a form that two of them have."""
        positions: dict[Hashable, int] = {}
        for position, value in enumerate(self.values):
            form = self._form_of_declared(value, kind)
            if form is not None:
                # Two values of one form: the form then names neither.
                positions[form] = -1 if form in positions else position
        return positions

    def _form_of_declared(self, value: object, kind: str) -> Hashable:
        """Return the form of a declared value, None where it is not of the kind."""
        form = _FORMS[kind](value, self.decimal)
        # Whoever declares writes numbers with a point, or as the cells are written.
        return _FORMS[kind](value, ".") if form is None else form

    def find_unreadable(self) -> list[object]:
        """Return the declared values that are not of the declared kind."""
        kind = self.kind or "text"
        return [v for v in self.values if self._form_of_declared(v, kind) is None]

    def find_repeats(self) -> list[object]:
        """Return the declared values that have the form of an earlier one."""
        kind = self.kind or "text"
        forms = [_FORMS[kind](value, self.decimal) for value in self.values]
        return [value for k, value in enumerate(self.values) if forms[k] in forms[:k]]

    def position(self, cell: object) -> int:
        """Return the position of a cell's value among the declared ones, −1 where it is none.

        None is the empty cell, which is the text "".
        """
        cell = "" if cell is None else cell
        # The first kind in which the form is known decides, also where it is ambiguous (−1).
        for kind in self._list_kinds(cell):
            if kind not in self._positions:
                continue
            form = _FORMS[kind](cell, self.decimal)
            if form is not None and form in self._positions[kind]:
                return self._positions[kind][form]
        return -1

    def _list_kinds(self, cell: object) -> tuple[str, ...]:
        """Return the kinds by which a cell is compared, in order."""
        # By how a cell is stored; a text may be anything.
        if self.kind is not None:
            return (self.kind,)
        match cell:
            case str():
                return ("text", "boolean", "numeric", "date")
            case bool() | np.bool_():
                return ("boolean",)
            case int() | float() | Decimal() | np.integer() | np.floating():
                return ("numeric", "boolean")
            case date():
                return ("date",)
        return ()

    def has_empty(self) -> bool:
        """Return whether the empty cell is a declared value, the text ""."""
        return self.position(None) >= 0

    def text(self, cell: str) -> str:
        """Return the text by which a filter compares a cell of a text table.

        A declared value is written as it was declared. If all declared values are booleans, numbers
        or moments, another cell that is one is written as `text_of` writes it, so that a container
        that stores such values and one that spells them hold the same texts.

        >>> Declared([True]).text("False"), Declared([1, 2]).text("3.0")
        ('false', '3')
        >>> Declared(["a"]).text("3.0")
        '3.0'
        """
        position = self.position(cell)
        if position >= 0:
            return text_of(self.values[position]) or ""
        if self._all_are("boolean") and cell.lower() in _WORDS:
            return cell.lower()
        number = number_of(cell, self.decimal) if self._all_are("numeric") else None
        if number is not None:
            return number
        moment = moment_of(cell) if self._all_are("date") else None
        # A column's own kinds alone: in a column of texts "3.0" stays "3.0".
        if moment is None:
            return cell
        time = _EPOCH + timedelta(microseconds=moment)
        # A time was written if there is a colon.
        return time.isoformat(sep=" ") if ":" in cell else time.date().isoformat()

    def _all_are(self, kind: str) -> bool:
        """Return whether each declared value but "" is of a kind, and cells are compared by it."""
        # Every filled value has a form of this kind, and no two of them the same.
        return len(self._positions.get(kind, {})) == len(self._filled) > 0

    def positions(self, cells: Iterable[object]) -> npt.NDArray[np.int64]:
        """Return the position of each cell's value among the declared ones, −1 where it is none."""
        # Type → cell → position. Each value is compared once; by type, for 1 == 1.0 == True.
        known: dict[type, dict[object, int]] = {}
        positions = []
        for cell in cells:
            kind = type(cell)
            # Values that cannot be looked up are compared one by one.
            if not issubclass(kind, _SCALARS):
                positions.append(self.position(cell))
                continue
            known_of_kind = known.setdefault(kind, {})
            if cell not in known_of_kind:
                known_of_kind[cell] = self.position(cell)
            positions.append(known_of_kind[cell])
        return np.array(positions, dtype=np.int64)
