"""One table in every kind of cell and every container that a table can come in."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from apiece.datasets import Boolean, Categorical, Date, Numeric

SIZE = 60


@dataclass(frozen=True)
class Column:
    """Cells of one kind, how they are stored, and how their values may be declared."""

    cells: tuple[Any, ...]  # in turn; None is a gap
    stored: pa.DataType
    declared: tuple[Any, ...]
    literal: str  # the first declared value in a query
    kind: str | None = None

    def declare(self) -> Categorical | Numeric | Boolean | Date:
        """The declaration in a schema."""
        kinds = {"numeric": Numeric, "boolean": Boolean, "date": Date}
        if self.kind is None:
            return Categorical(self.declared)
        return kinds[self.kind](values=self.declared)

    def cell(self, row: int) -> Any:
        return self.cells[row % len(self.cells)]

    def place(self, row: int) -> int:
        """The declared value that a row has, −1 where none."""
        at = row % len(self.cells)
        return at if at < len(self.declared) else -1


DAYS = (date(2024, 1, 31), date(2024, 2, 29), date(1899, 12, 31))
NOON = datetime(2024, 1, 31, 12, 30, 15)
ISO_DAYS = ("2024-01-31", "2024-02-29")
COLUMNS = {
    "text": Column(("north", "south", "west"), pa.string(), ("north", "south"), "'north'"),
    "blanks": Column((" north", "south \t", "west"), pa.string(), ("north", "south"), "'north'"),
    "decomposed": Column(
        ("Cafe\u0301", "Mu\u0308nchen", "Bonn"), pa.string(), ("Caf\u00e9", "M\u00fcnchen"),
        "'Café'",
    ),
    "composed": Column(
        ("Caf\u00e9", "M\u00fcnchen", "Bonn"), pa.string(), ("Cafe\u0301", "Mu\u0308nchen"),
        "'Cafe\u0301'",
    ),
    "boolean": Column((True, False), pa.bool_(), ("True", "False"), "'True'"),
    "boolean with a gap": Column((True, False, None), pa.bool_(), ("true", "false"), "'TRUE'"),
    "boolean by number": Column((True, False, None), pa.bool_(), (1, 0), "1"),
    "boolean by itself": Column((True, False), pa.bool_(), (True, False), "'true'", "boolean"),
    "integer": Column((1, 2, 3), pa.int64(), (1, 2), "1"),
    "integer of eight bits": Column((1, 2, 3), pa.int8(), ("1", "2"), "'1'"),
    "integer with a gap": Column((1, 2, 3, None), pa.int64(), ("1", "2"), "'1'"),
    "integer as a number": Column((1, 2, 3, None), pa.int64(), ("1", "2.0"), "1", "numeric"),
    "flag": Column((1, 0, None), pa.int64(), ("True", "False"), "'True'"),
    "float": Column((0.1, 2.5, -99.9, None), pa.float64(), (0.1, 2.5), "0.1"),
    "whole float": Column((1.0, 2.0, 3.5, None), pa.float64(), ("1", "2.0"), "'1.0'"),
    "float32": Column((0.1, 2.5, -99.9, None), pa.float32(), ("0.1", "2.50"), "'.1'"),
    "float16": Column((0.1, 2.5, 7.0), pa.float16(), (0.1, 2.5), "0.1"),
    "decimal": Column(
        (Decimal("0.10"), Decimal("2.50"), Decimal("7.00"), None), pa.decimal128(8, 2),
        ("0.1", "2.5"), "0.1",
    ),
    "date": Column(DAYS, pa.date32(), ISO_DAYS, "'2024-01-31'", "date"),
    "date by its text": Column((*DAYS, None), pa.date32(), ISO_DAYS, "'2024-01-31'"),
    "midnight": Column(
        (datetime(2024, 1, 31), datetime(2024, 2, 29), NOON), pa.timestamp("us"), ISO_DAYS,
        "'2024-01-31'", "date",
    ),
    "timestamp": Column(
        (NOON, datetime(1969, 2, 28), datetime(2000, 1, 1), None), pa.timestamp("ns"),
        ("2024-01-31T12:30:15", "1969-02-28"), "'2024-01-31 12:30:15'",
    ),
    "timestamp in UTC": Column(
        (NOON.replace(tzinfo=UTC), datetime(2000, 1, 1, tzinfo=UTC)), pa.timestamp("ms", tz="UTC"),
        ("2024-01-31 14:30:15+02:00", "2000-01-01"), "'2024-01-31 12:30:15'", "date",
    ),
    "code": Column(("01", "02", "10"), pa.string(), ("01", "02"), "'01'"),
    "category": Column(
        ("a", "b", "c", None), pa.dictionary(pa.int32(), pa.string()), ("a", "b"), "'a'"
    ),
}  # fmt: skip
NAMES = tuple(f"c{number}" for number in range(len(COLUMNS)))


def arrow() -> pa.Table:
    """The table as Arrow stores it; ids are texts."""
    columns = {"id": pa.array([f"p{row}" for row in range(SIZE)])}
    for name, column in zip(NAMES, COLUMNS.values(), strict=True):
        cells = [column.cell(row) for row in range(SIZE)]
        if pa.types.is_float16(column.stored):
            import numpy as np

            columns[name] = pa.array(np.array(cells, dtype=np.float16))
        else:
            columns[name] = pa.array(cells, column.stored)
    return pa.table(columns)


def without_halves() -> pa.Table:
    """The table with floats of 32 bits in place of those of 16, for libraries that lack them."""
    table = arrow()
    for at, name in enumerate(table.column_names):
        if pa.types.is_float16(table[name].type):
            cells = [COLUMNS["float16"].cell(row) for row in range(SIZE)]
            table = table.set_column(at, name, pa.array(cells, pa.float32()))
    return table


def plain_pandas() -> pd.DataFrame:
    """As pandas makes it by default: a gap makes whole numbers floats and booleans objects."""
    return arrow().to_pandas()


def _csv(separator: str, decimal: str = ".") -> Callable[[Path], Any]:
    def write(folder: Path) -> Path:
        path = folder / "t.csv"
        frame = plain_pandas()
        if decimal == ",":  # pandas writes decimals with a point all the same
            exact = NAMES[list(COLUMNS).index("decimal")]
            frame[exact] = frame[exact].astype(float)
        frame.to_csv(path, index=False, sep=separator, decimal=decimal)
        return path

    return write


def _written(header: str, end: str, quoting: int, encoding: str) -> Callable[[Path], Any]:
    def write(folder: Path) -> Path:
        path = folder / "t.csv"
        text = plain_pandas().to_csv(index=False, quoting=quoting, lineterminator=end)
        path.write_bytes(header.encode() + text.encode(encoding))
        return path

    return write


def _parquet(folder: Path) -> Path:
    pq.write_table(arrow(), folder / "t.parquet", row_group_size=25)
    return folder / "t.parquet"


def _parquet_of_pandas(folder: Path) -> Path:
    plain_pandas().to_parquet(folder / "t.parquet")
    return folder / "t.parquet"


def _polars(_: Path) -> Any:
    polars = pytest.importorskip("polars", reason="polars is not installed")
    return polars.from_arrow(without_halves())


def _polars_csv(folder: Path) -> Path:
    _polars(folder).write_csv(folder / "t.csv")
    return folder / "t.csv"


def _duckdb(_: Path) -> Any:
    import duckdb

    return duckdb.connect().from_arrow(without_halves())


def _duckdb_csv(folder: Path) -> Path:
    _duckdb(folder).write_csv(str(folder / "t.csv"))
    return folder / "t.csv"


def _objects(_: Path) -> pd.DataFrame:
    """Cells of any Python types, as a table of mixed columns has; narrow floats stay narrow."""
    frame = plain_pandas()
    columns = {}
    for name in frame:
        narrow = frame[name].dtype in ("float16", "float32")
        cells = frame[name].to_numpy() if narrow else frame[name]
        columns[name] = pd.Series([None if pd.isna(c) else c for c in cells], dtype=object)
    return pd.DataFrame(columns)


def _nullable(_: Path) -> pd.DataFrame:
    frame = plain_pandas()
    halves = [name for name in frame if frame[name].dtype == "float16"]
    return frame.convert_dtypes().assign(**{name: frame[name] for name in halves})


# Container → what makes the table in it, and how its texts are written.
CONTAINERS: dict[str, tuple[Callable[[Path], Any], dict[str, str]]] = {
    "CSV with commas": (_csv(","), {}),
    "CSV with semicolons and decimal commas": (_csv(";", ","), {"separator": ";", "decimal": ","}),
    "CSV with tabs": (_csv("\t"), {"separator": "tab"}),
    "CSV with bars": (_csv("|"), {"separator": "|"}),
    "CSV of quoted cells, with a mark and CR LF": (
        _written("\ufeff", "\r\n", 1, "utf-8"), {},
    ),
    "CSV in UTF-16": (_written("", "\n", 0, "utf-16"), {"encoding": "utf-16"}),
    "CSV of Polars": (_polars_csv, {}),
    "CSV of DuckDB": (_duckdb_csv, {}),
    "Parquet": (_parquet, {}),
    "Parquet of pandas": (_parquet_of_pandas, {}),
    "Arrow": (lambda _: arrow(), {}),
    "pandas": (lambda _: plain_pandas(), {}),
    "pandas of nullable types": (_nullable, {}),
    "pandas of Arrow's types": (lambda _: arrow().to_pandas(types_mapper=pd.ArrowDtype), {}),
    "pandas of objects": (_objects, {}),
    "Polars": (_polars, {}),
    "DuckDB": (_duckdb, {}),
}  # fmt: skip
