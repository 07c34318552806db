"""Rows of people: who holds which rows, and which of them a person brings to a step.

The unit of privacy is a person. A sampler draws persons; each of them brings at most so many of
their rows, chosen by coins of that person alone. What a person brings then depends on nobody else's
rows, and the rows of one person stay together to be clipped as one.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

from apiece import _check
from apiece._types import Floats, Integers, Mask
from apiece.errors import DataError, InputError
from apiece.training.sources import Source


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Brought:
    """The rows that some persons bring to a step.

    Args:
        rows: (R,) Positions in the data, person by person.
        owner: (R,) Which of the persons, counted from 0 in the order of the draw, each row is of;
            never falling.
    """

    rows: Integers
    owner: Integers

    def parts(self, width: int) -> Iterator[tuple[slice, slice]]:
        """Yield (persons, rows) that share a physical batch: whole persons, in order.

        Args:
            width: The most rows in a batch; a person with more has one alone.
        """
        persons = int(self.owner[-1]) + 1 if self.owner.size else 0
        ends = np.searchsorted(self.owner, np.arange(persons), side="right")
        first = start = 0
        while first < persons:
            last = int(np.searchsorted(ends, start + width, side="right"))
            last = max(last, first + 1)
            end = int(ends[last - 1])
            yield slice(first, last), slice(start, end)
            first, start = last, end


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class PeopleRows:
    """Each person's rows: those of person p are rows[starts[p]:starts[p + 1]], in increasing order.

    Memory is 8 bytes a row and 8 a person, whoever holds how many. How many rows a person holds is
    data about that person.

    Args:
        rows: (n,) Positions in the data, person by person.
        starts: (persons + 1,) Where each person's rows begin, and the end.
        most: How many rows a person brings to a step at most; None for all.

    Example:
        >>> of = PeopleRows.of(["ann", "bob", "ann", "ann"], ["bob", "ann"])
        >>> brought = of.bring(np.array([1, 0]), 2, bytes(32))
        >>> brought.owner.tolist(), brought.rows[2].item()
        ([0, 0, 1], 1)
    """

    rows: Integers
    starts: Integers
    most: int | None = None

    @classmethod
    def of(cls, people: npt.ArrayLike, ids: npt.ArrayLike) -> PeopleRows:
        """Return the rows of the persons with these ids.

        Args:
            people: (n,) Each row's person.
            ids: (persons,) The persons in the order of the plan, each once.

        Raises:
            DataError: For a row of nobody in `ids`, a person without a row, an id given twice.
        """
        owner = _positions(_check.record_ids("ids", ids), _check.ids("people", people))
        persons = np.size(ids)
        counts = np.bincount(owner, minlength=persons)
        if not counts.all():
            raise DataError(
                f"people: {int((counts == 0).sum())} of {persons} persons of the plan have no row; "
                "make the plan from the budgets of exactly the persons in the data"
            )
        starts = np.concatenate([np.zeros(1, np.int64), np.cumsum(counts)])
        return cls(_in_order(owner), starts)

    def __len__(self) -> int:
        return self.starts.size - 1

    def mean(self, values: Floats) -> Floats:
        """Return the mean of each person's values, (…, persons).

        Args:
            values: (…, n) One a row.
        """
        sums = np.add.reduceat(values[..., self.rows], self.starts[:-1], axis=-1)
        return np.asarray(sums / np.diff(self.starts))

    def bring(self, persons: Integers, limit: int | None, key: bytes) -> Brought:
        """Return the rows that `persons` bring: all they have, or `limit` drawn without return.

        Args:
            persons: (B,) Positions of persons, in any order, each once.
            limit: The most rows a person brings, at least 1; None for all.
            key: 32 bytes, a new one each step; all coins come from it.

        Raises:
            InputError: For a limit below 1.

        Guarantee:
            Which rows a person brings is a function of the key, that person's position and how
            many rows they hold: every subset of `limit` of them has the same chance, and nobody
            else's presence or rows change it.
        """
        counts = self.starts[persons + 1] - self.starts[persons]
        owner = np.repeat(np.arange(persons.size), counts)
        rank = np.arange(owner.size) - np.repeat(np.cumsum(counts) - counts, counts)
        if limit is not None:
            limit = _check.count("rows_per_person", limit)
            kept = _lowest(owner, rank, persons, counts, limit, key)
            owner, rank = owner[kept], rank[kept]
        return Brought(self.rows[self.starts[persons[owner]] + rank], owner)


def rows_of(
    people: npt.ArrayLike | None,
    ids: npt.NDArray[Any],
    source: Source,
    rows_per_person: int | None,
    unit: str = "record",
) -> PeopleRows | None:
    """Return whose each row of the data is; None where each row is a record of its own.

    Args:
        people: (n,) The id of each row's person, or None.
        ids: The plan's.
        source: The data.
        rows_per_person: The most rows that a person brings to a step, or None.
        unit: The plan's.

    Raises:
        InputError: Unless the data holds what the plan is for.
        DataError: For a row of nobody in the plan, or a person of the plan without a row.
    """
    if people is not None:
        found = PeopleRows.of(people, ids)
        if found.rows.size != len(source):
            raise InputError(
                f"people: {found.rows.size} ids, but the dataset has {len(source)} rows; give one "
                "id a row"
            )
        most = rows_per_person
        return found if most is None else replace(found, most=_check.count("rows_per_person", most))
    if rows_per_person is not None:
        raise InputError("rows_per_person: without people each row is a record; give people too")
    if unit == "person":
        raise InputError(
            "people: the plan is for persons (plan.unit), and without people rows would have its "
            "promises; give the id of each row's person"
        )
    if len(source) != ids.size:
        raise InputError(
            f"dataset: {len(source)} records, but the plan is for {ids.size}; make the plan from "
            "the budgets of exactly these records, or say whose each row is (people)"
        )
    return None


def _lowest(
    owner: Integers, rank: Integers, persons: Integers, counts: Integers, limit: int, key: bytes
) -> npt.NDArray[np.bool_]:
    """Return which rows stay: of each person the `limit` whose coins are lowest."""
    kept = counts[owner] <= limit
    many = np.flatnonzero(~kept)  # rows of those who hold more
    coins = _coins(key, persons[owner[many]], rank[many])
    order = np.lexsort((coins, owner[many]))
    held = counts[counts > limit]
    place = np.arange(many.size) - np.repeat(np.cumsum(held) - held, held)
    kept[many[order[place < limit]]] = True
    return kept


def _coins(key: bytes, persons: Integers, ranks: Integers) -> npt.NDArray[np.uint64]:
    """Return a uniform 64-bit word for each (person, rank): AES as a function of the pair.

    A cipher of blocks needs no order: no word depends on which others are asked for.
    """
    pairs = np.stack([persons, ranks], axis=1).astype("<u8")
    cipher = Cipher(algorithms.AES(key), modes.ECB()).encryptor()
    return np.frombuffer(cipher.update(pairs.tobytes()), dtype="<u8")[::2]


def _positions(ids: npt.NDArray[Any], people: npt.NDArray[Any]) -> Integers:
    """Return where in `ids` each row's person stands."""
    if people.size == 0:
        raise DataError("people: none; give one id a row")
    if people.dtype.kind != ids.dtype.kind:
        raise DataError(
            f"people: ids of type {people.dtype}, those of the plan are {ids.dtype}; give the same"
        )
    found, strangers = _looked_up(ids, people)
    if strangers.any():
        raise DataError(
            f"people: {int(strangers.sum())} of {people.size} rows are of nobody in the plan; give "
            "every person of the data a budget, or leave their rows out"
        )
    return np.asarray(found, dtype=np.int64)


def _looked_up(ids: npt.NDArray[Any], people: npt.NDArray[Any]) -> tuple[Integers, Mask]:
    """Return where in `ids` each of `people` stands, and who does not."""
    if ids.dtype.kind == "i":
        low, high = int(ids.min()), int(ids.max())
        if max(abs(low), abs(high)) < 2**62 and high - low < 4 * (ids.size + people.size):
            table = np.full(high - low + 1, -1)
            table[ids.astype(np.int64) - low] = np.arange(ids.size)
            inside = (people >= low) & (people <= high)
            found = np.full(people.size, -1)
            found[inside] = table[people[inside].astype(np.int64) - low]
            return found, found < 0
    order = np.argsort(ids, kind="stable")
    found = order[np.minimum(np.searchsorted(ids[order], people), ids.size - 1)]
    return found, ids[found] != people


def _in_order(owner: Integers) -> Integers:
    """Return the stable order of small whole numbers, by 16 bits at a time: numpy sorts these."""
    if (owner[1:] >= owner[:-1]).all():
        return np.arange(owner.size)
    order = np.argsort(owner.astype(np.uint16), kind="stable")
    for shift in range(16, int(owner.max()).bit_length(), 16):
        digits = (owner >> shift).astype(np.uint16)
        order = order[np.argsort(digits[order], kind="stable")]
    return order
