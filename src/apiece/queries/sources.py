"""Sources of a table: one Parquet or CSV file, or a table in memory; read literally.

Of a file some rows are in memory at a time. A path is the name of one file: no pattern, no folder
names that become columns, no address. Names of columns are matched exactly, and only declared
columns are read.
"""

from __future__ import annotations

import hashlib
import os
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
    cell_text,
    header_cells,
    read_batches,
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
from apiece.tables import ISO, Declared, moment_of, text_of

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa

# Python's blanks: what `str.strip` takes off.
_BLANKS: Final = "".join(map(chr, filter(lambda c: chr(c).isspace(), range(0x3001))))
_EPOCH: Final = datetime(1970, 1, 1)
# The first microsecond of the calendar's years 1 to 9999, and the first after them.
_FIRST: Final = (datetime.min - _EPOCH) // timedelta(microseconds=1)
_LAST: Final = (datetime.max - _EPOCH) // timedelta(microseconds=1)


def is_text(kind: pa.DataType) -> bool:
    """Whether cells of a storage type are texts, so that they have no kind but a declared one."""
    import pyarrow as pa

    is_string = pa.types.is_string(kind) or pa.types.is_large_string(kind)
    return bool(is_string or pa.types.is_string_view(kind) or pa.types.is_null(kind))


def plain(column: pa.ChunkedArray | pa.Array, *, exact: bool = False) -> pa.ChunkedArray:
    """Return an Arrow column without dictionaries, its texts as `text_of` writes them."""
    # exact: texts stay as they are, as ids do: with a character off they would be somebody else.
    # Raises `UnsupportedError` for lists and such. What is not UTF-8 or empty is missing.
    import pyarrow as pa
    import pyarrow.compute as pc

    if isinstance(column, pa.Array):
        column = pa.chunked_array([column])
    kind = column.type
    if pa.types.is_dictionary(kind):
        words = kind.value_type
        wide = pa.large_string() if is_text(words) else words  # views are not taken out of one
        chunks = [chunk.dictionary.cast(wide).take(chunk.indices) for chunk in column.chunks]
        return plain(pa.chunked_array(chunks, wide), exact=exact)
    if pa.types.is_null(kind):
        return pa.chunked_array([pa.nulls(len(column), pa.large_string())])
    if is_text(kind):
        cells = _valid(column.cast(pa.large_string()))
        if not exact:
            cells = pc.utf8_normalize(pc.utf8_trim(cells, _BLANKS), form="NFC")
        return pc.if_else(pc.equal(cells, ""), pa.scalar(None, pa.large_string()), cells)
    known = pa.types.is_integer(kind) or pa.types.is_boolean(kind) or pa.types.is_floating(kind)
    if known or pa.types.is_decimal(kind) or pa.types.is_timestamp(kind) or pa.types.is_date(kind):
        return column
    raise UnsupportedError(f"stored as {kind}, which is neither text, a number nor a date")


def texts(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return a plain column as text, cell by cell."""
    import pyarrow as pa

    kind = column.type
    if is_text(kind):
        return column
    if pa.types.is_integer(kind):
        return column.cast(pa.large_string())
    return as_text(cells_of(column))


def numbers(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return a plain column as doubles where it holds numbers or booleans, and else as text."""
    import pyarrow as pa

    kind = column.type
    if pa.types.is_floating(kind) and kind.bit_width < 64:
        return pa.chunked_array([pa.array(cells_of(column), pa.float64())])
    if pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind):
        return column.cast(pa.float64(), safe=False)
    return texts(column)


def moments(column: pa.ChunkedArray, form: str = ISO) -> pa.ChunkedArray:
    """Return a plain column of dates as microseconds since 1970 in UTC, and else as text."""
    # Texts in a declared format of their own are dates too.
    import pyarrow as pa
    import pyarrow.compute as pc

    kind = column.type
    if is_text(kind):
        if form != ISO:
            distinct = pc.dictionary_encode(column).unify_dictionaries()
            return _replaced(distinct, lambda cell: moment_of(cell, form))
        # What has a distance from UTC is written anew in UTC; the rest is left to the database.
        ahead = pc.match_substring_regex(column, ":.*[-+Z]")
        if not pc.any(ahead).as_py():
            return column
        written = [
            _utc(cell) if there else cell
            for cell, there in zip(column.to_pylist(), ahead.to_pylist(), strict=True)
        ]
        return pa.chunked_array([pa.array(written, pa.large_string())])
    if not (pa.types.is_date(kind) or pa.types.is_timestamp(kind)):
        return texts(column)
    whole = column.cast(pa.int32()) if pa.types.is_date32(kind) else column
    stored = whole.cast(pa.int64())
    unit = "D" if pa.types.is_date32(kind) else "ms" if pa.types.is_date64(kind) else kind.unit
    if unit == "ns":
        # Arrow divides towards zero; this is the microsecond that has begun.
        before = pc.if_else(pc.less(stored, 0), pc.subtract(stored, 999), stored)
        return pc.divide(before, 1000)
    micros = {"D": 86_400_000_000, "s": 1_000_000, "ms": 1000, "us": 1}[unit]
    early = pc.less(stored, -(-_FIRST // micros))
    late = pc.greater(stored, _LAST // micros)
    beyond = pc.or_(early, late)
    return pc.multiply(pc.if_else(beyond, pa.scalar(None, pa.int64()), stored), micros)


def _utc(cell: str) -> str | None:
    """Return a moment's text without its distance from UTC."""
    moment = moment_of(cell)
    return None if moment is None else str(_EPOCH + timedelta(microseconds=moment))


def declared_texts(cells: pa.ChunkedArray, declared: Declared) -> pa.ChunkedArray:
    """Return a plain column as the texts that are compared: declared values as they were declared.

    Other cells are texts that do not depend on how a container spells what it holds.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    if is_text(cells.type):
        distinct = pc.dictionary_encode(cells).unify_dictionaries()
        if not distinct.num_chunks:
            return cells
        spellings = distinct.chunk(0).dictionary.to_pylist()
        compared = pa.array([declared.text(spelling) for spelling in spellings], pa.large_string())
        return pa.chunked_array([compared.take(chunk.indices) for chunk in distinct.chunks])
    values = pa.array([text_of(value) for value in declared.values], pa.large_string())
    found = places(cells, declared)
    named = pa.chunked_array([values.take(chunk) for chunk in found.chunks], pa.large_string())
    return pc.coalesce(named.combine_chunks(), texts(cells).combine_chunks())


def present(column: pa.ChunkedArray) -> int:
    """Return how many cells of a column are neither null nor NaN."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if not pa.types.is_floating(column.type):
        return len(column) - int(column.null_count)
    return len(column) - int(pc.sum(pc.is_null(column, nan_is_null=True)).as_py() or 0)


def cells_of(column: pa.ChunkedArray) -> list[object]:
    """Return the cells of a plain column as Python's values, None for null and NaN."""
    import pyarrow as pa
    import pyarrow.compute as pc

    kind = column.type
    if pa.types.is_timestamp(kind) or pa.types.is_date(kind):
        micros = moments(column).to_pylist()
        return [None if m is None else _EPOCH + timedelta(microseconds=m) for m in micros]
    if not pa.types.is_floating(kind):
        return list(column.to_pylist())
    stored = column.to_numpy()
    if kind.bit_width < 64:  # by its shortest text: .1 stays .1
        stored = stored.astype(np.float16 if kind.bit_width == 16 else np.float32)
        stored = stored.astype(str).astype(np.float64)
    null = pc.is_null(column, nan_is_null=True).to_pylist()
    return [None if none else cell for cell, none in zip(stored.tolist(), null, strict=True)]


def places(column: pa.ChunkedArray, declared: Declared) -> pa.ChunkedArray:
    """Return the place of each cell's value among declared ones, null where it is none of them."""
    import pyarrow as pa
    import pyarrow.compute as pc

    def place(cell: object) -> int | None:
        found = declared.position(cell)
        return None if found < 0 else found

    half = pa.types.is_float16(column.type)
    known = column.cast(pa.float32()) if half else column
    distinct = pc.dictionary_encode(known).unify_dictionaries()
    return _replaced(distinct, place, back=column.type if half else None)


def _replaced(
    distinct: pa.ChunkedArray,
    replace: Callable[[object], int | None],
    back: pa.DataType | None = None,
) -> pa.ChunkedArray:
    """Return whole numbers in place of the values of an encoded column, each replaced once."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if not distinct.num_chunks:
        return pa.chunked_array([], pa.int64())
    values = distinct.chunk(0).dictionary
    values = values if back is None else values.cast(back)
    whole = pa.array(map(replace, cells_of(pa.chunked_array([values]))), pa.int64())
    replaced = [whole.take(chunk.indices) for chunk in distinct.chunks]
    empty = replace(None)
    if empty is not None:
        null = [chunk.indices.is_null() for chunk in distinct.chunks]
        replaced = [
            pc.if_else(none, empty, each) for none, each in zip(null, replaced, strict=True)
        ]
    return pa.chunked_array(replaced, pa.int64())


def as_text(cells: Iterable[object]) -> pa.ChunkedArray:
    """Return cells of any Python types as an Arrow column of text, one by one."""
    import pyarrow as pa

    def written(cell: object) -> str | None:
        # Texts stay as they are: blanks around them are `plain`'s to take off.
        text = str(cell) if isinstance(cell, str) else text_of(cell)
        return text if text is None or text.isascii() or not UNREADABLE.search(text) else None

    return pa.chunked_array([pa.array(map(written, cells), pa.large_string())])


def _valid(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return a column of text in which cells that are not UTF-8 are missing."""
    import pyarrow as pa

    try:
        column.validate(full=True)
        return column
    except pa.ArrowInvalid:
        cells = column.cast(pa.large_binary()).to_pylist()
        return as_text([None if c is None else cell_text(c) for c in cells])


# How files of text are called; one of them may be packed.
TEXTS: Final = (".csv", ".tsv", ".txt")
CELLS: Final = 2**21  # of a file, in memory at a time
Log = Callable[[str], None]  # told what is for the steward's eyes only
Columns: TypeAlias = "Mapping[str, pa.ChunkedArray]"  # name → Arrow column, as stored


@contextmanager
def read(
    source: object, wanted: Sequence[str], log: Log, dialect: Dialect = PLAIN
) -> Iterator[tuple[Iterator[Columns], str]]:
    """Yield the wanted columns of a source, in parts, and its file's SHA-256 ("" in memory)."""
    # Raises `DataError` for a file that is not there, lacks a column, or is another one after its
    # parts were read, `InputError` for what is no source; these depend on no row. Anything else
    # that is raised may speak of rows.
    if not isinstance(source, (str, Path)):
        yield iter([_memory(source, wanted)]), ""
        return
    path = Path(source)
    packed = path.suffix.lower() in PACKED
    text = Path(path.stem if packed else path.name).suffix.lower() in TEXTS
    if not (text or is_parquet(path)):
        raise InputError(
            f"source {short(path)}: neither a .parquet nor a .csv file (or .tsv, .txt, .csv.gz); "
            "give one of them, or from Python a table, so that no type is guessed from rows"
        )
    with _opened(path) as file:
        about = _about(file)
        digest = hashlib.file_digest(file, "sha256").hexdigest()
        file.seek(0)
        if text:
            yield _csv(file, path, wanted, log, dialect), digest
        else:
            refuse_text_settings(path, dialect)
            yield _parquet(file, path, wanted), digest
        _require_same(file, path, about)


def short(source: object) -> str:
    """Return what a message calls a source."""
    text = str(source) if isinstance(source, (str, Path)) else type(source).__name__
    return repr(text if len(text) <= 60 else text[:57] + "…")


def _opened(path: Path) -> BufferedReader:
    try:
        if path.is_file():
            return path.open("rb")
        reason: str | None = "no such file"
    except OSError as error:
        reason = error.strerror
    raise DataError(f"source {short(path)}: cannot be read ({reason})")


def row_groups(path: Path, wanted: Sequence[str]) -> tuple[int, pa.Table, int]:
    """Return how many row groups a Parquet file has, its wanted columns without rows, and rows."""
    import pyarrow.parquet as pq

    with _opened(path) as file:
        parquet = pq.ParquetFile(file)
        _named(path, parquet.schema_arrow.names, wanted)
        empty = parquet.schema_arrow.empty_table().select(list(wanted))
        return parquet.num_row_groups, empty, parquet.metadata.num_rows


def row_group(path: Path, number: int, wanted: Sequence[str], about: tuple[int, int]) -> Columns:
    """Return the wanted columns of one row group of a file whose size and time are `about`."""
    import pyarrow.parquet as pq

    with _opened(path) as file:
        _require_same(file, path, about)
        return _columns(pq.ParquetFile(file).read_row_group(number, columns=list(wanted)))


def _about(file: BufferedReader) -> tuple[int, int]:
    """Return a file's size and time."""
    result = os.fstat(file.fileno())
    return result.st_size, result.st_mtime_ns


def _require_same(file: BufferedReader, path: Path, about: tuple[int, int]) -> None:
    if _about(file) != about:
        raise DataError(f"source {short(path)}: changed while it was read")


def _parquet(file: BufferedReader, path: Path, wanted: Sequence[str]) -> Iterator[Columns]:
    import pyarrow.parquet as pq

    parquet = pq.ParquetFile(file, buffer_size=2**20)  # else it holds a whole row group's bytes
    _named(path, parquet.schema_arrow.names, wanted)
    empty = parquet.schema_arrow.empty_table().select(list(wanted))
    rows = max(1, CELLS // len(wanted))
    return _parts(parquet.iter_batches(rows, columns=list(wanted)), empty, rows)


def _csv(
    file: BufferedReader, path: Path, wanted: Sequence[str], log: Log, dialect: Dialect
) -> Iterator[Columns]:
    import pyarrow as pa

    packed = PACKED.get(path.suffix.lower())
    unpacked: Any = file if packed is None else packed(file)
    plain = dialect.encoding.lower().replace("_", "-") in ("utf-8", "utf8")
    lines: Lines = unpacked if plain else Recoded(unpacked, dialect.encoding)
    separator = dialect.separator_of(path)
    try:
        header = lines.readline()
        while header and not header.strip():
            header = lines.readline()
        names = header_cells(header, separator.encode())
    except DataError as error:
        raise DataError(f"{path}: {error}") from None
    except UNPACKING:
        raise DataError(
            f"source {short(path)}: cannot be read (not packed as it is called)"
        ) from None
    check_separated(path, names, separator)
    _named(path, names, wanted)
    empty = pa.schema([(name, pa.large_string()) for name in wanted]).empty_table()
    rows = max(1, CELLS // len(wanted))
    batches = read_batches(lines, names, wanted, log, separator=separator.encode())
    return _parts(batches, empty, rows)


def _parts(batches: Iterator[pa.RecordBatch], empty: pa.Table, rows: int) -> Iterator[Columns]:
    """Yield columns of at least so many rows each, but for the last; at least once."""
    import pyarrow as pa

    held: list[pa.RecordBatch] = []
    first = True
    for batch in batches:
        held.append(batch)
        if sum(each.num_rows for each in held) >= rows:
            yield _columns(pa.Table.from_batches(held))
            held, first = [], False
    if held or first:
        yield _columns(pa.Table.from_batches(held) if held else empty)


def _columns(table: pa.Table) -> Columns:
    return {name: table.column(name) for name in table.column_names}


def _memory(source: object, wanted: Sequence[str]) -> Columns:
    import pandas as pd
    import pyarrow as pa

    if hasattr(source, "to_arrow_table"):  # a DuckDB relation: evaluated here, once
        source = source.to_arrow_table()
    if isinstance(source, pd.DataFrame):
        return _frame(source, wanted)
    if not hasattr(source, "__arrow_c_stream__"):
        raise InputError(f"source {short(source)}: not a path, a pandas or an Arrow table")
    table = pa.table(source)
    _named(source, table.column_names, wanted)
    return _columns(table.select(list(wanted)))


def _frame(frame: pd.DataFrame, wanted: Sequence[str]) -> Columns:
    """Return columns of a pandas table: by dtype where it has one, cell by cell where not."""
    import pandas as pd
    import pyarrow as pa

    _named(frame, list(frame.columns), wanted)
    columns = {}
    for name in wanted:
        column = frame[name]
        if isinstance(column.dtype, pd.CategoricalDtype):
            column = column.astype(object)
        plain = column.dtype == object or isinstance(column.dtype, pd.StringDtype)
        stored = as_text(column.tolist()) if plain else pa.Array.from_pandas(column)
        columns[name] = pa.chunked_array([stored]) if isinstance(stored, pa.Array) else stored
    return columns


def _named(source: object, names: Sequence[object], wanted: Sequence[str]) -> None:
    """Raise `DataError` unless each wanted name is there once."""
    # No message repeats them: where a file has no header, they are the first person's row.
    for name in wanted:
        if names.count(name) != 1:
            result = "twice" if name in names else "not"
            raise DataError(
                f"column {name!r}: {result} in the source {short(source)}, which has {len(names)} "
                "columns; its header must have every declared name once, as it is written"
            )
