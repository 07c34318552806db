"""Counts are exact, answers are theirs with the noise that was planned, and no more are given."""

import numpy as np
import pytest

from apiece.pate import Noise
from apiece.pate.strategies import GRID
from apiece.pate.teaching import NONE, answer_questions, count_votes
from apiece.training.randomness import ChaCha20Stream


def stream(number: int = 0) -> ChaCha20Stream:
    return ChaCha20Stream(bytes([number]) + bytes(31))


def test_counts_are_the_sum_one_by_one() -> None:
    generator = np.random.default_rng(0)
    votes = generator.integers(0, 4, (30, 7))
    weights = np.floor(generator.uniform(0.1, 2, 30) / GRID) * GRID
    found = count_votes(votes, weights, 4)
    for q in range(7):
        for c in range(4):
            assert found[q, c] == sum(weights[t] for t in range(30) if votes[t, q] == c)


def test_how_often_an_answer_is_right_is_as_by_the_normal_law() -> None:
    """Two classes, a gap of 10 and noise of 8 on each: right with probability Φ(10/(8√2))."""
    from scipy.stats import norm

    counts = np.tile([30.0, 20.0], (20000, 1))
    right = (answer_questions(counts, Noise(answer=8.0), 50.0, 20000, stream()) == 0).mean()
    assert right == pytest.approx(norm.cdf(10 / (8 * 2**0.5)), abs=0.012)


def test_how_often_a_check_passes_is_as_by_the_normal_law() -> None:
    from scipy.stats import norm

    counts, noise = np.tile([30.0, 20.0], (20000, 1)), Noise(answer=1.0, check=5.0, threshold=0.7)
    passed = (answer_questions(counts, noise, 50.0, 20000, stream()) != NONE).mean()
    assert passed == pytest.approx(norm.cdf(-5 / 5), abs=0.012)


@pytest.mark.parametrize("most", [0, 1, 7, 40])
def test_no_more_answers_than_are_left(most: int) -> None:
    counts = np.tile([30.0, 20.0], (100, 1))
    noise = Noise(answer=1.0, check=1.0, threshold=0.5)
    found = answer_questions(counts, noise, 50.0, most, stream())
    assert (found != NONE).sum() == most
    assert (found[most:] == NONE).all()


def test_each_question_has_noise_of_its_own() -> None:
    counts = np.tile([30.0, 30.0], (400, 1))
    found = answer_questions(counts, Noise(answer=3.0), 60.0, 400, stream())
    again = answer_questions(counts, Noise(answer=3.0), 60.0, 400, stream(1))
    assert 0.4 < found.mean() < 0.6
    assert 0.4 < (found == again).mean() < 0.6
