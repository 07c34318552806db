"""Private queries over tables, with an individual charge."""

# Imports stand behind the check that what they need is installed.
# ruff: noqa: E402

from apiece._lazy import require

require("queries", "sqlalchemy", "duckdb", "pandas", "pyarrow")

from apiece.queries.session import (
    Answer,
    QueryCost,
    Session,
    least_epsilon,
    query_cost,
    release_standing,
)
from apiece.queries.spark import register_on_spark, start_spark
from apiece.queries.table import register

__all__ = [
    "register", "Session", "Answer", "query_cost", "QueryCost", "least_epsilon", "release_standing",
    "start_spark", "register_on_spark",
]  # fmt: skip
