"""What engines write differently; the rest of a scan is one text.

An engine is fit for a scan if, on the types that `reading` leaves, its doubles are those of
IEEE 754 with + − × ÷ floor and round (ties away from zero), its texts compare byte by byte, and its
whole numbers of 38 digits are exact. DuckDB and Spark are, and tests compare them to the bit. For
an engine that cannot be tested here there is no dialect.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Dialect:
    """What an engine's SQL has of its own.

    text: SQL for exactly a text. wide: its type of whole numbers of 38 digits. divided: its sign of
    division without remainder. spread: SQL that makes one row of each of several numbers.
    """

    text: Callable[[str], str]
    wide: str
    divided: str
    spread: Callable[[Sequence[str]], str]


def number_sql(value: float) -> str:
    """Return SQL for exactly this double, in every dialect."""
    return f"CAST('{value!r}' AS DOUBLE)"


def quoted(value: str) -> str:
    """Return SQL for exactly this text where a quote is written twice and nothing else is."""
    return "'" + value.replace("'", "''") + "'"


def coded(value: str) -> str:
    """Return SQL for exactly this text by its bytes: where backslashes and quotes mean more."""
    return f"CAST(X'{value.encode().hex()}' AS STRING)"


DUCKDB: Final = Dialect(quoted, "HUGEINT", "//", lambda cells: f"unnest([{', '.join(cells)}])")
SPARK: Final = Dialect(
    coded, "DECIMAL(38, 0)", "DIV", lambda cells: f"explode(array({', '.join(cells)}))"
)
