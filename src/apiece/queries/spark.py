"""Tables too large for one machine, registered with Spark; needs pyspark and Java.

Spark's workers read the rows with the very code that reads them here, and Spark keeps them, bounds
what each person adds, rounds it to the grid and sums whole numbers: only sums leave it, and with a
ledger everybody's id and norm, which the ledger charges. The noise is added here.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import sys
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from apiece import _files
from apiece._lazy import lacking
from apiece._types import Floats, Mask
from apiece.datasets.schema import Schema
from apiece.errors import DataError, InputError, UnsupportedError
from apiece.queries import reading, scan, sources
from apiece.queries.declarations import Declarations
from apiece.queries.question import Question
from apiece.queries.reading import Fault
from apiece.queries.scan import SPARK, Scan
from apiece.queries.sources import Log
from apiece.queries.table import discard_message, hide_rows

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

# Type of storage → its name in Spark, and in Arrow.
_SPARK_TYPES: Final = {"double": "DOUBLE", "text": "STRING", "whole": "BIGINT"}
_ARROW_TYPES: Final = {"double": "float64", "text": "string", "whole": "int64"}
Batches: TypeAlias = "Iterator[pa.RecordBatch]"
# A part of a source: a file, its size in bytes, the time of its last change, and a row group.
Part = tuple[str, int, int, int]


@dataclass(frozen=True)
class SparkTable:
    """A table registered with Spark, frozen in a folder. Its rows are data about people."""

    # The declarations.
    declarations: Declarations
    # SHA-256 of the file; of several, of their names and SHA-256s.
    fingerprint: str = field(repr=False)
    # The session that it was registered with.
    spark: SparkSession = field(repr=False)
    # Holds its rows, as Parquet.
    folder: Path = field(repr=False)

    @contextmanager
    def contributions(self, question: Question, grid: float) -> Iterator[SparkContributions]:
        """Yield everybody's contributions, in whole steps of the grid."""
        sql = scan.contributions_sql(Scan.from_question(question, self.declarations), grid, SPARK)
        # A session of its own: its views and settings are nobody else's.
        spark = self.spark.newSession()
        spark.read.parquet(str(self.folder)).createOrReplaceTempView("rows")
        rows = spark.sql(sql)
        rows.createOrReplaceTempView("contributions")
        try:
            yield SparkContributions(spark, rows, question.feature_count)
        finally:
            rows.unpersist()


@dataclass
class SparkContributions:
    """What everybody adds to one query's sums, as a view of a session."""

    # What a lost executor held is computed again from the frozen rows, with the same outcome.

    spark: SparkSession = field(repr=False)
    # Person, cell and grid steps.
    rows: DataFrame = field(repr=False)
    # Sums in each cell.
    width: int
    # The ids, in the order of `norms`.
    _people: scan.Texts = field(default=None, init=False, repr=False)

    def norms(self, power: int) -> tuple[scan.Texts, Floats]:
        """Return every contributing person's id and ℓ1 or ℓ2 norm in grid steps, rounded up."""
        # The norms and then the sums are read from it: computed once, kept until the question is
        # answered.
        self.rows.persist()
        sql = scan.powers_sql(self.width, power, SPARK)
        powers = self.spark.sql(f"SELECT * FROM ({sql}) AS powers ORDER BY person").toArrow()
        self._people = powers.column("person")
        return self._people, scan.compute_norms(powers, power)

    def totals(self, paid: Mask | None) -> scan.Sums:
        """Return the sums of each cell, over those of `norms` who paid (None: over all)."""
        if paid is not None:
            import pyarrow as pa

            people = self._people.filter(pa.array(paid))
            admitted = pa.table({"person": people})
            self.spark.createDataFrame(admitted).createOrReplaceTempView("admitted")
        sql = scan.totals_sql(self.width, everybody=paid is None)
        return scan.collect_totals(self.spark.sql(sql).collect())


def register_on_spark(
    source: str | os.PathLike[str],
    schema: Schema,
    *,
    spark: SparkSession,
    workspace: str | os.PathLike[str],
    log: Log = discard_message,
    fingerprint: str | None = None,
) -> SparkTable:
    """Return a table for a `Session`: `source`, read once by Spark's workers, frozen in a folder.

    Args:
        source: A Parquet file, or a folder of some with the same columns, that every machine sees.
        schema: What is declared about it.
        spark: A `SparkSession` (see `start_spark`). Its workers need apiece and DuckDB.
        workspace: A folder that every machine sees and only the steward may read; the rows are kept
            in a new folder in it, for as long as questions are asked.
        log: Called with each line of the steward's log, which speaks of rows: not for analysts.
        fingerprint: Refuse a source with another one.

    Raises:
        DataError: As `register`, and where the files differ in their columns or storage types.
        InputError: For a source that is not Parquet.
        UnsupportedError: For a column of lists and the like.

    Guarantee:
        What `register` guarantees, with which it agrees to the bit: the same contributions, norms
        and sums.

    Example:
        >>> from apiece.datasets import Schema
        >>> from apiece.queries.spark import register_on_spark, start_spark
        >>> from apiece.queries.spark import SparkTable
        >>> def registered(schema: Schema) -> SparkTable:
        ...     return register_on_spark(
        ...         "/shared/people", schema, spark=start_spark("local"), workspace="/shared/own"
        ...     )
    """
    declarations = Declarations.from_schema(schema)
    declarations.require_person()
    if declarations.lookups:
        raise UnsupportedError(
            "schema: lookup tables are joined by duckdb alone; leave out --engine, or the lookups"
        )
    with hide_rows(source, log):
        parts, rows = _list_parts(Path(source), declarations)
        digest = _hash_files(spark, parts)
        if fingerprint is not None and fingerprint.lower() != digest:
            raise DataError(
                f"source {sources.shorten_name(source)}: not the table with this fingerprint; give "
                "that"
            )
        # All refusals that need no row come before anything of the rows goes to a disk.
        folder = Path(workspace) / f"apiece-{uuid.uuid4()}"
        folder.mkdir(mode=0o700)
        faults = folder / "faults"
        faults.mkdir(mode=0o700)
        _freeze_rows(spark, parts, declarations, folder / "rows", faults)
        frozen = spark.read.parquet(str(folder / "rows"))
        identified = frozen.count()
        # Everybody has one first row.
        people = frozen.where("place = 1").count()
    reading.report_faults(_read_faults(faults), log)
    if identified < rows:
        log(f"{rows - identified} rows have no id that can be one; left out")
    log(f"registered: {identified} rows of {people} people")
    return SparkTable(declarations, digest, spark, folder / "rows")


def start_spark(master: str) -> SparkSession:
    """Return a Spark session without pages and logs, which could quote rows.

    On this machine its workers run the Python that runs this, unless PYSPARK_PYTHON names another.

    Args:
        master: "local[*]" for this machine, or a cluster's address, spark://host:port.

    Raises:
        UnsupportedError: Where pyspark or Java is not installed.

    Example:
        >>> from apiece.datasets import Schema
        >>> from apiece.queries.spark import register_on_spark, start_spark
        >>> from apiece.queries.spark import SparkTable
        >>> def registered(schema: Schema) -> SparkTable:
        ...     spark = start_spark("local[*]")
        ...     return register_on_spark("people.parquet", schema, spark=spark, workspace="own")
    """
    try:
        from pyspark.sql import SparkSession

        # Else its workers are the first python3 of the path.
        if master.startswith("local"):
            os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        logging.getLogger("SQLQueryContextLogger").setLevel(logging.CRITICAL + 1)
        builder = SparkSession.builder.master(master).appName("apiece")
        builder = builder.config("spark.ui.enabled", "false")
        builder = builder.config("spark.log.level", "OFF")
        has_terminal = str(sys.stderr.isatty()).lower()
        builder = builder.config("spark.ui.showConsoleProgress", has_terminal)
        return builder.getOrCreate()
    except ModuleNotFoundError as error:
        raise lacking(error.name, "spark") from None
    # Errors of pyspark, of the bridge to Java and of the system have no common class.
    except Exception as error:
        lines = str(error).splitlines()
        reason = lines[0] if lines else type(error).__name__
        raise UnsupportedError(
            f"spark {master!r}: cannot be started ({reason}); it needs Java 17 (Debian: "
            "default-jre-headless) and an address that answers"
        ) from None


def _list_parts(source: Path, declarations: Declarations) -> tuple[list[Part], int]:
    """Return the row groups of a source, and how many rows they have."""
    files = sorted(source.glob("*.parquet")) if source.is_dir() else [source]
    if not files or any(file.suffix.lower() != ".parquet" for file in files):
        raise InputError(
            f"source {sources.shorten_name(source)}: no Parquet file, and no folder of them"
        )
    parts: list[Part] = []
    total = 0
    first_layout = None
    for file in files:
        groups, empty, rows = sources.read_layout(file, declarations.columns)
        layout = empty.schema.remove_metadata()
        if first_layout is None:
            _check_storage(empty, declarations)
            first_layout = layout
        if not layout.equals(first_layout):
            raise DataError(
                f"source {sources.shorten_name(file)}: other columns than the first file's"
            )
        # The workers refuse a file that has another size or time when they come to read it.
        status = file.stat()
        state = status.st_size, status.st_mtime_ns
        parts.extend((str(file), *state, group) for group in range(groups))
        total += rows
    return parts, total


def _check_storage(empty: pa.Table, declarations: Declarations) -> None:
    """Raise `UnsupportedError` for a column that cannot be read, by its storage type alone."""
    columns = {name: empty.column(name) for name in declarations.columns}
    reading.convert_columns(reading.unpack_columns(columns, declarations), declarations)


def _hash_files(spark: SparkSession, parts: Sequence[Part]) -> str:
    """Return the SHA-256 of one file; of several, that of the lines "SHA-256  name"."""
    files = sorted({path for path, *_ in parts})

    def hash_file(path: str) -> str:
        with Path(path).open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()

    # The workers read the files, side by side; only digests come back.
    digests = spark.sparkContext.parallelize(files, len(files)).map(hash_file).collect()
    if len(files) == 1:
        return str(digests[0])
    names = [Path(file).name for file in files]
    lines = [f"{digest}  {name}\n" for digest, name in zip(digests, names, strict=True)]
    return hashlib.sha256("".join(lines).encode()).hexdigest()


def _freeze_rows(
    spark: SparkSession,
    parts: Sequence[Part],
    declarations: Declarations,
    folder: Path,
    faults: Path,
) -> None:
    """Write the rows, each read by itself, those of each person in their order."""
    columns = reading.list_types(declarations)
    names = ", ".join(columns)
    declared = ", ".join(f"{name} {_SPARK_TYPES[kind]}" for name, kind in columns.items())
    tasks = spark.createDataFrame(
        spark.sparkContext.parallelize(list(parts), len(parts)),
        "file STRING, size BIGINT, time BIGINT, part INT",
    )
    read_parts = _make_reader(declarations, faults)
    # A task is a row group, whose reading depends on no other.
    cells = tasks.mapInArrow(read_parts, f"person STRING, {declared}, tie BIGINT")
    # Views are shared by all who use the session: this one has a name that nobody has.
    view = f"cells_{uuid.uuid4().hex}"
    cells.createOrReplaceTempView(view)
    try:
        spark.sql(
            f"SELECT person, {names}, row_number() OVER (PARTITION BY person ORDER BY "
            f"{reading.order_sql(declarations)}) AS place FROM {view} WHERE person IS NOT NULL"
        ).write.parquet(str(folder))
    finally:
        spark.catalog.dropTempView(view)


def _make_reader(declarations: Declarations, faults: Path) -> Callable[[Batches], Batches]:
    """Return the function that a worker runs: row groups in, typed rows out.

    How many cells of a row group could not be read goes to a file of its own in the folder
    `faults`; a row group that is read again writes it again.
    """
    names = {"person": "text"} | reading.list_types(declarations) | {"tie": "whole"}

    def read_parts(batches: Batches) -> Batches:
        import pyarrow as pa

        types = {name: pa.type_for_alias(_ARROW_TYPES[kind]) for name, kind in names.items()}
        target = pa.schema(types)
        for batch in batches:
            for part in batch.to_pylist():
                table = _read_part(declarations, faults, part, list(names))
                yield from table.cast(target).to_batches()

    return read_parts


def _read_part(
    declarations: Declarations, faults: Path, part: Mapping[str, Any], names: Sequence[str]
) -> pa.Table:
    """Return the typed rows of one row group, and write the file of its faults."""
    state = part["size"], part["time"]
    columns = sources.read_row_group(Path(part["file"]), part["part"], declarations.columns, state)
    plain = reading.unpack_columns(columns, declarations)
    database = reading.connect(threads=1)
    reading.read_cells(database, reading.convert_columns(plain, declarations), declarations)
    counts = reading.count_faults(
        database, declarations, reading.count_present(plain, declarations)
    )
    _write_faults(faults, part, counts)
    table = database.sql(f"SELECT {', '.join(names)} FROM cells").to_arrow_table()
    database.close()
    return table


def _write_faults(folder: Path, part: Mapping[str, Any], counts: Counter[Fault]) -> None:
    """Write how many cells of a row group could not be read to its file in a folder."""
    address = f"{part['file']}\n{part['part']}"
    name = hashlib.sha256(address.encode()).hexdigest()
    entries = [[column, reason, count] for (column, reason), count in counts.items()]
    # Whole or not there, whichever of two tries of a task comes last.
    _files.write(folder / f"{name}.json", json.dumps(entries), _files.STATE)


def _read_faults(folder: Path) -> Counter[Fault]:
    """Return how many cells of all row groups could not be read, by column and reason."""
    total = Counter[Fault]()
    for path in sorted(folder.glob("*.json")):
        for column, reason, count in json.loads(path.read_text(encoding="utf-8")):
            total[column, reason] += count
    return total
