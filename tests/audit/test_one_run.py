"""One run: exact counts of right guesses, ties that say nothing, bad input."""

import math

import numpy as np
import pytest
from scipy import stats

from apiece import audit
from apiece.audit.bounds import dp_p_value, gdp_rejects
from apiece.errors import DataError, InputError, OptionError


def slow_p_value(m: int, r: int, v: int, epsilon: float, delta: float) -> float:
    """The sum of the theorem, term by term."""
    q = 1 / (1 + math.exp(-epsilon))
    pmf = [stats.binom.pmf(k, r, q) for k in range(r + 1)]
    tail = sum(pmf[v:])
    slope = max((sum(pmf[v - i : v]) / i for i in range(1, v + 1)), default=0.0)
    return min(1.0, tail + 2 * m * delta * slope)


@pytest.mark.parametrize(("m", "r", "v"), [(50, 20, 17), (100, 100, 61), (30, 30, 30), (9, 5, 0)])
@pytest.mark.parametrize("delta", [0.0, 1e-5, 1e-2])
def test_one_run_p_value(m: int, r: int, v: int, delta: float) -> None:
    ours = dp_p_value(0.7, canaries=m, guesses=r, correct=v, delta=delta)
    assert ours == pytest.approx(slow_p_value(m, r, v, 0.7, delta), rel=1e-9)


def test_one_run_gdp_recursion_at_zero_is_a_coin() -> None:
    """With μ = 0 every guess is a fair coin: 60 of 100 right is rejected at 5 %, 52 is not."""
    assert gdp_rejects(0.0, 0.05, canaries=100, guesses=100, correct=65)
    assert not gdp_rejects(0.0, 0.05, canaries=100, guesses=100, correct=52)
    assert not gdp_rejects(3.0, 0.05, canaries=100, guesses=100, correct=65)


def test_failures_that_come_together_do_not_break_the_bound_as_they_break_a_product_law() -> None:
    """A true (0, δ): with chance .1 it tells 100 of 1,000 coins at once; 1,000 runs, at 5 %.

    The control lets each of the canaries fail by itself (after Xiang et al. 2025).
    """
    generator, ours, product = np.random.default_rng(0), 0, 0
    for _ in range(1000):
        told = 100 * int(generator.random() < 0.1)
        right = told + int(generator.binomial(1000 - told, 0.5))
        p = dp_p_value(0.0, canaries=1000, guesses=1000, correct=right, delta=0.01)
        ours += p <= 0.05
        product += stats.binom.cdf(1000 - right, 990, 0.5) <= 0.05
    assert ours <= 50
    assert product > 80  # 50 are allowed, 7 their standard deviation


@pytest.mark.parametrize("method", ["dp", "gdp"])
def test_one_run_finds_a_model_that_hides_nothing(method: str) -> None:
    coins = np.random.default_rng(0).random(500) < 0.5
    assert audit.one_run(coins * 1.0, coins, delta=1e-5, method=method).epsilon > 1


@pytest.mark.parametrize("method", ["dp", "gdp"])
@pytest.mark.parametrize("shift", [1.0, 3.0, 9.0])
def test_several_numbers_of_guesses_share_the_error(method: str, shift: float) -> None:
    generator = np.random.default_rng(4)
    coins = generator.random(130) < 0.5
    scores = generator.normal(size=130) + shift * coins
    together = audit.one_run(scores, coins, delta=1e-5, method=method)
    tries, asked = [130, 65, 32, 16], {"delta": 1e-5, "confidence": 1 - 0.05 / 4}
    alone = [audit.one_run(scores, coins, method=method, guesses=g, **asked).epsilon for g in tries]
    assert together.candidates == len(tries)
    assert 0 < together.epsilon == pytest.approx(max(alone), rel=1e-6)


def test_groups_share_the_error_between_them_and_each_among_its_guesses() -> None:
    """All guessed right: p = q^r with q = e^ε/(1 + e^ε), of one of 3 groups and 3 numbers each."""
    groups, coins = np.arange(3 * 64) % 3, np.arange(3 * 64) // 3 % 2 == 0
    found = audit.one_run_by_group(coins * 1.0, coins, groups, delta=0.0)
    q = (0.05 / 3 / 3) ** (1 / 64)
    for bound in found.values():
        assert bound.epsilon == pytest.approx(math.log(q / (1 - q)), rel=1e-6)
        assert bound.confidence == pytest.approx(1 - 0.05 / 3)


@pytest.mark.parametrize("method", ["dp", "gdp"])
def test_one_run_ignores_the_order_of_ties(method: str) -> None:
    included = np.repeat([True, False], 500)
    assert audit.one_run(np.zeros(1000), included, delta=1e-5, method=method).epsilon == 0


@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        ({"scores": [0.0, np.nan]}, DataError, "NaN"),
        ({"included": [True]}, DataError, "included"),
        ({"included": [0.5, 1.0]}, DataError, "True or False"),
        ({"method": "dpp"}, OptionError, "did you mean 'dp'"),
        ({"guesses": 3}, DataError, "guesses"),
        ({"guesses": 0}, InputError, "guesses"),
    ],
)
def test_one_run_bad_input(change: dict[str, object], error: type[Exception], words: str) -> None:
    good: dict[str, object] = {"scores": [1.0, 2.0], "included": [True, False], "delta": 1e-5}
    with pytest.raises(error, match=words):
        audit.one_run(**(good | change))  # type: ignore[arg-type]
