"""Units of privacy: a table's ids, and whose each row is, one owner a row or several."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from apiece import _check
from apiece._identifiers import find_flaw
from apiece._identity import common_index, require_ids, require_rows
from apiece._types import AnyArray, Floats, Ids, Integers, Mask
from apiece.datasets.cells import select_column
from apiece.errors import DataError, InputError, as_given

if TYPE_CHECKING:
    import pandas as pd


def read_ids(table: pd.DataFrame, name: str) -> Ids:
    """Return a column of ids: whole numbers where they are stored as such, else texts."""
    remedy = f"give every record its person's id, or leave {as_given('ids')} out"
    return _check.record_ids(*_cells(table, name, "ids", remedy))


def read_persons(table: pd.DataFrame, name: str) -> npt.NDArray[np.str_]:
    """Return a column of persons' ids, as texts; a person may have many rows."""
    remedy = "give every row its person's id, or leave the row out"
    what, cells = _cells(table, name, "person", remedy)
    return _check.ids(what, [str(cell) for cell in cells])


def _cells(table: pd.DataFrame, name: str, role: str, remedy: str) -> tuple[str, list[str | int]]:
    """Return the name of a column in messages and its ids, none of them empty, all of one kind."""
    cells, what = select_column(table, name, role), f"{role} column {name!r}"
    given, missing = cells.to_numpy(dtype=object).tolist(), cells.isna().to_numpy(dtype=bool)
    empty = [k for k, v in enumerate(given) if missing[k] or (isinstance(v, str) and not v.strip())]
    if empty:
        raise DataError(f"{what}, row {empty[0] + 1}: empty ({len(empty)} such rows); {remedy}")
    if all(isinstance(v, str) for v in given):
        flawed = [k for k, v in enumerate(given) if find_flaw(v) is not None]
        if flawed:
            raise DataError(
                f"{what}, row {flawed[0] + 1}: the id {find_flaw(given[flawed[0]])} "
                f"({len(flawed)} such rows); write each id in one way, the one that accounts and "
                "other tables have"
            )
        return what, given
    if all(isinstance(v, int | np.integer) and not isinstance(v, bool) for v in given):
        return what, [int(v) for v in given]
    if all(isinstance(v, float) and v.is_integer() and abs(v) < 2**53 for v in given):
        return what, [f"{int(v)}" for v in given]
    raise DataError(
        f"{what}: ids are text or whole numbers, all of one kind, and numbers with a point below "
        "2**53; convert the column"
    )


@dataclass(frozen=True, eq=False, repr=False)
class Units:
    """The units of privacy of a table: persons, each with any number of rows, in any order.

    How many rows a unit has is data about that person.

    Args:
        ids: (U,) Their ids, each once.
        owner: (n,) The position in `ids` of each row's unit.
        most: How many rows a unit brings to a step at most; None for all.

    Example:
        >>> import pandas as pd
        >>> from apiece.budgets import Units
        >>> visits = pd.DataFrame({"who": ["bob", "ann", "bob"], "consent": [2.0, 1.0, 2.0]})
        >>> units = Units.of_column(visits, "who")
        >>> units.ids.tolist(), units.once(visits["consent"].to_numpy(), "consent").tolist()
        (['ann', 'bob'], [1.0, 2.0])
    """

    ids: Ids
    owner: Integers
    most: int | None = None

    @classmethod
    def of(cls, people: npt.ArrayLike, ids: npt.ArrayLike | None = None) -> Units:
        """Return the units of rows, in the order of their ids or of a plan.

        Args:
            people: (n,) The id of each row's unit.
            ids: (U,) The units in the order of a plan; None sorts them.

        Raises:
            DataError: For no rows, a row of nobody in `ids`, a unit without a row, an id given
                twice, and ids that are neither integers nor text.
        """
        given = _check.ids("people", people)
        if not given.size:
            raise DataError("people: none; give one id a row")
        if ids is None:
            return cls(*np.unique(given, return_inverse=True))
        known = _check.record_ids("ids", ids)
        if given.dtype.kind != known.dtype.kind:
            raise DataError(
                f"people: ids of type {given.dtype}, those of the plan are {known.dtype}; give the "
                "same"
            )
        places = find_positions(known, given)
        if strangers := int((places < 0).sum()):
            raise DataError(
                f"people: {strangers} of {given.size} rows are of nobody in the plan; give every "
                "person of the data a budget, or leave their rows out"
            )
        units = cls(known, places)
        if not units.counts.all():
            raise DataError(
                f"people: {int((units.counts == 0).sum())} of {len(units)} persons of the plan "
                "have no row; make the plan from the budgets of exactly the persons in the data"
            )
        return units

    @classmethod
    def of_column(cls, table: pd.DataFrame, name: str) -> Units:
        """Return the units of a table with a row or more a person; their ids are sorted texts.

        Args:
            table: The table.
            name: Of the column of ids.

        Raises:
            DataError: For a row without an id, and a column that is not there.
        """
        return cls(*np.unique(read_persons(table, name), return_inverse=True))

    @classmethod
    def in_turn(cls, people: npt.ArrayLike) -> Units:
        """Return the units of rows, maybe of none, in the order in which they first appear.

        Args:
            people: (n,) The id of each row's unit.

        Raises:
            DataError: For ids that are neither integers nor text.
        """
        given = _check.ids("people", people)
        if given.dtype.kind == "i" and (given[1:] >= given[:-1]).all():  # no need to sort
            new = np.append(np.ones(min(given.size, 1), bool), given[1:] != given[:-1])
            return cls(given[new], np.cumsum(new) - 1)
        ids, first, place = np.unique(given, return_index=True, return_inverse=True)
        order = np.argsort(first)
        turn = np.empty_like(order)
        turn[order] = np.arange(order.size)
        return cls(ids[order], turn[place])

    def __len__(self) -> int:
        return int(self.ids.size)

    @cached_property
    def counts(self) -> Integers:
        """How many rows each unit has, (U,)."""
        return np.bincount(self.owner, minlength=len(self))

    @cached_property
    def starts(self) -> Integers:
        """Where in `rows` each unit's begin, and the end: (U + 1,)."""
        return np.concatenate([np.zeros(1, np.int64), np.cumsum(self.counts)])

    @cached_property
    def rows(self) -> Integers:
        """The positions of rows, (n,), unit by unit, each unit's in increasing order."""
        if self.gathered:
            return np.arange(self.owner.size)
        # Stable, by 16 bits at a time: numpy sorts these by counting.
        order = np.argsort(self.owner.astype(np.uint16), kind="stable")
        for shift in range(16, int(self.owner.max()).bit_length(), 16):
            digits = (self.owner >> shift).astype(np.uint16)
            order = order[np.argsort(digits[order], kind="stable")]
        return order

    @property
    def gathered(self) -> bool:
        """Whether the rows lie unit by unit already."""
        return bool((self.owner[1:] >= self.owner[:-1]).all())

    def at_most(self, rows: int) -> Units:
        """Return these units, each of which brings at most `rows` rows to a step.

        Args:
            rows: At least 1.

        Raises:
            InputError: For another number.
        """
        return replace(self, most=_check.count("rows_per_person", rows))

    def mean(self, values: npt.ArrayLike) -> Floats:
        """Return the mean of the values of each unit's rows, (…, U).

        Args:
            values: (…, n) One a row.

        Raises:
            DataError: For another number of values than rows.
        """
        given = self._by_row(np.asarray(values, dtype=np.float64))
        sums = np.add.reduceat(given[..., self.rows], self.starts[:-1], axis=-1)
        return np.asarray(sums / self.counts)

    def once(self, values: npt.ArrayLike, what: str) -> AnyArray:
        """Return what each unit has, (…, U), from what each of its rows says.

        Args:
            values: (…, n) One a row.
            what: The values' name in a message.

        Raises:
            DataError: For another number of values than rows, and where rows of one unit differ;
                it names nobody.
        """
        given = self._by_row(np.asarray(values))
        own = np.empty((*given.shape[:-1], len(self)), dtype=given.dtype)
        own[..., self.owner] = given
        differs = (own[..., self.owner] != given).reshape(-1, self.owner.size).any(axis=0)
        if differs.any():
            raise DataError(
                f"{what}: rows of one person differ ({np.unique(self.owner[differs]).size} of "
                f"{len(self)} persons); a person has one for all rows: mend the column, or take it "
                "from a table with a row a person (for apiece train, --people)"
            )
        return own

    def require_same(self, others: Units, *, here: str, there: str) -> None:
        """Check that a second table, with one row a unit, is of the same units.

        Args:
            others: Of the second table.
            here: What a message calls this table.
            there: What it calls the other.

        Raises:
            DataError: Where it is not; it names nobody.
        """
        if others.owner.size > len(others):
            raise DataError(
                f"{there}: {int((others.counts > 1).sum())} of {len(others)} persons have several "
                "rows; give each person one"
            )
        strangers = np.setdiff1d(self.ids, others.ids, assume_unique=True).size
        if strangers:
            raise DataError(
                f"{here}: {strangers} of {len(self)} persons have no row in {there}; give each of "
                "them a row there, or leave their rows out"
            )
        without = np.setdiff1d(others.ids, self.ids, assume_unique=True).size
        if without:
            raise DataError(
                f"{there}: {without} of {len(others)} persons have no row in {here}; leave them "
                "out, so that plans count those who are there"
            )

    def _by_row(self, values: AnyArray) -> AnyArray:
        if values.shape[-1:] != self.owner.shape:
            raise DataError(
                f"people: {self.owner.size} ids for values of shape {values.shape}; give the id of "
                "each row's person"
            )
        return values


def find_positions(ids: Ids, wanted: Ids) -> Integers:
    """Return where among `ids`, at least one, each wanted one stands; −1 where it does not.

    >>> find_positions(np.array([7, 3]), np.array([3, 5, 7])).tolist()
    [1, -1, 0]
    """
    if wanted.dtype.kind != ids.dtype.kind:
        return np.full(wanted.size, -1)
    low, high = (int(ids.min()), int(ids.max())) if ids.dtype.kind == "i" else (-(2**63), 2**63)
    if max(-low, high) < 2**62 and high - low < 4 * (ids.size + wanted.size):
        # Whole numbers close together: a table of places in place of a search.
        table = np.full(high - low + 1, -1)
        table[ids - low] = np.arange(ids.size)
        inside = (wanted >= low) & (wanted <= high)
        places = np.full(wanted.size, -1)
        places[inside] = table[wanted[inside] - low]
        return places
    order = np.argsort(ids, kind="stable")
    places = order[np.minimum(np.searchsorted(ids[order], wanted), ids.size - 1)]
    return np.where(ids[places] == wanted, places, -1)


@dataclass(frozen=True, eq=False, init=False)
class Ownership:
    """A public graph of rows and the people who own them; nothing in it is protected.

    A message has a writer and readers, a co-authored text its authors: each of them is an owner,
    and the removal of one owner removes all rows of theirs (Ganesh et al. 2025).

    Args:
        owners: For each row, the ids of its owners, at least one; a repeated id counts once.

    Attributes:
        ids: The owners' ids, sorted; of type int or str.
        rows: How many rows there are.
        row, owner: One entry for each pair of a row and an owner: their positions; sorted by row,
            then owner.

    Raises:
        DataError: For a Series with an index other than 0, 1, 2, …: rows are positions here.
        InputError: For a row without owners, or ids that are neither all integers nor all text.

    Example:
        >>> from apiece.budgets import Ownership
        >>> chat = Ownership([["ann", "bob"], ["bob", "eve"], ["eve"]])
        >>> chat.select(1).tolist()
        [0, 2]
    """

    ids: Ids = field(repr=False)
    rows: int
    row: Integers = field(repr=False)
    owner: Integers = field(repr=False)

    def __init__(self, owners: Iterable[Iterable[object]]) -> None:
        require_rows("dataset", None, owners=owners)
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
            row: (E,) Positions of rows, each of 0 … the largest at least once.
            owner: (E,) Ids of owners, integers or text.

        Raises:
            DataError: For Series whose indices differ.
            InputError: For shapes that differ, rows without owners, ids of another kind.
        """
        common_index(row=row, owner=owner)
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

    def _keep(self, row: Integers, owner: Ids, rows: int) -> None:
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

        The choice depends on the graph and on `limit` only, so it costs no privacy where the graph
        is public. It is maximal (no further row could be added), not the largest: that is NP-hard.
        In each round a row is taken when it is among the least crowded rows of every one of its
        owners.

        Args:
            limit: A whole number ≥ 0, or one for each owner in the order of `ids`, which are the
                index of a Series; 0 leaves all rows of an owner out.

        Raises:
            DataError: For a Series with another index.
            InputError: For a limit that is negative or no whole number, or another number of them.

        References:
            Ganesh et al. 2025, Algorithm 2, takes rows by their number of owners.

        Example:
            >>> from apiece.budgets import Ownership
            >>> Ownership([[1, 2], [1], [1], [2]]).select([2, 1]).tolist()
            [1, 2, 3]
        """
        require_ids("ids", self.ids, limit=limit)
        left = np.asarray(limit)
        if left.dtype.kind not in "iu" or (left < 0).any():
            raise InputError(f"limit = {limit!r}: must be whole numbers of at least 0")
        if left.shape not in ((), self.ids.shape):
            raise InputError(
                f"limit: shape {left.shape}, but there are {self.ids.size} owners; give one "
                "number, or one for each owner"
            )
        left = np.broadcast_to(left, self.ids.shape).astype(np.int64)
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
            selected: Positions of rows.
        """
        mask = np.zeros(self.rows, dtype=bool)
        mask[np.asarray(selected, dtype=np.int64)] = True
        return np.bincount(self.owner[mask[self.row]], minlength=self.ids.size)

    def _without(self, row: Integers, owner: Integers, full: Mask) -> tuple[Integers, Integers]:
        """Return the edges of the rows none of whose owners is full."""
        lost = np.zeros(self.rows, dtype=bool)
        lost[row[full[owner]]] = True
        keep = ~lost[row]
        return row[keep], owner[keep]


def _unanimous(row: Integers, owner: Integers, left: Integers, needed: Integers) -> Mask:
    """Return the rows that every one of their owners has among their `left` least crowded ones.

    No owner can get more than `left` rows, for each votes for so many. The least crowded row of all
    is always taken, so that the rounds end.
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
