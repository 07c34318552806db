"""Where a table comes from: one Parquet or CSV file, or a table in memory; read literally.

Of a file some rows are in memory at a time. A path is the name of one file: no pattern, no folder
names that become columns, no address. Names of columns are matched exactly, and only declared
columns are read.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from io import BufferedReader
from pathlib import Path
from typing import Any, Final

from apiece.datasets.blocks import header_cells, read_batches
from apiece.errors import DataError, InputError
from apiece.queries import cells

FILES: Final = (".parquet", ".csv")
CELLS: Final = 2**21  # of a file, in memory at a time
Log = Callable[[str], None]  # told what is for the steward's eyes only
Columns = Mapping[str, Any]  # name → Arrow column, as stored


@contextmanager
def read(source: Any, wanted: Sequence[str], log: Log) -> Iterator[tuple[Iterator[Columns], str]]:
    """Yield the wanted columns of a source, in parts, and its file's SHA-256 ("" in memory).

    Raises `DataError` for a file that is not there, lacks a column, or is another one after its
    parts were read, `InputError` for what is no source; these depend on no row. Anything else that
    is raised may speak of rows.
    """
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


def short(source: Any) -> str:
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


def row_groups(path: Path, wanted: Sequence[str]) -> tuple[int, Any, int]:
    """Return how many row groups a Parquet file has, its wanted columns without rows, and rows.

    Raises `DataError` for a file that is not there or lacks a column.
    """
    import pyarrow.parquet as pq

    with _opened(path) as file:
        parquet = pq.ParquetFile(file)
        _named(path, parquet.schema_arrow.names, wanted)
        empty = parquet.schema_arrow.empty_table().select(list(wanted))
        return parquet.num_row_groups, empty, parquet.metadata.num_rows


def row_group(path: Path, number: int, wanted: Sequence[str], about: tuple[int, int]) -> Columns:
    """Return the wanted columns of one row group of a file whose size and time are `about`.

    Raises `DataError` for a file that is another one now.
    """
    import pyarrow.parquet as pq

    with _opened(path) as file:
        _require_same(file, path, about)
        return _columns(pq.ParquetFile(file).read_row_group(number, columns=list(wanted)))


def _about(file: BufferedReader) -> tuple[int, int]:
    found = os.fstat(file.fileno())
    return found.st_size, found.st_mtime_ns


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

    names = _named(path, header_cells(file.readline()), wanted)
    empty = pa.schema([(name, pa.large_string()) for name in wanted]).empty_table()
    rows = max(1, CELLS // len(wanted))
    return _parts(read_batches(file, names, wanted, log), empty, rows)


def _parts(batches: Iterator[Any], empty: Any, rows: int) -> Iterator[Columns]:
    """Yield columns of at least so many rows each, but for the last; at least once."""
    import pyarrow as pa

    held: list[Any] = []
    first = True
    for batch in batches:
        held.append(batch)
        if sum(each.num_rows for each in held) >= rows:
            yield _columns(pa.Table.from_batches(held))
            held, first = [], False
    if held or first:
        yield _columns(pa.Table.from_batches(held) if held else empty)


def _columns(table: Any) -> Columns:
    return {name: table.column(name) for name in table.column_names}


def _memory(source: Any, wanted: Sequence[str]) -> Columns:
    import pyarrow as pa

    if hasattr(source, "to_arrow_table"):  # a DuckDB relation: evaluated here, once
        source = source.to_arrow_table()
    if hasattr(source, "iloc"):
        return _frame(source, wanted)
    if not hasattr(source, "__arrow_c_stream__"):
        raise InputError(f"source {short(source)}: not a path, a pandas or an Arrow table")
    table = pa.table(source)
    _named(source, table.column_names, wanted)
    return _columns(table.select(list(wanted)))


def _frame(frame: Any, wanted: Sequence[str]) -> Columns:
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
        stored = cells.as_text(column.tolist()) if plain else pa.Array.from_pandas(column)
        columns[name] = pa.chunked_array([stored]) if isinstance(stored, pa.Array) else stored
    return columns


def _named(source: Any, names: Sequence[Any], wanted: Sequence[str]) -> Sequence[str]:
    """Return the names if each wanted one is among them once.

    No message repeats them: where a file has no header, they are the first person's row.
    """
    for name in wanted:
        if names.count(name) != 1:
            found = "twice" if name in names else "not"
            raise DataError(
                f"column {name!r}: {found} in the source {short(source)}, which has {len(names)} "
                "columns; its header must have every declared name once, as it is written"
            )
    return names
