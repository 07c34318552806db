"""Thresholds: what each look costs, and counts that are ranks."""

import numpy as np
import pytest

from apiece.audit import bounds
from apiece.errors import DataError


def test_order_statistics_count_ranks_not_ties() -> None:
    tests = bounds.order_statistics(np.zeros(8), np.zeros(8))
    np.testing.assert_array_equal(tests.false_positives[:3], [0, 1, 3])
    np.testing.assert_array_equal(tests.true_positives[:3], [0, 0, 0])
    np.testing.assert_array_equal(tests.true_positives[3:], [8, 7, 5])
    np.testing.assert_array_equal(tests.false_positives[3:], [8, 8, 8])


def misses(candidates, error: float) -> float:
    """Return how often some bound of a look at two equal worlds is not one, of 400 looks."""
    generator = np.random.default_rng(5)
    missed = 0
    for _ in range(400):
        tests = candidates(generator.random(40), generator.random(40))
        tpr, fpr = bounds.bound_rates(tests, error / len(tests))
        truth = 1 - tests.threshold  # both worlds are uniform
        missed += bool(((tpr > truth) | (fpr < truth)).any())
    return missed / 400


def test_the_looks_together_fail_as_often_as_they_may() -> None:
    assert misses(bounds.order_statistics, 0.1) <= 0.1 + 3 * np.sqrt(0.1 * 0.9 / 400)


def test_a_threshold_picked_on_the_scores_fails_more_often() -> None:
    """Negative control: the look that shows most of all 80, read as if it were the only one."""

    def best(ins, outs):
        every = np.concatenate([ins, outs])
        tests = [bounds.count_at(ins, outs, float(at)) for at in every]
        gaps = [t.true_positives[0] / 40 - (1 - t.threshold[0]) for t in tests]
        return tests[int(np.argmax(gaps))]

    assert misses(best, 0.1) > 0.15


def test_a_split_depends_on_how_many_scores_and_not_on_which() -> None:
    generator = np.random.default_rng(1)
    ins, outs = generator.normal(2, 1, 60), generator.normal(size=60)
    found = bounds.choose_by_split(ins, outs, 1e-5, 0.05)
    assert (found.in_count, found.out_count, len(found)) == (30, 30, 1)
    again = bounds.choose_by_split(ins, outs, 1e-5, 0.05)
    assert found.threshold.tolist() == again.threshold.tolist()
    with pytest.raises(DataError, match="at least 2 of each"):
        bounds.choose_by_split(ins[:1], outs, 1e-5, 0.05)


def test_epsilon_from_rates_is_the_least_that_allows_them() -> None:
    tpr, fpr = np.array([0.9, 0.5, 0.1, 0.0]), np.array([0.1, 0.5, 0.9, 1.0])
    found = bounds.epsilon_from_rates(tpr, fpr, 0.01)
    assert found[0] == pytest.approx(np.log(0.89 / 0.1))
    assert found[1:].tolist() == [0.0, 0.0, 0.0]
    assert np.isinf(bounds.epsilon_from_rates(np.array([1.0]), np.array([0.0]), 0.0)[0])
