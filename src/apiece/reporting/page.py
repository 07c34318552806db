"""The self-contained HTML page of a subject, in one edition."""

from __future__ import annotations

from typing import Any

from apiece._text import plain, rounded_up
from apiece.reporting.closing import release_title, spent_text
from apiece.reporting.declared import Subject
from apiece.reporting.sections import left_out, shown


def render(subject: Subject, edition: str) -> str:
    """Return the page.

    It loads nothing from anywhere: style and figures are in it. Every text from the data is
    escaped. A section is given what it reads, and nothing else.
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
        "share": _share,
    }
    declared = subject.declared
    sections = [
        (section, Markup(environment.get_template(f"{section.name}.html.j2").render(
            context, declared=declared)))
        for section, context in shown(subject, edition)
    ]  # fmt: skip
    return environment.get_template("page.html.j2").render(
        declared=declared,
        edition=edition,
        sections=sections,
        left_out=left_out(subject, edition),
    )


def _shown(value: Any) -> Any:
    """Make what a page shows plain; figures, which are marked up already, stay as they are."""
    return plain(value) if type(value) is str else value


def _percent(share: float) -> str:
    return f"{100 * share:.2f} %"


def _share(found: Any) -> str:
    """Return a share with its interval, in per cent."""
    if found is None:
        return "nobody"
    return f"{100 * found.value:.1f} % [{100 * found.lower:.1f}, {100 * found.upper:.1f}]"
