"""Synthetic tables from people with their own budgets."""

from apiece._lazy import require

require("synthesis", "sqlalchemy", "duckdb", "pandas", "pyarrow")

from apiece.synthesis.charges import Charges, Count  # noqa: E402
from apiece.synthesis.front import Step, expect_errors, synthesize  # noqa: E402
from apiece.synthesis.statement import require_bound  # noqa: E402
from apiece.synthesis.synthetic import Synthetic  # noqa: E402

__all__ = [
    "synthesize", "Synthetic", "Charges", "Count", "Step", "expect_errors", "require_bound",
]  # fmt: skip
