"""The distinct budgets of a population, as columns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from apiece import _check
from apiece._types import Floats, Integers
from apiece.errors import BudgetError

NAMED = 1000  # more groups than this are numbered, not named by their budgets


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
        >>> one = np.array([1.0])
        >>> BudgetGroups(np.array(["a"]), one, 1e-6 * one, None, np.array([1000]))
        BudgetGroups(1000 records in 1 groups)
    """

    name: npt.NDArray[Any]
    epsilon: Floats
    delta: Floats
    excess: Floats | None
    records: Integers

    def __post_init__(self) -> None:
        put = object.__setattr__
        put(self, "epsilon", _check.positive_array("epsilon", self.epsilon, error=BudgetError))
        put(self, "delta", _check.positive_array("delta", self.delta, below=1, error=BudgetError))
        if self.excess is not None:
            put(self, "excess", excess_array(self.excess))
        for name, dtype in (("records", np.int64), ("name", str)):
            array: npt.NDArray[Any] = np.array(getattr(self, name), dtype=dtype)
            array.flags.writeable = False
            put(self, name, array)
        columns: list[npt.NDArray[Any]] = [self.epsilon, self.delta, self.records, self.name]
        columns += [] if self.excess is None else [self.excess]
        if self.epsilon.size == 0 or any(c.shape != (self.epsilon.size,) for c in columns):
            raise BudgetError(
                f"groups: columns of shapes {[c.shape for c in columns]}; give each one entry a "
                "group, at least one"
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


def excess_array(values: npt.ArrayLike) -> Floats:
    """Return `values` as a read-only array if every entry lies in [0, 1]."""
    try:
        array = np.array(values, dtype=np.float64)
    except (TypeError, ValueError):
        raise BudgetError("excess: not numbers; give numbers in [0, 1]") from None
    good = (array >= 0) & (array <= 1)
    if not good.all():
        bad = array.ravel()[~good.ravel()][0]
        raise BudgetError(f"excess = {float(bad)!r}: must be in [0, 1]; 1 asks for no bound")
    array.flags.writeable = False
    return array


def names_of(
    epsilon: Floats, delta: Floats, excess: Floats | None, labels: npt.NDArray[Any] | None
) -> npt.NDArray[Any]:
    """Return one distinct name a group: its label where that is enough, else its budget.

    >>> names_of(np.array([1.0, 2.0]), np.array([1e-5, 1e-5]), None, None).tolist()
    ['epsilon=1', 'epsilon=2']
    >>> names_of(np.array([1.0, 1.0000001]), np.array([1e-5, 1e-5]), None, None).tolist()
    ['epsilon=1.0', 'epsilon=1.0000001']
    """
    if labels is not None and np.unique(labels).size == labels.size:
        return labels.astype(str)
    if epsilon.size > NAMED:
        return np.array([f"g{g}" for g in range(epsilon.size)])
    prefix = [""] * epsilon.size if labels is None else [f"{label} " for label in labels]
    columns = {"epsilon": epsilon}
    if np.unique(delta).size > 1:
        columns["delta"] = delta
    if excess is not None and np.unique(excess).size > 1:
        columns["excess"] = excess
    for show in ("{:g}".format, repr):
        names = [
            prefix[g] + " ".join(f"{k}={show(float(v[g]))}" for k, v in columns.items())
            for g in range(epsilon.size)
        ]
        if len(set(names)) == len(names):
            break
    return np.array(names)
