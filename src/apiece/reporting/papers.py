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
from datetime import UTC, date, datetime
from functools import cache
from importlib.resources import files
from pathlib import Path

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
from apiece.jobs.trained import TOKENS
from apiece.reporting.catalogue import LANGUAGES, localize, translate
from apiece.reporting.pages import environment, report
from apiece.reporting.sections import promised_cards, write_chance

# Sizes of the font in points; the first at which all is on one page is taken.
_SIZES = (9.0, 8.5, 8.0, 7.5, 7.0, 6.5, 6.0, 5.5)
# Levels that the page shows; all are in statement.json.
_LEVELS = 8
# Characters that the page shows of a text that somebody wrote.
_LONGEST = 300
# Characters that it shows of a name in a table, and of the versions of software.
_LONGEST_NAME = 40
# Stands where a paper must say something that nobody declared.
_OPEN = "not stated"


def statement_pdf(statement: Json, language: str = LANGUAGES[0]) -> bytes:
    """Return a statement as one page: A4, tagged by PDF/UA-1, in a language of the catalogue."""
    # The same statement gives the same bytes. Raises `UnsupportedError` where it does not fit, and
    # `DataError` for a sentence that the catalogue lacks. Source of the questions that it answers:
    # Near et al. 2025.
    typst = optional("typst", "pdf")
    from matplotlib import get_data_path

    content = describe_page(statement, language)
    fonts = Path(get_data_path()) / "fonts" / "ttf"
    year, month, day_of_month = content["day"]
    made_on = datetime(year, month, day_of_month, tzinfo=UTC)
    source = (files("apiece.reporting") / "templates" / "statement.typ").read_bytes()
    for size in _SIZES:
        data = _change_texts(content | {"size": size}, _escape_missing)
        page: bytes = typst.compile(
            source,
            font_paths=[str(fonts)],
            ignore_system_fonts=True,
            format="pdf",
            sys_inputs={"data": json.dumps(data)},
            pdf_standards="ua-1",
            timestamp=made_on,
        )
        if len(re.findall(rb"/Type ?/Page\b", page)) == 1:
            return page
    raise UnsupportedError("statement: does not fit on one page; shorten the purpose")


def describe_page(statement: Json, language: str) -> Json:
    """Return every text of the statement's page, in a language, in the order of the page."""

    def say(name: str, /, **values: str) -> str:
        return translate(name, language, **values)

    def open_text(name: str) -> str:
        return _cut(statement[name]) if statement[name] else say("page.not-stated")

    guarantee = statement["guarantee"]
    mechanism = statement["mechanism"]
    bound = statement["bound_to"]
    ledger = say("page.charged" if mechanism["ledger"] else "page.not-charged")
    made_by = say(
        "page.strategy",
        strategy=mechanism["strategy"],
        accounting=mechanism["accounting"],
        source=say(mechanism["randomness"]),
        ledger=ledger,
    )
    versions = ", ".join(f"{name} {number}" for name, number in statement["versions"].items())
    bound_texts = [say("page.unbound")]
    if bound:
        head = bound["ledger"] or say("page.not-charged")
        bound_texts = [
            say("page.weights", digest=bound["weights"]),
            say("page.ledger", head=head),
            say(bound["means"]),
            say(bound["signature"]),
        ]
    # A document has a date, without a day any: the page then names none.
    day = date.fromisoformat(statement["finished"] or "2000-01-01")
    return {
        "language": language,
        "title": say("page.heading", label=_cut(statement["data"]["label"])),
        "author": open_text("controller"),
        "digest": statement["digest"],
        "day": [day.year, day.month, day.day],
        "kicker": say("page.kicker"),
        "heading": say("page.heading", label=_cut(statement["data"]["label"])),
        "purpose": _cut(statement["purpose"] or ""),
        "warning": "" if statement["for_release"] else say("page.experiment"),
        "cards": [
            {"number": number, "caption": caption}
            for number, caption in _list_cards(statement, language)
        ],
        "promise": _describe_promise(statement, language),
        "left": [
            _describe_section(
                say("page.answers"),
                items=[
                    say("page.controller", text=open_text("controller")),
                    say("page.contact", text=open_text("contact")),
                    say(
                        "page.dates",
                        made=statement["finished"] or say("page.not-stated"),
                        until=statement["valid_until"] or say("page.no-end"),
                    ),
                ],
            ),
            _describe_section(
                say("page.presence"),
                items=[
                    say(statement["unit_of_privacy"]["means"]),
                    say(statement["neighbouring"]["means"]),
                ],
            ),
            _describe_section(
                say("page.covered"), items=[say(text) for text in statement["covered"]]
            ),
            _describe_section(
                say("page.not-covered"), items=[say(text) for text in statement["not_covered"]]
            ),
        ],
        "right": [
            _describe_section(
                say("page.trust"),
                items=[
                    say(text)
                    for text in (*statement["trust"]["trusted"], *statement["trust"]["not_trusted"])
                ],
            ),
            _describe_section(
                say("page.assumed"), items=[say(text) for text in statement["assumptions"]]
            ),
            _describe_section(
                say("page.made"),
                items=[
                    say(guarantee["definition"]),
                    say(guarantee["of"]),
                    say(mechanism["name"]),
                    say(mechanism["sampling"]),
                    made_by,
                    say(guarantee["verified"]),
                    say(guarantee["composition"]),
                    say("page.versions", versions=_cut(versions)),
                ],
            ),
        ],
        "below": _describe_section(say("page.bound"), items=bound_texts),
        "foot": say("page.foot", format=statement["statement"], digest=statement["digest"]),
    }


def _describe_section(title: str, items: list[str]) -> Json:
    """Return a part of the page: a heading and a list."""
    return {"title": title, "items": items}


def _describe_promise(statement: Json, language: str) -> Json:
    """Return the part of the page that says what each budget promises: a table, and its words."""
    guarantee = statement["guarantee"]
    levels = guarantee["levels"]

    def say(name: str, /, **values: str) -> str:
        return translate(name, language, **values)

    def write(value: float) -> str:
        return localize(shown(value), language)

    def count(right: int | None) -> str:
        if right is None:
            return "–"
        return say("page.of-1000", count=localize(f"{right:,}", language))

    if not levels:
        texts = [say("page.undeclared")]
        return {"title": say("page.promise"), "paragraphs": texts, "head": [""], "rows": [],
                "after": []}  # fmt: skip
    is_made = any(level["as_made_at_most"] for level in levels)
    head = [say("page.budget"), "ε", "δ", say("page.alone")]
    if is_made:
        head.append(say("page.as-made"))
    rows = []
    for level in levels[:_LEVELS]:
        row = [
            _cut(level["name"], _LONGEST_NAME),
            write(level["epsilon"]),
            write_chance(level["delta"], language),
            count(level["right_of_1000_at_most"]),
        ]
        if is_made:
            row.append(count(level["as_made_at_most"]))
        rows.append(row)
    after = [say("page.without")]
    if len(levels) > _LEVELS:
        after.append(say("page.more-levels", count=str(len(levels) - _LEVELS)))
    cap = guarantee["no_limit_cap"]
    if cap is not None:
        after.append(say("page.no-limit", epsilon=write(cap)))
    if not is_made:
        after.append(say("page.withheld"))
    return {
        "title": say("page.promise"),
        "paragraphs": [say("page.guessing")],
        "head": head,
        "rows": rows,
        "after": [" ".join(after)],
    }


def _list_cards(statement: Json, language: str) -> list[tuple[str, str]]:
    """Return the three numbers on top of the page, each with its caption."""

    def say(name: str, /, **values: str) -> str:
        return translate(name, language, **values)

    mechanism = statement["mechanism"]
    levels = statement["guarantee"]["levels"]
    if levels:
        # The bound by the mechanism itself, where every level has one.
        has_bound = all(level["as_made_at_most"] for level in levels)
        right = "as_made_at_most" if has_bound else "right_of_1000_at_most"
        promises = [(level["epsilon"], level["delta"], level[right]) for level in levels]
        caption = "card.as-made" if has_bound else "card.alone"
        return list(promised_cards(promises, caption, language))
    trained = (str(mechanism["models_trained"]), say("card.models"))
    # The number of runs of a search is secret; its mean is public.
    if "runs_on_average" in mechanism:
        runs = localize(f"{mechanism['runs_on_average']:g}", language)
        trained = (runs, say("card.runs"))
    steps = localize(f"{mechanism['settings']['steps']:,g}", language)
    return [
        trained,
        (steps, say("card.steps")),
        (say(f"card.unit-{statement['unit_of_privacy']['unit']}"), say("card.protected")),
    ]


@cache
def _read_characters() -> frozenset[int]:
    """Return the characters of the page's font."""
    from fontTools.ttLib import TTFont
    from matplotlib import get_data_path

    path = Path(get_data_path()) / "fonts" / "ttf" / "DejaVuSans.ttf"
    with TTFont(path, lazy=True) as font:
        return frozenset(font.getBestCmap())


def _escape_missing(text: str) -> str:
    """Return a text in which a character that the font lacks is written as its escape."""
    known = _read_characters()
    characters = []
    for character in text:
        is_shown = ord(character) in known
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
    pipeline = "text-generation" if data["schema"] == TOKENS else f"{form}-{task}"
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


# The name of the statement's page.
PDF = "statement.pdf"
# What `apiece report --as` writes: the default name of each file, its kind, and what makes it.
PAPERS: dict[str, dict[str, tuple[Kind, Callable[..., str | bytes]]]] = {
    "statement": {
        "statement.json": (
            Kind("a statement", (".json",), b'"statement": "apiece privacy stat'), to_text
        ),
        PDF: (
            Kind("a statement's page", (".pdf",), b"apiece statement"), statement_pdf
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
