"""Expressions of one row: derived columns, and conditions that compare them.

An expression is a total function: of every row it is a value or null, never an error. Numbers end
at ±1e60, a division by zero is null, a cast that cannot be done is null. What its values can be
follows from what is declared about its columns: a `Domain`, by interval arithmetic, so that bounds
and groups of a derived column are as public as the declarations. A number with declared bounds is
clamped to them before anything is computed from it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final, assert_never

from apiece.errors import InputError

# Numbers of an expression end here, so that no arithmetic on them overflows: the product of two
# such numbers is 1e120, far within a double.
LARGEST: Final = 1e60
# Values of an expression that are listed, at most: the SQL of groups has a branch for each of them.
VALUES: Final = 10_000
_EPOCH: Final = datetime(1970, 1, 1)
# The first and the last microsecond of the calendar's years 1 to 9999, since 1970.
FIRST: Final = (datetime.min - _EPOCH) // timedelta(microseconds=1)
LAST: Final = (datetime.max - _EPOCH) // timedelta(microseconds=1)

# A text, a number, or a moment in microseconds since 1970.
Value = str | float | int


@dataclass(frozen=True, slots=True)
class Cell:
    """A declared column of the row."""

    column: str


@dataclass(frozen=True, slots=True)
class Constant:
    """A value that the question names; None is null."""

    value: Value | None
    # One of numeric, text, boolean, date and null.
    kind: str


@dataclass(frozen=True, slots=True)
class Call:
    """A function of `functions.FUNCTIONS`, by name, of other expressions."""

    function: str
    arguments: tuple[Expression, ...]


@dataclass(frozen=True, slots=True)
class Choice:
    """The value of the first branch whose condition holds, else another value."""

    branches: tuple[tuple[Condition, Expression], ...]
    otherwise: Expression


@dataclass(frozen=True, slots=True)
class Compare:
    """A comparison of a declared column with literals, which are checked against what it declares.

    Other comparisons are a `Relation`.
    """

    column: str
    # One of = != <> < <= > >=, with one literal, or the word in, with one or more.
    sign: str
    literals: tuple[Literal, ...]


@dataclass(frozen=True, slots=True)
class Missing:
    """A column whose cell is missing, or cannot be read as its declared kind.

    Of a derived value it is `Lacking`.
    """

    column: str


@dataclass(frozen=True, slots=True)
class Relation:
    """A comparison of two expressions of one kind; null where one of them is."""

    left: Expression
    # One of = <> < <= > >=.
    sign: str
    right: Expression


@dataclass(frozen=True, slots=True)
class Lacking:
    """An expression that is null."""

    expression: Expression


@dataclass(frozen=True, slots=True)
class Matches:
    """A text that has a pattern of LIKE: % stands for any letters, _ for one."""

    expression: Expression
    pattern: str


@dataclass(frozen=True, slots=True)
class Negated:
    """A negated condition; of a missing cell neither a comparison nor its negation holds."""

    part: Condition


@dataclass(frozen=True, slots=True)
class Combined:
    """Several conditions, joined by one word."""

    # The word and, or the word or.
    word: str
    parts: tuple[Condition, ...]


Expression = Cell | Constant | Call | Choice
Literal = float | str
Condition = Compare | Missing | Relation | Lacking | Matches | Negated | Combined
NULL: Final = Constant(None, "null")


@dataclass(frozen=True, slots=True)
class Domain:
    """What the values of an expression can be; it follows from declarations alone.

    Attributes:
        kind: "numeric", "text", "boolean" (the numbers 1 and 0), "date" (microseconds since 1970),
            or "null".
        low: The least value of a number or date.
        high: The largest one.
        whole: Whether numbers are whole.
        nullable: Whether a value may be null.
        values: The values that make groups, where they are few: rows with others are in no group.
    """

    kind: str
    low: float = -LARGEST
    high: float = LARGEST
    whole: bool = False
    nullable: bool = True
    values: tuple[Value, ...] | None = None

    @property
    def is_number(self) -> bool:
        """Whether values can be calculated with."""
        return self.kind in ("numeric", "boolean")

    @property
    def is_bounded(self) -> bool:
        """Whether numbers have bounds that follow from declarations."""
        return self.low > -LARGEST and self.high < LARGEST


def number_domain(
    low: float,
    high: float,
    *,
    whole: bool = False,
    nullable: bool = True,
    values: Sequence[Value] | None = None,
) -> Domain:
    """Return the domain of numbers within bounds, which end at ±1e60."""
    low = min(max(low, -LARGEST), LARGEST)
    high = min(max(high, -LARGEST), LARGEST)
    listed = None if values is None else tuple(values)
    return Domain("numeric", low, high, whole, nullable, listed)


def whole_domain(low: float, high: float, *, nullable: bool = True) -> Domain:
    """Return the domain of whole numbers within bounds, all of them listed if they are few."""
    values = None
    # Beyond 2^53 not every whole number is a double.
    if high - low < VALUES and abs(low) < 2**53 and abs(high) < 2**53:
        values = [float(number) for number in range(math.ceil(low), math.floor(high) + 1)]
    return number_domain(low, high, whole=True, nullable=nullable, values=values)


def constant_domain(constant: Constant) -> Domain:
    """Return the domain of a constant, which has one value."""
    value = constant.value
    if value is None:
        return Domain("null", values=())
    if isinstance(value, str):
        return Domain("text", nullable=False, values=(value,))
    # A date's microseconds are below 2^53 until the year 2255, and a double near to them after it.
    low = float(value)
    whole = float(value).is_integer()
    return Domain(constant.kind, low, low, whole, nullable=False, values=(value,))


def join_domains(domains: Sequence[Domain], context: str) -> Domain:
    """Return the domain of what may be a value of any of several domains.

    Raises `InputError` where they are not of one kind; `context` says in a message where.
    """
    # A null has no kind of its own and takes that of the others.
    known = [domain for domain in domains if domain.kind != "null"]
    if not known:
        return Domain("null", values=())
    kinds = {domain.kind for domain in known}
    # A boolean among numbers is a number.
    kind = kinds.pop() if len(kinds) == 1 else "numeric"
    if kinds and not all(domain.is_number for domain in known):
        names = " and ".join(sorted({domain.kind for domain in known}))
        raise InputError(f"query: {context} has values of two kinds, {names}; give one kind")
    # The values are listed only where every domain lists its own, each value once.
    values: tuple[Value, ...] | None = ()
    for domain in known:
        if domain.values is None:
            values = None
            break
        values = tuple(dict.fromkeys([*(values or ()), *domain.values]))
    if values is not None and len(values) > VALUES:
        values = None
    return Domain(
        kind,
        min(domain.low for domain in known),
        max(domain.high for domain in known),
        all(domain.whole for domain in known),
        any(domain.nullable for domain in domains) or len(known) < len(domains),
        values,
    )


def yield_columns(part: Expression | Condition) -> Iterator[str]:
    """Yield the columns of an expression or a condition, from left to right."""
    match part:
        case Cell(column) | Missing(column) | Compare(column):
            yield column
        case Call(_, arguments):
            for argument in arguments:
                yield from yield_columns(argument)
        case Choice(branches, otherwise):
            for condition, value in branches:
                yield from yield_columns(condition)
                yield from yield_columns(value)
            yield from yield_columns(otherwise)
        case Relation(left, _, right):
            yield from yield_columns(left)
            yield from yield_columns(right)
        case Lacking(expression) | Matches(expression):
            yield from yield_columns(expression)
        case Negated(inner):
            yield from yield_columns(inner)
        case Combined(_, parts):
            for inner in parts:
                yield from yield_columns(inner)
        case Constant():
            pass
        case _:
            # The columns of a form that is forgotten here would be neither checked nor read.
            assert_never(part)


def yield_parts(part: Expression | Condition) -> Iterator[Expression | Condition]:
    """Yield an expression or a condition, and everything in it, from left to right."""
    yield part
    match part:
        case Call(_, arguments):
            for argument in arguments:
                yield from yield_parts(argument)
        case Choice(branches, otherwise):
            for condition, value in branches:
                yield from yield_parts(condition)
                yield from yield_parts(value)
            yield from yield_parts(otherwise)
        case Relation(left, _, right):
            yield from yield_parts(left)
            yield from yield_parts(right)
        case Lacking(expression) | Matches(expression):
            yield from yield_parts(expression)
        case Negated(inner):
            yield from yield_parts(inner)
        case Combined(_, parts):
            for inner in parts:
                yield from yield_parts(inner)
        case Cell() | Constant() | Compare() | Missing():
            pass
        case _:
            assert_never(part)
