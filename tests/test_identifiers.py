"""Two spellings that a person reads alike are one, or the second is refused; a calendar agrees."""

from __future__ import annotations

import unicodedata
from collections.abc import Callable
from datetime import date, datetime, timedelta
from itertools import product

import numpy as np
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from apiece import _identifiers
from apiece._identifiers import (
    PERIODS,
    find_flaw,
    find_flawed,
    find_period,
    name_period,
    require_canonical,
    suggest,
)
from apiece.errors import DataError, InputError

FEW = settings(max_examples=300, derandomize=True, deadline=None)
# Of each letter, mark or digit: others that are drawn like it.
ALIKE = {
    "a": "аａ𝐚", "c": "сｃ", "e": "еｅ", "i": "іｉ", "o": "оοｏ", "p": "рｐ", "x": "хｘ",
    "y": "уｙ", "A": "АΑＡ", "B": "ВΒ", "K": "КΚK", "M": "МΜ", "O": "ОΟ", "T": "ТΤ", "v": "νѵ",
    "-": "‐‑−–﹣－", "'": "’‘ʼ′＇", " ": "\u00a0\u2009\u3000\u2002\t",
    "0": "٠０०𝟎", "1": "١１१𝟏", "4": "٤４४𝟒", "5": "٥５५𝟓", "9": "٩９९",
}  # fmt: skip
UNSEEN = "\u200b\u200c\u200d\u2060\ufeff\u202e\u2066\u00ad\u034f\u3164\ufe0f\u115f\0\x1f\U000e0041"
NAMES = st.text("acepxyABKMOTv01459-' zé語ж", min_size=1, max_size=12)


@st.composite
def respelled(draw: st.DrawFn) -> tuple[str, str]:
    """A text, and another spelling of it that a reader does not tell from the first."""
    text = draw(NAMES)
    how = draw(st.sampled_from(["alike", "unseen", "blank", "decomposed", "double", "wide"]))
    at = draw(st.integers(0, len(text) - 1))
    match how:
        case "alike":
            other = draw(st.sampled_from(ALIKE.get(text[at], text[at])))
            return text, text[:at] + other + text[at + 1 :]
        case "unseen":
            return text, text[:at] + draw(st.sampled_from(UNSEEN)) + text[at:]
        case "blank":
            return text, draw(st.sampled_from([f" {text}", f"{text} ", f"{text}\n", f"\t{text}"]))
        case "double":
            return text, text.replace(" ", "  ")
        case "wide":
            wide = "".join(chr(ord(c) + 0xFEE0) if "!" <= c <= "~" else c for c in text)
            return text, wide
    return text, unicodedata.normalize("NFD", text)


def accepts_both(pair: tuple[str, str], flaw_of: Callable[[str], str | None]) -> bool:
    """Whether two spellings would open two accounts."""
    text, other = pair
    return text != other and flaw_of(text) is None and flaw_of(other) is None


def whole_word_alike(text: str) -> bool:
    """Whether a text has no letter of Latin: a word drawn alike throughout cannot be told."""
    return not any("LATIN" in unicodedata.name(each, "") for each in text)


@FEW
@given(respelled())
def test_two_spellings_that_are_read_alike_never_open_two_accounts(pair: tuple[str, str]) -> None:
    if accepts_both(pair, find_flaw):
        assert whole_word_alike(pair[1]) or whole_word_alike(pair[0]), pair


@FEW
@given(respelled())
def test_what_is_suggested_is_an_identifier_and_means_the_same(pair: tuple[str, str]) -> None:
    for text in pair:
        meant = suggest(text)
        if meant is not None:
            assert find_flaw(meant) is None
            assert suggest(meant) == meant
    if find_flaw(pair[0]) is None and suggest(pair[1]) is not None and len(pair[1].split()) == 1:
        assert suggest(pair[1]) == pair[0] or whole_word_alike(pair[1]) or whole_word_alike(pair[0])


def ignoring(flaw: str) -> Callable[[str], str | None]:
    """The rule without one of its flaws."""
    return lambda text: None if flaw in str(find_flaw(text)) else find_flaw(text)


def after(change: Callable[[str], str]) -> Callable[[str], str | None]:
    """The rule for a text that was changed before, so that it does not see what it was."""
    return lambda text: find_flaw(change(text)) if change(text) else find_flaw(text)


PLANTED = {
    "blanks at the ends": ignoring("blanks at an end"),
    "several blanks": ignoring("not a single space"),
    "letters of two alphabets": ignoring("alphabets"),
    "marks that are drawn alike": ignoring("drawn as"),
    "no normal form": after(lambda text: unicodedata.normalize("NFC", text)),
    "what is not seen": after(lambda text: "".join(c for c in text if c not in UNSEEN)),
    "digits of all scripts": after(
        lambda text: "".join(str(unicodedata.decimal(c, c)) for c in text)
    ),
}


@pytest.mark.parametrize("fault", PLANTED)
def test_a_planted_fault_is_found(fault: str) -> None:
    """The same search over the rule with one part of it missing finds two accounts."""

    @settings(max_examples=2000, derandomize=True, deadline=None, phases=[Phase.generate])
    @given(respelled())
    def search(pair: tuple[str, str]) -> None:
        if accepts_both(pair, PLANTED[fault]):
            assert whole_word_alike(pair[0]) or whole_word_alike(pair[1])

    with pytest.raises(AssertionError):
        search()


@pytest.mark.parametrize(
    ("text", "says", "remedy"),
    [
        ("", "is empty", "give another name"),
        ("clinic ", "has blanks at an end", "write 'clinic'"),
        ("a\u00a0b", "has a blank that is not a single space", "write 'a b'"),
        ("a\u200bb", r"has a character that is not seen \(U\+200B\)", "write 'ab'"),
        ("\u202egnp", r"not seen \(U\+202E\)", "write 'gnp'"),
        ("May ٢", "has a digit that is not one of 0 to 9", "write 'May 2'"),
        ("Zoe\u0308", "normal form", "write 'Zoë'"),
        ("ｃｌｉｎｉｃ", "normal form", "write 'clinic'"),
        ("сlinic", "two alphabets", "give another name"),
        ("O’Brien", "drawn as '", 'write "O\'Brien"'),
        ("\ud800", "not seen", "give another name"),
        (7, "is no text", "give another name"),
    ],
)
def test_a_refusal_says_what_and_how_to_write_it(text: object, says: str, remedy: str) -> None:
    with pytest.raises(InputError, match=rf"^scope = '.*': .*{says}.*; {remedy}$") as error:
        require_canonical("scope", text)
    assert str(error.value).isprintable()
    with pytest.raises(DataError):
        require_canonical("scope", text, error=DataError)


@pytest.mark.parametrize(
    "text",
    [
        "clinic",
        "q 1",
        "β-blocker",
        "Zoë",
        "東京 7",
        "Анна",
        "model 1/0",
        "a.b:c/d-e",
        "O'Brien",
        "№",
    ],
)
def test_ordinary_names_are_identifiers(text: str) -> None:
    expected = None if text != "№" else "is not in Unicode's normal form (NFKC)"
    assert find_flaw(text) == expected


@FEW
@given(st.lists(st.text("aé٣ \u0301語\u200b", max_size=3), max_size=6))
def test_ids_in_an_array_are_looked_at_as_one_by_one(texts: list[str]) -> None:
    ids = np.array(texts, dtype=str) if texts else np.zeros(0, dtype=str)
    flaws = [(k, find_flaw(text)) for k, text in enumerate(ids.tolist())]
    flawed = [(k, flaw) for k, flaw in flaws if flaw is not None]
    expected = (flawed[0][0], len(flawed), flawed[0][1]) if flawed else None
    assert find_flawed(ids) == expected
    assert find_flawed(np.arange(3)) is None


# --- periods, against a calendar

FIRST, LAST = date(2019, 12, 20), date(2033, 1, 10)
DAYS = [FIRST + timedelta(days=k) for k in range((LAST - FIRST).days)]
DIGITS = {"arabic": "٠١٢٣٤٥٦٧٨٩", "wide": "０１２３４５６７８９", "devanagari": "०१२३४५६७८९"}


def candidates(every: str) -> list[str]:
    """Texts of the form of a period, of years within the calendar, and others near that form."""
    years = range(2020, 2033)
    two = [f"{k:02d}" for k in range(0, 100)]
    forms = {
        "day": [f"{y}-{m}-{d}" for y, m, d in product((2020, 2025), two[:14], two[:33])],
        "week": [f"{y}-W{w}" for y, w in product(years, two[:56])],
        "month": [f"{y}-{m}" for y, m in product(years, two)],
        "quarter": [f"{y}-Q{k}" for y, k in product(years, range(10))],
        "year": [str(y) for y in years],
    }[every]
    odd = [
        other
        for text in forms[:: max(1, len(forms) // 40)]
        for other in (
            f" {text}", f"{text} ", f"{text}\n", text.lower(), f"+{text}", f"{text}T00:00",
            text.replace("-", ""), text.replace("-0", "-"), text.replace("-", "/"),
            *(text.translate(str.maketrans("0123456789", own)) for own in DIGITS.values()),
            *(text[:-1] + own[int(text[-1])] for own in DIGITS.values()),
        )
    ]  # fmt: skip
    return [*forms, *odd]


def disagrees(every: str, find: Callable[[str, str], object | None]) -> list[str]:
    """Texts that are a period by one of `find` and the calendar and not by the other."""
    known = {name_period(day, every) for day in DAYS}
    names = candidates(every)
    return [text for text in names if (find(text, every) is not None) != (text in known)]


@pytest.mark.parametrize("every", PERIODS)
def test_a_period_is_what_a_calendar_has_and_is_written_in_one_way(every: str) -> None:
    assert disagrees(every, find_period) == []
    for day in DAYS:
        first = find_period(name_period(day, every), every)
        assert first is not None
        assert first <= day
        assert name_period(first, every) == name_period(day, every)


def test_periods_of_python_s_own_calendar() -> None:
    for day in DAYS:
        assert name_period(day, "week") == day.strftime("%G-W%V")
        assert name_period(day, "month") == day.strftime("%Y-%m")
        quarter = (int(day.strftime("%m")) - 1) // 3 + 1
        assert name_period(day, "quarter") == f"{day.year}-Q{quarter}"
    for text, every in (("0000", "year"), ("0000-01", "month"), ("9999-W53", "week")):
        assert find_period(text, every) is None
    assert find_period("0001", "year") == date(1, 1, 1)


def by_int(text: str, every: str) -> object | None:
    """Reads digits of all scripts, as `int` does."""
    ascii_digits = "".join(str(unicodedata.decimal(c, c)) for c in text)
    return find_period(ascii_digits, every)


def by_strptime(text: str, every: str) -> object | None:
    """Reads a month and a day of one digit, as `strptime` does."""
    form = {"day": "%Y-%m-%d", "month": "%Y-%m", "year": "%Y"}.get(every)
    if form is None:
        return find_period(text, every)
    try:
        return datetime.strptime(text, form)
    except ValueError:
        return None


def by_form(text: str, every: str) -> object | None:
    """Looks at the form alone: February has 31 days, and each year 53 weeks."""
    import re

    forms = {
        "day": r"\d{4}-(0[1-9]|1[0-2])-(0[1-9]|[12]\d|3[01])",
        "week": r"\d{4}-W(0[1-9]|[1-4]\d|5[0-3])",
    }
    form = forms.get(every)
    return find_period(text, every) if form is None else re.fullmatch(form, text, re.ASCII)


def by_isoformat(text: str, every: str) -> object | None:
    """Reads 20250203 and 2025-W06-1 as a day, as `date.fromisoformat` does."""
    if every != "day":
        return find_period(text, every)
    try:
        return date.fromisoformat(text)
    except ValueError:
        return None


@pytest.mark.parametrize(
    ("fault", "every"),
    [(by_int, "day"), (by_int, "year"), (by_strptime, "day"), (by_strptime, "month"),
     (by_form, "day"), (by_form, "week"), (by_isoformat, "day")],
)  # fmt: skip
def test_a_planted_fault_of_a_calendar_is_found(
    fault: Callable[[str, str], object | None], every: str
) -> None:
    assert disagrees(every, fault)


def test_a_week_53_of_a_year_of_52_is_none() -> None:
    assert find_period("2025-W53", "week") is None
    assert find_period("2026-W53", "week") == date(2026, 12, 28)
    assert _identifiers.find_period("2025-02-31", "day") is None
