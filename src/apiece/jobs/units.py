"""Units: to whom a job promises something, which are trained on, and what each of them asked for.

A unit is a record, that is a row of the data, or a person with any number of rows. What a unit has
once, its budget and its part of the split, stands in the data or in a second table of persons.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from apiece._types import Floats, Integers, Mask
from apiece.budgets import Budgets, Persons, budget_column, capped, ids_column
from apiece.datasets import column, read_table, texts
from apiece.errors import BudgetError, DataError
from apiece.jobs.parts import BudgetColumns, Data

if TYPE_CHECKING:
    import pandas as pd

_PARTS = {"train": True, "training": True, "test": False, "testing": False}


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Units:
    """The records or persons of a job.

    Attributes:
        size: How many.
        ids: (U,), of the units; None for records without.
        owner: (n,), the unit of each row of the data; None where each row is one.
        table: What says budgets and split.
        decimal: Its decimal mark.
        stated: The persons of that table's rows, in the order of `ids`; None where each of its rows
            is a unit, in order.
    """

    size: int
    ids: npt.NDArray[np.str_] | None
    owner: Integers | None
    table: pd.DataFrame
    decimal: str
    stated: Persons | None

    def rows(self, chosen: Mask) -> Mask:
        """Return which rows of the data are of the chosen units."""
        return chosen if self.owner is None else chosen[self.owner]

    def people(self, rows: Mask) -> npt.NDArray[np.str_] | None:
        """Return the person of each of these rows; None where each row is a record."""
        if self.owner is None or self.ids is None:
            return None
        return self.ids[self.owner[rows]]

    def once(self, values: npt.NDArray[Any], what: str) -> npt.NDArray[Any]:
        """Return what each unit has, (U,), from what each row of `table` says."""
        return values if self.stated is None else self.stated.once(values, what)


def read_units(frame: pd.DataFrame, data: Data) -> Units:
    """Return the units of the data in `frame`.

    Args:
        frame: The data.
        data: Its columns, and where a second table of persons is.

    Raises:
        DataError: For ids that are empty or missing, repeated ids of records, and a table of
            persons that is not of the persons in the data.

    Example:
        >>> import pandas as pd
        >>> visits = pd.DataFrame({"who": ["bob", "ann", "bob"]})
        >>> units = read_units(visits, Data(source="visits.csv", person="who"))
        >>> units.ids.tolist(), units.rows(np.array([False, True])).tolist()
        (['ann', 'bob'], [True, False, True])
    """
    decimal = data.dialect_of(data.source).decimal
    if data.person is None:
        ids = None if data.ids is None else _record_ids(frame, data.ids)
        return Units(len(frame), ids, None, frame, decimal, None)
    persons = Persons.of(frame, data.person)
    if data.people is None:
        return Units(len(persons), persons.ids, persons.owner, frame, decimal, persons)
    dialect = data.dialect_of(data.people)
    table = read_table(data.people, dialect)
    stated = Persons.of(table, data.person)
    persons.require_same(stated, here=data.source, there=data.people)
    return Units(len(persons), persons.ids, persons.owner, table, dialect.decimal, stated)


def _record_ids(frame: pd.DataFrame, name: str) -> npt.NDArray[np.str_]:
    try:
        return ids_column(frame, name).astype(str)
    except DataError as error:
        if "occurs" not in str(error):
            raise
        raise DataError(
            f"{error}; or where a person may have several rows, pass --person {name} in place of "
            "--ids"
        ) from None


def split(units: Units, data: Data, seed: int | None) -> Mask:
    """Return the units that are trained on: by the split column, or by one coin a unit.

    Args:
        units: The units.
        data: How they are split.
        seed: Of the coins; None for fresh ones.

    Guarantee:
        A person's coin is a function of their id and of a key from the seed: nobody else's presence
        or rows change it.

    Raises:
        DataError: For a split column that says something else, or two things of one person, and
            where nothing is left to train on.
    """
    name = data.split_column
    random = np.random.default_rng(seed)
    if name is not None:
        trained = _declared(units, name)
    elif data.person is not None and units.ids is not None:
        trained = _coins(units.ids, random.bytes(32)) >= data.test_share
    else:
        trained = random.random(units.size) >= data.test_share
    if not trained.any():
        raise DataError(f"{data.source}: no record is left for training; change the split")
    return trained


def declared_public(units: Units, held: Mask, share: float, seed: int | None) -> Mask:
    """Return which of the held-out units are declared public, by one coin a unit.

    Args:
        units: The units.
        held: (U,) Which of them are held out.
        share: That is declared public.
        seed: Of the coins; None for fresh ones.

    Raises:
        DataError: Where it leaves no unit public.
    """
    random = np.random.default_rng(None if seed is None else [seed, 1])
    coins = random.random(units.size) if units.ids is None else _coins(units.ids, random.bytes(32))
    public = held & (coins < share)
    if not public.any():
        raise DataError(
            f"public_share = {share:g}: of {int(held.sum())} held-out units none is public; hold "
            "out more, or give a table of public rows with --public"
        )
    return public


def _declared(units: Units, name: str) -> Mask:
    parts = texts(column(units.table, name, "split"))
    bad = [row for row, part in enumerate(parts) if part.lower() not in _PARTS]
    if bad:
        raise DataError(
            f"split column {name!r}, row {bad[0] + 1} = {parts[bad[0]]!r}: must be 'train' "
            f"or 'test' ({len(bad)} such rows)"
        )
    return units.once(np.array([_PARTS[part.lower()] for part in parts]), f"split column {name!r}")


def _coins(ids: npt.NDArray[np.str_], key: bytes) -> Floats:
    """Return a uniform number in [0, 1) for each id, a keyed hash of it."""
    words = [hashlib.blake2b(i.encode(), key=key, digest_size=8).digest() for i in ids.tolist()]
    return np.frombuffer(b"".join(words), dtype="<u8") / 2.0**64


def budgets(units: Units, asked: BudgetColumns, trained: Mask) -> Budgets:
    """Return the budgets of the trained units; every row that states one is checked first.

    Args:
        units: The units.
        asked: Where their budgets stand.
        trained: (U,), which of them are trained on.

    Raises:
        DataError: For rows of one person that differ, naming nobody.
        BudgetError: For what is no budget.
    """

    def values(name: str, role: str, below: float) -> Floats:
        found = budget_column(
            units.table,
            name,
            role,
            below=below,
            decimal=units.decimal,
            no_limit_cap=asked.no_limit_cap,
        )
        if role == "epsilon":
            _require_declared(name, found, asked.levels)
        return units.once(found, f"{role} column {name!r}")[trained]

    delta: npt.ArrayLike = asked.delta
    if isinstance(asked.delta, str):
        delta = values(asked.delta, "delta", 1.0)
    ids = None if units.ids is None else units.ids[trained]
    if asked.epsilon is not None:
        return Budgets(values(asked.epsilon, "epsilon", np.inf), delta, ids=ids)
    rows = [(g.name, capped(g.epsilon, asked.no_limit_cap), g.share) for g in asked.groups]
    # Who is in which simulated group is no secret: it is drawn from a fixed seed.
    simulated = Budgets.from_groups(
        rows, int(trained.sum()), 0.5, generator=np.random.default_rng(0)
    )
    return Budgets(simulated.epsilon, delta, ids=ids, labels=simulated.labels)


def _require_declared(name: str, found: Floats, levels: tuple[float, ...]) -> None:
    """Raise `BudgetError` where levels are declared and somebody's ε is none of them."""
    odd = found[~np.isin(found, levels)] if levels else found[:0]
    if odd.size:
        raise BudgetError(
            f"epsilon column {name!r}: {odd[0]:g} is none of the declared levels "
            f"{', '.join(f'{level:g}' for level in levels)} ({odd.size} such rows); mend the "
            "column, or declare what people could choose"
        )
