"""Private queries over tables, with an individual charge."""

from typing import TYPE_CHECKING

from apiece._lazy import names_of, require

require("queries", "sqlalchemy", "duckdb", "pandas", "pyarrow")

if TYPE_CHECKING:
    from apiece.queries.session import (
        Answer,
        QueryCost,
        Session,
        least_epsilon,
        query_cost,
    )
    from apiece.queries.spark import register_on_spark
    from apiece.queries.table import register

__all__ = [
    "register", "Session", "Answer", "query_cost", "QueryCost", "least_epsilon",
    "register_on_spark",
]  # fmt: skip
# Loaded when first asked for, so that a recorded answer is told at once.
__getattr__ = names_of(
    __name__,
    {
        "session": (
            "Answer",
            "QueryCost",
            "Session",
            "least_epsilon",
            "query_cost",
        ),
        "spark": ("register_on_spark",),
        "table": ("register",),
    },
)
