"""The self-contained HTML page of a run, made from its metrics alone."""

from __future__ import annotations

import math
from typing import Any

from apiece._text import plain
from apiece.reporting import figures
from apiece.reporting.closing import accuracy_text, beats, release_title, spent_text

_SHOWN = 40  # rows of a table; plan.json has every group


def render(metrics: dict[str, Any]) -> str:
    """Return report.html for the content of a run's metrics.json.

    The page loads nothing from anywhere: style and figures are in it. Every text from the data is
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
        "accuracy": accuracy_text,
        "spent": spent_text,
        "percent": _percent,
        "total": _total,
        "release_title": release_title,
    }
    accuracy = figures.accuracy(metrics)
    kept = _kept(metrics)
    return environment.get_template("run.html.j2").render(
        m=metrics,
        kept=kept,
        shown=_SHOWN,
        statements=[_statement(group) for group in kept["plan"]["groups"][:_SHOWN]],
        gains=beats(metrics),
        # In the figures, matplotlib escapes the texts that `figure_text` let through.
        accuracy_figure=None if accuracy is None else Markup(accuracy),
        budget_figure=Markup(figures.budgets(metrics)),
    )


def _shown(value: Any) -> Any:
    """Make what a page shows plain; figures, which are marked up already, stay as they are."""
    return plain(value) if type(value) is str else value


def _kept(metrics: dict[str, Any]) -> dict[str, Any]:
    """Return the strategy whose model is in the folder."""
    name = metrics["training"]["strategy"]
    found: dict[str, Any] = next(s for s in metrics["strategies"] if s["strategy"] == name)
    return found


def _statement(group: dict[str, Any]) -> dict[str, Any]:
    """Return a group's promise in words' numbers: how often a fair guess at membership is right.

    For a prior of one half the best test is right with probability (1 + advantage)/2 at most
    (Kaiser et al. 2026 §VI); rounded up.
    """
    return group | {"guess": math.ceil(1000 * (1 + group["advantage"]) / 2) / 10}


def _percent(share: float) -> str:
    return f"{100 * share:.2f} %"


def _total(group: dict[str, Any]) -> str:
    return spent_text(group | {"saturated": False})
