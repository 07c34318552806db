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
    """One self-contained HTML page: it loads nothing from anywhere.

    Attributes:
        html: The page.

    Example:
        >>> Report("<p>One page</p>")
        Report(15 characters)
    """

    html: str

    def save(self, path: str | Path) -> Path:
        """Write the page, whole or not at all, and return the path.

        Args:
            path: Of the file.

        Returns:
            The same path.

        Raises:
            DataError: Where it cannot be written.
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

    Args:
        run: A finished one, such as `Run.load(folder)`.

    Example:
        >>> from apiece import Budgets, Scale, assign
        >>> from apiece.jobs import Facts, Run, Trained
        >>> plan = assign(Budgets([2.0] * 100, 1e-5), Scale(), steps=10, expected_batch_size=10,
        ...               clip_norm=1.0)
        >>> facts = Facts("people.csv", False, "income", ("low", "high"), "adult", 3, 100, 0, None,
        ...               False)
        >>> settings = dict(batch_size=10, steps=10, clip_norm=1, learning_rate=1, momentum=0)
        >>> found = Trained("scale", plan, settings, None, (), 1.0)
        >>> run = Run("1.0", "first", facts, "scale", (), None, None, None, (found,), 1, ())
        >>> "income" in report(run).html
        True
    """
    return Report(render(run))
