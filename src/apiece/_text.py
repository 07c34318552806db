"""Names that come from data, made fit to be shown: on a terminal, on a page, in a figure."""

import math
import re
import unicodedata
from collections.abc import Iterable, Sequence
from decimal import ROUND_CEILING, Context
from html import escape

# Categories of characters that are written as their code: controls, formats (which turn the
# direction of writing), surrogates, private use, separators.
_HIDDEN_CATEGORIES = ("Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp")

# The largest number of groups in a notebook's table.
MAX_ROWS = 20

# Characters of a name in a figure.
_LONGEST_NAME = 60


def plain(text: object) -> str:
    r"""Return text in one line in which every character shows itself and does nothing else.

    A character that would move the cursor, change colours, turn the direction of writing, or cannot
    be encoded is written as \uXXXX, which JSON reads as the same character.

    >>> plain("a\x1b[31mb\nc"), plain("Zoë, 東京")
    ('a\\u001b[31mb\\u000ac', 'Zoë, 東京')
    """
    return "".join(map(_escape, str(text)))


def plain_lines(text: str) -> str:
    """Return each line of a text as `plain` does, with the line ends as they are."""
    return "\n".join(map(plain, text.split("\n")))


def per_cent(share: float) -> str:
    """Return a share in per cent, two digits, rounded up.

    >>> per_cent(0.00123), per_cent(0.5)
    ('0.13 %', '50 %')
    """
    return f"{rounded_up(100 * share, 2)} %"


def rounded_up(value: float, digits: int = 4) -> str:
    """Return the least number of so many digits that is not below `value`.

    >>> rounded_up(0.49991), rounded_up(0.5), rounded_up(0.50001), rounded_up(20.0)
    ('0.5', '0.5', '0.5001', '20')
    """
    # A float is a decimal exactly, so that the rounding is that of the number itself.
    rounded = Context(prec=digits, rounding=ROUND_CEILING).create_decimal(value)
    return f"{float(rounded):.{digits}g}"


def thousandths(value: float) -> str:
    """Return three decimals, rounded up, as an upper bound must be."""
    return f"{-(-value * 1000 // 1) / 1000:.3f}"


def shown(value: float) -> str:
    """Return a number of a promise in at most six digits, as it is or rounded up.

    >>> shown(1e-05), shown(0.1), shown(0.49999991)
    ('1e-05', '0.1', '0.5')
    """
    text = f"{value:.6g}"
    return text if float(text) >= value else rounded_up(value, 6)


def lossless(value: float) -> str:
    """Return a number as text that reads back as the same number: in six digits where they do.

    >>> lossless(0.25), lossless(1e6), lossless(1 / 3)
    ('0.25', '1e+06', '0.3333333333333333')
    """
    text = f"{value:g}"
    return text if float(text) == value else repr(float(value))


def count_up(chance: float, of: int = 1000) -> int:
    """Return chance times `of`, rounded up; a whole number that rounding has raised stays itself.

    >>> count_up(0.7311), count_up(0.73)
    (732, 730)
    """
    return min(math.ceil(chance * of * (1 - 1e-12)), of)


def guessing(people: int = 1000, members: int = 500) -> str:
    """Return the beginning of the sentence by which every page explains ε."""
    return (
        f"Of {people:,} people like you, {members:,} of whom took part, an attacker who guesses "
        "for each whether they did is right about"
    )


def guess(
    right: int,
    promised: int | None = None,
    *,
    people: int = 1000,
    members: int = 500,
    blind: int = 500,
) -> str:
    """Return the sentence that explains ε by right guesses, `right` of them at most.

    promised: the number that (ε, δ) alone would allow, where `right` is of the mechanism that is
    run. blind: the number of right guesses without the result.
    """
    alone = "" if promised is None else f" (ε and δ alone would allow {promised:,})"
    return (
        f"{guessing(people, members)} at most {right:,}{alone}; who has not seen the result, about "
        f"{blind:,}."
    )


def align_columns(rows: Sequence[Sequence[str]]) -> list[str]:
    """Return the lines of a table: plain cells, the first column to the left, the rest right.

    >>> align_columns([["a", "10"], ["bc", "1"]])
    ['a   10', 'bc   1']
    """
    cells = [[plain(cell) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    lines = []
    for row in cells:
        padded = [row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])]
        lines.append("  ".join(padded).rstrip())
    return lines


def html_table(
    caption: str, columns: Iterable[str], rows: Iterable[Sequence[str]], notes: Iterable[str] = ()
) -> str:
    """Return a table for a notebook, with a paragraph a note; every text is plain and escaped."""
    head = _format_row("th", columns)
    body = "".join(_format_row("td", row) for row in rows)
    paragraphs = "".join(f"<p>{escape(plain(note))}</p>" for note in notes)
    return (
        f"<table><caption>{escape(plain(caption))}</caption>"
        f"<thead>{head}</thead><tbody>{body}</tbody></table>{paragraphs}"
    )


def _format_row(tag: str, cells: Iterable[str]) -> str:
    """Return a row of an HTML table, its cells in `tag`."""
    formatted = "".join(f"<{tag}>{escape(plain(cell))}</{tag}>" for cell in cells)
    return f"<tr>{formatted}</tr>"


def figure_text(text: object) -> str:
    """Return a name for matplotlib: plain, of bounded length, no formula, never left out."""
    # matplotlib reads a text between dollars as a formula, and leaves names that begin with an
    # underscore out of legends.
    name = plain(text)
    if len(name) > _LONGEST_NAME:
        name = name[: _LONGEST_NAME - 1] + "…"
    return re.sub(r"^(?=_)", " ", name).replace("$", r"\$")


def _escape(character: str) -> str:
    """Return a character that shows itself; another one as its code, in units of UTF-16."""
    if character.isprintable() or unicodedata.category(character) not in _HIDDEN_CATEGORIES:
        return character
    encoded = character.encode("utf-16-be", "surrogatepass")
    units = (encoded[start : start + 2].hex() for start in range(0, len(encoded), 2))
    return "".join(f"\\u{unit}" for unit in units)


def percent(share: float) -> str:
    """Return a share in per cent, with one digit behind the point, rounded up.

    >>> percent(0.25), percent(0.00001)
    ('25.0 %', '0.1 %')
    """
    return f"{math.ceil(share * 1000 - 1e-9) / 10:.1f} %"
