"""Figures, the closing table and the self-contained HTML page; sees results, never models."""

from apiece.report.closing import closing_table
from apiece.report.page import render

__all__ = ["closing_table", "render"]
