"""A coin before a coin is one coin whose chance is rounded: exact products, from both sides.

Exact values are sums over outcomes and closed forms at 60 digits, with the product of the coins as
a fraction.
"""

import math
from fractions import Fraction

import mpmath as mp
import numpy as np
import pytest

from apiece import Gaussian, Repeated, Sampled, privacy_curve
from apiece.accounting.divergence import excess
from apiece.accounting.lattice.pairs import _bound_join_chance
from apiece.mechanisms import Composed, DiscreteLaplace, Finite, Laplace, Mechanism, algebra
from apiece.mechanisms.algebra import flatten, flatten_below
from apiece.mechanisms.mixture import MixtureOfGaussians

DIGITS = 60


def behind(mechanism: Mechanism, *coins: float) -> Mechanism:
    """Put coins before a mechanism, one before the other."""
    for coin in coins:
        mechanism = Sampled(Repeated(mechanism, 1), coin)
    return mechanism


def product(*coins: float) -> mp.mpf:
    exact = math.prod(map(Fraction, coins))
    return mp.mpf(exact.numerator) / exact.denominator


def near_one(random: np.random.Generator) -> float:
    return float(1 - 10 ** random.uniform(-13, -1))


def any_coin(random: np.random.Generator) -> float:
    return near_one(random) if random.random() < 0.6 else float(random.random())


def told_now_and_then(random: np.random.Generator) -> tuple[int, int]:
    """How many ends of ε are wrong, where an outcome that only the record rules out is told."""
    below = above = 0
    for _ in range(100):
        coins = [near_one(random) for _ in range(random.integers(2, 4))]
        left = 1 - product(*coins)
        delta = float(random.random() / 4)
        exact = mp.log((1 - 2 * mp.mpf(delta)) / left)  # ½·(1 − e^ε·(1 − q)) = δ
        lower, upper = privacy_curve(behind(Finite([1, 0], [0.5, 0.5]), *coins)).epsilon(delta)
        below += not lower <= exact
        above += not exact <= upper
        assert upper - lower <= float(1e-14 / left) + 1e-12 * upper
    return below, above


def finite(random: np.random.Generator) -> Finite:
    size = int(random.integers(2, 5))
    p, q = random.dirichlet(np.ones(size), size=2)
    p[0] *= random.random() < 0.5
    return Finite(p / p.sum(), q / q.sum())


def exact_finite(step: Finite, coin: mp.mpf, epsilon: float) -> mp.mpf:
    """δ(ε) behind one coin, the larger of both directions."""
    p, q = ([mp.mpf(x) for x in law] for law in (step.with_record, step.without_record))
    p = [(1 - coin) * y + coin * x for x, y in zip(p, q, strict=True)]
    t = mp.exp(mp.mpf(epsilon))
    return max(
        sum(max(x - t * y, 0) for x, y in zip(one, other, strict=True))
        for one, other in ((p, q), (q, p))
    )


def normal_profile(z: mp.mpf, epsilon: mp.mpf) -> mp.mpf:
    """δ(ε) of a Gaussian."""
    return mp.ncdf(1 / (2 * z) - epsilon * z) - mp.exp(epsilon) * mp.ncdf(
        -1 / (2 * z) - epsilon * z
    )


def laplace_profile(b: mp.mpf, epsilon: mp.mpf) -> mp.mpf:
    """δ(ε) of Laplace noise."""
    if epsilon >= 1 / b:
        return mp.mpf(0)
    return -mp.expm1(min((epsilon - 1 / b) / 2, epsilon))


def exact_behind(profile, coin: mp.mpf, epsilon: float) -> mp.mpf:
    """δ(ε) of what has the same profile in both directions, behind a coin."""
    t = mp.exp(mp.mpf(epsilon))
    both = [coin * profile(mp.log(1 + (t - 1) / coin))]
    share = 1 - (1 - coin) * t
    if share > 0:
        both.append(share * profile(mp.log(coin * t / share)))
    return max(both)


@pytest.fixture(autouse=True)
def _digits():
    with mp.workdps(DIGITS):
        yield


def test_both_ends_hold_where_hardly_anybody_stays_out():
    assert told_now_and_then(np.random.default_rng(1)) == (0, 0)


def test_rounding_to_nearest_is_caught(monkeypatch):
    monkeypatch.setattr(algebra, "_product", lambda one, other, upward: one * other)
    below, above = told_now_and_then(np.random.default_rng(1))
    assert below > 5
    assert above > 5


@pytest.mark.parametrize("upward", [True, False])
def test_rounding_to_one_side_alone_is_caught(monkeypatch, upward):
    rounded = algebra._product
    monkeypatch.setattr(
        algebra, "_product", lambda one, other, **_: rounded(one, other, upward=upward)
    )
    below, above = told_now_and_then(np.random.default_rng(1))
    assert (below > 5, above > 5) == (upward, not upward)


@pytest.mark.parametrize("seed", range(3))
def test_finite_mechanisms_behind_two_or_three_coins(seed):
    random = np.random.default_rng(seed)
    for _ in range(60):
        step, coins = finite(random), [any_coin(random) for _ in range(random.integers(2, 4))]
        curve = privacy_curve(behind(step, *coins))
        for epsilon in (0.0, float(random.random()), float(10 * random.random())):
            lower, upper = curve.delta(epsilon)
            assert lower <= exact_finite(step, product(*coins), epsilon) <= upper
            assert upper - lower <= 1e-9 * upper + 1e-14


@pytest.mark.parametrize(
    ("step", "profile"),
    [
        (Gaussian, normal_profile),
        (Laplace, laplace_profile),
        (lambda z: Repeated(Gaussian(4 * z), 16), normal_profile),
    ],
)
def test_one_step_in_closed_form_behind_two_coins(step, profile):
    random = np.random.default_rng(5)
    for _ in range(60):
        z, coins = float(10 ** random.uniform(-1, 1)), [any_coin(random), any_coin(random)]
        coin, curve = product(*coins), privacy_curve(behind(step(z), *coins))
        for epsilon in (0.0, float(-mp.log(1 - coin) * random.random()), float(random.random())):
            exact = exact_behind(lambda at, z=z: profile(mp.mpf(z), at), coin, epsilon)
            lower, upper = curve.delta(epsilon)
            assert lower <= exact
            assert exact <= max(upper, mp.mpf("1e-299"))
            assert upper - lower <= 1e-11 * upper + 1e-14


def test_a_composition_of_nested_coins_is_within_the_bounds():
    # Each of n runs is one of two outcomes; only the world without the record shows the other.
    random, count = np.random.default_rng(7), 6
    for _ in range(20):
        coins = [near_one(random), near_one(random)]
        left = 1 - product(*coins)
        curve = privacy_curve(Repeated(behind(Finite([1, 0], [0.5, 0.5]), *coins), count))
        epsilon = float(-count * mp.log(left) * random.random())
        t, delta = mp.exp(mp.mpf(epsilon)), mp.mpf(0)
        for seen in range(count + 1):
            q = mp.binomial(count, seen) * mp.mpf(2) ** -count
            p = q * left**seen * (2 - left) ** (count - seen)
            delta += max(q - t * p, 0)
        lower, upper = curve.delta(epsilon)
        assert lower <= delta <= upper
        assert upper <= lower * (1 + 1e-6) + 1e-12


def test_normal_forms_hold_the_product_between_them():
    random = np.random.default_rng(9)
    for _ in range(300):
        one, other = any_coin(random), float(random.random() ** 3)
        nested = behind(DiscreteLaplace(2.0), one, other)
        ((above, _),), ((below, _),) = flatten(nested), flatten_below(nested)
        exact = Fraction(one) * Fraction(other)
        assert Fraction(below.probability) <= exact <= Fraction(above.probability)
        assert above.probability in (below.probability, math.nextafter(below.probability, 1.0))
        assert (above == below) == (Fraction(above.probability) == exact)


def test_products_that_round_to_an_end():
    nearly = 1 - 2.0**-53
    always = behind(Gaussian(1.0), nearly, nearly, nearly)
    assert flatten(always) == ((Sampled(Gaussian(1.0), nearly), 1),)
    assert flatten_below(always) == ((Sampled(Gaussian(1.0), 1 - 3 * 2.0**-53), 1),)
    never = behind(Gaussian(1.0), 1e-200, 1e-200)
    assert flatten(never)[0][0].probability == math.ulp(0.0)
    assert flatten_below(never) == ()
    lower, upper = privacy_curve(never).delta(0.0)
    assert lower == 0 < upper < 1e-290


def test_a_mixture_s_chance_to_join_is_held_between_two():
    random = np.random.default_rng(3)
    for _ in range(200):
        chances = random.dirichlet(np.ones(3)) * near_one(random)
        coin = any_coin(random)
        least, most = _bound_join_chance(tuple(chances.tolist()), coin)
        exact = sum(map(Fraction, chances.tolist())) * Fraction(coin)
        assert most <= 0.5 or Fraction(least) <= min(exact, 1) <= Fraction(most) <= 1
        assert most in (least, math.nextafter(least, 1.0))


def test_chances_of_sums_are_not_rounded_below_the_coins():
    random = np.random.default_rng(4)
    for _ in range(50):
        rates = [near_one(random) for _ in range(random.integers(2, 6))]
        mixture = MixtureOfGaussians.of_rows(2.0, [1.0] * len(rates), rates)
        law = [Fraction(1)]  # of how many rows join, exactly
        for rate in map(Fraction, rates):
            stays, joins = [x * (1 - rate) for x in law], [x * rate for x in law]
            law = [x + y for x, y in zip([*stays, 0], [0, *joins], strict=True)]
        chances = dict(zip(mixture.shifts, map(Fraction, mixture.chances), strict=True))
        for least in range(1, len(law)):
            raised = sum(chance for shift, chance in chances.items() if shift >= least)
            assert sum(law[least:]) <= raised <= sum(law[least:]) * (1 + Fraction(1, 10**13))


# Mechanisms that differ by the rounding of a quotient, or by a little more: (own, promised), and
# the δ of each.
NEARLY = 1 - 1e-10
ALIKE = {
    "noise": (Gaussian(1.5 * NEARLY), Gaussian(1.5)),
    "noise of a sampled step": (Sampled(Gaussian(NEARLY), 0.3), Sampled(Gaussian(1.0), 0.3)),
    "rate": (Sampled(Gaussian(1.0), 0.3), Sampled(Gaussian(1.0), 0.3 * NEARLY)),
    "one unit": (Gaussian(math.nextafter(0.7, 0.0)), Gaussian(0.7)),
    "merged": (Composed(Gaussian(1.1), Gaussian(1.3)), Gaussian(1 / math.hypot(1 / 1.1, 1 / 1.3))),
}


def profile_of(mechanism: Mechanism, epsilon: mp.mpf) -> mp.mpf:
    coin, noise = mp.mpf(1), mechanism
    if isinstance(mechanism, Sampled):
        coin, noise = mp.mpf(mechanism.probability), mechanism.mechanism
    parts = noise.mechanisms if isinstance(noise, Composed) else (noise,)
    z = 1 / mp.sqrt(sum(1 / mp.mpf(part.noise_multiplier) ** 2 for part in parts))
    return exact_behind(lambda at: normal_profile(z, at), coin, epsilon)


@pytest.mark.parametrize("name", ALIKE)
@pytest.mark.parametrize("exchanged", [False, True])
def test_what_differs_by_rounding_is_not_said_to_be_the_same(name, exchanged):
    own, promised = ALIKE[name][:: -1 if exchanged else 1]
    upper = excess(privacy_curve(promised), privacy_curve(own)).forward.upper
    exact = max(
        (profile_of(own, at) - profile_of(promised, at)) / (1 + mp.exp(at))
        for at in map(mp.mpf, np.linspace(0.0, 3.0, 13))
    )
    assert exact <= upper < 1e-10
    assert exchanged or name == "merged" or exact > 0
