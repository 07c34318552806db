"""Tables of people: one reading of a cell, whatever container it lies in."""

from apiece.tables.containers import pandas_of
from apiece.tables.values import (
    ISO,
    Declared,
    boolean_of,
    moment_of,
    number_of,
    plain_text,
    text_of,
)

__all__ = [
    "ISO", "Declared", "boolean_of", "moment_of", "number_of", "pandas_of",
    "plain_text",    "text_of",
]  # fmt: skip
