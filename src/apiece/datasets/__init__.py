"""Packaged tables, public schemas, and readers of tables of people."""

from apiece.datasets.cells import Date
from apiece.datasets.packaged import load, packaged_schema
from apiece.datasets.schema import Categorical, Numeric, Schema, Skip, read_schema
from apiece.datasets.tables import read_table

__all__ = [
    "Schema", "Numeric", "Categorical", "Date", "Skip", "read_schema", "read_table", "load",
    "packaged_schema",
]  # fmt: skip
