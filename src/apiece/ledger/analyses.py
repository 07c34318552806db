"""What an analysis may be called, what it stands for, and what it may release."""

from __future__ import annotations

import json
from typing import Any

from apiece._types import Json
from apiece.errors import AnalysisError, InputError
from apiece.ledger.digests import keyed


def check_id(value: Any) -> str:
    """Return the id of an analysis. Raises `InputError` for what cannot be one."""
    if not isinstance(value, str) or not 0 < len(value) <= 200 or not value.isprintable():
        raise InputError(f"analysis_id = {value!r}: give 1 to 200 printable characters")
    return value


def check_result(result: Any) -> None:
    """Raise `InputError` for a result that JSON cannot hold."""
    _json("result", result)


def about(salt: bytes, terms: Any) -> Json:
    """Return what a reservation's entry holds of its terms: a keyed digest, or nothing of none."""
    if terms is None:
        return {}
    return {"terms": keyed(salt, b"terms", _json("terms", terms).encode()).hex()}


def check_terms(analysis_id: str, entry: Json, asked: Json) -> None:
    """Raise `AnalysisError` where a reservation's entry holds other terms than those of `about`.

    Reservations of ledgers older than version 4 hold none. The message depends on nothing else.
    """
    if entry.get("terms") != asked.get("terms"):
        raise AnalysisError(
            f"analysis {analysis_id!r}: in use for another analysis or other terms; use a new id"
        )


def _json(name: str, value: Any) -> str:
    try:
        return json.dumps(value, allow_nan=False, sort_keys=True)
    except (TypeError, ValueError) as error:
        raise InputError(f"{name}: {error}; give a JSON value") from None
