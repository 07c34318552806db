"""Everybody's column marginals from each level of consent by itself, where consent follows data.

Weighted measurements tell of the *weighted* people: who gave a small budget counts little. Where
who consents how far depends on the data, that is a bias. Here each level's column marginals are
measured, at each person's own budget; divided by the level's weight they add up to everybody's.
The fitted model is then raked to them: its columns become everybody's, and what it says of how
columns hang together stays that of the weighted people.

A level of small budgets has much noise. Each level's column is therefore shrunk towards the fitted
model's, the more the less its distance from that exceeds what noise alone would make of it. Where
nothing can be seen nothing is repaired.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import numpy.typing as npt

from apiece._types import Floats, Integers
from apiece.synthesis.fitting import Model
from apiece.synthesis.marginals import Clique, Rows, mask_weights
from apiece.synthesis.rounds import Randomness
from apiece.synthesis.weights import Account, Weights

# Levels of consent, at most; more budgets are taken together.
LEVELS: Final = 4
# Rounds of raking over all columns.
_SWEEPS: Final = 30
# How far above its mean a squared distance has to be to be more than noise, in deviations.
_DEVIATIONS: Final = 2.0
# A share that stands for none at all, so that nothing becomes impossible by noise.
_LEAST_SHARE: Final = 1e-6


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Levels:
    """Distinct budgets taken together as levels, from public numbers.

    Attributes:
        of_group: (groups,) The level of each distinct budget.
        weight: (levels,) With which a person of a level is counted: the smallest of the level.
    """

    of_group: Integers
    weight: Floats

    @classmethod
    def from_weights(cls, weights: Weights, records: Integers, most: int = LEVELS) -> Levels:
        """Return levels of about equal numbers of people, each distinct budget in one.

        Args:
            weights: Of the distinct budgets.
            records: (groups,) How many people have each, by the plan.
            most: Levels, at most.
        """
        # From the smallest weight to the largest.
        order = np.argsort(weights.weight, kind="stable")
        if order.size <= most:
            of_group = np.empty(order.size, np.int64)
            of_group[order] = np.arange(order.size)
        else:
            # The middle of each budget's people on the line of all people decides its level.
            middle = np.cumsum(records[order]) - records[order] / 2
            places = np.minimum((middle / records.sum() * most).astype(np.int64), most - 1)
            # A level that nobody is in has no number.
            of_group = np.empty(order.size, np.int64)
            # Numbered anew, so that levels are 0, 1, … without a gap.
            of_group[order] = np.unique(places, return_inverse=True)[1]
        # The smallest weight of the level: everybody in it can pay for being counted so.
        smallest = np.array(
            [weights.weight[of_group == level].min() for level in range(int(of_group.max()) + 1)]
        )
        return cls(of_group, smallest)


@dataclass(frozen=True, slots=True, eq=False)
class Margins:
    """The column marginals of each level, with noise.

    Attributes:
        noise_stddev: (levels,) Of a level's count in a cell, in people.
        by_level: Column → (levels, cells) how many people of each level are in each cell.
    """

    noise_stddev: Floats
    by_level: Mapping[int, Floats] = field(repr=False)

    @property
    def sizes(self) -> Floats:
        """(levels,) How many people each level has, by all columns; at least 1."""
        totals = np.stack([array.sum(axis=1) for array in self.by_level.values()])
        # A column of few cells has little noise in its sum.
        # A sum over k cells has k times the variance of one: weights 1/k.
        precision = [1 / array.shape[1] for array in self.by_level.values()]
        return np.maximum(np.average(totals, axis=0, weights=precision), 1.0)


def measure_margins(
    rows: Rows,
    account: Account,
    levels: Levels,
    share: float,
    randomness: Randomness,
    grid_bits: int,
) -> Margins:
    """Charge a share of every budget, and return everybody's column marginals.

    Args:
        rows: Of those who take part.
        account: Of their budgets.
        levels: Of the budgets.
        share: Of each budget, in (0, 1).
        randomness: Where noise comes from.
        grid_bits: The grid is 2^−bits of the noise.

    Guarantee:
        For each column one Gaussian mechanism, in which a person of weight w moves one cell of
        their level by at most w.
    """
    columns = len(rows.sizes)
    weights = account.weights
    # Each column takes an equal part of the share: w²/σ² ≤ limit·share/columns for the budget that
    # pays for least.
    noise_stddev = float((weights.weight / np.sqrt(weights.limit * share / columns)).max())
    # Up by more than the roundings above, so that nobody is kept out by them.
    noise_stddev *= 1 + 2.0**-30
    step = math.ldexp(noise_stddev, -grid_bits)
    of_level = levels.weight[levels.of_group]
    by_level: dict[int, Floats] = {}
    # One charge a column, before its rows are counted.
    for column, cells in enumerate(rows.sizes):
        active = account.charge_measurement(noise_stddev)
        steps = rows.steps_of(mask_weights(of_level, active), step)
        # (rows,): cell number with the level in front, so that one pass counts all levels.
        cell = levels.of_group[rows.group] * cells + rows.codes[:, column]
        size = levels.weight.size * cells
        sums = np.bincount(cell, weights=steps[rows.group], minlength=size).astype(np.int64)
        noisy = randomness.add_noise(sums, grid_bits).astype(np.float64) * step
        # From weighted steps back to people of each level.
        scale = rows.rows_per_person / levels.weight[:, None]
        by_level[column] = noisy.reshape(levels.weight.size, cells) * scale
    return Margins(noise_stddev * rows.rows_per_person / levels.weight, by_level)


def estimate_counts(model: Model, margins: Margins) -> dict[int, Floats]:
    """Return everybody's column counts: each level's, shrunk towards a model's.

    Args:
        model: Fitted to weighted measurements.
        margins: Of the levels.

    References:
        Efron and Morris 1973: the positive part of the share of a squared distance that noise does
        not explain.
    """
    sizes = margins.sizes
    variance = margins.noise_stddev**2
    counts = {}
    for column, of_levels in margins.by_level.items():
        expected = sizes[:, None] * model.probabilities((column,))
        # (levels, cells).
        distance = of_levels - expected
        cells = of_levels.shape[1]
        # Two standard deviations above the mean of what is, over variance, χ² with so many degrees.
        by_noise = variance * (cells + _DEVIATIONS * math.sqrt(2 * cells))
        # Where the distance is within what noise makes, the share is 0: nothing is repaired.
        squared = np.maximum((distance**2).sum(axis=1), by_noise)
        share = 1 - by_noise / squared
        counts[column] = (expected + share[:, None] * distance).sum(axis=0)
    return counts


def rake_model(model: Model, margins: Mapping[int, Floats]) -> Model:
    """Return a model whose columns have these marginals, nearest to the given one.

    Args:
        model: Fitted to weighted measurements.
        margins: Column → counts, maybe negative by noise.

    References:
        Deming and Stephan 1940: iterative proportional fitting.
    """
    potentials: dict[Clique, Floats] = dict(model.potentials)
    targets: dict[int, Floats] = {}
    for column, counts in margins.items():
        # Noise may make counts negative; a least share keeps every cell possible.
        shares = np.maximum(counts / max(float(counts.sum()), 1.0), _LEAST_SHARE)
        targets[column] = shares / shares.sum()
    for column in targets:
        # A column without a potential gets one of zeros, which changes nothing.
        potentials.setdefault((column,), np.zeros(model.sizes[column]))
    raked = Model(model.sizes, potentials, model.total, model.zeros)
    # Each pass makes every column right in turn, and moves the others a little less each time.
    for _ in range(_SWEEPS):
        largest = 0.0
        for column, target in targets.items():
            current = raked.probabilities((column,))
            possible = current > 0
            # Impossible cells stay so: their ratio is 1.
            ratio = np.where(possible, target, 1.0) / np.where(possible, current, 1.0)
            largest = max(largest, float(np.abs(current - target)[possible].max()))
            potentials = dict(raked.potentials)
            # p·ratio is a factor on one column: its logarithm is added to that column's potential.
            potentials[(column,)] = potentials[(column,)] + np.log(ratio)
            following = Model(model.sizes, potentials, model.total, model.zeros)
            # The tree follows from the marginals alone, and is taken over.
            following.__dict__["tree"] = raked.tree
            raked = following
        if largest < _LEAST_SHARE:
            break
    return raked


def measure_gaps(
    codes: npt.NDArray[np.int32], level: Integers, sizes: Sequence[int]
) -> dict[int, Floats]:
    """Return how far each level's columns are from everybody's, without noise: for the steward.

    Args:
        codes: (rows, columns) Cells.
        level: (rows,) Level of consent of each row's person.
        sizes: How many cells each column has.

    Returns:
        Column → (levels,) total variation in [0, 1].
    """
    gaps = {}
    levels = int(level.max(initial=0)) + 1
    for column, cells in enumerate(sizes):
        table = np.zeros((levels, cells))
        # (levels, cells) counts.
        np.add.at(table, (level, codes[:, column]), 1)
        everybody = table.sum(axis=0) / max(table.sum(), 1)
        # A level without rows has shares of zero, not NaN.
        own = table / np.maximum(table.sum(axis=1, keepdims=True), 1)
        gaps[column] = np.abs(own - everybody).sum(axis=1) / 2
    return gaps
