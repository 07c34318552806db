"""The numerical accountant against closed forms and other libraries."""

import math

import numpy as np
import pytest

from apiece.accounting import pld
from apiece.accounting.gdp import GaussianProfile
from apiece.accounting.grid import DEFAULT
from apiece.accounting.pairs import GaussianPair, Pair
from apiece.mechanisms import Gaussian, Repeated, Sampled

DELTAS = np.array([1e-3, 1e-5, 1e-8, 1e-12, 1e-15])


@pytest.mark.parametrize(
    ("noise_multiplier", "times"),
    [(10.0, 1000), (30.0, 100_000), (0.5, 3), (100.0, 10), (1000.0, 10**6)],
)
def test_brackets_gaussians_exactly(noise_multiplier: float, times: int) -> None:
    """Plain Gaussians, forced through the lattice, against their closed form."""
    leaves: tuple[tuple[Pair, int], ...] = ((GaussianPair(noise_multiplier), times),)
    exact = GaussianProfile(noise_multiplier / math.sqrt(times)).epsilon(DELTAS)
    lower, upper = pld.Composition(leaves, DEFAULT).epsilon(DELTAS)
    assert (lower <= exact.upper).all()
    assert (exact.lower <= upper).all()
    assert (upper - lower <= 1e-3 * np.maximum(upper, 0.01)).all()


def test_agrees_with_published_value() -> None:
    """σ=1.5, q=.04, T=2250, δ=1e-5: PRV ε = 6.77740 (its upper end)."""
    curve = pld.profile(Repeated(Sampled(Gaussian(1.5), 0.04), 2250))
    lower, upper = curve.epsilon(np.array([1e-5]))
    assert upper[0] < 6.77740
    assert lower[0] == pytest.approx(6.7774, rel=3e-3)
