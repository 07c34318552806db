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
  apiece report runs/first --as statement --language de
  apiece report runs/first --as card --language de
  apiece report runs/first --as card --out README.md
  apiece report runs/first --controller "County Hospital" --contact privacy@example.org
  apiece report plan.json --edition public --levels low=1,high=8 --out plan.html
"""
# The name of the page in a run folder, by edition.
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
@option("--language", default="en", help="en or de: of a statement's page or a model card.")
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
    language: str,
    out: Path | None,
    as_json: bool,
    **words: str | None,
) -> None:
    """Write the page of SOURCE, a run folder or a plan's JSON, as one HTML file that loads nothing.

    With --as it writes another paper of a run, made from its statement alone. A run folder is read
    as by Run.load: what can be computed again is, and must agree. --purpose, --controller,
    --contact and --valid-until go into all the folder's papers; what was promised and measured
    stays.
    """
    from apiece.reporting.catalogue import LANGUAGES
    from apiece.reporting.papers import PAPERS, TRANSLATED
    from apiece.reporting.sections import EDITIONS

    if edition not in EDITIONS:
        raise OptionError(f"--edition = {edition!r}: must be {' or '.join(EDITIONS)}")
    if kind not in ("page", *PAPERS):
        raise OptionError(f"--as = {kind!r}: must be page, {', '.join(PAPERS)}")
    if language not in LANGUAGES:
        raise OptionError(f"--language = {language!r}: must be {' or '.join(LANGUAGES)}")
    if language != LANGUAGES[0] and not set(PAPERS.get(kind, ())) & set(TRANSLATED):
        raise InputError(
            f"--language {language}: is for --as statement and --as card; the {kind} is in "
            "English: leave it out"
        )
    # All refusals come before the folder's papers are completed, which writes to it.
    _check_source(source, out)
    given_words = {name: value for name, value in words.items() if value is not None}
    if levels and source.is_dir():
        raise InputError("--levels: are for the page of a plan; a run has those of its config")
    # Only a run folder has papers into which the words could go.
    if given_words and not source.is_dir():
        raise InputError(
            f"{make_flag(min(given_words))}: is for a run folder, which {source} is not; leave it "
            "out"
        )
    if kind != "page":
        if levels or edition != EDITIONS[0] or not source.is_dir():
            raise InputError(
                f"--as {kind}: is of a run folder, and for everyone; give a run folder, and leave "
                "out --edition and --levels (which a training declares: train --levels)"
            )
        files = _write_papers(source, kind, out, given_words, language)
        document = files
    else:
        from apiece.reporting import report

        path = source / NAMES[edition] if out is None else out
        check_output(path, PAGE)
        subject = read_source(source, given_words)
        page = report(subject, edition=edition, levels=_parse_levels(levels))
        files = {"report": str(page.save(path))}
        document = {"edition": edition, **files}
    emit(as_json, document, f"Open {' and '.join(map(plain, files.values()))}")


def _check_source(source: Path, out: Path | None) -> None:
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


def _write_papers(
    source: Path, kind: str, out: Path | None, words: dict[str, str], language: str
) -> dict[str, str]:
    """Write the papers of a kind, after all of them were made; return their files by name."""
    from apiece.jobs.results import STATEMENT
    from apiece.reporting.papers import PAPERS, TRANSLATED

    papers = PAPERS[kind]
    paths = _choose_paths(source, kind, out, language)
    for name, path in paths.items():
        file_kind, _ = papers[name]
        check_output(path, file_kind)
    # Holds the statement against everything else in the folder.
    read_source(source, words)
    statement = json.loads(read_text(source / STATEMENT))
    # All papers are made before the first is written.
    contents = {}
    for name in paths:
        _, make_paper = papers[name]
        words_of_paper = (language,) if name in TRANSLATED else ()
        contents[name] = make_paper(statement, *words_of_paper)
    for name, path in paths.items():
        file_kind, _ = papers[name]
        write(path, contents[name], file_kind)
    return {name: str(path) for name, path in paths.items()}


def _choose_paths(source: Path, kind: str, out: Path | None, language: str) -> dict[str, Path]:
    """Return the path of each paper of a kind that is written, by its name."""
    from apiece.reporting.catalogue import LANGUAGES
    from apiece.reporting.papers import PAPERS, TRANSLATED

    papers = PAPERS[kind]
    folder = source if out is None else out
    if out is None or (len(papers) > 1 and (out.is_dir() or not out.suffix)):
        paths = {name: folder / name for name in papers}
        if language != LANGUAGES[0]:
            # Beside the English paper, and not in its place.
            for name in set(papers) & set(TRANSLATED):
                path = paths[name]
                paths[name] = path.with_suffix(f".{language}{path.suffix}")
        return paths
    # One file: of several papers the one that its ending asks for.
    fitting = [name for name, (file_kind, _) in papers.items() if out.suffix in file_kind.endings]
    if not fitting and len(papers) > 1:
        raise DataError(
            f"{out}: of a {kind}, .json is for machines and .pdf is the page for people; "
            "give such a name, or a folder for both"
        )
    name = next(iter(fitting or papers))
    return {name: out}


def read_source(source: Path, words: dict[str, str]) -> Run | Plan:
    """Return the run of a folder, its papers completed, or the plan in a file."""
    if source.is_file():
        return read_plan(source)
    from apiece.reporting.papers import complete_papers

    return complete_papers(source, **words)


def _parse_levels(text: str | None) -> str | list[tuple[float, float]]:
    """Return levels by name as they were given, or pairs of ε:δ."""
    if text is None or ":" not in text or "=" in text:
        return text or []
    try:
        pairs = [tuple(map(float, part.split(":"))) for part in text.split(",")]
        return [(epsilon, delta) for epsilon, delta in pairs]
    except ValueError:
        raise InputError(f"--levels = {text!r}: must be low=1,high=8, or ε:δ, as 1:1e-5") from None
