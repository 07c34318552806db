"""The Gaussian with a slack: above the profile everywhere, as small as can be, and rounded up."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from apiece.accounting import Bounds, PrivacyCurve, privacy_curve, slack
from apiece.accounting.bounds import invert
from apiece.accounting.slack import (
    gaussian_of_bounded_range,
    gaussian_of_laplace,
    gaussian_of_pure,
    gaussian_summary,
    gaussian_with_slack,
)
from apiece.errors import InputError, RangeError
from apiece.mechanisms import (
    Composed,
    DiscreteGaussian,
    Finite,
    Gaussian,
    Laplace,
    Repeated,
    Sampled,
)
from apiece.numerics.gaussian import gaussian_delta
from refusals import refused

MECHANISMS = [
    Repeated(Sampled(Gaussian(2.5), 0.05), 200),
    Repeated(Sampled(Gaussian(0.7), 0.01), 3000),
    Repeated(Sampled(Gaussian(4.0), 0.3), 50),
    Sampled(Gaussian(0.5), 0.01),
    Composed(Repeated(Sampled(Gaussian(2.0), 0.1), 30), Repeated(Sampled(Gaussian(1.0), 0.01), 40)),
    Sampled(Repeated(Sampled(Gaussian(2.0), 0.1), 30), 0.5),
    Laplace(1.0),
    Repeated(Laplace(3.0), 20),
    Sampled(Laplace(0.5), 0.1),
    DiscreteGaussian(2.0),
    Repeated(Finite([0.9, 0.1], [0.4, 0.6]), 3),
    Finite([0.999, 0.001, 0.0], [0.9, 0.09, 0.01]),
]


def worst(curve: PrivacyCurve, mu: float, s: float) -> float:
    """The largest of δ − (s + (1−s)·G), each end in its favour, over ε close together."""
    far = float(curve.epsilon(s or 1e-12).upper) * 1.1
    epsilon = np.concatenate([np.linspace(0, far, 301), [1e-9, 1e-4, 2 * far, 30.0, 200.0]])
    delta = np.asarray(curve.delta(epsilon).lower)
    allowed = s + (1 - s) * np.asarray(gaussian_delta(mu, epsilon).upper)
    return float((delta / allowed).max() - 1)


@pytest.mark.parametrize("mechanism", MECHANISMS, ids=lambda m: repr(m)[:40])
def test_the_gaussian_is_nowhere_below_and_no_smaller_one_would_do(mechanism):
    curve = privacy_curve(mechanism)
    slacks = np.array([1e-4, 1e-6, 1e-9]) + (0.012 if "0.999" in repr(mechanism) else 0)
    mu = gaussian_with_slack(curve, slacks)
    assert np.isfinite(mu.upper).all()
    assert (np.diff(mu.upper) >= 0).all()  # less slack, more noise
    for s, low, high in zip(slacks, mu.lower, mu.upper, strict=True):
        assert worst(curve, high, s) <= 1e-12
        assert low <= high <= low * 1.002
        assert float(gaussian_with_slack(curve, float(s)).upper) == pytest.approx(high, rel=6e-4)


def product(mechanism: Finite, times: int) -> tuple[np.ndarray, np.ndarray]:
    """P and Q of every sequence of outcomes, one by one."""
    p, q = [], []
    for path in itertools.product(range(len(mechanism.with_record)), repeat=times):
        p.append(math.prod(mechanism.with_record[i] for i in path))
        q.append(math.prod(mechanism.without_record[i] for i in path))
    return np.array(p), np.array(q)


def exact(p: np.ndarray, q: np.ndarray, epsilon: np.ndarray) -> np.ndarray:
    """The profile in the direction of P, by adding up."""
    return np.maximum(p[:, None] - np.exp(epsilon) * q[:, None], 0).sum(axis=0)


@pytest.mark.parametrize("seed", range(12))
def test_enumerated_mechanisms_lie_below_in_both_directions(seed):
    rng = np.random.default_rng(seed)
    size, times = int(rng.integers(2, 4)), int(rng.integers(1, 5))
    one = Finite(*(rng.dirichlet(np.full(size, 0.7), size=2)))
    curve = privacy_curve(Repeated(one, times))
    p, q = product(one, times)
    epsilon = np.linspace(0, float(np.abs(np.log(p / q)).max()) * 1.05, 4001)
    for s in (0.0, 1e-3, 0.05):
        mu = float(gaussian_with_slack(curve, s).upper)
        allowed = s + (1 - s) * np.asarray(gaussian_delta(mu, epsilon).upper) + 1e-15
        assert (exact(p, q, epsilon) <= allowed).all()
        assert (exact(q, p, epsilon) <= allowed).all()


def test_without_a_slack_what_is_known_in_closed_form():
    none = [
        (Repeated(Gaussian(10.0), 50), math.sqrt(50) / 10),
        (Repeated(Sampled(Gaussian(10.0), 0.1), 50), math.sqrt(50) / 10),  # no discount without one
        (Finite([0.75, 0.25], [0.25, 0.75]), 2 * 0.6744897501960817),  # randomized response
        (Composed(), 0.0),
    ]
    for mechanism, mu in none:
        found = gaussian_with_slack(privacy_curve(mechanism), 0.0)
        assert mu <= found.upper <= mu * (1 + 1e-6) + 1e-11
    told = Finite([0.9, 0.1, 0.0], [0.9, 0.0, 0.1])  # may tell all: no Gaussian does that
    assert gaussian_with_slack(privacy_curve(told), 0.0).upper == math.inf
    assert gaussian_with_slack(privacy_curve(told), 0.2).upper < 1e-6


@pytest.mark.parametrize("eta", [1e-9, 0.1, 1.0, 3.0, 8.0, 40.0])
def test_pure_and_bounded_range_lie_below_their_gaussians(eta):
    from scipy.special import expit, log_expit, ndtri_exp

    pure, ranged = float(gaussian_of_pure(eta)), float(gaussian_of_bounded_range(eta))
    assert pure == pytest.approx(-2 * float(ndtri_exp(-np.logaddexp(0, eta))), rel=1e-9)
    assert pure >= -2 * float(ndtri_exp(-np.logaddexp(0, eta)))
    # the pairs of range eta: chances p and q of one outcome, whose log-odds are eta apart
    odds = np.linspace(-eta - 30, 30, 4001)
    needed = ndtri_exp(log_expit(odds + eta)) - ndtri_exp(log_expit(odds))
    assert needed.max() <= ranged * (1 + 1e-12)
    assert needed.max() == pytest.approx(ranged, rel=1e-3)
    assert ranged < pure
    epsilon = np.linspace(0, eta, 501)
    told = np.asarray(gaussian_delta(ranged, epsilon).upper)
    for o in odds[::400]:
        p, q = expit(o + eta), expit(o)
        assert (p - np.exp(epsilon) * q <= told + 1e-15).all()


@pytest.mark.parametrize("epsilon", [1e-6, 0.1, 0.5, 1.0, 3.0, 8.0, 30.0])
def test_laplace_costs_its_gaussian_and_no_less_and_no_split_of_it_costs_more(epsilon):
    from scipy.special import log_ndtr

    mu = float(gaussian_of_laplace(epsilon))
    assert log_ndtr(-mu / 2) == pytest.approx(-epsilon / 2 - math.log(2), rel=1e-9)
    assert mu < float(gaussian_of_pure(epsilon))
    told = np.linspace(0.0, epsilon, 2001)
    delta = -np.expm1((told - epsilon) / 2)  # of Laplace, exactly
    assert (delta <= np.asarray(gaussian_delta(mu, told).upper) + 1e-15).all()
    less = np.asarray(gaussian_delta(mu * (1 - 1e-6), told).upper)
    assert (delta > less).any()
    found = gaussian_with_slack(privacy_curve(Laplace(1 / epsilon)), 0.0)
    assert found.upper == pytest.approx(mu, rel=1e-9)
    # The ℓ1 norm split over several coordinates adds up to no more, and a linear bound would not.
    for parts in ([0.5, 0.5], [0.9, 0.1], [1 / 3] * 3, [0.7, 0.2, 0.1], [0.01] * 100):
        each = np.asarray(gaussian_of_laplace(epsilon * np.array(parts)))
        assert (each**2).sum() <= mu**2 * (1 + 1e-9)
    half = float(gaussian_of_laplace(epsilon / 2))
    assert half**2 < 0.501 * mu**2


def one_direction(p: list[float], q: list[float]) -> PrivacyCurve:
    class Forward:
        def delta(self, epsilon):
            found = exact(np.array(p), np.array(q), epsilon)
            return Bounds(found, found)

        def epsilon(self, delta):
            return invert(self.delta, delta)

    return PrivacyCurve(Forward())


def test_a_profile_of_one_direction_is_caught_where_the_other_is_larger():
    p, q = [0.5, 0.5, 0.0], [0.45, 0.45, 0.1]
    both = privacy_curve(Finite(p, q))
    lesser = float(gaussian_with_slack(one_direction(p, q), 0.01).upper)
    assert gaussian_with_slack(both, 0.01).upper == math.inf  # one outcome tells all, in 0.1
    assert exact(np.array(q), np.array(p), np.array([5.0])) > 0.01 + float(
        gaussian_delta(lesser, 5.0).upper
    )


def test_a_grid_without_the_chords_is_caught(monkeypatch):
    def points_only(mu, chords):
        looks, s = chords.looks, chords.slack
        allowed = s + (1 - s) * gaussian_delta(mu[:, None], looks.epsilon).upper
        return (looks.upper <= allowed)[:, 1:] & (looks.upper <= allowed)[:, :-1]

    curve = privacy_curve(Repeated(Finite([0.9, 0.1], [0.4, 0.6]), 3))
    good = float(gaussian_with_slack(curve, 1e-4).upper)
    monkeypatch.setattr(slack, "_holds_between", points_only)
    monkeypatch.setattr(slack, "_FIRST", 5)
    monkeypatch.setattr(slack, "_bound_without_slack", lambda mechanism: math.inf)
    bad = float(gaussian_with_slack(curve, 1e-4).upper)
    assert bad < good
    assert worst(curve, bad, 1e-4) > 1e-3
    assert worst(curve, good, 1e-4) <= 1e-12


def test_bounds_that_lie_apart_make_a_larger_gaussian():
    class Vague:
        def delta(self, epsilon):
            found = np.asarray(gaussian_delta(1.0, epsilon).upper)
            return Bounds(found / 2, np.minimum(found * 2, 1.0))

        def epsilon(self, delta):
            return invert(self.delta, delta)

    found = gaussian_with_slack(PrivacyCurve(Vague()), 1e-6)
    assert found.lower < 1.0 < found.upper


def test_shapes_and_errors():
    curve = privacy_curve(Repeated(Sampled(Gaussian(2.0), 0.1), 30))
    found = gaussian_with_slack(curve, [[1e-5, 1e-7], [0.0, 1e-5]])
    assert found.upper.shape == (2, 2)
    assert found.upper[0, 0] == found.upper[1, 1]
    assert isinstance(gaussian_with_slack(curve, 1e-5).upper, float)
    for bad in (-1e-9, 1.0, math.nan):
        with refused(InputError, "slack", 0, 1):
            gaussian_with_slack(curve, bad)
        with refused(InputError, "epsilon"):
            gaussian_of_pure(-1 + bad - bad if bad == bad else bad)


@pytest.mark.parametrize("mechanism", MECHANISMS[:3] + MECHANISMS[6:8], ids=lambda m: repr(m)[:40])
def test_the_regret_bounds_how_far_the_gaussian_is_from_the_mechanism(mechanism):
    curve = privacy_curve(mechanism)
    found = gaussian_summary(curve, 1e-6)
    assert found.mu == gaussian_with_slack(curve, 1e-6).upper
    epsilon = np.linspace(0, 30, 1501)
    told = found.slack + (1 - found.slack) * np.asarray(gaussian_delta(found.mu, epsilon).upper)
    gap = ((told - np.asarray(curve.delta(epsilon).upper)) / (1 + np.exp(epsilon))).max()
    assert gap <= found.regret <= gap + 0.01


def test_a_gaussian_has_no_regret_and_what_tells_all_no_gaussian():
    assert gaussian_summary(privacy_curve(Gaussian(2.0)), 0.0).regret < 3e-3
    with pytest.raises(RangeError, match="no Gaussian stands for this"):
        gaussian_summary(privacy_curve(Finite([0.9, 0.1, 0.0], [0.9, 0.0, 0.1])), 1e-6)
