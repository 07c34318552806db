"""Figures of held-out people: shares, their intervals, and who is taken for whom."""

import numpy as np
import pytest

from apiece.jobs.trained import Interval, Predictions, accuracies_of, share_right

TRUE = np.array([0, 0, 0, 1, 1, 1, 1, 1])
SAID = np.array([0, 0, 1, 1, 1, 1, 0, 2])


def answers(unit: np.ndarray | None = None) -> Predictions:
    return Predictions(SAID, TRUE, np.arange(8) if unit is None else unit)


def test_shares_by_class_and_by_group() -> None:
    found = accuracies_of(answers(), 3, answers(), np.array([0, 1] * 4), 3, {20: 0.5, 10: 0.25})
    assert found.accuracy is not None
    assert found.accuracy.value == 5 / 8
    assert [None if s is None else s.value for s in found.by_class] == [2 / 3, 3 / 5, None]
    assert found.confusion == ((2 / 3, 1 / 3, 0.0), (1 / 5, 3 / 5, 1 / 5), None)
    assert [None if s is None else s.value for s in found.by_group] == [2 / 4, 3 / 4, None]
    assert found.curve == ((10, 0.25), (20, 0.5))


def test_nobody_held_out() -> None:
    found = accuracies_of(None, 3, answers(), np.zeros(8, int), 1, {})
    assert (found.accuracy, found.by_class, found.confusion, found.curve) == (None, (), (), ())
    assert len(found.by_group) == 1


@pytest.mark.parametrize("share", [0.0, 0.03, 0.5, 0.97, 1.0])
def test_the_interval_covers_in_95_of_100(share: float) -> None:
    random = np.random.default_rng(0)
    held = 0
    for _ in range(400):
        found = share_right(random.random(200) < share, np.arange(200))
        assert found is not None
        assert 0 <= found.lower <= found.value <= found.upper <= 1
        held += found.lower <= share <= found.upper
    assert held >= 0.92 * 400


def test_rows_of_one_person_count_once() -> None:
    """Ten copies of every row say no more than the rows did."""
    hits = np.arange(40) < 30
    alone = share_right(hits, np.arange(40))
    copied = share_right(np.repeat(hits, 10), np.repeat(np.arange(40), 10))
    believed = share_right(np.repeat(hits, 10), np.arange(400))
    assert isinstance(alone, Interval)
    assert isinstance(copied, Interval)
    assert isinstance(believed, Interval)
    assert copied.lower == pytest.approx(alone.lower)
    assert copied.upper == pytest.approx(alone.upper)
    assert believed.upper - believed.lower < 0.5 * (alone.upper - alone.lower)


def test_no_rows() -> None:
    assert share_right(np.array([], dtype=bool), np.array([], dtype=int)) is None
