"""Discrete mechanisms against enumeration: alone, composed, behind coins and beside Gaussians."""

import json
import math

import mpmath as mp
import numpy as np
import pytest
from click.testing import CliRunner

from apiece import privacy_curve
from apiece._types import Floats
from apiece.accounting import exact as closed
from apiece.accounting.choose import choose
from apiece.accounting.lattice.profile import composition
from apiece.cli import group
from apiece.errors import RangeError
from apiece.mechanisms import (
    Composed,
    DiscreteGaussian,
    DiscreteLaplace,
    Finite,
    Gaussian,
    Mechanism,
    Repeated,
    Sampled,
)
from apiece.mechanisms.algebra import flatten, to_dict

World = tuple[Floats, Floats]


def finite(random: np.random.Generator) -> tuple[Mechanism, World]:
    size = int(random.integers(2, 5))
    p, q = random.dirichlet([1] * size), random.dirichlet([1] * size)
    p[0] *= random.random() < 0.7
    q[1] *= random.random() < 0.7
    mechanism = Finite(p / p.sum(), q / q.sum())
    return mechanism, (np.array(mechanism.with_record), np.array(mechanism.without_record))


def discrete_laplace(random: np.random.Generator) -> tuple[Mechanism, World]:
    scale, shift = random.uniform(0.5, 2), int(random.integers(1, 3))
    a = math.exp(-1 / scale)
    x = np.arange(-90, 90 + shift)
    p, q = ((1 - a) / (1 + a) * a ** np.abs(y) for y in (x - shift, x))
    return DiscreteLaplace(scale, shift), (p, q)


def discrete_gaussian(random: np.random.Generator) -> tuple[Mechanism, World]:
    scale, shift = random.uniform(0.5, 3), int(random.integers(1, 3))
    x = np.arange(-60, 60 + shift)
    p, q = (np.exp(-(y**2) / (2 * scale**2)) for y in (x - shift, x))
    return DiscreteGaussian(scale, shift), (p / p.sum(), q / q.sum())


def profile(worlds: list[World], epsilon: float) -> float:
    """The larger of both directions, over all combinations of outcomes."""
    p, q = np.ones(1), np.ones(1)
    for with_record, without in worlds:
        p, q = np.outer(p, with_record).ravel(), np.outer(q, without).ravel()
        keep = (p > 1e-20) | (q > 1e-20)
        p, q = p[keep], q[keep]
    t = math.exp(epsilon)
    return float(max(np.maximum(p - t * q, 0).sum(), np.maximum(q - t * p, 0).sum()))


@pytest.mark.parametrize("seed", range(30))
def test_enumeration(seed: int) -> None:
    random = np.random.default_rng(seed)
    steps, worlds = [], []
    for kind in random.permutation([finite, finite, discrete_laplace, discrete_gaussian])[:2]:
        mechanism, (p, q) = kind(random)
        coin = float(random.choice([1.0, random.random()]))
        steps.append(Repeated(Sampled(mechanism, coin), int(random.integers(1, 3))))
        worlds += [((1 - coin) * q + coin * p, q)] * steps[-1].times
    curve = privacy_curve(Composed(*steps))
    for epsilon in (0.0, 0.1, 0.7, 2.0):
        lower, upper = curve.delta(epsilon)
        exact = profile(worlds, epsilon)
        assert lower - 1e-12 <= exact <= upper + 1e-12
        assert upper - lower <= 1e-6 * exact + 1e-12


LONG = [
    Repeated(DiscreteGaussian(6.0, 3), 9),
    Repeated(DiscreteLaplace(6.6), 52),
    Repeated(Sampled(DiscreteLaplace(4.4, 2), 0.03), 47),
    Repeated(Finite([0.05, 0.5, 0.45, 0.0], [0.0, 0.45, 0.53, 0.02]), 9),
    Repeated(Sampled(Finite([0.1, 0.2, 0.7], [0.2, 0.2, 0.6]), 0.3), 40),
]


@pytest.mark.parametrize("mechanism", LONG, ids=repr)
def test_the_lattice_contains_what_is_enumerated(mechanism: Mechanism) -> None:
    deltas = np.array([0.4, 1e-2, 1e-5, 1e-9])
    exact = choose(mechanism).epsilon(deltas)
    by_lattice = composition(flatten(mechanism)).epsilon(deltas)
    assert (by_lattice.lower <= exact.upper).all()
    assert (by_lattice.upper >= exact.lower).all()
    known = np.isfinite(exact.upper) & (exact.lower > 0.01)
    assert known.any()
    assert (by_lattice.upper[known] <= 1.03 * exact.upper[known]).all()


@pytest.mark.parametrize("seed", range(6))
def test_beside_a_gaussian(seed: int) -> None:
    """P(A) − t·Q(A) of a product is a sum over the outcomes of the discrete part."""
    mechanism, (p, q) = finite(np.random.default_rng(seed))
    curve = privacy_curve(Composed(mechanism, Gaussian(2.0)))
    for epsilon in (0.2, 1.0):
        exact = []
        for here, there in ((p, q), (q, p)):
            only = here[there == 0].sum()
            both = (here > 0) & (there > 0)
            left = epsilon - np.log(here[both] / there[both])
            inner = closed.gaussian(2.0, left).upper
            exact.append(only + float(here[both] @ inner))
        lower, upper = curve.delta(epsilon)
        assert lower * (1 - 1e-9) <= max(exact) <= upper * (1 + 1e-9)
        assert upper - lower <= 0.01 * max(exact)


def test_infinite_losses_have_no_finite_epsilon() -> None:
    curve = privacy_curve(Repeated(Finite([0.9, 0.1], [1.0, 0.0]), 3))
    lower, upper = curve.delta(5.0)
    assert lower == pytest.approx(1 - 0.9**3)
    assert upper == pytest.approx(1 - 0.9**3)
    assert curve.epsilon(0.3).upper == 0.0
    with pytest.raises(RangeError):
        curve.epsilon(0.2)


def test_renyi_is_an_upper_bound_near_the_truth() -> None:
    mechanism = Repeated(Finite.randomized_response(0.1, 3), 50)
    exact = privacy_curve(mechanism).epsilon(1e-5)
    bound = privacy_curve(mechanism, method="rdp").epsilon(1e-5).upper
    assert exact.upper <= bound <= 1.3 * exact.upper
    noisy = privacy_curve(DiscreteGaussian(3.0)).epsilon(1e-5).upper
    assert noisy <= privacy_curve(DiscreteGaussian(3.0), method="rdp").epsilon(1e-5).upper


@pytest.mark.parametrize("kind", [DiscreteGaussian(3.0), DiscreteLaplace(3.0)])
def test_the_continuous_mechanism_does_not_cover_it(kind: Mechanism) -> None:
    law = closed.gaussian if isinstance(kind, DiscreteGaussian) else closed.laplace
    epsilon = np.linspace(0.0, 0.3, 40)
    apart = np.asarray(privacy_curve(kind).delta(epsilon).upper) - law(3.0, epsilon).upper
    assert (apart > 1e-6).any()


def test_from_the_command_line() -> None:
    text = json.dumps([to_dict(Repeated(Finite([0.75, 0.25], [0.25, 0.75]), 4))])
    done = CliRunner().invoke(group, ["account", "-", "--delta", "1e-3", "--json"], input=text)
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)["results"][0]["epsilon"]["upper"]
    assert math.log(3) < found <= 4 * math.log(3)


Two = tuple[float, float]


def binomial(p: Two, q: Two, times: int, epsilon: float) -> mp.mpf:
    """δ(ε) of two outcomes, `times` over, by how often the first one comes; 60 digits."""
    with mp.workdps(60):
        t, total = mp.exp(mp.mpf(epsilon)), [mp.mpf(0)] * 2
        for k in range(times + 1):
            ways, left = mp.binomial(times, k), times - k
            one, other = (ways * mp.mpf(w[0]) ** k * mp.mpf(w[1]) ** left for w in (p, q))
            total[0] += max(one - t * other, 0)
            total[1] += max(other - t * one, 0)
        return max(total)


TRUTH = 1 / (1 + math.exp(-1.0))
FAR: list[tuple[Two, Two, int, float]] = [
    ((TRUTH, 1 - TRUTH), (1 - TRUTH, TRUTH), 800, 1e-5),
    ((1 - 1e-6, 1e-6), (1 - 1e-30, 1e-30), 100, 1e-3),
    ((1 - 1e-6, 1e-6), (1 - 1e-30, 1e-30), 100, 1e-5),
    ((0.5, 0.5), (1e-300, 1.0), 4, 0.9),
    ((0.999, 0.001), (0.001, 0.999), 400, 1e-9),
    ((1 - 1e-200, 1e-200), (1.0, 1e-320), 50, 1e-2),
    ((0.9, 0.1), (1.0, 1e-320), 20, 0.5),
]


@pytest.mark.parametrize(("p", "q", "times", "delta"), FAR)
def test_losses_past_the_range_of_one_world(p: Two, q: Two, times: int, delta: float) -> None:
    """A mass may be too small for a double in one world: the other world's keeps its digits."""
    curve = privacy_curve(Repeated(Finite(p, q), times))
    lower, upper = curve.epsilon(delta)
    slack = 1 + 1e-9
    assert binomial(p, q, times, float(upper)) <= delta * slack
    assert lower == 0 or binomial(p, q, times, float(lower)) * slack >= delta
    assert upper - lower <= 1e-6 * upper
    for epsilon in (0.0, 0.1, float(upper) / 2, 300.0):
        below, above = curve.delta(epsilon)
        exact = binomial(p, q, times, epsilon)
        assert below / slack <= exact <= above * slack + 1e-30


def outcomes(steps: list[tuple[float, list[World]]]) -> World:
    """All outcomes of steps behind coins, each a coin's chance and what is behind it."""
    p, q = np.ones(1), np.ones(1)
    for coin, inside in steps:
        one, other = np.ones(1), np.ones(1)
        for with_record, without in inside:
            one, other = (np.outer(a, b).ravel() for a, b in ((one, with_record), (other, without)))
        one = (1 - coin) * other + coin * one
        p, q = np.outer(p, one).ravel(), np.outer(q, other).ravel()
    return p, q


@pytest.mark.parametrize("seed", range(12))
def test_a_coin_before_discrete_steps(seed: int) -> None:
    """One-sided outcomes too: behind a coin what Q alone shows is a loss of log(1 − q)."""
    random = np.random.default_rng(seed)
    steps, described = [], []
    for _ in range(int(random.integers(1, 3))):
        inside = [finite(random) for _ in range(int(random.integers(2, 4)))]
        coin = float(10 ** random.uniform(-4, 0))
        steps.append((coin, [world for _, world in inside]))
        described.append(Sampled(Composed(*[mechanism for mechanism, _ in inside]), coin))
    curve = privacy_curve(Composed(*described))
    assert "enumeration" in curve.explain(0.999)
    worlds = [outcomes([step]) for step in steps]
    for epsilon in (0.0, 1e-3, 0.1, 1.0):
        lower, upper = curve.delta(epsilon)
        exact = profile(worlds, epsilon)
        assert lower - 1e-12 <= exact <= upper + 1e-12
        assert upper - lower <= 1e-6 * exact + 1e-11
