"""Figures, the closing table and the self-contained HTML page; sees results, never models."""

from apiece.report.closing import closing_table
from apiece.report.curve_figures import png, privacy_curves
from apiece.report.heatmap import risk_map
from apiece.report.page import render
from apiece.report.sensitivity_figures import partial_sensitivity_surface, save

__all__ = [
    "closing_table",
    "partial_sensitivity_surface",
    "png",
    "privacy_curves",
    "render",
    "risk_map",
    "save",
]
