"""The catalogue of texts: what pages and papers say, in each language beside the others."""

from __future__ import annotations

import re
import tomllib
from functools import cache
from importlib.resources import files

from apiece.errors import DataError, unknown

# Languages of pages and papers; the first is that of statement.json.
LANGUAGES = ("en", "de")


def translate(text: str, language: str, /, **values: str) -> str:
    """Return a text of the catalogue in a language.

    Args:
        text: A name of the catalogue, or a sentence of a statement as statement.json has it.
        language: One of `LANGUAGES`.
        **values: What stands for the words in braces, where `text` is a name.

    Raises:
        DataError: For a sentence that the catalogue lacks, as one of another apiece.
        InputError: For a language that there is not.

    Example:
        >>> from apiece.reporting.catalogue import translate
        >>> translate("page.one-in", "de", cases="100.000")
        '1 zu 100.000'
    """
    if language not in LANGUAGES:
        raise unknown("language", language, LANGUAGES)
    entries, patterns = _read_catalogue()
    if text in entries:
        return entries[text][language].format(**values)
    # A sentence with numbers in it, as a statement writes them; they are written anew in the
    # language.
    for pattern, key in patterns:
        if match := pattern.fullmatch(text):
            found = {name: localize(value, language) for name, value in match.groupdict().items()}
            return entries[key][language].format(**found)
    raise DataError(
        f"statement: {text!r} is not in the catalogue of texts; make its page with the apiece that "
        "wrote it"
    )


def has_text(name: str) -> bool:
    """Return whether the catalogue has a text of this name."""
    entries, _ = _read_catalogue()
    return name in entries


def localize(number: str, language: str) -> str:
    """Return a number, written as in English, with the separators of a language.

    >>> localize("1,000", "de"), localize("0.5", "de"), localize("1,000", "en")
    ('1.000', '0,5', '1,000')
    """
    return number.translate(str.maketrans(",.", ".,")) if language == "de" else number


@cache
def _read_catalogue() -> tuple[dict[str, dict[str, str]], list[tuple[re.Pattern[str], str]]]:
    """Return the texts by what they are of, and a pattern of each sentence with words in braces."""
    content = (files("apiece.reporting") / "catalogue.toml").read_text(encoding="utf-8")
    entries: dict[str, dict[str, str]] = {}
    patterns = []
    for entry in tomllib.loads(content)["text"]:
        entries[entry["of"]] = entry
        # The text with each word in braces as a group that takes numbers alone: even parts are
        # text, odd ones the names.
        if "{" in entry["of"]:
            parts = re.split(r"\{(\w+)\}", entry["of"])
            written = []
            for position, part in enumerate(parts):
                written.append(re.escape(part) if position % 2 == 0 else f"(?P<{part}>[0-9.,e+-]+)")
            patterns.append((re.compile("".join(written)), entry["of"]))
    return entries, patterns
