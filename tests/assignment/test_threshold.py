"""Threshold: the best τ, and one that keeps too few."""

import pytest

from apiece.assignment import Threshold
from apiece.budgets import Budgets
from apiece.errors import InfeasibleError

from .plans import plan_of

PAIR = Budgets.from_groups([("strict", 1.0, 0.4), ("weak", 3.0, 0.6)], 100, 1e-5)


def test_best_threshold_has_the_least_noise() -> None:
    best = plan_of(Threshold()).noise_stddev
    for tau in (1.0, 2.0, 3.0):
        assert best <= plan_of(Threshold(tau)).noise_stddev * (1 + 1e-3)


def test_threshold_that_keeps_too_few_names_the_nearest() -> None:
    with pytest.raises(InfeasibleError, match="use at most 3"):
        plan_of(Threshold(5.0), PAIR, steps=5, expected_batch_size=10)
    with pytest.raises(InfeasibleError, match="use at most 1"):
        plan_of(Threshold(2.0), PAIR, steps=5, expected_batch_size=80)
