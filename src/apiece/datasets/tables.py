"""Reading a table of people from CSV or Parquet: the one reader of every command but `query`.

Nothing is sniffed. A line of a CSV file is one record and is read by itself, as texts; a Parquet
file's columns have the types that the file declares. So no row changes how another is read: what
cannot be read as declared is refused, with its line.

`apiece query` reads CSV by another grammar, in `blocks`, on purpose: there an analyst
who may not see the rows asks, so that what one row holds must neither be told nor refuse the
others, and the file's form is fixed. Here the steward reads their own table, wants each mistake
named, and says how it is written (`Dialect`).
"""

from __future__ import annotations

import bz2
import codecs
import csv
import gzip
import io
import lzma
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from apiece.errors import DataError

if TYPE_CHECKING:
    import pandas as pd

_NAMED = {"tab": "\t", "\\t": "\t", "comma": ",", "semicolon": ";"}


@dataclass(frozen=True, slots=True)
class Dialect:
    r"""What separates cells, what marks decimals, and the encoding of a text table.

    Parquet files say all of this themselves.

    Args:
        separator: One character, or "tab"; None is a tab for .tsv and a comma for all else.
        decimal: "." or ","; under "," a number with a point is no number, because it might be
            thousands.
        encoding: A name that Python knows; a byte-order mark is accepted under utf-8.

    Raises:
        DataError: For anything else.

    Example:
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
            if len(plain) != 1 or plain.isalnum() or plain in "\"'\r\n.+- ":
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


PLAIN = Dialect()


_PARQUET = (".parquet", ".pq")
_PACKED = {".gz": gzip.decompress, ".bz2": bz2.decompress, ".xz": lzma.decompress}
_SHEET = 'save the sheet as "CSV UTF-8" and pass that file'
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

    CSV cells stay texts, stripped of the blanks after a separator, so that a category called "NA"
    is not taken for a missing value: what is missing is for the schema to say. Parquet has its own
    types. Blank lines are skipped.

    Args:
        path: Of the file.
        dialect: How a CSV file is written; a Parquet file has no separator or encoding.

    Raises:
        DataError: For a path that cannot be read, another format, a separator of a Parquet file, a
            line with more or fewer cells than the header, a cell that goes on over the end of its
            line, a file without rows or with a column twice.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = Path(folder, "people.csv")
        ...     _ = path.write_text("age,city\n7,NA\n")
        ...     read_table(path).iloc[0].tolist()
        ['7', 'NA']
    """
    import pandas as pd

    path = Path(path)
    if is_parquet(path):
        # Of one file alone: folders named a=1 add no columns, stored indexes hide none, and a
        # null turns no other person's whole number into a float.
        table = _parquet(path, dialect).read()
        _check_names(path, table.column_names)
        frame: pd.DataFrame = table.to_pandas(ignore_metadata=True, integer_object_nulls=True)
    else:
        lines = _lines(path, dialect)
        names = next(lines)
        frame = pd.DataFrame(list(lines), columns=names, dtype=object)
    if frame.empty:
        raise DataError(f"{path}: it has no rows; give a table with one row a record")
    return frame


def read_header(path: str | Path, dialect: Dialect = PLAIN) -> dict[str, str | None]:
    r"""Return the names of the columns, with the storage type where the file's header has one.

    A CSV's first line and a Parquet file's schema are looked at, and no row.
    """
    path = Path(path)
    if is_parquet(path):
        schema = _parquet(path, dialect).schema_arrow
        _check_names(path, schema.names)
        return {field.name: str(field.type) for field in schema}
    return dict.fromkeys(next(_lines(path, dialect)))


def is_parquet(path: str | Path) -> bool:
    """Whether a file's name says that it is Parquet: it ends in .parquet or .pq."""
    return Path(path).suffix.lower() in _PARQUET


def _parquet(path: Path, dialect: Dialect) -> Any:
    import pyarrow.parquet as pq

    for name in ("separator", "encoding"):
        if getattr(dialect, name) != getattr(PLAIN, name):
            raise DataError(
                f"{path}: {name} = {getattr(dialect, name)!r} is of a CSV file, and a Parquet file "
                "has none; leave it out"
            )
    try:
        return pq.ParquetFile(path)
    except (OSError, ValueError) as error:
        reason = " ".join(str(error).split())[:160]
        raise DataError(f"{path}: cannot be read ({reason}); give a CSV or Parquet file") from None


def _lines(path: Path, dialect: Dialect) -> Iterator[list[str]]:
    """Yield the names in the header, checked, then the cells of each line, as many."""
    separator = dialect.separator or ("\t" if ".tsv" in path.suffixes else ",")
    reader = csv.reader(
        io.StringIO(_text(path, dialect), newline=None),
        delimiter=separator,
        strict=True,
        skipinitialspace=separator != "\t",
    )
    names: list[str] | None = None
    line = 0
    while True:
        line = reader.line_num + 1
        try:
            cells = next(reader, None)
        except csv.Error as error:
            raise _broken(path, line, f"quotes do not match ({error})") from None
        if cells is None:
            break
        if reader.line_num > line:
            raise _broken(path, line, "a quoted cell goes on over the end of the line")
        if not cells:
            continue
        if names is None:
            names = [name.strip() for name in cells]
            _check_names(path, names)
            _check_separated(path, names, separator)
            yield names
        elif len(cells) != len(names):
            raise _broken(path, line, f"{len(cells)} cells where the header has {len(names)}")
        else:
            yield cells
    if names is None:
        raise DataError(f"{path}: cannot be read (it is empty); give a CSV or Parquet file")


def _broken(path: Path, line: int, what: str) -> DataError:
    return DataError(
        f"{path}, line {line}: {what}; a line is one record: put a cell with separators in double "
        'quotes, a quote in it twice (""), and no line break, or give a Parquet file'
    )


def _text(path: Path, dialect: Dialect) -> str:
    """Return the decoded content; what the file is instead is told by its first bytes alone."""
    suffix = path.suffix.lower()
    if suffix in _OTHERS:
        csv_path = str(path.with_suffix(".csv"))
        remedy = _OTHERS[suffix].format(path=str(path), lines=suffix != ".json", csv=csv_path)
        raise DataError(f"{path}: a {suffix} file is not read; {remedy}")
    try:
        data = _PACKED.get(suffix, bytes)(path.read_bytes())
    except (OSError, EOFError, lzma.LZMAError) as error:
        reason = getattr(error, "strerror", None) or " ".join(str(error).split())[:160]
        raise DataError(f"{path}: cannot be read ({reason}); give a CSV or Parquet file") from None
    if data.startswith((b"PK\x03\x04", b"\xd0\xcf\x11\xe0")):
        raise DataError(f"{path}: holds a spreadsheet or an archive, whatever its name; {_SHEET}")
    if data.startswith(b"PAR1"):
        raise DataError(f"{path}: holds Parquet; rename it so that it ends in .parquet")
    plain = dialect.encoding.lower().replace("_", "-") in ("utf-8", "utf8")
    try:
        text = data.decode("utf-8-sig" if plain else dialect.encoding)
    except UnicodeError as error:
        wide = data.startswith((b"\xff\xfe", b"\xfe\xff"))
        raise _undecoded(path, data, dialect.encoding, error, wide=wide) from None
    if "\0" in text[:1000] and plain:
        raise _undecoded(path, data, dialect.encoding, None, wide=True)
    return text


def _undecoded(
    path: Path, data: bytes, encoding: str, error: UnicodeError | None, *, wide: bool
) -> DataError:
    where = ""
    if isinstance(error, UnicodeDecodeError) and not wide:
        line = data[: error.start].count(b"\n") + 1
        where = f", line {line}"
    other = "utf-16" if wide else "latin-1"
    if other == encoding:
        other = "utf-8"
    return DataError(
        f"{path}{where}: is not {encoding}; declare what it is, as with --encoding {other} "
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


def _check_separated(path: Path, names: list[str], separator: str) -> None:
    """Refuse a header of one name in which another separator stands: it was not declared."""
    others = [s for s in (";", "\t", ",", "|") if s in names[0] and s != separator]
    if len(names) == 1 and others:
        name = "tab" if others[0] == "\t" else others[0]
        raise DataError(
            f"{path}: its header is one column, in which {name!r} stands; if that separates the "
            f"columns, pass --separator {name!r} (in a config: separator = {name!r} under [data])"
        )
