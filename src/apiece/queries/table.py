"""Registering a table: the steward's act, once, before any question; what is read then is frozen.

Every declared column is read as its declared kinds, one cell at a time, into a table of a locked
database of this process, whose columns have types that no row decided. Questions are sums over that
table, so nothing that a question does can fail on a row. What it may not hold in memory lies in a
private folder, which goes with the process.
"""

from __future__ import annotations

import hashlib
import io
import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, closing, contextmanager, suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt

from apiece import _check, _files
from apiece._types import Floats, Integers, Json, Mask
from apiece.datasets.schema import Schema
from apiece.datasets.tables import PLAIN, Dialect, refuse_text_settings
from apiece.errors import ApieceError, DataError, as_given
from apiece.queries import reading, registration, scan, sources, stores
from apiece.queries.declarations import Declarations
from apiece.queries.derived import show_value
from apiece.queries.lookups import join_lookups, make_joins
from apiece.queries.question import Question, make_view
from apiece.queries.registration import Registration
from apiece.queries.scan import DUCKDB, Scan
from apiece.queries.sources import Log

if TYPE_CHECKING:
    import duckdb

# Bytes of rows that are held in memory by default.
_MEMORY: Final = 4 * 2**30
# Rows of contributions that are taken from the database at a time: a batch of ids and two numbers
# is then some tens of MB.
_BATCH: Final = 2**20
# The file of a registered table's rows, which is never replaced.
_ROWS: Final = _files.Kind("rows of a registered table", (".duckdb",), private=True)
# Cells that are counted in memory, at most: an array of 64-bit counts takes 128 MiB then.
_DENSE: Final = 2**24
# Bytes that are copied at a time.
_COPIED: Final = 2**24


def discard_message(_message: str) -> None:
    """Keep no steward's log."""


@dataclass(frozen=True)
class Table:
    """A registered table: what `register` has read, frozen. Its ids and rows are data about people.

    Attributes:
        declarations: What was declared.
        fingerprint: SHA-256 of the file, or of the columns read from memory.
        database: The rows, in a locked database of this process.

    Example:
        >>> import pandas as pd
        >>> from apiece.datasets import Schema
        >>> from apiece.queries import register
        >>> table = register(pd.DataFrame({"id": ["ann", "bob"]}), Schema({}, person="id"))
        >>> len(table.people), len(table.fingerprint)
        (2, 64)
    """

    declarations: Declarations
    fingerprint: str = field(repr=False)
    database: duckdb.DuckDBPyConnection = field(repr=False)

    @cached_property
    def people(self) -> npt.NDArray[np.object_]:
        """The ids, as text, in the order of their numbers; read when they are first asked for."""
        query = "SELECT person FROM people ORDER BY number"
        ids = self.database.cursor().sql(query).to_arrow_table().column("person")
        return np.asarray(ids.to_pylist(), dtype=object)

    def close(self) -> None:
        """Free the rows, in memory and on disk; no more questions can be asked."""
        self.database.close()

    @contextmanager
    def contributions(self, question: Question, grid: float) -> Iterator[DuckDBContributions]:
        """Yield everybody's contributions, in whole steps of the grid.

        Args:
            question: A query that was resolved against this table's declarations.
            grid: A step, in units of the features.
        """
        # The SQL is written here and run when a number is asked for: what it makes lives and dies
        # with this cursor.
        described = Scan.from_question(question, self.declarations)
        most, rows = self.size
        cursor = self.database.cursor()
        try:
            yield DuckDBContributions(
                cursor,
                question.feature_count,
                scan.contributions_sql(described, grid, DUCKDB, most=most),
                scan.cells_sql(described, grid, DUCKDB, most=most, rows=rows),
                scan.places_sql(described, DUCKDB, most),
            )
        finally:
            cursor.close()

    @cached_property
    def size(self) -> tuple[int, int]:
        """The most rows of a person, and all rows: about people, so a scan is planned by it alone.

        Whatever it is, the sums are the same.
        """
        # A person's rows are numbered from 1 without gaps, so that the largest number is their
        # count.
        query = "SELECT max(place), count(*) FROM rows"
        ((most, rows),) = self.database.cursor().execute(query).fetchall()
        return int(most or 0), int(rows)

    @contextmanager
    def values(self, question: Question) -> Iterator[DuckDBValues]:
        """Yield the values of a column that nobody declared, with the people who have them.

        Args:
            question: Of SELECT DISTINCT, resolved against this table's declarations.
        """
        cursor = self.database.cursor()
        view = make_view(question.query, self.declarations)
        (column,) = question.query.columns
        try:
            kind = view.kind_of(column)
            table, condition = view.table_sql([], question.where)
            # The first values of each person, by the order of that person's rows.
            # A row has one value, so that no two of a person's values begin in the same row.
            cursor.execute(
                f"CREATE OR REPLACE TEMP TABLE spread AS SELECT person, v, "
                "count(*) OVER (PARTITION BY person) AS k FROM (SELECT person, v, row_number() "
                "OVER (PARTITION BY person ORDER BY first) AS nth FROM (SELECT person, "
                f"{view.stored(column, kind)} AS v, min(place) AS first FROM {table} AS all_rows "
                f"WHERE ({condition}) AND {view.stored(column, kind)} IS NOT NULL "
                f"GROUP BY person, v) AS pairs) AS ranked WHERE nth <= {question.rows}"
            )
            yield DuckDBValues(cursor, kind)
        finally:
            cursor.close()


@dataclass
class DeferredTable:
    """A file whose bytes are known, and whose rows are read when a question needs them.

    A recorded answer needs none: its terms name the file's digest.
    """

    # What is declared about the file.
    declarations: Declarations
    # SHA-256 of the file.
    fingerprint: str = field(repr=False)
    # Reads the file, which must have this digest.
    read_rows: Callable[[str], Table] = field(repr=False)
    _table: Table | None = field(default=None, init=False, repr=False)

    @classmethod
    def from_file(
        cls, path: Path, schema: Schema, read_rows: Callable[[str], Table]
    ) -> DeferredTable:
        """Return a table of a file of which the bytes alone are read, or raise `DataError`."""
        declarations = Declarations.from_schema(schema)
        declarations.require_person()
        with sources.open_file(path) as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        return cls(declarations, digest, read_rows)

    @classmethod
    def from_registration(
        cls, registered: Registration, *, memory: int | None = None
    ) -> DeferredTable:
        """Return the table that `apiece register` has left in a folder.

        Raises:
            DataError: Where its declarations are not those that were registered.
        """
        declarations = Declarations.from_schema(registered.schema)
        if _are_different(declarations.terms, registered.terms):
            raise DataError(
                f"source {str(registered.folder)!r}: its schema is not the one that was "
                "registered; run `apiece register` again, into a new folder"
            )

        def read_rows(fingerprint: str) -> Table:
            database = _open_rows(registered, memory)
            return Table(declarations, fingerprint, database)

        return cls(declarations, registered.fingerprint, read_rows)

    @property
    def table(self) -> Table:
        """The table, read when it is first asked for."""
        if self._table is None:
            self._table = self.read_rows(self.fingerprint)
        return self._table

    def contributions(
        self, question: Question, grid: float
    ) -> AbstractContextManager[DuckDBContributions]:
        """Yield everybody's contributions, in whole steps of the grid."""
        return self.table.contributions(question, grid)

    def values(self, question: Question) -> AbstractContextManager[DuckDBValues]:
        """Yield the values of a column that nobody declared, with the people who have them."""
        return self.table.values(question)

    def close(self) -> None:
        """Free the rows, if they were read."""
        if self._table is not None:
            self._table.close()


@dataclass
class DuckDBValues:
    """The values of a column with the people who have them, in a cursor's table `spread`."""

    cursor: duckdb.DuckDBPyConnection = field(repr=False)
    # Kind of the values.
    kind: str
    # The persons' numbers in the table `people`, in the order of `people`.
    _numbers: Integers | None = field(default=None, init=False, repr=False)

    def people(self) -> tuple[scan.Texts, Integers]:
        """Return everybody who has a value, and how many values each has, of those that count."""
        found = self.cursor.sql(
            "SELECT people.person AS id, max(k) AS k, number FROM spread "
            "JOIN people ON spread.person = number GROUP BY id, number ORDER BY id"
        ).to_arrow_table()
        self._numbers = found.column("number").to_numpy()
        return found.column("id"), found.column("k").to_numpy().astype(np.int64)

    def weights(self, paid: Mask | None, steps: Integers) -> list[tuple[str | float, int]]:
        """Return each value and its weight, over those of `people` who paid (None: over all).

        Args:
            paid: Who has paid.
            steps: What each of `people` adds to each of their values.
        """
        import pyarrow as pa

        assert self._numbers is not None
        admitted = np.ones(len(steps), dtype=bool) if paid is None else paid
        columns = {"person": self._numbers[admitted], "steps": steps[admitted]}
        self.cursor.register("admitted", pa.table(columns))
        # Whole numbers of 128 bits: the sum is exact, in whatever order.
        query = (
            "SELECT v, sum(steps) FROM spread JOIN admitted USING (person) GROUP BY v ORDER BY v"
        )
        return [
            (show_value(value, self.kind), int(weight))
            for value, weight in self.cursor.execute(query).fetchall()
        ]


@dataclass
class DuckDBContributions:
    """What everybody adds to one query's sums, in a cursor's table `contributions`."""

    cursor: duckdb.DuckDBPyConnection = field(repr=False)
    # Sums in each cell.
    width: int
    # SQL for the table `contributions`, which is made when it is first needed.
    sql: str = field(repr=False)
    # SQL for the sums over everybody in one scan, which needs no such table; None where it does.
    cells: str | None = field(repr=False)
    # SQL for each row's cell, where each row adds 1; None where a person's rows belong together.
    places: str | None = field(repr=False)
    _is_made: bool = field(default=False, init=False, repr=False)
    # The persons' numbers in the table `people`, in the order of `norms`.
    _numbers: Integers | None = field(default=None, init=False, repr=False)

    def norms(self, power: int) -> tuple[scan.Texts, Floats]:
        """Return every contributing person's id and ℓ1 or ℓ2 norm in grid steps, rounded up."""
        import pyarrow as pa

        self._make()
        powers = scan.powers_sql(self.width, power, DUCKDB)
        result = self.cursor.sql(
            f"SELECT people.person AS id, high, low, number FROM "
            f"({powers}) AS s JOIN people ON s.person = number "
            "ORDER BY id"
        )
        # Empty arrays of the right types stand for a table without rows.
        ids = [pa.array([], pa.string())]
        norms = [np.zeros(0)]
        numbers = [np.zeros(0, np.int64)]
        for batch in _read_batches(result):
            ids.append(batch.column("id"))
            norms.append(scan.compute_norms(batch, power))
            numbers.append(batch.column("number").to_numpy())
        self._numbers = np.concatenate(numbers)
        return pa.chunked_array(ids), np.concatenate(norms)

    def totals(self, paid: Mask | None) -> scan.Sums:
        """Return the sums of each cell, over those of `norms` who paid (None: over all)."""
        # The quick way looks at rows once and at nobody by themselves: it is open where nobody has
        # to pay.
        if paid is None and self.cells is not None and not self._is_made:
            return scan.collect_totals(self.cursor.execute(self.cells).fetchall())
        self._make()
        self._join_admitted(paid)
        sql = scan.totals_sql(self.width, everybody=paid is None)
        return scan.collect_totals(self.cursor.execute(sql).fetchall())

    def count_rows(self, paid: Mask | None, cells: int) -> scan.CellCounts:
        """Return the cells that have rows, in order, and how many, of those of `norms` who paid."""
        if paid is None and self.places is not None and cells <= _DENSE:
            counts = np.zeros(cells, np.int64)
            for batch in _read_batches(self.cursor.sql(self.places)):
                counts += np.bincount(batch.column("cell").to_numpy(), minlength=cells)
            occupied = np.flatnonzero(counts)
            return occupied, counts[occupied]
        self._make()
        join = self._join_admitted(paid)
        found = self.cursor.execute(
            f"SELECT cell, CAST(sum(k0) AS BIGINT) AS rows FROM contributions {join} "
            "GROUP BY cell ORDER BY cell"
        ).fetchnumpy()
        return np.asarray(found["cell"], np.int64), np.asarray(found["rows"], np.int64)

    def _join_admitted(self, paid: Mask | None) -> str:
        """Return SQL that leaves those who paid."""
        # `paid` goes by the order of `norms`, which were asked for before.
        if paid is None or self._numbers is None:
            return ""
        import pyarrow as pa

        numbers = pa.array(self._numbers[paid], pa.int64())
        self.cursor.register("admitted", pa.table({"person": numbers}))
        return "SEMI JOIN admitted USING (person)"

    def _make(self) -> None:
        """Make the table `contributions`, once."""
        if not self._is_made:
            self.cursor.execute(f"CREATE OR REPLACE TEMP TABLE contributions AS {self.sql}")
            self._is_made = True


def register(
    source: object,
    schema: Schema,
    *,
    log: Log = discard_message,
    fingerprint: str | None = None,
    memory: int | None = None,
    dialect: Dialect = PLAIN,
    folder: str | Path | None = None,
) -> Table:
    """Return the table that questions are asked of: `source`, whose declared columns are read once.

    Args:
        source: The path of one Parquet or CSV file, or of a folder of Parquet files (folders
            `key=value` in it are columns of text); "FILE::TABLE" of a DuckDB or SQLite file, or
            "postgresql://…::TABLE"; an Excel workbook, or "FILE.xlsx::SHEET"; a pandas, Arrow or
            Polars table, or a DuckDB relation.
        schema: What is declared about it.
        log: Called with each line of the steward's log, which speaks of rows: not for analysts.
        fingerprint: Refuse a source with another one.
        memory: How many bytes of rows are held in memory: 4 GiB by default, or four fifths of the
            machine's where that is less. The rest lies in a private folder of TMPDIR until the
            table is closed or gone, or the process ends.
        dialect: How a CSV file is written. The decimal mark of its numbers is the schema's.
        folder: A new folder in which to keep what was read, for its owner alone: the rows, the
            declarations and the steward's log. `Session` and `apiece query` take the folder as a
            source, and read it at once.

    Raises:
        DataError: For a file that is not there, lacks a declared column, has another fingerprint or
            changes while it is read. Where the source itself cannot be read, the log has the
            reason.
        UnsupportedError: For a column of lists and the like.

    Guarantee:
        Each row is read from itself, its storage types, the header and `schema` alone. A cell that
        is not of the declared kind is missing; a row without a person's id (text of 1 to 128
        characters, none of them a control character) contributes nothing.

    Example:
        >>> import pandas as pd
        >>> from apiece.datasets import Numeric, Schema
        >>> from apiece.queries import register
        >>> people = pd.DataFrame({"id": ["ann", "bob"], "age": ["20", "?"]})
        >>> table = register(people, Schema({"age": Numeric(0, 100)}, person="id"), log=print)
        column 'age': 1 cells are not numeric
        registered: 2 rows of 2 people
    """
    if folder is not None:
        return _register_into(
            Path(folder),
            source,
            schema,
            log,
            {"fingerprint": fingerprint, "memory": memory, "dialect": dialect},
        )
    declarations = Declarations.from_schema(schema)
    declarations.require_person()
    memory = _MEMORY if memory is None else _check.count("memory", memory)
    reader = _choose_reader(source, declarations.read_columns, log, dialect)
    # The digest of a file is that of the bytes that were read: a reader raises at its end where the
    # file has changed meanwhile.
    with hide_rows(source, log), reader as (parts, digest):
        table = _build_table(parts, digest, declarations, log, memory)
    if fingerprint is not None and fingerprint.lower() != table.fingerprint:
        table.close()
        raise DataError(
            f"source {sources.shorten_name(source)}: not the table with this fingerprint; give "
            "that table"
        )
    return table


def _register_into(
    folder: Path, source: object, schema: Schema, log: Log, settings: Mapping[str, Any]
) -> Table:
    """Register a source, and keep what was read in a new folder; on failure none is left."""
    registration.make_folder(folder)
    # The log is written after the rows: until then the folder is to be empty, so that a failure can
    # take it away.
    messages: list[str] = []

    def log_both(message: str) -> None:
        messages.append(message)
        log(message)

    try:
        table = register(source, schema, log=log_both, **settings)
        digest = _store_rows(table, folder / registration.ROWS)
    # An interruption must leave no folder behind either.
    except BaseException:
        with suppress(OSError):
            folder.rmdir()
        raise
    registered = Registration(
        folder,
        source=sources.shorten_name(source).strip("'"),
        fingerprint=table.fingerprint,
        rows=digest,
        columns=schema.to_dict(),
        terms=table.declarations.terms,
    )
    _files.append(folder / registration.LOG, json.dumps("apiece query"), _files.STEWARD_LOG)
    for message in messages:
        registered.add_message(message)
    # The manifest comes last: with it the folder becomes a registered table.
    registered.write()
    return table


def _store_rows(table: Table, path: Path) -> str:
    """Write the rows of a table to a database file; return its SHA-256."""
    import duckdb

    # DuckDB writes a file by its name; it is made in this process's own room and copied, so that
    # what lies in the folder is whole or not there.
    scratch = reading.make_folder_name()
    scratch.mkdir(mode=0o700)
    unnamed = scratch / path.name
    orders = {"people": "number", "rows": "person, place"}
    with closing(duckdb.connect(str(unnamed))) as target:
        for name, order in orders.items():
            # Sorted, so that a person's rows lie together.
            result = table.database.cursor().sql(f"SELECT * FROM {name} ORDER BY {order}")
            target.register("incoming", _read_batches(result))
            target.execute(f"CREATE TABLE {name} AS SELECT * FROM incoming")
            target.unregister("incoming")
    digest = hashlib.sha256()
    with unnamed.open("rb") as stored, _files.writing(path, _ROWS) as file:
        while part := stored.read(_COPIED):
            digest.update(part)
            file.write(part)
    unnamed.unlink()
    return digest.hexdigest()


def _open_rows(registered: Registration, memory: int | None) -> duckdb.DuckDBPyConnection:
    """Return the database of a registered table's rows; raise `DataError` where it is another."""
    path = registered.folder / registration.ROWS
    with sources.open_file(path) as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    if digest != registered.rows:
        raise DataError(
            f"source {str(registered.folder)!r}: its rows are not those that were registered; run "
            "`apiece register` again, into a new folder"
        )
    limit = _MEMORY if memory is None else _check.count("memory", memory)
    return reading.connect(spill=reading.make_folder_name(), memory=limit, stored=path)


def _are_different(read: Json, registered: Json) -> bool:
    """Return whether declarations differ, as JSON has them."""
    return json.dumps(read, sort_keys=True) != json.dumps(registered, sort_keys=True)


def _read_batches(result: Any) -> Any:
    """Return a reader of a result's Arrow batches."""
    # DuckDB has renamed this method; newer releases have the first name.
    read = getattr(result, "to_arrow_reader", None) or result.fetch_arrow_reader
    return read(_BATCH)


def _choose_reader(
    source: object, wanted: Sequence[str], log: Log, dialect: Dialect
) -> AbstractContextManager[tuple[Iterator[sources.Columns], str]]:
    """Return what reads a source: a folder, a database file, a file or a table in memory."""
    if isinstance(source, (str, Path)):
        if stores.is_database(str(source)):
            refuse_text_settings(Path(source), dialect)
            return stores.read_database(str(source), wanted, log)
        if stores.is_server(str(source)):
            refuse_text_settings(Path(source), dialect)
            return stores.read_server(str(source), wanted, log)
        if stores.is_workbook(str(source)):
            refuse_text_settings(Path(source), dialect)
            return stores.read_workbook(str(source), wanted, log)
        if Path(source).is_dir():
            refuse_text_settings(Path(source), dialect)
            return stores.read_folder(Path(source), wanted, log)
    return sources.read_source(source, wanted, log, dialect)


@contextmanager
def hide_rows(source: object, log: Log) -> Iterator[None]:
    """Turn an error that may quote a row into one that does not; the steward's log has it all."""
    try:
        yield
    # Errors of apiece speak of declarations alone, and may go out.
    except (ApieceError, ModuleNotFoundError):
        raise
    # Any error of a reader's may quote a row.
    except Exception as error:
        log(f"source {sources.shorten_name(source)}: refused: {type(error).__name__}: {error}")
        raise DataError(
            f"source {sources.shorten_name(source)}: cannot be registered; the reason is in the "
            f"steward's log ({as_given('log', flag='--steward-log FILE')})"
        ) from None


def _build_table(
    parts: Iterator[sources.Columns], digest: str, declarations: Declarations, log: Log, memory: int
) -> Table:
    """Return the table of all parts of a source; `digest` is its file's, "" in memory."""
    database = reading.connect(spill=reading.make_folder_name(), memory=memory)
    try:
        present = Counter[str]()
        hashes: list[str] = []
        joins = make_joins(declarations)
        for number, columns in enumerate(parts):
            # One part at a time: public cells are looked up, then each column becomes what its
            # kinds are read from, and each cell its value or NULL.
            joined = join_lookups(columns, joins, declarations)
            plain = reading.unpack_columns(joined, declarations)
            readings = reading.convert_columns(plain, declarations)
            present.update(reading.count_present(plain, declarations))
            reading.read_cells(database, readings, declarations, append=number > 0)
            if not digest:
                hashes.append(_hash_columns(readings))
        _number_people(database, declarations)
        _report_reading(database, declarations, log, present)
        # Rows without an id go with it: nothing that is asked can reach them.
        database.execute("DROP TABLE cells")
    except BaseException:
        database.close()
        raise
    if not digest:
        # What is no file has the digest of what was read of it, of several parts that of theirs.
        lines = "\n".join(hashes)
        digest = hashes[0] if len(hashes) == 1 else hashlib.sha256(lines.encode()).hexdigest()
    return Table(declarations, digest, database)


def _number_people(database: duckdb.DuckDBPyConnection, declarations: Declarations) -> None:
    """Make the tables `people` and `rows`: persons by number, the rows of each in their order."""
    names = ", ".join(reading.list_cells(declarations))
    # Numbered as they stream by, sorted: a window over all of them would be held at once.
    database.execute(
        "CREATE TABLE people AS SELECT person, row_number() OVER () - 1 AS number "
        "FROM (SELECT DISTINCT person FROM cells WHERE person IS NOT NULL ORDER BY person)"
    )
    database.execute(
        f"CREATE TABLE rows AS SELECT people.number AS person, {names}, row_number() OVER "
        f"(PARTITION BY person ORDER BY {reading.order_sql(declarations)}) AS place "
        "FROM cells JOIN people USING (person)"
    )


def _report_reading(
    database: duckdb.DuckDBPyConnection,
    declarations: Declarations,
    log: Log,
    present: Mapping[str, int],
) -> None:
    """Log how many rows were registered, and how many cells could not be read or are clamped."""
    reading.report_faults(reading.count_faults(database, declarations, present), log)
    ((rows, identified),) = database.execute("SELECT count(*), count(person) FROM cells").fetchall()
    if identified < rows:
        log(f"{rows - identified} rows have no id that can be one; left out")
    ((people,),) = database.execute("SELECT count(*) FROM people").fetchall()
    log(f"registered: {identified} rows of {people} people")


def _hash_columns(columns: sources.Columns) -> str:
    """Return the SHA-256 of columns, as Arrow writes them to a stream."""
    import pyarrow as pa

    sink = io.BytesIO()
    # How a column was cut into chunks must not change the digest.
    table = pa.table(dict(columns)).combine_chunks()
    with pa.ipc.new_stream(sink, table.schema) as stream:
        stream.write_table(table)
    return hashlib.sha256(sink.getvalue()).hexdigest()
