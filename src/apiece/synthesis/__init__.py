"""Synthetic tables from people with their own budgets."""

from apiece._lazy import require

require("synthesis", "sqlalchemy", "duckdb", "pandas", "pyarrow")

from apiece.synthesis.charges import Charges, Count  # noqa: E402
from apiece.synthesis.front import Step, synthesize  # noqa: E402
from apiece.synthesis.synthetic import Synthetic  # noqa: E402

__all__ = [
    "synthesize", "Synthetic", "Charges", "Count", "Step",
]  # fmt: skip
