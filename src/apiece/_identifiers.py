"""Identifiers that key a budget: each has one spelling, and any other is refused.

A person, a period, a querier, a purpose, a source and an analysis are known by a text. Two texts
that a reader takes for the same would be two accounts, and each would pay. So a text is an
identifier only in the form that Unicode's NFKC gives it, with ASCII digits, with single blanks
inside it alone, without characters that are not seen, and without a letter of another alphabet that
is drawn as one of those beside it. A word that is wholly of letters which another alphabet draws
alike is taken as it is.
"""

import re
import unicodedata
from datetime import date
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from apiece._text import plain
from apiece.errors import InputError

# Characters of a text that a message shows.
LONGEST_SHOWN: Final = 60

# Categories of characters that do something else than being seen: controls, formats (which turn the
# direction of writing, or have no width), surrogates, private use, unassigned, separators of lines.
_UNSEEN_CATEGORIES: Final = frozenset(("Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"))
# First and last of the characters that are letters, marks or symbols by category and are not seen:
# Unicode's Default_Ignorable_Code_Point, and the blank of Braille.
_UNSEEN_RANGES: Final = (
    (0x034F, 0x034F),
    (0x115F, 0x1160),
    (0x17B4, 0x17B5),
    (0x180B, 0x180F),
    (0x2800, 0x2800),
    (0x3164, 0x3164),
    (0xFE00, 0xFE0F),
    (0xFFA0, 0xFFA0),
    (0xE0000, 0xE0FFF),
)
# Letters of Cyrillic, Greek and Armenian that are drawn as a letter of Latin.
_DRAWN_AS_LATIN: Final = frozenset("аАВеЕіІјЈКМНоОрРсСТуУхХѕЅԁһԛԜԝӏӀѵΑΒΕΖΗΙΚΜΝοΟΡΤΥΧνϳօսհցՏՕ")
# Marks that are drawn as one of ASCII, and that one.
_DRAWN_AS_ASCII: Final = {
    **dict.fromkeys("‐‑‒–−", "-"),
    **dict.fromkeys("‘’ʼ′", "'"),
}


def find_flaw(text: str) -> str | None:
    """Return why a text is no identifier, as the end of a sentence; None where it is one.

    >>> find_flaw("clinic 7"), find_flaw("clinic "), find_flaw("clinic ٧")
    (None, 'has blanks at an end', 'has a digit that is not one of 0 to 9')
    """
    if not text:
        return "is empty"
    # ASCII without blanks has one form and no letters that are drawn alike: nearly all ids end
    # here.
    if text.isascii() and text.isprintable() and " " not in text:
        return None
    unseen = next(filter(_is_unseen, text), None)
    if unseen is not None:
        return f"has a character that is not seen (U+{ord(unseen):04X})"
    if text != text.strip():
        return "has blanks at an end"
    if "  " in text or any(map(_is_foreign_blank, text)):
        return "has a blank that is not a single space"
    if any(map(_is_foreign_digit, text)):
        return "has a digit that is not one of 0 to 9"
    if not unicodedata.is_normalized("NFKC", text):
        return "is not in Unicode's normal form (NFKC)"
    mark = next(filter(_DRAWN_AS_ASCII.__contains__, text), None)
    if mark is not None:
        return f"has a mark that is drawn as {_DRAWN_AS_ASCII[mark]} (U+{ord(mark):04X})"
    if not _DRAWN_AS_LATIN.isdisjoint(text) and any(map(_is_latin, text)):
        return "mixes letters of two alphabets that are drawn alike"
    return None


def _is_unseen(character: str) -> bool:
    if unicodedata.category(character) in _UNSEEN_CATEGORIES:
        return True
    return any(first <= ord(character) <= last for first, last in _UNSEEN_RANGES)


def _is_foreign_blank(character: str) -> bool:
    return character.isspace() and character != " "


def _is_foreign_digit(character: str) -> bool:
    return unicodedata.category(character) == "Nd" and not character.isascii()


def _is_latin(character: str) -> bool:
    return unicodedata.name(character, "").startswith("LATIN")


def suggest(text: str) -> str | None:
    """Return the identifier that a text seems to mean; None where there is no safe guess.

    >>> suggest(" clinic\u200b ٧ ")
    'clinic 7'
    """
    characters = []
    for character in text:
        if _is_foreign_digit(character):
            characters.append(str(unicodedata.decimal(character)))
        elif character in _DRAWN_AS_ASCII:
            characters.append(_DRAWN_AS_ASCII[character])
        elif character.isspace():
            characters.append(" ")
        elif not _is_unseen(character):
            characters.append(character)
    normal = unicodedata.normalize("NFKC", "".join(characters))
    identifier = " ".join(normal.split())
    return identifier if find_flaw(identifier) is None else None


def require_canonical(name: str, text: object, *, error: type[InputError] = InputError) -> str:
    """Return a text that is an identifier; raise `error` with its flaw and how to write it."""
    flaw = find_flaw(text) if isinstance(text, str) else "is no text"
    if flaw is None:
        return str(text)
    excerpt = "".join(map(_escape_blank, plain(text)))
    if len(excerpt) > LONGEST_SHOWN:
        excerpt = excerpt[: LONGEST_SHOWN - 1] + "…"
    suggestion = suggest(text) if isinstance(text, str) else None
    remedy = "give another name" if suggestion is None else f"write {suggestion!r}"
    raise error(f"{name} = '{excerpt}': {flaw}; {remedy}")


def _escape_blank(character: str) -> str:
    """Return a blank that is no space as its code, and any other character itself."""
    return f"\\u{ord(character):04x}" if _is_foreign_blank(character) else character


def find_flawed(ids: npt.NDArray[Any]) -> tuple[int, int, str] | None:
    """Return the position of the first id that is no identifier, their number, and its flaw.

    None where all are identifiers. Whole numbers have one spelling.
    """
    if ids.dtype.kind != "U" or not ids.size:
        return None
    width = ids.dtype.itemsize // 4
    if not width:
        return 0, ids.size, "is empty"
    # Ids of ASCII without blanks, the most, are cleared together; the zeros fill up the width.
    native = np.ascontiguousarray(ids, dtype=ids.dtype.newbyteorder("="))
    characters = native.view(np.uint32).reshape(ids.size, width)
    is_ascii = ((characters > 0x20) & (characters < 0x7F)) | (characters == 0)
    is_empty = characters[:, 0] == 0
    suspects = np.flatnonzero(~is_ascii.all(axis=1) | is_empty)
    flawed = []
    for position in suspects.tolist():
        flaw = find_flaw(str(ids[position]))
        if flaw is not None:
            flawed.append((position, flaw))
    if not flawed:
        return None
    position, flaw = flawed[0]
    return position, len(flawed), flaw


# From the shortest to the longest.
PERIODS: Final = ("day", "week", "month", "quarter", "year")

# The form of the name of each kind of period.
_FORMS: Final = {
    "day": re.compile(r"([0-9]{4})-([0-9]{2})-([0-9]{2})"),
    "week": re.compile(r"([0-9]{4})-W([0-9]{2})"),
    "month": re.compile(r"([0-9]{4})-([0-9]{2})"),
    "quarter": re.compile(r"([0-9]{4})-Q([1-4])"),
    "year": re.compile(r"([0-9]{4})"),
}


def name_period(day: date, every: str) -> str:
    """Return the name of the period of a day, so that later ones sort after it.

    every: one of `PERIODS`. Weeks are those of ISO 8601.

    >>> [name_period(date(2027, 1, 2), every) for every in PERIODS]
    ['2027-01-02', '2026-W53', '2027-01', '2027-Q1', '2027']
    """
    match every:
        case "day":
            return day.isoformat()
        case "week":
            year, week, _ = day.isocalendar()
            return f"{year:04d}-W{week:02d}"
        case "month":
            return f"{day.year:04d}-{day.month:02d}"
        case "quarter":
            return f"{day.year:04d}-Q{(day.month + 2) // 3}"
        case "year":
            return f"{day.year:04d}"
    raise ValueError(every)


def find_period(text: str, every: str) -> date | None:
    """Return the first day of the period that a text names; None where it is no period's name.

    >>> find_period("2026-W53", "week"), find_period("2025-W53", "week")
    (datetime.date(2026, 12, 28), None)
    """
    form = _FORMS[every].fullmatch(text)
    if form is None:
        return None
    numbers = [int(group) for group in form.groups()]
    try:
        match every:
            case "week":
                start = date.fromisocalendar(numbers[0], numbers[1], 1)
            case "quarter":
                start = date(numbers[0], 3 * numbers[1] - 2, 1)
            case _:
                # A month has no day, and a year no month: both begin with the first.
                year, month, day = [*numbers, 1, 1][:3]
                start = date(year, month, day)
    except ValueError:
        return None
    # Written back and compared: a form may fit a text that is no period's one name.
    return start if name_period(start, every) == text else None
