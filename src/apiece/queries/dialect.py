"""The declared dialect of CSV: one record a line, so that no record can reach into another.

    line  = field {"," field}          field = plain | '"' {character | '""'} '"'
    plain = no comma and no quote;     a line ends with LF or CR LF, and no field holds either

A line is read from its own bytes and the header's alone. A quote that opens on one line and closes
on another makes it a matter of opinion where records end, so a file with one is refused as a whole
when it is registered: whoever wrote the field between the quotes could write other people's lines.
A line with too few or too many fields contributes nothing; a cell that is not UTF-8 is missing, and
so is an empty one.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from typing import Final

from apiece.errors import DataError
from apiece.queries.cells import decoded

_FIELD: Final = rb'(?:"(?:[^"]|"")*+"|[^",]*+)'
_LINE: Final = re.compile(_FIELD + rb"(?:," + _FIELD + rb")*+")
_SPLIT: Final = re.compile(rb'(?:^|,)("(?:[^"]|"")*+"|[^",]*+)')
Log = Callable[[str], None]


class UnclearLineError(Exception):
    """A line that does not show where its record ends."""


def read_header(line: bytes) -> list[str]:
    """Return the names of the columns. Raises `DataError` where it is no line of the dialect."""
    try:
        names = [name for name in _fields(line.removeprefix(b"\xef\xbb\xbf")) if name is not None]
    except UnclearLineError:
        names = []
    if not names:
        raise DataError("its first line is not a header; give comma-separated names in UTF-8")
    return names


def read_lines(
    lines: Iterable[bytes], names: Sequence[str], wanted: Sequence[str], log: Log
) -> dict[str, list[str | None]]:
    """Return the wanted columns of the lines after the header.

    Raises `UnclearLineError` with the number of a line that does not show where its record ends.
    """
    places = [names.index(name) for name in wanted]
    columns: list[list[str | None]] = [[] for _ in wanted]
    for number, line in enumerate(lines, start=2):
        try:
            fields = _fields(line)
        except UnclearLineError:
            raise UnclearLineError(
                f"line {number}: a quote that opens and does not close on its line, or stands "
                "beside other text, or a line break within a line; write one record a line"
            ) from None
        if len(fields) == len(names):
            for column, place in zip(columns, places, strict=True):
                column.append(fields[place] or None)
        elif fields:
            log(f"line {number}: {len(fields)} fields, not {len(names)}; left out")
    return dict(zip(wanted, columns, strict=True))


def _fields(line: bytes) -> list[str | None]:
    line = line.removesuffix(b"\n").removesuffix(b"\r")
    if not line:
        return []
    if b"\r" in line or b"\n" in line:
        raise UnclearLineError
    if b'"' not in line:
        return [decoded(field) for field in line.split(b",")]
    if not _LINE.fullmatch(line):
        raise UnclearLineError
    return [decoded(_unquoted(match[1])) for match in _SPLIT.finditer(line)]


def _unquoted(field: bytes) -> bytes:
    return field[1:-1].replace(b'""', b'"') if field.startswith(b'"') else field
