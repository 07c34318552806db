"""Strict JSON and TOML: a text has one reading, in ordinary values, or a typed error says why."""

from __future__ import annotations

import json
import math
import reprlib
import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from apiece._types import Json
from apiece.errors import DataError

T = TypeVar("T")
Reader = Callable[[Any, str], T]


def loads(text: str | bytes, what: str) -> Any:
    """Return the value in a JSON `text`.

    Raises `DataError`, naming `what`, for text that is no JSON, and for what others would read
    otherwise: a key that occurs twice, NaN, an infinite number (1e400), nesting past the stack.
    """
    try:
        return json.loads(
            text, object_pairs_hook=_once, parse_constant=_refuse, parse_float=_finite
        )
    except (ValueError, RecursionError) as error:
        reason = str(error) or type(error).__name__
        raise DataError(f"{what}: not JSON ({reason}); give what to_json wrote") from None


def read_toml(path: str | Path, what: str) -> Json:
    """Return the table in a TOML file.

    Raises `DataError`, naming `what`, where it cannot be read, is no TOML, is nested past the
    stack, or has a zero byte in a text, which no name of a file or a column has.
    """
    try:
        found = tomllib.loads(Path(path).read_text(encoding="utf-8"))
        _refuse_zeros(found)
    except (OSError, ValueError, RecursionError) as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        raise DataError(f"{what} {path}: cannot be read ({reason}); give a TOML file") from None
    return found


def _refuse_zeros(value: Any) -> None:
    match value:
        case str() if "\0" in value:
            raise ValueError(f"{reprlib.repr(value)} has a zero byte in it")
        case dict():
            for pair in value.items():
                _refuse_zeros(list(pair))
        case list():
            for part in value:
                _refuse_zeros(part)


def _once(pairs: list[tuple[str, Any]]) -> Json:
    found = dict(pairs)
    if len(found) < len(pairs):
        keys = [key for key, _ in pairs]
        twice = next(key for key in keys if keys.count(key) > 1)
        raise ValueError(f"key {reprlib.repr(twice)} occurs twice")
    return found


def _refuse(constant: str) -> float:
    raise ValueError(f"{constant} is no number")


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{text[:40]} is past the range of numbers")
    return value


def fields(
    value: Any,
    where: str,
    readers: Mapping[str, Reader[Any]],
    optional: Mapping[str, Reader[Any]] | None = None,
) -> Json:
    """Return an object's fields, each by its reader: all of `readers`, any of `optional`, no other.

    Raises `DataError` for anything else.
    """
    some = {} if optional is None else optional
    if not isinstance(value, dict):
        raise _wrong(value, where, "an object")
    for name in (*readers.keys() - value.keys(), *value.keys() - readers.keys() - some.keys()):
        how = "missing" if name in readers else "unknown"
        raise DataError(f"{where}: field {reprlib.repr(name)} is {how}; give what to_json wrote")
    return {
        name: (readers.get(name) or some[name])(part, f"{where}.{name}")
        for name, part in value.items()
    }


def number(value: Any, where: str) -> float:
    """Return a finite number; a Boolean or a text is none."""
    try:
        found = float(value) if type(value) in (int, float) else math.nan
    except OverflowError:
        found = math.inf
    if not math.isfinite(found):
        raise _wrong(value, where, "a finite number")
    return found


def whole(most: int) -> Reader[int]:
    """Return a reader of whole numbers from 0 to `most`."""

    def read(value: Any, where: str) -> int:
        if type(value) is not int or not 0 <= value <= most:
            raise _wrong(value, where, f"a whole number of at most {most:g}")
        return value

    return read


def text(value: Any, where: str) -> str:
    """Return a text."""
    if not isinstance(value, str):
        raise _wrong(value, where, "a text")
    return value


def flag(value: Any, where: str) -> bool:
    """Return a Boolean; a number or a text is none."""
    if not isinstance(value, bool):
        raise _wrong(value, where, "true or false")
    return value


def maybe(read: Reader[T]) -> Reader[T | None]:
    """Return a reader of null, or of what `read` reads."""
    return lambda value, where: None if value is None else read(value, where)


def listed(read: Reader[T]) -> Reader[list[T]]:
    """Return a reader of lists of what `read` reads."""

    def every(value: Any, where: str) -> list[T]:
        if not isinstance(value, list):
            raise _wrong(value, where, "a list")
        return [read(part, f"{where}[{i}]") for i, part in enumerate(value)]

    return every


def _wrong(value: Any, where: str, wanted: str) -> DataError:
    shown = reprlib.repr(value)
    return DataError(f"{where} = {shown}: must be {wanted}; give what to_json wrote")
