"""The statement as a page: one page, the same bytes each time, whatever is said in it."""

import re
import sys
import zlib
from dataclasses import replace
from typing import Any

import pytest

from apiece.errors import UnsupportedError
from apiece.jobs import statement_of
from apiece.jobs.trained import Level
from apiece.reporting import pages as page
from apiece.reporting.pages import statement_pdf
from sample_runs import sample_run

RUN = replace(
    sample_run(), seed=None, finished="2026-01-31", purpose="to see",
    levels=(Level("ε = 1", 1.0, 1e-3), Level("ε = 3", 3.0, 1e-3)),
)  # fmt: skip


def pages(pdf: bytes) -> int:
    return len(re.findall(rb"/Type /Page\b", pdf))


def test_one_page_and_the_same_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    made = statement_pdf(statement_of(RUN))
    assert pages(made) == 1
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
    assert pages(statement_pdf(statement_of(run))) == 1


def test_what_does_not_fit_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page, "_cut", lambda text, most=0: text)
    with pytest.raises(UnsupportedError, match="does not fit on one page"):
        statement_pdf(statement_of(replace(RUN, purpose="word " * 2500)))


def test_every_answer_is_in_it(monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[str] = []
    monkeypatch.setattr(page, "_write", lambda document, text, size: written.append(text))
    statement = statement_of(RUN)
    statement_pdf(statement)
    whole = "\n".join(written)
    for name in ("covered", "not_covered", "assumptions"):
        assert all(text in whole for text in statement[name])
    for words in ("ε = 3, δ = 0.001", "add_remove", "One record", "2026-01-31", "apiece 0"):
        assert words in whole
    assert "must not be released" not in whole
    experiment = statement_of(replace(RUN, seed=3))
    statement_pdf(experiment)
    assert "must not be released" in "\n".join(written)


def test_what_the_font_does_not_have_is_escaped() -> None:
    written: list[str] = []

    class Page:
        def __init__(self) -> None:
            self.fonts = {"page": type("Font", (), {"cmap": {ord(c): 1 for c in "Zoë "}})}

        def multi_cell(self, *args: Any, **kwargs: Any) -> None:
            written.append(args[2])

    document: Any = Page()
    page._write(document, "東 Zoë", 9)
    assert written == [r"\u6771 Zoë"]


def test_without_the_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "fpdf", None)
    found: Any = statement_of(RUN)
    with pytest.raises(ModuleNotFoundError):
        statement_pdf(found)


def test_texts_are_compressed_but_there() -> None:
    streams = re.findall(rb"stream\n(.*?)\nendstream", statement_pdf(statement_of(RUN)), re.DOTALL)
    assert any(b"BT" in zlib.decompress(s) for s in streams if s[:1] == b"x")
