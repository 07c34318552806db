"""Ownership: rows with several owners, and which of them to use so that nobody owns too many."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from apiece import _check
from apiece._types import Integers, Mask
from apiece.errors import InputError


@dataclass(frozen=True, eq=False, init=False)
class Ownership:
    """Who owns which row: a public graph of rows and people.

    A message has a writer and readers, a co-authored text its authors: each of them is an owner,
    and the removal of one owner removes all rows of theirs (Ganesh et al. 2025). The graph is
    taken as public: nothing here hides who owns what.

    Args:
        owners: for each row, the ids of its owners, at least one; a repeated id counts once.

    Attributes:
        ids: the owners' ids, sorted; of type int or str.
        rows: how many rows there are.
        row, owner: one entry for each pair of a row and an owner: the position of the row, and
            the position of the owner in `ids`; sorted by row, then owner.

    Raises:
        InputError: a row without owners, or ids that are neither all integers nor all text.

    Example:
        >>> chat = Ownership([["ann", "bob"], ["bob", "eve"], ["eve"]])
        >>> chat.select(1).tolist()
        [0, 2]
    """

    ids: npt.NDArray[Any] = field(repr=False)
    rows: int
    row: Integers = field(repr=False)
    owner: Integers = field(repr=False)

    def __init__(self, owners: Iterable[Iterable[Any]]) -> None:
        lists = [list(row) for row in owners]
        sizes = np.array([len(row) for row in lists], dtype=np.int64)
        if not sizes.size or not sizes.all():
            where = f"row {int(np.flatnonzero(sizes == 0)[0])}" if sizes.size else "owners"
            raise InputError(f"{where}: no owner; give each row the ids of all its owners")
        flat = _check.ids("owners", [owner for row in lists for owner in row], error=InputError)
        self._keep(np.repeat(np.arange(sizes.size), sizes), flat, sizes.size)

    @classmethod
    def from_pairs(cls, row: npt.ArrayLike, owner: npt.ArrayLike) -> Ownership:
        """Return the graph given by its edges, for tables of many millions.

        Args:
            row: (E,) positions of rows, each of 0 … the largest at least once.
            owner: (E,) ids of owners, integers or text.

        Raises:
            InputError: shapes that differ, rows without owners, ids of another kind.

        Example:
            >>> Ownership.from_pairs([0, 0, 1], ["ann", "bob", "bob"]).rows
            2
        """
        rows, owners = np.asarray(row), _check.ids("owner", owner, error=InputError)
        if rows.ndim != 1 or rows.shape != owners.shape or not rows.size:
            raise InputError(
                f"row, owner: shapes {rows.shape} and {owners.shape}; give one entry for each pair"
            )
        if rows.dtype.kind not in "iu" or rows.min() < 0:
            raise InputError(f"row: of type {rows.dtype}; give positions of rows from 0 on")
        size = int(rows.max()) + 1
        missing = np.bincount(rows, minlength=size) == 0 if size <= 64 * rows.size else [True]
        if np.any(missing):
            raise InputError("row: some row below the largest has no owner; count rows from 0 on")
        graph = cls.__new__(cls)
        graph._keep(rows.astype(np.int64), owners, size)
        return graph

    def _keep(self, row: Integers, owner: npt.NDArray[Any], rows: int) -> None:
        ids, position = np.unique(owner, return_inverse=True)
        pairs = np.unique(row * ids.size + position)
        put = object.__setattr__
        put(self, "ids", ids)
        put(self, "rows", rows)
        put(self, "row", pairs // ids.size)
        put(self, "owner", pairs % ids.size)
        for array in (self.ids, self.row, self.owner):
            array.flags.writeable = False

    def select(self, limit: npt.ArrayLike = 1) -> Integers:
        """Return rows such that nobody owns more than `limit` of them; positions, ascending.

        The choice depends on the graph and on `limit` only, so it costs no privacy where the
        graph is public. It is maximal (no further row could be added), not the largest: that is
        NP-hard. Each round counts, for every owner who could exceed the limit, how many rows they
        have left for each place; a row is taken when, among the rows left, it is of the least
        crowded for every one of its owners.

        Args:
            limit: a whole number ≥ 0, or one for each owner in the order of `ids`; 0 leaves all
                rows of an owner out.

        Raises:
            InputError: a limit that is negative or no whole number, or another number of them.

        References:
            Ganesh et al. 2025, Algorithm 2, takes rows by their number of owners.

        Example:
            >>> Ownership([[1, 2], [1], [1], [2]]).select([2, 1]).tolist()
            [1, 2, 3]
        """
        left = self._limits(limit)
        needed = np.bincount(self.row, minlength=self.rows)
        chosen: Mask = np.zeros(self.rows, dtype=bool)
        row, owner = self._without(self.row, self.owner, left == 0)
        while row.size:
            new = _unanimous(row, owner, left, needed)
            chosen |= new
            left = left - np.bincount(owner[new[row]], minlength=left.size)
            keep = ~new[row]
            row, owner = self._without(row[keep], owner[keep], left == 0)
        return np.flatnonzero(chosen)

    def owned(self, selected: npt.ArrayLike) -> Integers:
        """Return how many of the rows `selected` each owner owns, in the order of `ids`.

        Args:
            selected: positions of rows.

        Example:
            >>> Ownership([[1, 2], [1], [3]]).owned([0, 1]).tolist()
            [2, 1, 0]
        """
        mask = np.zeros(self.rows, dtype=bool)
        mask[np.asarray(selected, dtype=np.int64)] = True
        return np.bincount(self.owner[mask[self.row]], minlength=self.ids.size)

    def _limits(self, limit: npt.ArrayLike) -> Integers:
        limits = np.asarray(limit)
        if limits.dtype.kind not in "iu" or (limits < 0).any():
            raise InputError(f"limit = {limit!r}: must be whole numbers of at least 0")
        if limits.shape not in ((), (self.ids.size,)):
            raise InputError(
                f"limit: shape {limits.shape}, but there are {self.ids.size} owners; give one "
                "number, or one for each owner"
            )
        return np.broadcast_to(limits, (self.ids.size,)).astype(np.int64)

    def _without(self, row: Integers, owner: Integers, full: Mask) -> tuple[Integers, Integers]:
        """Return the edges of the rows none of whose owners is full."""
        lost = np.zeros(self.rows, dtype=bool)
        lost[row[full[owner]]] = True
        keep = ~lost[row]
        return row[keep], owner[keep]


def _unanimous(row: Integers, owner: Integers, left: Integers, needed: Integers) -> Mask:
    """Return the rows that every one of their owners has among their `left` least crowded ones.

    No owner can get more than `left` rows, for each votes for so many. The least crowded row of
    all is always taken, so that the rounds end.
    """
    waiting = np.bincount(owner, minlength=left.size)
    crowd = np.where(waiting > left, waiting / np.maximum(left, 1), 0.0)
    key = np.bincount(row, crowd[owner], minlength=needed.size)
    order = np.lexsort((row, key[row], owner))
    sorted_owner = owner[order]
    begins = np.searchsorted(sorted_owner, np.arange(left.size))
    rank = np.arange(order.size) - begins[sorted_owner]
    votes = np.bincount(row[order][rank < left[sorted_owner]], minlength=needed.size)
    return np.asarray((votes == needed) & (votes > 0))
