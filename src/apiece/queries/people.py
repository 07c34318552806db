"""From the ids of a table, which are text, to the accounts of a ledger, which may be numbers."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt

from apiece._types import Mask
from apiece.ledger import Ledger, read_id

_SHORT: Final = "^(0|-?[1-9][0-9]{0,17})$"  # of these each fits 64 bits
_PART: Final = 2**20  # ids looked up at a time
Texts = Any  # an Arrow array of text, in one chunk or several


def with_account(ids: Texts, ledger: Ledger) -> tuple[npt.NDArray[Any], Mask]:
    """Return the ids as the ledger writes them, and who has an account; nobody's error.

    No two texts become one id: where the ledger's ids are whole numbers, "7" is 7, and "07" has
    no account. The ids returned are those with an account, in the order given.
    """
    kind = ledger.id_kind
    if kind is None:
        return np.zeros(0, dtype=np.int64), np.zeros(len(ids), dtype=bool)
    found: list[npt.NDArray[Any]] = []
    masks: list[Mask] = []
    for start in range(0, max(1, len(ids)), _PART):
        part = ids.slice(start, _PART)
        values, can_be = (_integers if kind == "integer" else _texts)(part)
        known = ledger.enrolled(values)
        can_be[can_be] = known
        found.append(values[known])
        masks.append(can_be)
    return np.concatenate(found), np.concatenate(masks)


def _texts(ids: Texts) -> tuple[npt.NDArray[Any], Mask]:
    return np.array(ids.to_pylist(), dtype=str), np.ones(len(ids), dtype=bool)


def _integers(ids: Texts) -> tuple[npt.NDArray[Any], Mask]:
    """Return those that are whole numbers, written in the one way, and which they are."""
    import pyarrow as pa
    import pyarrow.compute as pc

    short = np.asarray(pc.match_substring_regex(ids, _SHORT)).astype(bool)
    values = np.zeros(len(ids), dtype=np.int64)
    values[short] = pc.cast(pc.filter(ids, pa.array(short)), pa.int64())
    can_be = short.copy()
    for place in np.flatnonzero(~short).tolist():
        whole = read_id(ids[place].as_py(), "integer")
        if whole is not None:
            values[place], can_be[place] = whole, True
    return values[can_be], can_be
