"""Lower bounds: exact counts, the threshold's price, bad input."""

import math

import numpy as np
import pytest
from scipy import stats

from apiece import audit
from apiece.audit import gaussian, thresholds
from apiece.audit.one_run import dp_p_value, gdp_rejects
from apiece.errors import DataError, InputError, OptionError

METHODS = ["clopper-pearson", "gdp"]


def test_fixed_threshold_is_clopper_pearson() -> None:
    ins = np.r_[np.ones(80), np.zeros(20)]
    outs = np.r_[np.ones(5), np.zeros(95)]
    bound = audit.lower_bound(ins, outs, delta=1e-3, threshold=0.5)
    low = stats.binomtest(80, 100).proportion_ci(0.95).low  # two-sided 95 % is 2.5 % a side
    high = stats.binomtest(5, 100).proportion_ci(0.95).high
    accept = math.log((low - 1e-3) / high)
    reject = math.log((1 - high - 1e-3) / (1 - low))
    assert bound.epsilon == pytest.approx(max(accept, reject), rel=1e-9)
    assert bound.candidates == 1


def test_perfect_separation_shows_log_n() -> None:
    n = 1000
    for threshold in ("bonferroni", "split", 0.5):
        bound = audit.lower_bound(np.ones(n), np.zeros(n), delta=0.0, threshold=threshold)
        assert 3.5 < bound.epsilon < math.log(n)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("threshold", ["bonferroni", "split"])
def test_constant_scores_show_nothing(method: str, threshold: str) -> None:
    bound = audit.lower_bound(
        np.zeros(100), np.zeros(100), delta=1e-5, method=method, threshold=threshold
    )
    assert bound.epsilon == 0


def test_scores_that_point_the_wrong_way_show_nothing() -> None:
    assert audit.lower_bound(np.zeros(500), np.ones(500), delta=0.0).epsilon == 0


def test_infinite_scores_are_ordered() -> None:
    bound = audit.lower_bound(np.full(300, np.inf), np.full(300, -np.inf), delta=1e-5)
    assert bound.epsilon > 3
    assert bound.to_dict()["threshold"] is None


def test_order_statistics_count_ranks_not_ties() -> None:
    tests = thresholds.order_statistics(np.zeros(8), np.zeros(8))
    np.testing.assert_array_equal(tests.false_positives[:3], [0, 1, 3])
    np.testing.assert_array_equal(tests.true_positives[:3], [0, 0, 0])
    np.testing.assert_array_equal(tests.true_positives[3:], [8, 7, 5])
    np.testing.assert_array_equal(tests.false_positives[3:], [8, 8, 8])


def test_epsilon_from_mu_inverts_the_profile() -> None:
    for mu, delta in [(0.3, 1e-5), (1.0, 1e-3), (4.0, 1e-9)]:
        epsilon = gaussian.epsilon_from_mu(mu, delta)
        norm = stats.norm
        back = norm.cdf(-epsilon / mu + mu / 2) - math.exp(epsilon) * norm.cdf(
            -epsilon / mu - mu / 2
        )
        assert back == pytest.approx(delta, rel=1e-5)
        assert back >= delta
    assert gaussian.epsilon_from_mu(0.0, 1e-5) == 0
    assert gaussian.epsilon_from_mu(1e-3, 0.5) == 0


def test_gdp_p_value_bounds_the_exact_supremum() -> None:
    ins, outs = np.r_[np.ones(60), np.zeros(40)], np.r_[np.ones(40), np.zeros(60)]
    tests = thresholds.fixed(ins, outs, 0.5)
    mu, norm = 0.2, stats.norm
    alpha = np.linspace(0.2, 0.7, 20001)
    p_in = stats.binom.sf(59, 100, norm.cdf(norm.ppf(alpha) + mu))
    p_out = stats.binom.cdf(40, 100, alpha)
    product = p_in * p_out
    exact = float(np.max(product * (1 - np.log(product))))
    ours = float(gaussian.p_values(tests, mu)[0])
    assert exact <= ours <= 1.3 * exact


def test_gdp_is_tighter_on_gaussian_scores() -> None:
    generator = np.random.default_rng(3)
    outs, ins = generator.normal(size=4000), generator.normal(1.5, size=4000)
    truth = gaussian.epsilon_from_mu(1.5, 1e-5)
    plain = audit.lower_bound(ins, outs, delta=1e-5).epsilon
    assumed = audit.lower_bound(ins, outs, delta=1e-5, method="gdp").epsilon
    assert 0.5 < plain < assumed < truth


@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        ({"scores_in": [0.0, np.nan]}, DataError, "NaN"),
        ({"scores_out": []}, DataError, "at least one"),
        ({"scores_in": [[1.0]]}, DataError, "flat"),
        ({"scores_in": ["a"]}, DataError, "not numbers"),
        ({"delta": 1.0}, InputError, "delta"),
        ({"delta": float("nan")}, InputError, "delta"),
        ({"confidence": 1.0}, InputError, "confidence"),
        ({"method": "gpd"}, OptionError, "did you mean 'gdp'"),
        ({"threshold": "splitt"}, OptionError, "did you mean 'split'"),
        ({"threshold": "split", "scores_in": [1.0]}, DataError, "split"),
    ],
)
def test_bad_input(change: dict[str, object], error: type[Exception], words: str) -> None:
    good: dict[str, object] = {"scores_in": [1.0, 2.0], "scores_out": [0.0, 1.0], "delta": 1e-5}
    with pytest.raises(error, match=words):
        audit.lower_bound(**(good | change))  # type: ignore[arg-type]


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


@pytest.mark.parametrize("method", ["dp", "gdp"])
def test_one_run_finds_a_model_that_hides_nothing(method: str) -> None:
    coins = np.random.default_rng(0).random(500) < 0.5
    assert audit.one_run(coins * 1.0, coins, delta=1e-5, method=method).epsilon > 1


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
