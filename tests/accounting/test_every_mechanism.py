"""Every mechanism is answered by some method, alone, behind a coin and with any other one.

Rényi divergences of those without a closed form are upper bounds: against sums and quadrature.
"""

import itertools

import mpmath as mp
import numpy as np
import pytest

from apiece import privacy_curve
from apiece.accounting import renyi
from apiece.accounting.choose import choose
from apiece.accounting.exact import AmplifiedProfile
from apiece.accounting.renyi import divergence
from apiece.accounting.slack import gaussian_with_slack
from apiece.mechanisms import (
    Allocated,
    Composed,
    Concentrated,
    DiscreteGaussian,
    DiscreteLaplace,
    Finite,
    Gaussian,
    Laplace,
    Repeated,
    Runs,
    Sampled,
    Selected,
    Stated,
)
from apiece.mechanisms.mixture import MixtureOfGaussians
from apiece.numerics.gaussian import gaussian_delta

MIXTURE = MixtureOfGaussians(2.0, [1.0, 2.0], [0.1, 0.02])
PARTS = {
    "gaussian": Gaussian(2.0),
    "laplace": Laplace(3.0),
    "discrete gaussian": DiscreteGaussian(3.0),
    "discrete laplace": DiscreteLaplace(3.0),
    "mixture": MIXTURE,
    "allocated": Allocated(2.0, 10),
    "finite": Finite([0.6, 0.4], [0.4, 0.6]),
    "concentrated": Concentrated(0.1),
    "stated": Stated(0.3),
    "selected": Selected((Gaussian(6.0),), Runs(5)),
    "sampled": Sampled(Gaussian(1.0), 0.05),
    "nested": Sampled(Repeated(Sampled(Gaussian(1.0), 0.05), 9), 0.3),
}
SELECTED = Selected((Gaussian(5.0),), Runs(10))


@pytest.mark.parametrize("method", ["pld", "rdp", "best"])
@pytest.mark.parametrize("name", PARTS)
def test_each_is_answered_beside_a_selection_and_behind_a_coin(name, method):
    part = PARTS[name]
    alone = privacy_curve(part, method=method).epsilon(1e-5).upper
    coin = privacy_curve(Sampled(Composed(part, Composed()), 0.1), method=method)
    both = privacy_curve(Composed(SELECTED, part), method=method).epsilon(1e-5).upper
    assert 0 < alone < both < np.inf
    assert coin.epsilon(1e-5).upper <= alone * (1 + 1e-3)


def test_each_two_are_answered():
    for one, other in itertools.combinations(PARTS.values(), 2):
        each = [privacy_curve(m).epsilon(1e-5).upper for m in (one, other, Composed(one, other))]
        assert max(each[:2]) * (1 - 2e-3) < each[2] < np.inf


def moments(laws, order):
    """Rényi divergences of two laws on the same outcomes, the larger of both directions."""
    p, q = laws
    sums = [
        mp.fsum(x**order * y ** (1 - order) for x, y in zip(*pair, strict=True))
        for pair in ((p, q), (q, p))
    ]
    return max(mp.log(total) / (order - 1) for total in sums)


@pytest.mark.parametrize(("scale", "sensitivity"), [(0.4, 1), (1.0, 1), (2.0, 3), (7.0, 2)])
def test_discrete_gaussian_is_below_its_bound_and_near_it(scale, sensitivity):
    with mp.workdps(40):
        reach = range(-int(60 * scale + 60), int(60 * scale + 60))
        weigh = [mp.exp(-(mp.mpf(x) ** 2) / (2 * mp.mpf(scale) ** 2)) for x in reach]
        total = mp.fsum(weigh)
        p = [w / total for w in weigh[:-sensitivity]]
        q = [w / total for w in weigh[sensitivity:]]
        for order in (1.1, 2.0, 3.7, 12.0):
            exact = moments((p, q), mp.mpf(order))
            (bound,) = divergence(DiscreteGaussian(scale, sensitivity), [order])
            assert exact <= bound
            assert order != 2.0 or bound <= exact * (1 + mp.mpf("1e-9"))


def mixture_divergence(step, order, coin=1):
    """By quadrature, the larger of both directions."""
    z = mp.mpf(step.noise_multiplier)
    parts = [(coin * mp.mpf(c), s / z) for c, s in zip(step.chances, step.shifts, strict=True)]
    left = 1 - sum(c for c, _ in parts)

    def ratio(x):
        return left + sum(c * mp.exp(s * x - s * s / 2) for c, s in parts)

    points = [-30, -6, 0, 3, 6, 10, 15, 25, 60]
    return max(
        mp.log(mp.quad(lambda x, k=power: mp.npdf(x) * ratio(x) ** k, points)) / (order - 1)
        for power in (order, 1 - order)
    )


@pytest.mark.parametrize("order", [1.2, 2.0, 5.5])
def test_mixture_is_below_its_bound(order):
    rare = MixtureOfGaussians(1.0, [0.5, 2.0], [1e-3, 1e-5])
    for step in (MIXTURE, rare, MixtureOfGaussians(1.0, [1.0], [1.0])):
        exact = mixture_divergence(step, mp.mpf(order))
        (bound,) = divergence(step, [order])
        assert exact <= bound
        assert sum(step.chances) < 1 or bound <= exact * (1 + mp.mpf("1e-8"))
        (behind,) = divergence(Sampled(step, 0.2), [order])
        assert mixture_divergence(step, mp.mpf(order), mp.mpf(0.2)) <= behind <= bound


@pytest.mark.parametrize("order", [1.3, 4.0])
def test_allocated_is_below_the_plain_gaussian(order):
    # Two steps: the ratio is (L₁ + L₂)/2 with independent lognormal parts.
    z = 1.5
    x = np.linspace(-14, 14, 1401)
    ratio = np.exp(x / z - 0.5 / z**2)
    mass = np.exp(-(x**2) / 2) / np.exp(-(x**2) / 2).sum()
    mean = np.add.outer(ratio, ratio) / 2
    for power in (order, 1 - order):
        exact = np.log(mass @ mean**power @ mass) / (order - 1)
        assert exact <= divergence(Allocated(z, 2), [order])[0]


def random_laws(seed, count=40):
    random = np.random.default_rng(seed)
    for _ in range(count):
        p, q = random.dirichlet(np.ones(random.integers(2, 5)), size=2) * 0.99 + 1e-3
        yield Finite(p / p.sum(), q / q.sum()), float(random.random() ** 3)


def test_what_a_coin_leaves_of_a_divergence_is_below_its_bound():
    orders = 1 + np.geomspace(0.01, 100, 15)
    for law, coin in random_laws(1):
        exact = divergence(Sampled(law, coin), orders)
        bound = renyi.behind_coin(divergence(law, orders), coin, orders)
        assert (exact <= bound).all()
        assert (bound <= divergence(law, orders)).all()


def test_what_a_coin_leaves_of_a_profile_is_below_its_bound():
    at = np.array([0.0, 0.01, 0.3, 2.0])
    tight = 0
    for law, coin in random_laws(2):
        exact = privacy_curve(Sampled(law, coin)).delta(at).lower
        bound = AmplifiedProfile(choose(law), coin).delta(at).upper
        assert (exact <= bound).all()
        tight += (bound <= exact * (1 + 1e-6) + 1e-14).all()
    assert tight > 5


def test_a_coin_before_a_selection_is_amplified():
    for runs in (Runs(10), Runs(4, None), Runs(20, 0)):
        whole = privacy_curve(Selected((Gaussian(4.0),), runs))
        behind = privacy_curve(Sampled(Selected((Gaussian(4.0),), runs), 0.1))
        assert behind.epsilon(1e-6).upper < 0.3 * whole.epsilon(1e-6).upper
        # (x, δ/q)-DP becomes (log(1 + q·(e^x − 1)), δ)-DP.
        inner = whole.epsilon(1e-5).upper
        assert behind.epsilon(1e-6).upper <= np.log1p(0.1 * np.expm1(inner)) * (1 + 1e-9)


@pytest.mark.parametrize(
    ("mechanism", "mu"),
    [
        (Allocated(2.0, 10), 0.5),
        (Repeated(Allocated(2.0, 10), 4), 1.0),
        (MIXTURE, 1.0),
        (Sampled(MIXTURE, 0.5), 1.0),
        (Composed(MIXTURE, Allocated(1.0, 3), Gaussian(1.0)), 3**0.5),
        (Sampled(Repeated(Allocated(4.0, 2), 16), 0.1), 1.0),
    ],
)
def test_slack_free_charges_of_what_a_gaussian_dominates(mechanism, mu):
    lower, upper = gaussian_with_slack(privacy_curve(mechanism), 0.0)
    assert lower <= upper
    assert mu <= upper <= mu * (1 + 1e-12)
    at = np.linspace(0.0, 12.0, 49)
    above = gaussian_delta(upper, at).upper
    assert (privacy_curve(mechanism).delta(at).lower <= above).all()


@pytest.mark.parametrize(
    "mechanism", [MixtureOfGaussians(1.0, [0.5, 1.0], [0.1, 0.8]), Allocated(1.0, 2)]
)
def test_a_smaller_gaussian_does_not_dominate(mechanism):
    at = np.linspace(0.0, 30.0, 121)
    found = privacy_curve(mechanism).delta(at).lower
    assert (found > gaussian_delta(0.85, at).upper).any()
