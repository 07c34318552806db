"""What each record asked for: ε_i, δ_i and, where given, a bound Δ̄_i on the excess risk."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from apiece import _check
from apiece.errors import BudgetError, DataError, InputError

Floats = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class BudgetGroups:
    """The distinct budgets of a population, one entry a group, strictest first.

    name, epsilon, delta, excess (None where no bound was asked), records (how many have it).
    """

    name: npt.NDArray[Any]
    epsilon: Floats
    delta: Floats
    excess: Floats | None
    records: Integers

    def __len__(self) -> int:
        return int(self.epsilon.size)


@dataclass(frozen=True, eq=False, init=False)
class Budgets:
    """The budgets of n records, frozen.

    epsilon, delta, excess: arrays of n entries, or scalars for all; ε in (0, ∞), δ in (0, 1),
    Δ̄ in [0, 1]. ids: what identifies a record, unique; 0…n−1 if not given. labels: an optional
    group name for each record; records with the same name must have the same budget.

    Raises `BudgetError` for a value outside its bounds (NaN and infinity too) and for lengths
    that differ, `DataError` for repeated ids. Source: S1 §3.1; S5 Def. 3 and 8.

    >>> budgets = Budgets([1.0, 2.0, 1.0], 1e-5)
    >>> len(budgets), budgets.groups.epsilon.tolist(), budgets.group_index.tolist()
    (3, [1.0, 2.0], [0, 1, 0])
    """

    epsilon: Floats
    delta: Floats
    excess: Floats | None
    ids: npt.NDArray[Any]
    labels: npt.NDArray[Any] | None

    def __init__(
        self,
        epsilon: npt.ArrayLike,
        delta: npt.ArrayLike,
        *,
        excess: npt.ArrayLike | None = None,
        ids: Sequence[Any] | npt.NDArray[Any] | None = None,
        labels: Sequence[Any] | npt.NDArray[Any] | None = None,
    ) -> None:
        columns: dict[str, npt.NDArray[Any]] = {
            "epsilon": _check.positive_array("epsilon", epsilon, error=BudgetError),
            "delta": _check.positive_array("delta", delta, below=1.0, error=BudgetError),
        }
        if excess is not None:
            columns["excess"] = _excess(excess)
        if ids is not None:
            columns["ids"] = _check.record_ids("ids", ids)
        if labels is not None:
            columns["labels"] = np.array(labels)
        size = _common_length(columns)
        for name, values in columns.items():
            full = np.array(np.broadcast_to(values, size))
            full.flags.writeable = False
            columns[name] = full
        object.__setattr__(self, "epsilon", columns["epsilon"])
        object.__setattr__(self, "delta", columns["delta"])
        object.__setattr__(self, "excess", columns.get("excess"))
        object.__setattr__(self, "ids", columns.get("ids", np.arange(size)))
        object.__setattr__(self, "labels", columns.get("labels"))

    def __len__(self) -> int:
        return int(self.epsilon.size)

    def __repr__(self) -> str:
        return f"Budgets({len(self)} records in {len(self.groups)} groups)"

    @property
    def groups(self) -> BudgetGroups:
        """The distinct budgets, strictest first (by ε, then δ, then Δ̄)."""
        return self._grouping[0]

    @property
    def group_index(self) -> Integers:
        """For each record, the position of its budget in `groups`."""
        return self._grouping[1]

    @cached_property
    def _grouping(self) -> tuple[BudgetGroups, Integers]:
        columns = [self.epsilon, self.delta]
        if self.excess is not None:
            columns.append(self.excess)
        order = np.lexsort(columns[::-1])
        new = np.zeros(len(self), dtype=bool)
        new[0] = True
        for column in columns:
            ordered = column[order]
            new[1:] |= ordered[1:] != ordered[:-1]
        index = np.empty(len(self), dtype=np.int64)
        index[order] = np.cumsum(new) - 1
        index.flags.writeable = False
        first = order[new]
        return BudgetGroups(
            name=self._names(index, first),
            epsilon=self.epsilon[first],
            delta=self.delta[first],
            excess=None if self.excess is None else self.excess[first],
            records=np.bincount(index),
        ), index

    def _names(self, index: Integers, first: Integers) -> npt.NDArray[Any]:
        if self.labels is None:
            return np.char.add("epsilon=", np.char.mod("%g", self.epsilon[first]))
        names = self.labels[first].astype(str)
        if not (names[index] == self.labels.astype(str)).all():
            return np.char.add("epsilon=", np.char.mod("%g", self.epsilon[first]))
        return names

    @classmethod
    def from_groups(
        cls,
        groups: Iterable[tuple[str, float, float]],
        size: int,
        delta: float,
        *,
        generator: np.random.Generator | None = None,
    ) -> Budgets:
        """Return budgets for `size` records, split into groups (name, share or count, epsilon).

        Shares (all at most 1, summing to 1) are rounded by largest remainder; counts must sum to
        `size`. With a `generator` the records are shuffled, without one they lie group by group.

        >>> budgets = Budgets.from_groups([("strict", .34, 1), ("weak", .66, 3)], 100, 1e-5)
        >>> budgets.groups.records.tolist()
        [34, 66]
        """
        rows = list(groups)
        size = _check.count("size", size)
        if not rows:
            raise BudgetError("groups: none given; give at least one (name, share, epsilon)")
        shares = np.array([_check.positive(f"share of {name}", s) for name, s, _ in rows])
        counts = _apportion(shares, size)
        which = np.repeat(np.arange(len(rows)), counts)
        if generator is not None:
            which = generator.permutation(which)
        epsilons = np.array([_check.positive(f"epsilon of {name}", e) for name, _, e in rows])
        return cls(epsilons[which], delta, labels=np.array([name for name, _, _ in rows])[which])

    @classmethod
    def from_frame(
        cls,
        frame: Any,
        *,
        epsilon: str,
        delta: str | float,
        ids: str | None = None,
        excess: str | None = None,
    ) -> Budgets:
        """Return the budgets in a pandas or pyarrow table, or in a CSV or Parquet file.

        epsilon, ids, excess: names of columns; delta: a column's name, or one number for all.
        Raises `DataError` for a missing column or an unreadable file.
        """
        table = _as_frame(frame)

        def column(name: str) -> npt.NDArray[Any]:
            if name not in table.columns:
                raise DataError(f"column {name!r}: not in the table (it has {list(table.columns)})")
            values: npt.NDArray[Any] = table[name].to_numpy()
            return values

        return cls(
            column(epsilon),
            column(delta) if isinstance(delta, str) else delta,
            excess=None if excess is None else column(excess),
            ids=None if ids is None else column(ids),
        )


def _excess(values: npt.ArrayLike) -> Floats:
    array = np.array(values, dtype=np.float64)
    if not ((array >= 0) & (array <= 1)).all():
        bad = array.ravel()[~((array >= 0) & (array <= 1)).ravel()][0]
        raise BudgetError(f"excess = {float(bad)!r}: must be in [0, 1]; 1 asks for no bound")
    return array


def _common_length(columns: dict[str, npt.NDArray[Any]]) -> int:
    sizes = {name: c.size for name, c in columns.items() if c.ndim}
    if any(c.ndim > 1 for c in columns.values()):
        raise BudgetError("budgets: arrays must be one-dimensional, one entry a record")
    if not sizes:
        return 1
    if len(set(sizes.values())) > 1 or 0 in sizes.values():
        shown = ", ".join(f"{name} has {size}" for name, size in sizes.items())
        raise BudgetError(f"budgets: {shown}; give every array the same length, at least 1")
    return next(iter(sizes.values()))


def _apportion(shares: Floats, size: int) -> Integers:
    if shares.sum() == size and (shares == np.floor(shares)).all():
        return shares.astype(np.int64)
    if not abs(shares.sum() - 1) < 1e-6:
        raise InputError(
            f"groups: shares sum to {shares.sum():g}; they must sum to 1, or counts to size={size}"
        )
    exact = shares / shares.sum() * size
    counts = np.floor(exact).astype(np.int64)
    counts[np.argsort(counts - exact, kind="stable")[: size - int(counts.sum())]] += 1
    if not (counts > 0).all():
        raise InputError(f"groups: {size} records leave a group empty; drop it or raise its share")
    return np.asarray(counts)


def _as_frame(frame: Any) -> Any:
    import pandas as pd

    if isinstance(frame, pd.DataFrame):
        return frame
    if hasattr(frame, "to_pandas"):
        return frame.to_pandas()
    path = Path(frame)
    try:
        return pd.read_parquet(path) if path.suffix == ".parquet" else pd.read_csv(path)
    except (OSError, ValueError) as error:
        raise DataError(f"{path}: cannot be read ({error}); give a CSV or Parquet file") from None
