"""Heterogeneous noise keeps the total promise, exactly and in a simulated attack."""

import itertools
import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import norm

from apiece.errors import DataError, InputError, OptionError
from apiece.sensitivity import Expression, HeterogeneousNoise, loss_shares, partial_sensitivity
from refusals import refused

sizes = st.floats(1e-3, 1e3)


def exact_squared_distance(noise, v):
    return sum((Fraction(x) / Fraction(s)) ** 2 for x, s in zip(v, noise.stddev, strict=True))


@settings(max_examples=60, deadline=None, derandomize=True)
@given(st.lists(st.tuples(sizes, sizes), min_size=1, max_size=4), st.floats(1e-2, 1e3))
def test_total_promise_holds_at_every_corner_in_exact_arithmetic(pairs, multiplier):
    names = [f"x{j}" for j in range(len(pairs))]
    noise = HeterogeneousNoise.allocate(
        dict(zip(names, (c for c, _ in pairs), strict=True)),
        dict(zip(names, (v for _, v in pairs), strict=True)),
        noise_multiplier=multiplier,
    )
    for signs in itertools.product((-1, 1), repeat=len(pairs)):
        corner = [s * c for s, (c, _) in zip(signs, pairs, strict=True)]
        assert exact_squared_distance(noise, corner) <= 1 / Fraction(multiplier) ** 2
    total = Fraction(noise.mechanism.noise_multiplier)
    assert multiplier <= total <= Fraction(multiplier) * (1 + Fraction(1, 10**12))
    assert exact_squared_distance(noise, noise.bounds) <= 1 / total**2
    # The attributes' own squared losses add up to the total, in proportion to 1/protection.
    own = [1 / noise.mechanism_for(n).noise_multiplier ** 2 for n in names]
    assert sum(own) == pytest.approx(multiplier**-2, rel=1e-9)
    shares = np.array([1 / v for _, v in pairs])
    np.testing.assert_allclose(np.array(own) * multiplier**2, shares / shares.sum(), rtol=1e-9)


def test_a_protected_attribute_gets_more_at_the_same_total():
    bounds = {"age": 1.0, "income": 5.0, "zip": 2.0}
    even = HeterogeneousNoise.allocate(bounds, dict.fromkeys(bounds, 1.0), noise_multiplier=2)
    uneven = HeterogeneousNoise.allocate(
        bounds, {"age": 1.0, "income": 9.0, "zip": 1.0}, noise_multiplier=2
    )
    assert uneven.mechanism.noise_multiplier == pytest.approx(even.mechanism.noise_multiplier)
    own = {n: uneven.mechanism_for(n).noise_multiplier for n in bounds}
    assert own["income"] == pytest.approx(3 * own["age"])
    assert own["income"] > even.mechanism_for("income").noise_multiplier
    assert own["age"] < even.mechanism_for("age").noise_multiplier


def attack(noise, removed, rounds, generator):
    """The advantage of the best test between the sum with and without `removed`, measured."""
    others = generator.uniform(-1, 1, size=(3, len(removed))) * noise.bounds
    without = noise.clip_and_sum(others)
    present = noise.clip_and_sum(np.vstack([others, removed]))
    # The likelihood ratio between two Gaussians with known, unequal deviations.
    direction = (present.total - without.total) / np.square(noise.stddev)
    middle = (present.total + without.total) / 2 @ direction
    hits = [
        np.mean(
            [
                noise.add_noise(world, generator=generator) @ direction > middle
                for _ in range(rounds)
            ]
        )
        for world in (present, without)
    ]
    return hits[0] - hits[1]


def advantage(multiplier):
    return 2 * norm.cdf(1 / (2 * multiplier)) - 1


BOUNDS = {"a": 1.0, "b": 4.0}
NOISE = HeterogeneousNoise.allocate(BOUNDS, {"a": 1.0, "b": 8.0}, noise_multiplier=0.8)
ROUNDS = 20_000
MARGIN = 4 * math.sqrt(2 * 0.25 / ROUNDS)  # four standard errors of a difference of two rates


def test_the_best_attack_stays_within_the_promise_and_reaches_it():
    found = attack(NOISE, [1.0, 4.0], ROUNDS, np.random.default_rng(1))
    assert found <= advantage(0.8) + MARGIN
    assert found >= advantage(0.8) - MARGIN  # the bound is tight: a record at its bounds


def test_the_best_attack_on_one_attribute_stays_within_its_own_promise():
    for name, removed in (("a", [1.0, 0.0]), ("b", [0.0, 4.0])):
        found = attack(NOISE, removed, ROUNDS, np.random.default_rng(2))
        promised = advantage(NOISE.mechanism_for(name).noise_multiplier)
        assert abs(found - promised) <= MARGIN


def test_negative_control_noise_without_regard_to_the_bounds_breaks_the_promise():
    swapped = HeterogeneousNoise(NOISE.bounds, NOISE.stddev[::-1], NOISE.attributes)
    found = attack(swapped, [1.0, 4.0], ROUNDS, np.random.default_rng(3))
    assert found > advantage(0.8) + MARGIN
    assert swapped.mechanism.noise_multiplier < 0.8  # and its own account says so


def test_outliers_are_clipped_and_non_finite_records_contribute_nothing():
    found = NOISE.clip_and_sum([[100.0, -100.0], [math.nan, 1.0], [0.5, math.inf], [0.25, 0.5]])
    np.testing.assert_allclose(found.total, [1.25, -3.5])
    assert "1.25" not in repr(found)


def test_noise_accepts_only_what_it_clipped():
    other = HeterogeneousNoise.allocate({"a": 2.0, "b": 4.0}, BOUNDS, noise_multiplier=1)
    generator = np.random.default_rng(0)
    with refused(DataError, "clip_and_sum"):
        NOISE.add_noise(other.clip_and_sum([[1.0, 1.0]]), generator=generator)
    with refused(DataError, "clip_and_sum"):
        NOISE.add_noise(np.zeros(2), generator=generator)


def test_noise_has_the_deviation_it_states():
    empty = NOISE.clip_and_sum(np.zeros((0, 2)))
    generator = np.random.default_rng(5)
    draws = np.array([NOISE.add_noise(empty, generator=generator) for _ in range(20_000)])
    error = 4 / math.sqrt(2 * 20_000)
    np.testing.assert_allclose(draws.std(axis=0), NOISE.stddev, rtol=error)
    assert abs(np.corrcoef(draws.T)[0, 1]) < 4 / math.sqrt(20_000)


@pytest.mark.parametrize(
    ("bounds", "protection", "multiplier"),
    [
        ({"a": 0.0}, {"a": 1.0}, 1.0),
        ({"a": 1.0}, {"a": -1.0}, 1.0),
        ({"a": 1.0}, {"a": math.nan}, 1.0),
        ({"a": 1.0}, {"a": 1.0}, math.inf),
    ],
)
def test_bad_values_are_refused(bounds, protection, multiplier):
    with pytest.raises(InputError):
        HeterogeneousNoise.allocate(bounds, protection, noise_multiplier=multiplier)


def test_unknown_attributes_are_refused():
    with pytest.raises(DataError, match="only one"):
        HeterogeneousNoise.allocate(BOUNDS, {"a": 1.0, "bb": 1.0}, noise_multiplier=1)
    with pytest.raises(OptionError):
        NOISE.mechanism_for("c")
    with refused(DataError, "shape"):
        NOISE.clip_and_sum([[1.0]])


def test_weights_from_partial_sensitivities_at_public_records():
    query = Expression("a**2 + exp(2*b - a)", {"a": (1, 2), "b": (0.5, 3)})
    shares = dict(loss_shares(partial_sensitivity(query, query.design(512))).ranking("all"))
    noise = HeterogeneousNoise.allocate({"a": 2.0, "b": 3.0}, shares, noise_multiplier=1.0)
    assert shares["b"] > shares["a"]
    ratio = (
        noise.mechanism_for("b").noise_multiplier / noise.mechanism_for("a").noise_multiplier
    ) ** 2
    assert ratio == pytest.approx(shares["b"] / shares["a"])
