"""Laws that every accountant keeps for every mechanism, and exact values that it must contain."""

import math

import mpmath as mp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from apiece._types import Floats
from apiece.accounting import PrivacyCurve, privacy_curve
from apiece.accounting import exact as closed
from apiece.accounting.choose import METHODS
from apiece.errors import UnsupportedError
from apiece.mechanisms import Composed, Gaussian, Laplace, Mechanism, Repeated, Sampled

DELTAS = np.array([1e-3, 1e-6, 1e-10, 1e-15])
STEP = Sampled(Gaussian(1.1), 0.05)
CATALOGUE: dict[str, Mechanism] = {
    "gaussian": Gaussian(1.3),
    "laplace": Laplace(2.0),
    "sampled gaussian": STEP,
    "sampled laplace": Sampled(Laplace(1.5), 0.2),
    "repeated sampled gaussian": Repeated(STEP, 20),
    "heterogeneous": Composed(Repeated(STEP, 5), Sampled(Gaussian(0.9), 0.01), Gaussian(4.0)),
    "with laplace": Composed(Gaussian(2.0), Repeated(Laplace(5.0), 3)),
    "nested": Sampled(Repeated(STEP, 10), 0.5),
    "nested gaussians": Sampled(Composed(Gaussian(2.0), Gaussian(3.0)), 0.3),
}
# What each accountant must handle; a mechanism dropped from it would go unnoticed otherwise.
CANNOT = {
    "rdp": set(),
    "gdp": set(CATALOGUE) - {"gaussian"},
    "pld": set(),
    "best": set(),
}
PAIRS = [(name, method) for method in METHODS for name in CATALOGUE if name not in CANNOT[method]]
laws = pytest.mark.parametrize(("name", "method"), PAIRS)


def same(one: PrivacyCurve, other: PrivacyCurve, rtol: float = 1e-9) -> None:
    """Two descriptions of one mechanism: equal bounds, but for the rounding of the description."""
    for a, b in zip(one.epsilon(DELTAS), other.epsilon(DELTAS), strict=True):
        np.testing.assert_allclose(a, b, rtol=rtol, atol=1e-12)


def below(less: PrivacyCurve, more: PrivacyCurve) -> None:
    """A mechanism that reveals no more must not get bounds that contradict it."""
    one, other = less.epsilon(DELTAS), more.epsilon(DELTAS)
    assert (one.lower <= other.upper).all()
    # Upper bounds themselves keep the order, within the accuracy of the accountant.
    assert (one.upper <= other.upper * (1 + 1.5e-3) + 1e-9).all()


@pytest.mark.parametrize(
    ("name", "method"), [(name, method) for method in METHODS for name in sorted(CANNOT[method])]
)
def test_what_is_not_handled_is_refused(name: str, method: str) -> None:
    with pytest.raises(UnsupportedError, match=r"Gaussian|Laplace"):
        privacy_curve(CATALOGUE[name], method=method)


@laws
def test_bounds_are_ordered_and_decrease(name: str, method: str) -> None:
    curve = privacy_curve(CATALOGUE[name], method=method)
    epsilon = curve.epsilon(DELTAS)
    assert (epsilon.lower <= epsilon.upper).all()
    assert (epsilon.lower >= 0).all()
    assert (np.diff(epsilon.upper) >= -1e-9).all()
    delta = curve.delta(np.linspace(0, 6, 25))
    assert (delta.lower <= delta.upper).all()
    assert ((delta.lower >= 0) & (delta.upper <= 1)).all()
    assert (np.diff(delta.upper) <= 1e-3 * delta.upper[:-1]).all()


@laws
def test_epsilon_and_delta_are_one_curve(name: str, method: str) -> None:
    curve = privacy_curve(CATALOGUE[name], method=method)
    epsilon = curve.epsilon(DELTAS)
    assert (curve.delta(epsilon.upper * (1 + 1e-9) + 1e-12).lower <= DELTAS).all()
    inside = epsilon.lower > 0
    at_lower = curve.delta(epsilon.lower * (1 - 1e-9)).upper
    assert (at_lower[inside] >= DELTAS[inside]).all()


@laws
@pytest.mark.parametrize("times", [2, 5])
def test_repeating_is_composing_copies(name: str, method: str, times: int) -> None:
    mechanism = CATALOGUE[name]
    same(
        privacy_curve(Repeated(mechanism, times), method=method),
        privacy_curve(Composed(*[mechanism] * times), method=method),
    )


@laws
def test_identities(name: str, method: str) -> None:
    mechanism = CATALOGUE[name]
    curve = privacy_curve(mechanism, method=method)
    for alike in (
        Composed(mechanism),
        Composed(Composed(), mechanism, Composed()),
        Repeated(mechanism, 1),
    ):
        same(privacy_curve(alike, method=method), curve)
    if not isinstance(mechanism, Sampled):
        same(privacy_curve(Sampled(mechanism, 1.0), method=method), curve)
        never = privacy_curve(Sampled(mechanism, 0.0), method=method)
        assert never.epsilon(1e-15).upper == never.advantage().upper == 0.0


@laws
def test_more_steps_reveal_more(name: str, method: str) -> None:
    mechanism = CATALOGUE[name]
    few, more = (privacy_curve(Repeated(mechanism, t), method=method) for t in (3, 4))
    below(few, more)
    below(privacy_curve(mechanism, method=method), few)


@pytest.mark.parametrize("method", ["pld", "rdp", "best"])
def test_monotone_in_noise_and_rate(method: str) -> None:
    def curve(z: float, q: float) -> PrivacyCurve:
        return privacy_curve(Repeated(Sampled(Gaussian(z), q), 30), method=method)

    for z in (0.5, 1.0, 5.0):
        below(curve(z * 1.05, 0.1), curve(z, 0.1))
        below(curve(z, 0.1), curve(z, 0.11))
    below(curve(1.0, 0.99), privacy_curve(Repeated(Gaussian(1.0), 30), method=method))


@pytest.mark.parametrize("method", ["pld", "best"])
@pytest.mark.parametrize("name", ["repeated sampled gaussian", "with laplace", "heterogeneous"])
def test_a_coin_before_it_all_amplifies(name: str, method: str) -> None:
    mechanism = CATALOGUE[name]
    below(
        privacy_curve(Sampled(mechanism, 0.5), method=method),
        privacy_curve(mechanism, method=method),
    )


gaussians = settings(max_examples=40, derandomize=True, deadline=None)


@gaussians
@given(st.floats(-0.5, 2.0), st.integers(1, 10**6), st.floats(3.0, 15.0), st.floats(0.9, 1.1))
@pytest.mark.parametrize("method", METHODS)
def test_contains_the_exact_gaussian(
    method: str, log_z: float, times: int, digits: float, aside: float
) -> None:
    z, delta = 10**log_z * math.sqrt(times), 10**-digits
    curve = privacy_curve(Repeated(Gaussian(z), times), method=method)
    epsilon = curve.epsilon(delta)
    with mp.workdps(50):
        whole = mp.mpf(z) / mp.sqrt(times)

        def exact(at: float) -> mp.mpf:
            half, centre = 1 / (2 * whole), mp.mpf(at) * whole
            return mp.ncdf(half - centre) - mp.exp(mp.mpf(at)) * mp.ncdf(-half - centre)

        # Description in doubles: z/√T is rounded once more inside, one part in 1e15.
        slack = 1 + mp.mpf(1e-11)
        assert exact(epsilon.upper) <= delta * slack
        if epsilon.lower > 0:
            assert exact(epsilon.lower) * slack >= delta
        at = float(epsilon.upper) * aside
        bounds = curve.delta(at)
        assert bounds.lower <= exact(at) * slack
        assert exact(at) <= bounds.upper * slack


def one_step(z: float, q: float, log_threshold: Floats, *, add: bool) -> Floats:
    """Mid-point of the closed form of one sampled step at any real ε (closed/test_forms.py)."""
    form = closed.sampled_add if add else closed.sampled_remove
    bounds = form(lambda e: closed.gaussian(z, e), q, log_threshold.ravel())
    middle = (bounds.lower + bounds.upper) / 2
    return np.asarray(middle.reshape(log_threshold.shape))


def few_steps(z: float, q: float, steps: int, epsilon: Floats, *, add: bool) -> Floats:
    """δ(ε) of a few sampled steps: the closed form for the last, quadrature over those before.

    Given a first output with likelihood ratio r, what is left is r·δ(ε − log r) of one step
    fewer, in expectation under the world in the denominator. The integrand is smooth but for one
    point, where what is left becomes certain or impossible; tanh-sinh nodes crowd there.
    """
    if steps == 1:
        return one_step(z, q, epsilon, add=add)
    low, high = -12 * z, 12 * z + 1
    edge = -(steps - 1) * math.log1p(-q)  # where the rest of the steps becomes trivial
    ratio_there = np.expm1(edge - epsilon if add else epsilon + edge) / q + 1
    with np.errstate(invalid="ignore", divide="ignore"):
        split = np.where(ratio_there > 0, z * z * np.log(ratio_there) + 0.5, low)
    split = np.clip(np.nan_to_num(split, nan=low), low, high)[:, None]
    total = np.zeros(epsilon.size)
    s = np.linspace(-3.3, 3.3, 141)
    bend, weight = np.tanh(math.pi / 2 * np.sinh(s)), math.pi / 2 * np.cosh(s) * (s[1] - s[0])
    weight = weight / np.cosh(math.pi / 2 * np.sinh(s)) ** 2
    for start, end in ((np.full_like(split, low), split), (split, np.full_like(split, high))):
        x = (start + end) / 2 + (end - start) / 2 * bend
        ratio = np.log1p(q * np.expm1((2 * x - 1) / (2 * z * z)))
        log_density = -0.5 * (x / z) ** 2 - math.log(z * math.sqrt(2 * math.pi))
        # In the add direction the denominator is the world with the record, r = 1/ratio.
        mass = np.exp(log_density + (0.0 if add else ratio)) * weight * (end - start) / 2
        rest = (epsilon[:, None] + (ratio if add else -ratio)).ravel()
        left = few_steps(z, q, steps - 1, rest, add=add).reshape(x.shape)
        total += (mass * left).sum(axis=1)
    return total


@pytest.mark.parametrize("method", ["pld", "rdp", "best"])
@settings(max_examples=10, derandomize=True, deadline=None)
@given(st.floats(0.4, 4.0), st.floats(-2.5, -0.05), st.integers(1, 3), st.floats(3.0, 15.0))
def test_contains_a_few_sampled_steps(
    method: str, z: float, log_q: float, steps: int, digits: float
) -> None:
    q, delta = 10**log_q, 10**-digits
    curve = privacy_curve(Repeated(Sampled(Gaussian(z), q), steps), method=method)
    epsilon = curve.epsilon(delta)

    def exact(at: float) -> float:
        return max(float(few_steps(z, q, steps, np.array([at]), add=a)[0]) for a in (False, True))

    slack = 1 + 1e-8  # of the quadrature
    assert exact(epsilon.upper) <= delta * slack
    if epsilon.lower > 0:
        assert exact(epsilon.lower) * slack >= delta
    for at in (0.0, float(epsilon.upper) / 2):
        bounds = curve.delta(at)
        assert bounds.lower <= exact(at) * slack
        assert exact(at) <= bounds.upper * slack


@settings(max_examples=24, derandomize=True, deadline=None)
@given(st.floats(0.3, 1.2), st.floats(-6.0, -3.0), st.integers(2, 3), st.floats(3.0, 15.0))
def test_contains_a_few_steps_with_rare_large_losses(
    z: float, log_q: float, steps: int, digits: float
) -> None:
    """Where losses are cut, and closely: what is left of δ(ε) at both ends is exact to 1e-8."""
    q, delta = 10**log_q, 10**-digits
    bounds = privacy_curve(Repeated(Sampled(Gaussian(z), q), steps)).epsilon(delta)
    exact = np.max(
        [few_steps(z, q, steps, np.array(bounds), add=add) for add in (False, True)], axis=0
    )
    slack = 1 + 1e-8  # of the quadrature
    assert exact[1] <= delta * slack
    assert bounds.lower == 0 or exact[0] * slack >= delta
    assert bounds.upper - bounds.lower <= 1e-3 * bounds.upper or bounds.upper < 0.01


@pytest.mark.parametrize(
    ("z", "q", "epsilon"), [(0.4, 1e-5, 0.05), (0.3, 1e-6, 1e-3), (0.5, 2e-6, 0.3)]
)
def test_the_quadrature_holds_in_heavy_tails(z: float, q: float, epsilon: float) -> None:
    """Against 30-digit quadrature of the closed form of one step, δ down to 1e-13."""

    def rest(at: mp.mpf) -> mp.mpf:
        level = 1 + mp.expm1(at) / q
        if level <= 0:
            return -mp.expm1(at)
        centre = z * mp.log(level)
        return q * (mp.ncdf(0.5 / z - centre) - level * mp.ncdf(-0.5 / z - centre))

    def integrand(x: mp.mpf) -> mp.mpf:
        ratio = 1 + q * mp.expm1((2 * x - 1) / (2 * mp.mpf(z) ** 2))
        return mp.npdf(x, 0, z) * ratio * rest(epsilon - mp.log(ratio))

    with mp.workdps(30):
        split = z * z * mp.log(mp.expm1(epsilon) / q + 1) + 0.5
        near = [
            split + sign * z * 10.0**k for k in (-5, -3, -1.5, -0.5, 0.5, 1.2) for sign in (-1, 1)
        ]
        exact = mp.quad(integrand, sorted([-20 * z, split, *near]))
    assert few_steps(z, q, 2, np.array([epsilon]), add=False)[0] == pytest.approx(
        float(exact), rel=1e-10
    )


def test_the_quadrature_has_converged_and_can_fail() -> None:
    """Against adaptive quadrature; and an ε that is 1 % too large is told apart."""
    z, q, at = 0.8, 0.2, 1.0
    both = [float(few_steps(z, q, 2, np.array([at]), add=a)[0]) for a in (False, True)]
    with mp.workdps(20):

        def integrand(x: mp.mpf) -> mp.mpf:
            ratio = 1 + q * mp.expm1((2 * x - 1) / (2 * z * z))
            left = float(at - mp.log(ratio))
            rest = float(one_step(z, q, np.array([left]), add=False)[0])
            return mp.npdf(x, 0, z) * ratio * rest

        exact = mp.quad(integrand, np.linspace(-12, 12, 25).tolist())
    assert both[0] == pytest.approx(float(exact), rel=1e-8)
    curve = privacy_curve(Repeated(Sampled(Gaussian(z), q), 2))
    assert curve.delta(at * 1.01).upper < max(both)
