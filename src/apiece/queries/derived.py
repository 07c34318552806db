"""Derived columns: what their values can be, and the SQL that computes them over stored columns.

`View` answers for a derived column what `Declarations` answers for a declared one, so that a
question need not know which of them a column is. The SQL is in levels: a level's columns are made
from stored ones and from those of the levels below, each of them once.
"""

from __future__ import annotations

import atexit
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import product
from typing import TYPE_CHECKING, Any, Final

from apiece.errors import DataError, InputError, as_given
from apiece.queries.declarations import Declarations
from apiece.queries.expressions import (
    FIRST,
    LARGEST,
    LAST,
    VALUES,
    Call,
    Cell,
    Choice,
    Combined,
    Compare,
    Condition,
    Constant,
    Domain,
    Expression,
    Lacking,
    Matches,
    Missing,
    Negated,
    Relation,
    Value,
    constant_domain,
    join_domains,
    yield_parts,
)
from apiece.queries.functions import FUNCTIONS, moment
from apiece.tables.values import Declared, moment_of, number_of

if TYPE_CHECKING:
    import duckdb

# Characters of the SQL of a question's derived columns, at most.
_LENGTH: Final = 500_000
# Whole numbers whose quotients are exact doubles where they are whole, and are whole only then.
_EXACT: Final = 2.0**31
# Groups that follow from a derived column, at most.
GROUPS: Final = VALUES


def number_literal(value: float) -> str:
    """Return SQL for exactly this double, in every dialect."""
    return f"CAST('{float(value)!r}' AS DOUBLE)"


def text_literal(value: str) -> str:
    """Return SQL for exactly this text where a quote is written twice and nothing else is."""
    return "'" + value.replace("'", "''") + "'"


def value_literal(value: Value, kind: str) -> str:
    """Return SQL for a value of a kind."""
    match kind:
        case "text":
            return text_literal(str(value))
        case "date":
            return f"CAST({int(value)} AS BIGINT)"
    return number_literal(float(value))


@dataclass(frozen=True)
class View:
    """Declared columns and derived ones, by name: kinds, bounds, groups and SQL of each."""

    declarations: Declarations
    # Name → expression.
    derived: Mapping[str, Expression] = field(default_factory=dict)

    @cached_property
    def _domains(self) -> dict[Expression, Domain]:
        """Domains that were inferred before."""
        return {}

    def infer(self, expression: Expression) -> Domain:
        """Return what the values of an expression can be.

        Raises:
            InputError: For a function of values of another kind.
            DataError: For a column of which nothing is declared.
        """
        # Expressions are values: equal ones have one domain, however often they occur.
        if expression not in self._domains:
            self._domains[expression] = self._infer(expression)
        return self._domains[expression]

    def _infer(self, expression: Expression) -> Domain:
        match expression:
            case Cell(column):
                return self._cell_domain(column)
            case Constant():
                return constant_domain(expression)
            case Choice(branches, otherwise):
                for condition, _ in branches:
                    self.check_condition(condition)
                # Conditions are only checked. The value may be that of any branch, whatever its
                # condition says.
                values = [value for _, value in branches]
                domains = [self.infer(value) for value in [*values, otherwise]]
                return join_domains(domains, "CASE")
            case Call(name, arguments):
                return self._call_domain(name, arguments)

    def _cell_domain(self, column: str) -> Domain:
        """Return the domain of a declared column, a number with bounds being clamped to them."""
        declarations = self.declarations
        kind = declarations.kind_of(column)
        values: tuple[Value, ...] | None = None
        if column in declarations.groups:
            values = tuple(_list_group_values(declarations.declared(column), kind))
        # A cell may always be missing. Bounds of a column that has none are those of arithmetic,
        # which `is_bounded` tells from declared ones.
        match kind:
            case "boolean":
                return Domain("boolean", 0.0, 1.0, True, True, (0.0, 1.0))
            case "text":
                return Domain("text", values=values)
            case "date":
                first, last = declarations.periods.get(column, (FIRST, LAST))
                return Domain("date", first, last, True, True, values)
        low, high = declarations.bounds.get(column, (-LARGEST, LARGEST))
        return Domain("numeric", low, high, False, True, values)

    def _call_domain(self, name: str, arguments: Sequence[Expression]) -> Domain:
        function = FUNCTIONS[name]
        domains = [self.infer(argument) for argument in arguments]
        self._check_arguments(name, arguments, domains)
        # A null argument is one for every row: so is the value of a function that is null for it.
        if any(domain.kind == "null" for domain in domains) and function.strict:
            return Domain("null", values=())
        domain = function.rule(domains)
        # Whether a number can be null decides what bounds `least` and `greatest` have, which pass
        # over nulls. Those listed may be null where no argument is.
        nullable = domain.nullable
        if domain.is_number and function.strict:
            never_null = name not in ("/", "%", "sqrt", "ln", "log10", "nullif", "number")
            nullable = any(given.nullable for given in domains) or not never_null
        elif domain.is_number and name in ("least", "greatest"):
            nullable = all(given.nullable for given in domains)
        # The rule's own list of values, or that of all combinations of the arguments' values.
        values = domain.values
        if values is None:
            values = self._enumerate(name, domains)
        low = domain.low
        high = domain.high
        if values and domain.is_number:
            low = min(map(float, values))
            high = max(map(float, values))
            values = tuple(sorted(map(float, values)))
            # A rule's bounds hold for all rows, those in no group as well.
            low = min(low, domain.low)
            high = max(high, domain.high)
        return Domain(domain.kind, low, high, domain.whole, nullable, values)

    def _check_arguments(
        self, name: str, arguments: Sequence[Expression], domains: Sequence[Domain]
    ) -> None:
        function = FUNCTIONS[name]
        # Of a variadic function the last kind holds for all arguments that follow.
        for index, (argument, domain) in enumerate(zip(arguments, domains, strict=True)):
            expected = function.kinds[min(index, len(function.kinds) - 1)]
            fits = expected in ("any", domain.kind) or domain.kind == "null"
            # A boolean is a number here; a null is of any kind.
            if not (fits or (expected == "numeric" and domain.is_number)):
                raise InputError(
                    f"query: {name} takes a value of kind {expected}, and {write(argument)} is "
                    f"{domain.kind}; {_suggest_cast(expected, domain.kind, argument)}"
                )
            if index in function.constants and not isinstance(argument, Constant):
                raise InputError(
                    f"query: {name}: argument {index + 1} must be a constant, not "
                    f"{write(argument)}; write a number or a text"
                )
        if name == "replace" and len(_text_of(arguments[2])) > len(_text_of(arguments[1])):
            raise InputError(
                "query: replace: the new text is longer than the old one, which may outgrow the "
                "memory; give a text of at most its length"
            )

    def _enumerate(self, name: str, domains: Sequence[Domain]) -> tuple[Value, ...] | None:
        """Return the values of a function of arguments with few values, computed by the engine."""
        function = FUNCTIONS[name]
        choices: list[list[Value | None]] = []
        count = 1
        for domain in domains:
            if domain.values is None:
                return None
            # A function that is not strict has values of its own for null arguments.
            options: list[Value | None] = list(domain.values)
            if domain.nullable and not function.strict:
                options.append(None)
            choices.append(options)
            count *= len(options)
        # The listed values are those that the engine itself computes, so that a row's value is to
        # the bit one of them.
        if not 0 < count <= VALUES:
            return None
        # SELECT f(a0, a1) FROM (VALUES …), a row for each combination of values.
        columns = [f"a{index}" for index in range(len(domains))]
        rows = []
        for combination in product(*choices):
            cells = [
                _typed_literal(value, domain.kind)
                for value, domain in zip(combination, domains, strict=True)
            ]
            rows.append(f"({', '.join(cells)})")
        table = f"(VALUES {', '.join(rows)}) AS t({', '.join(columns)})"
        raw = f"SELECT {function.sql(columns)} AS v FROM {table}"
        found = [value for (value,) in _calculator().execute(raw).fetchall()]
        result = function.rule(domains)
        values: list[Value] = []
        for value in found:
            # A null makes no group; a number ends where that of a row does.
            if value is None:
                continue
            if result.is_number:
                value = min(max(float(value), -LARGEST), LARGEST)
            values.append(value)
        # Each value once, in the order in which it was found.
        return tuple(dict.fromkeys(values))

    def check_condition(self, condition: Condition) -> None:
        """Raise `InputError` for a comparison of values of two kinds, or of an unknown column."""
        match condition:
            case Combined(_, parts):
                for part in parts:
                    self.check_condition(part)
            case Negated(part):
                self.check_condition(part)
            # Whether its literals are of the column's kind is seen when they are bound.
            case Compare(column) | Missing(column):
                self.declarations.kind_of(column)
            case Lacking(expression):
                self.infer(expression)
            case Matches(expression):
                domain = self.infer(expression)
                if domain.kind not in ("text", "null"):
                    raise InputError(
                        f"query: LIKE compares texts, and {write(expression)} is {domain.kind}; "
                        "compare it with <, = or >"
                    )
            case Relation(left, _, right):
                left, right = self.match_kinds(left, right)
                kinds = [self.infer(left).kind, self.infer(right).kind]
                numbers = all(kind in ("numeric", "boolean") for kind in kinds)
                if not (kinds[0] == kinds[1] or "null" in kinds or numbers):
                    raise InputError(
                        f"query: {write(left)} is {kinds[0]} and {write(right)} is {kinds[1]}, so "
                        "they cannot be compared; give values of one kind"
                    )

    def match_kinds(self, left: Expression, right: Expression) -> tuple[Expression, Expression]:
        """Return two compared expressions, a text beside a date being read as a date."""
        pair = [left, right]
        for index, other in ((0, 1), (1, 0)):
            side = pair[index]
            if not (isinstance(side, Constant) and isinstance(side.value, str)):
                continue
            kind = self.infer(pair[other]).kind
            if kind == "date":
                pair[index] = date_constant(side.value)
        return pair[0], pair[1]

    # What a question asks of a column, declared or derived.

    def kind_of(self, column: str) -> str:
        """Return how a column is compared."""
        if column in self.derived:
            return self.infer(self.derived[column]).kind
        return self.declarations.kind_of(column)

    def bounds_of(self, column: str) -> tuple[float, float]:
        """Return a column's bounds: declared, or following from declared ones.

        Raises:
            DataError: Where there are none.
        """
        if column not in self.derived:
            return self.declarations.bounds_of(column)
        domain = self.infer(self.derived[column])
        if domain.kind == "null":
            raise InputError(f"query: {column} is null in every row; give a column")
        if not domain.is_number:
            raise InputError(
                f"query: {column} is {domain.kind}, and no number; give a number, as in "
                f"{_suggest_number(domain.kind, column)}"
            )
        if not domain.is_bounded:
            raise DataError(
                f"query: {column} has no bounds that follow from the declared ones; write "
                f"clamp({column}, LOW, HIGH), with bounds from what is known without looking at "
                "the data" + self._name_unbounded(self.derived[column])
            )
        if domain.low < domain.high:
            return domain.low, domain.high
        # A constant lies between 0 and itself.
        low = min(domain.low, 0.0)
        high = max(domain.high, 0.0)
        return (low, high) if low < high else (0.0, 1.0)

    def _name_unbounded(self, expression: Expression) -> str:
        """Return a hint which columns of an expression lack bounds."""
        lacking = [
            part.column
            for part in yield_parts(expression)
            if isinstance(part, Cell)
            and self.kind_of(part.column) == "numeric"
            and part.column not in self.declarations.bounds
        ]
        if not lacking:
            return ""
        flags = as_given(
            f"schema.declare({{{lacking[0]!r}: Numeric(0, 100)}})",
            flag=f"--bounds {lacking[0]}=0:100",
        )
        return (
            f"; or declare bounds of {', '.join(map(repr, dict.fromkeys(lacking)))}, as in {flags}"
        )

    def groups_of(self, column: str) -> tuple[str | float, ...]:
        """Return a grouping column's values: declared, or all that a derived column can have."""
        if column not in self.derived:
            self._require_bands(column)
            return self.declarations.groups_of(column)
        domain = self.infer(self.derived[column])
        if not domain.values:
            raise DataError(
                f"query: GROUP BY {column}: its groups do not follow from what is declared; "
                + self._suggest_groups(self.derived[column], domain)
            )
        if len(domain.values) > GROUPS:
            raise InputError(
                f"query: GROUP BY {column}: {len(domain.values):,} groups; give at most "
                f"{GROUPS:,}, by wider bands or narrower bounds"
            )
        return tuple(show_value(value, domain.kind) for value in domain.values)

    def _require_bands(self, column: str) -> None:
        """Raise `DataError` for a number that is grouped by itself, without declared values."""
        declarations = self.declarations
        if column in declarations.bounds and column not in declarations.groups:
            remedy = as_given(
                f"schema.declare({{{column!r}: Numeric(0, 3, values=range(4))}})",
                flag=f"--values {column}=0,1,2,3",
            )
            raise DataError(
                f"column {column!r}: no declared groups; group by bands, as GROUP BY "
                f"floor({column} / 10) in SQL, or declare them, as in {remedy}"
            )

    def _suggest_groups(self, expression: Expression, domain: Domain) -> str:
        """Return what to declare or write, so that groups follow."""
        for part in yield_parts(expression):
            if not isinstance(part, Cell):
                continue
            kind = self.declarations.kind_of(part.column)
            name = part.column
            if kind == "numeric" and name not in self.declarations.bounds:
                return f"declare bounds of {name!r}, as in " + as_given(
                    f"schema.declare({{{name!r}: Numeric(0, 100)}})", flag=f"--bounds {name}=0:100"
                )
            if kind == "date" and name not in self.declarations.periods:
                return f"declare the first and last date of {name!r}, as in " + as_given(
                    f"schema.declare({{{name!r}: Date('2020-01-01', '2029-12-31')}})",
                    flag=f"--bounds {name}=2020-01-01:2029-12-31",
                )
            if kind == "text" and name not in self.declarations.groups:
                return f"declare the values of {name!r}, as in " + as_given(
                    f"schema.declare({{{name!r}: Text(values=['A', 'B'])}})",
                    flag=f"--values {name}=A,B",
                )
        if domain.kind == "numeric":
            return (
                f"group by whole numbers or bands, as in floor({write(expression)} / 10) or "
                f"width_bucket({write(expression)}, LOW, HIGH, COUNT)"
            )
        return "group by CASE with a value for each group"

    def stored(self, column: str, kind: str) -> str:
        """Return the SQL name of a column as a kind."""
        if column in self.derived:
            # Columns are named by their number: no name of a user's enters SQL.
            return f"d{list(self.derived).index(column)}"
        return self.declarations.stored(column, kind)

    def stored_group(self, column: str) -> str:
        """Return the SQL name of the numbers of a column's groups."""
        if column in self.derived:
            return f"e{list(self.derived).index(column)}"
        return self.declarations.stored_group(column)

    def table_sql(self, grouped: Sequence[str], condition: Condition | None) -> tuple[str, str]:
        """Return SQL for the table with all derived columns, and for a condition over it.

        Args:
            grouped: Derived columns whose groups' numbers are wanted too.
            condition: Of a row, its literals bound.
        """
        writer = SqlWriter(self)
        # First every derived column, then the condition over them, and last the numbers of groups,
        # each on the level above its column.
        for index, expression in enumerate(self.derived.values()):
            kind = self.infer(expression).kind
            sql, level = writer.write(expression)
            # A column needs a type, even one that is null in every row.
            if kind == "null":
                sql = "CAST(NULL AS DOUBLE)"
            writer.define(sql, level, f"d{index}")
        where = "TRUE"
        if condition is not None:
            where, _ = writer.write_condition(condition)
        for column in grouped:
            index = list(self.derived).index(column)
            domain = self.infer(self.derived[column])
            level = writer.levels_of(f"d{index}")
            writer.define(_number_groups(f"d{index}", domain), level, f"e{index}")
        return writer.nest("rows"), where


class SqlWriter:
    """Writes expressions as SQL, in levels of which each may use the columns of those below."""

    def __init__(self, view: View) -> None:
        self.view = view
        # Columns of each level: name → SQL.
        self.levels: list[dict[str, str]] = []
        # Characters of SQL so far, for the limit.
        self._length = 0
        # SQL and level → the column that has it, so that an expression that occurs twice is
        # computed once.
        self._known: dict[tuple[str, int], str] = {}

    def define(self, sql: str, level: int, name: str = "") -> tuple[str, int]:
        """Make a column of SQL that needs the first `level` levels; return it and its level."""
        key = sql, level
        # A column that has to have a name of its own is made again.
        if not name and key in self._known:
            return self._known[key], level + 1
        # A column on level n reads columns of the levels below n; the table itself is below level
        # 0.
        while len(self.levels) <= level:
            self.levels.append({})
        name = name or f"t{sum(map(len, self.levels))}"
        self.levels[level][name] = sql
        self._known[key] = name
        self._length += len(sql)
        if self._length > _LENGTH:
            raise InputError("query: its derived columns are too long; write fewer or simpler ones")
        return name, level + 1

    def levels_of(self, name: str) -> int:
        """Return how many levels there must be for a column to be there."""
        return next(number for number, level in enumerate(self.levels) if name in level) + 1

    def nest(self, table: str) -> str:
        """Return SQL for a table with the columns of all levels."""
        sql = table
        # SQL lets no SELECT use a column that it makes itself: each level is one around the level
        # below.
        for number, level in enumerate(self.levels):
            columns = ", ".join(f"{text} AS {name}" for name, text in level.items())
            if columns:
                source = sql if number == 0 else f"({sql})"
                sql = f"SELECT *, {columns} FROM {source} AS level{number}"
        return sql if sql == table else f"({sql})"

    def write(self, expression: Expression) -> tuple[str, int]:
        """Return SQL for an expression, and the number of levels that it needs."""
        match expression:
            case Cell(column):
                return self._write_cell(column)
            case Constant(None):
                return "NULL", 0
            case Constant(value, kind):
                assert value is not None
                return value_literal(value, kind), 0
            case Choice():
                return self._write_choice(expression)
            case Call():
                return self._write_call(expression)

    def _write_cell(self, column: str) -> tuple[str, int]:
        """Return SQL for a cell, a number clamped to its bounds and a date to its declared ones."""
        declarations = self.view.declarations
        kind = declarations.kind_of(column)
        stored = declarations.stored(column, kind)
        if kind not in ("numeric", "date"):
            return stored, 0
        # A text and a boolean are as they were read. A date without declared ends is within the
        # calendar, as all dates are.
        domain = self.view.infer(Cell(column))
        if kind == "date" and column not in declarations.periods:
            return stored, 0
        low = value_literal(domain.low, kind)
        high = value_literal(domain.high, kind)
        # `least` and `greatest` pass over a null, which is to stay one.
        clamped = (
            f"(CASE WHEN {stored} < {low} THEN {low} WHEN {stored} > {high} THEN {high} "
            f"ELSE {stored} END)"
        )
        return self.define(clamped, 0)

    def _write_call(self, call: Call) -> tuple[str, int]:
        function = FUNCTIONS[call.function]
        domain = self.view.infer(call)
        if domain.kind == "null":
            return "NULL", 0
        arguments: list[str] = []
        level = 0
        for argument in call.arguments:
            sql, needed = self.write(argument)
            # What a function writes twice becomes a column: nested calls would double the text with
            # each level.
            if function.repeats and not isinstance(argument, Constant):
                sql, needed = self.define(sql, needed)
            # An engine wants a type even of a null.
            if self.view.infer(argument).kind == "null":
                sql = f"CAST(NULL AS {_SQL_TYPES[domain.kind]})"
            arguments.append(sql)
            level = max(level, needed)
        sql = function.sql(arguments)
        if not domain.is_number or self._stays_within(call):
            return sql, level
        # A number ends at ±1e60, also where a product is infinite; a null stays one.
        name, level = self.define(sql, level)
        most = number_literal(LARGEST)
        least = number_literal(-LARGEST)
        return (
            f"(CASE WHEN {name} > {most} THEN {most} WHEN {name} < {least} THEN {least} "
            f"ELSE {name} END)"
        ), level

    def _stays_within(self, call: Call) -> bool:
        """Return whether a function's values surely lie within ±1e60."""
        return self.view.infer(call).is_bounded

    def _write_choice(self, choice: Choice) -> tuple[str, int]:
        domain = self.view.infer(choice)
        pieces = ["CASE"]
        level = 0
        for condition, value in choice.branches:
            test, needed = self.write_condition(condition)
            result, also_needed = self.write(value)
            pieces.append(f"WHEN {test} THEN {result}")
            level = max(level, needed, also_needed)
        otherwise, needed = self.write(choice.otherwise)
        pieces.append(f"ELSE {otherwise} END")
        sql = f"({' '.join(pieces)})"
        if domain.kind == "null":
            return "NULL", 0
        return sql, max(level, needed)

    def write_condition(self, condition: Condition) -> tuple[str, int]:
        """Return SQL for a condition, and the number of levels that it needs."""
        match condition:
            case Combined(word, parts):
                written = [self.write_condition(part) for part in parts]
                sql = f" {word.upper()} ".join(text for text, _ in written)
                return f"({sql})", max(level for _, level in written)
            case Negated(part):
                # A comparison with a missing cell is null, and so is its negation: such a row is in
                # neither.
                sql, level = self.write_condition(part)
                return f"(NOT {sql})", level
            case Missing(column):
                return f"({self._stored(column)} IS NULL)", 0
            case Compare(column, sign, literals):
                kind = self.view.declarations.kind_of(column)
                values = ", ".join(_literal_sql(literal, kind) for literal in literals)
                right = f"({values})" if sign == "in" else values
                return f"({self._stored(column)} {sign.upper()} {right})", 0
            case Lacking(expression):
                sql, level = self.write(expression)
                return f"({sql} IS NULL)", level
            case Matches(expression, pattern):
                sql, level = self.write(expression)
                return f"({sql} LIKE {text_literal(pattern)})", level
            case Relation(first, sign, second):
                left_side, right_side = self.view.match_kinds(first, second)
                if "null" in (self.view.infer(left_side).kind, self.view.infer(right_side).kind):
                    return "(CAST(NULL AS BOOLEAN))", 0
                left_sql, left_level = self.write(left_side)
                right_sql, right_level = self.write(right_side)
                return f"({left_sql} {sign} {right_sql})", max(left_level, right_level)

    def _stored(self, column: str) -> str:
        declarations = self.view.declarations
        return declarations.stored(column, declarations.kind_of(column))


# Kind → type of its values in the SQL of derived columns.
_SQL_TYPES: Final = {"numeric": "DOUBLE", "boolean": "DOUBLE", "text": "VARCHAR", "date": "BIGINT"}


def _typed_literal(value: Value | None, kind: str) -> str:
    """Return SQL for a value of a kind, or for null."""
    if value is None or kind == "null":
        return f"CAST(NULL AS {_SQL_TYPES.get(kind, 'DOUBLE')})"
    return value_literal(value, kind)


def _literal_sql(value: str | float, kind: str) -> str:
    """Return SQL for a bound literal: a text, a whole number of microseconds or a double."""
    if isinstance(value, str):
        return text_literal(value)
    return str(value) if kind == "date" else number_literal(value)


def _number_groups(name: str, domain: Domain) -> str:
    """Return SQL for the number of the group of a derived column's value, null for no group."""
    # Runs of whole numbers are located by arithmetic, others by a CASE with a branch for each
    # value.
    assert domain.values is not None
    first = domain.values[0]
    last = domain.values[-1]
    count = len(domain.values)
    is_run = domain.kind == "numeric" and domain.whole and count > 1
    step = float(domain.values[1]) - float(first) if is_run else 0.0
    is_even = step > 0 and max(abs(float(first)), abs(float(last))) < _EXACT
    if is_even and [*domain.values] == [float(first) + step * k for k in range(count)]:
        low = number_literal(float(first))
        high = number_literal(float(last))
        # Whole numbers at even distances: the quotient is whole for them alone.
        position = f"({name} - {low}) / {number_literal(step)}"
        return (
            f"(CASE WHEN {name} BETWEEN {low} AND {high} AND {position} = floor({position}) "
            f"THEN CAST({position} AS BIGINT) END)"
        )
    branches = " ".join(
        f"WHEN {value_literal(value, domain.kind)} THEN CAST({number} AS BIGINT)"
        for number, value in enumerate(domain.values)
    )
    return f"(CASE {name} {branches} END)"


def _list_group_values(declared: Declared, kind: str) -> list[Value]:
    """Return declared groups as values of an expression."""
    values: list[Value] = []
    for value in declared.values:
        match kind:
            case "text":
                values.append(declared.text(str(value)))
            case "date":
                instant = moment_of(value)
                if instant is not None:
                    values.append(instant)
            case _:
                values.append(float(str(number_of(value))))
    return values


def show_value(value: Value, kind: str) -> str | float:
    """Return the value of a group as an answer shows it: a whole number without a point."""
    match kind:
        case "text":
            return str(value)
        case "boolean":
            return bool(value)
        case "date":
            instant = moment(float(value))
            is_midnight = instant == instant.replace(hour=0, minute=0, second=0, microsecond=0)
            return instant.date().isoformat() if is_midnight else instant.isoformat(sep=" ")
    number = float(value)
    return int(number) if number.is_integer() and abs(number) < 2**53 else number


def _text_of(expression: Expression) -> str:
    value = expression.value if isinstance(expression, Constant) else ""
    return value if isinstance(value, str) else ""


def _suggest_cast(expected: str, kind: str, argument: Expression) -> str:
    """Return how to make a value of one kind from one of another."""
    text = write(argument)
    match expected, kind:
        case "numeric", "text":
            return f"write CAST({text} AS DOUBLE), or declare the column Numeric"
        case "numeric", "date":
            return f"write a part of it, as year({text}), or date_diff('day', {text}, …)"
        case "text", _:
            return f"write CAST({text} AS VARCHAR)"
        case "date", _:
            return "declare the column Date (--kind NAME=date)"
    return "give another column"


def _suggest_number(kind: str, column: str) -> str:
    if kind == "date":
        return f"date_diff('day', DATE '2020-01-01', {column})"
    return f"CAST({column} AS DOUBLE), clamped, or CASE"


def date_constant(text: str) -> Constant:
    """Return a date that a question names, or raise `InputError`."""
    instant = moment_of(text)
    if instant is None:
        raise InputError(
            f"query: {text!r} is no date; give one as '2024-01-31' or '2024-01-31 18:30'"
        )
    return Constant(instant, "date")


def settle_call(name: str, arguments: Sequence[Expression], view: View) -> Expression:
    """Return a call as the function that its arguments' kinds choose, of casts and differences.

    Raises `InputError` for a cast that is not answered.
    """
    arguments = tuple(arguments)
    # A text in the place of a date is one.
    if name in FUNCTIONS:
        expected = FUNCTIONS[name].kinds
        arguments = tuple(
            date_constant(argument.value)
            if expected[min(index, len(expected) - 1)] == "date"
            and isinstance(argument, Constant)
            and isinstance(argument.value, str)
            else argument
            for index, argument in enumerate(arguments)
        )
    # What a cast means depends on the kind of what is cast, which is known only with the
    # declarations.
    kinds = [view.infer(argument).kind for argument in arguments]
    # Dates have no minus of their own: what lies between two of them is counted in days.
    if name == "-" and kinds == ["date", "date"]:
        later, earlier = arguments
        return Call("date_diff_day", (earlier, later))
    if name == "cast_number":
        return _cast_to_number(arguments[0], kinds[0])
    if name == "cast_text":
        return _cast_to_text(arguments[0], kinds[0], view)
    return Call(name, arguments)


def _cast_to_number(argument: Expression, kind: str) -> Expression:
    if kind == "date":
        raise InputError(
            f"query: CAST of a date to a number: {write(argument)}; "
            f"{_suggest_cast('numeric', 'date', argument)}"
        )
    if kind == "text":
        return Call("number", (argument,))
    # A boolean plus 0 is the number that it stands for.
    return Call("+", (argument, Constant(0.0, "numeric"))) if kind == "boolean" else argument


def _cast_to_text(argument: Expression, kind: str, view: View) -> Expression:
    if kind == "text":
        return argument
    if kind == "date":
        return Call("text_of_date", (argument,))
    if kind == "boolean":
        truths = [
            (Relation(argument, "=", Constant(number, "boolean")), Constant(text, "text"))
            for number, text in ((1.0, "true"), (0.0, "false"))
        ]
        return Choice(tuple(truths), Constant(None, "null"))
    # The shortest digits of a fraction differ from engine to engine.
    if not view.infer(argument).whole:
        raise InputError(
            f"query: CAST({write(argument)} AS VARCHAR): not a whole number, whose text is not one "
            f"for every engine; write CAST(round({write(argument)}) AS VARCHAR)"
        )
    return Call("text", (argument,))


# Functions that are written between their arguments.
_SIGNS: Final = ("+", "-", "*", "/", "%", "||")


def write(part: Expression) -> str:
    """Return the canonical text of an expression, in which a plain column is its name."""
    match part:
        case Cell(column):
            return column
        case Constant(None):
            return "NULL"
        case Constant(value, "date"):
            return f"'{moment(float(value or 0))}'"
        case Constant(value, "boolean"):
            return "TRUE" if value else "FALSE"
        case Constant(value):
            if isinstance(value, str):
                return text_literal(value)
            return _write_number(float(value or 0))
        # The text is the column's name and its identity: two expressions that differ must differ in
        # it, so that constants have all of their digits and signs all of their brackets.
        case Call(name, arguments):
            texts = [write(argument) for argument in arguments]
            if name in _SIGNS:
                wrapped = [
                    f"({inner})" if _is_joined(argument) else inner
                    for inner, argument in zip(texts, arguments, strict=True)
                ]
                return f" {name} ".join(wrapped)
            # Functions of a unit and casts are written as a user writes them.
            for prefix in ("date_trunc_", "date_diff_"):
                if name.startswith(prefix):
                    unit = name.removeprefix(prefix)
                    return f"{prefix[:-1]}('{unit}', {', '.join(texts)})"
            if name in _CASTS:
                return f"CAST({texts[0]} AS {_CASTS[name]})"
            return f"{name.removesuffix('_digits')}({', '.join(texts)})"
        case Choice(branches, otherwise):
            pieces = [
                f"WHEN {write_condition(condition)} THEN {write(value)}"
                for condition, value in branches
            ]
            tail = "" if otherwise == Constant(None, "null") else f" ELSE {write(otherwise)}"
            return f"CASE {' '.join(pieces)}{tail} END"


def _write_number(number: float) -> str:
    """Return a number with all of its digits; a whole one without a point."""
    is_whole = float(number).is_integer() and abs(number) < 2**53
    return str(int(number)) if is_whole else repr(number)


# Function → the type whose cast it is, as a canonical text shows it.
_CASTS: Final = {
    "cast_number": "DOUBLE",
    "number": "DOUBLE",
    "cast_text": "VARCHAR",
    "text": "VARCHAR",
    "text_of_date": "VARCHAR",
}


def _is_joined(expression: Expression) -> bool:
    return isinstance(expression, Call) and expression.function in _SIGNS


def write_condition(part: Condition) -> str:
    """Return the canonical text of a condition."""
    match part:
        case Combined(word, parts):
            texts = [write_condition(condition) for condition in parts]
            return f"({f' {word.upper()} '.join(texts)})"
        case Negated(inner_part):
            return f"NOT {write_condition(inner_part)}"
        case Missing(column):
            return f"{column} IS NULL"
        case Lacking(expression):
            return f"{write(expression)} IS NULL"
        case Matches(expression, pattern):
            return f"{write(expression)} LIKE {text_literal(pattern)}"
        case Relation(left, sign, right):
            return f"{write(left)} {sign} {write(right)}"
        case Compare(column, sign, literals):
            values = ", ".join(
                text_literal(literal) if isinstance(literal, str) else _write_number(literal)
                for literal in literals
            )
            right_text = f"({values})" if sign == "in" else values
            return f"{column} {sign.upper()} {right_text}"


# The one database of `_calculator`, once there is one.
_CALCULATORS: list[Any] = []


def _calculator() -> duckdb.DuckDBPyConnection:
    """Return a database without any table, which computes the values of functions of constants."""
    from apiece.queries import reading

    if not _CALCULATORS:
        _CALCULATORS.append(reading.connect(threads=1))
        # A database that outlives the modules it needs complains as the process ends.
        atexit.register(_CALCULATORS.clear)
    # A cursor for each use, so that threads do not share one.
    connection: duckdb.DuckDBPyConnection = _CALCULATORS[0].cursor()
    return connection
