"""Reading a table of people from CSV or Parquet: the one reader of every command but `query`.

Nothing is sniffed. A line of a CSV file is one record and is read by itself, as texts; a Parquet
file's columns have the types that the file declares. So no row changes how another is read: what
cannot be read as declared is refused, with its line, for the steward reads their own table.
`apiece query` reads CSV by another grammar, in `blocks`: its analyst may not see the rows.
"""

from __future__ import annotations

import bz2
import codecs
import csv
import gzip
import io
import lzma
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from apiece.errors import DataError, as_given

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa
    import pyarrow.parquet as pq

_NAMED = {"tab": "\t", "\\t": "\t", "comma": ",", "semicolon": ";", "space": " ", "bar": "|"}
# Separators that are blanks: of these two together stand around an empty cell.
BLANKS = ("\t", " ")


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
        >>> from apiece.datasets import Dialect
        >>> Dialect(separator="tab").separator
        '\t'
    """

    separator: str | None = None
    decimal: str = "."
    encoding: str = "utf-8"

    def __post_init__(self) -> None:
        for name in ("separator", "decimal", "encoding"):
            value = getattr(self, name)
            if not isinstance(value, str) and not (name == "separator" and value is None):
                raise DataError(f"{name} = {value!r}: must be a text; put it in quotes")
        if self.separator is not None:
            plain = _NAMED.get(self.separator, self.separator)
            if len(plain) != 1 or plain.isalnum() or plain in "\"'\r\n.+-":
                raise DataError(
                    f"separator = {self.separator!r}: must be one character such as ',', ';' "
                    "or 'tab'"
                )
            object.__setattr__(self, "separator", plain)
        if self.decimal not in (".", ","):
            raise DataError(f"decimal = {self.decimal!r}: must be '.' or ','")
        try:
            "".encode(codecs.lookup(self.encoding).name)
        except (LookupError, ValueError):
            raise DataError(
                f"encoding = {self.encoding!r}: unknown; give utf-8, latin-1, cp1252 or utf-16"
            ) from None

    def separator_of(self, path: Path) -> str:
        """Return what separates the cells of a file: what is declared, or what its name says.

        Args:
            path: Of the file.
        """
        return self.separator or ("\t" if ".tsv" in path.suffixes else ",")


PLAIN = Dialect()


_PARQUET = (".parquet", ".pq")
PACKED: dict[str, Any] = {".gz": gzip.open, ".bz2": bz2.open, ".xz": lzma.open}
UNPACKING = (OSError, EOFError, lzma.LZMAError, zlib.error)
BLOCK = 1 << 22  # letters that are read at a time
_SHEET = 'save the sheet as "CSV UTF-8" and pass that file'
_WIDE = (b"\xff\xfe", b"\xfe\xff")  # the byte-order marks of UTF-16
_JSON = (
    "convert it in Python: import pandas; pandas.read_json({path!r}, lines={lines}, dtype=False)"
    ".to_csv({csv!r}, index=False)"
)
_ZIP = "unpack it and pass the file in it"
_OTHERS = {
    **dict.fromkeys((".xlsx", ".xls", ".xlsm", ".ods", ".numbers"), _SHEET),
    **dict.fromkeys((".json", ".jsonl", ".ndjson"), _JSON),
    **dict.fromkeys((".zip", ".tar", ".tgz", ".7z", ".rar", ".zst"), _ZIP),
}


def read_table(path: str | Path, dialect: Dialect = PLAIN) -> pd.DataFrame:
    r"""Return the rows of a CSV (.csv, .tsv, also .gz, .bz2, .xz) or Parquet file.

    CSV cells stay texts, stripped of the blanks after a separator: what is missing is for the
    schema to say. Parquet has its own types. Blank lines are skipped.

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
        >>> from apiece.datasets import read_table
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = Path(folder, "people.csv")
        ...     _ = path.write_text("age,city\n7,NA\n")
        ...     read_table(path).iloc[0].tolist()
        ['7', 'NA']
    """
    import pandas as pd

    frame: pd.DataFrame
    path = Path(path)
    if is_parquet(path):
        # Of one file alone: folders named a=1 add no columns, stored indexes hide none, and a
        # null turns no other person's whole number into a float.
        table = _parquet(path, dialect).read()
        _check_names(path, table.column_names)
        frame = table.to_pandas(ignore_metadata=True, integer_object_nulls=True)
    else:
        import pyarrow as pa

        whole = pa.concat_tables(_read(path, dialect))
        frame = whole.to_pandas(
            types_mapper={pa.large_string(): pd.ArrowDtype(pa.large_string())}.get
        )
    if frame.empty:
        raise DataError(f"{path}: it has no rows; give a table with one row a record")
    return frame


def read_header(path: str | Path, dialect: Dialect = PLAIN) -> dict[str, str | None]:
    r"""Return the names of the columns, with the storage type where the file's header has one."""
    # A CSV's first line and a Parquet file's schema are looked at, and no row.
    path = Path(path)
    if is_parquet(path):
        schema = _parquet(path, dialect).schema_arrow
        _check_names(path, schema.names)
        return {field.name: str(field.type) for field in schema}
    return dict.fromkeys(next(_read(path, dialect)).column_names)


def is_parquet(path: str | Path) -> bool:
    """Whether a file's name says that it is Parquet: it ends in .parquet or .pq."""
    return Path(path).suffix.lower() in _PARQUET


def refuse_text_settings(path: Path, dialect: Dialect) -> None:
    """Raise `DataError` for a separator or an encoding of a Parquet file, which has none."""
    for name in ("separator", "encoding"):
        if getattr(dialect, name) != getattr(PLAIN, name):
            raise DataError(
                f"{path}: {name} = {getattr(dialect, name)!r} is of a CSV file, and a Parquet file "
                "has none; leave it out"
            )


def _parquet(path: Path, dialect: Dialect) -> pq.ParquetFile:
    import pyarrow.parquet as pq

    refuse_text_settings(path, dialect)
    try:
        return pq.ParquetFile(path)
    except (OSError, ValueError) as error:
        reason = " ".join(str(error).split())[:160]
        raise DataError(f"{path}: cannot be read ({reason}); give a CSV or Parquet file") from None


def _read(path: Path, dialect: Dialect) -> Iterator[pa.Table]:
    """Yield a table without rows that has the header's names, then the rows, a block at a time."""
    import pyarrow as pa

    separator = dialect.separator_of(path)
    names: list[str] = []
    number = 0  # of the last line that was read
    with _opened(path, dialect) as file:
        try:
            while not names and (line := file.readline()):
                for cells in _cells(path, [line], number, separator):
                    names = [name.strip() for name in cells]
                number += 1
            if not names:
                raise DataError(f"{path}: cannot be read (it is empty); give a CSV or Parquet file")
            _check_names(path, names)
            check_separated(path, names, separator)
            schema = pa.schema([(name, pa.large_string()) for name in names])
            yield schema.empty_table()
            while lines := file.readlines(BLOCK):
                block = None
                if max(map(len, lines)) < csv.field_size_limit():
                    block = _cut("".join(lines), schema, separator)
                if block is None:
                    rows = _cells(path, lines, number, separator, len(names))
                    texts = [
                        pa.array(cells, pa.large_string()) for cells in zip(*rows, strict=True)
                    ]
                    block = pa.table(texts, schema=schema) if rows else schema.empty_table()
                yield block
                number += len(lines)
        except UnicodeError:
            raise DataError(_undecoded(path, dialect.encoding)) from None
        except UNPACKING as error:
            raise _unreadable(path, error) from None


def _cut(block: str, schema: pa.Schema, separator: str) -> pa.Table | None:
    """Return lines cut at every separator; None where that may not be what `_cells` gives."""
    import pyarrow as pa
    from pyarrow import csv as arrow

    if any(each in block for each in ('"', "\r", "\0", f"{separator} ", "\n ")):
        return None
    if block[0] in " \ufeff" or ord(separator) > 127:
        return None
    data = block.encode()
    try:
        return arrow.read_csv(
            pa.py_buffer(data),
            arrow.ReadOptions(column_names=schema.names, use_threads=False, block_size=len(data)),
            arrow.ParseOptions(delimiter=separator, quote_char=False, double_quote=False),
            arrow.ConvertOptions(column_types=schema, strings_can_be_null=False),
        )
    except pa.ArrowInvalid:
        return None


def _cells(
    path: Path, lines: list[str], number: int, separator: str, width: int | None = None
) -> list[list[str]]:
    """Return the cells of the lines that are not blank, `width` each: a line is a record."""
    # number: of the line before them.
    reader = csv.reader(
        lines, delimiter=separator, strict=True, skipinitialspace=separator not in BLANKS
    )
    rows = []
    at = 0
    try:
        for at, cells in enumerate(reader, start=1):
            if reader.line_num > at:
                what = "a quoted cell goes on over the end of the line"
                raise _broken(path, number + at, what)
            if cells and len(cells) != (width or len(cells)):
                what = f"{len(cells)} cells where the header has {width}"
                raise _broken(path, number + at, what)
            if cells:
                rows.append(cells)
    except csv.Error as error:
        what = f"quotes do not match ({error})"
        raise _broken(path, number + at + 1, what) from None
    return rows


def _broken(path: Path, line: int, what: str) -> DataError:
    return DataError(
        f"{path}, line {line}: {what}; a line is one record: put a cell with separators in double "
        'quotes, a quote in it twice (""), and no line break, or give a Parquet file'
    )


def _opened(path: Path, dialect: Dialect) -> io.TextIOWrapper:
    """Return the decoded lines; what the file is instead is told by its first bytes alone."""
    suffix = path.suffix.lower()
    if suffix in _OTHERS:
        csv_path = str(path.with_suffix(".csv"))
        remedy = _OTHERS[suffix].format(path=str(path), lines=suffix != ".json", csv=csv_path)
        raise DataError(f"{path}: a {suffix} file is not read; {remedy}")
    try:
        file = io.BufferedReader(PACKED.get(suffix, io.FileIO)(str(path)))
        head = file.peek(1000)[:1000]
    except UNPACKING as error:
        raise _unreadable(path, error) from None
    plain = dialect.encoding.lower().replace("_", "-") in ("utf-8", "utf8")
    refused = None
    if head.startswith((b"PK\x03\x04", b"\xd0\xcf\x11\xe0")):
        refused = f"{path}: holds a spreadsheet or an archive, whatever its name; {_SHEET}"
    elif head.startswith(b"PAR1"):
        refused = f"{path}: holds Parquet; rename it so that it ends in .parquet"
    elif plain and (head.startswith(_WIDE) or b"\0" in head):
        refused = _undecoded(path, dialect.encoding, wide=True)
    if refused is not None:
        file.close()
        raise DataError(refused)
    return io.TextIOWrapper(file, encoding="utf-8-sig" if plain else dialect.encoding)


def _unreadable(path: Path, error: Exception) -> DataError:
    reason = getattr(error, "strerror", None) or " ".join(str(error).split())[:160]
    return DataError(f"{path}: cannot be read ({reason}); give a CSV or Parquet file")


def _undecoded(path: Path, encoding: str, *, wide: bool = False) -> str:
    where = str(path)
    if path.is_file() and not wide:
        with PACKED.get(path.suffix.lower(), io.FileIO)(str(path)) as file:
            data = file.read()
        wide = data.startswith(_WIDE)
        try:
            data.decode(encoding)
        except UnicodeDecodeError as error:
            line = data[: error.start].count(b"\n") + 1
            where = f"{path}, line {line}"
    other = "utf-16" if wide else "latin-1"
    if other == encoding:
        other = "utf-8"
    return (
        f"{where}: is not {encoding}; declare what it is, as in "
        f"{as_given('encoding', other)} "
        f'(in a config: encoding = "{other}" under [data]), or save it as UTF-8'
    )


def _check_names(path: Path, names: list[str]) -> None:
    # A file without a header has a person's row there: no message repeats it.
    again = next((k for k, name in enumerate(names) if name in names[:k]), None)
    if again is not None:
        raise DataError(
            f"{path}: columns {names.index(names[again]) + 1} and {again + 1} have one name in the "
            "header; rename one of them"
        )


def check_separated(path: Path, names: list[str], separator: str) -> None:
    """Refuse a header of one name in which another separator stands: it was not declared."""
    others = [s for s in (";", "\t", ",", "|") if s in names[0] and s != separator]
    if len(names) == 1 and others:
        name = "tab" if others[0] == "\t" else others[0]
        raise DataError(
            f"{path}: its header is one column, in which {name!r} stands; if that separates the "
            f"columns, pass {as_given('separator', name)} (in a config: separator = {name!r} under "
            "[data])"
        )
