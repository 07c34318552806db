"""Private queries over tables, with an individual charge."""

from apiece.queries.estimates import FIELDS
from apiece.queries.grammar import Query, parse
from apiece.queries.noise import rounded_gaussians
from apiece.queries.schema import Schema
from apiece.queries.session import Answer, Session
from apiece.queries.spark import SparkTable, register_on_spark, start_spark
from apiece.queries.standing import release_standing
from apiece.queries.table import Table, register

__all__ = [
    "FIELDS",
    "Answer",
    "Query",
    "Schema",
    "Session",
    "SparkTable",
    "Table",
    "parse",
    "register",
    "register_on_spark",
    "release_standing",
    "rounded_gaussians",
    "start_spark",
]
