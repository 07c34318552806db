"""Where to look: estimates of ε and δ near the truth, and options that follow from them."""

from dataclasses import replace

import numpy as np
import pytest

from apiece.accounting.bounds import DEFAULT
from apiece.accounting.exact import GaussianProfile
from apiece.accounting.lattice.pairs import GaussianPair
from apiece.accounting.lattice.settings import choose_settings, estimate_log_delta

Z, TIMES = 10.0, 100
LEAVES = ((GaussianPair(Z), TIMES),)
EXACT = GaussianProfile(1.0)  # of 100 steps at z = 10
DELTAS = np.array([1e-5, 1e-6, 1e-7])


@pytest.mark.parametrize("known", [None, EXACT.epsilon(DELTAS).upper])
def test_they_are_made_for_about_the_right_epsilon(known: np.ndarray | None) -> None:
    found = choose_settings(LEAVES, DELTAS, DEFAULT, known)
    assert found.epsilon == pytest.approx(float(EXACT.epsilon(DELTAS).upper[1]), rel=0.2)
    assert found.deviation == pytest.approx(1.0, rel=0.1)
    assert found.tilt > 1
    assert found.reverse_tilt > 1
    assert 0 < found.step < 0.25


def test_closer_bounds_take_finer_steps() -> None:
    known = EXACT.epsilon(DELTAS).upper
    fine = replace(DEFAULT, gap=1e-5)
    steps = [choose_settings(LEAVES, DELTAS, each, known).step for each in (DEFAULT, fine)]
    assert steps[1] < 0.2 * steps[0]


def test_options_of_both_directions() -> None:
    found = choose_settings(LEAVES, DELTAS, DEFAULT, None)
    (remove, first), (add, second) = found.directions(DEFAULT, jumps=True)
    assert (remove, add) == (False, True)
    assert first[0] == second[0] == found.step
    assert first[4] == found.reach
    assert second[4] == 0
    assert max(first[1], second[1]) <= 20 / found.step


def test_log_delta_is_near_the_truth_and_not_below() -> None:
    epsilon = np.array([0.5, 2.0, 5.0])
    found = estimate_log_delta(LEAVES, epsilon, DEFAULT.truncation)
    exact = np.log(EXACT.delta(epsilon).lower)
    assert (found >= exact - 1e-3).all()
    assert (found <= exact + 4).all()
