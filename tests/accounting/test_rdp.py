"""Rényi accounting against high-precision quadrature, closed sums and published values."""

import math
from functools import partial

import mpmath as mp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from apiece.accounting import epsilons, privacy_curve
from apiece.accounting.renyi import divergences as renyi
from apiece.accounting.renyi import profile as rdp
from apiece.errors import InputError, UnsupportedError
from apiece.mechanisms import Composed, Gaussian, Laplace, Mechanism, Repeated, Sampled

precise = settings(max_examples=25, derandomize=True, deadline=None)
rdp_epsilons = partial(epsilons, method="rdp")


def moment_sum(z: float, q: float, order: int) -> mp.mpf:
    """Integer orders in closed form: Mironov, Talwar, Zhang 2019, Eq. 4."""
    z, q = mp.mpf(z), mp.mpf(q)
    terms = (
        mp.binomial(order, k)
        * (1 - q) ** (order - k)
        * q**k
        * mp.exp(mp.mpf(k * (k - 1)) / (2 * z * z))
        for k in range(order + 1)
    )
    return mp.log(mp.fsum(terms)) / (order - 1)


def by_quadrature(z: float, q: float, order: float, *, add: bool) -> mp.mpf:
    """The definition, in either direction."""
    z, q, order = mp.mpf(z), mp.mpf(q), mp.mpf(order)

    def integrand(x: mp.mpf) -> mp.mpf:
        ratio = 1 - q + q * mp.exp((2 * x - 1) / (2 * z * z))
        return mp.npdf(x, 0, z) * ratio ** ((1 - order) if add else order)

    points = sorted({k * z for k in (-30, -10, -3, 0, 3, 10, 30)})
    points += sorted({order + k * z for k in (-10, 0, 10)} - set(points))
    return mp.log(mp.quad(integrand, sorted(points))) / (order - 1)


@precise
@given(st.floats(-0.5, 2.0), st.floats(-6.0, -0.001), st.integers(2, 100))
def test_integer_orders(log_z: float, log_q: float, order: int) -> None:
    z, q = 10**log_z, 10**log_q
    with mp.workdps(50):
        exact = moment_sum(z, q, order)
        ratio = float(renyi.sampled_gaussian(z, q, order) / exact)
    assert 1 <= ratio <= 1 + 2e-11


@settings(max_examples=10, derandomize=True, deadline=None)
@given(st.floats(-0.3, 1.0), st.floats(-3.0, -0.01), st.floats(-1.0, 1.3))
def test_fractional_orders_and_both_directions(log_z: float, log_q: float, log_a: float) -> None:
    z, q, order = 10**log_z, 10**log_q, 1 + 10**log_a
    with mp.workdps(40):
        remove, add = (by_quadrature(z, q, order, add=a) for a in (False, True))
        ratio = float(renyi.sampled_gaussian(z, q, order) / remove)
    assert add <= remove
    assert 1 <= ratio <= 1 + 2e-11


@pytest.mark.parametrize("b", [0.05, 0.5, 1.0, 10.0, 1000.0])
@pytest.mark.parametrize("order", [1.01, 1.5, 2.0, 17.3, 400.0])
def test_laplace(b: float, order: float) -> None:
    with mp.workdps(40):
        a, s = mp.mpf(order), mp.mpf(b)

        def integrand(x: mp.mpf) -> mp.mpf:
            return mp.exp(-a * abs(x - 1) / s - (1 - a) * abs(x) / s) / (2 * s)

        moment = mp.quad(integrand, [-mp.inf, 0, 0.5, 1, mp.inf])
        exact = mp.log(moment) / (a - 1)
    value = float(renyi.laplace(b, order))
    assert float(exact) * (1 - 1e-14) <= value
    assert value <= float(exact) * (1 + 1e-9) + 3e-15 / (order - 1)


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


@settings(max_examples=12, derandomize=True, deadline=None)
@given(st.floats(-1.0, 2.0), st.floats(-5.0, -0.01), st.floats(-3.0, 1.7))
def test_sampled_laplace(log_b: float, log_q: float, log_a: float) -> None:
    """Both directions by the definition: two atoms and a density between them."""
    b, q, order = 10**log_b, 10**log_q, 1 + 10**log_a
    with mp.workdps(40):

        def moment(power: float) -> mp.mpf:
            def ratio(rho: mp.mpf) -> mp.mpf:
                return (1 + q * mp.expm1(rho)) ** mp.mpf(power)

            end = 1 / mp.mpf(b)
            between = mp.quad(
                lambda x: ratio((2 * x - 1) * end) * mp.exp(-x * end) * end / 2,
                mp.linspace(0, 1, 4 + int(power * end if power > 0 else -power * end) // 2),
            )
            return ratio(-end) / 2 + ratio(end) * mp.exp(-end) / 2 + between

        exact = max(mp.log(moment(p)) / (mp.mpf(order) - 1) for p in (order, 1 - order))
        found = float(renyi.sampled_laplace(b, q, order) / exact)
    assert 1 <= found <= 1 + 2e-11


def test_sampled_laplace_where_it_takes_too_long() -> None:
    """With hardly any noise sampling is ignored, which is an upper bound."""
    assert renyi.sampled_laplace(1e-4, 0.5, 3.0) == renyi.laplace(1e-4, 3.0)


@pytest.mark.parametrize(
    "mechanism",
    [
        Sampled(Repeated(Laplace(2.0), 2), 0.1),
        Sampled(Repeated(Sampled(Gaussian(1), 0.1), 2), 0.5),
    ],
)
def test_what_it_cannot_handle_is_named(mechanism: Mechanism) -> None:
    with pytest.raises(UnsupportedError, match="Sampled"):
        privacy_curve(mechanism, method="rdp")


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
