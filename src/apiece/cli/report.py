"""apiece report: the page of a finished run or of a plan, for the steward or for anyone."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import click

from apiece._files import PAGE, Kind, check_output, write
from apiece._text import plain
from apiece.cli._command import PATH, Command, Output, echo, option, read_text
from apiece.errors import InputError, OptionError

if TYPE_CHECKING:
    from apiece.jobs import Run
    from apiece.plan import Plan

EXAMPLE = """
\b
Examples:
  apiece report runs/first
  apiece report runs/first --edition public --out public.html
  apiece report runs/first --statement
  apiece report plan.json --edition public --level 1:1e-5 --level 8:1e-5 --out plan.html
"""
_JSON = Kind("a statement", (".json",), b'"statement": "apiece privacy statement')
_PDF = Kind("a statement's page", (".pdf",), b"(apiece statement)")
NAMES = {"internal": "report.html", "public": "report-public.html"}


@click.command(
    cls=Command, short_help="Write the page or the statement of a run or a plan.", epilog=EXAMPLE
)
@click.argument("source", type=PATH)
@option(
    "--edition",
    default="internal",
    help="internal: for the steward; public: without anything computed from people.",
)
@option(
    "--level",
    "levels",
    multiple=True,
    metavar="ε:δ",
    help="Budget that people could choose, for a plan (a run has its config's); repeatable.",
)
@option(
    "--statement",
    is_flag=True,
    help="Write the privacy statement: statement.json, and one page, statement.pdf.",
)
@option(
    "--out",
    type=Output(None),
    help="File of the page, or folder of the statement.  [default: in the run folder]",
)
@option("--json")
def command(
    source: Path,
    edition: str,
    levels: tuple[str, ...],
    statement: bool,
    out: Path | None,
    as_json: bool,
) -> None:
    """Write the page of SOURCE, a run folder or a plan's JSON, as one HTML file that loads nothing.

    A run folder is read as Run.load does: what can be computed again is, and must agree.
    """
    from apiece.reporting.sections import EDITIONS

    if edition not in EDITIONS:
        raise OptionError(f"--edition = {edition!r}: must be {' or '.join(EDITIONS)}")
    if out is None and not source.is_dir():
        raise InputError(f"{source}: is no run folder; for the page of a plan give --out FILE")
    if statement:
        if levels or edition != EDITIONS[0] or not source.is_dir():
            raise InputError(
                "--statement: is of a run folder, and one for everyone; leave out --edition and "
                "--level"
            )
        told = _state(source, source if out is None else out)
    else:
        path = source / NAMES[edition] if out is None else out
        told = _page(source, edition, [_level(text) for text in levels], path)
    files = [plain(value) for name, value in told.items() if name != "edition"]
    echo(json.dumps(told) if as_json else f"Open {' and '.join(files)}")


def _page(
    source: Path, edition: str, levels: list[tuple[float, float]], out: Path
) -> dict[str, str]:
    from apiece.reporting import report

    check_output(out, PAGE)
    page = report(read(source), edition=edition, levels=levels)
    return {"edition": edition, "report": str(page.save(out))}


def _state(source: Path, folder: Path) -> dict[str, str]:
    """Write the statement of a run in both forms, after both were made."""
    from apiece.jobs import Run
    from apiece.jobs.results import STATEMENT
    from apiece.reporting.pages import statement_pdf

    paths = folder / STATEMENT, folder / "statement.pdf"
    for path, kind in zip(paths, (_JSON, _PDF), strict=True):
        check_output(path, kind)
    Run.load(source)  # which holds the statement against everything else in the folder
    said = json.loads(read_text(source / STATEMENT))
    page = statement_pdf(said)
    text = json.dumps(said, indent=2, ensure_ascii=False) + "\n"
    write(paths[0], text, _JSON)
    write(paths[1], page, _PDF)
    return {"statement": str(paths[0]), "page": str(paths[1])}


def read(source: Path) -> Run | Plan:
    """Return the run of a folder, or the plan in a file; raise `InputError` for what is neither."""
    from apiece.jobs import Run
    from apiece.plan import Plan

    if source.is_file():
        return Plan.from_json(read_text(source))
    return Run.load(source)


def _level(text: str) -> tuple[float, float]:
    try:
        epsilon, delta = map(float, text.split(":"))
    except ValueError:
        raise InputError(f"--level = {text!r}: must be ε:δ, as in 1:1e-5") from None
    return epsilon, delta
