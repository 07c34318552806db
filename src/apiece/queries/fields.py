"""The names of an answer's parts.

A recorded answer is told by these before anything heavy is loaded.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from apiece._types import Json

# Names that no grouping column may have.
FIELDS: Final = {
    "estimate", "interval", "edges", "bins", "coefficients", "quantiles", "resolution",
    "rank_margin", "statistics",
}  # fmt: skip
# The beginning of a question in SQL.
_SQL: Final = re.compile(r"\s*(--[^\n]*\n\s*|/\*.*?\*/\s*)*(select|with)\b", re.I | re.S)


def is_sql(text: str) -> bool:
    """Return whether a text is to be read as SQL: whether it begins with SELECT."""
    return _SQL.match(text) is not None


def labels_of(group: Json, query: str) -> Json:
    """Return the own values of a group in an answer to a query, without its numbers."""
    # In SQL the level of a quantile is a part of its estimate, and no column has that name. The
    # short language says no level, and may group by a column of that name.
    parts = {*FIELDS, "level"} if is_sql(query) else FIELDS
    return {name: value for name, value in group.items() if name not in parts}
