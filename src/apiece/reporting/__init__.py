"""Figures, the closing table and the self-contained HTML page; sees results, never models."""

from apiece.reporting.closing import closing_table
from apiece.reporting.contributor_page import contributor_page
from apiece.reporting.curve_figures import png, privacy_curves
from apiece.reporting.heatmap import risk_map
from apiece.reporting.pages import Report, report
from apiece.reporting.promise_figures import promise
from apiece.reporting.sections import EDITIONS
from apiece.reporting.sensitivity_figures import partial_sensitivity_surface, save
from apiece.reporting.statement_page import statement_pdf

__all__ = [
    "EDITIONS",
    "Report",
    "closing_table",
    "contributor_page",
    "partial_sensitivity_surface",
    "png",
    "privacy_curves",
    "promise",
    "report",
    "risk_map",
    "save",
    "statement_pdf",
]
