"""The grammar of a CSV line, and a file of them read in blocks; for `apiece query`.

    line  = field {"," field}          field = plain | blanks '"' {character | '""'} '"'
    plain = no comma and no quote;     a line ends with LF or CR LF, and no field holds either

The separator is declared: a comma, or any other character. Another encoding than UTF-8 is declared
too, and turned into UTF-8 as it is read.

One record is one line, read from its own bytes and the header's alone, so that no record can reach
into another; a file with a quote that closes on another line is refused as a whole, for whoever
wrote the field between could write other people's lines. A line with too few or too many fields
contributes nothing; a cell that is empty or not UTF-8 is missing. What one row holds must not show
in whether the others are answered; a steward's own table is read by `tables`, which names the row.

Arrow cuts the lines without a quote or a stray carriage return, a block of them at a time.
`line_cells` cuts every other line by itself, and gives the same cells for all.
"""

from __future__ import annotations

import codecs
import io
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import cache
from typing import TYPE_CHECKING, BinaryIO, Final, Protocol

import numpy as np

from apiece.errors import DataError

if TYPE_CHECKING:
    import pyarrow as pa

# Control characters and halves of surrogate pairs: not in ids, not in texts, not in groups.
UNREADABLE: Final = re.compile("[\x00-\x1f\x7f-\x9f\ud800-\udfff]")


class UnclearLineError(Exception):
    """A line that does not show where its record ends."""


@cache
def _patterns(separator: bytes) -> tuple[re.Pattern[bytes], re.Pattern[bytes]]:
    """Return what a whole line matches, and what finds its fields, with some separator."""
    cut = re.escape(separator)
    # Blanks before a quote are passed over, as where people write "a", "b", but not where blanks
    # are what separates.
    blanks = rb"" if separator in (b"\t", b" ") else rb"[ ]*"
    field = rb"(?:" + blanks + rb'"(?:[^"]|"")*+"|(?:(?!' + cut + rb')[^"])*+)'
    line = re.compile(field + rb"(?:" + cut + field + rb")*+")
    return line, re.compile(rb"(?:^|" + cut + rb")(" + field + rb")")


def header_cells(line: bytes, separator: bytes = b",") -> list[str]:
    r"""Return the names of the columns, without blanks around them."""
    try:
        cells = line_cells(line.removeprefix(b"\xef\xbb\xbf"), separator)
    except UnclearLineError:
        cells = []
    names = [decoded(cell) for cell in cells]
    if not names or None in names:  # to pass over one would give its cells to the next name
        raise DataError(
            "its first line is not a header; give names in UTF-8, or declare separator and encoding"
        )
    return [str(name).strip() for name in names]


def line_cells(line: bytes, separator: bytes = b",") -> list[bytes]:
    """Return the cells of one line, none of an empty one. Raises `UnclearLineError`."""
    line = line.removesuffix(b"\n").removesuffix(b"\r")
    if not line:
        return []
    if b"\r" in line or b"\n" in line:
        raise UnclearLineError
    if b'"' not in line:
        return line.split(separator)
    whole, fields = _patterns(separator)
    if not whole.fullmatch(line):
        raise UnclearLineError
    return [_unquoted(match[1]) for match in fields.finditer(line)]


def _unquoted(field: bytes) -> bytes:
    quoted = field.lstrip(b" ")
    return quoted[1:-1].replace(b'""', b'"') if quoted.startswith(b'"') else field


def decoded(cell: bytes) -> str | None:
    """Return bytes as text, or None where they are not UTF-8."""
    try:
        return cell.decode()
    except UnicodeDecodeError:
        return None


def cell_text(cell: bytes) -> str | None:
    r"""Return a cell as text: None where it is empty, not UTF-8, or beyond ASCII and not plain."""
    # What is not plain within ASCII is left to whoever says what kind of cell it should be.
    text = decoded(cell) or None
    if text is not None and not text.isascii() and UNREADABLE.search(text):
        return None
    return text


class Lines(Protocol):
    """Bytes that are read in blocks or lines, as of a file."""

    def read(self, size: int, /) -> bytes:
        """Return the next bytes, none at the end."""
        ...

    def readline(self) -> bytes:
        """Return the bytes to the end of the line."""
        ...


class Recoded:
    """The lines of a file in another encoding, as UTF-8; what cannot be decoded is not UTF-8."""

    def __init__(self, file: BinaryIO, encoding: str) -> None:
        wide = codecs.lookup(encoding).name.startswith("utf-")
        errors = "replace" if wide else "surrogateescape"
        # A line ends at LF alone, as the grammar says, and what stands before it is not changed.
        self._text = io.TextIOWrapper(file, encoding=encoding, errors=errors, newline="\n")

    def __del__(self) -> None:
        # The file is closed by whoever has opened it.
        self._text.detach()

    def read(self, size: int, /) -> bytes:
        """Return the next bytes, none at the end."""
        return self._text.read(size).encode("utf-8", "surrogateescape")

    def readline(self) -> bytes:
        """Return the bytes to the end of the line."""
        return self._text.readline().encode("utf-8", "surrogateescape")


BLOCK: Final = 1 << 22  # bytes
_LONG: Final = 1 << 30  # bytes of a line; Arrow takes blocks of less than twice as many
Log = Callable[[str], None]
# In RE2, for cells that are UTF-8: what `UNREADABLE` finds in them.
_UNREADABLE: Final = r"[\x00-\x1f\x7f-\x{9f}]"


def read_batches(
    file: Lines,
    names: Sequence[str],
    wanted: Sequence[str],
    log: Log,
    *,
    block: int = BLOCK,
    separator: bytes = b",",
) -> Iterator[pa.RecordBatch]:
    r"""Yield the wanted columns of the lines after the header, a block at a time, as Arrow text."""
    import pyarrow as pa

    places, number = [names.index(name) for name in wanted], 2  # of the next line
    while data := file.read(block):
        data += b"" if data.endswith(b"\n") else file.readline()
        columns = None
        long = len(data) > _LONG
        if not long and b'"' not in data and data.count(b"\r") == data.count(b"\r\n"):
            with suppress(pa.ArrowInvalid):  # for a line with more or fewer cells
                columns = _cut(data, len(names), places, separator)
        if columns is None:
            columns = _cut_by_line(data, len(names), places, number, log, separator)
        yield pa.record_batch(columns, names=list(wanted))
        number += data.count(b"\n")


def _cut_by_line(
    data: bytes, width: int, places: Sequence[int], number: int, log: Log, separator: bytes
) -> list[pa.Array]:
    """Return the columns at these places of lines of any kind, the first with this number."""
    import pyarrow as pa

    plain: list[bytes] = []  # the lines that are cut at their commas
    quoted: list[list[bytes]] = []  # the cells of the others
    is_quoted: list[bool] = []  # of each line that is kept
    for at, line in enumerate(data.removesuffix(b"\n").split(b"\n"), start=number):
        own = line.removesuffix(b"\r")
        alone = b'"' in own or b"\r" in own or len(own) > _LONG
        cells = _cells_of(line, at, separator) if alone else None
        count = own.count(separator) + bool(own) if cells is None else len(cells)
        if count != width:
            if count:
                log(f"line {at}: {count} fields, not {width}; left out")
            continue
        is_quoted.append(cells is not None)
        if cells is None:
            plain.append(own)
        else:
            quoted.append(cells)
    columns = _cut(b"\n".join(plain), width, places, separator)
    rest = [[cell_text(cells[place]) for cells in quoted] for place in places]
    # The columns have the plain lines first: they are put in the order of the file.
    order = pa.array(np.argsort(np.argsort(is_quoted, kind="stable")))
    return [
        pa.concat_arrays([column, pa.array(texts, pa.large_string())]).take(order)
        for column, texts in zip(columns, rest, strict=True)
    ]


def _cells_of(line: bytes, number: int, separator: bytes) -> list[bytes]:
    try:
        return line_cells(line + b"\n", separator)
    except UnclearLineError:
        raise UnclearLineError(
            f"line {number}: a quote that opens and does not close on its line, or stands beside "
            "other text, or a line break within a line; write one record a line"
        ) from None


def _cut(data: bytes, width: int, places: Sequence[int], separator: bytes) -> list[pa.Array]:
    """Return the columns at these places of lines of so many cells, none of them quoted."""
    import pyarrow as pa
    from pyarrow import csv

    if not data:
        return [pa.array([], pa.large_string()) for _ in places]
    if len(separator) > 1:  # beyond ASCII, which Arrow does not take: no cell holds this instead
        data, separator = data.replace(b"\x1f", b" ").replace(separator, b"\x1f"), b"\x1f"
    data = b"\n" + data  # a byte-order mark at the very start would be dropped
    wanted = [str(place) for place in places]
    table = csv.read_csv(
        pa.py_buffer(data),
        csv.ReadOptions(
            column_names=[str(place) for place in range(width)],
            use_threads=False,
            block_size=len(data),
        ),
        csv.ParseOptions(delimiter=separator.decode(), quote_char=False, double_quote=False),
        csv.ConvertOptions(
            column_types=dict.fromkeys(wanted, pa.large_binary()),
            include_columns=wanted,
            null_values=[""],
            strings_can_be_null=True,
        ),
    )
    return [_readable(table.column(name).combine_chunks()) for name in wanted]


def _readable(cells: pa.Array) -> pa.Array:
    """Return cells as text, as `cell_text` does."""
    import pyarrow as pa
    import pyarrow.compute as pc

    try:
        column = cells.cast(pa.large_string())
    except pa.ArrowInvalid:  # some are not UTF-8
        texts = [None if cell is None else cell_text(cell) for cell in cells.to_pylist()]
        return pa.array(texts, pa.large_string())
    plain = pc.string_is_ascii(column)
    if pc.all(plain).as_py():
        return column
    kept = pc.or_(plain, pc.invert(pc.match_substring_regex(column, _UNREADABLE)))
    return pc.if_else(kept, column, pa.scalar(None, pa.large_string()))
