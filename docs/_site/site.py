"""Sections of docstrings by the names that griffe knows."""

import re
from typing import Any

import griffe


class Sections(griffe.Extension):
    """Read `Example:` as griffe's section of examples, so that what it shows is set as code."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Rename the section in an object's docstring."""
        if obj.docstring is not None:
            text = re.sub(r"^Example:$", "Examples:", obj.docstring.value, flags=re.M)
            if "Examples:" not in text:  # a docstring of the older form
                text = re.sub(r"^>>> (.|\n.)*", _as_section, text, flags=re.M)
            obj.docstring.value = text


def _as_section(match: re.Match[str]) -> str:
    return "Examples:\n" + re.sub(r"^", "    ", match[0], flags=re.M)
