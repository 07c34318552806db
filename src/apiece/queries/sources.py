"""Sources of a table: one Parquet or CSV file, or a table in memory; read literally.

Of a file some rows are in memory at a time. A path is the name of one file: no pattern, no folder
names that become columns, no address. Names of columns are matched exactly, and only declared
columns are read.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime, timedelta
from io import BufferedReader
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import numpy as np

from apiece.datasets.blocks import (
    UNREADABLE,
    Lines,
    Recoded,
    read_batches,
    read_cell,
    split_header,
)
from apiece.datasets.tables import (
    PACKED,
    PLAIN,
    UNPACKING,
    Dialect,
    check_separated,
    is_parquet,
    refuse_text_settings,
)
from apiece.errors import DataError, InputError, UnsupportedError
from apiece.tables.values import ISO, Declared, moment_of, text_of

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa
    import pyarrow.parquet as pq

# Python's blanks: what `str.strip` takes off. The last of them is the ideographic space U+3000.
_BLANKS: Final = "".join(chr(code) for code in range(0x3001) if chr(code).isspace())
_EPOCH: Final = datetime(1970, 1, 1)
# Unit of a stored date or time → its microseconds.
_MICROSECONDS: Final = {"D": 86_400_000_000, "s": 1_000_000, "ms": 1000, "us": 1}
# The first microsecond of the calendar's years 1 to 9999, and the first after them.
_FIRST: Final = (datetime.min - _EPOCH) // timedelta(microseconds=1)
_LAST: Final = (datetime.max - _EPOCH) // timedelta(microseconds=1)


def is_text(kind: pa.DataType) -> bool:
    """Whether cells of a storage type are texts, so that they have no kind but a declared one."""
    from pyarrow import types

    is_string = types.is_string(kind) or types.is_large_string(kind)
    return bool(is_string or types.is_string_view(kind) or types.is_null(kind))


def _is_value(kind: pa.DataType) -> bool:
    """Whether cells of a storage type are numbers, booleans, dates or times."""
    from pyarrow import types

    is_number = types.is_integer(kind) or types.is_floating(kind) or types.is_decimal(kind)
    is_time = types.is_timestamp(kind) or types.is_date(kind)
    return bool(is_number or is_time or types.is_boolean(kind))


def unpack_column(column: pa.ChunkedArray | pa.Array, *, exact: bool = False) -> pa.ChunkedArray:
    """Return an Arrow column without dictionaries, its texts as `text_of` writes them.

    What is empty or not UTF-8 is missing. With `exact` texts stay as they are, as ids do: with a
    character off they would be somebody else. Raises `UnsupportedError` for lists and such.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    if isinstance(column, pa.Array):
        column = pa.chunked_array([column])
    kind = column.type
    if pa.types.is_dictionary(kind):
        words = kind.value_type
        # Arrow takes no items out of a dictionary of string views.
        wide = pa.large_string() if is_text(words) else words
        # Each chunk may have a dictionary of its own.
        chunks = [chunk.dictionary.cast(wide).take(chunk.indices) for chunk in column.chunks]
        return unpack_column(pa.chunked_array(chunks, wide), exact=exact)
    if pa.types.is_null(kind):
        return pa.chunked_array([pa.nulls(len(column), pa.large_string())])
    if is_text(kind):
        # What is not UTF-8 goes first: the functions that follow may fail on it.
        cells = _remove_undecodable(column.cast(pa.large_string()))
        if not exact:
            # A text with blanks around it, or composed in another way, is the same to a reader.
            cells = pc.utf8_normalize(pc.utf8_trim(cells, _BLANKS), form="NFC")
        null = pa.scalar(None, pa.large_string())
        return pc.if_else(pc.equal(cells, ""), null, cells)
    if _is_value(kind):
        return column
    raise UnsupportedError(f"stored as {kind}, which is neither text, a number nor a date")


def convert_to_texts(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return an unpacked column as text, cell by cell."""
    import pyarrow as pa

    kind = column.type
    if is_text(kind):
        return column
    if pa.types.is_integer(kind):
        return column.cast(pa.large_string())
    return write_texts(list_cells(column))


def convert_to_numbers(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return an unpacked column as doubles where it holds numbers or booleans, and else as text."""
    import pyarrow as pa

    kind = column.type
    if pa.types.is_floating(kind) and kind.bit_width < 64:
        doubles = pa.array(list_cells(column), pa.float64())
        return pa.chunked_array([doubles])
    is_number = pa.types.is_integer(kind) or pa.types.is_floating(kind)
    if is_number or pa.types.is_boolean(kind):
        # Whole numbers beyond 2^53 become the nearest double; a checked cast would fail on such a
        # row.
        return column.cast(pa.float64(), safe=False)
    return convert_to_texts(column)


def convert_to_moments(column: pa.ChunkedArray, form: str = ISO) -> pa.ChunkedArray:
    """Return an unpacked column of dates as microseconds since 1970 in UTC, and else as text.

    Texts are dates where they have a declared format of their own.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    kind = column.type
    if is_text(kind) and form != ISO:
        distinct = pc.dictionary_encode(column).unify_dictionaries()
        return _map_distinct(distinct, lambda cell: moment_of(cell, form))
    if is_text(kind):
        return _shift_texts_to_utc(column)
    if not (pa.types.is_date(kind) or pa.types.is_timestamp(kind)):
        return convert_to_texts(column)
    if pa.types.is_date32(kind):
        # Days or units since 1970 as whole numbers.
        unit = "D"
        stored = column.cast(pa.int32()).cast(pa.int64())
    else:
        unit = "ms" if pa.types.is_date64(kind) else kind.unit
        stored = column.cast(pa.int64())
    if unit == "ns":
        # Arrow divides towards zero; this is the microsecond that has begun.
        shifted = pc.if_else(pc.less(stored, 0), pc.subtract(stored, 999), stored)
        return pc.divide(shifted, 1000)
    # What lies beyond the calendar's years is missing; its microseconds could overflow.
    micros = _MICROSECONDS[unit]
    is_early = pc.less(stored, -(-_FIRST // micros))
    is_late = pc.greater(stored, _LAST // micros)
    null = pa.scalar(None, pa.int64())
    return pc.multiply(pc.if_else(pc.or_(is_early, is_late), null, stored), micros)


def _shift_texts_to_utc(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return a column of text in which times with a distance from UTC are written in UTC."""
    import pyarrow as pa
    import pyarrow.compute as pc

    # The other cells are left to the database.
    has_offset = pc.match_substring_regex(column, ":.*[-+Z]")
    if not pc.any(has_offset).as_py():
        return column
    texts = [
        _shift_to_utc(cell) if shifted else cell
        for cell, shifted in zip(column.to_pylist(), has_offset.to_pylist(), strict=True)
    ]
    return pa.chunked_array([pa.array(texts, pa.large_string())])


def _shift_to_utc(cell: str) -> str | None:
    """Return a moment's text without its distance from UTC."""
    moment = moment_of(cell)
    return None if moment is None else str(_EPOCH + timedelta(microseconds=moment))


def convert_to_declared_texts(cells: pa.ChunkedArray, declared: Declared) -> pa.ChunkedArray:
    """Return an unpacked column as the texts that a filter compares: declared values as declared.

    Other cells are texts that do not depend on how a container spells what it holds.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    if is_text(cells.type):
        distinct = pc.dictionary_encode(cells).unify_dictionaries()
        if not distinct.num_chunks:
            return cells
        # After unifying, every chunk has the same dictionary.
        spellings = distinct.chunk(0).dictionary.to_pylist()
        compared = pa.array([declared.text(spelling) for spelling in spellings], pa.large_string())
        taken = pa.chunked_array([compared.take(chunk.indices) for chunk in distinct.chunks])
        # An empty cell has a text only where "" is declared.
        return pc.fill_null(taken, "") if declared.has_empty() else taken
    values = pa.array([text_of(value) for value in declared.values], pa.large_string())
    positions = locate_declared(cells, declared)
    named = pa.chunked_array([values.take(chunk) for chunk in positions.chunks], pa.large_string())
    return pc.coalesce(named.combine_chunks(), convert_to_texts(cells).combine_chunks())


def count_present(column: pa.ChunkedArray) -> int:
    """Return how many cells of a column are neither null nor NaN."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if not pa.types.is_floating(column.type):
        return len(column) - int(column.null_count)
    missing = pc.sum(pc.is_null(column, nan_is_null=True)).as_py()
    return len(column) - int(missing or 0)


def list_cells(column: pa.ChunkedArray) -> list[object]:
    """Return the cells of an unpacked column as Python's values, None for null and NaN."""
    import pyarrow as pa
    import pyarrow.compute as pc

    kind = column.type
    if pa.types.is_timestamp(kind) or pa.types.is_date(kind):
        moments = convert_to_moments(column).to_pylist()
        return [None if m is None else _EPOCH + timedelta(microseconds=m) for m in moments]
    if not pa.types.is_floating(kind):
        return list(column.to_pylist())
    stored = column.to_numpy()
    if kind.bit_width < 64:
        # A narrow float is the number of its shortest text: .1 stays .1.
        stored = stored.astype(np.float16 if kind.bit_width == 16 else np.float32)
        stored = stored.astype(str).astype(np.float64)
    is_null = pc.is_null(column, nan_is_null=True).to_pylist()
    return [None if null else cell for cell, null in zip(stored.tolist(), is_null, strict=True)]


def locate_declared(column: pa.ChunkedArray, declared: Declared) -> pa.ChunkedArray:
    """Return the position of each cell's value among declared ones, null where it is none."""
    import pyarrow as pa
    import pyarrow.compute as pc

    def locate(cell: object) -> int | None:
        position = declared.position(cell)
        return None if position < 0 else position

    # Half floats are encoded as single ones, and looked at as the half floats that they are.
    is_half = pa.types.is_float16(column.type)
    encodable = column.cast(pa.float32()) if is_half else column
    distinct = pc.dictionary_encode(encodable).unify_dictionaries()
    return _map_distinct(distinct, locate, stored=column.type if is_half else None)


def _map_distinct(
    distinct: pa.ChunkedArray,
    function: Callable[[object], int | None],
    stored: pa.DataType | None = None,
) -> pa.ChunkedArray:
    """Return the whole number of each cell of an encoded column; a value is looked at once.

    `stored` is the type as which the function sees the values, where it is not the encoded one.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    if not distinct.num_chunks:
        return pa.chunked_array([], pa.int64())
    values = distinct.chunk(0).dictionary
    if stored is not None:
        values = values.cast(stored)
    cells = list_cells(pa.chunked_array([values]))
    numbers = pa.array(map(function, cells), pa.int64())
    chunks = [numbers.take(chunk.indices) for chunk in distinct.chunks]
    # A null is in no dictionary.
    null_number = function(None)
    if null_number is not None:
        is_null = [chunk.indices.is_null() for chunk in distinct.chunks]
        chunks = [
            pc.if_else(null, null_number, chunk)
            for null, chunk in zip(is_null, chunks, strict=True)
        ]
    return pa.chunked_array(chunks, pa.int64())


def write_texts(cells: Iterable[object]) -> pa.ChunkedArray:
    """Return cells of any Python types as an Arrow column of text, one by one."""
    import pyarrow as pa

    def write(cell: object) -> str | None:
        # Texts stay as they are: `unpack_column` takes off the blanks around them.
        text = str(cell) if isinstance(cell, str) else text_of(cell)
        if text is None or text.isascii():
            return text
        return None if UNREADABLE.search(text) else text

    texts = pa.array(map(write, cells), pa.large_string())
    return pa.chunked_array([texts])


def _remove_undecodable(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return a column of text in which cells that are not UTF-8 are null."""
    import pyarrow as pa

    try:
        # Arrow takes any bytes for text; a full validation looks whether they are UTF-8.
        column.validate(full=True)
        return column
    except pa.ArrowInvalid:
        cells = column.cast(pa.large_binary()).to_pylist()
        return write_texts([None if cell is None else read_cell(cell) for cell in cells])


# Endings of the names of files of text, before the ending of a packed one.
TEXTS: Final = (".csv", ".tsv", ".txt")
# Cells of a file that are in memory at a time.
CELLS: Final = 2**21
# Bytes of a Parquet file that are read at a time.
_BUFFER: Final = 2**20
# Characters of a source's name in a message, at most.
_NAME_LENGTH: Final = 60
# A user and password in an address.
_USER: Final = re.compile(r"(?<=:)//[^/]*@")
# Takes a message that is for the steward's eyes only.
Log = Callable[[str], None]
# Name → Arrow column, as it is stored.
Columns: TypeAlias = "Mapping[str, pa.ChunkedArray]"
# Size of a file in bytes and the time of its last change in nanoseconds.
FileState: TypeAlias = tuple[int, int]


@contextmanager
def read_source(
    source: object, wanted: Sequence[str], log: Log, dialect: Dialect = PLAIN
) -> Iterator[tuple[Iterator[Columns], str]]:
    """Yield the wanted columns of a source, in parts, and its file's SHA-256 ("" in memory).

    Raises `DataError` for a file that is not there, lacks a column, or is another one after its
    parts were read, `InputError` for what is no source; these depend on no row. Any other error may
    speak of rows.
    """
    if not isinstance(source, (str, Path)):
        yield iter([_read_memory(source, wanted)]), ""
        return
    path = Path(source)
    # people.csv.gz is a CSV file in a packed one.
    is_packed = path.suffix.lower() in PACKED
    unpacked_name = path.stem if is_packed else path.name
    is_text_file = Path(unpacked_name).suffix.lower() in TEXTS
    if not (is_text_file or is_parquet(path)):
        raise InputError(
            f"source {shorten_name(path)}: neither a .parquet nor a .csv file (or .tsv, .txt, "
            ".csv.gz); give one of them, or from Python a table, so that no type is guessed from "
            "rows"
        )
    with open_file(path) as file:
        # Hashed, rewound and read, all from one open file: its name may lead elsewhere by then.
        state = read_state(file)
        digest = hashlib.file_digest(file, "sha256").hexdigest()
        file.seek(0)
        if is_text_file:
            yield _read_csv(file, path, wanted, log, dialect), digest
        else:
            refuse_text_settings(path, dialect)
            yield _read_parquet(file, path, wanted), digest
        require_unchanged(file, path, state)


def shorten_name(source: object) -> str:
    """Return the name of a source in a message, in quotes and of at most 60 characters."""
    text = str(source) if isinstance(source, (str, Path)) else type(source).__name__
    # An address may have a password.
    text = _USER.sub("//", text)
    if len(text) > _NAME_LENGTH:
        text = text[: _NAME_LENGTH - 3] + "…"
    return repr(text)


def open_file(path: Path) -> BufferedReader:
    """Return a file that is open for reading; raise `DataError` where it is none."""
    try:
        if path.is_file():
            return path.open("rb")
        reason: str | None = "no such file"
    except OSError as error:
        reason = error.strerror
    raise DataError(f"source {shorten_name(path)}: cannot be read ({reason})")


def read_layout(path: Path, wanted: Sequence[str]) -> tuple[int, pa.Table, int]:
    """Return how many row groups a Parquet file has, its wanted columns without rows, and rows."""
    import pyarrow.parquet as pq

    with open_file(path) as file:
        parquet = pq.ParquetFile(file)
        empty = _select_columns(parquet, path, wanted)
        return parquet.num_row_groups, empty, parquet.metadata.num_rows


def read_row_group(path: Path, number: int, wanted: Sequence[str], state: FileState) -> Columns:
    """Return the wanted columns of one row group of a file, which must be in this state."""
    import pyarrow.parquet as pq

    with open_file(path) as file:
        require_unchanged(file, path, state)
        table = pq.ParquetFile(file).read_row_group(number, columns=list(wanted))
        return _split_columns(table)


def read_state(file: BufferedReader) -> FileState:
    """Return a file's size and the time of its last change."""
    status = os.fstat(file.fileno())
    return status.st_size, status.st_mtime_ns


def require_unchanged(file: BufferedReader, path: Path, state: FileState) -> None:
    """Raise `DataError` where a file is in another state now."""
    if read_state(file) != state:
        raise DataError(f"source {shorten_name(path)}: changed while it was read")


def _read_parquet(file: BufferedReader, path: Path, wanted: Sequence[str]) -> Iterator[Columns]:
    """Yield the wanted columns of a Parquet file, in parts."""
    import pyarrow.parquet as pq

    # Without a size of the buffer it holds a whole row group's bytes.
    parquet = pq.ParquetFile(file, buffer_size=_BUFFER)
    empty = _select_columns(parquet, path, wanted)
    rows = _rows_of_part(wanted)
    return _join_batches(parquet.iter_batches(rows, columns=list(wanted)), empty, rows)


def _select_columns(parquet: pq.ParquetFile, path: Path, wanted: Sequence[str]) -> pa.Table:
    """Return the wanted columns of a Parquet file without rows, each of which must be there."""
    schema = parquet.schema_arrow
    require_names(path, schema.names, wanted)
    return schema.empty_table().select(list(wanted))


def _rows_of_part(wanted: Sequence[str]) -> int:
    """Return how many rows of the wanted columns are in memory at a time."""
    return max(1, CELLS // len(wanted))


def _read_csv(
    file: BufferedReader, path: Path, wanted: Sequence[str], log: Log, dialect: Dialect
) -> Iterator[Columns]:
    """Yield the wanted columns of a CSV file, in parts."""
    import pyarrow as pa

    # Bytes of the file, unpacked, then recoded to UTF-8 where they are in another encoding.
    unpack = PACKED.get(path.suffix.lower())
    unpacked: Any = file if unpack is None else unpack(file)
    is_utf8 = dialect.encoding.lower().replace("_", "-") in ("utf-8", "utf8")
    lines: Lines = unpacked if is_utf8 else Recoded(unpacked, dialect.encoding)
    separator = dialect.separator_of(path)
    try:
        # Empty lines before the header are none of the table's.
        header = lines.readline()
        while header and not header.strip():
            header = lines.readline()
        names = split_header(header, separator.encode())
    except DataError as error:
        raise DataError(f"{path}: {error}") from None
    except UNPACKING:
        raise DataError(
            f"source {shorten_name(path)}: cannot be read (not packed as it is called)"
        ) from None
    check_separated(path, names, separator)
    require_names(path, names, wanted)
    empty = pa.schema([(name, pa.large_string()) for name in wanted]).empty_table()
    batches = read_batches(lines, names, wanted, log, separator=separator.encode())
    return _join_batches(batches, empty, _rows_of_part(wanted))


def _join_batches(
    batches: Iterator[pa.RecordBatch], empty: pa.Table, rows: int
) -> Iterator[Columns]:
    """Yield columns of at least so many rows each, but for the last; at least once."""
    import pyarrow as pa

    # Batches of a file may be small, and each part costs a statement of the database.
    pending: list[pa.RecordBatch] = []
    has_yielded = False
    for batch in batches:
        pending.append(batch)
        if sum(batch.num_rows for batch in pending) >= rows:
            yield _split_columns(pa.Table.from_batches(pending))
            pending = []
            has_yielded = True
    if pending:
        yield _split_columns(pa.Table.from_batches(pending))
    elif not has_yielded:
        yield _split_columns(empty)


def _split_columns(table: pa.Table) -> Columns:
    return {name: table.column(name) for name in table.column_names}


def _read_memory(source: object, wanted: Sequence[str]) -> Columns:
    """Return the wanted columns of a table in memory."""
    import pandas as pd
    import pyarrow as pa

    # A DuckDB relation is evaluated here, once.
    if hasattr(source, "to_arrow_table"):
        source = source.to_arrow_table()
    if isinstance(source, pd.DataFrame):
        return _read_frame(source, wanted)
    if not hasattr(source, "__arrow_c_stream__"):
        raise InputError(f"source {shorten_name(source)}: not a path, a pandas or an Arrow table")
    table = pa.table(source)
    require_names(source, table.column_names, wanted)
    return _split_columns(table.select(list(wanted)))


def _read_frame(frame: pd.DataFrame, wanted: Sequence[str]) -> Columns:
    """Return columns of a pandas table: by dtype where it has one, cell by cell where not."""
    import pandas as pd
    import pyarrow as pa

    require_names(frame, list(frame.columns), wanted)
    columns = {}
    for name in wanted:
        column = frame[name]
        if isinstance(column.dtype, pd.CategoricalDtype):
            column = column.astype(object)
        # Cells of any Python types become texts one by one: pandas would guess one type from all
        # rows.
        if column.dtype == object or isinstance(column.dtype, pd.StringDtype):
            columns[name] = write_texts(column.tolist())
            continue
        stored = pa.Array.from_pandas(column)
        columns[name] = pa.chunked_array([stored]) if isinstance(stored, pa.Array) else stored
    return columns


def require_names(source: object, names: Sequence[object], wanted: Sequence[str]) -> None:
    """Raise `DataError` unless each wanted name is there once."""
    # No message repeats the names: where a file has no header, they are the first person's row.
    for name in wanted:
        if names.count(name) != 1:
            occurrence = "twice" if name in names else "not"
            raise DataError(
                f"column {name!r}: {occurrence} in the source {shorten_name(source)}, which has "
                f"{len(names)} columns; its header must have every declared name once, as it is "
                "written"
            )
