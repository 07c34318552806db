"""Units of privacy: a table's ids, and whose each row is, one owner a row or several."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from apiece import _check
from apiece._identifiers import find_flaw
from apiece._identity import common_index, require_ids, require_rows
from apiece._types import AnyArray, Floats, Ids, Integers, Mask
from apiece.datasets.cells import is_missing, select_column
from apiece.errors import DataError, InputError, as_given

if TYPE_CHECKING:
    import pandas as pd

    from apiece.datasets.tables import PlainTable


def read_ids(table: pd.DataFrame | PlainTable, name: str) -> Ids:
    """Return a column of distinct ids: whole numbers where they are stored as such, else texts."""
    remedy = f"give every record its person's id, or leave {as_given('ids')} out"
    title, ids = _read_id_cells(table, name, "ids", remedy)
    return _check.record_ids(title, ids)


def read_persons(table: pd.DataFrame | PlainTable, name: str) -> npt.NDArray[np.str_]:
    """Return a column of persons' ids, as texts; a person may have many rows."""
    remedy = "give every row its person's id, or leave the row out"
    title, ids = _read_id_cells(table, name, "person", remedy)
    return _check.ids(title, [str(unit_id) for unit_id in ids])


def _read_id_cells(
    table: pd.DataFrame | PlainTable, name: str, role: str, remedy: str
) -> tuple[str, list[str | int]]:
    """Return a column's title in messages and its ids, none of them empty, all of one kind."""
    column = select_column(table, name, role)
    title = f"{role} column {name!r}"
    # A plain table's column is a list, that of pandas a Series.
    if isinstance(column, Sequence):
        values: list[Any] = list(column)
        missing = [is_missing(value) for value in values]
    else:
        values = column.to_numpy(dtype=object).tolist()
        missing = column.isna().to_numpy(dtype=bool).tolist()
    empty = []
    # A text of blanks is as empty as a cell without any.
    for row, value in enumerate(values):
        if missing[row] or (isinstance(value, str) and not value.strip()):
            empty.append(row)
    if empty:
        raise DataError(f"{title}, row {empty[0] + 1}: empty ({len(empty)} such rows); {remedy}")
    if all(isinstance(value, str) for value in values):
        flawed = [row for row, value in enumerate(values) if find_flaw(value) is not None]
        if flawed:
            flaw = find_flaw(values[flawed[0]])
            raise DataError(
                f"{title}, row {flawed[0] + 1}: the id {flaw} "
                f"({len(flawed)} such rows); write each id in one way, the one that accounts and "
                "other tables have"
            )
        return title, values
    # To Python a truth value is a whole number too.
    if all(isinstance(value, int | np.integer) and not isinstance(value, bool) for value in values):
        return title, [int(value) for value in values]
    # A whole number as a float comes of a column with gaps; from 2⁵³ on two ids may be one float.
    if all(_is_exact_float(value) for value in values):
        return title, [f"{int(value)}" for value in values]
    raise DataError(
        f"{title}: ids are text or whole numbers, all of one kind, and numbers with a point below "
        "2**53; convert the column"
    )


def _is_exact_float(value: object) -> bool:
    """Return whether a value is a float that stands for exactly one whole number."""
    return isinstance(value, float) and value.is_integer() and abs(value) < 2**53


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
        row_ids = _check.ids("people", people)
        if not row_ids.size:
            raise DataError("people: none; give one id a row")
        # Without a plan ids are sorted; with one its order is kept, and both must be of the same
        # people.
        if ids is None:
            return cls(*np.unique(row_ids, return_inverse=True))
        plan_ids = _check.record_ids("ids", ids)
        # 7 and "7" are different ids, and must not be joined.
        if row_ids.dtype.kind != plan_ids.dtype.kind:
            raise DataError(
                f"people: ids of type {row_ids.dtype}, those of the plan are {plan_ids.dtype}; "
                "give the same"
            )
        owner = find_positions(plan_ids, row_ids)
        if strangers := int((owner < 0).sum()):
            raise DataError(
                f"people: {strangers} of {row_ids.size} rows are of nobody in the plan; give every "
                "person of the data a budget, or leave their rows out"
            )
        units = cls(plan_ids, owner)
        if not units.counts.all():
            rowless = int((units.counts == 0).sum())
            raise DataError(
                f"people: {rowless} of {len(units)} persons of the plan "
                "have no row; make the plan from the budgets of exactly the persons in the data"
            )
        return units

    @classmethod
    def of_column(cls, table: pd.DataFrame | PlainTable, name: str) -> Units:
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
        row_ids = _check.ids("people", people)
        if row_ids.dtype.kind == "i" and (row_ids[1:] >= row_ids[:-1]).all():
            # Sorted already: a unit begins where the id changes.
            begins = np.append(np.ones(min(row_ids.size, 1), bool), row_ids[1:] != row_ids[:-1])
            return cls(row_ids[begins], np.cumsum(begins) - 1)
        sorted_ids, first_row, sorted_owner = np.unique(
            row_ids, return_index=True, return_inverse=True
        )
        order = np.argsort(first_row)
        # The inverse permutation: from a position among sorted ids to one by appearance.
        rank = np.empty_like(order)
        rank[order] = np.arange(order.size)
        return cls(sorted_ids[order], rank[sorted_owner])

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
        # A stable sort by 16 bits at a time, lowest first: numpy sorts these by counting.
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
        row_values = self._check_rows(np.asarray(values, dtype=np.float64))
        by_unit = row_values[..., self.rows]
        # Every unit has a row (`of` sees to it): of an empty one `reduceat` would give a
        # neighbour's value.
        sums = np.add.reduceat(by_unit, self.starts[:-1], axis=-1)
        return np.asarray(sums / self.counts)

    def once(self, values: npt.ArrayLike, what: str) -> AnyArray:
        """Return the one value of each unit, (…, U), which all its rows must repeat.

        Args:
            values: (…, n) One a row.
            what: The values' name in a message.

        Raises:
            DataError: For another number of values than rows, and where rows of one unit differ;
                it names nobody.
        """
        row_values = self._check_rows(np.asarray(values))
        unit_values = np.empty((*row_values.shape[:-1], len(self)), dtype=row_values.dtype)
        # Of a unit's rows the last is kept; every row is then compared with it.
        unit_values[..., self.owner] = row_values
        unequal = unit_values[..., self.owner] != row_values
        differs = unequal.reshape(-1, self.owner.size).any(axis=0)
        if differs.any():
            persons = np.unique(self.owner[differs]).size
            raise DataError(
                f"{what}: rows of one person differ ({persons} of "
                f"{len(self)} persons); a person has one for all rows: mend the column, or take it "
                "from a table with a row a person (for apiece train, --people)"
            )
        return unit_values

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
            repeated = int((others.counts > 1).sum())
            raise DataError(
                f"{there}: {repeated} of {len(others)} persons have several "
                "rows; give each person one"
            )
        # Ids of units are distinct: neither side has to be made so.
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

    def _check_rows(self, values: AnyArray) -> AnyArray:
        """Return values whose last axis has an entry for each row."""
        if values.shape[-1:] != self.owner.shape:
            raise DataError(
                f"people: {self.owner.size} ids for values of shape {values.shape}; give the id of "
                "each row's person"
            )
        return values


def find_positions(ids: Ids, wanted: Ids) -> Integers:
    """Return the position in `ids`, at least one, of each wanted id; −1 where it is not there.

    >>> find_positions(np.array([7, 3]), np.array([3, 5, 7])).tolist()
    [1, -1, 0]
    """
    # A text is never the id that a number is.
    if wanted.dtype.kind != ids.dtype.kind:
        return np.full(wanted.size, -1)
    if ids.dtype.kind == "i":
        low = int(ids.min())
        high = int(ids.max())
        # Below 2⁶², so that no difference of two ids overflows 64 bits.
        fits = max(-low, high) < 2**62
        if fits and high - low < 4 * (ids.size + wanted.size):
            return _look_up_positions(ids, wanted, low, high)
    # A wanted id beyond the last is compared with the last, and found unequal.
    order = np.argsort(ids, kind="stable")
    candidates = order[np.minimum(np.searchsorted(ids[order], wanted), ids.size - 1)]
    return np.where(ids[candidates] == wanted, candidates, -1)


def _look_up_positions(ids: Ids, wanted: Ids, low: int, high: int) -> Integers:
    """Return what `find_positions` does, for whole numbers close together, by a table of them."""
    table = np.full(high - low + 1, -1)
    table[ids - low] = np.arange(ids.size)
    inside = (wanted >= low) & (wanted <= high)
    positions = np.full(wanted.size, -1)
    positions[inside] = table[wanted[inside] - low]
    return positions


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
            label = f"row {int(np.flatnonzero(sizes == 0)[0])}" if sizes.size else "owners"
            raise InputError(f"{label}: no owner; give each row the ids of all its owners")
        owner = _check.ids("owners", [owner for row in lists for owner in row], error=InputError)
        row = np.repeat(np.arange(sizes.size), sizes)
        self._set_edges(row, owner, sizes.size)

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
        rows = np.asarray(row)
        owners = _check.ids("owner", owner, error=InputError)
        if rows.ndim != 1 or rows.shape != owners.shape or not rows.size:
            raise InputError(
                f"row, owner: shapes {rows.shape} and {owners.shape}; give one entry for each pair"
            )
        if rows.dtype.kind not in "iu" or rows.min() < 0:
            raise InputError(f"row: of type {rows.dtype}; give positions of rows from 0 on")
        size = int(rows.max()) + 1
        # With more rows than pairs some row has no owner: no need for a count of so many rows.
        has_gap = size > 64 * rows.size or bool((np.bincount(rows, minlength=size) == 0).any())
        if has_gap:
            raise InputError("row: some row below the largest has no owner; count rows from 0 on")
        graph = cls.__new__(cls)
        graph._set_edges(rows.astype(np.int64), owners, size)
        return graph

    def _set_edges(self, row: Integers, owner: Ids, rows: int) -> None:
        """Set the attributes from pairs of a row and an owner's id, each pair once and sorted."""
        ids, position = np.unique(owner, return_inverse=True)
        # A pair as one whole number, row · owners + owner, sorts by row, then owner.
        pairs = np.unique(row * ids.size + position)
        set_attribute = object.__setattr__
        set_attribute(self, "ids", ids)
        set_attribute(self, "rows", rows)
        set_attribute(self, "row", pairs // ids.size)
        set_attribute(self, "owner", pairs % ids.size)
        # Shared by plans, and never to change.
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
        limits = np.asarray(limit)
        if limits.dtype.kind not in "iu" or (limits < 0).any():
            raise InputError(f"limit = {limit!r}: must be whole numbers of at least 0")
        if limits.shape not in ((), self.ids.shape):
            raise InputError(
                f"limit: shape {limits.shape}, but there are {self.ids.size} owners; give one "
                "number, or one for each owner"
            )
        # How many more rows each owner may have.
        remaining = np.broadcast_to(limits, self.ids.shape).astype(np.int64)
        owners_of_row = np.bincount(self.row, minlength=self.rows)
        selected: Mask = np.zeros(self.rows, dtype=bool)
        row, owner = self._drop_full(self.row, self.owner, remaining == 0)
        while row.size:
            elected = _elect_rows(row, owner, remaining, owners_of_row)
            selected |= elected
            is_elected = elected[row]
            # An elected row takes a place of each of its owners.
            remaining = remaining - np.bincount(owner[is_elected], minlength=remaining.size)
            row, owner = self._drop_full(row[~is_elected], owner[~is_elected], remaining == 0)
        return np.flatnonzero(selected)

    def owned(self, selected: npt.ArrayLike) -> Integers:
        """Return how many of the rows `selected` each owner owns, in the order of `ids`.

        Args:
            selected: Positions of rows.
        """
        mask = np.zeros(self.rows, dtype=bool)
        mask[np.asarray(selected, dtype=np.int64)] = True
        return np.bincount(self.owner[mask[self.row]], minlength=self.ids.size)

    def _drop_full(self, row: Integers, owner: Integers, full: Mask) -> tuple[Integers, Integers]:
        """Return the edges without those of rows that a full owner owns."""
        # A row is out once any of its owners has no place left.
        dropped = np.zeros(self.rows, dtype=bool)
        dropped[row[full[owner]]] = True
        open_edges = ~dropped[row]
        return row[open_edges], owner[open_edges]


def _elect_rows(
    row: Integers, owner: Integers, remaining: Integers, owners_of_row: Integers
) -> Mask:
    """Return the rows that each of their owners has among its `remaining` least crowded ones.

    No owner can get more than `remaining` rows, for it votes for so many. The least crowded row of
    all is always elected, so that the rounds end.
    """
    waiting = np.bincount(owner, minlength=remaining.size)
    # Rows that wait for each place of an owner; 0 where there is a place for all of them.
    demand = np.where(waiting > remaining, waiting / np.maximum(remaining, 1), 0.0)
    crowding = np.bincount(row, demand[owner], minlength=owners_of_row.size)
    # Owner by owner, the least crowded rows first; ties by position.
    order = np.lexsort((row, crowding[row], owner))
    sorted_owner = owner[order]
    begins = np.searchsorted(sorted_owner, np.arange(remaining.size))
    rank = np.arange(order.size) - begins[sorted_owner]
    has_vote = rank < remaining[sorted_owner]
    votes = np.bincount(row[order][has_vote], minlength=owners_of_row.size)
    return np.asarray((votes == owners_of_row) & (votes > 0))
