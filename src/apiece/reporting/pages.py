"""report: what was planned, run or found → a page that stands alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from apiece._files import PAGE, write
from apiece.errors import unknown
from apiece.reporting.declared import require_no_objections, subject_of
from apiece.reporting.page import render
from apiece.reporting.sections import EDITIONS

if TYPE_CHECKING:
    from apiece.audit import Findings
    from apiece.jobs import Run
    from apiece.plan import Plan


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
            path: Of the file, which ends in .html. Of what is there only a page that apiece wrote
                is replaced.

        Returns:
            The same path.

        Raises:
            DataError: Where it cannot be written, or would take the place of something else.
        """
        write(path, self.html, PAGE)
        return Path(path)

    def __repr__(self) -> str:
        """Return the size; the page speaks for itself."""
        return f"Report({len(self.html)} characters)"

    def _repr_html_(self) -> str:
        return self.html


def report(
    value: Plan | Run | Findings,
    *,
    edition: str = "internal",
    levels: Sequence[tuple[float, float]] = (),
) -> Report:
    """Return the page of a plan, a run or what an audit found.

    The internal edition is for the steward: it has accuracy on held-out people without noise, and
    how many chose which budget. Names from the data are escaped. The same value gives the same
    page, to the byte.

    Args:
        value: A plan, a finished run such as `Run.load(folder)`, or findings of an audit.
        edition: "internal", or "public".
        levels: For a plan, the pairs (ε, δ) that people could choose from, which a public edition
            may then name. A run has those of its config.

    Raises:
        InputError: For anything else, levels that a plan's budgets are not among, and a public
            edition of a plan with objections.

    Guarantee:
        A public edition is a function of what was declared before anybody's data were read, and of
        what was released with noise. Two tables that differ in anyone's rows or budget give the
        same bytes, as long as the same was declared of them and neither is refused. It lists what
        it leaves out, and why. Of public data nothing has to be left out.

    Example:
        >>> from apiece import Budgets, Scale, assign
        >>> plan = assign(Budgets([2.0] * 100, 1e-5), Scale(), steps=10, expected_batch_size=10,
        ...               clip_norm=1.0)
        >>> "100" in report(plan).html, "ε = 2" in report(plan, edition="public").html
        (True, False)
        >>> "ε = 2" in report(plan, edition="public", levels=[(2.0, 1e-5), (4.0, 1e-5)]).html
        True
    """
    if edition not in EDITIONS:
        raise unknown("edition", edition, EDITIONS)
    subject = subject_of(value, levels)
    if edition == "public":
        require_no_objections(subject)
    return Report(render(subject, edition))
