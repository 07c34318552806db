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
from apiece.mechanisms import Allocated, Composed, Gaussian, Repeated, Sampled, from_json
from apiece.mechanisms.algebra import flatten, to_json
from apiece.mechanisms.allocated import block_sizes
from refusals import refused

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
        assert upper - lower <= 2e-3 * upper


@pytest.mark.parametrize(("z", "n"), CASES[:3])
def test_planted_faults_leave_the_quadrature_out(
    z: float, n: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    exact = np.array([delta_of(z, n, epsilon) for epsilon in (0.1, 0.5, 1.0)])
    found: list[str] = []
    real = allocation.build_ratio_law.__wrapped__
    faults = {
        "contracted": lambda step, upper: real(step, upper=False),
        "one step too many": lambda step, upper: real(
            Allocated(step.noise_multiplier, step.steps + 1), upper=upper
        ),
        "a tail dropped": lambda step, upper: _without_tail(real(step, upper=upper)),
    }
    for name, fault in faults.items():
        monkeypatch.setattr(allocation, "build_ratio_law", fault)
        told = allocation.AllocatedProfile(Allocated(z, n)).delta(np.array([0.1, 0.5, 1.0]))
        found += [name] * bool((told.upper < exact - 1e-9).any())
    assert found == list(faults)


@pytest.mark.parametrize(("z", "epsilon"), [(0.8, 8), (0.8, 6), (0.5, 8), (0.5, 12), (1.0, 6)])
def test_bounds_hold_rare_ratios_on_both_sides(z: float, epsilon: float) -> None:
    """Two steps at large ε, by positive terms alone: small ratios must not fall to 0 together."""
    x, width = np.linspace(-14, 14, 1_120_001, retstep=True)
    ratio, weight = np.exp(x / z - 0.5 / z**2), np.exp(-(x**2) / 2) * width / math.sqrt(2 * math.pi)
    strike = 2 * math.exp(epsilon) - ratio
    at = np.log(np.maximum(strike, 1e-300)) * z
    call = np.where(strike > 0, ndtr(0.5 / z - at) - strike * ndtr(-0.5 / z - at), 1 - strike)
    remove = float(weight @ call) / 2
    add = math.exp(epsilon) * put_of_mean(z, 2, math.exp(-epsilon))
    assert remove > 100 * add
    lower, upper = privacy_curve(Allocated(z, 2)).delta(epsilon)
    assert lower - 1e-8 * remove <= remove <= upper + 1e-8 * remove
    assert upper - lower <= 1e-3 * remove


# Upper bounds on ε at δ = 1e-3, 1e-6, 1e-10 and 1e-14 by another grid, of relative cells.
RELATIVE_CELLS = {
    (0.8, 2): (3.47009, 5.62112, 7.68623, math.inf),
    (0.8, 7): (2.30109, 4.37762, 6.43465, 8.07928),
    (0.8, 16): (1.60907, 3.56704, 5.60986, 7.25263),
    (0.8, 100): (0.550126, 1.87541, 3.7969, 5.42432),
    (2.0, 3): (0.754382, 1.38866, 2.09641, 2.71691),
    (2.0, 100): (0.0915567, 0.20518, 0.306498, 0.401082),
    (2.0, 1000): (0.0199405, 0.0593965, 0.091767, 0.116318),
    (10.0, 2): (0.12956, 0.274473, 0.401987, 0.500502),
    (10.0, 100): (0.00919682, 0.034053, 0.0536748, 0.0683426),
}


@pytest.mark.parametrize(("z", "n"), RELATIVE_CELLS)
def test_no_looser_than_another_grid(z: float, n: int) -> None:
    own = privacy_curve(Allocated(z, n)).epsilon(np.array([1e-3, 1e-6, 1e-10, 1e-14]))
    other = np.array(RELATIVE_CELLS[z, n])
    assert (own.lower <= other * (1 + 1e-5)).all()
    assert (own.upper <= other * (1 + 1e-3)).all()
    assert (own.upper - own.lower <= 1e-3).all()


def test_cells_are_where_they_say_they_start() -> None:
    """Numbers of ratios rise with them, and lie between the starts of their cell and the next."""
    for grid in (
        allocation.RatioCells(1.1, 0.1, 70, 8),
        allocation.RatioCells(2.0, 0.5, 43, 8),
        allocation.RatioCells(1.0, 0.5, 4, 2),
    ):
        ratio = np.sort(np.append(np.geomspace(1e-9, 1e6, 20_000), grid.starts(-300, 300)[1:]))
        ratio = ratio[ratio > 0]
        y = ratio / grid.unit
        number = grid.numbers(y.copy(), np.empty(y.size))
        assert (np.diff(number) >= 0).all()
        starts = grid.starts(int(number[0]), int(number[-1]) + 1)
        assert (np.diff(starts) > 0).all()
        rounding = 1e-14 * np.maximum(ratio, grid.near)
        assert (starts[number - number[0]] <= ratio + rounding).all()
        assert (ratio <= starts[number - number[0] + 1] + rounding).all()


@pytest.mark.parametrize("upper", [False, True])
def test_halving_keeps_the_mean_and_moves_hinges_one_way(upper: bool) -> None:
    for size in range(1, 9):
        rng = np.random.default_rng(size)
        ratio, mass = np.sort(rng.exponential(size=size)), rng.random(size)
        atoms = allocation.WeightedRatios(ratio, mass)
        halved, weight = allocation._halve_atoms(atoms, upper)
        assert halved.size == size // 2 + (upper or size % 2)
        assert math.isclose(weight.sum(), mass.sum())
        assert math.isclose(weight @ halved, mass @ ratio)
        for strike in np.linspace(0, 3, 31):
            own, was = weight @ np.maximum(halved - strike, 0), mass @ np.maximum(ratio - strike, 0)
            assert own >= was - 1e-12 if upper else own <= was + 1e-12


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
    assert own.upper - own.lower <= 1e-3


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
        allocation.build_ratio_law(Allocated(0.01, 10), upper=True)
    with pytest.raises(RangeError, match="at most 1e\\+12"):
        allocation.build_ratio_law(Allocated(1e15, 3), upper=True)
    # There a plain Gaussian's Rényi divergences stand for it.
    plain = privacy_curve(Gaussian(0.01), method="rdp").epsilon(1e-5).upper
    assert privacy_curve(Allocated(0.01, 10)).epsilon(1e-5).upper == plain
    with refused(RangeError, "steps", 20000000):
        Allocated(1.0, 20_000_000)
