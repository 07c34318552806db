"""Checks at the door: every value is tested in its positive form, so that NaN fails too.

Each function returns its argument in canonical form (float, int or a fresh read-only array), or
raises `InputError` with the name, the value, the bound and the remedy.
"""

import math
import operator
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from apiece._types import AnyArray, Floats, Mask
from apiece.errors import DataError, InputError

# Counts below it are exact as floats.
_MOST_COUNT = 1e15

# The remedy of messages about contributions.
_NOTHING = "a person whose contribution is not finite must contribute nothing, with 0"


def _read_number(name: str, value: Any, error: type[InputError]) -> float:
    if isinstance(value, (bool, np.bool_, str, bytes)):
        raise error(f"{name} = {value!r}: not a number; give a number")
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError):
        raise error(f"{name} = {value!r}: not a number; give a number") from None


def positive(name: str, value: object, *, error: type[InputError] = InputError) -> float:
    """Return `value` as a float if 0 < value < ∞."""
    number = _read_number(name, value, error)
    if not 0 < number < math.inf:
        raise error(f"{name} = {value!r}: must be in (0, inf); give a positive finite number")
    return number


def finite(name: str, value: object, *, error: type[InputError] = InputError) -> float:
    """Return `value` as a float if it is neither NaN nor infinite."""
    number = _read_number(name, value, error)
    if not math.isfinite(number):
        raise error(f"{name} = {value!r}: must be finite; give a finite number")
    return number


def probability(
    name: str, value: object, *, low_open: bool = False, high_open: bool = False
) -> float:
    """Return `value` as a float if 0 ≤ value ≤ 1; either end can be excluded."""
    number = _read_number(name, value, InputError)
    is_above = number > 0 if low_open else number >= 0
    is_below = number < 1 if high_open else number <= 1
    if not (is_above and is_below):
        left = "(" if low_open else "["
        right = ")" if high_open else "]"
        raise InputError(f"{name} = {value!r}: must be in {left}0, 1{right}; give a probability")
    return number


def count(name: str, value: Any, *, least: int = 1) -> int:
    """Return `value` as an int if it is a whole number of at least `least`."""
    try:
        # True is 1 to `operator.index`, and is no count.
        if isinstance(value, (bool, np.bool_)):
            raise TypeError
        if isinstance(value, float) and value.is_integer():
            number = int(value)
        else:
            number = operator.index(value)
    except TypeError:
        raise InputError(
            f"{name} = {value!r}: must be a whole number of at least {least}"
        ) from None
    if not number >= least:
        raise InputError(f"{name} = {value!r}: must be at least {least}; give a larger number")
    return number


def put(instance: object, **checks: Callable[..., object]) -> None:
    """Check fields of a frozen dataclass, and set them to the values that the checks return."""
    for name, check in checks.items():
        value = check(name, getattr(instance, name))
        object.__setattr__(instance, name, value)


def numbers(
    name: str,
    values: object,
    *,
    give: str = "an array of numbers",
    error: type[InputError] = InputError,
) -> Floats:
    """Return `values` as a float array, maybe themselves; entries may be anything, NaN too."""
    try:
        return np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError, OverflowError):
        raise error(f"{name}: not numbers; give {give}") from None


def freeze(array: AnyArray) -> AnyArray:
    """Return an array that is read-only down to its own memory: itself, else a copy.

    Whoever owns that memory can still mark it writeable again; nobody writes to it by mistake.
    """
    # A view may be read-only while the memory that it shows is not.
    owner: Any = array
    while isinstance(owner, np.ndarray) and not owner.flags.writeable:
        owner = owner.base
    # Down to memory of NumPy's own; that of other libraries may be written there.
    if owner is None:
        return array
    copy = array.copy()
    copy.flags.writeable = False
    return copy


def finite_array(name: str, values: object) -> Floats:
    """Return `values` as a read-only float array without NaN and infinity."""
    return _check_array(name, values, "(-inf, inf)", np.isfinite, InputError)


def positive_array(
    name: str, values: object, *, below: float = math.inf, error: type[InputError] = InputError
) -> Floats:
    """Return `values` as a read-only float array if every entry lies in (0, below)."""
    return _check_array(name, values, f"(0, {below:g})", lambda x: (x > 0) & (x < below), error)


def probability_array(name: str, values: object, *, error: type[InputError] = InputError) -> Floats:
    """Return `values` as a read-only float array if every entry lies in [0, 1]."""
    return _check_array(name, values, "[0, 1]", lambda x: (x >= 0) & (x <= 1), error)


def count_array(name: str, values: object) -> Floats:
    """Return `values` as a read-only float array if every entry is a whole number from 1 on."""

    def is_count(x: Floats) -> Mask:
        return np.asarray((x >= 1) & (x == np.floor(x)) & (x < _MOST_COUNT))

    return _check_array(name, values, "1, 2, 3, …", is_count, InputError)


def _check_array(
    name: str,
    values: object,
    interval: str,
    inside: Callable[[Floats], Mask],
    error: type[InputError],
) -> Floats:
    """Return `values` as a read-only float array; the error names the first entry outside."""
    # A copy, so that nobody who has the argument can change what was checked.
    array = np.array(numbers(name, values, give=f"an array of numbers in {interval}", error=error))
    outside = np.flatnonzero(~inside(array))
    if outside.size:
        position = int(outside[0])
        value = float(array.ravel()[position])
        if not array.ndim:
            raise error(f"{name} = {value!r}: must be in {interval}; give a number inside")
        raise error(
            f"{name}[{position}] = {value!r}: must be in {interval} ({outside.size} such "
            "entries); correct or leave out these entries"
        )
    array.flags.writeable = False
    return array


def nonnegative_array(name: str, values: object, *, remedy: str = _NOTHING) -> Floats:
    """Return `values` as floats if every entry lies in [0, ∞)."""
    array = numbers(name, values)
    # min and max let a NaN through to the comparison, which it fails.
    if array.size and not (array.min() >= 0 and array.max() < math.inf):
        flat = array.reshape(-1)
        inside = (flat >= 0) & (flat < math.inf)
        position = int(np.flatnonzero(~inside)[0])
        entry = f"{name}[{position}]" if array.ndim else name
        value = float(flat[position])
        raise InputError(f"{entry} = {value!r}: must be in [0, inf); {remedy}")
    return array


def ids(name: str, values: Any, *, error: type[InputError] = DataError) -> AnyArray:
    """Return ids as a flat array of 64-bit integers or of texts, in which no two have become one.

    numpy's texts lose NULs at their end, and its arrays of several kinds turn 1, "1", 1.0 and True
    into one another: ids that it would change are refused. The message shows no id.

    >>> ids("people", ["007", "7"]).tolist(), ids("people", [7, 2**62]).tolist()
    (['007', '7'], [7, 4611686018427387904])
    """
    # Lists become objects first: numpy would make one type of all their entries.
    array = np.asarray(values, dtype=object if isinstance(values, list | tuple) else None)
    if array.ndim != 1:
        raise error(f"{name}: {array.size} ids in {array.ndim} dimensions; give a flat list of ids")
    kind = array.dtype.kind
    if kind == "i":
        return array.astype(np.int64, copy=False)
    if kind == "U" and not _has_surrogates(array):
        return array
    # Unsigned numbers, objects and texts are looked at one by one; any other type fails both tests
    # below.
    cells: list[Any] = array.tolist() if kind in "uOTU" else [None]
    if all(isinstance(cell, str) for cell in cells):
        if any("\0" in cell for cell in cells) or _has_surrogates(np.asarray(cells, dtype=str)):
            raise error(
                f"{name}: an id holds the character NUL or half a surrogate pair, which no table "
                "keeps; rename it"
            )
        return np.asarray(cells, dtype=str)
    if all(isinstance(cell, int | np.integer) and not isinstance(cell, bool) for cell in cells):
        if not all(-(2**63) <= cell < 2**63 for cell in cells):
            raise error(f"{name}: an id does not fit 64 bits; give the ids as text")
        return np.asarray(cells, dtype=np.int64)
    raise error(
        f"{name}: of type {array.dtype}, or of several kinds; give whole numbers or text, all of "
        "one kind"
    )


def _has_surrogates(texts: npt.NDArray[np.str_]) -> bool:
    """Return whether half a surrogate pair is in a text, which UTF-8 cannot encode."""
    if not texts.dtype.itemsize:
        return False
    # numpy holds a text as one 32-bit code point a character.
    native = np.ascontiguousarray(texts, dtype=texts.dtype.newbyteorder("="))
    characters = native.view(np.uint32)
    return bool(((characters >= 0xD800) & (characters < 0xE000)).any())


def truth_values(
    name: str,
    values: object,
    *,
    shape: tuple[int, ...] | None = None,
    error: type[InputError] = DataError,
) -> Mask:
    """Return `values` as Booleans if every entry is True or False, or the number 1 or 0.

    Numbers of any kind count, and pandas' columns of Booleans; None, NaN, NA and texts are refused.

    >>> truth_values("included", [1, 0, 1.0]).tolist()
    [True, False, True]
    """
    # numpy's own Booleans pass at once; anything else is looked at entry by entry, as its
    # conversion to Booleans would take 2, NaN and "no" for true.
    array = np.asarray(values)
    if array.dtype.kind != "b":
        cells: list[Any] = array.reshape(-1).tolist() if array.dtype.kind in "iufO" else [None]
        faulty = [position for position, cell in enumerate(cells) if not _is_truth_value(cell)]
        if faulty:
            raise error(
                f"{name}: entry {faulty[0]} is no truth value ({len(faulty)} such entries); give "
                "True or False, or 1 or 0, for each"
            )
        array = np.array([bool(cell) for cell in cells], dtype=bool).reshape(array.shape)
    if shape is not None and array.shape != shape:
        raise error(
            f"{name}: shape {array.shape}, must be {shape}; give one True or False for each entry"
        )
    return array


def _is_truth_value(cell: object) -> bool:
    return isinstance(cell, bool | int | float | np.bool_ | np.number) and cell in (0, 1)


def group_names(name: str, values: object, *, size: int) -> AnyArray:
    """Return `values` as a group's name an entry: texts or numbers, of one kind, none missing.

    >>> group_names("groups", ["strict", "weak"], size=2).tolist()
    ['strict', 'weak']
    """
    array = np.asarray(values, dtype=object if isinstance(values, list | tuple) else None)
    if array.shape != (size,):
        raise DataError(f"{name}: shape {array.shape}, must be ({size},); give one group for each")
    # Of these types every entry is a name.
    if array.dtype.kind in "iubU":
        return array
    cells: list[Any] = array.tolist() if array.dtype.kind in "fO" else [None]
    missing = [position for position, cell in enumerate(cells) if not _is_group_name(cell)]
    if missing:
        raise DataError(
            f"{name}: entry {missing[0]} names no group ({len(missing)} such entries); give a text "
            "or a number for each"
        )
    if len({isinstance(cell, str) for cell in cells}) > 1:
        raise DataError(f"{name}: texts and numbers; give names of one kind")
    return np.asarray(cells)


def _is_group_name(cell: object) -> bool:
    return isinstance(cell, str) or (
        isinstance(cell, int | float | np.number) and math.isfinite(cell)
    )


def record_ids(name: str, values: object) -> AnyArray:
    """Return `ids` read-only if there is at least one and none twice."""
    array = ids(name, values).copy()
    if array.size == 0:
        raise DataError(f"{name}: none; give one id a record")
    unique, counts = np.unique(array, return_counts=True)
    if unique.size != array.size:
        repeated = unique[counts > 1]
        raise DataError(
            f"{name}: id {repeated[0]!s} occurs {int(counts.max())} times ({repeated.size} ids "
            "repeat); make each record's id unique"
        )
    array.flags.writeable = False
    return array
