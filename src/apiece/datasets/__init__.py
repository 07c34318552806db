"""Packaged tables, public schemas, and readers of tables of people."""

from apiece.datasets.cells import Date
from apiece.datasets.keysets import read_values
from apiece.datasets.packaged import load, packaged_schema
from apiece.datasets.schema import (
    Boolean,
    Categorical,
    Lookup,
    Numeric,
    Schema,
    Skip,
    Text,
    read_schema,
)

__all__ = [
    "Schema", "Numeric", "Categorical", "Date", "Boolean", "Text", "Skip", "Lookup",
    "read_schema", "read_values", "load", "packaged_schema",
]  # fmt: skip
