"""Sections: each says what it reads, and is in an edition or in the list of what is left out."""

from dataclasses import replace

import pytest

from apiece import report
from apiece.errors import InputError
from apiece.reporting.sections import DECLARED, READS, SECTIONS, left_out, sections_of, subject_of
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
