"""Papers of a statement: a PDF of one page, a registry record, a model card, a CycloneDX BOM."""

import importlib.util
import io
import itertools
import json
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from apiece import report
from apiece.contract import explain
from apiece.contract.explain import LIMITS
from apiece.errors import DataError, InputError, UnsupportedError
from apiece.jobs import Run
from apiece.jobs.config import TUNED
from apiece.jobs.results import statement_of
from apiece.jobs.statement import (
    ALLOCATED,
    FIXED_STEPS,
    TURNS,
    Bound,
    list_assumptions,
    list_not_covered,
)
from apiece.jobs.trained import Level
from apiece.reporting import papers as page
from apiece.reporting.catalogue import has_text, translate
from apiece.reporting.papers import statement_pdf
from sample_runs import sample_run

PAGES = Path(page.__file__).parent
RUN = replace(
    sample_run(), seed=None, finished="2026-01-31", purpose="to see",
    levels=(Level("ε = 1", 1.0, 1e-3), Level("ε = 3", 3.0, 1e-3)),
    controller="County Hospital", contact="dpo@example.org", valid_until="2030-12-31",
)  # fmt: skip


LANGUAGES = ("en", "de")
needs_typst = pytest.mark.skipif(
    importlib.util.find_spec("typst") is None, reason="typst is not installed"
)


def pages(pdf: bytes) -> int:
    return len(re.findall(rb"/Type ?/Page\b", pdf))


@needs_typst
@pytest.mark.parametrize("language", LANGUAGES)
def test_one_page_and_the_same_each_time(language: str, monkeypatch: pytest.MonkeyPatch) -> None:
    made = statement_pdf(statement_of(RUN), language)
    assert pages(made) == 1
    assert b"D:20260131" in made
    monkeypatch.setattr("time.time", lambda: 2e9)  # of another day
    assert statement_pdf(statement_of(RUN), language) == made


@needs_typst
@pytest.mark.parametrize("language", LANGUAGES)
def test_it_is_tagged_for_who_cannot_see_it(language: str) -> None:
    """PDF/UA-1: its mark, its language, a title that is shown, and a tree with tagged tables."""
    pypdf = pytest.importorskip("pypdf", reason="pypdf is not installed")
    reader = pypdf.PdfReader(io.BytesIO(statement_pdf(statement_of(RUN), language)))
    root = reader.trailer["/Root"]
    assert root["/Lang"] == language
    assert root["/MarkInfo"]["/Marked"]
    assert root["/ViewerPreferences"]["/DisplayDocTitle"]
    assert b"<pdfuaid:part>1" in root["/Metadata"].get_data()
    tags: list[str] = []

    def walk(node: Any) -> None:
        node = node.get_object() if hasattr(node, "get_object") else node
        for child in node if isinstance(node, list) else [node]:
            child = child.get_object() if hasattr(child, "get_object") else child
            if isinstance(child, dict):
                tags.append(str(child.get("/S", "")))
                if "/K" in child:
                    walk(child["/K"])

    walk(root["/StructTreeRoot"])
    assert tags.count("/H1") == 1
    assert tags.count("/H2") == 9
    assert tags.count("/TH") == 4
    assert tags.count("/TD") == 2 * 4
    assert tags.count("/LI") > 20


LATER = [pytest.param(text, marks=pytest.mark.slow) for text in ("\x1b[2Jx", "\u202egnp", "\ud800")]
HOSTILE = ["a\nb\x00", "x" * 9000, "東京 Zoë **b** #panic() [a] $x$", *LATER]


@needs_typst
@pytest.mark.parametrize("language", LANGUAGES)
@pytest.mark.parametrize("text", HOSTILE, ids=lambda text: ascii(text)[:20])
def test_whatever_is_said(text: str, language: str) -> None:
    data = replace(RUN.data, label=text)
    many = tuple(Level(text, 0.5 + k, 1e-3) for k in range(40))
    run = replace(RUN, purpose=text, data=data, levels=many, controller=text, contact=text)
    assert pages(statement_pdf(statement_of(run), language)) == 1


@needs_typst
def test_what_does_not_fit_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page, "_cut", lambda text, most=0: text)
    with pytest.raises(UnsupportedError, match="does not fit on one page"):
        statement_pdf(statement_of(replace(RUN, purpose="word " * 2500)))


def texts(statement: Any, language: str = "en") -> str:
    """Return what is written on the page."""
    written: list[str] = []

    def walk(value: Any) -> None:
        if isinstance(value, str):
            written.append(value)
        elif isinstance(value, dict | list):
            for part in value.values() if isinstance(value, dict) else value:
                walk(part)

    walk(page.describe_page(statement, language))
    return "\n".join(written)


def test_every_answer_is_in_it() -> None:
    statement = statement_of(RUN)
    for language in LANGUAGES:
        whole = texts(statement, language)
        for name in ("covered", "not_covered", "assumptions"):
            assert all(translate(text, language) in whole for text in statement[name])
    whole = texts(statement)
    for words in ("\n3\n1 in 1,000\n953 of 1,000", "add_remove", "One record", "2026-01-31",
                  "apiece 0", "County Hospital", "dpo@example.org", "2030-12-31"):  # fmt: skip
        assert words in whole
    assert "must not be released" not in whole
    experiment = statement_of(replace(RUN, seed=3))
    assert "must not be released" in texts(experiment)
    assert "darf nicht veröffentlicht werden" in texts(experiment, "de")
    bound = Bound("a3" * 32, "b4" * 32, "0f" * 16, "7:" + "c5" * 32)
    kept = texts(statement_of(replace(RUN, bound=bound)))
    assert bound.weights in kept
    assert str(bound.head) in kept


def test_german_has_its_own_numbers() -> None:
    levels = (Level("a", 0.5, 1e-5), Level("b", 9.0, 1e-5))
    data = replace(RUN.data, packaged=True, simulated_budgets=True)
    whole = texts(statement_of(replace(RUN, levels=levels)), "de")
    for words in ("\n0,5\n1 zu 100.000\n", "1.000 von 1.000", "Was ist nicht abgedeckt?"):
        assert words in whole
    assert "wie es gemacht wurde" in texts(statement_of(replace(RUN, data=data)), "de")


def sentences() -> Iterator[Any]:
    """Yield statements with every sentence that a statement can have."""
    for seed, method, unit, charged in product((None, 3), ("dp-sgd", "pate"), ("record", "person"),
                                               (None, "study")):  # fmt: skip
        run = replace(RUN, seed=seed, method=method, analysis=charged)
        for models in (1, 4):
            yield statement_of(replace(run, data=replace(run.data, unit=unit), models=models))
    statement = statement_of(RUN)
    for sampling in (ALLOCATED, FIXED_STEPS, TURNS):
        yield statement | {"mechanism": statement["mechanism"] | {"sampling": sampling}}
    for searched, fixed, stored in product((False, True), repeat=3):
        settings = {"seeded": False, "method": "dp-sgd", "unit": "person", "searched": searched}
        assumed = list_assumptions(**settings, key_stored=stored, fixed_steps=fixed)
        lacking = list_not_covered(models=7, charged=False, method="pate", searched=searched)
        yield statement | {"assumptions": list(assumed), "not_covered": list(lacking)}
    many = tuple(Level(str(k), 0.5 + k, 1e-3) for k in range(40))
    yield statement_of(replace(RUN, levels=many, no_limit_cap=8.0))
    yield statement_of(replace(RUN, bound=Bound("a3" * 32, "b4" * 32, "0f" * 16, None)))
    told = replace(RUN.data, packaged=True, simulated_budgets=True)
    yield statement_of(replace(RUN, data=told))
    runs = (
        "the best of a random number of runs, 2.5 on average; the promise holds with the choosing"
    )
    of = f"the release of one model, {runs} inside"
    yield statement | {"guarantee": statement["guarantee"] | {"of": of}}
    columns = {
        "age": {"kind": "numeric", "lower": 0.0, "upper": 9.0},
        "job": {"kind": "categorical", "categories": ["a", "b"]},
        "owns": {"kind": "boolean"},
    }
    table = replace(RUN.data, columns=columns, classes=(), target_range=(0.0, 9.0))
    numbers = statement_of(replace(RUN, data=table))
    yield numbers | {"data": numbers["data"] | {"pairs": [["age", "job"]]}}
    yield statement_of(replace(RUN, levels=(), purpose=None, controller=None, valid_until=None))


@cache
def statements() -> tuple[Any, ...]:
    return tuple(sentences())


@cache
def cards() -> tuple[tuple[str, str], ...]:
    """The English and the German card of each statement."""
    english, german = LANGUAGES
    return tuple((page.card(one, english), page.card(one, german)) for one in statements())


def test_the_catalogue_has_every_sentence_in_every_language() -> None:
    shown = {language: set() for language in LANGUAGES}  # type: ignore[var-annotated]
    for statement, both in zip(statements(), cards(), strict=True):
        for language, text in zip(LANGUAGES, both, strict=True):
            shown[language].update(texts(statement, language).split("\n"))
            shown[language].update(without_escapes(text).split("\n"))
    entries = tomllib.loads((PAGES / "catalogue.toml").read_text())["text"]
    for entry in entries:
        assert set(entry) == {"of", *LANGUAGES}, entry
        fields = [set(re.findall(r"{(\w+)}", entry[name])) for name in LANGUAGES]
        assert fields[0] == fields[1], entry
        elsewhere = ("card.", "choose.", "setting.", "kind.")
        is_elsewhere = entry["of"].startswith(elsewhere) or entry["of"] in LIMITS
        if "{" not in entry["de"] and not is_elsewhere:
            assert any(entry["de"] in line for line in shown["de"]), f"never shown: {entry['of']}"
    assert len({entry["of"] for entry in entries}) == len(entries)


def without_escapes(card: str) -> str:
    return re.sub(r"\\(.)", r"\1", card)


def test_a_card_has_each_sentence_of_the_statement_in_its_language() -> None:
    for statement, both in zip(statements(), cards(), strict=True):
        for language, written in zip(LANGUAGES, both, strict=True):
            text = without_escapes(written)
            parts = [statement[name] for name in ("covered", "not_covered", "assumptions")]
            parts.append(statement["trust"]["trusted"] + statement["trust"]["not_trusted"])
            for sentence in itertools.chain.from_iterable(parts):
                assert f"- {translate(sentence, language)}\n" in text
            for part, name in (("mechanism", "name"), ("mechanism", "sampling"),
                               ("guarantee", "composition"), ("guarantee", "of")):  # fmt: skip
                assert translate(statement[part][name], language) in text


def test_a_german_card_is_german() -> None:
    """No sentence of the English card but what the steward wrote and what is of machines."""
    same = set()
    for english, german in cards():
        same |= set(english.split("\n")[5:]) & set(german.split("\n")[5:])
        assert german.count("|") == english.count("|")
        assert german.count("\n#") == english.count("\n#")
    words = {line for line in same if re.search("[A-Za-z]{3}", line)}
    assert words <= {"to see", "## Training"}, words
    german = page.card(statement_of(RUN), "de")
    for text in ("Erstellt am 31.01.2026; gültig bis: 31.12.2030",
                 "1 zu 1.000", "732 von 1.000", "Wem muss vertraut werden?"):  # fmt: skip
        assert text in german


def test_each_setting_and_kind_of_column_has_its_word() -> None:
    for name in (*TUNED, "teachers", "questions", "answers", "threshold", "semi_supervised"):
        assert has_text(f"setting.{name}"), name
    for kind in ("numeric", "categorical", "boolean"):
        assert has_text(f"kind.{kind}"), kind
    assert page._Page(statement_of(RUN), "de").find_word("setting", "a_new_one") == "a new one"


def test_a_sentence_that_the_catalogue_lacks_is_refused() -> None:
    statement = statement_of(RUN)
    with pytest.raises(DataError, match="'of another apiece' is not in the catalogue"):
        page.describe_page(statement | {"covered": ["of another apiece"]}, "de")
    with pytest.raises(DataError, match="'of another apiece' is not in the catalogue"):
        page.card(statement | {"covered": ["of another apiece"]}, "de")
    with pytest.raises(InputError, match="language"):
        page.describe_page(statement, "fr")
    with pytest.raises(InputError, match="language"):
        page.card(statement, "fr")


@needs_typst
@pytest.mark.skipif(shutil.which("pdftotext") is None, reason="poppler-utils are not installed")
def test_the_page_begins_for_a_board(tmp_path: Path) -> None:
    """Three numbers on top, then a table of the budgets, then who answers for it."""
    (tmp_path / "s.pdf").write_bytes(statement_pdf(statement_of(RUN)))
    command = ["pdftotext", "-layout", str(tmp_path / "s.pdf"), "-"]
    text = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    text = re.sub(" *– *", "–", text)
    order = ["1–3", "732–953", "1 in 1,000", "by ε and δ alone", "County Hospital"]
    at = [text.index(words) for words in order]
    assert at == sorted(at)


def test_what_the_font_does_not_have_is_escaped() -> None:
    assert page._escape_missing("東 Zoë") == r"\u6771 Zoë"


def test_without_the_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "typst", None)
    found: Any = statement_of(RUN)
    with pytest.raises(ModuleNotFoundError):
        statement_pdf(found)


# Registry record, model card, bill of materials.

RUNS = {
    "a release": RUN,
    "without words": replace(RUN, purpose=None, controller=None, contact=None, valid_until=None),
    "no levels": replace(RUN, levels=()),
    "of a number": replace(
        RUN, data=replace(RUN.data, classes=(), target_range=(0.0, 9.0),
                          columns={"x": {"kind": "numeric", "lower": 0.0, "upper": 1.0}}),
    ),
    "hostile": replace(RUN, controller='a"b: [\n#| *c* \x1b', purpose="- <b>`x`", contact="\u202e"),
}  # fmt: skip
SCHEMA = Path(__file__).parent / "opendp-deployments-schema.yaml"  # theirs, under the MIT licence


@pytest.mark.parametrize("run", RUNS.values(), ids=RUNS)
def test_a_registry_record_is_as_opendp_has_it(run: Run) -> None:
    """Their checks, but for that of addresses, which asks the net: schema, quoting, escapes."""
    draft = jsonschema.Draft7Validator
    schema = draft(yaml.safe_load(SCHEMA.read_text()), format_checker=draft.FORMAT_CHECKER)
    text = page.registry(statement_of(run))
    record = yaml.safe_load(text)
    assert [error.message for error in schema.iter_errors(record)] == []
    assert record == json.loads(text)
    styles = {token.style for token in yaml.scan(text) if hasattr(token, "style")}
    assert styles <= {None, "|", '"', "'"}
    assert not re.search(r"\\\\\\\\[^()]", text)  # two backslashes in a value
    spoiled = record | {"people": 3}
    assert not schema.is_valid(spoiled)


def test_an_experiment_is_no_deployment() -> None:
    with pytest.raises(InputError, match="of releases alone"):
        page.registry(statement_of(replace(RUN, seed=3)))


@pytest.mark.parametrize("run", RUNS.values(), ids=RUNS)
def test_a_bill_of_materials_is_as_cyclonedx_has_it(run: Run) -> None:
    text = page.cyclonedx(statement_of(run))
    pytest.importorskip("cyclonedx")
    from cyclonedx.schema import SchemaVersion
    from cyclonedx.validation.json import JsonStrictValidator

    strict = JsonStrictValidator(SchemaVersion.V1_6)
    assert strict.validate_str(text) is None
    assert strict.validate_str(text.replace('"machine-learning-model"', '"a model"')) is not None


@pytest.mark.parametrize("language", LANGUAGES)
@pytest.mark.parametrize("run", RUNS.values(), ids=RUNS)
def test_a_card_has_front_matter_and_no_markup_of_others(run: Run, language: str) -> None:
    statement = statement_of(run)
    text = page.card(statement, language)
    _, front, body = text.split("---\n", 2)
    kind = "tabular-regression" if run.data.columns else "image-classification"
    assert yaml.safe_load(front)["pipeline_tag"] == kind
    assert not re.search(r"(?<!\\)<|\x1b|\u202e", body)
    assert statement["digest"] in body
    count = translate("page.of-1000", language, count="732")
    assert (count in body) == bool(run.levels)


def test_all_papers_tell_the_same_numbers() -> None:
    """Of public counts too: one number of the promise, one of the model as it was made."""
    data = replace(RUN.data, packaged=True, simulated_budgets=True)
    for run in (RUN, replace(RUN, data=data)):
        statement = statement_of(run)
        pdf, card = texts(statement), page.card(statement)
        internal, public = (report(run, edition=e).html for e in ("internal", "public"))
        for g, level in enumerate(statement["guarantee"]["levels"]):
            promised = explain(level["epsilon"], level["delta"])
            assert promised.frequencies.right == level["right_of_1000_at_most"]
            words = f"{promised.frequencies.right:,} of 1,000"
            assert all(words in paper for paper in (pdf, card, internal, public))
            made = explain(
                level["epsilon"], level["delta"], curve=run.kept.plan.curve(g, method="pld")
            )
            assert made.promised == promised.frequencies.right
            assert f"{made.frequencies.right:,} of 1,000" in internal
            told = level["as_made_at_most"] is not None
            assert told == (run is not RUN)
            if told:
                assert made.frequencies.right == level["as_made_at_most"]
                assert made.sentences[0] == level["sentence"]
                assert all(f"{made.frequencies.right} of 1,000" in p for p in (pdf, card, public))
            else:
                assert promised.sentences[0] == level["sentence"]
