"""Papers made from a statement alone: a PDF, a registry record, a model card and a CycloneDX BOM.

A statement is a function of what was declared, and so are they: each may go to anyone. What the
steward says in them can be completed after a training; nothing else of a run changes.
"""

from __future__ import annotations

import json
import re
import shutil
import unicodedata
import uuid
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from apiece import _json
from apiece._files import Kind
from apiece._lazy import optional
from apiece._text import guessing, plain, shown
from apiece._types import Json
from apiece.errors import InputError, UnsupportedError
from apiece.jobs import Run, statement_of
from apiece.jobs.config import read_words
from apiece.jobs.prepared import RunFolder
from apiece.jobs.results import COMPLETED, CONFIG, METRICS, MODEL, REPORT, STATEMENT
from apiece.jobs.statement import digest_config, to_text
from apiece.reporting.pages import environment, report
from apiece.reporting.sections import ALONE, MADE, promised_cards

if TYPE_CHECKING:
    from fpdf import FPDF

# Sizes of the font in points; the first at which all is on two pages is taken.
_SIZES = (10.0, 9.0, 8.0, 7.0, 6.0)
# Levels that the page shows; all are in statement.json.
_LEVELS = 12
# Characters that the page shows of a text that somebody wrote.
_LONGEST = 300
# Colours in red, green and blue, to 255: of text, of small text, of headings and marks, of the
# ground of a table, and of a warning.
_INK = (28, 39, 51)
_QUIET = (86, 99, 111)
_MARK = (11, 122, 117)
_SOFT = (244, 246, 248)
_WARNING = (180, 60, 0)
# Stands where a paper must say something that nobody declared.
_OPEN = "not stated"


def statement_pdf(statement: Json) -> bytes:
    """Return a statement as a PDF of two pages, A4: one for a board, one for who asks further."""
    # The same statement gives the same bytes. Raises `UnsupportedError` where it does not fit.
    # Source of the questions that it answers: Near et al. 2025.
    optional("fpdf", "pdf")
    from fpdf.fonts import TTFFont

    for size in _SIZES:
        document = _make_document(statement)
        try:
            _draw_pages(document, statement, size)
            if document.page == 2:
                return bytes(document.output())
        finally:
            for font in document.fonts.values():
                if isinstance(font, TTFFont):
                    font.close()
    raise UnsupportedError("statement: does not fit on two pages; shorten the purpose")


def _make_document(statement: Json) -> FPDF:
    """Return a document with its foot, fonts and margins, and one empty page."""
    from fpdf import FPDF
    from matplotlib import get_data_path

    foot = f"{statement['statement']} · SHA-256 {statement['digest']}"

    class Page(FPDF):
        def footer(self) -> None:
            self.set_y(-11)
            self.set_font("page", "", 6.5)
            self.set_text_color(*_QUIET)
            self.cell(0, 4, f"{foot} · page {self.page_no()} of 2")

    document = Page(format="A4", unit="mm")
    # A document has a date, without a day any: the page then names none.
    day = statement["finished"] or "2000-01-01"
    document.set_creation_date(datetime.fromisoformat(day).replace(tzinfo=UTC))
    document.set_title("Privacy statement")
    document.set_creator("apiece statement")
    document.set_lang("en")
    fonts = Path(get_data_path()) / "fonts" / "ttf"
    document.add_font("page", "", fonts / "DejaVuSans.ttf")
    document.add_font("page", "B", fonts / "DejaVuSans-Bold.ttf")
    document.set_draw_color(205, 211, 217)
    document.set_margins(16, 14)
    document.set_auto_page_break(auto=True, margin=14)
    document.add_page()
    return document


def _draw_pages(document: FPDF, statement: Json, size: float) -> None:
    """Draw both pages, more where a page is too short for what is on it."""
    from fpdf.fonts import FontFace, TextStyle

    mechanism = statement["mechanism"]
    trained = (str(mechanism["models_trained"]), "models trained")
    # The number of runs of a search is secret; its mean is public.
    if "runs_on_average" in mechanism:
        trained = (f"{mechanism['runs_on_average']:g}", "runs on average, the best is kept")
    versions = [f"{name} {number}" for name, number in statement["versions"].items()]
    page = environment().get_template("statement.html.j2")
    context = page.new_context({
        "said": statement, "trained": trained, "cut": _cut, "most": _LEVELS,
        "versions": ", ".join(versions),
    })  # fmt: skip
    styles = {
        "h1": TextStyle(font_size_pt=size + 6, font_style="B", color=_INK, b_margin=0.2),
        "h2": TextStyle(font_size_pt=size, font_style="B", color=_INK, t_margin=size * 0.2),
        "h5": TextStyle(font_size_pt=size + 1, font_style="B", color=_WARNING),
        "h6": TextStyle(font_size_pt=size - 2, font_style="B", color=_MARK),
        "p": TextStyle(t_margin=0.01),
        "ul": TextStyle(t_margin=0.01),
        "li": TextStyle(l_margin=3, t_margin=0),
    }

    def write_block(name: str) -> None:
        html = _escape_missing(document, "".join(page.blocks[name](context)))
        document.set_font("page", "", size)
        document.set_text_color(*_INK)
        document.write_html(
            html, tag_styles=styles, table_line_separators=True, li_prefix_color=_MARK
        )

    write_block("head")
    numbers, meanings = zip(*_list_cards(statement, trained), strict=True)
    document.ln(size * 0.4)
    with document.table(
        borders_layout="NONE", first_row_as_headings=False, gutter_width=4, line_height=size * 0.45,
        padding=2, text_align="LEFT",
    ) as table:  # fmt: skip
        bold = FontFace(size_pt=size + 3, emphasis="BOLD", color=_MARK, fill_color=_SOFT)
        table.row(numbers, style=bold)
        table.row(meanings, style=FontFace(size_pt=size - 2, color=_QUIET, fill_color=_SOFT))
    document.ln(size * 0.4)
    write_block("board")
    document.add_page()
    write_block("questions")


def _list_cards(statement: Json, trained: tuple[str, str]) -> list[tuple[str, str]]:
    """Return the three numbers on top of the page, each with its caption."""
    levels = statement["guarantee"]["levels"]
    if levels:
        # The bound by the mechanism itself, where every level has one.
        has_bound = all(level["as_made_at_most"] for level in levels)
        right = "as_made_at_most" if has_bound else "right_of_1000_at_most"
        promises = [(level["epsilon"], level["delta"], level[right]) for level in levels]
        return list(promised_cards(promises, MADE if has_bound else ALONE))
    return [
        trained,
        (f"{statement['mechanism']['settings']['steps']:,g}", "steps of training"),
        (f"1 {statement['unit_of_privacy']['unit']}", "is protected: whether it took part"),
    ]


def _escape_missing(document: FPDF, text: str) -> str:
    """Return a text in which a character that the font lacks is written as its escape."""
    # The font comes from a file, so that it has a map of its characters.
    known = document.fonts["page"].cmap  # type: ignore[union-attr]
    characters = []
    for character in text:
        is_shown = ord(character) in known or character == "\n"
        characters.append(character if is_shown else ascii(character)[1:-1])
    return "".join(characters)


def _cut(text: str, most: int = _LONGEST) -> str:
    """Return a text of at most `most` characters, the last of which says that more were there."""
    safe = plain(text)
    return safe if len(safe) <= most else safe[: most - 1] + "…"


def registry(statement: Json) -> str:
    """Return a draft record for OpenDP's registry of deployments: YAML, written as JSON."""
    # Its schema: github.com/opendp/deployments-registry-data. What the statement does not say, such
    # as the region, is for its authors to fill in. ε and δ are those of the loosest choice.
    #
    # Raises `InputError` for an experiment, which is no deployment, and for a run without a day.
    day = statement["finished"]
    if not statement["for_release"] or day is None:
        raise InputError(
            "registry: of releases alone; this statement is of an experiment, or has no day"
        )
    controller = statement["controller"] or _OPEN
    name = f"Model of {statement['data']['label']}"
    # The slug: letters without accents, in lower case.
    folded = unicodedata.normalize("NFKD", f"{controller} {name} {day[:4]}").lower()
    ascii_text = folded.encode("ascii", "ignore").decode()
    slug = re.sub("[^a-z0-9]+", "-", ascii_text).strip("-")
    levels = statement["guarantee"]["levels"]
    choices = []
    for level in levels:
        epsilon = shown(level["epsilon"])
        delta = shown(level["delta"])
        choices.append(f"{level['name']}: ε = {epsilon}, δ = {delta}")
    record = environment("markdown").get_template("registry.json.j2")
    return record.render(
        said=_change_texts(statement, plain),
        name=plain(name),
        controller=plain(controller),
        slug=slug,
        levels=levels,
        choices=plain("; ".join(choices) or "not declared"),
    )


def _change_texts(value: object, change: Callable[[str], str]) -> object:
    """Return a value of JSON with every text changed; keys stay."""
    if isinstance(value, dict):
        return {key: _change_texts(part, change) for key, part in value.items()}
    if isinstance(value, list):
        return [_change_texts(part, change) for part in value]
    return change(value) if isinstance(value, str) else value


def card(statement: Json) -> str:
    """Return a model card in Markdown, with the front matter of Hugging Face."""
    # Source: Mitchell et al. 2019.
    data = statement["data"]
    form = "tabular" if data["columns"] else "image"
    task = "classification" if data["classes"] else "regression"
    pipeline = f"{form}-{task}"
    markdown = environment("markdown").get_template("card.md.j2")
    return markdown.render(said=statement, guessing=guessing(), pipeline=pipeline) + "\n"


def cyclonedx(statement: Json) -> str:
    """Return a bill of materials of the model: CycloneDX 1.6, JSON."""
    # The digests are in properties: they are of parameters and of a statement, and of no file.
    data = statement["data"]
    mechanism = statement["mechanism"]
    bound = statement["bound_to"] or {}
    versions = dict(statement["versions"])
    tool = {"type": "application", "name": "apiece", "version": versions.pop("apiece")}
    owner = {"organization": {"name": statement["controller"] or _OPEN}}
    properties = {
        "statement": statement["digest"],
        "weights": bound.get("weights"),
        "ledger": bound.get("ledger"),
        "unit": statement["unit_of_privacy"]["unit"],
        "relation": statement["neighbouring"]["relation"],
        "valid until": statement["valid_until"],
        "contact": statement["contact"],
        "strategy": mechanism["strategy"],
    }
    for level in statement["guarantee"]["levels"]:
        budget = f"epsilon {level['epsilon']:g}, delta {level['delta']:g}"
        properties[f"budget {level['name']}"] = budget
    inputs = [f"{name}: {column['kind']}" for name, column in data["columns"].items()]
    outputs = data["classes"] or ["a number"]
    mitigation = f"{mechanism['name']}: {statement['guarantee']['definition']}"
    model = {
        "type": "machine-learning-model", "bom-ref": "model", "name": f"Model of {data['label']}",
        "description": statement["purpose"] or _OPEN,
        "modelCard": {
            "modelParameters": {
                "approach": {"type": "supervised"},
                "task": "classification" if data["classes"] else "regression",
                "architectureFamily": "neural network" if mechanism["hidden"] else "linear model",
                "datasets": [{
                    "type": "dataset", "name": data["schema"], "classification": "personal data",
                    "description": f"columns {', '.join(data['columns'])}",
                    "governance": {"owners": [owner]},
                }],
                "inputs": [{"format": text} for text in inputs],
                "outputs": [{"format": text} for text in outputs],
            },
            "considerations": {
                "useCases": [statement["purpose"] or _OPEN],
                "technicalLimitations": statement["not_covered"],
                "ethicalConsiderations": [{
                    "name": "What the model tells about who took part",
                    "mitigationStrategy": mitigation,
                }],
            },
        },
        "properties": [
            {"name": f"apiece:{name}", "value": value}
            for name, value in properties.items() if value
        ],
    }  # fmt: skip
    metadata = {"tools": {"components": [tool]}, "component": model}
    if statement["finished"]:
        metadata = {"timestamp": f"{statement['finished']}T00:00:00Z", **metadata}
    bom = {
        "bomFormat": "CycloneDX", "specVersion": "1.6", "version": 1,
        "serialNumber": f"urn:uuid:{uuid.uuid5(uuid.NAMESPACE_OID, statement['digest'])}",
        "metadata": metadata,
        "components": [{"type": "library", "bom-ref": name, "name": name, "version": version}
                       for name, version in versions.items()],
    }  # fmt: skip
    return json.dumps(_change_texts(bom, plain), indent=2, ensure_ascii=False) + "\n"


# What `apiece report --as` writes: the default name of each file, its kind, and what makes it.
PAPERS: dict[str, dict[str, tuple[Kind, Callable[[Json], str | bytes]]]] = {
    "statement": {
        "statement.json": (
            Kind("a statement", (".json",), b'"statement": "apiece privacy stat'), to_text
        ),
        "statement.pdf": (
            Kind("a statement's page", (".pdf",), b"(apiece statement)"), statement_pdf
        ),
    },
    "registry": {
        "registry.yaml": (
            Kind("a registry record", (".yaml", ".yml"), b'"url_slug": "'), registry
        ),
    },
    "card": {"card.md": (Kind("a model card", (".md",), b"library_name: apiece"), card)},
    "cyclonedx": {
        "model.cdx.json": (Kind("a bill of materials", (".json",), b'"CycloneDX"'), cyclonedx)
    },
}  # fmt: skip


def complete_papers(folder: str | Path, **words: str) -> Run:
    """Write a run's papers anew with the steward's words, and return the run.

    words: purpose, controller, contact, and valid_until from today on; those not given stay.
    """
    # statement.json, the statement in model.pt, metrics.json, config.toml and report.html are made
    # anew with these words. Weights, plan, promises and figures stay to the bit, and so does what a
    # ledger holds of the model. What was given away before keeps its own words and stays valid. An
    # interruption leaves the old papers or all that is needed for the new ones, which the next call
    # then finishes. Nothing is read but the folder. Raises as `Run.load` and `read_words`.
    from apiece.jobs.model import replace_statement

    folder = Path(folder)
    _move_completed(folder)
    run = Run.load(folder)
    if not words:
        return run
    checked_words = read_words(words)
    papers: dict[str, str | bytes] = {}
    if run.estimator is None:
        import tomli_w

        config = _json.read_toml(folder / CONFIG, "config")
        config["run"] = config.get("run", {}) | checked_words
        papers[CONFIG] = tomli_w.dumps(config)
        run = replace(run, bound=run.bound and replace(run.bound, config=digest_config(config)))
    run = replace(run, **checked_words)  # type: ignore[arg-type]
    statement = statement_of(run)
    papers[METRICS] = run.to_json(indent=2) + "\n"
    papers[STATEMENT] = to_text(statement)
    papers[REPORT] = report(run).html
    papers[MODEL] = replace_statement(folder / MODEL, statement)
    staged = RunFolder(folder / "papers.new")
    for name, content in papers.items():
        staged.write(name, content)
    # From this renaming on, the new papers are the run's: whoever comes next moves them.
    staged.path.rename(folder / COMPLETED)
    _move_completed(folder)
    return run


def _move_completed(folder: Path) -> None:
    """Move complete new papers into their places, if there are any."""
    completed = folder / COMPLETED
    if completed.is_dir():
        for path in completed.iterdir():
            RunFolder(folder).write(path.name, path.read_bytes())
        shutil.rmtree(completed)
