"""From the ids of a table, which are text, to the accounts of a ledger, which may be numbers."""

from __future__ import annotations

import re
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from apiece._types import Mask
from apiece.ledger import Ledger

_WHOLE: Final = re.compile(r"0|-?[1-9][0-9]{0,18}")  # one way to write each number


def with_account(ids: npt.NDArray[Any], ledger: Ledger) -> tuple[npt.NDArray[Any], Mask]:
    """Return the ids as the ledger writes them, and who has an account; nobody's error.

    No two texts become one id: where the ledger's ids are whole numbers, "7" is 7, and "07" has
    no account. The ids returned are those with an account, in the order given.
    """
    kind = ledger.id_kind
    if kind is None or not ids.size:
        return np.zeros(0, dtype=np.int64), np.zeros(ids.size, dtype=bool)
    can_be = np.ones(ids.size, dtype=bool)
    values = ids.astype(str)
    if kind == "integer":
        can_be = np.array([_is_integer(text) for text in ids])
        values = ids[can_be].astype(np.int64)
    known = ledger.enrolled(values)
    can_be[can_be] = known
    return values[known], can_be


def _is_integer(text: str) -> bool:
    return _WHOLE.fullmatch(text) is not None and -(2**63) <= int(text) < 2**63
