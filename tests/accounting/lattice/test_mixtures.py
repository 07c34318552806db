"""The pair of a mixture: its intervals of log-ratios are intervals of x, and lose no mass."""

import numpy as np
import pytest
from scipy.stats import norm

from apiece.accounting.lattice.pairs import GaussianPair, mixture_pair
from apiece.errors import RangeError
from apiece.mechanisms.mixture import MixtureOfGaussians
from refusals import refused

STEP = MixtureOfGaussians(1.5, [0.5, 1.0, 3.0], [0.2, 0.1, 0.1])


def log_ratio(x: np.ndarray) -> np.ndarray:
    shifts, law = np.array(STEP.shifts) / 1.5, np.array(STEP.chances) / sum(STEP.chances)
    return np.log(norm.pdf(x[:, None] - shifts) @ law / norm.pdf(x))


def mass(x: np.ndarray) -> np.ndarray:
    left = np.diff(norm.cdf(x))
    return np.where(x[:-1] > 0, -np.diff(norm.sf(x)), left)


def test_masses_are_those_between_the_points_where_the_ratio_is_at_the_edges() -> None:
    pair = mixture_pair(STEP)
    x = np.linspace(-8, 9, 400)
    p, q = pair.masses(log_ratio(x))
    assert q == pytest.approx(mass(x), rel=1e-9)
    law = np.array(STEP.chances) / sum(STEP.chances)
    inside = sum(c * mass(x - s / 1.5) for c, s in zip(law, STEP.shifts, strict=True))
    assert p == pytest.approx(inside, rel=1e-9)
    assert pair.probability == pytest.approx(0.4)


def test_one_shift_is_the_gaussian_pair() -> None:
    one, other = mixture_pair(MixtureOfGaussians(3.0, [2.0], [0.3]), 0.5), GaussianPair(1.5, 0.15)
    window = other.window(1e-12)
    assert one.window(1e-12) == pytest.approx(window)
    edges = np.linspace(window.low, window.high, 50)
    for mine, its in zip(one.masses(edges), other.masses(edges), strict=True):
        assert mine == pytest.approx(its, rel=1e-11)
    assert one.probability == pytest.approx(0.15)
    assert one.rounding(window) < 1e-9


@pytest.mark.parametrize("noise", [1e-9, 1e15])
def test_what_is_past_the_range_is_refused(noise: float) -> None:
    with refused(RangeError, "range"):
        mixture_pair(MixtureOfGaussians(noise, [1.0], [0.5]))
