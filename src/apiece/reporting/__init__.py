"""Pages, figures and the closing table of results; no model is needed to make them.

What draws or fills in pages needs the extra `reports`, and is loaded when it is first asked for.
"""

from typing import TYPE_CHECKING

from apiece import _lazy

if TYPE_CHECKING:
    from apiece.reporting.pages import Report, report
    from apiece.reporting.plots import promise, save

__all__ = ["report", "Report", "promise", "save"]
__getattr__ = _lazy.names_of(
    __name__, {"pages": ("Report", "report"), "plots": ("promise", "save")}, extra="reports"
)
