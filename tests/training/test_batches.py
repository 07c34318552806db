"""Poisson batches: form and edges; their distribution is in tests/statistical."""

import numpy as np
import pytest

from apiece.plan.parts import Stage
from apiece.training.batches import PoissonSampler, draw_positions
from apiece.training.randomness import ChaCha20Stream


def stage(rates):
    rates = np.asarray(rates, dtype=float)
    return Stage(1, 1.0, 1.0, rates, np.ones(rates.size))


def test_rates_zero_and_one_are_exact():
    sampler = PoissonSampler(stage([0.0, 1.0]), np.array([0, 1, 1, 0, 1]))
    for _ in range(20):
        assert sampler.draw(np.random.default_rng()).tolist() == [1, 2, 4]


@pytest.mark.parametrize("groups", [1, 5, 500])
def test_batches_are_sorted_distinct_positions(groups):
    rng = np.random.default_rng(0)
    sampler = PoissonSampler(stage(rng.uniform(0, 1, groups)), rng.integers(0, groups, 3000))
    batch = sampler.draw(ChaCha20Stream(bytes(32)))
    assert (np.diff(batch) > 0).all()
    assert batch.min() >= 0
    assert batch.max() < 3000


def test_shards_split_the_records():
    index = np.random.default_rng(0).integers(0, 2, 101)
    whole = PoissonSampler(stage([1.0, 1.0]), index).draw(np.random.default_rng(1))
    parts = [
        PoissonSampler(stage([1.0, 1.0]), index, shard=(rank, 3)).draw(np.random.default_rng(1))
        for rank in range(3)
    ]
    assert np.array_equal(np.sort(np.concatenate(parts)), whole)


@pytest.mark.parametrize("groups", [1, 5, 500])
def test_a_record_is_held_in_four_bytes_and_drawn_as_eight(groups):
    rng = np.random.default_rng(0)
    rates = np.full(groups, 0.5) if groups < 500 else rng.uniform(0.1, 1, groups)
    sampler = PoissonSampler(stage(rates), rng.integers(0, groups, 3000))
    assert sum(bucket.records.nbytes for bucket in sampler.buckets) == 4 * 3000
    assert sampler.draw(rng).dtype == np.int64


def test_skips_of_nothing_are_empty():
    rng = np.random.default_rng(0)
    assert draw_positions(0, 0.5, rng).size == 0
    assert draw_positions(10, 0.0, rng).size == 0
    assert draw_positions(10, 1e-300, rng).size == 0
