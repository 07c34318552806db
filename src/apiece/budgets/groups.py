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
from apiece._lazy import require
from apiece._types import Floats, Integers
from apiece.budgets.frames import read_budget_columns
from apiece.budgets.levels import Offered, parse_levels
from apiece.errors import BudgetError, DataError, as_given

# More groups than this are numbered, not named by their budgets.
NAMED = 1000
# Rows of a file that are read together.
ROWS = 2**20
# An ε above which a promise is weak (Ponomareva et al. 2023).
LARGE = 10.0
# An ε above which a promise says nothing.
ABSURD = 1000.0
# With fewer records the noise hides what they have in common.
FEW_RECORDS = 100
# In a group of fewer records a person can be recognized from the plan.
SMALL_GROUP = 10


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
        # A frozen dataclass is written past its own guard.
        set_column = object.__setattr__
        epsilon = _check.positive_array("epsilon", self.epsilon, error=BudgetError)
        set_column(self, "epsilon", epsilon)
        delta = _check.positive_array("delta", self.delta, below=1, error=BudgetError)
        set_column(self, "delta", delta)
        if self.excess is not None:
            excess = _check.probability_array("excess", self.excess, error=BudgetError)
            set_column(self, "excess", excess)
        for name, dtype in (("records", np.int64), ("name", str)):
            array = np.array(getattr(self, name), dtype=dtype)
            array.flags.writeable = False
            set_column(self, name, array)
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
        columns = ["epsilon", "delta", "records"]
        if self.excess is not None:
            columns.append("excess")
        return all(np.array_equal(getattr(self, name), getattr(other, name)) for name in columns)


def name_groups(
    epsilon: Floats, delta: Floats, excess: Floats | None, labels: npt.NDArray[np.str_] | None
) -> npt.NDArray[np.str_]:
    """Return one distinct name a group: its label, and its budget where that is not enough.

    >>> name_groups(np.array([1.0, 1.0000001]), np.array([1e-5, 1e-5]), None, None).tolist()
    ['epsilon=1.0', 'epsilon=1.0000001']
    """
    # Labels that are distinct are the names; else budgets are added to them.
    size = epsilon.size
    if labels is None:
        label_index = np.zeros(size, int)
    else:
        label_index = np.unique(labels, return_inverse=True)[1]
    distinct_labels = int(label_index.max()) + 1
    if labels is not None and distinct_labels == labels.size:
        return labels.astype(str)
    if size > NAMED:
        return np.array([f"g{position}" for position in range(size)])
    columns = {"epsilon": epsilon, "delta": delta}
    if excess is not None:
        columns["excess"] = excess
    # A column is in the names if it varies among groups of one label.
    shown = {
        name: values
        for name, values in columns.items()
        if len({*zip(label_index, values, strict=True)}) > distinct_labels
    }
    if labels is None or not shown:
        shown = {"epsilon": epsilon} | shown
    prefixes = [""] * size if labels is None else [f"{label} " for label in labels]
    # Six digits where they are enough, all digits where they are not.
    for write in ("{:g}".format, repr):
        names = []
        for position, prefix in enumerate(prefixes):
            parts = [f"{name}={write(float(values[position]))}" for name, values in shown.items()]
            names.append(prefix + " ".join(parts))
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
            excess: Name of a column, or one number for all; None asks for no bound.
            levels: What people could choose, as name → ε, where the column of ε has these names.
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
        names = [column for column in (epsilon, delta, excess) if isinstance(column, str)]
        table, counts = _count_distinct_rows(Path(path), list(dict.fromkeys(names)))
        try:
            columns = read_budget_columns(
                table,
                epsilon=epsilon,
                delta=delta,
                excess=excess,
                levels=parse_levels(levels),
                no_limit_cap=no_limit_cap,
                rows=counts,
            )
        except BudgetError as error:
            # Its row is a position among distinct rows, which says nothing about the file.
            message = re.sub(r", row \d+", "", str(error))
            raise BudgetError(f"{path}: {message}") from None
        groups, _ = group_budgets(**columns, counts=counts)
        return cls(groups)

    def at_most(self, epsilon: float) -> BudgetLevels:
        """Return these levels with every ε above `epsilon` lowered to it.

        Args:
            epsilon: The cap, positive and finite.

        Raises:
            BudgetError: Where it is not.
        """
        cap = _check.positive("epsilon", epsilon, error=BudgetError)
        levels = self.groups
        # Names made of budgets are made anew; labels of the caller stay.
        budget_names = name_groups(levels.epsilon, levels.delta, levels.excess, None)
        labels = None if np.array_equal(budget_names, levels.name) else levels.name
        lowered = np.minimum(levels.epsilon, cap)
        groups, _ = group_budgets(lowered, levels.delta, levels.excess, labels, levels.records)
        return BudgetLevels(groups)


def group_budgets(
    epsilon: Floats,
    delta: npt.ArrayLike,
    excess: npt.ArrayLike | None = None,
    labels: npt.NDArray[np.str_] | None = None,
    counts: Integers | None = None,
) -> tuple[BudgetGroups, Integers]:
    """Return the distinct budgets of rows, and the position of each row's budget in them.

    counts: how many records each row stands for; 1 if not given.
    """
    size = epsilon.size
    deltas = np.broadcast_to(delta, size)
    bounds = None if excess is None else np.broadcast_to(excess, size)
    columns: list[npt.NDArray[Any]] = [epsilon, deltas]
    if bounds is not None:
        columns.append(bounds)
    if labels is not None:
        columns.append(np.unique(labels.astype(str), return_inverse=True)[1])
    # A column broadcast from one value (of stride 0) orders nothing.
    varying = [column for column in columns if column.strides != (0,)] or [epsilon]
    order = np.lexsort(varying[::-1])
    # In this order equal budgets lie together; a group begins where a column changes.
    begins = np.zeros(size, dtype=bool)
    begins[0] = True
    for column in varying:
        ordered = column[order]
        begins[1:] |= ordered[1:] != ordered[:-1]
    index = np.empty(size, dtype=np.int64)
    # Back in the order of the rows.
    index[order] = np.cumsum(begins) - 1
    index.flags.writeable = False
    records = np.bincount(index) if counts is None else np.bincount(index, counts)
    # One row of each group, from which its budget is read.
    example = order[begins]
    group_epsilon = epsilon[example]
    group_delta = deltas[example]
    group_excess = None if bounds is None else bounds[example]
    group_labels = None if labels is None else labels[example].astype(str)
    names = name_groups(group_epsilon, group_delta, group_excess, group_labels)
    return BudgetGroups(names, group_epsilon, group_delta, group_excess, records), index


def _count_distinct_rows(path: Path, names: list[str]) -> tuple[Any, Any]:
    """Return the distinct rows of these columns as a pandas table, and the number of each."""
    require("tables")
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
        # Batch by batch, so that memory grows with the distinct rows alone.
        for batch in file.iter_batches(batch_size=ROWS, columns=names):
            rows = pa.Table.from_batches([batch])
            ones = pa.array(np.ones(rows.num_rows, dtype=np.int64))
            rows = rows.append_column("number of rows", ones)
            # Distinct rows of former batches go in with their counts.
            if distinct is not None:
                rows = pa.concat_tables([distinct, rows])
            distinct = rows.group_by(names).aggregate([("number of rows", "sum")])
            distinct = distinct.rename_columns([*names, "number of rows"])
    except (OSError, ValueError) as error:
        reason = " ".join(str(error).split())[:160]
        raise DataError(f"{path}: cannot be read ({reason}); give a Parquet file") from None
    if distinct is None or not distinct.num_rows:
        raise DataError(f"{path}: it has no rows; give one row a record")
    counts = distinct.column("number of rows").to_numpy()
    # Whole numbers stay whole beside gaps, and no column becomes an index.
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
    """Return a note for each likely mistake in budgets and group sizes, which a plan shows too."""
    notes = list_value_doubts(groups)
    records = int(groups.records.sum())
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
    """Return a note for each likely mistake in the largest ε and δ."""
    largest = refuse_absurd(float(groups.epsilon.max()))
    delta = float(groups.delta.max())
    records = int(groups.records.sum())
    notes = []
    if largest > LARGE:
        notes.append(
            f"the largest epsilon is {largest:g}; above {LARGE:g} a promise is weak: if these are "
            "percent, divide by 100"
        )
    if delta * records >= 1:
        # The largest power of ten of at most 1/(10 n).
        advised = 10 ** math.floor(math.log10(0.1 / records))
        notes.append(
            f"delta = {delta:g} is at least 1/n = {1 / records:.3g} for n = {records} records: "
            f"publishing one person in n at random would keep it; give {advised:g} or less"
        )
    return notes


def describe_cap(no_limit_cap: float) -> str:
    """Return the sentence by which a plan states what "no limit" was read as."""
    return f"whoever set no limit is promised epsilon = {no_limit_cap:g}, a cap set by the steward"
