"""The language of private queries: `mean(income) by region where age >= 18 and city = 'Bonn'`.

It is a language of its own, small enough that every sentence has a bounded contribution a person;
what it does not know is refused, and nothing of it reaches the database but declared columns,
numbers and quoted strings.

    query      = name "(" [argument {"," argument}] ")" ["by" columns] ["where" condition]
    argument   = column | number | column "~" column {"+" column}
    columns    = column {"," column} | "(" column {"," column} ")"
    condition  = clause {"or" clause};  clause = term {"and" term}
    term       = "not" term | "(" condition ")" | column compare literal
               | column ["not"] "in" "(" literal {"," literal} ")" | column "is" ["not"] "null"

`count(persons)` and `count(rows)` say what they count, and `quantile(x, .5, log)` where a skewed
column's answer is likely; a column of such a name is in double quotes.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple, TypeVar

from apiece.datasets.blocks import UNREADABLE
from apiece.errors import InputError, OptionError, unknown
from apiece.queries.expressions import (
    Combined,
    Compare,
    Condition,
    Expression,
    Literal,
    Missing,
    Negated,
)

T = TypeVar("T")
# Levels of quantiles in one query, at most: a full tree of five draws.
LEVELS: Final = 31
# Depth to which conditions may be nested.
DEPTH: Final = 50
# Characters of a query, at most.
_LENGTH: Final = 10_000
# Bins of a histogram, at most.
_BINS: Final = 10_000


class _Arguments(NamedTuple):
    """How many columns and how many numbers an aggregate takes."""

    fewest_columns: int
    most_columns: int
    fewest_numbers: int = 0
    most_numbers: int = 0


# Name of an aggregate → what it takes.
_AGGREGATES: Final = {
    "count": _Arguments(0, 1),
    "sum": _Arguments(1, 1),
    "mean": _Arguments(1, 1),
    "variance": _Arguments(1, 1),
    "covariance": _Arguments(2, 2),
    "histogram": _Arguments(1, 1, 0, 1),
    "quantile": _Arguments(1, 1, 1, LEVELS),
    "median": _Arguments(1, 1),
    "interval": _Arguments(1, 1, 1, 1),
    "regression": _Arguments(2, 20),
}
# One alternative a kind of token, after blanks; longer signs stand before their beginnings.
_TOKEN: Final = re.compile(
    r"""\s*(?:(?P<number>[-+]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]+)?)
    |(?P<text>'(?:[^']|'')*')
    |(?P<name>"(?:[^"]|"")+"|[^\W\d]\w*)
    |(?P<sign><=|>=|!=|<>|=|<|>|\(|\)|,|~|\+))""",
    re.VERBOSE,
)
# Aggregates of ranks, whose last argument may be the word log.
_RANKED: Final = ("quantile", "median", "interval")
# Aggregates whose numbers are levels.
_LEVELLED: Final = ("quantile", "interval")
_COMPARE: Final = ("=", "!=", "<>", "<", "<=", ">", ">=")
# Words that are no names of columns outside of quotes.
_WORDS: Final = ("by", "where", "and", "or", "not", "in", "is", "null")
_EXAMPLE: Final = "for instance: mean(income) by region where age >= 18"


@dataclass(frozen=True, slots=True)
class Join:
    """A JOIN with a public table: the people's column `on` and the table's column `key`."""

    table: str
    on: str
    key: str


@dataclass(frozen=True, slots=True)
class ParsedQuery:
    """A parsed query; the first column of a regression is the response."""

    aggregate: str
    columns: tuple[str, ...]
    # The number of bins of a histogram, or the levels of quantiles in order.
    numbers: tuple[float, ...]
    by: tuple[str, ...]
    where: Condition | None
    text: str
    # The unit that a count names, persons or rows; "" where it names none.
    counted: str = ""
    # Whether the prior of quantiles gives more weight to small numbers.
    log: bool = False
    # Derived columns among those above: name → expression.
    derived: Mapping[str, Expression] = field(default_factory=dict)
    # Whether it was written in SQL, in which booleans are numbers and groups without a word.
    is_sql: bool = False
    # The public tables that it joins, in SQL.
    joins: tuple[Join, ...] = ()


def parse(text: str) -> ParsedQuery:
    """Return the query that a text stands for; raise `InputError` where it stops being one."""
    return _Parser(text).parse_query()


class _Token(NamedTuple):
    """A piece of a query's text."""

    # One of number, text, name, sign and end.
    kind: str
    content: str
    # Index of its first character in the text.
    start: int


class _Parser:
    """A recursive descent over the tokens of a text: a method for each rule of the grammar."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.tokens = _split_tokens(text)
        # Index of the next token.
        self.index = 0
        # Brackets and negations that are open.
        self.depth = 0

    def make_error(self, expected: str) -> InputError:
        """Return the error that something else was expected than the next token."""
        token = self.tokens[self.index]
        actual = "the end" if token.kind == "end" else repr(token.content)
        return InputError(
            f"query: expected {expected}, found {actual} at character {token.start + 1} of "
            f"{self.text!r}; {_EXAMPLE}"
        )

    def take(self, kind: str, *values: str) -> str | None:
        """Take the next token where it is of a kind, and one of the values if there are any."""
        token = self.tokens[self.index]
        # Words of the language are read in any case; names of columns are taken as they are
        # written.
        word = token.content.lower()
        if values:
            fits = word in values
        else:
            # A quoted name keeps its quotes here, so that it is never one of the words.
            fits = kind != "name" or word not in _WORDS
        if token.kind != kind or not fits:
            return None
        self.index += 1
        return token.content

    def require(self, kind: str, value: str = "") -> str:
        """Take the next token, which must be of a kind, and this value if there is one."""
        content = self.take(kind, value) if value else self.take(kind)
        if content is not None:
            return content
        if value:
            raise self.make_error(repr(value))
        raise self.make_error("a column" if kind == "name" else f"a {kind}")

    def parse_column(self) -> str:
        name = self.require("name")
        if not name.startswith('"'):
            return name
        return name[1:-1].replace('""', '"')

    def parse_query(self) -> ParsedQuery:
        aggregate = self.require("name").lower()
        if aggregate not in _AGGREGATES:
            raise unknown("aggregate", aggregate, _AGGREGATES)
        self.require("sign", "(")
        counted = None
        if aggregate == "count":
            # A column called persons or rows has to be in quotes here.
            counted = self.take("name", "persons", "rows")
        columns: list[str] = []
        numbers: list[float] = []
        log = False
        if not counted:
            columns, numbers, log = self.parse_arguments(takes_log=aggregate in _RANKED)
        self.require("sign", ")")
        by = self.parse_grouping() if self.take("name", "by") else []
        where = self.parse_condition() if self.take("name", "where") else None
        if self.tokens[self.index].kind != "end":
            raise self.make_error("'by', 'where' or the end")
        _check_arguments(aggregate, columns, numbers)
        for names in (columns, by):
            if len(set(names)) != len(names):
                raise OptionError("query: a column is named twice")
        if aggregate == "median":
            aggregate = "quantile"
            numbers = [0.5]
        return ParsedQuery(
            aggregate=aggregate,
            columns=tuple(columns),
            numbers=tuple(sorted(numbers)),
            by=tuple(by),
            where=where,
            text=self.text.strip(),
            counted=(counted or "").lower(),
            log=log,
        )

    def parse_arguments(self, *, takes_log: bool) -> tuple[list[str], list[float], bool]:
        """Return the columns, the numbers, and whether the last argument is the word log."""
        columns: list[str] = []
        numbers: list[float] = []
        while self.tokens[self.index].content != ")":
            if columns or numbers:
                self.require("sign", ",")
            if columns and takes_log and self.take("name", "log"):
                return columns, numbers, True
            number = self.take("number")
            if number is not None:
                numbers.append(float(number))
                continue
            columns.append(self.parse_column())
            if self.take("sign", "~"):
                columns += self.parse_list(self.parse_column, "+")
        return columns, numbers, False

    def parse_grouping(self) -> list[str]:
        has_brackets = self.take("sign", "(")
        columns = self.parse_list(self.parse_column)
        if has_brackets:
            self.require("sign", ")")
        return columns

    def parse_list(self, parse_part: Callable[[], T], separator: str = ",") -> list[T]:
        """Return one part or more, with a separator between them."""
        parts = [parse_part()]
        while self.take("sign", separator):
            parts.append(parse_part())
        return parts

    def parse_condition(self) -> Condition:
        return self.parse_joined("or", self.parse_clause)

    def parse_clause(self) -> Condition:
        return self.parse_joined("and", self.parse_term)

    def parse_joined(self, word: str, parse_part: Callable[[], Condition]) -> Condition:
        """Return one condition, or several that are joined by a word."""
        parts = [parse_part()]
        while self.take("name", word):
            parts.append(parse_part())
        return parts[0] if len(parts) == 1 else Combined(word, tuple(parts))

    def parse_term(self) -> Condition:
        negated = self.take("name", "not") is not None
        # Only brackets and negations nest: chains of and and or are loops, so that the depth is
        # bounded by these alone.
        if not (negated or self.take("sign", "(")):
            return self.parse_comparison()
        self.depth += 1
        if self.depth > DEPTH:
            raise InputError(f"query: nested more than {DEPTH} deep; write it flatter")
        inner: Condition
        if negated:
            inner = Negated(self.parse_term())
        else:
            inner = self.parse_condition()
            self.require("sign", ")")
        self.depth -= 1
        return inner

    def parse_comparison(self) -> Condition:
        column = self.parse_column()
        if self.take("name", "is"):
            negated = self.take("name", "not") is not None
            self.require("name", "null")
            return Negated(Missing(column)) if negated else Missing(column)
        negated = self.take("name", "not") is not None
        if self.take("name", "in"):
            self.require("sign", "(")
            literals = self.parse_list(self.parse_literal)
            self.require("sign", ")")
            membership = Compare(column, "in", tuple(literals))
            return Negated(membership) if negated else membership
        # A comparison is negated as a whole, with `not` in front of its column.
        sign = None if negated else self.take("sign", *_COMPARE)
        if sign is None:
            raise self.make_error("a comparison")
        return Compare(column, sign, (self.parse_literal(),))

    def parse_literal(self) -> Literal:
        number = self.take("number")
        if number is not None:
            return float(number)
        text = self.take("text")
        if text is None:
            raise self.make_error("a number or a 'text'")
        return text[1:-1].replace("''", "'")


def check_text(text: str) -> None:
    """Raise `InputError` for a query that is too long or has a control character."""
    if len(text) > _LENGTH:
        raise InputError(f"query: give a text of at most {_LENGTH:,} characters")
    control = UNREADABLE.search(text)
    if control and not control[0].isspace():
        raise InputError(
            f"query: control character {control[0]!r} at character {control.start() + 1}; leave "
            "it out"
        )


def _split_tokens(text: str) -> list[_Token]:
    """Return the tokens of a text, the last of which is its end."""
    check_text(text)
    tokens: list[_Token] = []
    start = 0
    while start < len(text.rstrip()):
        match = _TOKEN.match(text, start)
        if match is None:
            unreadable = text[start : start + 10].strip()
            raise InputError(
                f"query: cannot read {unreadable!r} at character {start + 1} of {text!r}; "
                f"{_EXAMPLE}"
            )
        kind = str(match.lastgroup)
        tokens.append(_Token(kind, match.group(kind), match.start(kind)))
        start = match.end()
    return [*tokens, _Token("end", "", len(text))]


def _check_arguments(aggregate: str, columns: list[str], numbers: list[float]) -> None:
    """Refuse an aggregate with too few or too many arguments, or with numbers out of range."""
    fewest_columns, most_columns, fewest_numbers, most_numbers = _AGGREGATES[aggregate]
    has_levels = aggregate in _LEVELLED
    if has_levels and not (numbers and all(0 < level < 1 for level in numbers)):
        raise InputError(
            f"query: {aggregate} needs its level, in (0, 1); as in {aggregate}(income, 0.5)"
        )
    columns_fit = fewest_columns <= len(columns) <= most_columns
    numbers_fit = fewest_numbers <= len(numbers) <= most_numbers
    if not (columns_fit and numbers_fit):
        raise InputError(
            f"query: {aggregate} takes {fewest_columns} to {most_columns} columns and up to "
            f"{most_numbers} numbers, not {len(columns)} and {len(numbers)}"
        )
    if has_levels and len(set(numbers)) != len(numbers):
        raise InputError("query: a level is given twice; give each once")
    if aggregate == "histogram" and numbers:
        bins = numbers[0]
        if not (bins.is_integer() and 1 <= bins <= _BINS):
            raise InputError(
                f"query: histogram with {bins:g} bins; give a whole number to {_BINS:,}"
            )
