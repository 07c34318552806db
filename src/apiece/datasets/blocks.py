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
`split_line` cuts every other line by itself, and would give the same cells for all.
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
# What `UNREADABLE` finds in cells that are UTF-8, as a pattern of RE2.
_UNREADABLE: Final = r"[\x00-\x1f\x7f-\x{9f}]"
# Bytes that are read at a time.
BLOCK: Final = 1 << 22
# Bytes of a line that Arrow cuts, at most; it takes blocks of less than twice as many.
_LONG: Final = 1 << 30
# The byte-order mark of UTF-8.
_BOM: Final = b"\xef\xbb\xbf"
# A byte that stands for a separator beyond ASCII, which Arrow does not take.
_SUBSTITUTE: Final = b"\x1f"
# Takes a message that is for the steward's eyes only.
Log = Callable[[str], None]


class UnclearLineError(Exception):
    """A line that does not show where its record ends."""


@cache
def _compile_patterns(separator: bytes) -> tuple[re.Pattern[bytes], re.Pattern[bytes]]:
    """Return the pattern of a line and the pattern that finds its fields, for a separator."""
    cut = re.escape(separator)
    # Blanks before a quote are passed over, as where people write "a", "b", but not where blanks
    # are what separates.
    blanks = rb"" if separator in (b"\t", b" ") else rb"[ ]*"
    # Quantifiers are possessive: a line that does not match is refused in linear time.
    # A field: blanks, then quoted text with doubled quotes; or anything but a separator or a quote.
    field = rb"(?:" + blanks + rb'"(?:[^"]|"")*+"|(?:(?!' + cut + rb')[^"])*+)'
    line_pattern = re.compile(field + rb"(?:" + cut + field + rb")*+")
    # Each field begins the line or follows a separator.
    field_pattern = re.compile(rb"(?:^|" + cut + rb")(" + field + rb")")
    return line_pattern, field_pattern


def split_header(line: bytes, separator: bytes = b",") -> list[str]:
    r"""Return the names of the columns, without blanks around them."""
    try:
        cells = split_line(line.removeprefix(_BOM), separator)
    except UnclearLineError:
        cells = []
    names = [decode_cell(cell) for cell in cells]
    # To pass over a name that is not UTF-8 would give its cells to the next name.
    if not names or None in names:
        raise DataError(
            "its first line is not a header; give names in UTF-8, or declare separator and encoding"
        )
    return [str(name).strip() for name in names]


def split_line(line: bytes, separator: bytes = b",") -> list[bytes]:
    """Return the cells of one line, none of an empty one. Raises `UnclearLineError`."""
    # Only the end of the line, LF or CR LF, is taken off.
    line = line.removesuffix(b"\n").removesuffix(b"\r")
    if not line:
        return []
    if b"\r" in line or b"\n" in line:
        raise UnclearLineError
    if b'"' not in line:
        return line.split(separator)
    # The whole line must be fields and separators; else it is unclear where they end.
    line_pattern, field_pattern = _compile_patterns(separator)
    if not line_pattern.fullmatch(line):
        raise UnclearLineError
    return [_unquote_field(match[1]) for match in field_pattern.finditer(line)]


def _unquote_field(field: bytes) -> bytes:
    stripped = field.lstrip(b" ")
    # A field that is not quoted keeps its blanks.
    if not stripped.startswith(b'"'):
        return field
    return stripped[1:-1].replace(b'""', b'"')


def decode_cell(cell: bytes) -> str | None:
    """Return bytes as text, or None where they are not UTF-8."""
    try:
        return cell.decode()
    except UnicodeDecodeError:
        return None


def read_cell(cell: bytes) -> str | None:
    r"""Return a cell as text: None where it is empty, not UTF-8, or beyond ASCII and not plain."""
    # Control characters within ASCII are left to the caller, who knows the kind of the cell.
    text = decode_cell(cell) or None
    if text is not None and not text.isascii() and UNREADABLE.search(text):
        return None
    return text


class Lines(Protocol):
    """A file's bytes, read in blocks or lines."""

    def read(self, size: int, /) -> bytes:
        """Return the next bytes, none at the end."""
        ...

    def readline(self) -> bytes:
        """Return the bytes to the end of the line."""
        ...


class Recoded:
    """The lines of a file in another encoding, as UTF-8; what cannot be decoded is not UTF-8."""

    def __init__(self, file: BinaryIO, encoding: str) -> None:
        # Broken Unicode is replaced; a byte that another encoding lacks comes back as itself, which
        # is no UTF-8.
        is_unicode = codecs.lookup(encoding).name.startswith("utf-")
        errors = "replace" if is_unicode else "surrogateescape"
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

    positions = [names.index(name) for name in wanted]
    # The number of the next line, after the header.
    number = 2
    while data := file.read(block):
        # A block goes on to the end of its last line, so that no line is in two blocks.
        if not data.endswith(b"\n"):
            data += file.readline()
        columns = None
        if _is_plain(data):
            # A line with more or fewer cells is an error of Arrow's.
            # Then all lines of the block are cut one by one.
            with suppress(pa.ArrowInvalid):
                columns = _split_plain(data, len(names), positions, separator)
        if columns is None:
            columns = _split_by_line(data, len(names), positions, number, log, separator)
        yield pa.record_batch(columns, names=list(wanted))
        number += data.count(b"\n")


def _is_plain(data: bytes) -> bool:
    """Whether Arrow may cut a block: without a quote, a stray carriage return or a long line."""
    if len(data) > _LONG or b'"' in data:
        return False
    # Each CR stands before an LF.
    return data.count(b"\r") == data.count(b"\r\n")


def _split_by_line(
    data: bytes, width: int, positions: Sequence[int], number: int, log: Log, separator: bytes
) -> list[pa.Array]:
    """Return the columns at some positions of lines of any kind, the first with this number."""
    import pyarrow as pa

    # The lines that are cut at their separators, and the cells of the other ones.
    plain: list[bytes] = []
    quoted: list[list[bytes]] = []
    # For each line that is not left out, in the order of the file.
    is_quoted: list[bool] = []
    # A line feed at the end of the block begins no further line.
    for line_number, line in enumerate(data.removesuffix(b"\n").split(b"\n"), start=number):
        content = line.removesuffix(b"\r")
        cells = None
        if b'"' in content or b"\r" in content or len(content) > _LONG:
            cells = _split_single_line(line, line_number, separator)
            count = len(cells)
        else:
            # A line without anything is no record.
            count = content.count(separator) + 1 if content else 0
        # Logged for the steward alone: the others are answered as if it were not there.
        if count != width:
            if count:
                log(f"line {line_number}: {count} fields, not {width}; left out")
            continue
        is_quoted.append(cells is not None)
        if cells is None:
            plain.append(content)
        else:
            quoted.append(cells)
    plain_columns = _split_plain(b"\n".join(plain), width, positions, separator)
    # The columns have the plain lines first, and are put in the order of the file: the inner sort
    # gives each cell its line in the file, and the outer one is that permutation's inverse.
    order = pa.array(np.argsort(np.argsort(is_quoted, kind="stable")))
    columns = []
    for position, plain_column in zip(positions, plain_columns, strict=True):
        # Cells of the wanted columns alone, read as those that Arrow has cut.
        texts = [read_cell(cells[position]) for cells in quoted]
        column = pa.concat_arrays([plain_column, pa.array(texts, pa.large_string())])
        columns.append(column.take(order))
    return columns


def _split_single_line(line: bytes, number: int, separator: bytes) -> list[bytes]:
    """Return the cells of a line that Arrow cannot cut; an error names it by its number."""
    try:
        return split_line(line + b"\n", separator)
    except UnclearLineError:
        raise UnclearLineError(
            f"line {number}: a quote that opens and does not close on its line, or stands beside "
            "other text, or a line break within a line; write one record a line"
        ) from None


def _split_plain(
    data: bytes, width: int, positions: Sequence[int], separator: bytes
) -> list[pa.Array]:
    """Return the columns at some positions of lines of `width` cells, none of them quoted."""
    import pyarrow as pa
    from pyarrow import csv

    # Without plain lines Arrow would refuse to read.
    if not data:
        return [pa.array([], pa.large_string()) for _ in positions]
    # A separator beyond ASCII is replaced by a byte that no cell holds.
    if len(separator) > 1:
        data = data.replace(_SUBSTITUTE, b" ").replace(separator, _SUBSTITUTE)
        separator = _SUBSTITUTE
    # A byte-order mark at the very start would be dropped.
    data = b"\n" + data
    wanted = [str(position) for position in positions]
    table = csv.read_csv(
        pa.py_buffer(data),
        csv.ReadOptions(
            column_names=[str(position) for position in range(width)],
            use_threads=False,
            # One block and one thread: the order of lines stays.
            block_size=len(data),
        ),
        csv.ParseOptions(delimiter=separator.decode(), quote_char=False, double_quote=False),
        csv.ConvertOptions(
            column_types=dict.fromkeys(wanted, pa.large_binary()),
            include_columns=wanted,
            # An empty cell is null; every other text is itself.
            null_values=[""],
            strings_can_be_null=True,
        ),
    )
    return [_read_cells(table.column(name).combine_chunks()) for name in wanted]


def _read_cells(cells: pa.Array) -> pa.Array:
    """Return cells as text, each as `read_cell` does."""
    import pyarrow as pa
    import pyarrow.compute as pc

    # Fast where everything is UTF-8, which nearly always holds.
    try:
        column = cells.cast(pa.large_string())
    except pa.ArrowInvalid:
        # Some are not UTF-8.
        texts = [None if cell is None else read_cell(cell) for cell in cells.to_pylist()]
        return pa.array(texts, pa.large_string())
    # Within ASCII control characters are left to the caller (`read_cell`).
    is_ascii = pc.string_is_ascii(column)
    if pc.all(is_ascii).as_py():
        return column
    is_unreadable = pc.match_substring_regex(column, _UNREADABLE)
    is_plain = pc.or_(is_ascii, pc.invert(is_unreadable))
    return pc.if_else(is_plain, column, pa.scalar(None, pa.large_string()))
