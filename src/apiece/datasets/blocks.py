"""The grammar of a CSV line, and a file of them read in blocks; for `apiece query`.

    line  = field {"," field}          field = plain | '"' {character | '""'} '"'
    plain = no comma and no quote;     a line ends with LF or CR LF, and no field holds either

One record is one line, read from its own bytes and the header's alone, so that no record can reach
into another; a file with a quote that closes on another line is refused as a whole, for whoever
wrote the field between could write other people's lines. A line with too few or too many fields
contributes nothing; a cell that is empty or not UTF-8 is missing. What one row holds must not show
in whether the others are answered; a steward's own table is read by `tables`, which names the row.

Lines without a quote or a stray carriage return are cut by array operations, all others one by one
by `line_cells`, which gives the same cells.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, BinaryIO, Final

import numpy as np
import numpy.typing as npt

from apiece._types import Integers, Mask
from apiece.errors import DataError

if TYPE_CHECKING:
    import pyarrow as pa

_FIELD: Final = rb'(?:"(?:[^"]|"")*+"|[^",]*+)'
_LINE: Final = re.compile(_FIELD + rb"(?:," + _FIELD + rb")*+")
_SPLIT: Final = re.compile(rb'(?:^|,)("(?:[^"]|"")*+"|[^",]*+)')
# Control characters and halves of surrogate pairs: not in ids, not in texts, not in groups.
UNREADABLE: Final = re.compile("[\x00-\x1f\x7f-\x9f\ud800-\udfff]")


class UnclearLineError(Exception):
    """A line that does not show where its record ends."""


def header_cells(line: bytes) -> list[str]:
    r"""Return the names of the columns."""
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
    r"""Return a cell as text: None where it is empty, not UTF-8, or beyond ASCII and not plain."""
    # What is not plain within ASCII is left to whoever says what kind of cell it should be.
    text = decoded(cell) or None
    if text is not None and not text.isascii() and UNREADABLE.search(text):
        return None
    return text


BLOCK: Final = 1 << 22  # bytes
_LF, _CR, _COMMA, _QUOTE = b'\n\r,"'
Bytes = npt.NDArray[np.uint8]
Log = Callable[[str], None]
# In RE2, for cells that are UTF-8: what `UNREADABLE` finds in them.
_UNREADABLE: Final = r"[\x00-\x1f\x7f-\x{9f}]"


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class _Lines:
    """The lines of a block."""

    data: Bytes
    begin: Integers  # of each line
    end: Integers  # without LF or CR LF
    odd: Mask  # which lines have a quote or a carriage return, and are not cut here
    cells: Integers  # how many the others have, 0 of an empty line
    commas: Integers  # the places of all
    first: Integers  # of each line among them


def read_batches(
    file: BinaryIO, names: Sequence[str], wanted: Sequence[str], log: Log, *, block: int = BLOCK
) -> Iterator[pa.RecordBatch]:
    r"""Yield the wanted columns of the lines after the header, a block at a time, as Arrow text."""
    import pyarrow as pa

    places = [names.index(name) for name in wanted]
    number = 2
    for data in _blocks(file, block):
        lines = _lines(np.frombuffer(data, dtype=np.uint8))
        good, cut = _read_odd(lines, data, len(names), number, log)
        plain = np.flatnonzero(~lines.odd & (lines.cells == len(names)))
        order = np.argsort(np.concatenate([plain, np.array(good, dtype=np.int64)]), kind="stable")
        columns = []
        for place in places:
            column = _column(lines, plain, place, len(names))
            if good:
                odd = pa.array([cell_text(cells[place]) for cells in cut], pa.large_string())
                column = pa.concat_arrays([column, odd]).take(pa.array(order))
            columns.append(column)
        yield pa.record_batch(columns, names=list(wanted))
        number += lines.begin.size


def _blocks(file: BinaryIO, size: int) -> Iterator[bytes]:
    """Yield the file in parts of whole lines, of at least `size` bytes where there are as many."""
    while data := file.read(size):
        yield data + file.readline() if not data.endswith(b"\n") else data


def _lines(data: Bytes) -> _Lines:
    ends = np.flatnonzero(data == _LF)
    if data[-1] != _LF:
        ends = np.append(ends, data.size)
    begin = np.append(0, ends[:-1] + 1)
    # A line's end is LF or CR LF: one carriage return before it belongs to it.
    cr = (ends > begin) & (data[np.maximum(ends - 1, 0)] == _CR)
    end = ends - cr
    strange = np.flatnonzero((data == _QUOTE) | (data == _CR))
    at = np.searchsorted(begin, strange, side="right") - 1
    odd = np.zeros(begin.size, dtype=np.bool_)
    odd[at[strange < end[at]]] = True
    commas = np.flatnonzero(data == _COMMA)
    first = np.searchsorted(commas, begin)
    cells = np.searchsorted(commas, end) - first + 1
    return _Lines(data, begin, end, odd, np.where(end > begin, cells, 0), commas, first)


def _read_odd(
    lines: _Lines, data: bytes, width: int, number: int, log: Log
) -> tuple[list[int], list[list[bytes]]]:
    """Return the odd lines that have as many cells as the header, and their cells."""
    # Tells of every line, odd or not, that has more or fewer; raises at the first unclear one.
    good, cut = [], []
    for at in np.flatnonzero(lines.odd | (lines.cells != width)).tolist():
        count = int(lines.cells[at])
        if lines.odd[at]:
            try:
                # With an end put back, so that one carriage return of the line's own stays in it.
                cells = line_cells(data[lines.begin[at] : lines.end[at]] + b"\r\n")
            except UnclearLineError:
                raise UnclearLineError(
                    f"line {number + at}: a quote that opens and does not close on its line, or "
                    "stands beside other text, or a line break within a line; write one record a "
                    "line"
                ) from None
            count = len(cells)
            if count == width:
                good.append(at)
                cut.append(cells)
        if count not in (0, width):
            log(f"line {number + at}: {count} fields, not {width}; left out")
    return good, cut


def _column(lines: _Lines, rows: Integers, place: int, width: int) -> pa.Array:
    """Return one cell of each of these lines, none of them odd, as Arrow text."""
    import pyarrow as pa

    first = lines.first[rows]
    begin = lines.begin[rows] if place == 0 else lines.commas[first + place - 1] + 1
    end = lines.end[rows] if place == width - 1 else lines.commas[first + place]
    size = end - begin
    offsets = np.append(0, np.cumsum(size))
    # Where each byte of the column stands in the block: its place in its cell, past the cell's.
    taken = np.arange(offsets[-1]) + np.repeat(begin - offsets[:-1], size)
    text = lines.data[taken]
    if text.size and text.max() >= 0x80:
        return _beyond_ascii(text, offsets)
    missing = pa.py_buffer(np.packbits(size > 0, bitorder="little").tobytes())
    return _large_string(offsets, text, missing)


def _large_string(offsets: Integers, text: Bytes, present: object) -> pa.Array:
    import pyarrow as pa

    buffers = [present, pa.py_buffer(offsets.astype(np.int64)), pa.py_buffer(text)]
    return pa.Array.from_buffers(pa.large_string(), offsets.size - 1, buffers)


def _beyond_ascii(text: Bytes, offsets: Integers) -> pa.Array:
    """Return cells of which some are not ASCII: read in one go if all are UTF-8."""
    import pyarrow as pa
    import pyarrow.compute as pc

    column = _large_string(offsets, text, None)
    try:
        column.validate(full=True)
    except pa.ArrowInvalid:
        cells = column.cast(pa.large_binary()).to_pylist()
        return pa.array([cell_text(cell) for cell in cells], pa.large_string())
    plain = pc.or_(
        pc.string_is_ascii(column), pc.invert(pc.match_substring_regex(column, _UNREADABLE))
    )
    kept = pc.and_(plain, pc.greater(pc.binary_length(column), 0))
    return pc.if_else(kept, column, pa.scalar(None, pa.large_string()))
