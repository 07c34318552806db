"""What several commands read from their flags."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from apiece.errors import DataError, InputError


def read_text(path: Path) -> str:
    """Return the text of a file; raise `DataError` where it cannot be read."""
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path}: cannot be read ({error}); give a readable file") from None


def parse_option(text: str) -> tuple[str, Any]:
    """Return the name and the value of `name=value`, the value as JSON where it is."""
    name, equals, value = text.partition("=")
    if not equals:
        raise InputError(f"--option: {text!r} is not name=value, as in noise=strictest")
    try:
        return name.replace("-", "_"), json.loads(value)
    except json.JSONDecodeError:
        return name.replace("-", "_"), value
