"""Sampling by gaps has the distribution of independent coins."""

import numpy as np
import pytest

from apiece.audit.stacked_training import batches, pad
from apiece.training.batches import draw_positions


@pytest.mark.parametrize("q", [0.001, 0.05, 0.5, 0.97])
def test_skips_are_independent_coins(q: float) -> None:
    generator = np.random.default_rng(0)
    tosses, runs = 50, 4000
    hits = np.zeros((runs, tosses))
    for run in range(runs):
        hits[run, draw_positions(tosses, q, generator)] = 1
    error = np.sqrt(q * (1 - q) / runs)
    assert np.abs(hits.mean(axis=0) - q).max() < 4.5 * error
    total = hits.sum(axis=1)
    assert total.var() == pytest.approx(tosses * q * (1 - q), rel=0.15)
    neighbours = np.mean((hits[:, 1:] - q) * (hits[:, :-1] - q))
    assert abs(neighbours) < 4.5 * q * (1 - q) / np.sqrt(runs * (tosses - 1))


def test_skips_at_the_ends() -> None:
    generator = np.random.default_rng(0)
    assert draw_positions(5, 1.0, generator).tolist() == [0, 1, 2, 3, 4]
    assert draw_positions(5, 0.0, generator).size == 0
    assert draw_positions(0, 0.5, generator).size == 0
    assert draw_positions(10, 1e-300, generator).size == 0


def test_pad() -> None:
    batch = pad(np.array([2, 0, 2, 2]), np.array([5, 1, 6, 7]), 4)
    assert batch.real.sum(axis=1).tolist() == [1, 0, 3, 0]
    assert batch.records[2].tolist() == [5, 6, 7]
    assert batch.records[0, 0] == 1
    empty = pad(np.array([], dtype=np.int64), np.array([], dtype=np.int64), 2)
    assert not empty.real.any()


def test_batches_have_each_pair_at_its_own_rate() -> None:
    rates = np.array([[0.0, 0.1, 0.1, 0.6], [0.3, 0.1, 0.0, 1.0]])
    steps = 20000
    seen, both = np.zeros_like(rates), 0
    for batch in batches(rates, steps, np.random.default_rng(1)):
        for k in range(2):
            chosen = batch.records[k][batch.real[k]]
            assert np.unique(chosen).size == chosen.size
            seen[k, chosen] += 1
        both += {1, 3} <= set(batch.records[0][batch.real[0]])
    error = np.sqrt(rates * (1 - rates) / steps)
    assert (np.abs(seen / steps - rates) <= 4.5 * error).all()
    assert abs(both / steps - 0.06) < 4.5 * np.sqrt(0.06 / steps)


def test_no_member_gives_empty_batches() -> None:
    found = list(batches(np.zeros((2, 3)), 4, np.random.default_rng(0)))
    assert len(found) == 4
    assert not any(batch.real.any() for batch in found)
