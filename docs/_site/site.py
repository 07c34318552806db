"""What the site needs beyond its settings: links that stay inside, and sections by their names."""

import re
from typing import Any

import griffe

UPWARD = re.compile(r"\[([^\]]+)\]\(((?:\.\./)+)[^)]*\)")


def on_page_markdown(markdown: str, *, page: Any, **_: Any) -> str:
    """Show links to files that are no part of the site as their text."""
    depth = page.file.src_uri.count("/")

    def shown(match: re.Match[str]) -> str:
        outside = match[2].count("/") > depth
        return f"`{match[1].strip('`')}`" if outside else match[0]

    return UPWARD.sub(shown, markdown)


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
