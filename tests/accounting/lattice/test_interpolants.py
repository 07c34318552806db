"""Bounds on lattices of ε: chords in e^ε, their inverses, and what several say together."""

import math

import numpy as np
import pytest

from apiece.accounting import privacy_curve
from apiece.accounting.lattice.convolution import (
    Attempt,
    Attempts,
    Line,
    Tail,
    above_line,
    below_line,
)
from apiece.mechanisms import Allocated, Composed, Finite, Gaussian, Laplace, Repeated

EPSILON = 0.1 * np.arange(30)


def gaussian_like(shift: float = 0.0) -> Line:
    return Line(0.0, 0.1, np.exp(-((EPSILON + shift) ** 2)))


def test_between_lattice_points_a_line_is_a_chord_in_e_to_the_epsilon() -> None:
    line = gaussian_like()
    ends = line.delta(EPSILON[:-1], 1.0)
    assert ends == pytest.approx(line.value[:-1])
    t = np.array([0.25, 0.5, 0.9])
    inside = np.log(np.exp(0.4) + t * (np.exp(0.5) - np.exp(0.4)))
    chord = line.value[4] + t * (line.value[5] - line.value[4])
    assert line.delta(inside, 1.0) == pytest.approx(chord)


def test_epsilon_inverts_delta() -> None:
    line, delta = gaussian_like(), np.array([0.9, 0.31, 2e-3])
    found = line.epsilon(delta, 0.0)
    assert line.delta(found, 1.0) == pytest.approx(delta, rel=1e-12)
    assert line.epsilon(np.array([2.0, 1e-9]), -7.0).tolist() == [-7.0, math.inf]


def test_left_of_the_lattice_delta_rises_no_faster_than_it_can() -> None:
    line = Line(1.0, 0.1, np.array([0.3, 0.2, 0.1]))
    rise = line.delta(np.array([0.8]), 1.0) - 0.3
    assert rise == pytest.approx(math.e - math.exp(0.8))
    assert line.delta(np.array([0.8]), 0.0) == pytest.approx(0.3)


@pytest.mark.parametrize("exponent", [0.0, 1e-6])
def test_errors_widen_both_lines(exponent: float) -> None:
    value = np.exp(-((EPSILON + 0.1) ** 2))
    tail = Tail(0.0, 0.1, value, np.full(value.size, 1e-4), exponent)
    above, below = above_line(tail, 1e-5, None, reverse=False), below_line(tail, 0.0, None)
    at = np.linspace(0.0, 2.8, 57)
    middle = Line(0.0, 0.1, value).delta(at, 1.0)
    assert (above.delta(at, 1.0) >= middle + 1e-4).all()
    assert (below.delta(at, 0.0) <= np.maximum(middle - 9e-5, 0)).all()
    assert (np.diff(above.value) <= 0).all()
    assert (np.diff(below.value) <= 0).all()


def test_several_attempts_are_their_intersection() -> None:
    one = Attempt((gaussian_like(),), (gaussian_like(0.2),))
    other = Attempt((gaussian_like(0.05),), (gaussian_like(0.3),))
    at = np.array([0.5, 1.0])
    lower, upper = Attempts((one, other), close=True).delta(at)
    assert upper.tolist() == other.delta(at).upper.tolist()
    assert lower.tolist() == one.delta(at).lower.tolist()


def test_losses_past_the_exponential_have_bounds_to_the_left_of_the_lattice() -> None:
    at = np.array([10.0, 700.0, 720.0, 3000.0, 5000.0, 5005.0])
    for line in (Line(3000.0, 0.1, np.array([0.9, 0.5])), Line(5000.0, 0.1, np.array([0.9, 0.5]))):
        left = at < line.start
        assert (line.delta(at, 0.0)[left] == 0.9).all()
        upper = line.delta(at, 1.0)
        assert (upper[left] == 1.9).all()
        assert ((upper >= 0.5) & (upper <= 1.9)).all()


@pytest.mark.parametrize(
    "step",
    [
        Repeated(Composed(Finite([0.3, 0.7], [0.05, 0.95]), Allocated(7.0, 20)), 1500),
        Repeated(Composed(Laplace(0.5), Gaussian(3.0)), 1000),
        Repeated(Composed(Finite([0.9, 0.1], [0.1, 0.9]), Gaussian(3.0)), 1000),
    ],
)
def test_deltas_of_thousands_of_losses_fall_from_one(step) -> None:
    far = privacy_curve(step).epsilon(1e-9)
    lower, upper = privacy_curve(step).delta(np.linspace(0.0, far.lower, 9))
    assert (lower <= upper).all()
    assert lower[0] > 0.99
    assert (np.diff(lower) <= 1e-9).all()
