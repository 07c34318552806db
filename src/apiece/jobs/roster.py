"""Roster: whose each row of a job is, who is trained on, and the budgets of those who are."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt

from apiece._types import Floats, Mask
from apiece.budgets import Budgets
from apiece.budgets.frames import apply_cap, read_budget_columns
from apiece.budgets.units import Units, read_ids
from apiece.datasets.cells import read_texts, select_column
from apiece.datasets.tables import read_table
from apiece.errors import DataError
from apiece.jobs.config import BudgetColumns, Data

if TYPE_CHECKING:
    import pandas as pd

# Cell of a split column, in lower case → whether its unit is trained on.
_IS_TRAINING: Final = {"train": True, "training": True, "test": False, "testing": False}
# Bytes of the key that makes persons' coins, and of each coin.
_KEY_BYTES: Final = 32
_COIN_BYTES: Final = 8


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Roster:
    """The units of a job: persons with any number of rows, or records, each a row of the data.

    What a unit has once, its budget and its part of the split, stands in the data or in a second
    table of persons.
    """

    # The units of the data's rows.
    units: Units
    # (U,) Their ids; None of records without.
    ids: npt.NDArray[np.str_] | None
    # (n,) The id of each row's person; None where each row is a record.
    person: npt.NDArray[np.str_] | None
    # The table that states budgets and split, and its decimal mark.
    stating_table: pd.DataFrame
    decimal: str
    # The units of that table's rows: the same ones, in the same order.
    stating_units: Units

    @property
    def ledger_ids(self) -> npt.NDArray[np.str_] | None:
        """(n,) The id in a ledger of each row's person or record; None of records without ids."""
        return self.ids if self.person is None else self.person

    def rows_of(self, chosen: Mask) -> Mask:
        """Return which rows of the data belong to the chosen units."""
        return chosen[self.units.owner]


def read_roster(frame: pd.DataFrame, data: Data) -> Roster:
    """Return the units of the data in `frame`.

    Raises `DataError` for ids that are empty or missing, repeated ids of records, and a table of
    persons that is not of the persons in the data.

    >>> import pandas as pd
    >>> visits = pd.DataFrame({"who": ["bob", "ann", "bob"]})
    >>> roster = read_roster(visits, Data(source="visits.csv", person="who"))
    >>> roster.ids.tolist(), roster.rows_of(np.array([False, True])).tolist()
    (['ann', 'bob'], [True, False, True])
    """
    decimal = data.dialect_of(data.source).decimal
    if data.person is None:
        ids = None if data.ids is None else _read_record_ids(frame, data.ids)
        # Without ids a record is known by its position alone.
        row = np.arange(len(frame))
        records = Units(row if ids is None else ids, row)
        return Roster(records, ids, None, frame, decimal, records)
    persons = Units.of_column(frame, data.person)
    person = persons.ids[persons.owner]
    if data.people is None:
        return Roster(persons, persons.ids, person, frame, decimal, persons)
    dialect = data.dialect_of(data.people)
    table = read_table(data.people, dialect)
    stating_units = Units.of_column(table, data.person)
    # The table of persons must be of the very persons that the data are of: the two then have one
    # order.
    persons.require_same(stating_units, here=data.source, there=data.people)
    return Roster(persons, persons.ids, person, table, dialect.decimal, stating_units)


def _read_record_ids(frame: pd.DataFrame, name: str) -> npt.NDArray[np.str_]:
    """Return the ids of records, each unique."""
    try:
        return read_ids(frame, name).astype(str)
    except DataError as error:
        # Of repeated ids alone the reason may be that the units are persons.
        if "occurs" not in str(error):
            raise
        raise DataError(
            f"{error}; or where a person may have several rows, pass --person {name} in place of "
            "--ids"
        ) from None


def choose_trained(roster: Roster, data: Data, seed: int | None) -> Mask:
    """Return the units that are trained on: by the split column, or by one coin a unit.

    A person's coin is a function of their id and of a key from the seed: nobody else's presence or
    rows change it. Without a seed the coins are fresh. Raises `DataError` for a split column with
    another word, or with two for one person, and where nothing is left to train on.
    """
    random = np.random.default_rng(seed)
    # A unit is held out where its coin falls below the share to hold out.
    if data.split_column is not None:
        trained = _read_split(roster, data.split_column)
    elif data.person is not None and roster.ids is not None:
        trained = _draw_coins(roster.ids, random.bytes(_KEY_BYTES)) >= data.test_share
    else:
        trained = random.random(len(roster.units)) >= data.test_share
    if not trained.any():
        raise DataError(f"{data.source}: no record is left for training; change the split")
    return trained


def _read_split(roster: Roster, name: str) -> Mask:
    """Return which units a split column says are trained on."""
    column = select_column(roster.stating_table, name, "split")
    cells = [str(cell) for cell in read_texts(column)]
    parts = [_IS_TRAINING.get(cell.lower()) for cell in cells]
    bad_rows = [row for row, part in enumerate(parts) if part is None]
    if bad_rows:
        row = bad_rows[0]
        raise DataError(
            f"split column {name!r}, row {row + 1} = {cells[row]!r}: must be 'train' "
            f"or 'test' ({len(bad_rows)} such rows)"
        )
    flags = np.array(parts, dtype=bool)
    return np.asarray(roster.stating_units.once(flags, f"split column {name!r}"))


def choose_public(roster: Roster, held_out: Mask, share: float, seed: int | None) -> Mask:
    """Return which of the held-out units (U,) are declared public, a share of them, by coins.

    Without a seed the coins are fresh. Raises `DataError` where no unit is public.
    """
    # Another stream than that of the split: the two coins of a unit are independent.
    random = np.random.default_rng(None if seed is None else [seed, 1])
    if roster.ids is None:
        coins = random.random(held_out.size)
    else:
        coins = _draw_coins(roster.ids, random.bytes(_KEY_BYTES))
    public = held_out & (coins < share)
    if not public.any():
        raise DataError(
            f"public_share = {share:g}: of {int(held_out.sum())} held-out units none is public; "
            "hold out more, or give a table of public rows with --public"
        )
    return public


def _draw_coins(ids: npt.NDArray[np.str_], key: bytes) -> Floats:
    """Return a uniform number in [0, 1) for each id, a keyed hash of it."""
    # BLAKE2b under a secret key is a random function of the id: without the key nobody can foresee
    # a coin, and no coin depends on another id.
    words = []
    for unit in ids.tolist():
        digest = hashlib.blake2b(unit.encode(), key=key, digest_size=_COIN_BYTES)
        words.append(digest.digest())
    return np.frombuffer(b"".join(words), dtype="<u8") / 2.0**64


def read_budgets(roster: Roster, declared: BudgetColumns, trained: Mask) -> Budgets:
    """Return the budgets of the trained units (U,); every row that states one is checked first.

    Raises `DataError` for rows of one person that differ, naming nobody; `BudgetError` for what is
    no budget or none of the declared levels.
    """
    stated = read_budget_columns(
        roster.stating_table,
        epsilon=declared.epsilon,
        delta=declared.delta,
        levels=declared.levels,
        no_limit_cap=declared.no_limit_cap,
        decimal=roster.decimal,
        once=roster.stating_units.once,
    )
    columns: dict[str, Any] = {}
    for name, values in stated.items():
        # A number, such as one δ, stands for all units.
        columns[name] = values[trained] if np.ndim(values) else values
    if declared.groups:
        simulated = _simulate_budgets(declared, int(trained.sum()))
        columns["epsilon"] = simulated.epsilon
        columns["labels"] = simulated.labels
    return Budgets(**columns, ids=None if roster.ids is None else roster.ids[trained])


def _simulate_budgets(declared: BudgetColumns, size: int) -> Budgets:
    """Return budgets that are drawn for want of a column; their δ means nothing."""
    cap = declared.no_limit_cap
    rows = [(group.name, apply_cap(group.epsilon, cap), group.share) for group in declared.groups]
    # Who is in which simulated group is no secret: it is drawn from a fixed seed.
    return Budgets.from_groups(rows, size, 0.5, seed=0)
