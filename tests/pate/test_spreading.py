"""Answers reach the inputs that lie near."""

import sys

import numpy as np
import pytest

from apiece.errors import UnsupportedError
from apiece.pate.teaching import spread_answers

GENERATOR = np.random.default_rng(0)
BLOBS = np.concatenate([GENERATOR.normal(at, 0.3, (60, 2)) for at in (0, 4, 8)])
TRUTH = np.repeat([0, 1, 2], 60)


def test_a_few_answers_are_spread_over_their_neighbours() -> None:
    known = np.where(np.arange(180) % 20 == 0, TRUTH, -1)
    assert (spread_answers(BLOBS, known) == TRUTH).all()


def test_what_no_answer_reaches_stays_without() -> None:
    known = np.where((np.arange(180) % 20 == 0) & (TRUTH < 2), TRUTH, -1)
    assert (spread_answers(BLOBS, known)[TRUTH == 2] == -1).all()


def test_without_scikit_learn_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sklearn.semi_supervised", None)
    with pytest.raises(UnsupportedError, match="pip install scikit-learn"):
        spread_answers(BLOBS, TRUTH)
