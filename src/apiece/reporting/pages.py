"""report: what was planned, run or found → a page that stands alone."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from apiece._files import write_whole
from apiece.reporting.run_page import render

if TYPE_CHECKING:
    from apiece.jobs import Run


@dataclass(frozen=True, slots=True)
class Report:
    """One self-contained HTML page: it loads nothing from anywhere."""

    html: str

    def save(self, path: str | Path) -> Path:
        """Write the page to `path`, whole or not at all, and return the path.

        Raises `DataError` where it cannot be written.
        """
        write_whole(Path(path), self.html)
        return Path(path)

    def __repr__(self) -> str:
        """Return the size; the page speaks for itself."""
        return f"Report({len(self.html)} characters)"

    def _repr_html_(self) -> str:
        return self.html


def report(run: Run) -> Report:
    """Return the report of a run: what was promised, what was spent, and what is not covered.

    It is for the steward: accuracy is of held-out people, without noise. Names from the data are
    escaped. The same run gives the same page, to the byte.
    """
    return Report(render(run))
