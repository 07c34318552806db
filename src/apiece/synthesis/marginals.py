"""Weighted marginals, counted in whole steps of a grid, and the noise that releases them.

A row of a person of weight w, who brings at most k rows, adds ⌊w/(k·step)⌋ steps to one cell of a
marginal, so a person adds a vector of ℓ2 norm at most w. Sums are sums of integers; the noise is an
exact Gaussian rounded to the grid, so that what is released is a post-processing of the exact
Gaussian mechanism. The grid is a fraction of the noise and follows from no row.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import numpy.typing as npt

from apiece._types import Floats, Integers, Mask
from apiece.errors import RangeError

# Columns by position, in increasing order.
Clique = tuple[int, ...]
# Whole numbers up to here are exact as doubles, in which cells are summed.
_EXACT: Final = 2**53


@dataclass(frozen=True, slots=True)
class Measurement:
    """A released marginal: weighted counts with Gaussian noise, in the order of its cells.

    Attributes:
        clique: Positions of its columns.
        values: (cells,) Noisy sums of weights; the last column varies fastest.
        noise_stddev: Of the noise on each.
    """

    clique: Clique
    values: Floats = field(repr=False)
    noise_stddev: float


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Rows:
    """The rows that take part: a cell's number in every column, and whose budget each row has.

    Args:
        codes: (rows, columns) Numbers from 0 on.
        group: (rows,) Position of the row's budget.
        sizes: How many cells each column has.
        rows_per_person: The most rows that one person has among these.
    """

    codes: npt.NDArray[np.int32]
    group: Integers
    sizes: tuple[int, ...]
    rows_per_person: int = 1

    def steps_of(self, weight: Floats, step: float) -> Integers:
        """Return how many steps of the grid a row of each budget adds, rounded down."""
        # A person's rows add at most w in all: w/k each, rounded down to the grid.
        steps = np.floor(weight / self.rows_per_person / step)
        # The quotient may be rounded up to the next whole number.
        # steps·step·k ≤ w must hold exactly, whatever the division did.
        steps = np.where(steps * step * self.rows_per_person > weight, steps - 1, steps)
        steps = np.maximum(steps, 0)
        # Sums must stay exact as doubles, in which `bincount` adds.
        if not float(steps.max()) * max(len(self.group), 1) < _EXACT:
            raise RangeError(
                f"grid of {step:g}: sums of {len(self.group)} rows are past whole doubles; give a "
                "smaller epsilon"
            )
        return steps.astype(np.int64)

    def count(self, clique: Clique, steps: Integers) -> Integers:
        """Return the sum of steps in each cell of a marginal."""
        shape = tuple(self.sizes[column] for column in clique)
        # Row-major: the last column of the clique varies fastest.
        cell = np.ravel_multi_index(tuple(self.codes[:, list(clique)].T), shape)
        sums = np.bincount(cell, weights=steps[self.group], minlength=math.prod(shape))
        return sums.astype(np.int64)

    def sizes_of(self, clique: Clique) -> int:
        """Return how many cells a marginal has."""
        return math.prod(self.sizes[column] for column in clique)


def mask_weights(weight: Floats, active: Mask) -> Floats:
    """Return the weights of the budgets that take part, 0 for the others."""
    return np.where(active, weight, 0.0)


def count_all(rows: Rows, cliques: Mapping[Clique, int], steps: Integers) -> dict[Clique, Integers]:
    """Return the sums of steps of many marginals."""
    return {clique: rows.count(clique, steps) for clique in cliques}
