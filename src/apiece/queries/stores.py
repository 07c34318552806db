"""Tables that lie in folders of Parquet files, databases and workbooks; read literally.

A folder's files are one table: they have the same columns, stored alike, and `key=value` folders on
the way to a file are columns of text, as Hive writes them. Of a database one table is read: of
SQLite each cell as it is stored, for its columns have no types; of DuckDB and PostgreSQL by its
columns' types. Of a workbook one sheet is read, cell by cell.
"""

from __future__ import annotations

import hashlib
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote, unquote

from apiece._lazy import require
from apiece.errors import DataError, InputError, UnsupportedError
from apiece.queries import sources
from apiece.queries.sources import Columns, Log

if TYPE_CHECKING:
    import psycopg
    import pyarrow as pa

# What stands between a database file's path and the name of a table.
SEPARATOR: Final = "::"
# Ending of a database file's name → the engine that wrote it.
_ENGINES: Final = {
    ".duckdb": "duckdb",
    ".ddb": "duckdb",
    ".sqlite": "sqlite",
    ".sqlite3": "sqlite",
    ".db": "sqlite",
}
# Beginnings of the address of a database on a PostgreSQL server.
_SERVERS: Final = ("postgresql://", "postgres://")
# Endings of workbooks' names.
_WORKBOOKS: Final = (".xlsx", ".xlsm")
# PostgreSQL's types whose cells are read as numbers or booleans → the function of Arrow's type.
_STORED: Final = {
    "int2": "int16",
    "int4": "int32",
    "int8": "int64",
    "float4": "float32",
    "float8": "float64",
    "bool": "bool_",
}
# PostgreSQL's types whose cells are read as the text that they have there.
_TEXTS: Final = (
    "text", "varchar", "bpchar", "name", "numeric", "date", "timestamp", "uuid",
)  # fmt: skip
# What Hive writes in place of a missing value.
_NULL: Final = "__HIVE_DEFAULT_PARTITION__"


def is_database(source: str) -> bool:
    """Return whether a source is FILE::TABLE of a database file."""
    name, separator, _ = source.rpartition(SEPARATOR)
    return bool(separator) and Path(name).suffix.lower() in _ENGINES


def is_server(source: str) -> bool:
    """Return whether a source is ADDRESS::TABLE of a database on a PostgreSQL server."""
    return source.startswith(_SERVERS)


def is_workbook(source: str) -> bool:
    """Return whether a source is a workbook of Excel's, or FILE::SHEET of one."""
    name, separator, _ = source.rpartition(SEPARATOR)
    return Path(name if separator else source).suffix.lower() in _WORKBOOKS


@contextmanager
def read_folder(
    folder: Path, wanted: Sequence[str], log: Log
) -> Iterator[tuple[Iterator[Columns], str]]:
    """Yield the wanted columns of a folder's Parquet files, in parts, and the SHA-256 of all.

    Of one file it is the file's; of several that of the lines "SHA-256  path in the folder".

    Raises `DataError` where there is no file, a file lacks a column, or files differ in columns or
    storage types; `InputError` where a column is in a folder's name and in the files.
    """
    files = _list_files(folder)
    if not files:
        raise DataError(f"source {sources.shorten_name(folder)}: no Parquet file in this folder")
    digests = []
    states = []
    for path in files:
        with path.open("rb") as file:
            # The state is taken before the digest, and compared after the last row: all that is
            # read lies between.
            states.append(sources.read_state(file))
            digests.append(hashlib.file_digest(file, "sha256").hexdigest())
    digest = digests[0]
    if len(files) > 1:
        names = [path.relative_to(folder).as_posix() for path in files]
        # As `sha256sum` prints them, so that anybody can compute it.
        lines = [f"{own}  {name}\n" for own, name in zip(digests, names, strict=True)]
        digest = hashlib.sha256("".join(lines).encode()).hexdigest()
    keys = _check_keys(folder, files, wanted)
    stored = [name for name in wanted if name not in keys]
    _check_layouts(folder, files, stored, log)
    yield _read_files(folder, files, wanted, keys), digest
    for path, state in zip(files, states, strict=True):
        with path.open("rb") as file:
            sources.require_unchanged(file, folder, state)


def _list_files(folder: Path) -> list[Path]:
    """Return the Parquet files of a folder, in the order of their paths."""
    # A name with _ or . in front is an engine's own, as _metadata is.
    files = []
    for path in folder.rglob("*.parquet"):
        parts = path.relative_to(folder).parts
        if path.is_file() and not any(part.startswith(("_", ".")) for part in parts):
            files.append(path)
    return sorted(files, key=lambda path: path.relative_to(folder).as_posix())


def _keys_of(folder: Path, path: Path) -> dict[str, str | None]:
    """Return the columns that the folders of a file's path name."""
    keys: dict[str, str | None] = {}
    for part in path.relative_to(folder).parts[:-1]:
        name, equals, value = part.partition("=")
        if equals:
            keys[unquote(name)] = None if value == _NULL else unquote(value)
    return keys


def _check_keys(folder: Path, files: Sequence[Path], wanted: Sequence[str]) -> list[str]:
    """Return the wanted columns that are in folders' names, the same for every file."""
    # Names and order of the keys; their values are what differs.
    layouts = {tuple(_keys_of(folder, path)) for path in files}
    if len(layouts) > 1:
        raise DataError(
            f"source {sources.shorten_name(folder)}: its files lie under folders of unlike keys; "
            "give a folder in which all have the same"
        )
    (keys,) = layouts
    return [name for name in keys if name in wanted]


def _check_layouts(folder: Path, files: Sequence[Path], stored: Sequence[str], log: Log) -> None:
    """Raise `DataError` unless the files store the wanted columns alike."""
    first: pa.Schema | None = None
    for path in files:
        _, empty, _ = sources.read_layout(path, stored)
        layout = empty.schema.remove_metadata()
        if first is None:
            first = layout
        if not layout.equals(first):
            # Which files there are may depend on rows.
            log(f"source {sources.shorten_name(path)}: stores other types than the first file")
            raise DataError(
                f"source {sources.shorten_name(folder)}: its files store a column in two ways; "
                "write them with the same types"
            )


def _read_files(
    folder: Path, files: Sequence[Path], wanted: Sequence[str], keys: Sequence[str]
) -> Iterator[Columns]:
    """Yield the wanted columns of files, one row group after the other."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    stored = [name for name in wanted if name not in keys]
    for path in files:
        values = _keys_of(folder, path)
        parquet = pq.ParquetFile(path)
        if set(keys) & set(parquet.schema_arrow.names):
            raise InputError(
                f"source {sources.shorten_name(folder)}: a column is in the files and in folders' "
                "names; leave it out of one of them"
            )
        # A file without rows still says what its columns are.
        for number in range(max(parquet.num_row_groups, 1)):
            if parquet.num_row_groups:
                table = parquet.read_row_group(number, columns=stored)
            else:
                table = parquet.schema_arrow.empty_table().select(stored)
            columns = {name: table.column(name) for name in stored}
            # All rows of a file have the values in its path.
            for name in keys:
                cells = pa.array([values[name]] * table.num_rows, pa.large_string())
                columns[name] = pa.chunked_array([cells])
            yield {name: columns[name] for name in wanted}


@contextmanager
def read_database(
    source: str, wanted: Sequence[str], log: Log
) -> Iterator[tuple[Iterator[Columns], str]]:
    """Yield the wanted columns of FILE::TABLE, in parts, and a SHA-256 of the file and the name.

    Raises `DataError` for a file or table that is not there, or lacks a column.
    """
    name, _, table = source.rpartition(SEPARATOR)
    path = Path(name)
    engine = _ENGINES[path.suffix.lower()]
    with sources.open_file(path) as file:
        state = sources.read_state(file)
        digest = hashlib.file_digest(file, "sha256").hexdigest()
        # Rows of a write-ahead log are not in the file, and would be missing from its digest.
        journal = path.with_name(f"{path.name}-wal")
        if journal.exists() and journal.stat().st_size:
            raise DataError(
                f"source {sources.shorten_name(path)}: another program writes to it; close that "
                "program, so that the file holds all rows"
            )
        # One file has many tables, each of which is a source of its own.
        both = hashlib.sha256(f"{digest}  {table}\n".encode()).hexdigest()
        read = _read_duckdb if engine == "duckdb" else _read_sqlite
        yield read(path, table, wanted, log), both
        sources.require_unchanged(file, path, state)


def _quote_name(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _refuse_table(path: Path, table: str) -> DataError:
    return DataError(
        f"source {sources.shorten_name(path)}: has no table {table!r} that can be read; give "
        f"FILE{SEPARATOR}TABLE"
    )


def _read_sqlite(path: Path, table: str, wanted: Sequence[str], log: Log) -> Iterator[Columns]:
    """Yield the cells of a table of SQLite, each as text, as it is stored."""
    location = f"file:{quote(str(path.resolve()))}?mode=ro"
    with closing(sqlite3.connect(location, uri=True)) as connection:
        # Bytes that are no UTF-8 are a missing cell, and no error.
        connection.text_factory = lambda cell: cell.decode("utf-8", "surrogateescape")
        try:
            # The columns' names, without a look at a row.
            found = connection.execute(f"SELECT * FROM {_quote_name(table)} LIMIT 0")
        except sqlite3.DatabaseError as error:
            log(f"source {sources.shorten_name(path)}: {error}")
            raise _refuse_table(path, table) from None
        names = [column[0] for column in found.description]
        sources.require_names(path, names, wanted)
        columns = ", ".join(map(_quote_name, wanted))
        cursor = connection.execute(f"SELECT {columns} FROM {_quote_name(table)}")
        size = max(1, sources.CELLS // len(wanted))
        rows = cursor.fetchmany(size)
        while True:
            # From rows to columns; a table without rows has one part of empty columns.
            cells = list(zip(*rows, strict=True)) if rows else [()] * len(wanted)
            yield {
                name: sources.write_texts(column)
                for name, column in zip(wanted, cells, strict=True)
            }
            rows = cursor.fetchmany(size)
            if not rows:
                return


def _read_duckdb(path: Path, table: str, wanted: Sequence[str], log: Log) -> Iterator[Columns]:
    """Yield the columns of a table of DuckDB, as it stores them."""
    import duckdb
    import pyarrow as pa

    try:
        database = duckdb.connect(str(path), read_only=True)
    except duckdb.Error as error:
        log(f"source {sources.shorten_name(path)}: {error}")
        raise _refuse_table(path, table) from None
    with closing(database):
        # A view of the file could read other files.
        database.execute("SET enable_external_access = false")
        # No statement can take that back.
        database.execute("SET lock_configuration = true")
        found = database.execute(
            "SELECT column_name FROM duckdb_columns() WHERE table_name = ? AND NOT internal "
            "AND table_name IN (SELECT table_name FROM duckdb_tables())",
            [table],
        ).fetchall()
        if not found:
            raise _refuse_table(path, table)
        sources.require_names(path, [name for (name,) in found], wanted)
        columns = ", ".join(map(_quote_name, wanted))
        result = database.sql(f"SELECT {columns} FROM {_quote_name(table)}")
        # Releases of DuckDB have two names for it.
        read_batches = getattr(result, "to_arrow_reader", None) or result.fetch_arrow_reader
        reader = read_batches(max(1, sources.CELLS // len(wanted)))
        # Somebody has to say what the columns are, where there is no row.
        is_empty = True
        for batch in reader:
            is_empty = False
            part = pa.Table.from_batches([batch])
            yield {name: part.column(name) for name in wanted}
        if is_empty:
            empty = reader.schema.empty_table()
            yield {name: empty.column(name) for name in wanted}


@contextmanager
def read_server(
    source: str, wanted: Sequence[str], log: Log
) -> Iterator[tuple[Iterator[Columns], str]]:
    """Yield the wanted columns of ADDRESS::TABLE on a PostgreSQL server, in parts, and "".

    TABLE may be SCHEMA.TABLE. All parts are of one moment, and ordered by their contents, so that
    the same rows give the same parts.

    Raises `DataError` for a server that does not answer and a table that is not there, or lacks a
    column; `UnsupportedError` for a column of another type than numbers, truths, texts and dates.
    """
    require("ledger", "psycopg")
    import psycopg

    address, _, table = source.rpartition(SEPARATOR)
    if not (address and table):
        raise InputError(
            f"source {sources.shorten_name(source)}: names no table; give ADDRESS{SEPARATOR}TABLE"
        )
    try:
        connection = psycopg.connect(address)
    except psycopg.Error as error:
        log(f"source {sources.shorten_name(source)}: {error}")
        raise DataError(
            f"source {sources.shorten_name(source)}: the server does not answer, or refuses the "
            "connection; the reason is in the steward's log"
        ) from None
    with closing(connection):
        # All parts are read from one snapshot; and no setting of the server changes how a moment is
        # written.
        connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        connection.read_only = True
        connection.execute("SET LOCAL TimeZone = 'UTC'")
        connection.execute("SET LOCAL DateStyle = 'ISO'")
        yield _read_postgresql(connection, source, table, wanted), ""


def _read_postgresql(
    connection: psycopg.Connection, source: str, table: str, wanted: Sequence[str]
) -> Iterator[Columns]:
    """Yield the columns of a table of PostgreSQL: numbers as stored, all others as text."""
    import pyarrow as pa

    schema, _, name = table.rpartition(".")
    # Tables, views and the like; the types of their columns, where an enumeration is text.
    types: dict[str, str] = dict(
        connection.execute(
            "SELECT attname, CASE WHEN typtype = 'e' THEN 'text' ELSE typname END "
            "FROM pg_attribute JOIN pg_class ON attrelid = pg_class.oid "
            "JOIN pg_type ON atttypid = pg_type.oid WHERE attnum > 0 AND NOT attisdropped "
            "AND relkind IN ('r', 'p', 'v', 'm', 'f') AND relname = %s "
            "AND (relnamespace = to_regnamespace(%s) OR %s = '' AND pg_table_is_visible(attrelid))",
            [name, _quote_name(schema) if schema else None, schema],
        ).fetchall()
    )
    if not types:
        raise DataError(
            f"source {sources.shorten_name(source)}: has no table {table!r} that can be read; give "
            f"ADDRESS{SEPARATOR}TABLE"
        )
    sources.require_names(source, list(types), wanted)
    cells = [_cell_of(source, column, types[column]) for column in wanted]
    # By the bytes of the texts, since a server's own order depends on its language.
    order = ", ".join(f'{_quote_name(column)}::text COLLATE "C"' for column in wanted)
    quoted = f"{_quote_name(schema)}." if schema else ""
    size = max(1, sources.CELLS // len(wanted))
    layout = pa.schema([
        (column, getattr(pa, _STORED[types[column]])())
        if types[column] in _STORED
        else (column, pa.large_string())
        for column in wanted
    ])  # fmt: skip
    # A named cursor stays on the server, which sends some rows at a time.
    with connection.cursor("rows") as cursor:
        # The names are quoted and those of the catalogue.
        query = f"SELECT {', '.join(cells)} FROM {quoted}{_quote_name(name)} ORDER BY {order}"
        cursor.execute(query.encode())
        rows = cursor.fetchmany(size)
        while True:
            columns = zip(*rows, strict=True) if rows else ([] for _ in wanted)
            yield {
                field.name: pa.chunked_array([pa.array(list(column), field.type)])
                for field, column in zip(layout, columns, strict=True)
            }
            rows = cursor.fetchmany(size)
            if not rows:
                return


def _cell_of(source: str, column: str, kind: str) -> str:
    """Return SQL for the cells of a column of PostgreSQL, which cannot fail on a row."""
    quoted = _quote_name(column)
    if kind in _STORED:
        return quoted
    if kind == "timestamptz":
        return f"({quoted} AT TIME ZONE 'UTC')::text"
    if kind in _TEXTS:
        return f"{quoted}::text"
    raise UnsupportedError(
        f"source {sources.shorten_name(source)}: column {column!r} is of type {kind}, which is "
        "neither text, a number nor a date; leave it out or convert it"
    )


@contextmanager
def read_workbook(
    source: str, wanted: Sequence[str], log: Log
) -> Iterator[tuple[Iterator[Columns], str]]:
    """Yield the wanted columns of FILE or FILE::SHEET, in parts, and the SHA-256 of the file.

    The first row has the names. A formula is the value that Excel has stored for it. Of several
    sheets the name tells which, and is a part of the digest.

    Raises `DataError` for a file or sheet that is not there, or lacks a column.
    """
    require("excel", "openpyxl")
    import openpyxl  # type: ignore[import-untyped]

    name, separator, sheet = source.rpartition(SEPARATOR)
    path = Path(name if separator else source)
    with sources.open_file(path) as file:
        state = sources.read_state(file)
        digest = hashlib.file_digest(file, "sha256").hexdigest()
        file.seek(0)
        try:
            # Without formulas: the values that the program which wrote the file has computed.
            workbook = openpyxl.load_workbook(file, read_only=True, data_only=True)
        # Any error of the reader's may quote a cell.
        except Exception as error:
            log(f"source {sources.shorten_name(path)}: {type(error).__name__}: {error}")
            raise DataError(
                f"source {sources.shorten_name(path)}: no workbook that can be read; save it as "
                '"CSV UTF-8" and give that file'
            ) from None
        names = workbook.sheetnames
        is_there = sheet in names if separator else len(names) == 1
        if not is_there:
            # The sheets' names are the steward's to know.
            log(f"source {sources.shorten_name(path)}: sheets {names}")
            raise DataError(
                f"source {sources.shorten_name(path)}: has {len(names)} sheets, and none "
                f"is {sheet!r}; name one of them, as {path.name}{SEPARATOR}SHEET"
            )
        if separator:
            digest = hashlib.sha256(f"{digest}  {sheet}\n".encode()).hexdigest()
        yield _read_sheet(path, workbook[sheet if separator else names[0]], wanted), digest
        sources.require_unchanged(file, path, state)


def _read_sheet(path: Path, sheet: Any, wanted: Sequence[str]) -> Iterator[Columns]:
    """Yield the columns of a sheet, each cell by itself."""
    rows = sheet.iter_rows(values_only=True)
    # A cell of the header that is no text names no column.
    header = [cell if isinstance(cell, str) else None for cell in next(rows, ())]
    sources.require_names(path, header, wanted)
    positions = [header.index(name) for name in wanted]
    size = max(1, sources.CELLS // len(wanted))
    # A sheet without rows has one empty part, which says what the columns are.
    is_first = True
    while True:
        part = list(islice(rows, size))
        if not part and not is_first:
            return
        is_first = False
        # A row of empty cells is no row, and a short one has empty cells at its end.
        full = [row for row in part if any(cell is not None for cell in row)]
        yield {
            name: sources.write_texts(
                [row[position] if position < len(row) else None for row in full]
            )
            for name, position in zip(wanted, positions, strict=True)
        }
