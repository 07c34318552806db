"""The page of an answer: its numbers, a chart with their intervals, and what is promised."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from apiece._text import percent, shown
from apiece._types import Json
from apiece.contract import explain

if TYPE_CHECKING:
    from apiece.queries import Answer

# Columns of numbers; all others are words.
NUMBERS: Final = ("estimate", "low", "high")
# Numbers of a chart, at most.
MOST: Final = 60
# ε that `explain` puts in words, at most.
_MOST_EPSILON: Final = 1000


def describe_answer(answer: Answer) -> Json:
    """Return what the page of an answer shows, by the names in its template."""
    # An answer is there only where both packages are.
    from apiece.queries.adjusting import make_rows
    from apiece.reporting.figures import estimates

    numbers = make_rows(answer.groups, answer.query, rounded=True)
    head = list(dict.fromkeys(name for row in numbers for name in row))
    if not _has_intervals(numbers):
        head = [name for name in head if name not in ("low", "high")]
    panels: dict[str, list[Json]] = {}
    for row in make_rows(answer.groups, answer.query, rounded=False):
        # Values that were found have no numbers.
        if "estimate" in row:
            panels.setdefault(str(row.get("statistic", "")), []).append(row)
    # A chart of one number says nothing, and one of too many cannot be read.
    charts = {name: rows for name, rows in panels.items() if 1 < len(rows) <= MOST}
    return {
        "query": answer.query,
        "head": head,
        "words": [name for name in head if name not in NUMBERS],
        "rows": [[_write_cell(row.get(name, "")) for name in head] for row in numbers],
        "figures": [estimates(rows, name) for name, rows in charts.items()],
        "hidden": sum(len(rows) for rows in panels.values() if len(rows) > MOST),
        "most": MOST,
        "reading": _write_reading(answer, numbers),
        "promises": _write_promises(answer),
    }


def _has_intervals(rows: Sequence[Mapping[str, Any]]) -> bool:
    return any(not math.isnan(row.get("low", math.nan)) for row in rows)


def _write_cell(value: object) -> str:
    """Return a cell of the table: numbers with the digits that they were rounded to."""
    if not isinstance(value, float):
        return str(value)
    if math.isnan(value):
        return "–"
    return f"{value:,.0f}" if value == round(value) else f"{value:,.12g}"


def _write_reading(answer: Answer, rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return what the numbers are, in sentences."""
    sentences = [f"What is counted: {answer.counted}."]
    if answer.counted == "rows":
        sentences.append(
            f"A person brings at most {answer.rows_per_person} rows; others are left out."
        )
    if _has_intervals(rows):
        sentences.append(
            f"An interval covers the number of those who took part in {percent(answer.confidence)} "
            "of answers: it is about the noise, and not about whom the table lacks, values beyond "
            "the declared bounds, or people whose budget is spent."
        )
        sentences.append(
            "Numbers are rounded to two digits of half their interval, and intervals outwards."
        )
    return sentences


def _write_promises(answer: Answer) -> list[str]:
    """Return what is promised to everybody in the table, in sentences."""
    sentences = [
        f"{answer.guarantee}.",
        f"The person who adds the most loses at most ε = {shown(answer.epsilon)} at δ = "
        f"{shown(answer.delta)}; whoever adds less loses less.",
    ]
    # Of a larger ε nothing is promised that a sentence could say.
    if answer.epsilon <= _MOST_EPSILON:
        sentences += explain(answer.epsilon, answer.delta).sentences
    sentences.append(f"Name of the analysis: {answer.analysis_id}.")
    return sentences
