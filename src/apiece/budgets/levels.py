"""How many people have which budget, counted from a file some rows at a time."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from apiece import _check
from apiece._types import Floats, Integers
from apiece.budgets.frames import budget_column
from apiece.budgets.groups import BudgetGroups, names_of
from apiece.errors import BudgetError, DataError

ROWS: Final = 2**20  # read together


@dataclass(frozen=True, slots=True)
class BudgetLevels:
    """The distinct budgets of many records and how many have each; no record by itself.

    What `assign_levels` makes a plan from where the records are too many to hold. Memory follows
    the number of levels. The counts are data about people, as a plan made from them is where
    groups are small.

    Args:
        groups: The levels, strictest first.

    Example:
        >>> from apiece import Budgets
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
        no_limit_cap: float | None = None,
    ) -> BudgetLevels:
        """Return the levels of a Parquet file with one row a record, read some rows at a time.

        Args:
            path: Of the file.
            epsilon: Name of the column of ε.
            delta: Name of a column, or one number for all.
            excess: Name of a column, or one number for all.
            no_limit_cap: The ε that "no limit" and inf are read as; None refuses them.

        Returns:
            The same groups as of `Budgets.from_frame` without labels.

        Raises:
            DataError: For a file that cannot be read or has no rows, and a missing column.
            BudgetError: For a cell that is no budget.

        Example:
            >>> import tempfile, pandas as pd
            >>> with tempfile.TemporaryDirectory() as folder:
            ...     people = pd.DataFrame({"consent": [2.0, 1.0, 2.0]})
            ...     people.to_parquet(f"{folder}/people.parquet")
            ...     BudgetLevels.from_parquet(f"{folder}/people.parquet", epsilon="consent",
            ...                               delta=1e-5)
            BudgetLevels(groups=BudgetGroups(3 records in 2 groups))
        """
        names = [name for name in (epsilon, delta, excess) if isinstance(name, str)]
        table, counts = _counted(Path(path), list(dict.fromkeys(names)))

        def values(given: str | float, role: str, below: float) -> Floats:
            if not isinstance(given, str):
                return np.full(counts.size, given)
            try:
                return budget_column(table, given, role, below=below, no_limit_cap=no_limit_cap)
            except BudgetError as error:  # its rows are levels here
                raise BudgetError(f"{path}: " + re.sub(r", row \d+", "", str(error))) from None

        columns = [values(epsilon, "epsilon", np.inf), values(delta, "delta", 1.0)]
        if excess is not None:
            columns.append(values(excess, "excess", 1.0))
        return cls._of(columns, counts)

    def at_most(self, epsilon: float) -> BudgetLevels:
        """Return these levels with every ε above `epsilon` lowered to it.

        Args:
            epsilon: The cap, positive and finite.

        Raises:
            BudgetError: Where it is not.
        """
        cap, of = _check.positive("epsilon", epsilon, error=BudgetError), self.groups
        columns = [np.minimum(of.epsilon, cap), of.delta]
        return self._of(columns + ([] if of.excess is None else [of.excess]), of.records)

    @classmethod
    def _of(cls, columns: list[Floats], counts: Integers) -> BudgetLevels:
        """Return the levels of rows that may be equal: ε, δ and Δ̄ if asked, `counts` times each."""
        found, at = np.unique(np.stack(columns, axis=1), axis=0, return_inverse=True)
        records = np.zeros(len(found), dtype=np.int64)
        np.add.at(records, at.reshape(-1), counts)
        eps, dlt, *more = (found[:, k].copy() for k in range(len(columns)))
        exc = more[0] if more else None
        return cls(BudgetGroups(names_of(eps, dlt, exc, None), eps, dlt, exc, records))


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
        found = None
        for batch in file.iter_batches(batch_size=ROWS, columns=names):
            rows = pa.Table.from_batches([batch])
            count = pa.array(np.ones(rows.num_rows, dtype=np.int64))
            rows = rows.append_column("number of rows", count)
            rows = rows if found is None else pa.concat_tables([found, rows])
            found = rows.group_by(names).aggregate([("number of rows", "sum")])
            found = found.rename_columns([*names, "number of rows"])
    except (OSError, ValueError) as error:
        reason = " ".join(str(error).split())[:160]
        raise DataError(f"{path}: cannot be read ({reason}); give a Parquet file") from None
    if found is None or not found.num_rows:
        raise DataError(f"{path}: it has no rows; give one row a record")
    counts = found.column("number of rows").to_numpy()
    table = found.select(names).to_pandas(ignore_metadata=True, integer_object_nulls=True)
    return table, counts
