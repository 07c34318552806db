"""Poisson sampling for many models at once, by the gaps between successes.

Tossing a coin for every (model, record) pair at every step costs K·n random numbers a step. The
gaps between the successes of independent coins with one probability q are geometric, so the same
distribution costs one number a sampled record. Pairs are grouped by their probability.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from apiece._types import Floats, Integers


class PaddedBatch(NamedTuple):
    """One step's records for K models: `records` (K, P), of which `real` (K, P) are not padding."""

    records: Integers
    real: npt.NDArray[np.bool_]

    def __repr__(self) -> str:
        return "PaddedBatch()"  # what it holds is data about people


def successes(tosses: int, probability: float, generator: np.random.Generator) -> Integers:
    """Return which of `tosses` coins with `probability` came up, in increasing order.

    Exactly the distribution of independent coins. Edge cases: probability 0 gives none, 1 all.
    """
    if probability >= 1:
        return np.arange(tosses)
    if probability <= 0 or tosses == 0:
        return np.empty(0, dtype=np.int64)
    found: list[Integers] = []
    last = -1
    while last < tosses:
        mean = (tosses - last) * probability
        draw = int(mean + 4 * np.sqrt(mean) + 8)
        gaps = np.minimum(generator.geometric(probability, draw), tosses + 1)
        at = last + np.cumsum(gaps)
        found.append(at)
        last = int(at[-1])
    every = np.concatenate(found)
    return every[every < tosses]


def pad(models: Integers, records: Integers, count: int) -> PaddedBatch:
    """Return the pairs (model, record) as rows of equal length, padded with record 0."""
    order = np.argsort(models, kind="stable")
    models, records = models[order], records[order]
    sizes = np.bincount(models, minlength=count)
    width = max(int(sizes.max(initial=0)), 1)
    starts = np.cumsum(sizes) - sizes
    rows = np.zeros((count, width), dtype=np.int64)
    rows[models, np.arange(models.size) - starts[models]] = records
    return PaddedBatch(rows, np.arange(width) < sizes[:, None])


def batches(rates: Floats, steps: int, generator: np.random.Generator) -> Iterator[PaddedBatch]:
    """Yield `steps` batches in which model k's record i takes part with probability rates[k, i].

    All coins are independent, across models, records and steps.
    """
    count, size = rates.shape
    flat = rates.ravel()
    pairs = [(float(q), np.flatnonzero(flat == q)) for q in np.unique(flat[flat > 0])]
    block = max(1, min(steps, 200_000 // max(1, int(flat.sum()))))
    for first in range(0, steps, block):
        now = min(block, steps - first)
        pair, step = _block(pairs, now, generator)
        ends = np.cumsum(np.bincount(step, minlength=now))[:-1]
        for chosen in np.split(pair, ends):
            yield pad(chosen // size, chosen % size, count)


def _block(
    pairs: list[tuple[float, Integers]], steps: int, generator: np.random.Generator
) -> tuple[Integers, Integers]:
    """Return the sampled pairs of `steps` steps and the step of each, in order of step."""
    when, which = [np.empty(0, dtype=np.int64)], [np.empty(0, dtype=np.int64)]
    for q, members in pairs:
        at = successes(steps * members.size, q, generator)
        when.append(at // members.size)
        which.append(members[at % members.size])
    step, pair = np.concatenate(when), np.concatenate(which)
    order = np.argsort(step, kind="stable")
    return pair[order], step[order]
