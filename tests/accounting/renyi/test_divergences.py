"""Rényi divergences of single steps, against high-precision quadrature and closed sums."""

import mpmath as mp
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from apiece.accounting import renyi as renyi

precise = settings(max_examples=25, derandomize=True, deadline=None)


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
@given(st.floats(-0.3, 1.0), st.floats(-6.0, -0.01), st.floats(-1.0, 1.3))
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
