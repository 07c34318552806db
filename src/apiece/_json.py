"""Strict JSON and TOML: a text has one reading, in ordinary values, or a typed error says why."""

import dataclasses
import json
import math
import reprlib
import tomllib
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from types import NoneType
from typing import Annotated, Any, Final, TypeVar, get_args, get_origin, get_type_hints

from apiece._types import Json
from apiece.errors import DataError, InputError

T = TypeVar("T")
Reader = Callable[[Any, str], T]


def loads(text: str | bytes, what: str) -> Any:
    """Return the value in a JSON `text`."""
    # Raises `DataError`, naming `what`, for text that is no JSON, and for what others would read
    # otherwise: a key that occurs twice, NaN, an infinite number (1e400), nesting past the stack.
    try:
        return json.loads(
            text, object_pairs_hook=_once, parse_constant=_refuse, parse_float=_finite
        )
    except (ValueError, RecursionError) as error:
        reason = str(error) or type(error).__name__
        raise DataError(f"{what}: not JSON ({reason}); give the JSON that apiece wrote") from None


# Levels of a document that is kept: what nests deeper could be written and not be read again.
DEEPEST: Final = 100
# Characters of a document that is kept: databases hold a text of at most a gigabyte.
LONGEST: Final = 2**29


def dumps(value: object, what: str) -> str:
    """Return a value as JSON, its keys sorted, that `loads` reads again.

    Raises `InputError`, naming `what`, for what is no JSON, nests deeper than `DEEPEST`, or is
    longer than `LONGEST` characters.
    """
    level = [value]
    for depth in range(DEEPEST + 1):
        below: list[object] = []
        for part in level:
            if isinstance(part, Mapping):
                below += part.values()
            elif isinstance(part, list | tuple):
                below += part
        if not below:
            break
        if depth == DEEPEST:
            raise InputError(f"{what}: nests more than {DEEPEST} levels deep; give a flatter value")
        level = below
    try:
        text = json.dumps(value, allow_nan=False, sort_keys=True)
    except (TypeError, ValueError, RecursionError) as error:
        raise InputError(f"{what}: {str(error) or 'nests too deep'}; give a JSON value") from None
    if len(text) > LONGEST:
        raise InputError(
            f"{what}: {len(text):,} characters of JSON; give at most {LONGEST:,}, such as a digest"
        )
    return text


def read_toml(path: str | Path, what: str) -> Json:
    """Return the table in a TOML file."""
    # Raises `DataError`, naming `what`, where it cannot be read, is no TOML, is nested past the
    # stack, or has a zero byte in a text, which no name of a file or a column has.
    try:
        table = tomllib.loads(Path(path).read_text(encoding="utf-8"))
        _refuse_zeros(table)
    except (OSError, ValueError, RecursionError) as error:
        said = error.strerror if isinstance(error, OSError) else str(error)
        reason = " ".join(str(said).split()) or type(error).__name__
        raise DataError(f"{what} {path}: cannot be read ({reason}); give a TOML file") from None
    return table


def toml_table(text: str, what: str, known: Collection[str], remedy: str) -> Json:
    """Return the table in a text. Raises `InputError` for what is no TOML, and for unknown keys."""
    try:
        table = tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{what}: is not TOML ({' '.join(str(error).split())})") from None
    if odd := table.keys() - known:
        raise InputError(f"{what}: {min(odd)!r} is unknown; give {remedy}")
    return table


def _refuse_zeros(value: object) -> None:
    match value:
        case str() if "\0" in value:
            raise ValueError(f"{reprlib.repr(value)} has a zero byte in it")
        case dict():
            for pair in value.items():
                _refuse_zeros(list(pair))
        case list():
            for part in value:
                _refuse_zeros(part)


def _once(pairs: list[tuple[str, object]]) -> Json:
    entries = dict(pairs)
    if len(entries) < len(pairs):
        keys = [key for key, _ in pairs]
        twice = next(key for key in keys if keys.count(key) > 1)
        raise ValueError(f"key {reprlib.repr(twice)} occurs twice")
    return entries


def _refuse(constant: str) -> float:
    raise ValueError(f"{constant} is no number")


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{text[:40]} is past the range of numbers")
    return value


def fields(
    value: object,
    where: str,
    readers: Mapping[str, Reader[object]],
    optional: Mapping[str, Reader[object]] | None = None,
) -> Json:
    """Return an object's fields, each by its reader: all of `readers`, any of `optional`, no other.

    Raises `DataError` for anything else.
    """
    some = {} if optional is None else optional
    if not isinstance(value, dict):
        raise _wrong(value, where, "an object")
    for name in (*readers.keys() - value.keys(), *value.keys() - readers.keys() - some.keys()):
        how = "missing" if name in readers else "unknown"
        raise DataError(
            f"{where}: field {reprlib.repr(name)} is {how}; give the JSON that apiece wrote"
        )
    return {
        name: (readers.get(name) or some[name])(part, f"{where}.{name}")
        for name, part in value.items()
    }


def readers_of(kind: type) -> dict[str, Reader[object]]:
    """Return the reader of each field of a dataclass, by its type."""
    return {
        name: reader_of(hint) for name, hint in get_type_hints(kind, include_extras=True).items()
    }


def reader_of(kind: Any) -> Reader[object]:
    """Return the reader of values of a type: of a dataclass by its fields."""
    # Annotated[type, reader] has a reader of its own; a whole number is at most 10^12.
    origin, args = get_origin(kind), get_args(kind)
    if origin is Annotated:
        own: Reader[object] = args[1]
        return own
    if NoneType in args:
        return maybe(reader_of(args[0]))
    if origin is tuple and args[1] is Ellipsis:
        each = listed(reader_of(args[0]))
        return lambda value, where: tuple(each(value, where))
    if origin is tuple:
        return _pair(*map(reader_of, args))
    if origin is Mapping:
        part = reader_of(args[1])
        return lambda value, where: fields(value, where, dict.fromkeys(_keys(value), part))
    if dataclasses.is_dataclass(kind):
        return _made(kind, readers_of(kind))  # type: ignore[arg-type]
    return {str: text, bool: flag, int: whole(10**12), float: number, object: as_is}[kind]


def _keys(value: object) -> tuple[str, ...]:
    return tuple(value) if isinstance(value, dict) else ()


def _pair(first: Reader[object], second: Reader[object]) -> Reader[tuple[Any, Any]]:
    def read(value: object, where: str) -> tuple[Any, Any]:
        if not isinstance(value, list) or len(value) != 2:
            raise _wrong(value, where, "a list of two")
        return first(value[0], f"{where}[0]"), second(value[1], f"{where}[1]")

    return read


def _made(kind: Callable[..., T], readers: Mapping[str, Reader[object]]) -> Reader[T]:
    def read(value: object, where: str) -> T:
        arguments = fields(value, where, readers)
        try:
            return kind(**arguments)
        except InputError as error:
            raise DataError(f"{where}: {error}") from None

    return read


def plain(value: object) -> Any:
    """Return a value as JSON and TOML hold it: dataclasses as objects, tuples as lists."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        value = {entry.name: getattr(value, entry.name) for entry in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {key: plain(part) for key, part in value.items()}
    return [plain(part) for part in value] if isinstance(value, tuple | list) else value


def as_is(value: object, where: str) -> Any:
    """Return what is not looked at here."""
    return value


def number(value: object, where: str) -> float:
    """Return a finite number; a Boolean or a text is none."""
    try:
        result = float(value) if type(value) in (int, float) else math.nan  # type: ignore[arg-type]
    except OverflowError:
        result = math.inf
    if not math.isfinite(result):
        raise _wrong(value, where, "a finite number")
    return result


def share(value: object, where: str) -> float:
    """Return a number in [0, 1]."""
    result = number(value, where)
    if not 0 <= result <= 1:
        raise _wrong(value, where, "in [0, 1]")
    return result


def whole(most: int) -> Reader[int]:
    """Return a reader of whole numbers from 0 to `most`."""

    def read(value: object, where: str) -> int:
        if type(value) is not int or not 0 <= value <= most:
            raise _wrong(value, where, f"a whole number of at most {most:g}")
        return value

    return read


def text(value: object, where: str) -> str:
    """Return a text."""
    if not isinstance(value, str):
        raise _wrong(value, where, "a text")
    return value


def one_of(*known: str) -> Reader[str]:
    """Return a reader of these texts alone."""

    def read(value: object, where: str) -> str:
        if value not in known:
            raise _wrong(value, where, " or ".join(known))
        return str(value)

    return read


def flag(value: object, where: str) -> bool:
    """Return a Boolean; a number or a text is none."""
    if not isinstance(value, bool):
        raise _wrong(value, where, "true or false")
    return value


def maybe(read: Reader[T]) -> Reader[T | None]:
    """Return a reader of null, or of what `read` reads."""
    return lambda value, where: None if value is None else read(value, where)


def listed(read: Reader[T]) -> Reader[list[T]]:
    """Return a reader of lists of what `read` reads."""

    def every(value: object, where: str) -> list[T]:
        if not isinstance(value, list):
            raise _wrong(value, where, "a list")
        return [read(part, f"{where}[{i}]") for i, part in enumerate(value)]

    return every


def _wrong(value: object, where: str, wanted: str) -> DataError:
    shown = reprlib.repr(value)
    return DataError(f"{where} = {shown}: must be {wanted}; give the JSON that apiece wrote")
