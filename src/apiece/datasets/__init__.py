"""Packaged tables, public schemas, and readers of the files that people have."""

from apiece.datasets.cells import Date
from apiece.datasets.packaged import PACKAGED, load, packaged_schema
from apiece.datasets.schema import Categorical, Numeric, Schema, Skip, read_schema
from apiece.datasets.tables import read_table

__all__ = [
    "PACKAGED",
    "Categorical",
    "Date",
    "Numeric",
    "Schema",
    "Skip",
    "load",
    "packaged_schema",
    "read_schema",
    "read_table",
]
