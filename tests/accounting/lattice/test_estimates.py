"""Estimates from a coarse view against what is known of plain Gaussians."""

import math

import numpy as np
import pytest

from apiece.accounting.lattice.pairs import GaussianPair, LaplacePair
from apiece.accounting.lattice.settings import (
    coarsen,
    cumulant,
    estimate_gaps,
    quietest_tilt,
    renyi_tilt,
    tilted_deviation,
)

Z, TIMES = 5.0, 30
LEAVES = ((GaussianPair(Z), TIMES),)
COARSE = coarsen(LEAVES, (GaussianPair(Z).window(1e-20),))
RHO = TIMES / (2 * Z**2)


def test_moments_of_gaussians() -> None:
    orders = np.array([-2.0, 0.5, 2.0, 6.0])
    assert cumulant(COARSE, orders) == pytest.approx(RHO * orders * (orders - 1), rel=1e-3)
    assert cumulant(COARSE, np.array([0.0, 1.0])) == pytest.approx([0, 0], abs=1e-6)


@pytest.mark.parametrize("reverse", [False, True])
def test_the_best_order_for_gaussians(reverse: bool) -> None:
    """ε = αρ + log(1/δ)/(α − 1), about, is least at α = 1 + √(log(1/δ)/ρ)."""
    tilt, epsilon = renyi_tilt(COARSE, math.log(1e-8), reverse=reverse)
    assert tilt == pytest.approx(1 + math.sqrt(math.log(1e8) / RHO), rel=0.3)
    assert epsilon == pytest.approx(RHO + 2 * math.sqrt(RHO * math.log(1e8)), rel=0.15)


def test_a_tilted_gaussian_is_as_wide() -> None:
    assert tilted_deviation(COARSE, 4.0) == pytest.approx(math.sqrt(2 * RHO), rel=1e-2)


def test_gaps_grow_with_the_square_of_the_step() -> None:
    """Away from the lowest ratio, where they grow with the step alone."""
    small, large = estimate_gaps(COARSE, 6.0, np.array([1e-3, 1e-2]))
    assert large == pytest.approx(100 * small, rel=0.05)


def test_the_quietest_tilt_is_near_the_best_order() -> None:
    delta = np.array([1e-8])
    best, epsilon = renyi_tilt(COARSE, math.log(1e-8), reverse=False)
    tilt, effect = quietest_tilt(COARSE, np.array([epsilon]), delta)
    assert 1 < tilt < 2 * best
    assert -1 < effect < 10


def test_atoms_are_seen() -> None:
    pair = LaplacePair(2.0)
    coarse = coarsen(((pair, 1),), (pair.window(0.0),))
    assert coarse[0].largest == pytest.approx(0.5, rel=1e-2)
    assert np.exp(coarse[0].cells.log_q).sum() == pytest.approx(1, abs=1e-9)
