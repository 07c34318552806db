"""apiece report: the page and the papers of a finished run, or the page of a plan."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import click

from apiece._files import PAGE, check_output, write
from apiece._text import plain
from apiece.cli._command import (
    PATH,
    Command,
    Output,
    emit,
    make_flag,
    option,
    read_plan,
    read_text,
)
from apiece.errors import DataError, InputError, OptionError

if TYPE_CHECKING:
    from apiece.jobs import Run
    from apiece.plan import Plan

EXAMPLE = """
\b
Examples:
  apiece report runs/first
  apiece report runs/first --edition public --out public.html
  apiece report runs/first --as statement
  apiece report runs/first --as card --out README.md
  apiece report runs/first --controller "County Hospital" --contact privacy@example.org
  apiece report plan.json --edition public --levels low=1,high=8 --out plan.html
"""
NAMES = {"internal": "report.html", "public": "report-public.html"}


@click.command(cls=Command, epilog=EXAMPLE)
@click.argument("source", type=PATH)
@option(
    "--edition",
    default="internal",
    help="internal: for the steward; public: without anything computed from people.",
)
@option(
    "--levels", help="Budgets on offer under a plan, as low=1,high=8 or ε:δ,…; a run has its own."
)
@option(
    "--as",
    "kind",
    default="page",
    help="page (HTML), statement (JSON and PDF), registry (OpenDP's, YAML), card (Markdown) or "
    "cyclonedx (JSON); all but the page are public.",
)
@option("--out", type=Output(None), help="File, or a folder for a statement.  [default: in SOURCE]")
@option("--purpose", help="What the model is for.")
@option("--controller", help="Who answers for the data.")
@option("--contact", help="Whom to ask, such as an address.")
@option("--valid-until", help="Last day of the statement's validity, as 2030-12-31.")
@option("--json")
def command(
    source: Path,
    edition: str,
    levels: str | None,
    kind: str,
    out: Path | None,
    as_json: bool,
    **said: str | None,
) -> None:
    """Write the page of SOURCE, a run folder or a plan's JSON, as one HTML file that loads nothing.

    With --as it writes another paper of a run, made from its statement alone. A run folder is read
    as by Run.load: what can be computed again is, and must agree. --purpose, --controller,
    --contact and --valid-until go into all the folder's papers; what was promised and measured
    stays.
    """
    from apiece.reporting.papers import PAPERS
    from apiece.reporting.sections import EDITIONS

    if edition not in EDITIONS:
        raise OptionError(f"--edition = {edition!r}: must be {' or '.join(EDITIONS)}")
    if kind not in ("page", *PAPERS):
        raise OptionError(f"--as = {kind!r}: must be page, {', '.join(PAPERS)}")
    _refuse_other(source, out)
    words = {name: value for name, value in said.items() if value is not None}
    if levels and source.is_dir():
        raise InputError("--levels: are for the page of a plan; a run has those of its config")
    if words and not source.is_dir():
        raise InputError(
            f"{make_flag(min(words))}: is for a run folder, which {source} is not; leave it out"
        )
    if kind != "page":
        if levels or edition != EDITIONS[0] or not source.is_dir():
            raise InputError(
                f"--as {kind}: is of a run folder, and for everyone; give a run folder, and leave "
                "out --edition and --levels (which a training declares: train --levels)"
            )
        told = _papers(source, kind, out, words)
    else:
        from apiece.reporting import report

        path = source / NAMES[edition] if out is None else out
        check_output(path, PAGE)
        page = report(read(source, words), edition=edition, levels=_levels(levels))
        told = {"edition": edition, "report": str(page.save(path))}
    files = [plain(value) for name, value in told.items() if name != "edition"]
    emit(as_json, told, f"Open {' and '.join(files)}")


def _refuse_other(source: Path, out: Path | None) -> None:
    """Raise `InputError` for a source that is not there, or is a file of a run."""
    if not source.exists():
        raise InputError(
            f"{source}: is not there; give a run folder, as runs/first, or a plan's JSON"
        )
    if source.is_dir():
        return
    if source.name != "plan.json" and (source.parent / "metrics.json").is_file():
        raise InputError(f"{source}: is a file of a run; give its folder, {source.parent}")
    if out is None:
        raise InputError(f"{source}: is no run folder; for the page of a plan give --out FILE")


def _papers(source: Path, kind: str, out: Path | None, words: dict[str, str]) -> dict[str, str]:
    """Write the papers of a kind, after all of them were made."""
    from apiece.jobs.results import STATEMENT
    from apiece.reporting.papers import PAPERS

    papers = PAPERS[kind]
    files = {name: (source / name, how) for name, (how, _) in papers.items()}
    if out is not None and len(files) > 1 and (out.is_dir() or not out.suffix):
        files = {name: (out / name, how) for name, (_, how) in files.items()}
    elif out is not None:
        own = {name: how for name, (_, how) in files.items() if out.suffix in how.endings}
        if not own and len(files) > 1:
            raise DataError(
                f"{out}: of a {kind}, .json is for machines and .pdf is the page for people; "
                "give such a name, or a folder for both"
            )
        name = next(iter(own or files))
        files = {name: (out, files[name][1])}
    for path, how in files.values():
        check_output(path, how)
    read(source, words)  # which holds the statement against everything else in the folder
    said = json.loads(read_text(source / STATEMENT))
    made = {name: papers[name][1](said) for name in files}
    for name, (path, how) in files.items():
        write(path, made[name], how)
    return {name: str(path) for name, (path, _) in files.items()}


def read(source: Path, words: dict[str, str]) -> Run | Plan:
    """Return the run of a folder, its papers completed, or the plan in a file."""
    if source.is_file():
        return read_plan(source)
    from apiece.reporting.papers import complete_papers

    return complete_papers(source, **words)


def _levels(text: str | None) -> str | list[tuple[float, float]]:
    """Return levels by name as they were given, or pairs of ε:δ."""
    if text is None or ":" not in text or "=" in text:
        return text or []
    try:
        pairs = [tuple(map(float, part.split(":"))) for part in text.split(",")]
        return [(epsilon, delta) for epsilon, delta in pairs]
    except ValueError:
        raise InputError(f"--levels = {text!r}: must be low=1,high=8, or ε:δ, as 1:1e-5") from None
