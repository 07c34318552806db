"""Questions: a query whose columns, literals and groups are those that are declared.

A question says what is counted, over which rows, and how much of it may be one person's. It has
no SQL in it: `scan` says how a question is counted. No part of it depends on a row.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from decimal import Decimal
from fractions import Fraction
from itertools import combinations_with_replacement, product
from typing import Final

import numpy as np

from apiece._types import Json
from apiece.errors import DataError, InputError, as_given, unknown
from apiece.queries.declarations import Declarations
from apiece.queries.derived import View, settle_call
from apiece.queries.expressions import (
    Call,
    Cell,
    Choice,
    Combined,
    Compare,
    Condition,
    Constant,
    Expression,
    Lacking,
    Literal,
    Matches,
    Missing,
    Negated,
    Relation,
)
from apiece.queries.grammar import ParsedQuery
from apiece.queries.quantiles import Grid
from apiece.tables.values import boolean_of, moment_of, number_of, text_of

# Bins of a histogram whose query names no number, as in numpy.
BINS: Final = 10
# Groups of a question, at most: they are listed in memory, each with its labels.
GROUPS: Final = 2**22
# Signs that put cells in an order, in which texts are compared letter by letter.
_ORDER: Final = ("<", "<=", ">", ">=")
# Kind of a column → what a literal beside it looks like, for messages.
_LITERAL_EXAMPLES: Final = {
    "numeric": "a finite number, as in 18",
    "text": "a text in quotes, as in 'north'",
    "boolean": "'true' or 'false'",
    "date": "a date in quotes, as in '2024-01-31' or '2024-01-31 18:30'",
}


@dataclass(frozen=True, slots=True)
class Measure:
    """A column that is clamped to its declared bounds, and scaled to [−1, 1]."""

    name: str
    low: float
    high: float

    @classmethod
    def from_view(cls, name: str, view: View) -> Measure:
        """Return a column with its bounds; raise `DataError` where it has none."""
        low, high = view.bounds_of(name)
        return cls(name, low, high)

    @property
    def middle(self) -> float:
        """The value that is scaled to 0."""
        return (self.low + self.high) / 2

    @property
    def half(self) -> float:
        """Half the width of the bounds, which is scaled to 1."""
        return (self.high - self.low) / 2

    @property
    def largest(self) -> float:
        """The largest size of a clamped value."""
        return max(abs(self.low), abs(self.high))


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
    def from_bounds(cls, measure: Measure, count: int) -> Bins:
        """Return bins of equal width between a column's bounds.

        Raises:
            InputError: Where the bounds hold too few doubles for so many bins.
        """
        # An edge is the double that its decimals are written as: 0.3 and not 3 · 0.1. So a value
        # that is written like the edge lies on it.
        low = Fraction(Decimal(repr(measure.low)))
        high = Fraction(Decimal(repr(measure.high)))
        width = (high - low) / count
        edges = tuple(float(low + number * width) for number in range(count + 1))
        bins = cls(measure, edges)
        if not bins._are_distinguishable():
            raise InputError(
                f"query: histogram of {measure.name!r} with {count} bins between {measure.low!r} "
                f"and {measure.high!r}: too near for numbers of 64 bits; give fewer bins or wider "
                "bounds"
            )
        return bins

    def __len__(self) -> int:
        return len(self.edges) - 1

    @property
    def width(self) -> float:
        """The width of a bin, by which a scan makes its first guess of a value's bin."""
        return (self.measure.high - self.measure.low) / len(self)

    def _are_distinguishable(self) -> bool:
        """Return whether the edges increase and no value's first guess is off by more than one."""
        # A guess rises with the value, so in each bin its least and its greatest value show it.
        # These are the operations that engines do, on the same doubles.
        edges = np.array(self.edges)
        lowest = edges[:-1]
        highest = np.nextafter(edges[1:], -np.inf)
        bins = np.arange(len(self))
        lowest_guess = np.floor((lowest - self.measure.low) / self.width)
        highest_guess = np.floor((highest - self.measure.low) / self.width)
        is_near = (lowest_guess >= bins - 1) & (highest_guess <= bins + 1)
        return bool(((np.diff(edges) > 0) & is_near).all())


@dataclass(frozen=True, slots=True)
class Question:
    """A query over a declared table of a known source: what is asked, and what it costs."""

    query: ParsedQuery
    # The columns whose values are added up or ranked, in the order of the query; a count has none.
    measures: tuple[Measure, ...]
    # The condition of a row, its literals of the kinds that the columns are declared as.
    where: Condition | None
    # Combinations of declared groups, each column → value; one without columns if none are grouped.
    groups: tuple[Json, ...]
    # Bins of a histogram.
    bins: Bins | None
    # Grid of an answer that the exponential mechanism draws.
    grid: Grid | None
    # Whether a person counts once in each group, whatever rows they bring.
    persons: bool
    # Rows of a person that count, at most; where persons are counted, groups.
    rows: int
    # Query, declarations and source, as a ledger compares them.
    terms: Json = field(repr=False)
    # Values of the column whose distinct values are counted; 1 for other questions.
    values: int = 1
    # The measures of each group, where bounds differ by group; sums are then of values that are
    # scaled by their own group's bounds.
    group_measures: tuple[tuple[Measure, ...], ...] = ()

    def take_group(self, number: int) -> Question:
        """Return the question with the bounds of one group."""
        if not self.group_measures:
            return self
        return replace(self, measures=self.group_measures[number])

    @property
    def widest(self) -> Question:
        """The question with the bounds of the group that has the widest."""
        is_sum = self.query.aggregate == "sum"
        sizes = [
            math.prod(m.largest if is_sum else m.half for m in measures)
            for measures in self.group_measures
        ]
        return self.take_group(int(np.argmax(sizes))) if sizes else self

    @property
    def cell_count(self) -> int:
        """The number of cells of a group: bins, points of a grid, or one."""
        if self.grid is not None:
            return self.grid.size
        return 1 if self.bins is None else len(self.bins)

    @property
    def is_distinct(self) -> bool:
        """Whether distinct values are counted: those that somebody has."""
        return self.query.aggregate == "distinct"

    @property
    def is_discovery(self) -> bool:
        """Whether values that nobody declared are to be found."""
        return self.query.aggregate == "discover"

    @property
    def scan_by(self) -> tuple[str, ...]:
        """The columns whose combinations are the groups of the scan."""
        return (*self.query.by, *self.query.columns) if self.is_distinct else self.query.by

    @property
    def feature_count(self) -> int:
        """The number of sums in each cell."""
        return len(list_moments(self.query)) if _has_moments(self.query) else 1

    @property
    def shape(self) -> tuple[int, int, int]:
        """The numbers of groups, of cells in each, and of noisy sums in each cell."""
        return len(self.groups), self.cell_count, self.feature_count

    @property
    def unit(self) -> str:
        """The unit of the answer: "persons" where each counts once, "rows", or "values"."""
        if self.is_distinct or self.is_discovery:
            return "values"
        return "persons" if self.persons or self.rows == 1 else "rows"

    def sensitivity(self, power: int) -> tuple[float, float]:
        """Return the largest norm of what a person adds, as (a, b) of a + b·(a step of the grid).

        Args:
            power: 1 for the ℓ1 norm, which Laplace noise hides; 2 for the ℓ2 norm, which Gaussian
                noise hides.
        """
        # A row's features are at most 1 in size, all of them at once, and the first is always 1.
        # Each is rounded by at most half a step.
        row_norm = self.feature_count ** (1 / power)
        # A person's rows may all lie in one cell, where their norms add up. Where persons are
        # counted, each is in a cell of its own, and of k such rows the norm is k^(1/power).
        # Of distinct values a person may be the only one who has each of theirs, in one group.
        is_spread = self.persons and not self.is_distinct
        multiple = self.rows ** (1 / power) if is_spread else self.rows
        return multiple * row_norm, multiple * row_norm / 2


def resolve(query: ParsedQuery, declarations: Declarations, source: str = "") -> Question:
    """Return the question that a query asks of a table; `source` is the table's fingerprint.

    Raises `DataError` for a column that is not declared as the query uses it, `InputError` for a
    literal of another kind than its column's, and where it is not declared how many rows a
    person brings.
    """
    # What SQL says in another way becomes what the scan knows: ids are persons, and a column whose
    # bounds differ by group is derived from its cells by CASE.
    check_joins(query, declarations)
    query = settle_query(query, declarations)
    bounds = _find_group_bounds(query, declarations)
    query = _scale_by_group(query, bounds, declarations)
    is_distinct = query.aggregate == "distinct"
    persons = query.counted == "persons" or is_distinct
    # Every column must be declared as the query uses it; a count only looks whether a cell is
    # there.
    view = make_view(query, declarations)
    measures: tuple[Measure, ...] = ()
    if query.aggregate in ("count", "discover"):
        for column in query.columns:
            view.kind_of(column)
    elif not is_distinct:
        measures = tuple(Measure.from_view(column, view) for column in query.columns)
    groups = _combine_groups(query, view)
    group_measures: tuple[tuple[Measure, ...], ...] = ()
    if bounds and _is_scaled(query):
        # What is added up lies in [−1, 1] in every group, whatever the bounds are.
        group_measures = tuple(
            tuple(
                bounds[m.name].find_measure(labels, m.name) if m.name in bounds else m
                for m in measures
            )
            for labels in groups
        )
        measures = tuple(Measure(m.name, -1, 1) if m.name in bounds else m for m in measures)
    # An empty product is 1: what is not distinct has one value a group.
    rows = count_rows(query, declarations)
    values = math.prod(len(view.groups_of(column)) for column in query.columns if is_distinct)
    if len(groups) * values > GROUPS:
        raise InputError(
            f"query: {len(groups) * values:,} values to be counted; give at most {GROUPS:,}"
        )
    # A group's cells: points of the grid that all groups share, bins, or a single one.
    grid = None
    if query.aggregate in ("quantile", "interval"):
        (measure,) = measures
        grid = Grid.from_bounds(measure.low, measure.high, len(groups), log=query.log)
    bins = None
    if query.aggregate == "histogram":
        (measure,) = measures
        count = int(query.numbers[0]) if query.numbers else BINS
        bins = Bins.from_bounds(measure, count)
    # A person who counts once in each group is in no more of them than there are.
    return Question(
        query=query,
        measures=measures,
        where=None if query.where is None else _bind_condition(query.where, view),
        groups=groups,
        bins=bins,
        grid=grid,
        persons=persons,
        rows=min(rows, len(groups) * values) if persons else rows,
        terms={"query": query.text, "schema": _describe_schema(view), "source": source},
        values=values,
        group_measures=group_measures,
    )


@dataclass(frozen=True, slots=True)
class _BoundsByGroup:
    """Bounds of a column that differ by the groups of another one."""

    by: str
    # Of groups that are not named.
    whole: tuple[float, float]
    # Texts of groups → low and high.
    members: dict[str, tuple[float, float]]
    # Low and high → groups, as literals.
    literals: dict[tuple[float, float], tuple[Literal, ...]]

    def find_measure(self, labels: Json, name: str) -> Measure:
        """Return the measure of a group; of one that is not named, with the column's own bounds."""
        return Measure(name, *self.members.get(str(text_of(labels[self.by])), self.whole))


def _find_group_bounds(query: ParsedQuery, declarations: Declarations) -> dict[str, _BoundsByGroup]:
    """Return the bounds of columns that differ by a column that the query is grouped by."""
    found: dict[str, _BoundsByGroup] = {}
    for column in dict.fromkeys(query.columns):
        # Only bounds of a stored column by a stored grouping column of this very query are of use:
        # elsewhere a row's group is not known, and the column's own bounds hold.
        by, members = declarations.group_bounds.get(column, ("", ()))
        if column in query.derived or by not in query.by or by in query.derived:
            continue
        declared = declarations.declared(by)
        ends_of_text: dict[str, tuple[float, float]] = {}
        literals: dict[tuple[float, float], tuple[Literal, ...]] = {}
        for value, low, high in members:
            # A group in the spelling of the declaration, which is that of the labels.
            group = declared.values[declared.position(value)]
            ends_of_text[str(text_of(group))] = (low, high)
            number = number_of(group)
            literal: Literal = str(text_of(group)) if number is None else float(number)
            literals[low, high] = (*literals.get((low, high), ()), literal)
        whole = declarations.bounds_of(column)
        found[column] = _BoundsByGroup(by, whole, ends_of_text, literals)
    return found


def _is_scaled(query: ParsedQuery) -> bool:
    """Return whether bounds of groups scale what is added up; else they only clamp it."""
    return query.aggregate == "sum" or _has_moments(query)


def _scale_by_group(
    query: ParsedQuery, bounds: Mapping[str, _BoundsByGroup], declarations: Declarations
) -> ParsedQuery:
    """Return a query of columns that are clamped, and maybe scaled, by their group's bounds."""
    if not bounds or query.aggregate in ("count", "distinct", "discover"):
        return query
    derived = dict(query.derived)
    # CASE WHEN group IN (…) THEN adapted by its bounds … ELSE adapted by the column's own END, a
    # branch for each pair of bounds.
    for column, own in bounds.items():

        def adapt(ends: tuple[float, float], column: str = column) -> Expression:
            # The column is bound as a default, since a closure would see the loop's last one.
            measure = Measure(column, *ends)
            clamped = Call("clamp", (Cell(column), *map(_make_constant, ends)))
            if not _is_scaled(query):
                return clamped
            # The same scalings as those of `scan`, whose own then change nothing: the bounds of
            # what is derived are −1 and 1.
            # A sum of scaled values is multiplied by what they were divided by.
            if query.aggregate == "sum":
                return Call("/", (clamped, _make_constant(measure.largest)))
            shifted = Call("-", (clamped, _make_constant(measure.middle)))
            return Call("/", (shifted, _make_constant(measure.half)))

        branches = tuple(
            (Compare(own.by, "in", literals), adapt(ends))
            for ends, literals in own.literals.items()
        )
        choice = Choice(branches, adapt(own.whole))
        derived[column] = bind_expression(choice, declarations)
    return replace(query, derived=derived)


def _make_constant(value: float) -> Constant:
    return Constant(value, "numeric")


def check_joins(query: ParsedQuery, declarations: Declarations) -> None:
    """Raise `DataError` for a join with a table that is not declared, or not by these columns."""
    for join in query.joins:
        lookup = declarations.lookups.get(join.table)
        if lookup is None:
            raise DataError(
                f"query: JOIN {join.table}: no declared lookup table; declare the public table, as "
                "in "
                + as_given(
                    f"schema.declare(lookups={{{join.table!r}: Lookup('{join.table}.csv', "
                    f"{join.key!r})}})",
                    flag=f"--lookup {join.table}={join.table}.csv::{join.key}",
                )
            )
        if (join.on, join.key) != (lookup.on, lookup.key):
            raise DataError(
                f"query: JOIN {join.table} by {join.on} = {join.key}: it is declared by "
                f"{lookup.on} = {lookup.key}; join it by these"
            )


def settle_query(query: ParsedQuery, declarations: Declarations) -> ParsedQuery:
    """Return a query in which distinct ids are persons."""
    is_id = query.columns == (declarations.person,) and query.aggregate == "distinct"
    if not is_id:
        return query
    return replace(query, aggregate="count", columns=(), counted="persons")


def make_view(query: ParsedQuery, declarations: Declarations) -> View:
    """Return the declared columns with those that a query derives, their literals bound."""
    derived = {
        name: bind_expression(expression, declarations)
        for name, expression in query.derived.items()
    }
    # SQL calculates with booleans, as avg(is_member) does, though they have neither declared bounds
    # nor groups.
    if query.is_sql:
        # A boolean's bounds and groups are the same for everybody.
        columns = [*query.columns, *query.by]
        plain = [name for name in columns if name not in derived]
        derived |= {name: Cell(name) for name in plain if _is_bare_boolean(name, declarations)}
    return View(declarations, derived)


def _is_bare_boolean(column: str, declarations: Declarations) -> bool:
    """Return whether a column is a boolean without declared groups."""
    return declarations.kinds.get(column) == "boolean" and column not in declarations.groups


def _bind_condition(condition: Condition, view: View) -> Condition:
    """Return a condition with its literals bound, of values that can be compared."""
    bound = bind_literals(condition, view.declarations)
    view.check_condition(bound)
    return bound


def _describe_schema(view: View) -> Json:
    """Return the declarations as a ledger compares them, with the bounds of dates if need be."""
    terms = view.declarations.terms
    if view.derived and view.declarations.periods:
        terms["periods"] = {name: list(ends) for name, ends in view.declarations.periods.items()}
    return terms


def _combine_groups(query: ParsedQuery, view: View) -> tuple[Json, ...]:
    """Return every combination of the groups, the last column's the fastest to change."""
    # The count is checked before the product is formed, which could outgrow the memory.
    values = [view.groups_of(column) for column in query.by]
    count = math.prod(map(len, values))
    if count > GROUPS:
        raise InputError(
            f"query: {count:,} groups; give at most {GROUPS:,}, by fewer columns or wider bands"
        )
    combinations = product(*values)
    return tuple(dict(zip(query.by, values, strict=True)) for values in combinations)


def needs_rows(query: ParsedQuery) -> bool:
    """Return whether a question's noise depends on how many rows a person brings."""
    return query.counted != "persons" or bool(query.by) or query.aggregate == "distinct"


def count_rows(query: ParsedQuery, declarations: Declarations) -> int:
    """Return how many rows of a person count at most; raise `InputError` where it is not said."""
    if not needs_rows(query):
        return 1
    if declarations.rows_per_person is None:
        raise InputError(
            "rows_per_person: missing; say how many rows a person brings at most "
            f"({as_given('rows_per_person', 5)}): a public number, never one counted in the rows; "
            "count(persons) without by needs none"
        )
    return declarations.rows_per_person


def _has_moments(query: ParsedQuery) -> bool:
    """Return whether the answer is made from sums of products of columns."""
    return query.aggregate in MOMENTS


# Aggregates that are made from sums of products of columns.
MOMENTS: Final = (
    "mean",
    "variance",
    "sample_variance",
    "deviation",
    "sample_deviation",
    "covariance",
    "sample_covariance",
    "correlation",
    "regression",
)
# Of these the ones of a column and its squares, and of a product of two columns.
SPREADS: Final = ("variance", "sample_variance", "deviation", "sample_deviation")
COVARIANCES: Final = ("covariance", "sample_covariance")


def list_moments(query: ParsedQuery) -> list[tuple[str, ...]]:
    """Return which products of columns the sums of an aggregate of moments are: 1 first."""
    columns = query.columns
    # 1 and each column; then x² of a spread, x·y of a covariance, and of a correlation or
    # regression the products of all pairs, squares among them.
    singles: list[tuple[str, ...]] = [()]
    singles += [(column,) for column in columns]
    if query.aggregate == "mean":
        return singles
    if query.aggregate in SPREADS:
        return [*singles, columns * 2]
    if query.aggregate in COVARIANCES:
        return [*singles, columns]
    return [*singles, *combinations_with_replacement(columns, 2)]


def bind_literals(condition: Condition, declarations: Declarations) -> Condition:
    """Return a condition whose literals are of the kinds that its columns are declared as."""
    match condition:
        case Combined(word, parts):
            return Combined(word, tuple(bind_literals(part, declarations) for part in parts))
        case Negated(part):
            return Negated(bind_literals(part, declarations))
        case Relation(left, sign, right):
            return Relation(
                bind_expression(left, declarations), sign, bind_expression(right, declarations)
            )
        case Lacking(expression):
            return Lacking(bind_expression(expression, declarations))
        case Matches(expression, pattern):
            return Matches(bind_expression(expression, declarations), pattern)
        case Missing(column):
            declarations.kind_of(column)
            return condition
    column = condition.column
    kind = declarations.kind_of(column)
    # A column of categories is compared by what its declared values are, any other by its kind.
    has_groups = (
        column in declarations.groups and kind == "text" and column not in declarations.kinds
    )
    if has_groups:
        literals = _bind_to_groups(condition, declarations)
    else:
        literals = [_bind_literal(column, kind, value) for value in condition.literals]
    return replace(condition, literals=tuple(literals))


def bind_expression(expression: Expression, declarations: Declarations) -> Expression:
    """Return an expression, the literals of the conditions in it being of their columns' kinds."""
    match expression:
        case Call(function, arguments):
            bound = [bind_expression(argument, declarations) for argument in arguments]
            return settle_call(function, bound, View(declarations))
        case Choice(branches, otherwise):
            pairs = tuple(
                (bind_literals(condition, declarations), bind_expression(value, declarations))
                for condition, value in branches
            )
            return Choice(pairs, bind_expression(otherwise, declarations))
    return expression


def _bind_to_groups(condition: Compare, declarations: Declarations) -> list[Literal]:
    """Return the literals beside a column with declared groups: the texts of those groups."""
    column = condition.column
    declared = declarations.declared(column)
    has_numbers = any(number_of(value) is not None for value in declared.values)
    literals: list[Literal] = []
    for literal in condition.literals:
        # A number is compared with texts only where it may be one of them, and not by its order.
        is_unordered = condition.sign not in _ORDER
        if isinstance(literal, float) and not (has_numbers and is_unordered):
            literals.append(_bind_literal(column, "text", literal))
            continue
        position = declared.position(literal)
        if position < 0:
            raise unknown(f"value of {column!r}", literal, [*map(str, declared.values)])
        literals.append(str(text_of(declared.values[position])))
    return literals


def _bind_literal(column: str, kind: str, value: Literal) -> Literal:
    """Return a literal as a value of a kind: a date in microseconds, a boolean as 1 or 0."""
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
        f"give {_LITERAL_EXAMPLES[kind]}"
    )
