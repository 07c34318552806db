"""Poisson sampling: each record at its own rate, independently; broken variants are caught.

Tolerances are standard errors: a z-score beyond 5 has a chance of 6e-7 under the right sampler.
"""

import itertools

import numpy as np
import pytest

from apiece.plan.parts import Stage
from apiece.training.batches import PoissonSampler
from apiece.training.randomness import ChaCha20Stream

DRAWS = 3000
RATES = {
    "three groups": np.array([0.02, 0.1, 0.45]),
    "every record its own": np.random.default_rng(1).uniform(0.001, 0.9, 120),
    "rates over many octaves": np.geomspace(1e-4, 1, 120),
}


class Broken(PoissonSampler):
    """A negative control: what `draw` returns is passed through `fault`."""

    fault = None

    def draw(self, generator):
        return self.fault(super().draw(generator), generator)


def doubled(batch, generator):
    """Join at twice the rate, nearly: a second chance for records next to a member."""
    return np.unique(np.concatenate([batch, np.minimum(batch + 1, 119)]))


def in_pairs(batch, _generator):
    """Right rates on average, but neighbours come together."""
    even = batch[batch % 2 == 0]
    return np.sort(np.concatenate([even, even + 1]))


def counts(rates, sampler=PoissonSampler, fault=None):
    """Return (draws, 120) memberships and each record's rate."""
    index = np.arange(120) % rates.size
    made = sampler(Stage(1, 1.0, 1.0, rates, np.ones(rates.size)), index)
    made.fault = fault
    stream = ChaCha20Stream(bytes(31) + b"\1")
    member = np.zeros((DRAWS, 120), dtype=bool)
    for row in member:
        row[made.draw(stream)] = True
    return member, rates[index]


def rate_scores(member, rates):
    inner = rates < 1
    spread = np.sqrt(rates * (1 - rates) / DRAWS)
    assert member[:, ~inner].all()
    return (member.mean(0) - rates)[inner] / spread[inner]


def neighbour_scores(member, rates):
    inner = np.flatnonzero((rates > 0.01) & (rates < 0.99))
    centred = (member - rates) / np.sqrt(rates * (1 - rates) + 1e-300)
    near = [(i, j) for i, j in itertools.pairwise(inner)]
    return np.array([(centred[:, i] * centred[:, j]).mean() for i, j in near]) * np.sqrt(DRAWS)


def steps_score(member, rates):
    """Return the z-score of how often a record is in two batches running."""
    inner = (rates > 0.05) & (rates < 0.95)
    both = (member[:-1, inner] & member[1:, inner]).mean(0)
    expected = rates[inner] ** 2
    return (both - expected) / np.sqrt(3 * expected / DRAWS)


@pytest.mark.parametrize("name", RATES)
def test_rates_and_independence(name):
    member, rates = counts(RATES[name])
    assert np.abs(rate_scores(member, rates)).max() < 5
    assert np.abs(neighbour_scores(member, rates)).max() < 6.5  # heavy tails at small rates
    assert np.abs(steps_score(member, rates)).max() < 5
    size = member.sum(1)
    spread = np.sqrt((rates * (1 - rates)).sum())
    assert abs(size.mean() - rates.sum()) < 5 * spread / np.sqrt(DRAWS)
    assert abs(size.std() / spread - 1) < 5 / np.sqrt(2 * DRAWS)


def test_a_doubled_rate_is_caught():
    member, rates = counts(RATES["three groups"], Broken, doubled)
    assert np.abs(rate_scores(member, rates)).max() > 5


def test_dependent_neighbours_are_caught():
    member, rates = counts(np.array([0.2]), Broken, in_pairs)
    assert np.abs(rate_scores(member, rates)).max() < 5
    assert np.abs(neighbour_scores(member, rates)).max() > 6.5
