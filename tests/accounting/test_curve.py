"""What a curve answers, against closed forms of the Gaussian and against its own definition."""

import math
import re

import numpy as np
import pytest
from scipy.special import ndtr, ndtri

from apiece._types import Floats
from apiece.accounting import Bounds, PrivacyCurve, privacy_curve
from apiece.accounting import exact as gdp
from apiece.accounting import renyi as rdp
from apiece.accounting.bounds import Evaluated, Evaluations
from apiece.errors import InputError, OptionError, RangeError, UnsupportedError
from apiece.mechanisms import Composed, Gaussian, Laplace, Repeated, Sampled
from refusals import refused

ALPHA = np.concatenate([[0.0], np.geomspace(1e-9, 0.5, 60), 1 - np.geomspace(0.5, 1e-9, 60), [1.0]])


@pytest.mark.parametrize("mu", [1e-4, 0.01, 0.3, 1.0, 3.0, 8.0])
def test_tradeoff_is_tight_and_never_above_the_truth(mu: float) -> None:
    curve = privacy_curve(Gaussian(1 / mu), method="gdp")
    missed, power = curve.tradeoff(ALPHA), curve.true_positive_rate(ALPHA)
    exact_missed, exact_power = ndtr(-ndtri(ALPHA) - mu), ndtr(ndtri(ALPHA) + mu)
    assert (missed <= exact_missed).all()
    assert (power >= exact_power).all()
    np.testing.assert_allclose(power[1:], exact_power[1:], rtol=1e-6)
    assert (np.diff(missed) <= 1e-12).all()


def test_tradeoff_shapes() -> None:
    curve = privacy_curve(Gaussian(1.0), method="gdp")
    assert isinstance(curve.tradeoff(0.1), float)
    assert curve.tradeoff([[0.1, 0.2], [0.3, 0.4]]).shape == (2, 2)
    assert curve.tradeoff(1.0) == 0.0
    assert curve.tradeoff(np.linspace(0, 1, 10000)).shape == (10000,)


def test_bounds_have_the_shape_of_the_argument() -> None:
    curve = privacy_curve(Gaussian(1.0), method="gdp")
    assert all(isinstance(x, float) for x in (*curve.epsilon(1e-5), *curve.delta(1)))
    assert curve.delta([[0.0, 1.0]]).upper.shape == (1, 2)
    assert curve.epsilon(np.array([1e-3, 1e-5, 1e-7])).lower.shape == (3,)


@pytest.mark.parametrize("mu", [0.1, 1.0, 4.0])
def test_negative_epsilon_by_the_mirror(mu: float) -> None:
    epsilon = np.linspace(-8, 8, 101)
    curve = privacy_curve(Gaussian(1 / mu), method="gdp")
    exact = ndtr(mu / 2 - epsilon / mu) - np.exp(epsilon) * ndtr(-mu / 2 - epsilon / mu)
    lower, upper = curve.delta(epsilon)
    assert (lower - 1e-15 <= exact).all()
    assert (exact <= upper + 1e-15).all()
    np.testing.assert_allclose(upper, exact, atol=1e-14)


@pytest.mark.parametrize("prior", [1e-6, 0.01, 0.3, 0.5, 0.9, 1 - 1e-6])
def test_bayes_error_is_the_least_over_tests(prior: float) -> None:
    mu = 1.3
    curve = privacy_curve(Gaussian(1 / mu), method="gdp")
    threshold = np.linspace(-20, 20, 400001)
    errors = prior * ndtr(threshold - mu) + (1 - prior) * ndtr(-threshold)
    lower, upper = curve.bayes_error(prior)
    assert lower <= errors.min() + 1e-15
    assert upper == pytest.approx(errors.min(), rel=1e-8, abs=1e-15)
    success = curve.success(prior)
    assert success == (1 - upper, 1 - lower)


def test_advantage_success_and_tradeoff_agree() -> None:
    curve = privacy_curve(Gaussian(0.7), method="gdp")
    advantage = curve.advantage().upper
    assert curve.success(0.5).upper == pytest.approx((1 + advantage) / 2, abs=1e-15)
    assert (1 - ALPHA - curve.tradeoff(ALPHA)).max() == pytest.approx(advantage, rel=1e-2)


def test_reconstruction_follows_from_the_tradeoff() -> None:
    """Kulynych et al. 2025: success with baseline κ is at most 1 − f(κ), never below κ."""
    curve = privacy_curve(Gaussian(2.0), method="gdp")
    baseline = np.array([1e-6, 0.1, 0.5, 0.99])
    success = curve.reconstruction_success(baseline)
    np.testing.assert_allclose(success, ndtr(ndtri(baseline) + 0.5), rtol=1e-6)
    assert (success >= baseline).all()
    assert curve.attribute_inference_success(0.1) == success[1]


def test_a_real_reconstruction_attack_stays_below_the_bound() -> None:
    """One of 16 equally likely values is released with noise; the best guess is exact here."""
    mu, values = 1.5, 16
    # Adding a value moves one coordinate of a 16-vector of unit noise by mu: the attacker
    # guesses the largest coordinate. Success = P[X + mu exceeds the largest of 15 others].
    x = np.linspace(-9, 12, 20001)
    density = np.exp(-0.5 * (x - mu) ** 2) / math.sqrt(2 * math.pi)
    attack = np.trapezoid(density * ndtr(x) ** (values - 1), x)
    bound = privacy_curve(Gaussian(1 / mu), method="gdp").reconstruction_success(1 / values)
    assert 0.4 * bound < attack <= bound


def test_statement_rounds_against_the_mechanism() -> None:
    curve = privacy_curve(Gaussian(2.0), method="gdp")
    text = curve.statement()
    assert int(re.findall(r"at most ([\d,]+)", text)[0]) == math.ceil(1000 * curve.success().upper)
    silent = privacy_curve(Composed(), method="gdp").statement(people=100, prior=0.2)
    assert "at most 80;" in silent
    assert "20 of whom" in silent


def test_best_takes_the_tightest_of_both_ends() -> None:
    class Fixed:
        def __init__(self, lower: float, upper: float) -> None:
            self.ends = lower, upper

        def delta(self, epsilon: Floats) -> Bounds:
            return Bounds(*(np.full(epsilon.shape, x) for x in self.ends))

        epsilon = delta

    ends = (Fixed(0.1, 0.5), Fixed(0.2, 0.6))
    together = Evaluations(tuple(Evaluated("", "", end) for end in ends), lambda b: b.upper < 0)
    curve = PrivacyCurve(together, "best")
    assert curve.delta(1.0) == curve.epsilon(0.5) == (0.2, 0.5)


def test_best_is_no_worse_than_each() -> None:
    mechanism = Repeated(Gaussian(3.0), 4)
    best = privacy_curve(mechanism, method="best").epsilon(1e-6)
    for method in ("pld", "rdp", "gdp"):
        one = privacy_curve(mechanism, method=method).epsilon(1e-6)
        assert one.lower <= best.lower <= best.upper <= one.upper


def test_gdp_names_what_it_cannot_handle() -> None:
    with refused(UnsupportedError, "Laplace"):
        privacy_curve(Composed(Gaussian(1.0), Laplace(2.0)), method="gdp")


def test_gdp_and_zcdp_of_plain_gaussians() -> None:
    """Composition adds μ², and ρ of zero-concentrated DP is μ²/2; the RDP of order α is ρα."""
    mechanism = Composed(Repeated(Gaussian(10.0), 25), Gaussian(1 / math.sqrt(0.75)))
    assert gdp.mu(mechanism) == pytest.approx(1.0, rel=1e-14)
    rho = gdp.mu(mechanism) ** 2 / 2
    np.testing.assert_allclose(
        rdp.divergence(mechanism, [1.5, 8.0]), rho * np.array([1.5, 8.0]), rtol=1e-10
    )


@pytest.mark.parametrize("delta", [0, 1, -1, 2, math.nan, math.inf, "x", [1e-5, 0.0]])
def test_bad_delta(delta: object) -> None:
    with refused(InputError, "delta"):
        privacy_curve(Gaussian(1.0), method="gdp").epsilon(delta)  # type: ignore[arg-type]


@pytest.mark.parametrize("epsilon", [math.nan, "x", [0.0, math.nan]])
def test_bad_epsilon(epsilon: object) -> None:
    with refused(InputError, "epsilon"):
        privacy_curve(Gaussian(1.0), method="gdp").delta(epsilon)  # type: ignore[arg-type]


@pytest.mark.parametrize("rate", [-0.1, 1.1, math.nan, [0.5, 2.0]])
def test_bad_rate(rate: object) -> None:
    with refused(InputError, "false_positive_rate"):
        privacy_curve(Gaussian(1.0), method="gdp").tradeoff(rate)  # type: ignore[arg-type]


@pytest.mark.parametrize("prior", [0, 1, math.nan])
def test_bad_prior(prior: float) -> None:
    with refused(InputError, "prior"):
        privacy_curve(Gaussian(1.0), method="gdp").bayes_error(prior)


def test_bad_method_and_mechanism() -> None:
    with pytest.raises(OptionError, match="did you mean 'pld'"):
        privacy_curve(Gaussian(1.0), method="plds")
    with pytest.raises(InputError, match="not a mechanism"):
        privacy_curve(1.0)  # type: ignore[arg-type]


def test_past_the_numerical_range_says_so() -> None:
    with pytest.raises(RangeError, match="past the numerical range"):
        privacy_curve(Gaussian(1e-4), method="gdp").epsilon(1e-12)


def test_hardly_any_noise_still_gives_an_upper_bound() -> None:
    curve = privacy_curve(Sampled(Gaussian(1e-3), 0.9), method="rdp")
    assert curve.epsilon(1e-12).upper >= privacy_curve(Gaussian(1e-3), method="gdp").epsilon(
        2e-12
    ).lower - math.log(2)
