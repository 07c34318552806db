"""Δ-divergence by the identity, against the definition by search on trade-off functions."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import brentq
from scipy.special import ndtr, ndtri

from apiece._types import Floats
from apiece.accounting import Bounds, PrivacyCurve, excess, privacy_curve
from apiece.accounting.divergence import excesses
from apiece.accounting.exact import gaussian, sampled_add, sampled_remove
from apiece.errors import InputError
from apiece.mechanisms import Composed, Gaussian, Repeated, Sampled
from refusals import refused

ALPHA = np.concatenate([np.geomspace(1e-12, 0.5, 20000), np.linspace(0.5, 1, 20000)[1:]])


def power(mu: float, alpha: Floats) -> Floats:
    return ndtr(mu + ndtri(np.minimum(alpha, 1.0)))


def by_definition(mu: float, own: float) -> float:
    """inf{κ: f(α + κ) − κ ≤ f̃(α) for all α} for Gaussian trade-off functions."""

    def worst(kappa: float) -> float:
        return float((power(own, ALPHA) - power(mu, ALPHA + kappa) - kappa).max())

    return 0.0 if worst(0.0) <= 0 else float(brentq(worst, 0, 1, xtol=1e-13))


def curve(mu: float) -> PrivacyCurve:
    return privacy_curve(Gaussian(1 / mu), method="gdp")


@settings(max_examples=25, derandomize=True, deadline=None)
@given(st.floats(-4, 1), st.floats(-4, 1))
def test_identity_agrees_with_the_definition(log_promised: float, log_own: float) -> None:
    promised, own = 10**log_promised, 10**log_own
    found = excess(curve(promised), curve(own))
    for bounds, exact in (
        (found.forward, by_definition(promised, own)),
        (found.backward, by_definition(own, promised)),
    ):
        # The search over a finite set of α can miss the largest gap by its curvature, never
        # exceed it.
        assert bounds.lower <= exact + 1e-6 * exact + 1e-9
        assert exact <= bounds.upper + 1e-12
        assert bounds.upper - bounds.lower <= 1e-4 * bounds.upper + 1e-7


def test_many_pairs_at_once_are_each_as_alone() -> None:
    """Whatever is beside them: other shapes and noises, a curve that two share, no contour."""
    makes = {
        "little noise": lambda: privacy_curve(Repeated(Sampled(Gaussian(0.5), 1e-3), 2000)),
        "much": lambda: privacy_curve(Repeated(Sampled(Gaussian(2.0), 0.1), 50)),
        "more": lambda: privacy_curve(Repeated(Sampled(Gaussian(2.2), 0.12), 50)),
        "plain": lambda: privacy_curve(Gaussian(1.0)),
        "one step": lambda: privacy_curve(Sampled(Gaussian(1.0), 0.3)),
    }
    names = [("much", "more"), ("more", "much"), ("little noise", "more"), ("plain", "much")]
    names += [("one step", "plain"), ("much", "little noise")]
    shared = {name: make() for name, make in makes.items()}
    together = excesses(
        [shared[one] for one, _ in names],
        [shared[other] for _, other in names],
        negligible=[1e-8, 1e-8, 1e-3, 1e-8, 1e-8, 1e-8],
    )
    for k, (one, other) in enumerate(names):
        alone = excess(makes[one](), makes[other](), negligible=1e-3 if k == 2 else 1e-8)
        assert together[k] == alone
    assert len({each.symmetric.upper for each in together}) >= 5  # they do differ


def test_what_is_negligible_is_not_resolved_but_counted_in() -> None:
    promised, own = (privacy_curve(Repeated(Sampled(Gaussian(z), 0.1), 50)) for z in (2.0, 1.9))
    exact, rough = excess(promised, own), excess(promised, own, negligible=0.05)
    assert rough.forward.lower <= exact.forward.lower <= exact.forward.upper
    assert exact.forward.upper <= rough.forward.upper <= exact.forward.upper + 0.05


@pytest.mark.parametrize("bad", [float("nan"), 0.0, -1e-3])
def test_negligible_is_a_positive_number(bad: float) -> None:
    curve = privacy_curve(Gaussian(2.0), method="gdp")
    with refused(InputError, "negligible"):
        excess(curve, curve, negligible=bad)


def test_which_argument_is_which() -> None:
    promised, exposed = curve(0.5), curve(1.0)
    worse, better = excess(promised, exposed), excess(exposed, promised)
    assert worse.forward.lower > 0.09
    assert worse.backward == (0.0, 0.0)
    assert better.forward == (0.0, 0.0)
    assert better.backward == worse.forward
    assert worse.symmetric == worse.forward == better.symmetric


class Step:
    """One subsampled Gaussian step in closed form, both directions."""

    def __init__(self, z: float, q: float) -> None:
        self.z, self.q = z, q

    def delta(self, epsilon: Floats) -> Bounds:
        pair = [
            f(lambda e: gaussian(self.z, e), self.q, epsilon) for f in (sampled_remove, sampled_add)
        ]
        return Bounds(np.maximum(*(b.lower for b in pair)), np.maximum(*(b.upper for b in pair)))

    def epsilon(self, delta: Floats) -> Bounds:
        raise NotImplementedError


def test_curves_that_cross_have_both_directions() -> None:
    """Little noise, rarely sampled, against more noise at every step: neither dominates."""
    rare, steady = PrivacyCurve(Step(0.5, 0.1)), PrivacyCurve(Step(2.0, 0.6))
    found = excess(steady, rare)
    assert found.forward.lower > 1e-3
    assert found.backward.lower > 1e-3
    assert found.symmetric.upper == max(found.forward.upper, found.backward.upper)
    # A dense grid gives a lower bound that must lie inside.
    epsilon = np.linspace(0, 12, 200001)
    ours, theirs = rare.delta(epsilon), steady.delta(epsilon)
    for bounds, top, bottom in ((found.forward, ours, theirs), (found.backward, theirs, ours)):
        dense = float(((top.lower - bottom.lower) / (1 + np.exp(epsilon))).max())
        assert bounds.lower - 1e-9 <= dense <= bounds.upper
        assert bounds.upper - bounds.lower < 2e-4 * bounds.upper


def test_upper_end_holds_between_nodes() -> None:
    """A curve that is known only coarsely widens the bounds, and they still contain the value."""

    class Blurred(Step):
        def delta(self, epsilon: Floats) -> Bounds:
            lower, upper = super().delta(epsilon)
            return Bounds(lower * 0.9, np.minimum(upper * 1.1, 1.0))

    sharp = excess(PrivacyCurve(Step(2.0, 0.6)), PrivacyCurve(Step(0.5, 0.1)))
    blurred = excess(PrivacyCurve(Blurred(2.0, 0.6)), PrivacyCurve(Blurred(0.5, 0.1)))
    for wide, narrow in zip(blurred, sharp, strict=True):
        assert wide.lower <= narrow.lower <= narrow.upper <= wide.upper


def test_zero_exactly_where_one_plainly_dominates() -> None:
    few, many = (
        privacy_curve(Repeated(Sampled(Gaussian(1.0), 0.1), t), method="rdp") for t in (5, 6)
    )
    assert excess(many, few).forward == (0.0, 0.0)
    assert excess(few, few).symmetric == (0.0, 0.0)
    assert excess(few, many).forward.upper > 0
    nothing = privacy_curve(Composed(), method="gdp")
    assert excess(few, nothing).forward == (0.0, 0.0)
    assert math.isclose(
        excess(nothing, curve(1.0)).forward.upper, curve(1.0).advantage().upper / 2, rel_tol=1e-4
    )


def test_from_full_protection_to_none_is_at_most_a_half() -> None:
    """Two worlds that a test tells apart for sure: Bayes success ½ against 1 at even odds."""
    found = excess(curve(1e-6), curve(50.0))
    assert found.forward.upper == pytest.approx(0.5, abs=1e-5)


def test_one_shape_is_compared_by_its_parameters() -> None:
    """Where a rounding makes the noise smaller by one part in 1e15, Δ is about as small."""

    def nested(z: float, q: float, coin: float) -> PrivacyCurve:
        inner = Repeated(Sampled(Gaussian(z), q), 20)
        return PrivacyCurve(Step(z, q), mechanism=Repeated(Sampled(inner, coin), 3))

    promised = nested(1.0, 0.1, 0.5)
    assert excess(promised, nested(1.0 - 1e-15, 0.1, 0.5)).forward.upper < 1e-13
    assert excess(promised, nested(1.0, 0.1 + 1e-16, 0.5)).forward.upper < 1e-13
    assert excess(promised, nested(1.1, 0.09, 0.5)).forward.upper == 0.0
    assert excess(promised, nested(0.7, 0.1, 0.5)).forward.upper > 1e-3


@settings(max_examples=20, derandomize=True, deadline=None)
@given(st.floats(0.3, 3), st.floats(0.01, 1), st.floats(0.9, 1.1), st.floats(0.9, 1.1))
def test_distance_of_parameters_bounds_the_divergence(
    z: float, q: float, more: float, rate: float
) -> None:
    other = (z * more, min(1.0, q * rate))
    plain = excess(PrivacyCurve(Step(z, q)), PrivacyCurve(Step(*other)))
    named = excess(
        PrivacyCurve(Step(z, q), mechanism=Sampled(Gaussian(z), q)),
        PrivacyCurve(Step(*other), mechanism=Sampled(Gaussian(other[0]), other[1])),
    )
    assert named.forward.upper <= plain.forward.upper
    assert plain.forward.lower <= named.forward.upper + 1e-15


def test_crossing_curves_by_the_definition() -> None:
    """κ = forward satisfies f(α + κ) − κ ≤ f̃(α) at every α, and 1 % less does not."""
    promised, own = PrivacyCurve(Step(2.0, 0.6)), PrivacyCurve(Step(0.5, 0.1))
    alpha = np.concatenate([np.geomspace(1e-9, 0.5, 3000), np.linspace(0.5, 1, 1000)])

    def worst(baseline: PrivacyCurve, curve: PrivacyCurve, kappa: float) -> float:
        shifted = baseline.tradeoff(np.minimum(alpha + kappa, 1.0))
        return float((shifted - kappa - curve.tradeoff(alpha)).max())

    found = excess(promised, own)
    for one, other, bounds in ((promised, own, found.forward), (own, promised, found.backward)):
        assert worst(one, other, bounds.upper) <= 1e-8
        assert worst(one, other, 0.99 * bounds.lower) > 1e-6
