"""A coin before a composition, from both sides: against closed forms and exact quadrature."""

import itertools
import math

import mpmath as mp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import integrate

from apiece._types import Floats
from apiece.accounting import Bounds, privacy_curve
from apiece.accounting import exact as closed
from apiece.accounting.exact import OneStep
from apiece.accounting.lattice.pairs import GaussianPair
from apiece.accounting.lattice.profile import Composition, build_run_pair
from apiece.mechanisms import Composed, Finite, Gaussian, Laplace, Mechanism, Repeated, Sampled

RUN = Repeated(Sampled(Gaussian(2.0), 0.05), 300)
DELTAS = np.array([1e-3, 1e-6, 1e-10, 1e-15])


def gaussian_runs(z: float, steps: int, probability: float, times: int) -> Composition:
    """Runs of plain Gaussian steps, composed step by step and not by their closed form."""
    pair = build_run_pair(((GaussianPair(z * math.sqrt(steps)), steps),), probability)
    return Composition(((pair, times),))


@settings(max_examples=5, derandomize=True, deadline=None)
@given(st.floats(0.5, 10.0), st.integers(2, 60), st.floats(-4.0, -0.02))
def test_one_coin_before_gaussian_steps(z: float, steps: int, log_probability: float) -> None:
    """Several Gaussian steps are one, and one coin before one step has a closed form."""
    probability = 10**log_probability
    exact = OneStep(z, probability).epsilon(DELTAS)
    lower, upper = gaussian_runs(z, steps, probability, 1).epsilon(DELTAS)
    assert (lower <= exact.upper * (1 + 1e-11)).all()
    assert (exact.lower <= upper * (1 + 1e-11)).all()
    if probability >= 0.01:  # bounds on a small ε are wider apart
        assert (upper - lower <= 1e-2 * upper)[upper >= 0.3].all()


def two_runs(z: float, q: float, epsilon: float, *, add: bool) -> float:
    """δ(ε) of two coins, each before Gaussian steps that are one with multiplier z."""
    form = closed.sampled_add if add else closed.sampled_remove

    def rest(at: Floats) -> Bounds:
        return form(lambda e: closed.gaussian(z, e), q, at)

    def integrand(x: float) -> float:
        loss = math.log1p(q * math.expm1((2 * x - 1) / (2 * z * z)))
        density = math.exp(-0.5 * (x / z) ** 2 + (0.0 if add else loss))
        left = rest(np.array([epsilon + loss if add else epsilon - loss]))
        return density * float(left.upper[0]) / (z * math.sqrt(2 * math.pi))

    points = np.linspace(-16 * z, 16 * z + 1, 50)
    return sum(
        integrate.quad(integrand, a, b, epsabs=0, epsrel=1e-9)[0]
        for a, b in itertools.pairwise(points)
    )


@pytest.mark.parametrize(
    ("z", "probability", "epsilon"), [(1.0, 0.1, 2.0), (2.0, 0.5, 1.5), (0.7, 0.01, 1.0)]
)
def test_two_coins_before_gaussian_steps(z: float, probability: float, epsilon: float) -> None:
    exact = max(two_runs(z, probability, epsilon, add=add) for add in (False, True))
    lower, upper = gaussian_runs(z, 8, probability, 2).delta(np.array([epsilon]))
    assert lower <= exact * (1 + 1e-8)
    assert exact <= upper * (1 + 1e-8)
    assert upper - lower < 0.02 * upper


def test_one_coin_before_sampled_steps_is_the_amplification_formula() -> None:
    """The remove direction, the larger here: δ_π(ε) = π·δ(log(1 + (e^ε − 1)/π))."""
    inner, outer = privacy_curve(RUN), privacy_curve(Sampled(RUN, 0.3))
    for epsilon in (0.5, 1.0, 2.0):
        level = math.log1p(math.expm1(epsilon) / 0.3)
        within, found = inner.delta(level), outer.delta(epsilon)
        assert found.upper >= 0.3 * within.lower
        assert found.lower <= 0.3 * within.upper
        assert found.upper == pytest.approx(0.3 * within.upper, rel=1e-2)
        assert found.lower == pytest.approx(0.3 * within.lower, rel=1e-2)


def test_more_chances_cost_more_and_less_than_no_coin() -> None:
    spent = [privacy_curve(Composed(*[Sampled(RUN, p)] * 2)).epsilon(1e-6) for p in (0.1, 0.5, 0.9)]
    assert [s.upper for s in spent] == sorted(s.upper for s in spent)
    assert spent[-1].upper < privacy_curve(Repeated(RUN, 2)).epsilon(1e-6).lower
    twice = privacy_curve(Composed(Sampled(RUN, 0.5), Gaussian(3.0))).epsilon(1e-6)
    assert twice.lower > privacy_curve(Sampled(RUN, 0.5)).epsilon(1e-6).upper


def test_a_coin_before_runs_that_have_coins_themselves() -> None:
    inner = Composed(Sampled(Repeated(Sampled(Gaussian(1.0), 0.1), 3), 0.5), Gaussian(4.0))
    lower, upper = privacy_curve(Sampled(inner, 0.3)).epsilon(1e-6)
    whole = privacy_curve(inner)
    assert 0 < lower <= upper <= 1.005 * lower
    level = math.log1p(math.expm1(upper) / 0.3)
    assert 0.3 * whole.delta(level).lower <= 1e-6 * (1 + 1e-9)


def test_two_rounds_of_laplace_reach_their_pure_bound() -> None:
    """Losses are bounded by log(1 + .4(e − 1)) a round, and the bound is an atom of P."""
    curve = privacy_curve(Repeated(Sampled(Repeated(Laplace(2.0), 2), 0.4), 2))
    pure = 2 * math.log1p(0.4 * math.expm1(1.0))
    lower, upper = curve.epsilon(1e-12)
    assert lower <= pure * (1 + 1e-9)
    assert pure * (1 - 1e-6) <= upper <= pure * (1 + 1e-3)


def test_past_the_range_the_run_s_own_bound_is_amplified() -> None:
    lower, upper = privacy_curve(Sampled(RUN, 0.3)).epsilon(1e-90)
    inner = privacy_curve(RUN).epsilon(1e-90 / 0.3).upper
    assert lower <= upper
    assert upper == pytest.approx(math.log1p(0.3 * math.expm1(inner)), rel=1e-9)


def levels(noise: float, *coins: tuple[float, int]) -> Repeated:
    """Coins and repetitions around one Gaussian step, the innermost first."""
    run: Mechanism = Gaussian(noise)
    for probability, times in coins:
        run = Repeated(Sampled(run, probability), times)
    assert isinstance(run, Repeated)
    return run


@pytest.mark.parametrize(
    "mechanism",
    [
        levels(1.0, (0.1, 10), (0.1, 20)),
        levels(1.0, (0.1, 5), (0.3, 5), (0.2, 5)),
        Composed(*[levels(1 + 0.2 * i, (0.1, 10), (0.1 + 0.05 * i, 5)) for i in range(6)]),
    ],
    ids=["two levels", "three levels", "six kinds"],
)
def test_advantage_and_epsilon_of_several_levels_are_close(mechanism: Mechanism) -> None:
    """The lattice of what is composed is finer than the atoms of a run behind a coin."""
    curve = privacy_curve(mechanism)
    lower, upper = curve.advantage()
    assert upper - lower <= 5e-3 * upper
    lower, upper = curve.epsilon(1e-5)
    assert upper - lower <= 2e-3 * upper


def beside(pair: tuple[list[float], list[float]], z: float, coin: float, epsilon: float) -> float:
    """δ(ε) of one coin before a finite step and a Gaussian one, the larger direction; 40 digits."""

    def normal(at: mp.mpf) -> mp.mpf:
        return mp.ncdf(1 / (2 * z) - at * z) - mp.exp(at) * mp.ncdf(-1 / (2 * z) - at * z)

    def inner(at: mp.mpf, first: list[float], second: list[float]) -> mp.mpf:
        both = [(a, b) for a, b in zip(first, second, strict=True) if a > 0 and b > 0]
        alone = mp.fsum(a for a, b in zip(first, second, strict=True) if b == 0)
        return alone + mp.fsum(a * normal(at - mp.log(mp.mpf(a) / b)) for a, b in both)

    with mp.workdps(40):
        t, q = mp.exp(mp.mpf(epsilon)), mp.mpf(coin)
        remove = q * inner(mp.log(1 + (t - 1) / q), *pair)
        share = 1 - (1 - q) * t
        add = share * inner(mp.log(q * t / share), *pair[::-1]) if share > 0 else mp.mpf(0)
        return float(max(remove, add))


ONE_SIDED = [
    ([0.999, 0.001], [1.0, 0.0]),
    ([1.0, 0.0], [0.999, 0.001]),
    ([1.0, 0.0], [0.5, 0.5]),
    ([0.9, 0.1, 0.0], [0.8, 0.0, 0.2]),
    ([0.999, 0.0005, 0.0005], [0.9995, 0.0, 0.0005]),
]


@pytest.mark.parametrize("pair", ONE_SIDED)
@pytest.mark.parametrize(("z", "coin"), [(1000.0, 1e-3), (1000.0, 0.5), (2.0, 0.1), (0.7, 0.99)])
def test_a_coin_before_what_only_one_world_shows(
    pair: tuple[list[float], list[float]], z: float, coin: float
) -> None:
    """What only Q shows is no secret told behind a coin: advantage of the order of the coin."""
    curve = privacy_curve(Sampled(Composed(Finite(*pair), Gaussian(z)), coin))
    for epsilon in (0.0, 1e-4, 0.05, 0.5, 3.0):
        lower, upper = curve.delta(epsilon)
        exact = beside(pair, z, coin, epsilon)
        assert lower <= exact * (1 + 1e-9)
        assert exact <= upper * (1 + 1e-9) + 1e-20
        assert upper - lower <= 0.02 * exact + 1e-4  # ε to .01, as is aimed at
    told = coin * sum(a for a, b in zip(*pair, strict=True) if b == 0)
    for delta in (0.3, 1e-2, 1e-4):
        if delta > told * 1.01:
            found = curve.epsilon(delta)
            assert beside(pair, z, coin, float(found.upper)) <= delta * (1 + 1e-9)
            if found.lower > 0:
                assert beside(pair, z, coin, float(found.lower)) >= delta * (1 - 1e-9)


@pytest.mark.parametrize("pair", ONE_SIDED[1:3])
def test_several_coins_before_what_only_one_world_shows(
    pair: tuple[list[float], list[float]],
) -> None:
    """With hardly any other loss, as without: against the enumeration."""
    run = Repeated(Finite(*pair), 3)
    exact = privacy_curve(Repeated(Sampled(run, 0.2), 2))
    found = privacy_curve(Repeated(Sampled(Composed(run, Gaussian(1e5)), 0.2), 2))
    for epsilon in (0.0, 0.01, 0.1):
        lower, upper = found.delta(epsilon)
        assert lower <= exact.delta(epsilon).upper + 1e-6
        assert exact.delta(epsilon).lower <= upper
        assert upper - lower <= 0.02 * upper + 2e-3
