"""Private queries over tables, with an individual charge."""

from apiece.queries.grammar import Query, parse
from apiece.queries.noise import rounded_gaussians
from apiece.queries.schema import Schema
from apiece.queries.session import Answer, Session

__all__ = ["Answer", "Query", "Schema", "Session", "parse", "rounded_gaussians"]
