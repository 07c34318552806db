"""A second oracle: intervals of Arb, which are proved, against every kind of Gaussian answer.

Nothing here is shared with the accountant. Whatever is compared holds for certain: `a <= b` of two
Arb intervals is true only where every number of the one is at most every number of the other.
"""

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from apiece.accounting import privacy_curve
from apiece.accounting.renyi import divergence
from apiece.mechanisms import Gaussian, Repeated, Sampled
from apiece.numerics.gaussian import gaussian_delta

flint = pytest.importorskip("flint", reason="python-flint is not installed")
arb, acb, ctx = flint.arb, flint.acb, flint.ctx
FAR = 14  # standard deviations: a normal has 1e-44 left beyond


@pytest.fixture(autouse=True)
def _digits() -> Iterator[None]:
    before, ctx.prec = ctx.prec, 128
    yield
    ctx.prec = before


def normal(x: Any) -> Any:
    """Φ(x), of a real or complex interval."""
    return (-x / arb(2).sqrt()).erfc() / 2


def density(u: Any) -> Any:
    return (-u * u / 2).exp() / (2 * arb.pi()).sqrt()


def between(low: Any, high: Any) -> Any:
    """The interval from one number to a larger one."""
    return arb(low).union(arb(high))


def integral(f: Callable[[Any, bool], Any], left: Any, right: Any) -> Any:
    """∫ f over an interval, piece by piece: no pole of a logarithm is then near a wide piece."""
    left, right = arb(left), arb(right)
    count = int(float((right - left).mid()) * 3) + 1
    border = [left + (right - left) * k / count for k in range(count)] + [right]
    pieces = (acb.integral(f, acb(a), acb(b)) for a, b in itertools.pairwise(border))
    return sum(pieces, acb(0)).real


def gaussian(mu: Any, epsilon: float) -> Any:
    """δ(ε) of N(μ, 1) against N(0, 1): Balle and Wang 2018, Theorem 8."""
    e = arb(epsilon)
    return normal(mu / 2 - e / mu) - e.exp() * normal(-mu / 2 - e / mu)


def log_moment(z: float, q: float, order: float) -> Any:
    """log E_Q[r^α] of one sampled Gaussian step, by an integral and bounds on its tails."""
    z, q, a = arb(z), arb(q), arb(order)
    far = FAR + a / z

    def inside(u: Any, analytic: bool) -> Any:
        r = 1 - q + q * (u / z - 1 / (2 * z * z)).exp()
        return (a * r.log(analytic=analytic)).exp() * density(u)

    # r ≤ 1 + q·e^ρ, so r^α is at most 2^α·(1 + q^α·e^{αρ}); where ρ < 0 it is at most 1
    rare = (a * q.log() + (a * a - a) / (2 * z * z)).exp() * normal(a / z - far)
    above = arb(2) ** a * (normal(-far) + rare)
    return (integral(inside, -far, far) + between(0, above + normal(-far))).log()


class Step:
    """One sampled Gaussian step, in u = x/z, standard normal under Q."""

    def __init__(self, z: float, q: float) -> None:
        self.z, self.q = arb(z), arb(q)

    def ratio(self, u: Any) -> Any:
        return 1 - self.q + self.q * (u / self.z - 1 / (2 * self.z**2)).exp()

    def place(self, ratio: Any, analytic: bool = False) -> Any:
        """The u of a likelihood ratio above 1 − q."""
        inner = (ratio - (1 - self.q)) / self.q
        log = inner.log(analytic=analytic) if isinstance(inner, acb) else inner.log()
        return self.z * log + 1 / (2 * self.z)

    def above(self, u: Any) -> tuple[Any, Any]:
        """The P- and the Q-mass above u."""
        return (1 - self.q) * normal(-u) + self.q * normal(1 / self.z - u), normal(-u)

    def below(self, u: Any) -> tuple[Any, Any]:
        return (1 - self.q) * normal(u) + self.q * normal(u - 1 / self.z), normal(u)

    def of_two(self, epsilon: float) -> tuple[Any, Any]:
        """δ(ε) of two steps, remove and add: the second in closed form, the first an integral."""
        e, edge, strip = arb(epsilon).exp(), 1 - self.q, arb(2) ** -100

        def remove(u: Any, analytic: bool) -> Any:
            t = e / self.ratio(u)
            p, q = self.above(self.place(t, analytic))
            return density(u) * self.ratio(u) * (p - t * q)

        def add(u: Any, analytic: bool) -> Any:
            c = e * self.ratio(u)
            p, q = self.below(self.place(1 / c, analytic))
            return density(u) * (q - c * p)

        # up to where the second step's ratio need not exceed anything; both integrands are at most
        # r there, and beyond that the first is r − e^ε, the second 0
        top = self.place(e / edge)
        p, q = self.above(top)
        first = integral(remove, -FAR, top - strip) + p - e * q
        first += between(0, strip * (e / edge) + normal(arb(-FAR)))
        if not 1 / e > edge * edge:
            return first, arb(0)
        top = self.place(1 / (e * edge))
        left = min(-FAR, float(top.mid()) - FAR)
        second = integral(add, left, top - strip)
        return first, second + between(0, strip + normal(arb(left)))


@pytest.mark.parametrize("mu", [1e-3, 0.1, 1.0, 7.0, 60.0])
def test_gaussian_profiles(mu: float) -> None:
    """Bounds hold to the last bit, and lie within 1e-6 of one another down to δ = 1e-200."""
    for epsilon in np.append(0.0, np.geomspace(1e-6, 30 * mu + mu * mu, 40)).tolist():
        lower, upper = (float(end) for end in gaussian_delta(mu, epsilon))
        exact = gaussian(arb(mu), epsilon)
        assert arb(lower) <= exact
        assert upper == 1 or exact <= arb(upper)
        curve = privacy_curve(Gaussian(1 / mu)).delta(epsilon)
        z_exact = gaussian(1 / arb(1 / mu), epsilon)
        assert arb(float(curve.lower)) <= z_exact
        assert curve.upper == 1 or z_exact <= arb(float(curve.upper))
        if exact > 1e-200:
            assert upper - lower <= 1e-6 * upper


def test_a_bound_that_is_off_is_seen() -> None:
    """Negative control: a relative 1e-9 either way, and Rényi moments of Q's own ratio."""
    exact = gaussian(arb(1), 1.0)
    lower, upper = (float(end) for end in gaussian_delta(1.0, 1.0))
    assert not arb(lower * (1 + 1e-9)) <= exact
    assert not exact <= arb(upper * (1 - 1e-9))
    found = float(divergence(Sampled(Gaussian(1.0), 0.1), [3.0])[0])
    assert not log_moment(1.0, 0.1, 3.0) / 2 <= arb(found * (1 - 1e-9))


@pytest.mark.parametrize(("z", "q"), [(0.6, 0.01), (1.0, 0.2), (2.0, 1e-4), (8.0, 0.5), (1.5, 1.0)])
def test_renyi_moments_of_sampled_gaussians(z: float, q: float) -> None:
    """Never below, and a relative 1e-10 above, at whole and at other orders."""
    for order in (1.05, 1.5, 2.0, 4.7, 16.0, 40.0):
        found = float(divergence(Sampled(Gaussian(z), q), [order])[0])
        exact = log_moment(z, q, order) / (arb(order) - 1)
        assert exact <= arb(found)
        assert arb(found) <= exact * (1 + 1e-10) + 1e-15


@pytest.mark.parametrize(("z", "q"), [(0.8, 0.3), (1.2, 0.05), (3.0, 0.6)])
def test_two_sampled_steps(z: float, q: float) -> None:
    """Both bounds hold, of the larger direction, and of ε(δ) where δ is that of an ε."""
    step, curve = Step(z, q), privacy_curve(Repeated(Sampled(Gaussian(z), q), 2))
    for epsilon in (0.0, 0.05, 0.4, 1.5):
        remove, add = step.of_two(epsilon)
        lower, upper = (float(end) for end in curve.delta(epsilon))
        assert arb(lower) <= remove or arb(lower) <= add
        assert remove <= arb(upper)
        assert add <= arb(upper)
        assert upper - lower <= 2e-2 * upper + 1e-12
        least = float(remove.lower() if remove > add else add.lower())
        if least > 1e-30:
            assert float(curve.epsilon(least * (1 - 1e-9)).upper) >= epsilon
            assert float(curve.epsilon(min(least * (1 + 1e-9), 0.99)).lower) <= epsilon
