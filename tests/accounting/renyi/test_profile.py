"""Rényi accounting: conversion, composition, published values, and what is refused."""

import math
from functools import partial

import numpy as np
import pytest

from apiece.accounting import epsilons, privacy_curve
from apiece.accounting import renyi as rdp
from apiece.errors import InputError
from apiece.mechanisms import Composed, Gaussian, Laplace, Mechanism, Repeated, Sampled

rdp_epsilons = partial(epsilons, method="rdp")


def test_arrays_are_their_entries() -> None:
    rng = np.random.default_rng(0)
    z, q, t = rng.uniform(0.4, 5, 30), rng.uniform(0, 1, 30), rng.integers(1, 3000, 30)
    together = rdp_epsilons(noise_multiplier=z, sampling_probability=q, steps=t, delta=1e-6)
    apart = [
        rdp_epsilons(noise_multiplier=a, sampling_probability=b, steps=c, delta=1e-6).upper
        for a, b, c in zip(z, q, t, strict=True)
    ]
    np.testing.assert_allclose(together.upper, apart, rtol=1e-12)
    assert (together.lower == 0).all()


def test_reference_of_the_fast_accountants() -> None:
    """σ=1.5, q=.04, T=2250, δ=1e-5: RDP ε = 7.32911 at dp-accounting's orders."""
    arguments = {"noise_multiplier": 1.5, "sampling_probability": 0.04, "steps": 2250}
    value = float(rdp_epsilons(delta=1e-5, **arguments).upper)
    assert 7.3280 < value <= 7.32911
    curve = privacy_curve(Repeated(Sampled(Gaussian(1.5), 0.04), 2250), method="rdp")
    assert curve.epsilon(1e-5).upper == pytest.approx(value, rel=2e-4)


@pytest.mark.parametrize(
    ("records", "batch", "steps", "multipliers"),
    [
        (73257, 1024, 2146, (2.747, 1.589, 1.214)),  # SVHN
        (50000, 1024, 1465, (3.294, 1.868, 1.399)),  # CIFAR-10
        (60000, 512, 9375, (3.425, 1.920, 1.425)),  # MNIST, at its stated settings
    ],
)
def test_published_noise_of_scale(
    records: int, batch: int, steps: int, multipliers: tuple[float, ...]
) -> None:
    """Boenisch et al. 2023 Table 6: noise multipliers for ε = 1, 2, 3 at δ = 1e-5."""
    spent = rdp_epsilons(
        noise_multiplier=multipliers, sampling_probability=batch / records, steps=steps, delta=1e-5
    ).upper
    np.testing.assert_allclose(spent, [1, 2, 3], rtol=5e-3)


def test_published_rates_of_sample() -> None:
    """Boenisch et al. 2023 Table 6: CIFAR-10, 54/37/9 %, z = 2.3."""
    spent = rdp_epsilons(
        noise_multiplier=2.3,
        sampling_probability=[0.0138, 0.0260, 0.0374],
        steps=1465,
        delta=1e-5,
    ).upper
    np.testing.assert_allclose(spent, [1, 2, 3], rtol=5e-3)


@pytest.mark.parametrize("delta", [1e-3, 1e-9, 1e-15])
@pytest.mark.parametrize("z", [0.3, 1.0, 30.0])
def test_upper_bound_is_above_the_exact_gaussian(z: float, delta: float) -> None:
    exact = privacy_curve(Gaussian(z), method="gdp")
    curve = privacy_curve(Gaussian(z), method="rdp")
    assert exact.epsilon(delta).upper <= curve.epsilon(delta).upper
    grid = np.linspace(0, 3 / z, 50)
    assert (exact.delta(grid).upper <= curve.delta(grid).upper).all()


def test_conversion_is_consistent_both_ways() -> None:
    curve = privacy_curve(Repeated(Sampled(Gaussian(1.0), 0.02), 1465), method="rdp")
    deltas = np.array([1e-2, 1e-5, 1e-10])
    epsilon = curve.epsilon(deltas).upper
    np.testing.assert_allclose(curve.delta(epsilon).upper, deltas, rtol=1e-9)


@pytest.mark.parametrize("z", [0.3, 0.7, 2.0])
@pytest.mark.parametrize("q", [1e-3, 0.3, 1.0])
def test_epsilon_at_a_delta_is_at_most_where_it_was_read(z: float, q: float) -> None:
    """The best order of a total variation is not that of ε: ε was 3.0 where δ(2.0) said 2.0."""
    one = Gaussian(z) if q == 1 else Sampled(Gaussian(z), q)
    curve = privacy_curve(Repeated(one, 3), method="rdp")
    for level in (0.0, 0.5, 2.0, 5.0):
        delta = float(curve.delta(level).upper)
        if delta < 1:
            assert curve.epsilon(delta * (1 + 1e-9)).upper <= level * (1 + 1e-3) + 1e-12


def test_composition_adds_up() -> None:
    step, orders = Sampled(Gaussian(1.1), 0.03), np.array([1.5, 2.0, 9.0])
    mixed = Composed(Repeated(step, 7), Laplace(3.0), Gaussian(4.0))
    parts = 7 * rdp.divergence(step, orders) + rdp.divergence(Laplace(3.0), orders)
    np.testing.assert_allclose(
        rdp.divergence(mixed, orders), parts + rdp.divergence(Gaussian(4.0), orders), rtol=1e-14
    )


def test_the_loose_approximation_is_not_used() -> None:
    """2q²α/σ² is below the truth where its conditions fail; the exact value is far above it."""
    z, q, order = 0.8, 0.1, 20.0
    assert rdp.divergence(Sampled(Gaussian(z), q), order) > 5 * 2 * q * q * order / z**2


@pytest.mark.parametrize(
    "mechanism",
    [
        Sampled(Repeated(Laplace(2.0), 2), 0.1),
        Sampled(Repeated(Sampled(Gaussian(1), 0.1), 2), 0.5),
    ],
)
def test_a_coin_before_a_run_is_bounded(mechanism: Mechanism) -> None:
    inside, bound, exact = (
        privacy_curve(m, method=method).epsilon(1e-3).upper
        for m, method in ((mechanism.mechanism, "rdp"), (mechanism, "rdp"), (mechanism, "pld"))
    )
    assert exact < bound < inside


@pytest.mark.parametrize("orders", [1.0, 0.5, math.nan, math.inf, [2.0, 1.0]])
def test_bad_orders(orders: object) -> None:
    with pytest.raises(InputError, match="orders"):
        rdp.divergence(Gaussian(1.0), orders)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "change",
    [
        {"noise_multiplier": 0.0},
        {"noise_multiplier": math.nan},
        {"sampling_probability": 1.5},
        {"sampling_probability": math.nan},
        {"steps": 1.5},
        {"steps": -1},
        {"steps": math.nan},
        {"delta": 0.0},
        {"delta": 1.0},
        {"delta": math.nan},
    ],
)
def test_bad_input(change: dict[str, float]) -> None:
    good = {"noise_multiplier": 1.0, "sampling_probability": 0.1, "steps": 10, "delta": 1e-5}
    with pytest.raises(InputError, match=next(iter(change))):
        rdp_epsilons(**{**good, **change})


def test_nothing_released_costs_nothing() -> None:
    free = rdp_epsilons(noise_multiplier=1.0, sampling_probability=0.0, steps=[10, 1], delta=1e-5)
    assert (free.upper == 0).all()
    assert privacy_curve(Composed(), method="rdp").epsilon(1e-5).upper == 0
