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
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, TypeVar

from apiece.datasets.blocks import UNREADABLE
from apiece.errors import InputError, OptionError, unknown

T = TypeVar("T")
LEVELS: Final = 31  # of one question
_SHAPES: Final = {  # columns at least, at most; numbers at least, at most
    "count": (0, 1, 0, 0),
    "sum": (1, 1, 0, 0),
    "mean": (1, 1, 0, 0),
    "variance": (1, 1, 0, 0),
    "covariance": (2, 2, 0, 0),
    "histogram": (1, 1, 0, 1),
    "quantile": (1, 1, 1, LEVELS),
    "median": (1, 1, 0, 0),
    "interval": (1, 1, 1, 1),
    "regression": (2, 20, 0, 0),
}
_TOKEN: Final = re.compile(
    r"""\s*(?:(?P<number>[-+]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]+)?)
    |(?P<text>'(?:[^']|'')*')
    |(?P<name>"(?:[^"]|"")+"|[^\W\d]\w*)
    |(?P<sign><=|>=|!=|<>|=|<|>|\(|\)|,|~|\+))""",
    re.VERBOSE,
)
_RANKED: Final = ("quantile", "median", "interval")
_COMPARE: Final = ("=", "!=", "<>", "<", "<=", ">", ">=")
DEPTH: Final = 50
_WORDS: Final = ("by", "where", "and", "or", "not", "in", "is", "null")
_EXAMPLE: Final = "for instance: mean(income) by region where age >= 18"


@dataclass(frozen=True, slots=True)
class Compare:
    """A column beside literals. sign: = != <> < <= > >= (one literal), or in (one or more)."""

    column: str
    sign: str
    literals: tuple[Literal, ...]


@dataclass(frozen=True, slots=True)
class Missing:
    """A column whose cell is missing, or cannot be read as its declared kind."""

    column: str


@dataclass(frozen=True, slots=True)
class Negated:
    """A condition that does not hold; of a missing cell neither a comparison nor its negation."""

    part: Condition


@dataclass(frozen=True, slots=True)
class Combined:
    """Several conditions, joined by one word: and, or."""

    word: str
    parts: tuple[Condition, ...]


Literal = float | str
Condition = Compare | Missing | Negated | Combined


@dataclass(frozen=True, slots=True)
class ParsedQuery:
    """A parsed query; of a regression the first column is the response."""

    aggregate: str
    columns: tuple[str, ...]
    numbers: tuple[float, ...]  # how many bins; which levels, in order
    by: tuple[str, ...]
    where: Condition | None
    text: str
    counted: str = ""  # persons, rows, or "" where unsaid
    log: bool = False  # of a quantile: small numbers weigh more


def parse(text: str) -> ParsedQuery:
    """Return the query that a text stands for; raise `InputError` where it stops being one."""
    return _Parser(text).query()


class _Parser:
    def __init__(self, text: str) -> None:
        self.text, self.tokens, self.at, self.depth = text, _tokens(text), 0, 0

    def fail(self, expected: str) -> InputError:
        kind, value, place = self.tokens[self.at]
        result = "the end" if kind == "end" else repr(value)
        return InputError(
            f"query: expected {expected}, found {result} at character {place + 1} of "
            f"{self.text!r}; {_EXAMPLE}"
        )

    def take(self, kind: str, *values: str) -> str | None:
        """Return the next token where it is of a kind, and one of the values if there are any."""
        have, content, _ = self.tokens[self.at]
        word = content.lower()
        if have != kind or (word not in values if values else kind == "name" and word in _WORDS):
            return None
        self.at += 1
        return content

    def need(self, kind: str, value: str = "") -> str:
        result = self.take(kind, value) if value else self.take(kind)
        if result is None:
            raise self.fail(repr(value) if value else f"a {'column' if kind == 'name' else kind}")
        return result

    def column(self) -> str:
        name = self.need("name")
        return name[1:-1].replace('""', '"') if name.startswith('"') else name

    def query(self) -> ParsedQuery:
        aggregate = self.need("name").lower()
        if aggregate not in _SHAPES:
            raise unknown("aggregate", aggregate, _SHAPES)
        self.need("sign", "(")
        counted = (self.take("name", "persons", "rows") or "") if aggregate == "count" else ""
        columns, numbers, log = ([], [], False) if counted else self.arguments(aggregate in _RANKED)
        self.need("sign", ")")
        by = self.grouping() if self.take("name", "by") else []
        where = self.condition() if self.take("name", "where") else None
        if self.tokens[self.at][0] != "end":
            raise self.fail("'by', 'where' or the end")
        _check_arguments(aggregate, columns, numbers)
        if len(set(columns)) != len(columns) or len(set(by)) != len(by):
            raise OptionError("query: a column is named twice")
        if aggregate == "median":
            aggregate, numbers = "quantile", [0.5]
        ordered = tuple(sorted(numbers))
        text = self.text.strip()
        return ParsedQuery(
            aggregate, tuple(columns), ordered, tuple(by), where, text, counted.lower(), log
        )

    def arguments(self, ranked: bool) -> tuple[list[str], list[float], bool]:
        columns: list[str] = []
        numbers: list[float] = []
        while self.tokens[self.at][1] != ")":
            if columns or numbers:
                self.need("sign", ",")
            if columns and ranked and self.take("name", "log"):
                return columns, numbers, True
            number = self.take("number")
            if number is not None:
                numbers.append(float(number))
                continue
            columns.append(self.column())
            if self.take("sign", "~"):
                columns += self.separated(self.column, "+")
        return columns, numbers, False

    def grouping(self) -> list[str]:
        enclosed = self.take("sign", "(")
        columns = self.separated(self.column)
        if enclosed:
            self.need("sign", ")")
        return columns

    def separated(self, part: Callable[[], T], sign: str = ",") -> list[T]:
        parts = [part()]
        while self.take("sign", sign):
            parts.append(part())
        return parts

    def condition(self) -> Condition:
        return self.joined("or", lambda: self.joined("and", self.term))

    def joined(self, word: str, part: Callable[[], Condition]) -> Condition:
        parts = [part()]
        while self.take("name", word):
            parts.append(part())
        return parts[0] if len(parts) == 1 else Combined(word, tuple(parts))

    def term(self) -> Condition:
        negated = self.take("name", "not") is not None
        if not (negated or self.take("sign", "(")):
            return self.comparison()
        self.depth += 1
        if self.depth > DEPTH:
            raise InputError(f"query: nested more than {DEPTH} deep; write it flatter")
        inner = Negated(self.term()) if negated else self.condition()
        if not negated:
            self.need("sign", ")")
        self.depth -= 1
        return inner

    def comparison(self) -> Condition:
        column = self.column()
        if self.take("name", "is"):
            negated = self.take("name", "not") is not None
            self.need("name", "null")
            return Negated(Missing(column)) if negated else Missing(column)
        negated = self.take("name", "not") is not None
        if self.take("name", "in"):
            self.need("sign", "(")
            chosen = Compare(column, "in", tuple(self.separated(self.literal)))
            self.need("sign", ")")
            return Negated(chosen) if negated else chosen
        sign = None if negated else self.take("sign", *_COMPARE)
        if sign is None:
            raise self.fail("a comparison")
        return Compare(column, sign, (self.literal(),))

    def literal(self) -> Literal:
        number = self.take("number")
        if number is not None:
            return float(number)
        text = self.take("text")
        if text is None:
            raise self.fail("a number or a 'text'")
        return text[1:-1].replace("''", "'")


def _tokens(text: str) -> list[tuple[str, str, int]]:
    if len(text) > 10_000:
        raise InputError("query: give a text of at most 10,000 characters")
    odd = UNREADABLE.search(text)
    if odd and not odd[0].isspace():
        raise InputError(
            f"query: control character {odd[0]!r} at character {odd.start() + 1}; leave it out"
        )
    tokens, at = [], 0
    while at < len(text.rstrip()):
        match = _TOKEN.match(text, at)
        if match is None:
            raise InputError(
                f"query: cannot read {text[at : at + 10].strip()!r} at character {at + 1} of "
                f"{text!r}; {_EXAMPLE}"
            )
        kind = str(match.lastgroup)
        tokens.append((kind, match.group(kind), match.start(kind)))
        at = match.end()
    return [*tokens, ("end", "", len(text))]


def _check_arguments(aggregate: str, columns: list[str], numbers: list[float]) -> None:
    least, most, fewest, wanted = _SHAPES[aggregate]
    levels = aggregate in ("quantile", "interval")
    if levels and not (numbers and all(0 < level < 1 for level in numbers)):
        raise InputError(
            f"query: {aggregate} needs its level, in (0, 1); as in {aggregate}(income, 0.5)"
        )
    if not (least <= len(columns) <= most and fewest <= len(numbers) <= wanted):
        raise InputError(
            f"query: {aggregate} takes {least} to {most} columns and up to {wanted} numbers, not "
            f"{len(columns)} and {len(numbers)}"
        )
    if levels and len(set(numbers)) != len(numbers):
        raise InputError("query: a level is given twice; give each once")
    bins = numbers[0] if aggregate == "histogram" and numbers else 10.0
    if not (bins.is_integer() and 1 <= bins <= 10_000):
        raise InputError(f"query: histogram with {bins:g} bins; give a whole number to 10,000")
