"""The grammar of a CSV line: one record a line, so that no record can reach into another.

    line  = field {"," field}          field = plain | '"' {character | '""'} '"'
    plain = no comma and no quote;     a line ends with LF or CR LF, and no field holds either

A line is read from its own bytes and the header's alone. A quote that opens on one line and closes
on another makes it a matter of opinion where records end, so a file with one is refused as a whole:
whoever wrote the field between the quotes could write other people's lines. A line with too few or
too many fields contributes nothing; a cell that is not UTF-8 is missing, and so is an empty one.

This is what `apiece query` reads, where what one row holds must not show in whether the others are
answered. A steward's own table is read by `tables`, which refuses such a row and names it.
"""

from __future__ import annotations

import re
from typing import Final

from apiece.errors import DataError

_FIELD: Final = rb'(?:"(?:[^"]|"")*+"|[^",]*+)'
_LINE: Final = re.compile(_FIELD + rb"(?:," + _FIELD + rb")*+")
_SPLIT: Final = re.compile(rb'(?:^|,)("(?:[^"]|"")*+"|[^",]*+)')
# Control characters and halves of surrogate pairs: not in ids, not in texts, not in groups.
UNREADABLE: Final = re.compile("[\x00-\x1f\x7f-\x9f\ud800-\udfff]")


class UnclearLineError(Exception):
    """A line that does not show where its record ends."""


def header_cells(line: bytes) -> list[str]:
    r"""Return the names of the columns.

    Args:
        line: The first line of a file, in UTF-8.

    Raises:
        DataError: Where it is no line of the grammar.

    Example:
        >>> header_cells(b"person,age\n")
        ['person', 'age']
    """
    try:
        cells = line_cells(line.removeprefix(b"\xef\xbb\xbf"))
    except UnclearLineError:
        cells = []
    names = [decoded(cell) for cell in cells]
    if not names or None in names:  # to pass over one would give its cells to the next name
        raise DataError("its first line is not a header; give comma-separated names in UTF-8")
    return [str(name) for name in names]


def line_cells(line: bytes) -> list[bytes]:
    """Return the cells of one line, none of an empty one. Raises `UnclearLineError`."""
    line = line.removesuffix(b"\n").removesuffix(b"\r")
    if not line:
        return []
    if b"\r" in line or b"\n" in line:
        raise UnclearLineError
    if b'"' not in line:
        return line.split(b",")
    if not _LINE.fullmatch(line):
        raise UnclearLineError
    return [_unquoted(match[1]) for match in _SPLIT.finditer(line)]


def _unquoted(field: bytes) -> bytes:
    return field[1:-1].replace(b'""', b'"') if field.startswith(b'"') else field


def decoded(cell: bytes) -> str | None:
    """Return bytes as text, or None where they are not UTF-8."""
    try:
        return cell.decode()
    except UnicodeDecodeError:
        return None


def cell_text(cell: bytes) -> str | None:
    r"""Return a cell as text: None where it is empty, not UTF-8, or beyond ASCII and not plain.

    What is not plain within ASCII is left to whoever says what kind of cell it should be.

    Args:
        cell: As it stands in the file, unquoted.

    Example:
        >>> cell_text(b"7"), cell_text(b""), cell_text(b"\xff")
        ('7', None, None)
    """
    text = decoded(cell) or None
    if text is not None and not text.isascii() and UNREADABLE.search(text):
        return None
    return text
