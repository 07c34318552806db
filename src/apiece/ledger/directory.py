"""From a person's id to their place: people are only ever added, so a directory can be kept."""

from __future__ import annotations

from typing import Any

import numpy as np
import sqlalchemy as sa

from apiece._types import Integers
from apiece.errors import DataError, StateError
from apiece.ledger.accounts import read_ids
from apiece.ledger.chain import REMEDY
from apiece.ledger.codec import BLOCK, Ids, kind


class Directory:
    """The ids of all people in the order of enrolment, with a hash index."""

    def __init__(self) -> None:
        self.ids: Ids = np.zeros(0, dtype=np.int64)
        self._index: Any = None

    def refresh(self, connection: sa.Connection, salt: bytes, people: int) -> None:
        """Read the people enrolled since the last refresh."""
        if people == self.ids.size:
            return
        first = self.ids.size // BLOCK
        parts = [self.ids[: first * BLOCK]] if first else []
        parts += list(read_ids(connection, salt, first))
        ids = np.concatenate(parts) if parts else self.ids[:0]
        if ids.size != people:
            raise StateError(f"ledger: {ids.size} people where its history has {people}; {REMEDY}")
        self.ids, self._index = ids, None

    @property
    def kind(self) -> str | None:
        """Of the ids: "integer", "text", or None while there are none."""
        return kind(self.ids) if self.ids.size else None

    def find(self, ids: Ids) -> Integers:
        """Return each id's number, or −1. Raises `DataError` for the wrong kind or an id twice."""
        if not ids.size:
            return np.zeros(0, dtype=np.int64)
        if self.kind is not None and self.kind != kind(ids):
            raise DataError(
                f"ids: {kind(ids)} ids, but this ledger's are {self.kind}; convert them"
            )
        import pandas as pd

        if self._index is None:
            self._index = pd.Index(_plain(self.ids))
        wanted = pd.Index(_plain(ids))
        if not wanted.is_unique:
            twice = wanted[wanted.duplicated()].tolist()[0]
            raise DataError(f"ids: {twice!r} occurs more than once; give each person one entry")
        if not self.ids.size:
            return np.full(ids.size, -1, dtype=np.int64)
        return np.asarray(self._index.get_indexer(wanted), dtype=np.int64)

    def numbers(self, ids: Ids) -> Integers:
        """Return each id's number. Raises `DataError` for an unknown person."""
        found = self.find(ids)
        if (found < 0).any():
            unknown = ids[np.flatnonzero(found < 0)[0]]
            raise DataError(
                f"ids: person {unknown.item()!r} has no account ({int((found < 0).sum())} such of "
                f"{ids.size}); enroll them first"
            )
        return found


def _plain(ids: Ids) -> Any:
    return ids if ids.dtype.kind == "i" else ids.astype(object)
