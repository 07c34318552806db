"""Sources of a table: one Parquet or CSV file, or a table in memory; read literally.

Of a file some rows are in memory at a time. A path is the name of one file: no pattern, no folder
names that become columns, no address. Names of columns are matched exactly, and only declared
columns are read.
"""

from __future__ import annotations

import hashlib
import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, date, datetime, timedelta
from decimal import Context, Decimal
from io import BufferedReader
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeAlias

import numpy as np

from apiece.datasets.blocks import UNREADABLE, cell_text, header_cells, read_batches
from apiece.errors import DataError, InputError, UnsupportedError

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa

_EXACT: Final = Context(prec=400)
_DIGITS: Final = 310  # of a whole number: as many as doubles reach


def text_of(cell: object) -> str | None:
    """Return a cell as text: whole numbers without a fraction, dates as ISO 8601 in UTC."""
    match cell:
        case str():
            return str(cell)
        case bool() | np.bool_():
            return "true" if cell else "false"
        case int() | np.integer():
            return str(int(cell)) if abs(int(cell)) < 10**_DIGITS else None
        case float() | np.floating():
            # From 2^53 on, different whole numbers are one double.
            whole = float(cell).is_integer() and abs(float(cell)) < 2**53
            return None if math.isnan(cell) else str(int(cell)) if whole else repr(float(cell))
        case Decimal():
            if not (cell.is_finite() and abs(cell.adjusted()) <= _DIGITS):
                return None
            return format(cell.normalize(_EXACT), "f") if cell else "0"
        case date():
            return _moment_text(cell)
    return None


def _moment_text(value: date) -> str | None:
    if value != value:  # pandas' NaT is a datetime
        return None
    if not isinstance(value, datetime):
        return value.isoformat()
    try:
        plain = value if value.tzinfo is None else value.astimezone(UTC).replace(tzinfo=None)
        return datetime(*plain.timetuple()[:6], plain.microsecond).isoformat(sep=" ")
    except (OverflowError, ValueError, NotImplementedError):  # beyond the years 1 to 9999
        return None


def texts(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return an Arrow column as text, cell by cell; raise `UnsupportedError` for lists and such."""
    import pyarrow as pa

    kind = column.type
    if pa.types.is_dictionary(kind):
        return texts(column.cast(kind.value_type))
    if pa.types.is_null(kind):
        return pa.chunked_array([pa.nulls(len(column), pa.string())])
    if pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind):
        return _valid(column)
    if pa.types.is_integer(kind):
        return column.cast(pa.string())
    if pa.types.is_boolean(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind):
        return as_text(column.to_pylist())
    if pa.types.is_timestamp(kind) or pa.types.is_date(kind):
        return as_text(_moments(column))
    raise UnsupportedError(f"stored as {kind}, which is neither text, a number nor a date")


def numbers(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return an Arrow column as doubles where it holds numbers, and as text where it does not."""
    import pyarrow as pa

    kind = column.type
    if pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind):
        return column.cast(pa.float64(), safe=False)
    return texts(column)


def as_text(cells: Iterable[object]) -> pa.ChunkedArray:
    """Return cells of any Python types as an Arrow column of text, one by one."""
    import pyarrow as pa

    def written(cell: object) -> str | None:
        if type(cell) is str and cell.isascii():
            return cell
        text = text_of(cell)
        return None if text is None or UNREADABLE.search(text) else text

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


def _moments(column: pa.ChunkedArray) -> list[datetime | None]:
    """Return dates and times; None where the calendar's years 1 to 9999 do not reach."""
    import pyarrow as pa

    kind = column.type
    whole = column.cast(pa.int32()) if pa.types.is_date32(kind) else column
    unit = "D" if pa.types.is_date32(kind) else "ms" if pa.types.is_date64(kind) else kind.unit
    micros = {"D": 86_400_000_000, "s": 1_000_000, "ms": 1000, "us": 1, "ns": 1}[unit]

    def moment(cell: int | None) -> datetime | None:
        if cell is None:
            return None
        after = cell * micros // (1000 if unit == "ns" else 1)
        with suppress(OverflowError):
            return datetime(1970, 1, 1) + timedelta(microseconds=after)
        return None

    return list(map(moment, whole.cast(pa.int64()).to_pylist()))


FILES: Final = (".parquet", ".csv")
CELLS: Final = 2**21  # of a file, in memory at a time
Log = Callable[[str], None]  # told what is for the steward's eyes only
Columns: TypeAlias = "Mapping[str, pa.ChunkedArray]"  # name → Arrow column, as stored


@contextmanager
def read(
    source: object, wanted: Sequence[str], log: Log
) -> Iterator[tuple[Iterator[Columns], str]]:
    """Yield the wanted columns of a source, in parts, and its file's SHA-256 ("" in memory)."""
    # Raises `DataError` for a file that is not there, lacks a column, or is another one after its
    # parts were read, `InputError` for what is no source; these depend on no row. Anything else
    # that is raised may speak of rows.
    if not isinstance(source, (str, Path)):
        yield iter([_memory(source, wanted)]), ""
        return
    path = Path(source)
    if path.suffix.lower() not in FILES:
        raise InputError(
            f"source {short(path)}: neither a .parquet nor a .csv file; give one of them, or from "
            "Python a table, so that no type is guessed from rows"
        )
    with _opened(path) as file:
        about = _about(file)
        digest = hashlib.file_digest(file, "sha256").hexdigest()
        file.seek(0)
        kind = _parquet if path.suffix.lower() == ".parquet" else _csv
        yield kind(file, path, wanted, log), digest
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


def _parquet(
    file: BufferedReader, path: Path, wanted: Sequence[str], _log: Log
) -> Iterator[Columns]:
    import pyarrow.parquet as pq

    parquet = pq.ParquetFile(file, buffer_size=2**20)  # else it holds a whole row group's bytes
    _named(path, parquet.schema_arrow.names, wanted)
    empty = parquet.schema_arrow.empty_table().select(list(wanted))
    rows = max(1, CELLS // len(wanted))
    return _parts(parquet.iter_batches(rows, columns=list(wanted)), empty, rows)


def _csv(file: BufferedReader, path: Path, wanted: Sequence[str], log: Log) -> Iterator[Columns]:
    import pyarrow as pa

    try:
        names = header_cells(file.readline())
    except DataError as error:
        raise DataError(f"{path}: {error}") from None
    _named(path, names, wanted)
    empty = pa.schema([(name, pa.large_string()) for name in wanted]).empty_table()
    rows = max(1, CELLS // len(wanted))
    return _parts(read_batches(file, names, wanted, log), empty, rows)


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
