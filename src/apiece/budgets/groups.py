"""The distinct budgets of a population, counted; and what in them looks like a mistake."""

from __future__ import annotations

import math
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from apiece import _check
from apiece._types import Floats, Integers
from apiece.budgets.frames import read_budgets
from apiece.budgets.levels import Offered, parse_levels
from apiece.errors import BudgetError, DataError, as_given

NAMED = 1000  # more groups than this are numbered, not named by their budgets
ROWS = 2**20  # of a file, read together
LARGE = 10.0  # from here on a promise is weak (Ponomareva et al. 2023)
ABSURD = 1000.0
FEW_RECORDS = 100
SMALL_GROUP = 10  # people in a group of fewer can be told from the plan


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class BudgetGroups:
    """The distinct budgets of a population, one entry a group, strictest first; read-only.

    Args:
        name: Of each group, each once.
        epsilon: In (0, ∞).
        delta: In (0, 1).
        excess: In [0, 1]; None where no bound was asked.
        records: How many have this budget, at least 1.

    Raises:
        BudgetError: For values out of their bounds and columns of different lengths.

    Example:
        >>> import numpy as np
        >>> from apiece.budgets import BudgetGroups
        >>> one = np.array([1.0])
        >>> BudgetGroups(np.array(["a"]), one, 1e-6 * one, None, np.array([1000]))
        BudgetGroups(1000 records in 1 groups)
    """

    name: npt.NDArray[np.str_]
    epsilon: Floats
    delta: Floats
    excess: Floats | None
    records: Integers

    def __post_init__(self) -> None:
        put = object.__setattr__
        put(self, "epsilon", _check.positive_array("epsilon", self.epsilon, error=BudgetError))
        put(self, "delta", _check.positive_array("delta", self.delta, below=1, error=BudgetError))
        if self.excess is not None:
            put(self, "excess", _check.probability_array("excess", self.excess, error=BudgetError))
        for name, dtype in (("records", np.int64), ("name", str)):
            array = np.array(getattr(self, name), dtype=dtype)
            array.flags.writeable = False
            put(self, name, array)
        columns = (self.epsilon, self.delta, self.records, self.name, self.excess)
        shapes = [column.shape for column in columns if column is not None]
        if self.epsilon.size == 0 or any(shape != self.epsilon.shape for shape in shapes):
            raise BudgetError(
                f"groups: columns of shapes {shapes}; give each one entry a group, at least one"
            )
        if not (self.records > 0).all():
            empty = self.name[self.records <= 0][0]
            raise BudgetError(f"group {empty}: no records; drop it or give it some")
        if len(set(self.name.tolist())) != self.name.size:
            raise BudgetError("groups: two have the same name; name each group once")

    def __len__(self) -> int:
        return int(self.epsilon.size)

    def __repr__(self) -> str:
        return f"BudgetGroups({int(self.records.sum())} records in {len(self)} groups)"

    def same_as(self, other: BudgetGroups) -> bool:
        """Whether both have the same budgets, bounds included, with as many records each.

        Args:
            other: Its names do not count.
        """
        if (self.excess is None) != (other.excess is None):
            return False
        columns = ("epsilon", "delta", "records", *(() if self.excess is None else ("excess",)))
        return all(np.array_equal(getattr(self, c), getattr(other, c)) for c in columns)


def name_groups(
    epsilon: Floats, delta: Floats, excess: Floats | None, labels: npt.NDArray[np.str_] | None
) -> npt.NDArray[np.str_]:
    """Return one distinct name a group: its label, and its budget where that is not enough.

    >>> name_groups(np.array([1.0, 1.0000001]), np.array([1e-5, 1e-5]), None, None).tolist()
    ['epsilon=1.0', 'epsilon=1.0000001']
    """
    kinds = (
        np.zeros(epsilon.size, int) if labels is None else np.unique(labels, return_inverse=True)[1]
    )
    own = int(kinds.max()) + 1
    if labels is not None and own == labels.size:
        return labels.astype(str)
    if epsilon.size > NAMED:
        return np.array([f"g{g}" for g in range(epsilon.size)])
    asked = {"epsilon": epsilon, "delta": delta} | ({} if excess is None else {"excess": excess})
    varied = {k: v for k, v in asked.items() if len({*zip(kinds, v, strict=True)}) > own}
    columns = varied or {"epsilon": epsilon}
    if labels is None:
        columns = {"epsilon": epsilon} | columns
    prefix = [""] * epsilon.size if labels is None else [f"{label} " for label in labels]
    for show in ("{:g}".format, repr):
        names = [
            prefix[g] + " ".join(f"{k}={show(float(v[g]))}" for k, v in columns.items())
            for g in range(epsilon.size)
        ]
        if len(set(names)) == len(names):
            break
    return np.array(names)


@dataclass(frozen=True, slots=True)
class BudgetLevels:
    """The distinct budgets of many records and how many have each; no record by itself.

    For `assign_levels`, where the records are too many to hold. The counts are data about people,
    as a plan made from them is where groups are small.

    Args:
        groups: The levels, strictest first.

    Example:
        >>> from apiece import Budgets
        >>> from apiece.budgets import BudgetLevels
        >>> levels = BudgetLevels(Budgets([1.0, 2.0, 1.0], 1e-5).groups)
        >>> len(levels), levels.groups.records.tolist()
        (3, [2, 1])
    """

    groups: BudgetGroups

    def __len__(self) -> int:
        return int(self.groups.records.sum())

    @classmethod
    def from_parquet(
        cls,
        path: str | os.PathLike[str],
        *,
        epsilon: str,
        delta: str | float,
        excess: str | float | None = None,
        levels: Offered | None = None,
        no_limit_cap: float | None = None,
    ) -> BudgetLevels:
        """Return the levels of a Parquet file with one row a record, read some rows at a time.

        The groups are those of `Budgets.from_frame`.

        Args:
            path: Of the file.
            epsilon: Name of the column of ε.
            delta: Name of a column, or one number for all.
            excess: The same.
            levels: As of `Budgets.from_frame`.
            no_limit_cap: The ε that "no limit" and inf are read as; None refuses them.

        Raises:
            DataError: For a file that cannot be read or has no rows, and a missing column.
            BudgetError: For a cell that is no budget.

        Example:
            >>> import tempfile, pandas as pd
            >>> from apiece.budgets import BudgetLevels
            >>> with tempfile.TemporaryDirectory() as folder:
            ...     path = f"{folder}/people.parquet"
            ...     pd.DataFrame({"consent": [2.0, 1.0, 2.0]}).to_parquet(path)
            ...     BudgetLevels.from_parquet(path, epsilon="consent", delta=1e-5)
            BudgetLevels(groups=BudgetGroups(3 records in 2 groups))
        """
        names = [name for name in (epsilon, delta, excess) if isinstance(name, str)]
        table, counts = _counted(Path(path), list(dict.fromkeys(names)))
        try:
            columns = read_budgets(
                table,
                epsilon=epsilon,
                delta=delta,
                excess=excess,
                levels=parse_levels(levels),
                no_limit_cap=no_limit_cap,
                rows=counts,
            )
        except BudgetError as error:  # its rows are levels here
            raise BudgetError(f"{path}: " + re.sub(r", row \d+", "", str(error))) from None
        return cls(group_budgets(**columns, counts=counts)[0])

    def at_most(self, epsilon: float) -> BudgetLevels:
        """Return these levels with every ε above `epsilon` lowered to it.

        Args:
            epsilon: The cap, positive and finite.

        Raises:
            BudgetError: Where it is not.
        """
        cap, of = _check.positive("epsilon", epsilon, error=BudgetError), self.groups
        own = name_groups(of.epsilon, of.delta, of.excess, None)
        labels = None if np.array_equal(own, of.name) else of.name
        lowered = np.minimum(of.epsilon, cap)
        return BudgetLevels(group_budgets(lowered, of.delta, of.excess, labels, of.records)[0])


def group_budgets(
    epsilon: Floats,
    delta: npt.ArrayLike,
    excess: npt.ArrayLike | None = None,
    labels: npt.NDArray[np.str_] | None = None,
    counts: Integers | None = None,
) -> tuple[BudgetGroups, Integers]:
    """Return the distinct budgets of rows, `counts` times each, and each row's place in them."""
    size, deltas = epsilon.size, np.broadcast_to(delta, epsilon.size)
    bounds = None if excess is None else np.broadcast_to(excess, size)
    places = None if labels is None else np.unique(labels.astype(str), return_inverse=True)[1]
    # A column with one value for all orders nothing.
    given = [c for c in (epsilon, deltas, bounds, places) if c is not None]
    columns = [c for c in given if c.strides != (0,)] or [epsilon]
    order = np.lexsort(columns[::-1])
    new = np.zeros(size, dtype=bool)
    new[0] = True
    for column in columns:
        ordered = column[order]
        new[1:] |= ordered[1:] != ordered[:-1]
    index = np.empty(size, dtype=np.int64)
    index[order] = np.cumsum(new) - 1
    index.flags.writeable = False
    first = order[new]
    records = np.bincount(index) if counts is None else np.bincount(index, counts)
    eps, dlt, exc = epsilon[first], deltas[first], None if bounds is None else bounds[first]
    names = name_groups(eps, dlt, exc, None if labels is None else labels[first].astype(str))
    return BudgetGroups(names, eps, dlt, exc, records), index


def _counted(path: Path, names: list[str]) -> tuple[Any, Any]:
    """Return the distinct rows of these columns as a pandas table, and how often each occurs."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        file = pq.ParquetFile(path)
        missing = [name for name in names if name not in file.schema_arrow.names]
        if missing:
            raise DataError(
                f"{path}: no column {missing[0]!r}; it has {', '.join(file.schema_arrow.names)}"
            )
        distinct = None
        for batch in file.iter_batches(batch_size=ROWS, columns=names):
            rows = pa.Table.from_batches([batch])
            count = pa.array(np.ones(rows.num_rows, dtype=np.int64))
            rows = rows.append_column("number of rows", count)
            rows = rows if distinct is None else pa.concat_tables([distinct, rows])
            distinct = rows.group_by(names).aggregate([("number of rows", "sum")])
            distinct = distinct.rename_columns([*names, "number of rows"])
    except (OSError, ValueError) as error:
        reason = " ".join(str(error).split())[:160]
        raise DataError(f"{path}: cannot be read ({reason}); give a Parquet file") from None
    if distinct is None or not distinct.num_rows:
        raise DataError(f"{path}: it has no rows; give one row a record")
    counts = distinct.column("number of rows").to_numpy()
    table = distinct.select(names).to_pandas(ignore_metadata=True, integer_object_nulls=True)
    return table, counts


def refuse_absurd(epsilon: float) -> float:
    """Return `epsilon`, unless it is so large that it promises nothing."""
    if ABSURD < epsilon < math.inf:
        raise BudgetError(
            f"epsilon = {epsilon:g}: above {ABSURD:g} it promises nothing; where people set no "
            "limit, write inf and name the number that it is read as, as in "
            + as_given("no_limit_cap", 8)
        )
    return epsilon


def list_doubts(groups: BudgetGroups) -> list[str]:
    """Return what looks like a mistake in groups, budgets and sizes, which a plan shows too."""
    notes, records = list_value_doubts(groups), int(groups.records.sum())
    if records < FEW_RECORDS:
        notes.append(
            f"{records} records: noise that hides one of so few hides what they have in common; "
            f"expect nothing useful of fewer than {FEW_RECORDS}"
        )
    if small := int((groups.records < SMALL_GROUP).sum()):
        notes.append(
            f"{small} of {len(groups)} groups have fewer than {SMALL_GROUP} records, the smallest "
            f"{int(groups.records.min())}: plan and report name their budgets, which tells who "
            "they are; round budgets down to fewer distinct values"
        )
    return notes


def list_value_doubts(groups: BudgetGroups) -> list[str]:
    """Return those of `doubts` that are about the largest ε and δ."""
    largest, delta = refuse_absurd(float(groups.epsilon.max())), float(groups.delta.max())
    records = int(groups.records.sum())
    notes = []
    if largest > LARGE:
        notes.append(
            f"the largest epsilon is {largest:g}; above {LARGE:g} a promise is weak: if these are "
            "percent, divide by 100"
        )
    if delta * records >= 1:
        notes.append(
            f"delta = {delta:g} is at least 1/n = {1 / records:.3g} for n = {records} records: "
            "publishing one person in n at random would keep it; give "
            f"{10 ** math.floor(math.log10(0.1 / records)):g} or less"
        )
    return notes


def describe_cap(no_limit_cap: float) -> str:
    """Return the sentence by which a plan states what "no limit" was read as."""
    return f"whoever set no limit is promised epsilon = {no_limit_cap:g}, a cap set by the steward"
