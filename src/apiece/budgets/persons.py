"""Persons: whose each row of a table is, and what each of them has once, however many rows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from apiece._types import Integers
from apiece.budgets.frames import person_column
from apiece.errors import DataError

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Persons:
    """The persons of a table, each with any number of rows, in any order.

    How many rows a person has is data about that person.

    Args:
        ids: (P,) Their ids, sorted texts.
        owner: (n,) The position in `ids` of each row's person.

    Example:
        >>> import pandas as pd
        >>> visits = pd.DataFrame({"who": ["bob", "ann", "bob"], "consent": [2.0, 1.0, 2.0]})
        >>> persons = Persons.of(visits, "who")
        >>> persons.ids.tolist(), persons.once(visits["consent"].to_numpy(), "consent").tolist()
        (['ann', 'bob'], [1.0, 2.0])
    """

    ids: npt.NDArray[np.str_]
    owner: Integers

    @classmethod
    def of(cls, table: pd.DataFrame, name: str) -> Persons:
        """Return the persons of a table.

        Args:
            table: With a row or more a person.
            name: Of the column of their ids.

        Raises:
            DataError: For a row without an id, and a column that is not there.
        """
        ids, owner = np.unique(person_column(table, name), return_inverse=True)
        return cls(ids, owner)

    def __len__(self) -> int:
        return int(self.ids.size)

    def once(self, values: npt.NDArray[Any], what: str) -> npt.NDArray[Any]:
        """Return what each person has, (P,), from what each of their rows says.

        Args:
            values: (n,) Of each row.
            what: The values' name in a message.

        Raises:
            DataError: Where rows of one person differ; it names nobody.
        """
        found = np.empty(len(self), dtype=values.dtype)
        found[self.owner] = values
        differing = np.unique(self.owner[values != found[self.owner]]).size
        if differing:
            raise DataError(
                f"{what}: rows of one person differ ({differing} of {len(self)} persons); a person "
                "has one for all rows: mend the column, or take it from a table with a row a "
                "person (for apiece train, --people)"
            )
        return found

    def require_same(self, others: Persons, *, here: str, there: str) -> None:
        """Check that a second table, with one row a person, is of the same persons.

        Args:
            others: Of the second table.
            here: What a message calls this table.
            there: What it calls the other.

        Raises:
            DataError: Where it is not; it names nobody.
        """
        if others.owner.size > len(others):
            twice = int((np.bincount(others.owner) > 1).sum())
            raise DataError(
                f"{there}: {twice} of {len(others)} persons have several rows; give each person one"
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
