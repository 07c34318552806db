"""The numerical accountant against closed forms, quadrature and published values."""

import itertools
import math

import numpy as np
import numpy.typing as npt
import pytest
from scipy import integrate

from apiece.accounting import Bounds
from apiece.accounting import exact as closed
from apiece.accounting.bounds import DEFAULT, Precision
from apiece.accounting.choose import choose
from apiece.accounting.exact import GaussianProfile, OneStep
from apiece.accounting.lattice.pairs import GaussianPair, Pair
from apiece.accounting.lattice.profile import Composition
from apiece.errors import InputError, RangeError
from apiece.mechanisms import Gaussian, Laplace, Repeated, Sampled
from refusals import refused

DELTAS = np.array([1e-3, 1e-5, 1e-8, 1e-12, 1e-15])
RANDOM = np.random.default_rng(20230)
SETTINGS = [
    (10 ** RANDOM.uniform(-0.5, 2), 10 ** RANDOM.uniform(-6, 0), 10 ** RANDOM.uniform(-15, -3))
    for _ in range(60)
]


def numerical(noise_multiplier: float, probability: float, times: int) -> Composition:
    """The lattice, also where a closed form exists."""
    leaves: tuple[tuple[Pair, int], ...] = ((GaussianPair(noise_multiplier, probability), times),)
    return Composition(leaves, DEFAULT)


@pytest.mark.parametrize(
    ("noise_multiplier", "times"),
    [(10.0, 1000), (30.0, 100_000), (0.5, 3), (100.0, 10), (1000.0, 10**6), (2.0, 10**6)],
)
def test_brackets_gaussians_exactly(noise_multiplier: float, times: int) -> None:
    """Plain Gaussians, forced through the lattice, against their closed form."""
    exact = GaussianProfile(noise_multiplier / math.sqrt(times)).epsilon(DELTAS)
    lower, upper = numerical(noise_multiplier, 1.0, times).epsilon(DELTAS)
    assert (lower <= exact.upper).all()
    assert (exact.lower <= upper).all()
    assert (upper - lower <= 1e-3 * np.maximum(upper, 0.01)).all()


@pytest.mark.parametrize(("noise_multiplier", "probability", "delta"), SETTINGS)
def test_brackets_one_sampled_step(
    noise_multiplier: float, probability: float, delta: float
) -> None:
    """One sampled step, forced through the lattice, against its closed form."""
    exact = OneStep(noise_multiplier, probability).epsilon(np.array([delta]))
    lower, upper = numerical(noise_multiplier, probability, 1).epsilon(np.array([delta]))
    assert lower <= exact.upper * (1 + 1e-12)
    assert exact.lower <= upper * (1 + 1e-12)


def two_steps(z: float, q: float, epsilon: float, *, remove: bool) -> float:
    """δ(ε) of two sampled steps, by quadrature over the first of the closed form of the second."""

    def inner(log_ratio: npt.NDArray[np.float64]) -> Bounds:
        return closed.gaussian(z, log_ratio)

    def integrand(x: float) -> float:
        at_q = math.exp(-0.5 * (x / z) ** 2)
        at_p = (1 - q) * at_q + q * math.exp(-0.5 * ((x - 1) / z) ** 2)
        loss = math.log(at_p / at_q)
        second = np.array([epsilon - loss if remove else epsilon + loss])
        step = closed.sampled_remove if remove else closed.sampled_add
        density = at_p if remove else at_q
        return density * float(step(inner, q, second).upper[0]) / (z * math.sqrt(2 * math.pi))

    points = np.linspace(-18 * z, 18 * z + 1, 60)
    return sum(
        integrate.quad(integrand, a, b, epsabs=0, epsrel=1e-10)[0]
        for a, b in itertools.pairwise(points)
    )


@pytest.mark.parametrize(
    ("noise_multiplier", "probability", "epsilon"),
    [(1.0, 0.1, 2.0), (0.7, 0.01, 1.0), (2.0, 0.5, 1.5), (1.0, 0.05, 1.0)],
)
def test_brackets_two_steps(noise_multiplier: float, probability: float, epsilon: float) -> None:
    exact = max(
        two_steps(noise_multiplier, probability, epsilon, remove=remove) for remove in (False, True)
    )
    lower, upper = numerical(noise_multiplier, probability, 2).delta(np.array([epsilon]))
    assert lower <= exact * (1 + 1e-8)
    assert exact <= upper * (1 + 1e-8)
    assert upper - lower < 0.02 * upper


def test_both_ends_follow_a_random_walk_through_the_range() -> None:
    """Wide parameters: never crossed, close wherever ε ≥ 0.01."""
    random = np.random.default_rng(5)
    for _ in range(25):
        z, q = 10 ** random.uniform(-0.3, 2), 10 ** random.uniform(-4, 0)
        times, delta = int(10 ** random.uniform(0.4, 4.5)), 10 ** random.uniform(-12, -3)
        lower, upper = numerical(z, q, times).epsilon(np.array([delta]))
        assert lower <= upper
        assert upper - lower <= 1e-3 * upper or upper < 0.01


def test_agrees_with_published_value() -> None:
    """σ=1.5, q=.04, T=2250, δ=1e-5: PRV ε = 6.77740 (its upper end)."""
    curve = choose(Repeated(Sampled(Gaussian(1.5), 0.04), 2250))
    lower, upper = curve.epsilon(np.array([1e-5]))
    assert upper[0] < 6.77740
    assert lower[0] == pytest.approx(6.7774, rel=3e-3)


def test_answers_do_not_depend_on_the_order_of_questions() -> None:
    mechanism = Repeated(Sampled(Gaussian(1.0), 0.01), 500)
    one, other = choose(mechanism), choose(mechanism)
    one.epsilon(DELTAS)
    alone = other.epsilon(DELTAS[2:3])
    assert one.epsilon(DELTAS).upper[2] == alone.upper[0]


def test_delta_and_epsilon_invert_each_other() -> None:
    curve = choose(Repeated(Sampled(Gaussian(1.0), 0.01), 500))
    upper = curve.epsilon(DELTAS).upper
    assert (curve.delta(upper).lower <= DELTAS * (1 + 1e-9)).all()
    assert (curve.delta(upper).upper >= DELTAS * 0.99).all()


def test_a_false_bound_would_be_seen() -> None:
    """Negative control: shifting a bound by 0.2 % puts it on the wrong side of the truth."""
    exact = GaussianProfile(10.0 / math.sqrt(1000)).epsilon(DELTAS)
    lower, upper = numerical(10.0, 1.0, 1000).epsilon(DELTAS)
    assert (upper * 0.998 < exact.lower).all()
    assert (lower * 1.002 > exact.upper).all()


def test_past_the_numerical_range() -> None:
    with refused(RangeError, "noise_multiplier", 0.01):
        numerical(0.01, 0.5, 10).epsilon(DELTAS)


def test_grid_is_checked() -> None:
    with refused(InputError, "gap"):
        Precision(gap=float("nan"))
    with refused(InputError, "points"):
        Precision(points=10)


def test_laplace_pure_bound() -> None:
    """ε(δ) of k Laplace steps never exceeds the pure k/b, and nears it as δ vanishes."""
    curve = choose(Repeated(Laplace(2.0), 4))
    lower, upper = curve.epsilon(DELTAS)
    assert (upper <= 2.0 * (1 + 1e-4)).all()
    assert (lower <= upper).all()
