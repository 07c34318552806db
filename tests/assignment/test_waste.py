"""The threshold that wastes least, and the chance to join a run at it."""

import math

import numpy as np
import pytest

from apiece.assignment.jorgensen import compute_participation, find_threshold


def test_participation_does_not_overflow() -> None:
    assert compute_participation(np.array([1.0, 900.0, 1000.0]), 1000.0)[2] == 1
    assert compute_participation(np.array([1.0]), 2.0) == pytest.approx(
        math.expm1(1) / math.expm1(2)
    )


def test_best_threshold_lies_between_the_budgets() -> None:
    epsilon, records = np.linspace(0.5, 1, 20), np.full(20, 50)
    for loss in (0.2, 0.7, "adaptive"):
        assert 0.5 <= find_threshold(epsilon, records, loss) <= 1.0
    assert find_threshold(epsilon, records, 0.0) == 1.0  # only what lies above τ counts
    assert find_threshold(epsilon, records, 1.0) == 0.5
