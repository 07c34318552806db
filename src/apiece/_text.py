"""Names that come from data, made fit to be shown: on a terminal, on a page, in a figure."""

from __future__ import annotations

import re
import unicodedata
from decimal import ROUND_CEILING, Context

# Controls, formats (which turn the direction of writing), surrogates, private use, separators.
_HIDDEN = ("Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp")
_LONGEST = 60  # characters of a name in a figure


def plain(text: object) -> str:
    r"""Return text in one line in which every character shows itself and does nothing else.

    What would move the cursor, change colours, turn the direction of writing, or cannot be encoded
    is written as \uXXXX, which JSON reads as the same character.

    >>> plain("a\x1b[31mb\nc"), plain("Zoë, 東京")
    ('a\\u001b[31mb\\u000ac', 'Zoë, 東京')
    """
    return "".join(map(_shown, str(text)))


def plain_lines(text: str) -> str:
    """Return as `plain`, but with line ends as they are.

    >>> plain_lines("a\\x00b\\nc")
    'a\\\\u0000b\\nc'
    """
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
    text = Context(prec=digits, rounding=ROUND_CEILING).create_decimal(value)
    return f"{float(text):.{digits}g}"


def shown(value: float) -> str:
    """Return a number of a promise in at most six digits, as it is or rounded up.

    >>> shown(1e-05), shown(0.1), shown(0.49999991)
    ('1e-05', '0.1', '0.5')
    """
    text = f"{value:.6g}"
    return text if float(text) >= value else rounded_up(value, 6)


def figure_text(text: object) -> str:
    r"""Return a name for matplotlib: plain, of bounded length, no formula, never left out.

    matplotlib reads what is between dollars as a formula, and leaves names that begin with an
    underscore out of legends.

    >>> figure_text("$x$"), figure_text("_a")
    ('\\$x\\$', ' _a')
    """
    shown = plain(text)
    shown = shown if len(shown) <= _LONGEST else shown[: _LONGEST - 1] + "…"
    return re.sub(r"^(?=_)", " ", shown).replace("$", r"\$")


def _shown(character: str) -> str:
    if character.isprintable() or unicodedata.category(character) not in _HIDDEN:
        return character
    units = character.encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[k]:02x}{units[k + 1]:02x}" for k in range(0, len(units), 2))
