"""Budgets: what each of n records asked for, frozen."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from apiece import _check
from apiece._identity import common_index, ids_from, index_of, require_ids
from apiece._types import Floats, Ids, Integers, Json, Mask
from apiece.budgets.frames import read_budget_columns, read_budget_table
from apiece.budgets.groups import BudgetGroups, group_budgets
from apiece.budgets.levels import Levels, Offered, parse_epsilons, parse_levels
from apiece.budgets.units import Units, find_positions, read_ids
from apiece.datasets.tables import PLAIN, Dialect
from apiece.errors import BudgetError, InputError

# The bounds of a budget.
BOUNDS = ("epsilon", "delta", "excess")
# All columns of `Budgets`.
COLUMNS = (*BOUNDS, "ids", "labels")


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Consents:
    """The largest ε, δ and Δ̄ that each record allows, (n,) each; data about people."""

    ids: Ids
    epsilon: Floats
    delta: Floats
    excess: Floats

    def __post_init__(self) -> None:
        for name in ("ids", *BOUNDS):
            values = getattr(self, name)
            column = _check.ids("ids", values) if name == "ids" else np.asarray(values)
            # Nobody who holds the array may change a consent.
            object.__setattr__(self, name, _check.freeze(column))
        shapes = [getattr(self, name).shape for name in ("ids", *BOUNDS)]
        if any(shape != (self.ids.size,) for shape in shapes):
            raise BudgetError(f"consents: columns of shapes {shapes}; give each one entry a record")

    def __len__(self) -> int:
        return int(self.ids.size)

    def select(self, records: Integers | Mask) -> Consents:
        """Return the consents of some of the records, maybe of none."""
        columns = (self.ids, self.epsilon, self.delta, self.excess)
        return Consents(*(column[records] for column in columns))

    def with_ids(self, ids: Ids) -> Consents:
        """Return these consents under other ids, one a record."""
        return Consents(ids, self.epsilon, self.delta, self.excess)

    def lowered_to(self, budgets: Budgets, *, added: Mask | None = None) -> Consents:
        """Return these consents with every bound lowered to that of `budgets`, joined by id.

        Raises `InputError` for a record without a budget, unless it is one that the plan `added`,
        (n,), and all other records have one.
        """
        position = find_positions(budgets.ids, self.ids)
        missing = position < 0
        # A record is taken for an added one only where every budget has found its record.
        others_complete = len(budgets) == int((~missing).sum())
        refused = missing
        if added is not None and others_complete:
            refused = missing & ~added
        if refused.any():
            raise InputError(
                f"budgets: no record with id {self.ids[missing][0]!s} ({int(missing.sum())} of the "
                "plan's records are missing); give the budgets of every record of the plan"
            )
        # At −1, a missing record, this takes the last record, which `where` leaves out below.
        bounds = budgets.consents.select(position)
        lowered = []
        for name in BOUNDS:
            current = getattr(self, name)
            lower = np.minimum(current, getattr(bounds, name))
            lowered.append(np.where(missing, current, lower))
        return Consents(self.ids, *lowered)


@dataclass(frozen=True, eq=False, init=False)
class Budgets:
    """The budgets of n records, frozen.

    A budget is a consent: a plan may use less than a record allows, never more.

    Args:
        epsilon: n entries, or one for all, in (0, ∞).
        delta: n entries, or one for all, in (0, 1).
        excess: n entries, or one for all, in [0, 1]: a bound Δ̄ on the excess; None asks for none.
        ids: What identifies a record, unique; if not given, the labels of a Series that has some
            (those of its index, if they are not 0…n−1 anyway), else 0…n−1. Series have one index,
            or the ids as theirs; lists and arrays are taken by position.
        labels: A name for each record's group; records with one label and one budget are a group.
        levels: What people could choose, as name → ε; epsilon then has these names, which name the
            groups.

    Raises:
        BudgetError: For a value outside its bounds (NaN and infinity too), lengths that differ, no
            record, and names of no declared level.
        DataError: For ids that repeat, or are neither whole numbers nor text, and for Series whose
            indices differ, from one another or from the ids.

    References:
        Boenisch et al. 2023, §3.1; Kaiser et al. 2026, Def. 3 and 8.

    Example:
        >>> from apiece import Budgets
        >>> budgets = Budgets([1.0, 2.0, 1.0], 1e-5)
        >>> len(budgets), budgets.groups.epsilon.tolist(), budgets.group_index.tolist()
        (3, [1.0, 2.0], [0, 1, 0])
        >>> Budgets(["low", "high"], 1e-5, levels={"low": 1, "high": 8}).groups.name.tolist()
        ['low', 'high']
    """

    epsilon: Floats
    delta: Floats
    excess: Floats | None
    ids: Ids
    labels: npt.NDArray[np.str_] | None

    def __init__(
        self,
        epsilon: npt.ArrayLike,
        delta: npt.ArrayLike,
        *,
        excess: npt.ArrayLike | None = None,
        ids: Sequence[int | str] | Ids | None = None,
        labels: npt.ArrayLike | None = None,
        levels: Offered | None = None,
    ) -> None:
        series: dict[str, Any] = {
            "epsilon": epsilon,
            "delta": delta,
            "excess": excess,
            "labels": labels,
        }
        # One index for all Series, or they would be joined by position.
        index = common_index(**series)
        # The labels of the first Series that has some are the ids.
        if ids is None:
            indexed = [name for name, value in series.items() if index_of(value) is not None]
            ids = ids_from(indexed[0] if indexed else "", index)
        else:
            require_ids("ids", ids, **series)
        epsilon = parse_epsilons(epsilon, levels)
        if levels is not None:
            if labels is not None:
                raise InputError("labels, levels: both given; levels are the labels")
            labels = Levels(levels).names_of(epsilon)
        # Each is checked by itself; one without an axis stands for all records.
        columns: dict[str, Ids | Floats] = {
            "epsilon": _check.positive_array("epsilon", epsilon, error=BudgetError),
            "delta": _check.positive_array("delta", delta, below=1.0, error=BudgetError),
        }
        if excess is not None:
            columns["excess"] = _check.probability_array("excess", excess, error=BudgetError)
        if ids is not None:
            columns["ids"] = _check.record_ids("ids", ids)
        if labels is not None:
            columns["labels"] = np.array(labels)
        if any(column.ndim > 1 for column in columns.values()):
            raise BudgetError("budgets: arrays must be one-dimensional, one entry a record")
        # Sizes of the columns that have an entry a record.
        sizes = {name: column.size for name, column in columns.items() if column.ndim}
        if len(set(sizes.values())) > 1 or 0 in sizes.values():
            shown = ", ".join(f"{name} has {size}" for name, size in sizes.items())
            raise BudgetError(f"budgets: {shown}; give every array the same length, at least 1")
        records = max(sizes.values(), default=1)
        # A value for all is repeated without a copy, and read-only as the others are.
        for name, values in columns.items():
            column = values if values.shape == (records,) else np.broadcast_to(values, records)
            column.flags.writeable = False
            columns[name] = column
        if ids is None:
            columns["ids"] = np.arange(records)
            columns["ids"].flags.writeable = False
        # Columns that were not given are None.
        for name in COLUMNS:
            object.__setattr__(self, name, columns.get(name))

    def __len__(self) -> int:
        return int(self.epsilon.size)

    def __repr__(self) -> str:
        return f"Budgets({len(self)} records in {len(self.groups)} groups)"

    @property
    def groups(self) -> BudgetGroups:
        """The distinct budgets, strictest first (by ε, then δ, then Δ̄, then label)."""
        return self._grouping[0]

    @property
    def group_index(self) -> Integers:
        """For each record, the position of its budget in `groups`."""
        return self._grouping[1]

    @property
    def consents(self) -> Consents:
        """What each record allows, as a plan of these records carries it."""
        # No excess is above 1: a bound of 1 is none.
        unbounded = np.broadcast_to(1.0, len(self))
        bounds = unbounded if self.excess is None else self.excess
        return Consents(self.ids, self.epsilon, self.delta, bounds)

    @cached_property
    def _grouping(self) -> tuple[BudgetGroups, Integers]:
        return group_budgets(self.epsilon, self.delta, self.excess, self.labels)

    def lowered_to(self, epsilon: npt.ArrayLike) -> Budgets:
        """Return these budgets with ε lowered to `epsilon`.

        Args:
            epsilon: A number for all, or one entry a record.

        Raises:
            BudgetError: Where it exceeds what a record allows.
            DataError: For a Series whose index is not the ids.
            InputError: For values that are not positive and finite, and for another number of them.
        """
        require_ids("ids", self.ids, epsilon=epsilon)
        values = _check.positive_array("epsilon", epsilon)
        if values.shape not in ((), (len(self),)):
            raise InputError(
                f"epsilon: shape {values.shape} for {len(self)} records; give a number for all, or "
                "one a record"
            )
        lower = np.array(np.broadcast_to(values, len(self)))
        # A consent can be lowered by a plan, and raised by nobody but who gave it.
        above = np.flatnonzero(lower > self.epsilon)
        if above.size:
            record = int(above[0])
            raise BudgetError(
                f"epsilon[{record}] = {float(lower[record])!r}: record {self.ids[record]!s} allows "
                f"{float(self.epsilon[record])!r} ({above.size} such entries); use at most that"
            )
        return self._replace_columns(epsilon=lower)

    def at_most(self, epsilon: float) -> Budgets:
        """Return these budgets with every ε above `epsilon` lowered to it.

        Args:
            epsilon: The cap, positive and finite.

        Raises:
            BudgetError: Where it is not.
        """
        cap = _check.positive("epsilon", epsilon, error=BudgetError)
        return self.lowered_to(np.minimum(self.epsilon, cap))

    def rounded_down(self, *, epsilon: float = 1.005, delta: float = 1.1) -> Budgets:
        """Return these budgets on a coarser lattice, for strategies that need few distinct budgets.

        Args:
            epsilon: The factor between neighbouring ε, above 1.
            delta: The factor between neighbouring δ, above 1.

        Raises:
            InputError: For a factor that is not above 1, or not finite.

        Guarantee:
            No record's ε or δ grows, and each is lowered by at most its factor.

        Example:
            >>> from apiece import Budgets
            >>> Budgets([1.003, 1.004], 1e-5).rounded_down(epsilon=1.01).groups.records.tolist()
            [2]
        """
        for name, factor in (("epsilon", epsilon), ("delta", delta)):
            if not _check.finite(name, factor) > 1:
                raise InputError(f"{name} = {factor!r}: must be above 1; give a factor, as 1.01")
        return self._replace_columns(
            epsilon=_round_down(self.epsilon, epsilon), delta=_round_down(self.delta, delta)
        )

    def bounded(self, excess: float) -> Budgets:
        """Return these budgets with every bound Δ̄ above `excess` lowered to it.

        Args:
            excess: In [0, 1]; also the bound of records that asked for none.

        Raises:
            InputError: For a bound outside [0, 1].
        """
        bound = _check.probability("excess", excess)
        return self._replace_columns(excess=np.minimum(self.consents.excess, bound))

    def taken(self, which: Integers | Mask) -> Budgets:
        """Return the budgets of some of the records, at least one.

        Args:
            which: A mask, or positions.

        Raises:
            DataError: Where it leaves none, and for a Series of truth values whose index is not
                the ids.
            IndexError: For a position that is not there, or a mask of another length.
        """
        # Truth values are joined by id; positions are taken as they are.
        if np.asarray(which).dtype == np.bool_:
            require_ids("ids", self.ids, which=which)
        records: Any = np.asarray(which)
        selected: Json = {}
        for name in COLUMNS:
            column = getattr(self, name)
            selected[name] = None if column is None else column[records]
        return Budgets(**selected)

    def _replace_columns(self, **columns: Floats) -> Budgets:
        """Return these budgets with other values in some columns."""
        current = {name: getattr(self, name) for name in COLUMNS}
        return Budgets(**(current | columns))

    @classmethod
    def from_groups(
        cls,
        groups: Iterable[tuple[str, float, float]],
        size: int,
        delta: float,
        *,
        seed: int | None = None,
    ) -> Budgets:
        """Return budgets for `size` records, split into groups.

        Args:
            groups: (name, epsilon, share or count) of each. Shares, at most 1 and summing to 1, are
                rounded by largest remainder; counts must sum to `size`.
            size: How many records.
            delta: For all, in (0, 1).
            seed: Of the order, a whole number from 0 on; None leaves the records group by group.

        Raises:
            BudgetError: For no groups, a repeated name, a group left empty, or values out of
                bounds.
            InputError: For shares that do not sum to 1 or to `size`, and a size below 1.

        Example:
            >>> from apiece import Budgets
            >>> budgets = Budgets.from_groups([("strict", 1, .34), ("weak", 3, .66)], 100, 1e-5)
            >>> budgets.groups.records.tolist()
            [34, 66]
        """
        rows = list(groups)
        size = _check.count("size", size)
        if not rows:
            raise BudgetError("groups: none given; give at least one (name, epsilon, share)")
        # Order, names, shares and ε are checked by themselves, before anything is made of them.
        names = [str(name) for name, _, _ in rows]
        if len(set(names)) < len(names):
            repeated = next(name for name in names if names.count(name) > 1)
            raise BudgetError(f"groups: {repeated!r} is given twice; name each group once")
        shares = np.array(
            [
                _check.positive(f"share of {name}", share, error=BudgetError)
                for name, _, share in rows
            ]
        )
        epsilons = np.array(
            [
                _check.positive(f"epsilon of {name}", group_epsilon, error=BudgetError)
                for name, group_epsilon, _ in rows
            ]
        )
        # Group by group, unless a seed shuffles them below.
        group = np.repeat(np.arange(len(rows)), _apportion_records(names, shares, size))
        if seed is not None:
            generator = np.random.default_rng(_check.count("seed", seed, least=0))
            group = generator.permutation(group)
        return cls(epsilons[group], delta, labels=np.array(names)[group])

    @classmethod
    def from_frame(
        cls,
        frame: object,
        *,
        epsilon: str,
        delta: str | float,
        ids: str | None = None,
        person: str | None = None,
        excess: str | float | None = None,
        levels: Offered | None = None,
        no_limit_cap: float | None = None,
        dialect: Dialect = PLAIN,
    ) -> Budgets:
        """Return the budgets in a table in memory, or in a CSV or Parquet file.

        Every row is read by itself. Ids of a CSV file are texts ("007" is not "7"); whole numbers
        stored in Parquet stay whole numbers. A CSV file and columns by name need no extra; other
        tables and Parquet need `tables`.

        Args:
            frame: The table (pandas, pyarrow or another that converts to them; or columns by name,
                each a list or an array), or the path of its file.
            epsilon: Name of the column of ε.
            delta: Name of a column, or one number for all.
            ids: Name of the column of ids; None numbers the rows.
            person: In place of `ids`, the column of the ids of persons, who may have several rows:
                one budget a person, in the order of their ids, which are texts.
            excess: Name of a column, or one number for all.
            levels: What people could choose, as name → ε, where the column of ε has these names.
            no_limit_cap: The ε that "no limit" and inf are read as; None refuses them.
            dialect: How a CSV file is written.

        Raises:
            DataError: For a missing column, an empty table, an unreadable file, repeated ids, or
                rows of one person that differ, naming nobody.
            BudgetError: For a cell that is no budget, with its row; for those that are no declared
                level, how many.
            InputError: For both `ids` and `person`.
            NotInstalledError: For a table that needs the extra `tables`, where that is missing.

        Example:
            >>> from apiece import Budgets
            >>> visits = {"who": ["b", "a", "b"], "consent": ["low", "high", "low"]}
            >>> budgets = Budgets.from_frame(
            ...     visits, epsilon="consent", delta=1e-5, person="who", levels="low=1,high=8")
            >>> budgets.ids.tolist(), budgets.epsilon.tolist(), budgets.groups.name.tolist()
            (['a', 'b'], [8.0, 1.0], ['low', 'high'])
        """
        if ids is not None and person is not None:
            raise InputError("ids, person: both given; persons are named by person alone")
        # No other column is read.
        names = [name for name in (epsilon, delta, excess, ids, person) if isinstance(name, str)]
        table = read_budget_table(frame, names, dialect)
        units = None if person is None else Units.of_column(table, person)
        columns = read_budget_columns(
            table,
            epsilon=epsilon,
            delta=delta,
            excess=excess,
            levels=parse_levels(levels),
            no_limit_cap=no_limit_cap,
            decimal=dialect.decimal,
            once=None if units is None else units.once,
        )
        if ids is not None:
            return cls(**columns, ids=read_ids(table, ids))
        return cls(**columns, ids=None if units is None else units.ids)


def _round_down(values: Floats, factor: float) -> Floats:
    """Return the largest power of the factor that is at most each value."""
    power = factor ** np.floor(np.log(values) / np.log(factor))
    # A logarithm rounded up would give a power above the value.
    return np.asarray(np.minimum(values, power))


def _apportion_records(names: list[str], shares: Floats, size: int) -> Integers:
    """Return the number of records of each group, by shares or counts; they sum to `size`."""
    # Whole numbers that sum to `size` are counts; one group of one record is both.
    if shares.sum() == size and (shares == np.floor(shares)).all():
        return shares.astype(np.int64)
    if not abs(shares.sum() - 1) < 1e-6:
        raise InputError(
            f"groups: shares sum to {shares.sum():g}; they must sum to 1, or counts to "
            f"size={size}; the order is (name, epsilon, share)"
        )
    exact = shares / shares.sum() * size
    counts = np.floor(exact).astype(np.int64)
    # The largest remainders get a record more.
    by_remainder = np.argsort(counts - exact, kind="stable")
    missing = size - int(counts.sum())
    counts[by_remainder[:missing]] += 1
    if not (counts > 0).all():
        empty = names[int(np.flatnonzero(counts == 0)[0])]
        raise BudgetError(
            f"group {empty}: {size} records leave it empty; drop it or raise its share"
        )
    return np.asarray(counts)
