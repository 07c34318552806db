"""Questions: a query resolved against its schema, once, and the scan that answers it.

The scan is stable: a person's contributions are a function of that person's rows, the question and
the noise's grid. A condition, a group and a feature are functions of one row; which rows are kept,
and their sums, of one person's rows. Sums are of whole numbers, so their order does not matter, and
no expression can fail. The text is one for every engine, but for what its dialect says.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from decimal import Decimal
from fractions import Fraction
from itertools import combinations_with_replacement, product
from typing import TYPE_CHECKING, Final, Protocol, TypeAlias, runtime_checkable

import numpy as np

from apiece._types import Floats, Json, Mask
from apiece.errors import InputError, as_given, unknown
from apiece.queries.grammar import (
    Combined,
    Compare,
    Condition,
    Literal,
    Missing,
    Negated,
    ParsedQuery,
)
from apiece.queries.quantiles import Grid
from apiece.queries.schema import Schema
from apiece.tables import boolean_of, moment_of, number_of, text_of

if TYPE_CHECKING:
    import pyarrow as pa

Texts: TypeAlias = "pa.ChunkedArray"  # of text: a tenth of what Python's texts take
Sums = dict[int, list[int]]  # cell → sums in grid steps
# Of a histogram whose question names no number.
BINS: Final = 10
_HALF: Final = 2**53  # of a sum of squares, that both halves are exact as doubles
# Signs that put cells in an order, in which texts are compared letter by letter.
_ORDER: Final = ("<", "<=", ">", ">=")
_LIKE: Final = {
    "numeric": "a finite number, as in 18",
    "text": "a text in quotes, as in 'north'",
    "boolean": "'true' or 'false'",
    "date": "a date in quotes, as in '2024-01-31' or '2024-01-31 18:30'",
}


@dataclass(frozen=True, slots=True)
class Measure:
    """A column that is clamped to its declared bounds. stored: its name in the scanned table."""

    name: str
    stored: str
    low: float
    high: float

    @classmethod
    def of(cls, name: str, schema: Schema) -> Measure:
        """Return a column with the bounds that are declared of it."""
        low, high = schema.bounds_of(name)
        return cls(name, schema.stored(name, "numeric"), low, high)

    @property
    def middle(self) -> float:
        """Return what is scaled to 0."""
        return (self.low + self.high) / 2

    @property
    def half(self) -> float:
        """Return half the width of the bounds, which is scaled to 1."""
        return (self.high - self.low) / 2

    @property
    def largest(self) -> float:
        """Return the largest size of a clamped value."""
        return max(abs(self.low), abs(self.high))

    @property
    def clamped(self) -> str:
        """Return SQL for the clamped value."""
        return f"least(greatest({self.stored}, {number_sql(self.low)}), {number_sql(self.high)})"

    @property
    def scaled(self) -> str:
        """Return SQL for the clamped value, scaled to [−1, 1]."""
        middle, half = number_sql(self.middle), number_sql(self.half)
        return f"least(greatest(({self.clamped} - {middle}) / {half}, -1.0), 1.0)"

    def point(self, grid: Grid) -> str:
        """Return SQL for the point of a grid within these bounds that is nearest to the value."""
        least, scale = number_sql(grid.value(0)), number_sql(10.0**-grid.exponent)
        steps = f"({self.clamped} - {least}) * {scale}"
        return f"least(greatest(CAST(round({steps}) AS BIGINT), 0), {grid.size - 1})"


@dataclass(frozen=True, slots=True)
class Bins:
    """Bins between a column's bounds: closed on the left, the last one on both sides, as in numpy.

    Attributes:
        measure: The column.
        edges: Increasing; an answer returns these, and rows are compared with these.
    """

    measure: Measure
    edges: tuple[float, ...]

    @classmethod
    def between(cls, measure: Measure, count: int) -> Bins:
        """Return bins of equal width between a column's bounds.

        Raises:
            InputError: Where the bounds hold too few doubles for so many bins.
        """
        # An edge is the double that its decimals are written as: 0.3 and not 3 · 0.1. So a value
        # that is written like the edge lies on it.
        low, high = (Fraction(Decimal(repr(bound))) for bound in (measure.low, measure.high))
        width = (high - low) / count
        edges = tuple(float(low + number * width) for number in range(count + 1))
        bins = cls(measure, edges)
        if not bins._is_found():
            raise InputError(
                f"query: histogram of {measure.name!r} with {count} bins between {measure.low!r} "
                f"and {measure.high!r}: too near for numbers of 64 bits; give fewer bins or wider "
                "bounds"
            )
        return bins

    def __len__(self) -> int:
        return len(self.edges) - 1

    @property
    def _width(self) -> float:
        """Return a bin's width, from which the first guess of a value's bin is made."""
        return (self.measure.high - self.measure.low) / len(self)

    def _is_found(self) -> bool:
        """Return whether the edges increase and no value's first guess is off by more than one."""
        # A guess rises with the value, so in each bin its least and its greatest value show it.
        # These are the operations that engines do, on the same doubles.
        edges = np.array(self.edges)
        first = edges[:-1]
        last = np.nextafter(edges[1:], -np.inf)
        number = np.arange(len(self))
        least = np.floor((first - self.measure.low) / self._width)
        greatest = np.floor((last - self.measure.low) / self._width)
        found = (np.diff(edges) > 0) & (least >= number - 1) & (greatest <= number + 1)
        return bool(found.all())

    def sql(self, dialect: SqlDialect) -> str:
        """Return SQL for the number of the bin that a row's clamped value lies in."""
        value = self.measure.clamped
        places = f"({value} - {number_sql(self.measure.low)}) / {number_sql(self._width)}"
        guess = f"least(CAST(floor({places}) AS BIGINT), {len(self) - 1})"
        edges = [number_sql(edge) for edge in self.edges]
        low, high = (dialect.element(edges, f"{guess} + {more}") for more in (0, 1))
        moved = f"CASE WHEN {value} < {low} THEN -1 WHEN {value} >= {high} THEN 1 ELSE 0 END"
        return f"least({guess} + {moved}, {len(self) - 1})"


@dataclass(frozen=True, slots=True)
class Question:
    """A query over a table whose schema and source are known, as it is planned and charged."""

    query: ParsedQuery
    measures: tuple[Measure, ...]
    columns: tuple[str, ...]  # SQL, in [−1, 1]: what a row that counts adds to its cell
    size: int  # cells of a group
    bins: Bins | None  # of a histogram
    present: str  # SQL: the row has all numbers that are asked for
    where: Condition | None  # over stored columns, with literals of their kinds
    group: str | None  # SQL: the number of a row's declared group
    groups: tuple[Json, ...]  # column → declared value; one without any where nothing is grouped
    grid: Grid | None  # of what is drawn by the exponential mechanism
    persons: bool  # whether each counts once a cell
    rows: int  # of a person, that count at most
    terms: Json = field(repr=False)  # query, schema and source, as a ledger compares them

    @property
    def shape(self) -> tuple[int, int, int]:
        """Return of how many noisy sums the answer is made: (groups, cells, features)."""
        return len(self.groups), self.size, len(self.columns)

    @property
    def counted(self) -> str:
        """Return what the answer is of: "persons" where each counts once, or "rows"."""
        return "persons" if self.persons or self.rows == 1 else "rows"

    def cell_sql(self, dialect: SqlDialect) -> str:
        """Return SQL for the cell of its group to which a row adds."""
        if self.grid is not None:
            return self.measures[0].point(self.grid)
        return "0" if self.bins is None else self.bins.sql(dialect)

    def sensitivity(self, power: int) -> tuple[float, float]:
        """Return the largest ℓ1 or ℓ2 norm of what a person adds, as a + b·(a step of the grid).

        Args:
            power: 1 for the ℓ1 norm, which Laplace noise hides; 2 for the ℓ2 norm, which Gaussian
                noise hides.
        """
        # A row's features are at most 1 in size, all of them at once, and the first is always 1.
        # Each is rounded by at most half a step.
        row = len(self.columns) ** (1 / power)
        # A person's rows may all lie in one cell, where their norms add up. Where persons are
        # counted, each is in a cell of its own, and of k such rows the norm is k^(1/power).
        times = self.rows ** (1 / power) if self.persons else self.rows
        return times * row, times * row / 2


def resolve(query: ParsedQuery, schema: Schema, source: str = "") -> Question:
    """Return a query with what the schema declares of its columns; source: a fingerprint."""
    # Raises `DataError` for a column that is not declared as the query uses it, `InputError` for a
    # literal of another kind than its column's, and where the schema does not say how many rows a
    # person brings. None depends on a row.
    counts, persons = query.aggregate == "count", query.counted == "persons"
    kinds = [schema.kind_of(column) if counts else "numeric" for column in query.columns]
    measures = () if counts else tuple(Measure.of(column, schema) for column in query.columns)
    needed = [schema.stored(*each) for each in zip(query.columns, kinds, strict=True)]
    declared = product(*(schema.groups_of(column) for column in query.by))
    groups = tuple(dict(zip(query.by, values, strict=True)) for values in declared)
    rows = rows_of(query, schema)
    group = None
    for column in query.by:
        number = schema.stored_group(column)
        group = f"({group} * {len(schema.groups_of(column))} + {number})" if group else number
    grid = None
    if query.aggregate in ("quantile", "interval"):
        grid = Grid.between(measures[0].low, measures[0].high, len(groups), log=query.log)
    bins = None
    if query.aggregate == "histogram":
        bins = Bins.between(measures[0], int(query.numbers[0]) if query.numbers else BINS)
    size = grid.size if grid is not None else len(bins) if bins is not None else 1
    return Question(
        query=query,
        measures=measures,
        columns=_features(query, measures),
        size=size,
        bins=bins,
        present=" AND ".join(f"({name} IS NOT NULL)" for name in needed) or "TRUE",
        where=None if query.where is None else resolved(query.where, schema),
        group=group,
        groups=groups,
        grid=grid,
        persons=persons,
        rows=min(rows, len(groups)) if persons else rows,
        terms={"query": query.text, "schema": schema.terms, "source": source},
    )


def needs_rows(query: ParsedQuery) -> bool:
    """Return whether a question's noise depends on how many rows a person brings."""
    return query.counted != "persons" or bool(query.by)


def rows_of(query: ParsedQuery, schema: Schema) -> int:
    """Return how many rows of a person count at most; raise `InputError` where it is not said."""
    if not needs_rows(query):
        return 1
    if schema.rows_per_person is None:
        raise InputError(
            "rows_per_person: missing; say how many rows a person brings at most "
            f"({as_given('rows_per_person', 5)}): a public number, never one counted in the rows; "
            "count(persons) without by needs none"
        )
    return schema.rows_per_person


def _features(query: ParsedQuery, measures: tuple[Measure, ...]) -> tuple[str, ...]:
    """Return SQL for what a row adds to its cell: numbers in [−1, 1]."""
    match query.aggregate:
        case "count" | "histogram" | "quantile" | "interval":
            return ("1.0",)
        case "sum":
            return (f"{measures[0].clamped} / {number_sql(measures[0].largest)}",)
    scaled = {measure.name: measure.scaled for measure in measures}
    products = [[f"({scaled[column]})" for column in names] for names in moment_names(query)]
    return tuple(" * ".join(factors) or "1.0" for factors in products)


def moment_names(query: ParsedQuery) -> list[tuple[str, ...]]:
    """Return which products of columns the sums of an aggregate of moments are: 1 first."""
    columns = query.columns
    singles: list[tuple[str, ...]] = [(), *((c,) for c in columns)]
    match query.aggregate:
        case "mean":
            return singles
        case "variance":
            return [*singles, columns * 2]
        case "covariance":
            return [*singles, columns]
        case _:
            return [*singles, *combinations_with_replacement(columns, 2)]


def resolved(condition: Condition, schema: Schema) -> Condition:
    """Return a condition over stored columns, whose literals are of the declared kinds."""
    match condition:
        case Combined(word, parts):
            return Combined(word, tuple(resolved(part, schema) for part in parts))
        case Negated(part):
            return Negated(resolved(part, schema))
    column, kind = condition.column, schema.kind_of(condition.column)
    if isinstance(condition, Compare):
        named = column in schema.groups and kind == "text" and column not in schema.kinds
        literals = tuple(
            _declared(condition, value, schema) if named else _literal(column, kind, value)
            for value in condition.literals
        )
        condition = replace(condition, literals=literals)
    return replace(condition, column=schema.stored(column, kind))


def _declared(condition: Compare, value: Literal, schema: Schema) -> Literal:
    """Return a literal beside a column with declared values: the text of the one that it is."""
    column, declared = condition.column, schema.declared(condition.column)
    place = declared.position(value)
    numbers = any(number_of(each) is not None for each in declared.values)
    if isinstance(value, float) and (condition.sign in _ORDER or not numbers):
        return _literal(column, "text", value)
    if place < 0:
        raise unknown(f"value of {column!r}", value, [*map(str, declared.values)])
    return str(text_of(declared.values[place]))


def _literal(column: str, kind: str, value: Literal) -> Literal:
    match kind, value:
        case "numeric", float() if math.isfinite(value):
            return value
        case "text", str():
            return value
        case "date", str() if (moment := moment_of(value)) is not None:
            return moment
        case "boolean", (str() | float()) if (truth := boolean_of(value)) is not None:
            return float(truth)
    raise InputError(
        f"query: column {column!r} is declared {kind}, so it cannot be compared with {value!r}; "
        f"give {_LIKE[kind]}"
    )


@dataclass(frozen=True, slots=True)
class SqlDialect:
    """The parts of SQL that engines write differently."""

    # An engine is fit for a scan if, on the types that `reading` leaves, its doubles are those of
    # IEEE 754 with + − × ÷ floor and round (ties away from zero), its texts compare byte by byte,
    # and its whole numbers of 38 digits are exact. Tests compare DuckDB and Spark to the bit; for
    # an engine that cannot be tested here there is no dialect.

    text: Callable[[str], str]  # SQL for exactly a text
    wide: str  # the type of whole numbers of 38 digits
    divided: str  # the sign of division without remainder
    element: Callable[[Sequence[str], str], str]  # SQL for one of several numbers, counted from 0


def number_sql(value: float) -> str:
    """Return SQL for exactly this double, in every dialect."""
    return f"CAST('{value!r}' AS DOUBLE)"


def quoted(value: str) -> str:
    """Return SQL for exactly this text where a quote is written twice and nothing else is."""
    return "'" + value.replace("'", "''") + "'"


def coded(value: str) -> str:
    """Return SQL for exactly this text by its bytes: where backslashes and quotes mean more."""
    return f"CAST(X'{value.encode().hex()}' AS STRING)"


DUCKDB: Final = SqlDialect(
    quoted, "HUGEINT", "//", lambda numbers, place: f"([{', '.join(numbers)}])[{place} + 1]"
)
SPARK: Final = SqlDialect(
    coded,
    "DECIMAL(38, 0)",
    "DIV",
    lambda numbers, place: f"array({', '.join(numbers)})[CAST({place} AS INT)]",
)


def condition_sql(condition: Condition, dialect: SqlDialect = DUCKDB) -> str:
    """Return SQL for a resolved condition; it cannot fail on any row."""
    match condition:
        case Combined(word, parts):
            inner = f" {word.upper()} ".join(condition_sql(part, dialect) for part in parts)
            return f"({inner})"
        case Negated(part):
            return f"(NOT {condition_sql(part, dialect)})"
        case Missing(column):
            return f"({column} IS NULL)"
        case Compare(column, sign, literals):
            values = ", ".join(_literal_sql(value, dialect) for value in literals)
            right = f"({values})" if sign == "in" else values
            return f"({column} {sign.upper()} {right})"


def _literal_sql(value: Literal, dialect: SqlDialect) -> str:
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
class Registered(Protocol):
    """A table that some engine has registered; another fingerprint is another table."""

    @property
    def schema(self) -> Schema:
        """What was declared."""
        ...

    @property
    def fingerprint(self) -> str:
        """Return the digest of what was read."""
        ...

    def contributions(
        self, question: Question, grid: float
    ) -> AbstractContextManager[Contributions]:
        """Hold everybody's contributions to a question, in whole steps of the grid."""
        ...


def contributions_sql(question: Question, grid: float, dialect: SqlDialect) -> str:
    """Return SQL for person, cell and whole grid steps, one row a pair, over the table `rows`."""
    kept, base = [f"({question.present})"], "0"
    if question.where is not None:
        kept.append(condition_sql(question.where, dialect))
    if question.group is not None:
        kept.append(f"({question.group} IS NOT NULL)")
        base = f"{question.group} * {question.size}"
    width, wide = range(len(question.columns)), dialect.wide
    # A feature is at most 1 in size and 1/grid at most 2^44, so a step is exact in 64 bits and no
    # sum, nor one of squares, leaves 38 digits.
    steps = ", ".join(
        f"CAST(round(({sql}) / {number_sql(grid)}) AS BIGINT) AS k{i}"
        for i, sql in enumerate(question.columns)
    )
    cell = f"({base}) + {question.cell_sql(dialect)}"
    if question.rows == 1:  # there is nothing to add up
        sums, pairs = ", ".join(f"CAST(k{i} AS {wide}) AS k{i}" for i in width), ""
    else:
        sums = ", ".join(f"CAST(sum(CAST(k{i} AS {wide})) AS {wide}) AS k{i}" for i in width)
        pairs = "GROUP BY person, cell"
    # Without the alias Spark would read "WHERE (TRUE)" as one.
    given = f"SELECT * FROM rows AS given WHERE {' AND '.join(kept)}"
    if question.persons and question.rows > 1:  # the first row of each person in each cell
        given = (
            "SELECT * FROM (SELECT *, row_number() OVER (PARTITION BY person, "
            f"{base} ORDER BY place) AS again FROM ({given}) AS given) AS given WHERE again = 1"
        )
    return f"""
        WITH counted AS (
            SELECT *, row_number() OVER (PARTITION BY person ORDER BY place) AS nth
            FROM ({given}) AS given
        ), bounded AS (SELECT * FROM counted AS given WHERE nth <= {question.rows}),
        spread AS (SELECT person, {steps}, {cell} AS cell FROM bounded)
        SELECT person, CAST(cell AS BIGINT) AS cell, {sums} FROM spread {pairs}
        """


def powers_sql(width: int, power: int, dialect: SqlDialect) -> str:
    """Return SQL for every contributing person and their sum of squares or sizes, in two halves."""
    wide = dialect.wide
    powers = " + ".join(f"k{i} * k{i}" if power == 2 else f"abs(k{i})" for i in range(width))
    high = f"CAST(s {dialect.divided} {_HALF} AS BIGINT)"
    return (
        f"SELECT person, {high} AS high, CAST(s - CAST({high} AS {wide}) * {_HALF} AS BIGINT) AS "
        f"low FROM (SELECT person, CAST(sum({powers}) AS {wide}) AS s FROM contributions "
        "GROUP BY person) AS each"
    )


def norms(sums: pa.Table | pa.RecordBatch, power: int) -> Floats:
    """Return norms from an Arrow table or batch of sums of powers in two halves, rounded up."""
    high, low = (sums.column(name).to_numpy().astype(np.float64) for name in ("high", "low"))
    return np.asarray((high * _HALF + low) ** (1 / power) * (1 + 2.0**-40), dtype=np.float64)


def totals_sql(width: int, *, everybody: bool) -> str:
    """Return SQL for the sums of each cell, over all or over the persons in `admitted`."""
    join = "" if everybody else "SEMI JOIN admitted USING (person)"
    sums = ", ".join(f"sum(k{i}) AS k{i}" for i in range(width))
    return f"SELECT cell, {sums} FROM contributions {join} GROUP BY cell"


def totals(rows: Iterable[Sequence[int]]) -> Sums:
    """Return the sums, in grid steps, of each cell to which somebody adds anything."""
    return {int(cell): [int(value) for value in values] for cell, *values in rows}
