"""What an analysis may be called, and what it may release."""

from __future__ import annotations

import json
from typing import Any

from apiece.errors import InputError


def check_id(value: Any) -> str:
    """Return the id of an analysis. Raises `InputError` for what cannot be one."""
    if not isinstance(value, str) or not 0 < len(value) <= 200 or not value.isprintable():
        raise InputError(f"analysis_id = {value!r}: give 1 to 200 printable characters")
    return value


def check_result(result: Any) -> None:
    """Raise `InputError` for a result that JSON cannot hold."""
    try:
        json.dumps(result, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise InputError(f"result: {error}; give a JSON value") from None
