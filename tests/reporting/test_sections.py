"""Sections: each says what it reads, and is in an edition or in the list of what is left out."""

from dataclasses import replace

import pytest

from apiece import report
from apiece.audit import Findings, lower_bound
from apiece.errors import InputError
from apiece.jobs.trained import Level
from apiece.reporting.sections import (
    DECLARED,
    READS,
    SECTIONS,
    cards,
    left_out,
    left_out_text,
    sections_of,
    subject_of,
)
from sample_runs import sample_plan, sample_run

OF = {"run": sample_run(), "plan": sample_plan("scale")}


def test_each_section_reads_one_thing_that_has_a_reason() -> None:
    assert len({section.name for section in SECTIONS}) == len(SECTIONS)
    assert all(section.reads in READS for section in SECTIONS)
    assert all(bool(why) == (reads != DECLARED) for reads, why in READS.items())


@pytest.mark.parametrize("of", OF)
def test_a_section_is_shown_or_left_out_with_a_reason(of: str) -> None:
    subject = subject_of(OF[of], [])
    own = {section.title for section in SECTIONS if of in section.of and section.reads != DECLARED}
    assert {title for title, _ in left_out(subject, "public")} == own
    assert {section.reads for section, _ in sections_of(subject, "public")} == {DECLARED}
    assert {section.title for section, _ in sections_of(subject, "internal")} & own
    assert left_out(subject, "internal") == []


def test_what_is_open_is_not_left_out() -> None:
    subject = replace(subject_of(OF["plan"], []), open=frozenset({"budgets"}))
    assert left_out(subject, "public") == []
    assert [s.name for s, _ in sections_of(subject, "public")] == [
        s.name for s, _ in sections_of(subject, "internal")
    ]


def test_an_edition_that_there_is_not() -> None:
    with pytest.raises(InputError, match="did you mean 'public'"):
        report(OF["run"], edition="pubic")


FINDINGS = Findings(audit="one run", bounds=(lower_bound([1.0] * 50, [0.0] * 50, delta=1e-5),))


@pytest.mark.parametrize("value", [*OF.values(), FINDINGS], ids=lambda v: type(v).__name__)
def test_three_numbers_are_on_top(value: object) -> None:
    public, internal = (cards(subject_of(value, []), each) for each in ("public", "internal"))
    assert len(public) == len(internal) == 3
    assert public != internal


def test_cards_of_a_run() -> None:
    run = replace(OF["run"], levels=(Level("low", 1.0, 1e-3), Level("high", 3.0, 1e-3)))
    numbers = [number for number, _ in cards(subject_of(run, []), "public")]
    assert numbers == ["1 – 3", "732 – 953", "1 in 1,000"]
    made = [promise.right for promise in run.kept.promises]
    numbers = [number for number, _ in cards(subject_of(run, []), "internal")]
    assert numbers == ["80.00 ± 1.41 %", "0.9994 – 2.999", f"{made[0]} – {made[-1]}"]


def test_what_is_left_out_is_one_paragraph() -> None:
    subject = subject_of(OF["run"], [])
    text = left_out_text(subject, "public")
    assert all(f"“{title}”" in text for title, _ in left_out(subject, "public"))
    assert "\n" not in text
    page = report(OF["run"], edition="public").html.split('id="left-out"')[1]
    assert page.count("<p>") == 1
