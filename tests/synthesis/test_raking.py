"""Everybody's columns from levels of consent: what noise hides is left as it is."""

import numpy as np
import pytest

from apiece.queries.noise import BITS
from apiece.synthesis.fitting import Model
from apiece.synthesis.marginals import Rows
from apiece.synthesis.raking import (
    Levels,
    Margins,
    estimate_counts,
    measure_margins,
    rake_model,
)
from apiece.synthesis.rounds import ExactRandomness
from apiece.synthesis.weights import Account, Weights

EPSILON = np.array([0.2, 2.0])
DELTA = np.full(2, 1e-6)


def make_model(shares, total=1000.0):
    return Model((len(shares),), {(0,): np.log(np.asarray(shares))}, total)


def measure(rows, share=0.3, seed=0):
    weights = Weights.from_budgets(EPSILON, DELTA)
    account = Account(weights)
    levels = Levels.from_weights(weights, np.bincount(rows.group))
    margins = measure_margins(rows, account, levels, share, ExactRandomness(seed), BITS)
    return margins, account


def make_rows(people, old_share, seed=0):
    """Two cells; of each level another share is in the second."""
    generator = np.random.default_rng(seed)
    group = np.repeat([0, 1], people // 2)
    cell = generator.random(people) < np.asarray(old_share)[group]
    return Rows(cell[:, None].astype(np.int32), group, (2,))


def test_a_difference_that_noise_does_not_hide_is_repaired() -> None:
    rows = make_rows(200_000, (0.7, 0.1))
    margins, account = measure(rows)
    counts = estimate_counts(make_model([0.8, 0.2]), margins)[0]
    assert counts[1] / counts.sum() == pytest.approx(0.4, abs=0.01)
    share = account.spending / account.weights.limit
    assert (share <= 0.3).all()
    assert (share > 0.299).all()


def test_what_noise_hides_is_left_as_it_is() -> None:
    """Levels that are alike: the model's column is as good as any, and mostly stays the same."""
    truth = [0.6, 0.4]
    repaired = 0
    for seed in range(100):
        margins, _ = measure(make_rows(400, (0.4, 0.4), seed), seed=seed)
        counts = estimate_counts(make_model(truth), margins)[0]
        repaired += abs(counts[1] / counts.sum() - 0.4) > 0.02
    # By a normal law 5 % of χ² with two degrees are above 2 + 2·√4, in either level.
    assert repaired < 15


def test_sizes_of_levels_are_taken_from_all_columns() -> None:
    margins = Margins(
        np.array([1.0, 1.0]),
        {0: np.array([[4.0, 6.0], [-3.0, 1.0]]), 1: np.full((2, 4), 4.0)},
    )
    # Weights of 1/2 and 1/4: (10·2 + 16)/3 people, and (−2·2 + 16)/3.
    np.testing.assert_allclose(margins.sizes, [12.0, 4.0])


def test_a_raked_model_has_the_columns_and_keeps_what_they_share() -> None:
    joint = np.array([[0.4, 0.1], [0.1, 0.4]])
    model = Model((2, 2), {(0, 1): np.log(joint).ravel()}, 10.0)
    raked = rake_model(model, {0: np.array([3.0, 1.0]), 1: np.array([-1.0, 5.0])})
    np.testing.assert_allclose(raked.probabilities((0,)), [0.75, 0.25], atol=1e-5)
    assert raked.probabilities((1,))[0] < 1e-5
    even = rake_model(model, {0: np.array([1.0, 1.0]), 1: np.array([1.0, 3.0])})
    table = even.probabilities((0, 1)).reshape(2, 2)
    odds = table[0, 0] * table[1, 1] / (table[0, 1] * table[1, 0])
    assert odds == pytest.approx(16.0, rel=1e-3)
