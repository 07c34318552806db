"""Reading a table of people from CSV or Parquet: the one reader of every command but `query`.

Nothing is sniffed. A line of a CSV file is one record and is read by itself, as texts; a Parquet
file's columns have the types that the file declares. So no row changes how another is read: what
cannot be read as declared is refused, with its line, for the steward reads their own table.
`apiece query` reads CSV by another grammar, in `blocks`: its analyst may not see the rows.

Whole tables become pandas tables, which the extra `tables` brings. Some columns of a CSV file, as
those of budgets, are read without it.
"""

from __future__ import annotations

import bz2
import codecs
import csv
import gzip
import io
import lzma
import zlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from apiece._lazy import require
from apiece.errors import DataError, as_given

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa
    import pyarrow.parquet as pq

# Name of a separator → the separator.
_NAMED: Final = {
    "tab": "\t",
    "\\t": "\t",
    "comma": ",",
    "semicolon": ";",
    "space": " ",
    "bar": "|",
}
# Separators that are blanks: two of these together stand around an empty cell.
BLANKS: Final = ("\t", " ")
# Endings of the names of Parquet files.
_PARQUET: Final = (".parquet", ".pq")
# Ending of a packed file's name → how it is opened.
PACKED: Final[dict[str, Any]] = {".gz": gzip.open, ".bz2": bz2.open, ".xz": lzma.open}
# Errors of files that cannot be opened or are not packed as they are called.
UNPACKING: Final = (OSError, EOFError, lzma.LZMAError, zlib.error)
# Letters that are read at a time.
BLOCK: Final = 1 << 22
# Bytes at the beginning of a file that show what it is instead.
_HEAD: Final = 1000
# Characters of a library's error that a message repeats, at most.
_REASON_LENGTH: Final = 160
# The byte-order marks of UTF-16.
_WIDE: Final = (b"\xff\xfe", b"\xfe\xff")
# Beginnings of archives and of older spreadsheets.
_ARCHIVES: Final = (b"PK\x03\x04", b"\xd0\xcf\x11\xe0")
# What to do with a spreadsheet, with JSON and with an archive.
_SHEET: Final = 'save the sheet as "CSV UTF-8" and pass that file'
_JSON: Final = (
    "convert it in Python: import pandas; pandas.read_json({path!r}, lines={lines}, dtype=False)"
    ".to_csv({csv!r}, index=False)"
)
_ZIP: Final = "unpack it and pass the file in it"
# Ending of the name of a file that is not read → what to do with it.
_REMEDIES: Final = {
    **dict.fromkeys((".xlsx", ".xls", ".xlsm", ".ods", ".numbers"), _SHEET),
    **dict.fromkeys((".json", ".jsonl", ".ndjson"), _JSON),
    **dict.fromkeys((".zip", ".tar", ".tgz", ".7z", ".rar", ".zst"), _ZIP),
}


@dataclass(frozen=True, slots=True)
class Dialect:
    r"""What separates cells, what marks decimals, and the encoding of a text table.

    Parquet files say all of this themselves.

    Args:
        separator: One character, or "tab", "space", "comma", "semicolon" or "bar"; None is a tab
            for .tsv and a comma for all else.
        decimal: "." or ","; under "," a number with a point is no number, because it might be
            thousands.
        encoding: A name that Python knows; a byte-order mark is accepted under utf-8.

    Raises:
        DataError: For anything else.

    Example:
        >>> from apiece.datasets.tables import Dialect
        >>> Dialect(separator="tab").separator
        '\t'
    """

    separator: str | None = None
    decimal: str = "."
    encoding: str = "utf-8"

    def __post_init__(self) -> None:
        for name in ("separator", "decimal", "encoding"):
            value = getattr(self, name)
            is_default = name == "separator" and value is None
            if not (isinstance(value, str) or is_default):
                raise DataError(f"{name} = {value!r}: must be a text; put it in quotes")
        if self.separator is not None:
            character = _NAMED.get(self.separator, self.separator)
            if len(character) != 1 or character.isalnum() or character in "\"'\r\n.+-":
                raise DataError(
                    f"separator = {self.separator!r}: must be one character such as ',', ';' "
                    "or 'tab'"
                )
            object.__setattr__(self, "separator", character)
        if self.decimal not in (".", ","):
            raise DataError(f"decimal = {self.decimal!r}: must be '.' or ','")
        try:
            # Looked up and tried: some of Python's codecs are not of texts.
            "".encode(codecs.lookup(self.encoding).name)
        except (LookupError, ValueError):
            raise DataError(
                f"encoding = {self.encoding!r}: unknown; give utf-8, latin-1, cp1252 or utf-16"
            ) from None

    def separator_of(self, path: Path) -> str:
        """Return the character that separates the cells of a file, declared or by its name.

        Args:
            path: Of the file.
        """
        return self.separator or ("\t" if ".tsv" in path.suffixes else ",")


# How a text table is written where nothing is declared.
PLAIN: Final = Dialect()


def read_table(path: str | Path, dialect: Dialect = PLAIN) -> pd.DataFrame:
    r"""Return the rows of a CSV (.csv, .tsv, also .gz, .bz2, .xz) or Parquet file.

    CSV cells stay texts, stripped of the blanks after a separator: the schema says which of them
    are missing. Parquet has its own types. Blank lines are skipped.

    Args:
        path: Of the file.
        dialect: How a CSV file is written; a Parquet file has no separator or encoding.

    Raises:
        DataError: For a path that cannot be read, another format, a separator of a Parquet file, a
            line with more or fewer cells than the header, a cell that goes on over the end of its
            line, a file without rows or with a column twice.

    Example:
        >>> import tempfile
        >>> from pathlib import Path
        >>> from apiece.datasets.tables import read_table
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = Path(folder, "people.csv")
        ...     _ = path.write_text("age,city\n7,NA\n")
        ...     read_table(path).iloc[0].tolist()
        ['7', 'NA']
    """
    require("tables")
    import pandas as pd

    frame: pd.DataFrame
    path = Path(path)
    if is_parquet(path):
        # One file alone is read: folders named a=1 add no columns, stored indexes hide none, and a
        # null turns no other person's whole number into a float.
        table = _open_parquet(path, dialect).read()
        _check_names(path, table.column_names)
        frame = table.to_pandas(ignore_metadata=True, integer_object_nulls=True)
    else:
        import pyarrow as pa

        # A table without rows comes first, so that a file without rows has its columns.
        table = pa.concat_tables(_read_blocks(path, dialect))
        types = {pa.large_string(): pd.ArrowDtype(pa.large_string())}
        frame = table.to_pandas(types_mapper=types.get)
    if frame.empty:
        raise _make_empty_error(path)
    return frame


@dataclass(frozen=True, slots=True, repr=False)
class PlainTable:
    """The names of a table's columns, and the cells of some: all that budgets need of a table.

    Args:
        columns: The names of all columns.
        cells: Name → (n,) cells, of the columns that can be asked for.
    """

    columns: Sequence[str]
    cells: Mapping[str, Sequence[object]]

    def __getitem__(self, name: str) -> Sequence[object]:
        return self.cells[name]

    def __len__(self) -> int:
        return max(map(len, self.cells.values()), default=0)


def read_columns(
    path: str | Path, names: Collection[str], dialect: Dialect = PLAIN
) -> pd.DataFrame | PlainTable:
    """Return a table with some of a file's columns, read as `read_table` reads them.

    Args:
        path: Of the file. CSV is read without pandas and Arrow.
        names: Of the columns whose cells are needed; one that is not there is passed over.
        dialect: How a CSV file is written.

    Raises:
        DataError: As `read_table`.
    """
    path = Path(path)
    if is_parquet(path):
        return read_table(path, dialect)
    with _opening(path, dialect) as (file, header, number):
        separator = dialect.separator_of(path)
        # Position → cells, of the columns that are asked for.
        columns: dict[int, list[str]] = {
            position: [] for position, name in enumerate(header) if name in names
        }
        count = 0
        # Whole lines, of about so many letters.
        while lines := file.readlines(BLOCK):
            rows = _split_lines(path, lines, number, separator, len(header))
            for position, cells in columns.items():
                cells += [row[position] for row in rows]
            count += len(rows)
            number += len(lines)
    if not count:
        raise _make_empty_error(path)
    return PlainTable(header, {header[position]: cells for position, cells in columns.items()})


def _make_empty_error(path: Path) -> DataError:
    return DataError(f"{path}: it has no rows; give a table with one row a record")


def read_header(path: str | Path, dialect: Dialect = PLAIN) -> dict[str, str | None]:
    r"""Return the names of the columns, with the storage type where the file's header has one.

    A CSV's first line and a Parquet file's schema are looked at, and no row.
    """
    path = Path(path)
    if is_parquet(path):
        schema = _open_parquet(path, dialect).schema_arrow
        _check_names(path, schema.names)
        return {field.name: str(field.type) for field in schema}
    with _opening(path, dialect) as (_, names, _):
        return dict.fromkeys(names)


def is_parquet(path: str | Path) -> bool:
    """Whether a file's name says that it is Parquet: it ends in .parquet or .pq."""
    return Path(path).suffix.lower() in _PARQUET


def refuse_text_settings(path: Path, dialect: Dialect) -> None:
    """Raise `DataError` for a separator or an encoding of a Parquet file, which has none."""
    for name in ("separator", "encoding"):
        value = getattr(dialect, name)
        if value != getattr(PLAIN, name):
            raise DataError(
                f"{path}: {name} = {value!r} is of a CSV file, and a Parquet file "
                "has none; leave it out"
            )


def _open_parquet(path: Path, dialect: Dialect) -> pq.ParquetFile:
    require("tables", "pyarrow")
    import pyarrow.parquet as pq

    refuse_text_settings(path, dialect)
    try:
        return pq.ParquetFile(path)
    except (OSError, ValueError) as error:
        raise _make_unreadable_error(path, str(error)) from None


def _read_blocks(path: Path, dialect: Dialect) -> Iterator[pa.Table]:
    """Yield a table without rows that has the header's names, then the rows, a block at a time."""
    import pyarrow as pa

    separator = dialect.separator_of(path)
    with _opening(path, dialect) as (file, names, number):
        schema = pa.schema([(name, pa.large_string()) for name in names])
        yield schema.empty_table()
        # Arrow cuts what it cuts as Python's reader would; all else is cut line by line.
        while lines := file.readlines(BLOCK):
            block = None
            # A longer line may hold a cell that Python's reader refuses, and Arrow would not.
            if max(map(len, lines)) < csv.field_size_limit():
                block = _split_plain("".join(lines), schema, separator)
            if block is None:
                rows = _split_lines(path, lines, number, separator, len(names))
                block = _make_table(rows, schema)
            yield block
            number += len(lines)


@contextmanager
def _opening(path: Path, dialect: Dialect) -> Iterator[tuple[io.TextIOWrapper, list[str], int]]:
    """Open a text table behind its header: the file, the names, and the number of their line.

    What cannot be decoded or unpacked, here or in the block, is a `DataError`.
    """
    separator = dialect.separator_of(path)
    with _open_text(path, dialect) as file:
        try:
            names, number = _read_names(path, file, separator)
            _check_names(path, names)
            check_separated(path, names, separator)
            yield file, names, number
        except UnicodeError:
            raise DataError(_explain_encoding(path, dialect.encoding)) from None
        except UNPACKING as error:
            reason = getattr(error, "strerror", None) or str(error)
            raise _make_unreadable_error(path, reason) from None


def _read_names(path: Path, file: io.TextIOWrapper, separator: str) -> tuple[list[str], int]:
    """Return the names in the first line that is not blank, and that line's number from 1."""
    number = 0
    while line := file.readline():
        number += 1
        # `_split_lines` passes over blank lines, so that nothing comes of one.
        for cells in _split_lines(path, [line], number - 1, separator):
            return [name.strip() for name in cells], number
    raise DataError(f"{path}: cannot be read (it is empty); give a CSV or Parquet file")


def _make_table(rows: list[list[str]], schema: pa.Schema) -> pa.Table:
    """Return rows of texts as an Arrow table."""
    import pyarrow as pa

    if not rows:
        return schema.empty_table()
    columns = [pa.array(cells, pa.large_string()) for cells in zip(*rows, strict=True)]
    return pa.table(columns, schema=schema)


def _split_plain(block: str, schema: pa.Schema, separator: str) -> pa.Table | None:
    """Return lines cut at every separator; None where `_split_lines` might cut otherwise."""
    import pyarrow as pa
    from pyarrow import csv as arrow

    # Quotes, line breaks and blanks that Python's reader treats in its own way.
    special = ('"', "\r", "\0", f"{separator} ", "\n ")
    if any(text in block for text in special):
        return None
    # A blank at the start would be skipped by Python's reader, and a mark would be dropped.
    if block[0] in " \ufeff" or ord(separator) > 127:
        return None
    data = block.encode()
    try:
        return arrow.read_csv(
            pa.py_buffer(data),
            arrow.ReadOptions(column_names=schema.names, use_threads=False, block_size=len(data)),
            arrow.ParseOptions(delimiter=separator, quote_char=False, double_quote=False),
            # Every column is text: Arrow must infer nothing from rows.
            arrow.ConvertOptions(column_types=schema, strings_can_be_null=False),
        )
    # Unequal numbers of cells: `_split_lines` finds the line and names it.
    except pa.ArrowInvalid:
        return None


def _split_lines(
    path: Path, lines: list[str], previous: int, separator: str, width: int | None = None
) -> list[list[str]]:
    """Return the cells of the lines that are not blank, `width` each: a line is a record.

    `previous` is the number of the line before them.
    """
    # Strict: text behind a closing quote is an error, and so is a quote that never closes.
    reader = csv.reader(
        lines, delimiter=separator, strict=True, skipinitialspace=separator not in BLANKS
    )
    rows = []
    # Records that were read; as a line is a record, the number of the last line.
    count = 0
    try:
        for cells in reader:
            count += 1
            # More lines than records: a quote has taken a line end into a cell.
            if reader.line_num > count:
                fault = "a quoted cell goes on over the end of the line"
                raise _make_line_error(path, previous + count, fault)
            # Without a width, as for the header, any number of cells will do.
            if cells and len(cells) != (width or len(cells)):
                fault = f"{len(cells)} cells where the header has {width}"
                raise _make_line_error(path, previous + count, fault)
            if cells:
                rows.append(cells)
    except csv.Error as error:
        fault = f"quotes do not match ({error})"
        # The record that failed is the one after those that were counted.
        raise _make_line_error(path, previous + count + 1, fault) from None
    return rows


def _make_line_error(path: Path, line: int, fault: str) -> DataError:
    return DataError(
        f"{path}, line {line}: {fault}; a line is one record: put a cell with separators in double "
        'quotes, a quote in it twice (""), and no line break, or give a Parquet file'
    )


def _open_text(path: Path, dialect: Dialect) -> io.TextIOWrapper:
    """Return the decoded lines of a file; raise `DataError` where it is no text table."""
    suffix = path.suffix.lower()
    if suffix in _REMEDIES:
        csv_path = str(path.with_suffix(".csv"))
        remedy = _REMEDIES[suffix].format(path=str(path), lines=suffix != ".json", csv=csv_path)
        raise DataError(f"{path}: a {suffix} file is not read; {remedy}")
    open_file = PACKED.get(suffix, io.FileIO)
    try:
        # Buffered, so that the beginning can be looked at without being read.
        file = io.BufferedReader(open_file(str(path)))
        head = file.peek(_HEAD)[:_HEAD]
    except UNPACKING as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise _make_unreadable_error(path, reason) from None
    is_utf8 = dialect.encoding.lower().replace("_", "-") in ("utf-8", "utf8")
    # The first bytes alone show what the file is instead.
    fault = None
    if head.startswith(_ARCHIVES):
        fault = f"{path}: holds a spreadsheet or an archive, whatever its name; {_SHEET}"
    elif head.startswith(b"PAR1"):
        fault = f"{path}: holds Parquet; rename it so that it ends in .parquet"
    elif is_utf8 and (head.startswith(_WIDE) or b"\0" in head):
        fault = _explain_encoding(path, dialect.encoding, wide=True)
    if fault is not None:
        file.close()
        raise DataError(fault)
    # The codec with "sig" drops a byte-order mark, and needs none.
    return io.TextIOWrapper(file, encoding="utf-8-sig" if is_utf8 else dialect.encoding)


def _make_unreadable_error(path: Path, reason: str) -> DataError:
    """Return the error of a file that cannot be read; the reason is shortened to one line."""
    shortened = " ".join(reason.split())[:_REASON_LENGTH]
    return DataError(f"{path}: cannot be read ({shortened}); give a CSV or Parquet file")


def _explain_encoding(path: Path, encoding: str, *, wide: bool = False) -> str:
    """Return the message for a file in another encoding; `wide` if it is known to be UTF-16."""
    location = str(path)
    # Read once more in bytes, to find the line that cannot be decoded.
    if path.is_file() and not wide:
        open_file = PACKED.get(path.suffix.lower(), io.FileIO)
        with open_file(str(path)) as file:
            data = file.read()
        wide = data.startswith(_WIDE)
        try:
            data.decode(encoding)
        except UnicodeDecodeError as error:
            line = data[: error.start].count(b"\n") + 1
            location = f"{path}, line {line}"
    proposal = "utf-16" if wide else "latin-1"
    if proposal == encoding:
        proposal = "utf-8"
    return (
        f"{location}: is not {encoding}; declare what it is, as in "
        f"{as_given('encoding', proposal)} "
        f'(in a config: encoding = "{proposal}" under [data]), or save it as UTF-8'
    )


def _check_names(path: Path, names: list[str]) -> None:
    """Raise `DataError` where two columns have one name."""
    # A file without a header has a person's row there: no message repeats it.
    for index, name in enumerate(names):
        earlier = names.index(name)
        if earlier < index:
            raise DataError(
                f"{path}: columns {earlier + 1} and {index + 1} have one name in the "
                "header; rename one of them"
            )


def check_separated(path: Path, names: list[str], separator: str) -> None:
    """Refuse a header of one name in which another separator stands: it was not declared."""
    # Only one column, and a separator in its name: the separator was not declared.
    candidates = [s for s in (";", "\t", ",", "|") if s in names[0] and s != separator]
    if len(names) == 1 and candidates:
        name = "tab" if candidates[0] == "\t" else candidates[0]
        # Where a semicolon separates, the comma is often taken: cells with it would be missing.
        decimal = ""
        if name == ";":
            decimal = f"; where numbers have a decimal comma, {as_given('decimal', ',')} too"
        raise DataError(
            f"{path}: its header is one column, in which {name!r} stands; if that separates the "
            f"columns, pass {as_given('separator', name)} (in a config: separator = {name!r} under "
            f"[data]){decimal}"
        )
