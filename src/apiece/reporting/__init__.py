"""Pages, figures and the closing table of results; no model is needed to make them."""

from apiece.reporting.pages import Report, report
from apiece.reporting.plots import promise, save

__all__ = ["report", "Report", "promise", "save"]
