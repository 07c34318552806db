"""What a query says after `where`, as a tree of frozen values, and how it becomes SQL.

The tree names columns and holds literals; which column of the registered table is meant, and how
it compares, follows from the kind that the schema declares for it, never from the data.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final

from apiece.errors import InputError
from apiece.queries.dialects import DUCKDB, Dialect, number_sql
from apiece.queries.schema import Schema

MOMENT: Final = r"\d{4}-\d{2}-\d{2}([ T]\d{2}:\d{2}(:\d{2}(\.\d{1,6})?)?)?"  # ASCII digits
Literal = float | str
_LIKE: Final = {
    "numeric": "a finite number, as in 18",
    "text": "a text in quotes, as in 'north'",
    "date": "a date in quotes, as in '2024-01-31' or '2024-01-31 18:30'",
}


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
    """What is not so. Of a missing cell neither a comparison nor its negation is so."""

    part: Condition


@dataclass(frozen=True, slots=True)
class Joined:
    """Several conditions, joined by one word: and, or."""

    word: str
    parts: tuple[Condition, ...]


Condition = Compare | Missing | Negated | Joined


def condition_sql(condition: Condition, schema: Schema, dialect: Dialect = DUCKDB) -> str:
    """Return the condition over the columns of the registered table; it cannot fail on any row.

    Raises `DataError` for a column without a declared kind, `InputError` for a literal of another
    kind than its column's.
    """
    match condition:
        case Joined(word, parts):
            inner = f" {word.upper()} ".join(condition_sql(p, schema, dialect) for p in parts)
            return f"({inner})"
        case Negated(part):
            return f"(NOT {condition_sql(part, schema, dialect)})"
        case Missing(column):
            return f"({schema.stored(column, schema.kind_of(column))} IS NULL)"
        case Compare(column, sign, literals):
            kind = schema.kind_of(column)
            values = ", ".join(_literal(column, kind, value, dialect) for value in literals)
            right = f"({values})" if sign == "in" else values
            return f"({schema.stored(column, kind)} {sign.upper()} {right})"


def _moment(text: str) -> int | None:
    """Return microseconds since 1970, in UTC; None for what is no date."""
    try:
        found = datetime.fromisoformat(text).replace(tzinfo=UTC)
    except ValueError:
        return None
    if re.fullmatch(MOMENT, text, re.ASCII) is None:
        return None
    return (found - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)


def _literal(column: str, kind: str, value: Literal, dialect: Dialect) -> str:
    match kind, value:
        case "numeric", float() if math.isfinite(value):
            return number_sql(value)
        case "text", str():
            return dialect.text(value)
        case "date", str() if (moment := _moment(value)) is not None:
            return str(moment)
    raise InputError(
        f"query: column {column!r} is declared {kind}, so it cannot be compared with {value!r}; "
        f"give {_LIKE[kind]}"
    )
