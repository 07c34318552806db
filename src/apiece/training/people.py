"""Rows of people: which of their rows persons bring to a step.

The unit of privacy is a person. A sampler draws persons; each of them brings at most so many of
their rows, chosen by coins of that person alone. What a person brings then depends on nobody else's
rows, and the rows of one person stay together to be clipped as one.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

from apiece._types import Integers
from apiece.budgets import Units
from apiece.errors import InputError
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


def bring(units: Units, drawn: Integers, key: bytes) -> Brought:
    """Return the rows that `drawn` units bring: all they have, or `units.most` without return.

    Which rows a person brings is a function of the key, that person's position and how many rows
    they hold: every subset of `most` of them has the same chance, and nobody else's presence or
    rows change it.

    Args:
        units: With the most rows that each of them brings.
        drawn: (B,) Positions of units, in any order, each once.
        key: 32 bytes, a new one each step; all coins come from it.
    """
    counts = units.counts[drawn]
    owner = np.repeat(np.arange(drawn.size), counts)
    rank = np.arange(owner.size) - np.repeat(np.cumsum(counts) - counts, counts)
    if units.most is not None:
        kept = _lowest(owner, rank, drawn, counts, units.most, key)
        owner, rank = owner[kept], rank[kept]
    return Brought(units.rows[units.starts[drawn[owner]] + rank], owner)


def units_of(
    people: npt.ArrayLike | None,
    ids: npt.NDArray[Any],
    source: Source,
    rows_per_person: int | None,
    unit: str = "record",
) -> Units | None:
    """Return whose each row of the data is; None where each row is a record of its own.

    Raises `InputError` unless the data holds what the plan with these ids is for; as `Units.of`.
    """
    if people is not None:
        units = Units.of(people, ids)
        if units.owner.size != len(source):
            raise InputError(
                f"people: {units.owner.size} ids, but the dataset has {len(source)} rows; give one "
                "id a row"
            )
        return units if rows_per_person is None else units.at_most(rows_per_person)
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
