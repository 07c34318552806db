"""The self-contained HTML page of a run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from apiece._text import plain
from apiece.reporting import figures
from apiece.reporting.closing import gains, held_out, release_title, rounded_up, spent_text

if TYPE_CHECKING:
    from apiece.jobs import Run

_SHOWN = 40  # rows of a table; plan.json has every group


def render(run: Run) -> str:
    """Return the page of a run.

    It loads nothing from anywhere: style and figures are in it. Every text from the data is
    escaped.
    """
    from jinja2 import Environment, PackageLoader, StrictUndefined
    from markupsafe import Markup

    environment = Environment(
        loader=PackageLoader("apiece.reporting"),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=_shown,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "spent": spent_text,
        "percent": _percent,
        "rounded_up": rounded_up,
        "release_title": release_title,
    }
    accuracy = figures.accuracy(run)
    return environment.get_template("run.html.j2").render(
        run=run,
        kept=run.kept,
        shown=_SHOWN,
        gains=gains(run),
        held_out=held_out(run),
        # In the figures, matplotlib escapes the texts that `figure_text` let through.
        accuracy_figure=None if accuracy is None else Markup(accuracy),
        budget_figure=Markup(figures.budgets(run)),
    )


def _shown(value: Any) -> Any:
    """Make what a page shows plain; figures, which are marked up already, stay as they are."""
    return plain(value) if type(value) is str else value


def _percent(share: float) -> str:
    return f"{100 * share:.2f} %"
