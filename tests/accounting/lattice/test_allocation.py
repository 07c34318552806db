"""One of n Gaussian steps at random: both bounds against quadrature, simulation and other code."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import pytest
from scipy.special import ndtr

from apiece._types import Floats
from apiece.accounting import privacy_curve
from apiece.accounting.lattice import allocation
from apiece.errors import RangeError
from apiece.mechanisms import Allocated, Composed, Gaussian, Repeated, Sampled, flatten, from_json
from apiece.mechanisms.algebra import to_json
from apiece.mechanisms.allocated import block_sizes

CASES = [(1.0, 2), (0.6, 2), (3.0, 2), (1.0, 3), (2.0, 3)]


def put(z: float, strike: Floats) -> Floats:
    """E(strike − L)₊ of one lognormal ratio, in closed form (Black and Scholes 1973)."""
    at = np.log(np.maximum(strike, 1e-300)) * z
    return np.where(strike > 0, strike * ndtr(at + 0.5 / z) - ndtr(at - 0.5 / z), 0.0)


def put_of_mean(z: float, n: int, strike: float) -> float:
    """E(strike − M)₊ by the trapezoidal rule over all ratios but one; n is 2 or 3."""
    x, width = np.linspace(-10, 10, 1601, retstep=True)
    ratio, weight = np.exp(x / z - 0.5 / z**2), np.exp(-(x**2) / 2) * width / math.sqrt(2 * math.pi)
    if n == 3:
        ratio = np.add.outer(ratio, ratio).ravel()
        weight = np.multiply.outer(weight, weight).ravel()
    return float(weight @ put(z, n * strike - ratio)) / n


def delta_of(z: float, n: int, epsilon: float) -> float:
    """The larger of both directions, from their definitions, by puts."""
    high, low = math.exp(epsilon), math.exp(-epsilon)
    return max(1 - high + put_of_mean(z, n, high), high * put_of_mean(z, n, low))


@pytest.mark.parametrize(("z", "n"), CASES)
def test_bounds_hold_the_quadrature(z: float, n: int) -> None:
    curve = privacy_curve(Allocated(z, n))
    for epsilon in (0.1, 1.0, 2.0) if n == 3 else (0.0, 0.1, 0.5, 1.0, 2.0):
        exact, (lower, upper) = delta_of(z, n, epsilon), curve.delta(epsilon)
        assert lower - 1e-9 <= exact <= upper + 1e-9
        assert upper - lower <= 5e-3 * upper


@pytest.mark.parametrize(("z", "n"), CASES[:3])
def test_planted_faults_leave_the_quadrature_out(
    z: float, n: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    exact = np.array([delta_of(z, n, epsilon) for epsilon in (0.1, 0.5, 1.0)])
    found: list[str] = []
    real = allocation.law.__wrapped__
    faults = {
        "contracted": lambda step, upper: real(step, upper=False),
        "one step too many": lambda step, upper: real(
            Allocated(step.noise_multiplier, step.steps + 1), upper=upper
        ),
        "a tail dropped": lambda step, upper: _without_tail(real(step, upper=upper)),
    }
    for name, fault in faults.items():
        monkeypatch.setattr(allocation, "law", fault)
        told = allocation.AllocatedProfile(Allocated(z, n)).delta(np.array([0.1, 0.5, 1.0]))
        found += [name] * bool((told.upper < exact - 1e-9).any())
    assert found == list(faults)


def _without_tail(law: allocation.Ratio) -> allocation.Ratio:
    keep = np.cumsum((law.ratio * law.mass)[::-1])[::-1] > 1e-4
    return allocation.Ratio(law.ratio[keep], law.mass[keep], 0.0)


def test_each_direction_decides_somewhere() -> None:
    """A one-sided accountant would be caught: the remove direction alone is the larger one here."""
    high, low = math.exp(1.0), math.exp(-1.0)
    remove, add = 1 - high + put_of_mean(1.0, 2, high), high * put_of_mean(1.0, 2, low)
    assert remove > 1.1 * add
    assert privacy_curve(Allocated(1.0, 2)).delta(1.0).lower > 1.1 * add


def test_blocks_hold_a_simulation() -> None:
    """Three blocks of twenty steps: δ(ε) by drawing losses of the world with the record."""
    z, n, k, epsilon = 1.5, 20, 3, 0.7
    curve = privacy_curve(Repeated(Allocated(z, n), k))
    noise = np.random.default_rng(7).normal(0, z, (400_000, k, n))
    for sign, moved in ((1, noise + np.eye(1, n)[None] * 1.0), (-1, noise)):
        # by symmetry of the steps it may always be the first one
        ratio = np.exp((moved - 0.5) / z**2).mean(axis=2)
        loss = sign * np.log(ratio).sum(axis=1)
        value = np.maximum(-np.expm1(epsilon - loss), 0.0)
        mean, error = float(value.mean()), float(value.std()) / math.sqrt(value.size)
        assert mean <= curve.delta(epsilon).upper + 4.5 * error
        if sign == 1:
            assert abs(mean - curve.delta(epsilon).lower) <= 4.5 * error + 1e-5


# z, T, k, δ, lower, upper: what gaussian_allocation_epsilon_range of PLD_accounting 2.0 says with
# epsilon_accuracy = 0.02 (Feldman and Shenfeld 2026).
PEERS = [
    (3.0, 10, 1, 1e-5, 0.36978783980322916, 0.3795395328056032),
    (2.0, 100, 1, 1e-5, 0.1693066074954241, 0.17794838700141352),
    (1.0, 100, 1, 1e-5, 0.617226889419942, 0.6279225196500514),
    (2.0, 100, 5, 1e-5, 0.9951689583486699, 1.0072749828875587),
]


@pytest.mark.parametrize(("z", "steps", "times", "delta", "low", "high"), PEERS)
def test_within_what_another_library_says(
    z: float, steps: int, times: int, delta: float, low: float, high: float
) -> None:
    parts = [Repeated(Allocated(z, n), count) for n, count in block_sizes(times, steps)]
    own = privacy_curve(Composed(*parts)).epsilon(delta)
    assert low <= own.lower
    assert own.upper <= high
    assert own.upper - own.lower <= 4e-3


def test_more_steps_never_cost_more_and_one_is_gaussian() -> None:
    told = [privacy_curve(Allocated(1.0, n)).epsilon(1e-6) for n in (1, 2, 3, 10, 33, 100)]
    assert all(before.upper > after.upper for before, after in pairwise(told))
    assert flatten(Allocated(2.0, 1)) == ((Gaussian(2.0), 1),)
    coin = privacy_curve(Sampled(Allocated(1.0, 10), 0.1)).epsilon(1e-6)
    assert coin.upper < privacy_curve(Allocated(1.0, 10)).epsilon(1e-6).lower


def test_it_goes_through_json_and_is_refused_past_its_range() -> None:
    step = Repeated(Allocated(2.0, 30), 4)
    assert from_json(to_json(step)) == step
    assert block_sizes(4, 100) == ((25, 4),)
    with pytest.raises(RangeError, match="use more noise"):
        privacy_curve(Allocated(0.01, 10)).epsilon(1e-5)
    with pytest.raises(RangeError, match="steps = 20000000"):
        Allocated(1.0, 20_000_000)
