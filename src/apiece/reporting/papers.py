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
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime
from functools import cache
from importlib.resources import files
from pathlib import Path

from apiece import _json
from apiece._files import Kind
from apiece._lazy import optional
from apiece._text import plain, shown
from apiece._types import Json
from apiece.errors import InputError, UnsupportedError
from apiece.jobs import Run
from apiece.jobs.config import read_words
from apiece.jobs.prepared import RunFolder
from apiece.jobs.results import COMPLETED, CONFIG, METRICS, MODEL, REPORT, STATEMENT, statement_of
from apiece.jobs.statement import digest_config, to_text
from apiece.jobs.trained import TOKENS
from apiece.reporting.catalogue import LANGUAGES, has_text, localize, translate
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

    # Fonts come with matplotlib, and the day from the statement, so that the page is the same on
    # every machine.
    content = describe_page(statement, language)
    fonts = Path(get_data_path()) / "fonts" / "ttf"
    year, month, day_of_month = content["day"]
    made_on = datetime(year, month, day_of_month, tzinfo=UTC)
    source = (files("apiece.reporting") / "templates" / "statement.typ").read_bytes()
    for size in _SIZES:
        data = _change_texts(content | {"size": size}, _escape_missing)
        # Neither a font of this machine nor its clock may show in the page.
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
    page = _Page(statement, language)
    # A document has a date, without a day any: the page then names none.
    day = date.fromisoformat(statement["finished"] or "2000-01-01")
    return {
        "language": language,
        "title": page.heading,
        "author": page.declared("controller"),
        "digest": statement["digest"],
        "day": [day.year, day.month, day.day],
        "kicker": page.say("page.kicker"),
        "heading": page.heading,
        "purpose": _cut(statement["purpose"] or ""),
        "warning": "" if statement["for_release"] else page.say("page.experiment"),
        "cards": [{"number": number, "caption": caption} for number, caption in page.list_cards()],
        "promise": page.describe_promise(),
        "left": [
            page.describe_answers(),
            page.describe_presence(),
            page.list_sentences("page.covered", statement["covered"]),
            page.list_sentences("page.not-covered", statement["not_covered"]),
        ],
        "right": [
            page.describe_trust(),
            page.list_sentences("page.assumed", statement["assumptions"]),
            page.describe_training(),
        ],
        "below": page.describe_binding(),
        "foot": page.say("page.foot", format=statement["statement"], digest=statement["digest"]),
    }


@dataclass(frozen=True, slots=True)
class _Page:
    """The parts of a statement's page in one language; a part is a title and a list of texts."""

    statement: Json
    language: str

    def say(self, name: str, /, **values: str) -> str:
        """Return a text of the catalogue."""
        return translate(name, self.language, **values)

    def declared(self, name: str) -> str:
        """Return what the steward declared, or that nothing was."""
        text = self.statement[name]
        return _cut(text) if text else self.say("page.not-stated")

    @property
    def heading(self) -> str:
        """The name of what was made."""
        return self.say("page.heading", label=_cut(self.statement["data"]["label"]))

    def list_sentences(self, title: str, sentences: Iterable[str]) -> Json:
        """Return a part of sentences that the statement has word by word."""
        return self._make_part(title, [self.say(sentence) for sentence in sentences])

    def _make_part(self, title: str, items: list[str]) -> Json:
        return {"title": self.say(title), "items": items}

    def describe_answers(self) -> Json:
        """Return who answers for the model, whom to ask, and from when until when it holds."""
        items = [
            self.say("page.controller", text=self.declared("controller")),
            self.say("page.contact", text=self.declared("contact")),
            self.describe_dates(),
        ]
        return self._make_part("page.answers", items)

    def describe_dates(self) -> str:
        """Return when the model was made, and until when the statement holds."""
        return self.say(
            "page.dates",
            made=self._write_day("finished", "page.not-stated"),
            until=self._write_day("valid_until", "page.no-end"),
        )

    def _write_day(self, name: str, missing: str) -> str:
        """Return a day of the statement in the language's form, or the text where it has none."""
        day = self.statement[name]
        if not day:
            return self.say(missing)
        return f"{date.fromisoformat(day):%d.%m.%Y}" if self.language == "de" else str(day)

    def describe_presence(self) -> Json:
        """Return whose presence is hidden, and from what it is told apart."""
        unit = self.statement["unit_of_privacy"]["means"]
        neighbours = self.statement["neighbouring"]["means"]
        return self.list_sentences("page.presence", [unit, neighbours])

    def describe_trust(self) -> Json:
        """Return who has to be trusted, and who has not."""
        trust = self.statement["trust"]
        return self.list_sentences("page.trust", [*trust["trusted"], *trust["not_trusted"]])

    def describe_training(self) -> Json:
        """Return how the model was made, and how its guarantee was computed."""
        guarantee = self.statement["guarantee"]
        mechanism = self.statement["mechanism"]
        strategy = self.say(
            "page.strategy",
            strategy=mechanism["strategy"],
            accounting=mechanism["accounting"],
            source=self.say(mechanism["randomness"]),
            ledger=self.say("page.charged" if mechanism["ledger"] else "page.not-charged"),
        )
        numbers = self.statement["versions"].items()
        versions = ", ".join(f"{name} {number}" for name, number in numbers)
        items = [
            self.say(guarantee["definition"]),
            self.say(guarantee["of"]),
            self.say(mechanism["name"]),
            self.say(mechanism["sampling"]),
            strategy,
            self.say(guarantee["verified"]),
            self.say(guarantee["composition"]),
            self.say("page.versions", versions=_cut(versions)),
        ]
        return self._make_part("page.made", items)

    def describe_binding(self) -> Json:
        """Return what the statement is bound to: weights, and the head of a ledger."""
        bound = self.statement["bound_to"]
        if not bound:
            return self._make_part("page.bound", [self.say("page.unbound")])
        items = [
            self.say("page.weights", digest=bound["weights"]),
            self.describe_ledger(),
            self.say(bound["means"]),
            self.say(bound["signature"]),
        ]
        return self._make_part("page.bound", items)

    def describe_ledger(self) -> str:
        """Return the head of the ledger that was charged, or that none was."""
        head = self.statement["bound_to"]["ledger"]
        return self.say("page.ledger", head=head) if head else self.say("page.not-charged")

    def describe_promise(self) -> Json:
        """Return what each budget promises: a table, and its words."""
        guarantee = self.statement["guarantee"]
        levels = guarantee["levels"]
        if not levels:
            return {
                "title": self.say("page.promise"),
                "paragraphs": [self.say("page.undeclared")],
                "head": [""],
                "rows": [],
                "after": [],
            }
        # A column of what the model itself allows stands there where that may be told of any level.
        is_made = self.is_made
        head = [self.say("page.budget"), "ε", "δ", self.say("page.alone")]
        if is_made:
            head.append(self.say("page.as-made"))
        after = [self.say("page.without")]
        if len(levels) > _LEVELS:
            after.append(self.say("page.more-levels", count=str(len(levels) - _LEVELS)))
        cap = guarantee["no_limit_cap"]
        if cap is not None:
            after.append(self.say("page.no-limit", epsilon=self.write(cap)))
        if not is_made:
            after.append(self.say("page.withheld"))
        return {
            "title": self.say("page.promise"),
            "paragraphs": [self.say("page.guessing")],
            "head": head,
            "rows": [self._list_cells(level, is_made=is_made) for level in levels[:_LEVELS]],
            "after": [" ".join(after)],
        }

    def _list_cells(self, level: Json, *, is_made: bool) -> list[str]:
        """Return a level's row of the table; `is_made` adds the column of the model as made."""
        cells = [
            _cut(level["name"], _LONGEST_NAME),
            self.write(level["epsilon"]),
            self.write_chance(level["delta"]),
            self.write_count(level["right_of_1000_at_most"]),
        ]
        if is_made:
            cells.append(self.write_count(level["as_made_at_most"]))
        return cells

    def write(self, value: float) -> str:
        """Return a number with the separators of the language."""
        return localize(shown(value), self.language)

    def write_count(self, right: int | None) -> str:
        """Return of how many of 1,000 a guess is right."""
        if right is None:
            return "–"
        return self.say("page.of-1000", count=localize(f"{right:,}", self.language))

    def write_chance(self, delta: float) -> str:
        """Return δ as 1 in so many cases."""
        return write_chance(delta, self.language)

    @property
    def is_made(self) -> bool:
        """Whether the statement has a bound of a level by the mechanism as it was made."""
        return any(level["as_made_at_most"] for level in self.statement["guarantee"]["levels"])

    def find_word(self, kind: str, name: str) -> str:
        """Return the catalogue's word for a setting or a kind of column; the name, without one."""
        word = f"{kind}.{name}"
        return self.say(word) if has_text(word) else name.replace("_", " ")

    def list_cards(self) -> list[tuple[str, str]]:
        """Return the three numbers on top of the page, each with its caption."""
        mechanism = self.statement["mechanism"]
        levels = self.statement["guarantee"]["levels"]
        if levels:
            # The bound by the mechanism itself, where every level has one.
            has_bound = all(level["as_made_at_most"] for level in levels)
            right = "as_made_at_most" if has_bound else "right_of_1000_at_most"
            promises = [(level["epsilon"], level["delta"], level[right]) for level in levels]
            caption = "card.as-made" if has_bound else "card.alone"
            return list(promised_cards(promises, caption, self.language))
        trained = (str(mechanism["models_trained"]), self.say("card.models"))
        # The number of runs of a search is secret; its mean is public.
        if "runs_on_average" in mechanism:
            runs = localize(f"{mechanism['runs_on_average']:g}", self.language)
            trained = (runs, self.say("card.runs"))
        steps = localize(f"{mechanism['settings']['steps']:,g}", self.language)
        unit = self.statement["unit_of_privacy"]["unit"]
        return [
            trained,
            (steps, self.say("card.steps")),
            (self.say(f"card.unit-{unit}"), self.say("card.protected")),
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
    # The font has no glyph for what is left, and the page would show an empty box.
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
    # NFKD sets accents apart from their letters; what is not ASCII is then left out.
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


def card(statement: Json, language: str = LANGUAGES[0]) -> str:
    """Return a model card in Markdown, with the front matter of Hugging Face, in a language."""
    # Source: Mitchell et al. 2019. Its sentences are those of the statement's page.
    data = statement["data"]
    form = "tabular" if data["columns"] else "image"
    task = "classification" if data["classes"] else "regression"
    page = _Page(statement, language)
    return (
        environment("markdown")
        .get_template("card.md.j2")
        .render(
            said=statement,
            say=page.say,
            word=page.find_word,
            write=page.write,
            count=page.write_count,
            chance=page.write_chance,
            dates=page.describe_dates,
            ledger=page.describe_ledger,
            is_made=page.is_made,
            pipeline="text-generation" if data["schema"] == TOKENS else f"{form}-{task}",
        )
        + "\n"
    )


def cyclonedx(statement: Json) -> str:
    """Return a bill of materials of the model: CycloneDX 1.6, JSON."""
    versions = dict(statement["versions"])
    tool = {"type": "application", "name": "apiece", "version": versions.pop("apiece")}
    metadata: Json = {"tools": {"components": [tool]}, "component": _describe_component(statement)}
    if statement["finished"]:
        metadata = {"timestamp": f"{statement['finished']}T00:00:00Z", **metadata}
    bom = {
        "bomFormat": "CycloneDX", "specVersion": "1.6", "version": 1,
        # The same statement has the same number.
        "serialNumber": f"urn:uuid:{uuid.uuid5(uuid.NAMESPACE_OID, statement['digest'])}",
        "metadata": metadata,
        "components": [{"type": "library", "bom-ref": name, "name": name, "version": version}
                       for name, version in versions.items()],
    }  # fmt: skip
    return json.dumps(_change_texts(bom, plain), indent=2, ensure_ascii=False) + "\n"


def _describe_component(statement: Json) -> Json:
    """Return the model as a component of a bill of materials, with its model card."""
    data = statement["data"]
    mechanism = statement["mechanism"]
    owner = {"organization": {"name": statement["controller"] or _OPEN}}
    inputs = [f"{name}: {column['kind']}" for name, column in data["columns"].items()]
    outputs = data["classes"] or ["a number"]
    mitigation = f"{mechanism['name']}: {statement['guarantee']['definition']}"
    return {
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
            for name, value in _list_properties(statement).items() if value
        ],
    }  # fmt: skip


def _list_properties(statement: Json) -> dict[str, str | None]:
    """Return what a model card has no field for, by name; None where it was not declared."""
    # The digests are in properties: they are of parameters and of a statement, and of no file.
    bound = statement["bound_to"] or {}
    properties = {
        "statement": statement["digest"],
        "weights": bound.get("weights"),
        "ledger": bound.get("ledger"),
        "unit": statement["unit_of_privacy"]["unit"],
        "relation": statement["neighbouring"]["relation"],
        "valid until": statement["valid_until"],
        "contact": statement["contact"],
        "strategy": statement["mechanism"]["strategy"],
    }
    for level in statement["guarantee"]["levels"]:
        budget = f"epsilon {level['epsilon']:g}, delta {level['delta']:g}"
        properties[f"budget {level['name']}"] = budget
    return properties


# The name of the statement's page.
PDF = "statement.pdf"
# The name of the model card.
CARD = "card.md"
# The papers that are in any language of the catalogue.
TRANSLATED = (PDF, CARD)
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
    "card": {CARD: (Kind("a model card", (".md",), b"library_name: apiece"), card)},
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

        # The words stand in the config, in metrics.json and in the statement; the statement is
        # bound to the first two, and made last.
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
    # All papers are made and written before the first old one is touched.
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
