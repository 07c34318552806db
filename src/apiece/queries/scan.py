"""Scans: how a question is counted, in the SQL of an engine.

A scan is stable: a person's contributions are a function of that person's rows, the question and
the noise's grid. A condition, a group and a feature are functions of one row; which rows are kept,
and their sums, of one person's rows. Sums are of whole numbers, so their order does not matter, and
no expression can fail. The text is one for every engine, but for what its dialect says.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, Protocol, TypeAlias, runtime_checkable

import numpy as np

from apiece._types import Floats, Integers, Mask
from apiece.errors import UnsupportedError
from apiece.queries.declarations import Declarations
from apiece.queries.derived import View
from apiece.queries.expressions import Combined, Compare, Condition, Literal, Missing, Negated
from apiece.queries.quantiles import Grid
from apiece.queries.question import Bins, Measure, Question, list_moments, make_view

if TYPE_CHECKING:
    import pyarrow as pa

# SQL for what a row adds to a count.
ONE: Final = "1.0"
# Ids as Arrow text: a tenth of what Python's texts take.
Texts: TypeAlias = "pa.ChunkedArray"
# Cell → its sums, in grid steps.
Sums = dict[int, list[int]]
# Cells in order, and the rows in each.
CellCounts: TypeAlias = tuple[Integers, Integers]
# A sum of squares travels in two halves, sum // 2^53 and the remainder: both are exact as doubles.
_HALF: Final = 2**53
# Below it doubles have every whole number.
_DOUBLE: Final = 2**53
# What the arithmetic of a norm in doubles is off by at most, in proportion; norms are rounded up.
_NORM_SLACK: Final = 2.0**-40


@dataclass(frozen=True, slots=True)
class SqlDialect:
    """The parts of SQL that engines write differently."""

    # An engine is fit for a scan if, on the types that `reading` leaves, its doubles are those of
    # IEEE 754 with + − × ÷ floor and round (ties away from zero), its texts compare byte by byte,
    # and its whole numbers of 38 digits are exact. Tests compare DuckDB and Spark to the bit; for
    # an engine that cannot be tested here there is no dialect.

    # SQL for exactly a text.
    text: Callable[[str], str]
    # The type of whole numbers of 38 digits.
    wide: str
    # The sign of division without remainder.
    divided: str
    # SQL for one of several numbers, counted from 0.
    element: Callable[[Sequence[str], str], str]
    # Whether a sum of whole numbers of 64 bits is one of 38 digits, so that none need be cast.
    sums_are_wide: bool = False


def number_sql(value: float) -> str:
    """Return SQL for exactly this double, in every dialect."""
    return f"CAST('{value!r}' AS DOUBLE)"


def quote_text(value: str) -> str:
    """Return SQL for exactly this text where a quote is written twice and nothing else is."""
    return "'" + value.replace("'", "''") + "'"


def encode_text(value: str) -> str:
    """Return SQL for exactly this text by its bytes: where backslashes and quotes mean more."""
    return f"CAST(X'{value.encode().hex()}' AS STRING)"


# DuckDB counts the elements of a list from 1.
DUCKDB: Final = SqlDialect(
    text=quote_text,
    wide="HUGEINT",
    divided="//",
    element=lambda numbers, index: f"([{', '.join(numbers)}])[{index} + 1]",
    sums_are_wide=True,
)
# Spark takes backslashes in a quoted text for escapes.
SPARK: Final = SqlDialect(
    text=encode_text,
    wide="DECIMAL(38, 0)",
    divided="DIV",
    element=lambda numbers, index: f"array({', '.join(numbers)})[CAST({index} AS INT)]",
)


@dataclass(frozen=True, slots=True)
class ClampedColumn:
    """A measure as SQL over the registered table, in which its column is called `stored`."""

    measure: Measure
    stored: str

    @property
    def clamped_sql(self) -> str:
        """SQL for the clamped value; null for a null."""
        low = number_sql(self.measure.low)
        high = number_sql(self.measure.high)
        # Engines are twice as quick at it as at `least` and `greatest`.
        return (
            f"(CASE WHEN {self.stored} < {low} THEN {low} WHEN {self.stored} > {high} THEN {high} "
            f"ELSE {self.stored} END)"
        )

    @property
    def scaled_sql(self) -> str:
        """SQL for the clamped value, scaled to [−1, 1]."""
        measure = self.measure
        middle = number_sql(measure.middle)
        half = number_sql(measure.half)
        scaled = f"({self.clamped_sql} - {middle}) / {half}"
        # Rounded differences and quotients are monotone, so that a bound has the extreme one.
        lowest = (measure.low - measure.middle) / measure.half
        highest = (measure.high - measure.middle) / measure.half
        is_within = lowest >= -1 and highest <= 1
        return scaled if is_within else f"least(greatest({scaled}, -1.0), 1.0)"

    def point_sql(self, grid: Grid) -> str:
        """Return SQL for the point of a grid within these bounds that is nearest to the value."""
        # The product may be off by a rounding, and so the point by one. That is still a function of
        # the row alone, which is all that privacy asks for; the clamp keeps it on the grid.
        lowest = number_sql(grid.value(0))
        scale = number_sql(10.0**-grid.exponent)
        steps = f"({self.clamped_sql} - {lowest}) * {scale}"
        return f"least(greatest(CAST(round({steps}) AS BIGINT), 0), {grid.size - 1})"

    def bin_sql(self, bins: Bins, dialect: SqlDialect) -> str:
        """Return SQL for the number of the bin that a row's clamped value lies in."""
        # A first guess by division, moved to the neighbour if the edges say so: the answer's edges
        # decide, and `Bins` has made sure that no guess is off by more than one.
        value = self.clamped_sql
        highest = len(bins) - 1
        low_bound = number_sql(self.measure.low)
        quotient = f"({value} - {low_bound}) / {number_sql(bins.width)}"
        guess = f"least(CAST(floor({quotient}) AS BIGINT), {highest})"
        edges = [number_sql(edge) for edge in bins.edges]
        low = dialect.element(edges, f"{guess} + 0")
        high = dialect.element(edges, f"{guess} + 1")
        move = f"CASE WHEN {value} < {low} THEN -1 WHEN {value} >= {high} THEN 1 ELSE 0 END"
        return f"least({guess} + {move}, {highest})"


@dataclass(frozen=True, slots=True)
class Scan:
    """How a question is counted: SQL over the columns of a registered table."""

    question: Question
    # The columns of the question's measures.
    columns: tuple[ClampedColumn, ...]
    # SQL: the row has all cells that are asked for.
    present: str
    # SQL: the table, with its derived columns if the question has some.
    table: str
    # The question's condition, over stored columns; None where `condition` has it.
    where: Condition | None
    # SQL for a condition that compares derived values.
    condition: str | None
    # SQL: the number of the row's combination of groups; None where nothing is grouped.
    group: str | None
    # SQL, in [−1, 1]: what a row that counts adds to each sum of its cell.
    addends: tuple[str, ...]

    @classmethod
    def from_question(cls, question: Question, declarations: Declarations) -> Scan:
        """Return the scan of a table for a question that its declarations have resolved."""
        query = question.query
        view = make_view(query, declarations)
        columns = tuple(
            ClampedColumn(measure, view.stored(measure.name, "numeric"))
            for measure in question.measures
        )
        # The cells that must be there. Values that are counted as distinct are groups of the scan,
        # in which a cell that is missing has no number.
        if question.is_distinct:
            cells = []
        elif query.aggregate == "count":
            cells = [view.stored(column, view.kind_of(column)) for column in query.columns]
        else:
            cells = [column.stored for column in columns]
        where = None
        condition = None
        table = "rows"
        # Plain questions read the stored columns as they are; derived ones a subquery that computes
        # each of their columns once.
        if view.derived or not is_plain(question.where):
            grouped = [column for column in question.scan_by if column in view.derived]
            table, condition = view.table_sql(grouped, question.where)
        elif question.where is not None:
            where = bind_columns(question.where, declarations)
        return cls(
            question=question,
            columns=columns,
            present=" AND ".join(f"({cell} IS NOT NULL)" for cell in cells) or "TRUE",
            table=table,
            where=where,
            condition=condition,
            group=_group_sql(question.scan_by, view),
            addends=_addends_sql(question, columns),
        )

    def cell_sql(self, dialect: SqlDialect) -> str:
        """Return SQL for the cell of its group to which a row adds."""
        if self.question.grid is not None:
            return self.columns[0].point_sql(self.question.grid)
        if self.question.bins is not None:
            return self.columns[0].bin_sql(self.question.bins, dialect)
        return "0"


def is_plain(condition: Condition | None) -> bool:
    """Return whether a condition compares declared columns with literals alone."""
    match condition:
        case Combined(_, parts):
            return all(map(is_plain, parts))
        case Negated(part):
            return is_plain(part)
    return condition is None or isinstance(condition, Compare | Missing)


def _group_sql(by: Sequence[str], view: View) -> str | None:
    """Return SQL for the number of a combination of groups, in the order of `Question.groups`."""
    # Numbers in mixed radix: the last column's number counts ones. Where a cell is of no declared
    # group its number is NULL, and so is the sum.
    group: str | None = None
    for column in by:
        number = view.stored_group(column)
        count = len(view.groups_of(column))
        group = f"({group} * {count} + {number})" if group else number
    return group


def _addends_sql(question: Question, columns: Sequence[ClampedColumn]) -> tuple[str, ...]:
    """Return SQL for what a row adds to each sum of its cell: numbers in [−1, 1]."""
    match question.query.aggregate:
        case "count" | "distinct" | "histogram" | "quantile" | "interval":
            return (ONE,)
        case "sum":
            (column,) = columns
            largest = number_sql(column.measure.largest)
            return (f"{column.clamped_sql} / {largest}",)
    scaled = {column.measure.name: f"({column.scaled_sql})" for column in columns}
    moments = list_moments(question.query)
    return tuple(" * ".join(scaled[name] for name in names) or ONE for names in moments)


def bind_columns(condition: Condition, declarations: Declarations) -> Condition:
    """Return a condition over the stored columns: no name of a user's enters SQL."""
    match condition:
        case Combined(word, parts):
            return Combined(word, tuple(bind_columns(part, declarations) for part in parts))
        case Negated(part):
            return Negated(bind_columns(part, declarations))
    assert isinstance(condition, Compare | Missing)
    kind = declarations.kind_of(condition.column)
    return replace(condition, column=declarations.stored(condition.column, kind))


def condition_sql(condition: Condition, dialect: SqlDialect = DUCKDB) -> str:
    """Return SQL for a condition over stored columns; it cannot fail on any row."""
    match condition:
        case Combined(word, parts):
            conditions = [condition_sql(part, dialect) for part in parts]
            return f"({f' {word.upper()} '.join(conditions)})"
        case Negated(part):
            return f"(NOT {condition_sql(part, dialect)})"
        case Missing(column):
            return f"({column} IS NULL)"
        case Compare(column, sign, literals):
            values = ", ".join(_literal_sql(value, dialect) for value in literals)
            right = f"({values})" if sign == "in" else values
            return f"({column} {sign.upper()} {right})"
    raise AssertionError("derived values are compared by `View.table_sql`")


def _literal_sql(value: Literal, dialect: SqlDialect) -> str:
    """Return SQL for a literal: a text, a whole number of microseconds or a double."""
    if isinstance(value, str):
        return dialect.text(value)
    return str(value) if isinstance(value, int) else number_sql(value)


class Contributions(Protocol):
    """What everybody adds to one query's sums, held by an engine while the query is answered."""

    def norms(self, power: int) -> tuple[Texts, Floats]:
        """Return every contributing person's id and ℓ1 or ℓ2 norm in grid steps, rounded up."""
        # By the bytes of the id, so that a charge that is repeated after a crash is the same one.
        ...

    def totals(self, paid: Mask | None) -> Sums:
        """Return the sums of each cell, over those of `norms` who paid (None: over all)."""
        ...


@runtime_checkable
class RankedContributions(Protocol):
    """Contributions of an engine that counts the rows of many cells at once."""

    def count_rows(self, paid: Mask | None, cells: int) -> CellCounts:
        """Return the cells that have rows, in order, and how many, of those who paid.

        Args:
            paid: Who paid, as for `totals`.
            cells: How many cells there are.
        """
        ...


@runtime_checkable
class Registered(Protocol):
    """A table that some engine has registered; another fingerprint is another table."""

    @property
    def declarations(self) -> Declarations:
        """The declarations that it was registered with."""
        ...

    @property
    def fingerprint(self) -> str:
        """The digest of what was read."""
        ...

    def contributions(
        self, question: Question, grid: float
    ) -> AbstractContextManager[Contributions]:
        """Hold everybody's contributions to a question, in whole steps of the grid."""
        ...


def contributions_sql(
    scan: Scan, grid: float, dialect: SqlDialect, *, most: int | None = None
) -> str:
    """Return SQL for person, cell and whole grid steps, one row a pair, over the table `rows`.

    `grid` is a step of the noise's grid, in units of the features; `most` the most rows of a person
    in the table, where that is known.
    """
    question = scan.question
    if scan.table != "rows" and dialect is not DUCKDB:
        raise UnsupportedError(
            "query: derived columns are computed by duckdb alone; leave out --engine, or ask "
            "without arithmetic"
        )
    steps = ", ".join(f"{_step_sql(addend, grid)} AS k{i}" for i, addend in enumerate(scan.addends))
    cell = _cell_sql(scan, dialect)
    if has_no_surplus(question, most):
        source, cell = _counted_sql(scan, dialect)
        rows = f"SELECT person, {steps}, {cell} AS cell FROM {source}"
        return f"WITH row_steps AS ({rows}) {_pairs_sql(scan, dialect)}"
    # `place` orders a person's rows by their content, so that which of them count is a function of
    # that person's rows alone.
    return f"""
        WITH numbered_rows AS (
            SELECT *, row_number() OVER (PARTITION BY person ORDER BY place) AS nth
            FROM ({_first_rows_sql(scan, dialect)}) AS matching_rows
        ), bounded_rows AS (SELECT * FROM numbered_rows WHERE nth <= {question.rows}),
        row_steps AS (SELECT person, {steps}, {cell} AS cell FROM bounded_rows)
        {_pairs_sql(scan, dialect)}
        """


def has_no_surplus(question: Question, most: int | None) -> bool:
    """Return whether all that anybody brings counts, `most` being the most rows of a person.

    Then those that count need not be chosen. A person who is counted once in each of their groups
    cannot be in more of them than there are.
    """
    if most is None:
        return False
    brought = most
    if question.persons:
        brought = min(most, len(question.groups) * question.values)
    return brought <= question.rows


def cells_sql(scan: Scan, grid: float, dialect: SqlDialect, *, most: int, rows: int) -> str | None:
    """Return SQL for the sums of each cell over everybody, in one scan of the table.

    It is None where the rows of each person have to be looked at together. `rows` is the number of
    rows of the table; the other arguments are those of `contributions_sql`.
    """
    if not (dialect.sums_are_wide and has_no_surplus(scan.question, most)):
        return None
    # A row adds at most 1/grid steps and half a step. Whole numbers whose sizes add up to less than
    # 2^53 have exact sums as doubles, in any order.
    is_exact = rows * (1 / grid + 1) < _DOUBLE
    sums = []
    for i, addend in enumerate(scan.addends):
        step = _step_sql(addend, grid)
        if addend == ONE:
            # What is the same of every row is counted.
            total = f"count(*) * CAST({step} AS {dialect.wide})"
        elif is_exact:
            total = f"CAST(sum({_round_sql(addend, grid)}) AS {dialect.wide})"
        else:
            total = f"sum({step})"
        sums.append(f"{total} AS k{i}")
    source = f"({_matching_sql(scan, dialect)}) AS matching_rows"
    cell = _cell_sql(scan, dialect)
    if not _adds_every_row(scan.question, most):
        source, cell = _counted_sql(scan, dialect)
    # One cell needs no groups; without rows it has no sum.
    is_single = scan.group is None and scan.question.cell_count == 1
    if is_single:
        return f"SELECT 0 AS cell, {', '.join(sums)} FROM {source} HAVING count(*) > 0"
    return f"SELECT {cell} AS cell, {', '.join(sums)} FROM {source} GROUP BY cell"


def places_sql(scan: Scan, dialect: SqlDialect, most: int) -> str | None:
    """Return SQL for the cell of each row that counts, where each adds 1 to its cell alone.

    It is None where the rows of each person have to be looked at together.
    """
    if scan.addends != (ONE,) or not _adds_every_row(scan.question, most):
        return None
    return (
        f"SELECT CAST({_cell_sql(scan, dialect)} AS BIGINT) AS cell "
        f"FROM ({_matching_sql(scan, dialect)}) AS matching_rows"
    )


def _adds_every_row(question: Question, most: int) -> bool:
    """Return whether each row that matches is added, whoever's it is."""
    # Where persons are counted, a second row of somebody's may lie in the same group as the first.
    is_once = question.persons and most > 1
    return has_no_surplus(question, most) and not is_once


def _counted_sql(scan: Scan, dialect: SqlDialect) -> tuple[str, str]:
    """Return SQL for what counts where there is no surplus, and for its cell."""
    matching = f"({_matching_sql(scan, dialect)}) AS matching_rows"
    cell = _cell_sql(scan, dialect)
    if not scan.question.persons:
        return matching, cell
    # Of a person's rows in a group one counts, and all of them add the same.
    return f"(SELECT DISTINCT person, {cell} AS cell FROM {matching}) AS memberships", "cell"


def _cell_sql(scan: Scan, dialect: SqlDialect) -> str:
    """Return SQL for the number of a row's cell, over all groups."""
    base = "0" if scan.group is None else f"{scan.group} * {scan.question.cell_count}"
    return f"({base}) + {scan.cell_sql(dialect)}"


def _step_sql(addend: str, grid: float) -> str:
    """Return SQL for what a row adds, in whole steps of the grid."""
    # A feature is at most 1 in size and 1/grid at most 2^44, so a step is exact in 64 bits and no
    # sum, nor one of squares, leaves 38 digits.
    return f"CAST({_round_sql(addend, grid)} AS BIGINT)"


def _round_sql(addend: str, grid: float) -> str:
    """Return SQL for a whole number of the grid's steps, as a double."""
    return f"round(({addend}) / {number_sql(grid)})"


def _pairs_sql(scan: Scan, dialect: SqlDialect) -> str:
    """Return SQL for the sums of each person's cells over `row_steps`, the rows that count."""
    # The sums of a cell are called k0, k1, ….
    numbers = range(len(scan.addends))
    wide = dialect.wide
    pairs = ""
    if scan.question.rows == 1:
        # A person has one row, so there is nothing to add up.
        sums = ", ".join(f"CAST(k{i} AS {wide}) AS k{i}" for i in numbers)
    else:
        pairs = "GROUP BY person, cell"
        if dialect.sums_are_wide:
            sums = ", ".join(f"sum(k{i}) AS k{i}" for i in numbers)
        else:
            sums = ", ".join(f"CAST(sum(CAST(k{i} AS {wide})) AS {wide}) AS k{i}" for i in numbers)
    return f"SELECT person, CAST(cell AS BIGINT) AS cell, {sums} FROM row_steps {pairs}"


def _matching_sql(scan: Scan, dialect: SqlDialect) -> str:
    """Return SQL for the rows for which the question's condition holds, in its groups."""
    conditions = [f"({scan.present})"]
    if scan.where is not None:
        conditions.append(condition_sql(scan.where, dialect))
    if scan.condition is not None:
        conditions.append(scan.condition)
    if scan.group is not None:
        conditions.append(f"({scan.group} IS NOT NULL)")
    # Without the alias Spark would read "WHERE (TRUE)" as one.
    return f"SELECT * FROM {scan.table} AS all_rows WHERE {' AND '.join(conditions)}"


def _first_rows_sql(scan: Scan, dialect: SqlDialect) -> str:
    """Return SQL for the rows that match; where persons count, the first of each in each group."""
    matching = _matching_sql(scan, dialect)
    if not (scan.question.persons and scan.question.rows > 1):
        return matching
    return (
        "SELECT * FROM (SELECT *, row_number() OVER (PARTITION BY person, "
        f"{_cell_sql(scan, dialect)} ORDER BY place) AS occurrence "
        f"FROM ({matching}) AS matching_rows) AS occurrences WHERE occurrence = 1"
    )


def powers_sql(width: int, power: int, dialect: SqlDialect) -> str:
    """Return SQL for every contributing person and their sum of squares or sizes, in two halves."""
    # s is the sum of powers; its quotient by 2^53 and the remainder leave the database apart.
    wide = dialect.wide
    terms = [f"k{i} * k{i}" if power == 2 else f"abs(k{i})" for i in range(width)]
    high = f"CAST(s {dialect.divided} {_HALF} AS BIGINT)"
    return (
        f"SELECT person, {high} AS high, CAST(s - CAST({high} AS {wide}) * {_HALF} AS BIGINT) AS "
        f"low FROM (SELECT person, CAST(sum({' + '.join(terms)}) AS {wide}) AS s "
        "FROM contributions GROUP BY person) AS powers"
    )


def compute_norms(sums: pa.Table | pa.RecordBatch, power: int) -> Floats:
    """Return norms from an Arrow table or batch of sums of powers in two halves, rounded up."""
    high = sums.column("high").to_numpy().astype(np.float64)
    low = sums.column("low").to_numpy().astype(np.float64)
    # The few roundings of this line are far less than the slack.
    norms = (high * _HALF + low) ** (1 / power) * (1 + _NORM_SLACK)
    return np.asarray(norms, dtype=np.float64)


def totals_sql(width: int, *, everybody: bool) -> str:
    """Return SQL for the sums of each cell, over all or over the persons in `admitted`."""
    join = "" if everybody else "SEMI JOIN admitted USING (person)"
    sums = ", ".join(f"sum(k{i}) AS k{i}" for i in range(width))
    return f"SELECT cell, {sums} FROM contributions {join} GROUP BY cell"


def collect_totals(rows: Iterable[Sequence[int]]) -> Sums:
    """Return the sums, in grid steps, of each cell to which somebody adds anything."""
    return {int(cell): [int(value) for value in values] for cell, *values in rows}
