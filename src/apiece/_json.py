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

# Reads a value of a document; its second argument is the value's name in a message.
Reader = Callable[[Any, str], T]

# Levels of a document that is stored: one that nests deeper could be written and not be read again.
DEEPEST: Final = 100

# Characters of a document that is stored: databases hold a text of at most a gigabyte.
LONGEST: Final = 2**29

# The largest whole number of a field.
_LARGEST_INTEGER: Final = 10**12


def loads(text: str | bytes, what: str) -> Any:
    """Return the value in a JSON `text`.

    Raises `DataError`, naming `what`, for text that is no JSON, and for JSON that other programs
    read otherwise: a key that occurs twice, NaN, an infinite number (1e400), nesting past the
    stack.
    """
    try:
        # Every hook refuses what Python would read, and another program otherwise or not at all.
        return json.loads(
            text,
            object_pairs_hook=_make_object,
            parse_constant=_refuse_constant,
            parse_float=_parse_float,
        )
    except (ValueError, RecursionError) as error:
        reason = str(error) or type(error).__name__
        raise DataError(f"{what}: not JSON ({reason}); give the JSON that apiece wrote") from None


def dumps(value: object, what: str) -> str:
    """Return a value as JSON, its keys sorted, that `loads` reads again.

    Raises `InputError`, naming `what`, for a value that is no JSON, nests deeper than `DEEPEST`, or
    is longer than `LONGEST` characters.
    """
    _check_depth(value, what)
    try:
        text = json.dumps(value, allow_nan=False, sort_keys=True)
    except (TypeError, ValueError, RecursionError) as error:
        raise InputError(f"{what}: {str(error) or 'nests too deep'}; give a JSON value") from None
    if len(text) > LONGEST:
        raise InputError(
            f"{what}: {len(text):,} characters of JSON; give at most {LONGEST:,}, such as a digest"
        )
    return text


def _check_depth(value: object, what: str) -> None:
    """Raise `InputError` for a value that nests deeper than `DEEPEST`."""
    # Level by level and not by recursion, which would itself end on what is nested too deep.
    level = [value]
    for depth in range(DEEPEST + 1):
        next_level: list[object] = []
        for part in level:
            if isinstance(part, Mapping):
                next_level += part.values()
            elif isinstance(part, list | tuple):
                next_level += part
        if not next_level:
            break
        if depth == DEEPEST:
            raise InputError(f"{what}: nests more than {DEEPEST} levels deep; give a flatter value")
        level = next_level


def read_toml(path: str | Path, what: str) -> Json:
    """Return the table in a TOML file.

    Raises `DataError`, naming `what`, where it cannot be read, is no TOML, is nested past the
    stack, or has a zero byte in a text, which no name of a file or a column has.
    """
    try:
        table = tomllib.loads(Path(path).read_text(encoding="utf-8"))
        _refuse_zeros(table)
    except (OSError, ValueError, RecursionError) as error:
        message = error.strerror if isinstance(error, OSError) else str(error)
        reason = " ".join(str(message).split()) or type(error).__name__
        raise DataError(f"{what} {path}: cannot be read ({reason}); give a TOML file") from None
    return table


def toml_table(text: str, what: str, known: Collection[str], remedy: str) -> Json:
    """Return the table in a text; raise `InputError` for other text, and for unknown keys."""
    try:
        table = tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{what}: is not TOML ({' '.join(str(error).split())})") from None
    if unknown := table.keys() - known:
        raise InputError(f"{what}: {min(unknown)!r} is unknown; give {remedy}")
    return table


def _refuse_zeros(value: object) -> None:
    """Raise `ValueError` for a text with a zero byte, however deep in a value."""
    match value:
        case str() if "\0" in value:
            raise ValueError(f"{reprlib.repr(value)} has a zero byte in it")
        case dict():
            for pair in value.items():
                _refuse_zeros(list(pair))
        case list():
            for part in value:
                _refuse_zeros(part)


def _make_object(pairs: list[tuple[str, object]]) -> Json:
    """Return an object's fields; raise `ValueError` for a key that occurs twice."""
    entries = dict(pairs)
    if len(entries) < len(pairs):
        keys = [key for key, _ in pairs]
        repeated = next(key for key in keys if keys.count(key) > 1)
        raise ValueError(f"key {reprlib.repr(repeated)} occurs twice")
    return entries


def _refuse_constant(constant: str) -> float:
    raise ValueError(f"{constant} is no number")


def _parse_float(text: str) -> float:
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
    all_readers = {**(optional or {}), **readers}
    if not isinstance(value, dict):
        raise _make_error(value, where, "an object")
    missing = readers.keys() - value.keys()
    unknown = value.keys() - all_readers.keys()
    for name in (*missing, *unknown):
        problem = "missing" if name in readers else "unknown"
        raise DataError(
            f"{where}: field {reprlib.repr(name)} is {problem}; give the JSON that apiece wrote"
        )
    return {name: all_readers[name](part, f"{where}.{name}") for name, part in value.items()}


def readers_of(kind: type) -> dict[str, Reader[object]]:
    """Return the reader of each field of a dataclass, by its type."""
    return {
        name: reader_of(hint) for name, hint in get_type_hints(kind, include_extras=True).items()
    }


def reader_of(kind: Any) -> Reader[object]:
    """Return the reader of values of a type: of a dataclass by its fields.

    Annotated[type, reader] has a reader of its own.
    """
    # Kinds of annotation, the special ones first.
    origin = get_origin(kind)
    args = get_args(kind)
    if origin is Annotated:
        annotation: Reader[object] = args[1]
        return annotation
    if NoneType in args:
        return maybe(reader_of(args[0]))
    if origin is tuple and args[1] is Ellipsis:
        read_list = listed(reader_of(args[0]))
        return lambda value, where: tuple(read_list(value, where))
    if origin is tuple:
        return _make_pair_reader(*map(reader_of, args))
    if origin is Mapping:
        return _make_mapping_reader(reader_of(args[1]))
    if dataclasses.is_dataclass(kind):
        return _make_dataclass_reader(kind, readers_of(kind))  # type: ignore[arg-type]
    plain_readers: dict[type, Reader[object]] = {
        str: text,
        bool: flag,
        int: whole(_LARGEST_INTEGER),
        float: number,
        object: as_is,
    }
    return plain_readers[kind]


def _make_mapping_reader(read_value: Reader[object]) -> Reader[Json]:
    """Return a reader of objects with any keys, and values of one type."""

    def read_mapping(value: object, where: str) -> Json:
        keys = tuple(value) if isinstance(value, dict) else ()
        return fields(value, where, dict.fromkeys(keys, read_value))

    return read_mapping


def _make_pair_reader(
    read_left: Reader[object], read_right: Reader[object]
) -> Reader[tuple[Any, Any]]:
    """Return a reader of lists of two, as a pair."""

    def read_pair(value: object, where: str) -> tuple[Any, Any]:
        if not isinstance(value, list) or len(value) != 2:
            raise _make_error(value, where, "a list of two")
        return read_left(value[0], f"{where}[0]"), read_right(value[1], f"{where}[1]")

    return read_pair


def _make_dataclass_reader(
    kind: Callable[..., T], readers: Mapping[str, Reader[object]]
) -> Reader[T]:
    """Return a reader of a dataclass, whose own checks become `DataError`."""

    def read_instance(value: object, where: str) -> T:
        arguments = fields(value, where, readers)
        try:
            return kind(**arguments)
        except InputError as error:
            raise DataError(f"{where}: {error}") from None

    return read_instance


def plain(value: object) -> Any:
    """Return a value as JSON and TOML hold it: dataclasses as objects, tuples as lists."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        value = {entry.name: getattr(value, entry.name) for entry in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {key: plain(part) for key, part in value.items()}
    if isinstance(value, tuple | list):
        return [plain(part) for part in value]
    return value


def as_is(value: object, where: str) -> Any:
    """Return a value that is not checked here."""
    return value


def number(value: object, where: str) -> float:
    """Return a finite number; a Boolean or a text is none."""
    try:
        # Not `isinstance`, since a Boolean is an int there.
        result = float(value) if type(value) in (int, float) else math.nan  # type: ignore[arg-type]
    except OverflowError:
        result = math.inf
    if not math.isfinite(result):
        raise _make_error(value, where, "a finite number")
    return result


def share(value: object, where: str) -> float:
    """Return a number in [0, 1]."""
    result = number(value, where)
    if not 0 <= result <= 1:
        raise _make_error(value, where, "in [0, 1]")
    return result


def whole(largest: int) -> Reader[int]:
    """Return a reader of whole numbers from 0 to `largest`."""

    def read_integer(value: object, where: str) -> int:
        # `bool` is a subclass of `int`, so that the type itself is compared.
        if type(value) is not int or not 0 <= value <= largest:
            raise _make_error(value, where, f"a whole number of at most {largest:g}")
        return value

    return read_integer


def text(value: object, where: str) -> str:
    """Return a text."""
    if not isinstance(value, str):
        raise _make_error(value, where, "a text")
    return value


def one_of(*known: str) -> Reader[str]:
    """Return a reader of these texts alone."""

    def read_name(value: object, where: str) -> str:
        if value not in known:
            raise _make_error(value, where, " or ".join(known))
        return str(value)

    return read_name


def flag(value: object, where: str) -> bool:
    """Return a Boolean; a number or a text is none."""
    if not isinstance(value, bool):
        raise _make_error(value, where, "true or false")
    return value


def maybe(read: Reader[T]) -> Reader[T | None]:
    """Return a reader of null, or of the values that `read` takes."""
    return lambda value, where: None if value is None else read(value, where)


def listed(read: Reader[T]) -> Reader[list[T]]:
    """Return a reader of lists of the values that `read` takes."""

    def read_list(value: object, where: str) -> list[T]:
        if not isinstance(value, list):
            raise _make_error(value, where, "a list")
        return [read(part, f"{where}[{position}]") for position, part in enumerate(value)]

    return read_list


def _make_error(value: object, where: str, bound: str) -> DataError:
    excerpt = reprlib.repr(value)
    return DataError(f"{where} = {excerpt}: must be {bound}; give the JSON that apiece wrote")
