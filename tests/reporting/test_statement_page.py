"""Papers of a statement: a PDF of two pages, a registry record, a model card, a CycloneDX BOM."""

import html
import json
import re
import shutil
import subprocess
import sys
import zlib
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import jsonschema
import pytest
import yaml

from apiece import report
from apiece.contract import explain
from apiece.errors import InputError, UnsupportedError
from apiece.jobs import Run, statement_of
from apiece.jobs.statement import Bound
from apiece.jobs.trained import Level
from apiece.reporting import papers as page
from apiece.reporting.papers import statement_pdf
from sample_runs import sample_run

RUN = replace(
    sample_run(), seed=None, finished="2026-01-31", purpose="to see",
    levels=(Level("ε = 1", 1.0, 1e-3), Level("ε = 3", 3.0, 1e-3)),
    controller="County Hospital", contact="dpo@example.org", valid_until="2030-12-31",
)  # fmt: skip


def pages(pdf: bytes) -> int:
    return len(re.findall(rb"/Type /Page\b", pdf))


def test_two_pages_and_the_same_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    made = statement_pdf(statement_of(RUN))
    assert pages(made) == 2
    assert b"D:20260131" in made
    monkeypatch.setattr("time.time", lambda: 2e9)  # of another day
    assert statement_pdf(statement_of(RUN)) == made


LATER = [pytest.param(text, marks=pytest.mark.slow) for text in ("\x1b[2Jx", "\u202egnp", "\ud800")]
HOSTILE = ["a\nb\x00", "x" * 9000, "東京 Zoë **b**", *LATER]


@pytest.mark.parametrize("text", HOSTILE, ids=lambda text: ascii(text)[:20])
def test_whatever_is_said(text: str) -> None:
    data = replace(RUN.data, label=text)
    many = tuple(Level(text, 0.5 + k, 1e-3) for k in range(40))
    run = replace(RUN, purpose=text, data=data, levels=many, analysis=text)
    assert pages(statement_pdf(statement_of(run))) == 2


def test_what_does_not_fit_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page, "_cut", lambda text, most=0: text)
    with pytest.raises(UnsupportedError, match="does not fit on two pages"):
        statement_pdf(statement_of(replace(RUN, purpose="word " * 2500)))


def texts(statement: Any, monkeypatch: pytest.MonkeyPatch) -> str:
    """Return what is written on the pages."""
    written: list[str] = []
    monkeypatch.setattr(
        page, "_escape_missing", lambda document, text: written.append(text) or text
    )
    statement_pdf(statement)
    monkeypatch.undo()
    return html.unescape(re.sub(r"(<[^>]*>\s*)+", "\n", "\n".join(written)))


def test_every_answer_is_in_it(monkeypatch: pytest.MonkeyPatch) -> None:
    statement = statement_of(RUN)
    whole = texts(statement, monkeypatch)
    for name in ("covered", "not_covered", "assumptions"):
        assert all(text in whole for text in statement[name])
    for words in ("\n3\n0.001\n953 of 1,000", "add_remove", "One record", "2026-01-31", "apiece 0",
                  "County Hospital", "dpo@example.org", "2030-12-31"):  # fmt: skip
        assert words in whole
    assert "must not be released" not in whole
    experiment = texts(statement_of(replace(RUN, seed=3)), monkeypatch)
    assert "must not be released" in experiment
    bound = Bound("a3" * 32, "b4" * 32, "0f" * 16, "7:" + "c5" * 32)
    kept = texts(statement_of(replace(RUN, bound=bound)), monkeypatch)
    assert bound.weights in kept
    assert str(bound.head) in kept


@pytest.mark.skipif(shutil.which("pdftotext") is None, reason="poppler-utils are not installed")
def test_the_first_page_is_for_a_board(tmp_path: Path) -> None:
    """Three numbers on top, then who answers for it, then a table of the budgets."""
    (tmp_path / "s.pdf").write_bytes(statement_pdf(statement_of(RUN)))
    command = ["pdftotext", "-l", "1", "-layout", str(tmp_path / "s.pdf"), "-"]
    first = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    first = re.sub(" *– *", "–", first)
    order = ["1–3", "732–953", "1 in 1,000", "County Hospital", "by ε and δ alone"]
    at = [first.index(words) for words in order]
    assert at == sorted(at)


def test_what_the_font_does_not_have_is_escaped() -> None:
    class Page:
        fonts: ClassVar = {"page": type("Font", (), {"cmap": {ord(c): 1 for c in "Zoë "}})}

    document: Any = Page()
    assert page._escape_missing(document, "東 Zoë") == r"\u6771 Zoë"


def test_without_the_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "fpdf", None)
    found: Any = statement_of(RUN)
    with pytest.raises(ModuleNotFoundError):
        statement_pdf(found)


def test_texts_are_compressed_but_there() -> None:
    streams = re.findall(rb"stream\n(.*?)\nendstream", statement_pdf(statement_of(RUN)), re.DOTALL)
    assert any(b"BT" in zlib.decompress(s) for s in streams if s[:1] == b"x")


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


@pytest.mark.parametrize("run", RUNS.values(), ids=RUNS)
def test_a_card_has_front_matter_and_no_markup_of_others(run: Run) -> None:
    statement = statement_of(run)
    text = page.card(statement)
    _, front, body = text.split("---\n", 2)
    kind = "tabular-regression" if run.data.columns else "image-classification"
    assert yaml.safe_load(front)["pipeline_tag"] == kind
    assert not re.search(r"(?<!\\)<|\x1b|\u202e", body)
    assert statement["digest"] in body
    assert ("732 of 1,000" in body) == bool(run.levels)


def test_all_papers_tell_the_same_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of public counts too: one number of the promise, one of the model as it was made."""
    data = replace(RUN.data, packaged=True, simulated_budgets=True)
    for run in (RUN, replace(RUN, data=data)):
        statement = statement_of(run)
        pdf, card = texts(statement, monkeypatch), page.card(statement)
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
