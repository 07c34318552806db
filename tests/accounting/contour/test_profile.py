"""Many sampled compositions at once: against the lattice, and independent of their neighbours."""

import math

import numpy as np
import pytest
from scipy.stats import norm

from apiece._types import Floats
from apiece.accounting import epsilons
from apiece.accounting.bounds import Precision
from apiece.accounting.contour.profile import SampledGaussians, delta_bounds, epsilon_bounds
from apiece.accounting.lattice.pairs import GaussianPair
from apiece.accounting.lattice.profile import Composition


def settings(count: int, seed: int) -> Floats:
    random = np.random.default_rng(seed)
    q, z = 10 ** random.uniform(-5, 0, count), 10 ** random.uniform(-0.5, 2, count)
    times = np.floor(10 ** random.uniform(1.3, 5.5, count))
    return np.stack([z, q, times, 10 ** random.uniform(-15, -3, count)])


def test_agrees_with_the_lattice() -> None:
    """Both bounds meet those of another method, on a fine lattice; most settings are covered."""
    columns = settings(40, 7)
    lower, upper = epsilon_bounds(columns)
    found = np.isfinite(upper)
    assert found.mean() > 0.6
    for k in np.flatnonzero(found):
        z, q, times, delta = columns[:, k]
        curve = Composition(((GaussianPair(z, q), int(times)),), Precision(gap=2e-4))
        low, high = (float(end[0]) for end in curve.epsilon(np.array([delta])))
        assert lower[k] <= high * (1 + 1e-12)
        assert upper[k] >= low * (1 - 1e-12)


def test_nothing_depends_on_its_neighbours() -> None:
    """Bit for bit: in another order, doubled, and alone."""
    columns = settings(60, 8)
    lower, upper = epsilon_bounds(columns)
    order = np.random.default_rng(0).permutation(60)
    for chosen in (order, np.repeat(order, 2), order[:1], order[1:4]):
        some = epsilon_bounds(columns[:, chosen])
        assert np.array_equal(some.lower, lower[chosen])
        assert np.array_equal(some.upper, upper[chosen])


def test_extreme_settings_beside_ordinary_ones() -> None:
    """q of 0 and 1, one step, a million steps, δ down to 1e-15, heavy tails, in one call."""
    z = np.array([1.0, 1.0, 1.0, 50.0, 0.35, 2.0, 2.0, 1.0])
    q = np.array([0.0, 1.0, 0.3, 0.01, 1e-5, 0.02, 0.02, 1e-6])
    times = np.array([10, 10, 1, 10**6, 500, 1465, 1465, 10**6])
    delta = np.array([1e-5, 1e-15, 1e-9, 1e-10, 1e-9, 1e-3, 1e-15, 1e-12])
    names = ("noise_multiplier", "sampling_probability", "steps", "delta")
    together = epsilons(**dict(zip(names, (z, q, times, delta), strict=True)))
    assert together.upper[0] == 0
    assert (together.upper - together.lower <= 1e-3 * np.maximum(together.upper, 0.01)).all()
    for k, entry in enumerate(zip(z, q, times, delta, strict=True)):
        alone = epsilons(**dict(zip(names, entry, strict=True)))
        assert (alone.lower, alone.upper) == (together.lower[k], together.upper[k])


def test_many_values_of_delta_share_a_curve() -> None:
    """From 32 on; both ways give bounds on the same number."""
    delta = np.geomspace(1e-9, 1e-4, 40)
    setting = {"noise_multiplier": 1.0, "sampling_probability": 0.02, "steps": 300}
    many, few = epsilons(delta=delta, **setting), epsilons(delta=delta[::4], **setting)
    assert (few.lower <= many.upper[::4]).all()
    assert (many.lower[::4] <= few.upper).all()
    assert (few.upper - few.lower <= 1e-4 * few.upper).all()


def test_rare_large_losses_are_close_too() -> None:
    """Little noise and rare records, where the integrand falls slowly: many nodes, no lattice."""
    z = np.array([0.75, 0.7, 0.77, 0.84, 0.79, 0.76, 0.8])
    q = np.array([1e-3, 4.4e-3, 2.4e-3, 1.4e-3, 9.6e-4, 6.4e-3, 1.6e-3])
    times, delta = np.full(z.size, 1465.0), np.full(z.size, 1e-5)
    lower, upper = epsilon_bounds(np.stack([z, q, times, delta]))
    assert (upper - lower <= 1e-4 * upper).all()
    for k in (0, 4):
        leaves = ((GaussianPair(float(z[k]), float(q[k])), 1465),)
        low, high = (float(end[0]) for end in Composition(leaves).epsilon(delta[:1]))
        assert low * (1 - 1e-12) <= upper[k]
        assert lower[k] <= high * (1 + 1e-12)


@pytest.mark.parametrize(
    ("z", "q", "times"),
    [(1.0, 0.02, 1465), (2.0, 0.1, 16), (0.764, 1e-2, 1000), (30.0, 0.9, 400), (0.5, 1e-3, 10**5)],
)
def test_delta_agrees_with_the_lattice(z: float, q: float, times: int) -> None:
    """From the advantage on, as far as both resolve it; the contour is the closer one."""
    epsilon = np.array([0.0, 0.01, 0.3, 1.0, 3.0])
    lower, upper = SampledGaussians(z, q, times).delta(epsilon)
    low, high = Composition(((GaussianPair(z, q), times),)).delta(epsilon)
    assert (lower <= high * (1 + 1e-12)).all()
    assert (low <= upper * (1 + 1e-12)).all()
    assert upper[0] - lower[0] <= 1e-3 * upper[0]


def test_delta_of_many_is_that_of_each_alone() -> None:
    """To the bit, in any order, whatever was asked before; and not that of another."""
    settings = [(1.0, 0.02, 1465), (2.0, 0.1, 16), (0.5, 1e-3, 10**5), (1.0, 0.021, 1465)]
    epsilon, owner = np.tile([0.0, 0.3, 2.0, 9.0], 4), np.repeat([3, 0, 2, 1], 4)
    together = [SampledGaussians(*each) for each in settings]
    together[0].delta(np.array([1.0]))
    lower, upper = delta_bounds(together, epsilon, owner)
    for k, each in enumerate(settings):
        low, high = SampledGaussians(*each).delta(epsilon[owner == k])
        assert (low == lower[owner == k]).all()
        assert (high == upper[owner == k]).all()
    assert np.unique(upper).size == upper.size


def test_delta_of_tens_of_millions_of_steps() -> None:
    """Against the law that so many steps tend to; asked again, the answer is the same."""
    steps = SampledGaussians(5.77, 7.25e-4, 25_000_000)
    mu = 7.25e-4 * math.sqrt(25e6 * math.expm1(5.77**-2))
    lower, upper = steps.delta(np.array([0.0, 0.5]))
    assert lower[0] == pytest.approx(2 * norm.cdf(mu / 2) - 1, rel=1e-3)
    assert upper[0] - lower[0] <= 9e-4 * upper[0]
    assert steps.delta(np.array([0.5])).upper[0] == upper[1]
