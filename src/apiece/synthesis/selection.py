"""Which marginal is measured next: an exact exponential mechanism on the worst fits.

The score of a marginal is its weight in the workload times the ℓ1 distance of the weighted counts
from those of the model, less what noise alone would make of it. A person of weight w moves every
score by at most w times the largest weight in the workload. A marginal is drawn with probability in
proportion to e^(rate·score), so that a person's loss has a range of η·w with
η = 2·rate·(largest weight).

Counts and scores are whole numbers of 2^−20, and the draw is exact: no floating-point effect
weakens the bound.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from fractions import Fraction
from typing import Final

import numpy as np

from apiece._types import Floats, Integers
from apiece.budgets.release import Below, bernoulli_exp
from apiece.synthesis.marginals import Clique

# A step of counts and scores is 2^−20 of the largest weight.
SCORE_BITS: Final = 20
# Mean distance of a standard normal deviate from 0.
MEAN_DEVIATION: Final = math.sqrt(2 / math.pi)


def weigh_candidates(workload: Iterable[Clique]) -> dict[Clique, int]:
    """Return every marginal below one of a workload, with its weight: how much it overlaps them.

    >>> weigh_candidates([(0, 1), (0, 2)])
    {(0,): 2, (1,): 1, (2,): 1, (0, 1): 3, (0, 2): 3}
    """
    asked = sorted(set(workload))
    # Every part of a clique of the workload may be measured, as it tells of the whole.
    parts = {
        part
        for clique in asked
        for size in range(1, len(clique) + 1)
        for part in itertools.combinations(clique, size)
    }
    return {
        # By how many columns it shares with each clique of the workload.
        clique: sum(len(set(clique) & set(other)) for other in asked)
        for clique in sorted(parts, key=lambda part: (len(part), part))
    }


def score_candidates(
    candidates: Mapping[Clique, int],
    counts: Mapping[Clique, Integers],
    expect: Callable[[Clique], Floats],
    noise_stddev: float,
) -> list[int]:
    """Return the score of each candidate, in steps of 2^−20.

    Args:
        candidates: Marginal → its weight in the workload.
        counts: Marginal → its sums, in steps.
        expect: The weighted counts that the model has for a marginal.
        noise_stddev: Of the measurement that would follow.
    """
    scores = []
    for clique, importance in candidates.items():
        # Expected counts are rounded once to the grid, so that scores are whole numbers.
        expected = np.rint(np.ldexp(expect(clique), SCORE_BITS)).astype(np.int64)
        distance = int(np.abs(counts[clique] - expected).sum())
        # The mean of Σ|noise| over all cells: a fit that is off by no more is right.
        by_noise = MEAN_DEVIATION * noise_stddev * expected.size
        scores.append(importance * (distance - round(math.ldexp(by_noise, SCORE_BITS))))
    return scores


def rate_of(loss_range: float, candidates: Mapping[Clique, int]) -> Fraction:
    """Return the rate at which a person of weight 1 has a loss of range η, exactly."""
    # A person moves a score by at most importance·w·2^20 steps, and a log ratio of chances by twice
    # the rate times that.
    return Fraction(loss_range) / (2 * max(candidates.values()) * 2**SCORE_BITS)


def draw_candidate(scores: Sequence[int], rate: Fraction, below: Below) -> int:
    """Return a position, drawn with probability in proportion to e^(rate·score), exactly."""
    largest = max(scores)
    while True:
        # Rejection: one of all alike, which stays with chance e^(−rate·(largest − score)) ≤ 1.
        position = below(len(scores))
        if bernoulli_exp(rate * (largest - scores[position]), below):
            return position
