"""The contour integral: quadrature, tail and sum, each against something independent."""

import math

import mpmath as mp
import numpy as np
import pytest

from apiece._types import Floats
from apiece.accounting import epsilons
from apiece.accounting.accuracy import Accuracy
from apiece.accounting.contour.moments import Steps, gauss_legendre, log_modulus
from apiece.accounting.contour.profile import epsilon_bounds
from apiece.accounting.lattice.pairs import GaussianPair
from apiece.accounting.lattice.profile import Composition


def steps(z: float, q: float, reach: float = 7.5, count: int = 224) -> Steps:
    columns = (np.array([[value]]) for value in (z, q, -reach, reach + 1 / z))
    return Steps.of(*columns, count)  # type: ignore[call-arg, arg-type]


@pytest.mark.parametrize("count", [40, 900])
def test_gauss_legendre(count: int) -> None:
    """Moments to order 60, and the outermost weight by the textbook's formula in 30 digits."""
    end, weight = gauss_legendre(count)
    x = np.concatenate([end - 1, 1 - end])
    for power in (0, 2, 20, 60):
        assert np.tile(weight, 2) @ x**power == pytest.approx(2 / (power + 1), rel=1e-13)
    with mp.workdps(30):
        node = mp.findroot(lambda t: mp.legendre(count, t), mp.mpf(1) - end[0], verify=False)
        slope = count * mp.legendre(count - 1, node) / (1 - node**2)
        wanted = 2 / ((1 - node**2) * slope**2)
    assert end[0] == pytest.approx(float(1 - node), rel=1e-13)
    assert weight[0] == pytest.approx(float(wanted), rel=1e-12)


def moment(z: float, q: float, order: complex, ends: tuple[float, float]) -> complex:
    """The truncated moment in 30 digits."""
    with mp.workdps(30):

        def integrand(u: mp.mpf) -> mp.mpc:
            ratio = 1 - q + q * mp.exp(u / z - mp.mpf(1) / (2 * mp.mpf(z) ** 2))
            return mp.npdf(u) * ratio ** mp.mpmathify(order)

        return complex(mp.quad(integrand, mp.linspace(ends[0], ends[1], 17)))


@pytest.mark.parametrize(("z", "q"), [(1.0, 0.01), (0.6, 0.1), (4.0, 0.7), (0.4, 1e-4)])
@pytest.mark.parametrize("order", [5.0, -4.0])
@pytest.mark.parametrize("count", [56, 160])
def test_moments_are_within_their_error(z: float, q: float, order: float, count: int) -> None:
    """For few nodes too, where the error is large and must be said to be."""
    step, y = steps(z, q, count=count), 4.0
    column = np.array([[order]])
    law = step.weights(column)
    error, phase = step.error(column, np.array([[y]]), law)
    for imaginary in (0.0, y):
        turned = (law.share * np.exp(1j * imaginary * step.ratio)).sum()
        found = complex(turned) * math.exp(float(law.log_total[0, 0]))
        exact = moment(z, q, complex(order, imaginary), (step.edge[0, 0], step.edge[0, -1]))
        off = abs(found - exact) / math.exp(float(law.log_total[0, 0]))
        assert off <= float(error[0, 0] + imaginary * phase[0, 0])
    if count == 160 and z >= 1:
        assert float(error[0, 0]) < 1e-8


def test_too_few_nodes_are_off_by_more_than_rounding() -> None:
    """Negative control: without the bound on quadrature the error bound would not hold."""
    step, column = steps(0.4, 0.1, count=24), np.array([[-4.0]])
    law = step.weights(column)
    exact = moment(0.4, 0.1, -4.0, (step.edge[0, 0], step.edge[0, -1]))
    off = abs(math.exp(float(law.log_total[0, 0])) / exact.real - 1)
    assert 1e-11 < off < float(step.error(column, np.zeros((1, 1)), law)[0][0, 0])


@pytest.mark.parametrize(("z", "q"), [(1.0, 0.01), (0.5, 1e-3), (20.0, 0.3), (1.3, 1e-6)])
@pytest.mark.parametrize("order", [2.0, -6.0])
def test_slabs_bound_the_modulus(z: float, q: float, order: float) -> None:
    """From each frequency on, over five decades; and not trivially."""
    step, column = steps(z, q, count=900), np.array([[order]])
    law = step.weights(column)
    mass, width = step.slabs(column, law.log_total + 1e-12)
    assert 0.5 < mass.sum() <= 1
    y = np.geomspace(0.1, 30, 60)[None, :] / np.sqrt(law.variance)
    bound = log_modulus((mass, width), y)[0]
    turned = np.exp(1j * y[0][:, None] * step.ratio) @ law.share[0]
    assert (np.log(np.abs(turned)) <= bound + 1e-9).all()
    assert bound[-1] < -0.1


def exact_delta(z: float, q: float, times: int, epsilon: float, tilt: float) -> float:
    """δ(ε) of the remove direction by quadrature on another contour, in 20 digits."""
    with mp.workdps(20):
        grid = [mp.mpf(k) / 8 for k in range(-8 * 10, 8 * 15)]
        ratios = [mp.log1p(q * mp.expm1(u / z - mp.mpf(1) / (2 * mp.mpf(z) ** 2))) for u in grid]
        mass = [mp.npdf(u) / 8 for u in grid]

        def integrand(y: mp.mpf) -> mp.mpf:
            s = mp.mpc(tilt, y)
            total = mp.fsum(m * mp.exp(s * ratio) for m, ratio in zip(mass, ratios, strict=True))
            return (total**times * mp.exp((1 - s) * epsilon) / (s * (s - 1))).real

        # the trapezoidal rule converges geometrically for integrands like this one
        step = mp.mpf(1) / 2
        values = [integrand(k * step) for k in range(1, 80)]
        return float((integrand(mp.mpf(0)) / 2 + mp.fsum(values)) * step / mp.pi)


def settings(count: int, seed: int) -> Floats:
    random = np.random.default_rng(seed)
    q, z = 10 ** random.uniform(-5, 0, count), 10 ** random.uniform(-0.5, 2, count)
    times = np.floor(10 ** random.uniform(1.3, 5.5, count))
    return np.stack([z, q, times, 10 ** random.uniform(-15, -3, count)])


def test_agrees_with_the_lattice() -> None:
    """Both bounds meet those of another method, on a fine lattice; most settings are covered."""
    columns = settings(40, 7)
    lower, upper = epsilon_bounds(*columns)
    found = np.isfinite(upper)
    assert found.mean() > 0.6
    for k in np.flatnonzero(found):
        z, q, times, delta = columns[:, k]
        curve = Composition(((GaussianPair(z, q), int(times)),), Accuracy(gap=2e-4))
        low, high = (float(end[0]) for end in curve.epsilon(np.array([delta])))
        assert lower[k] <= high * (1 + 1e-12)
        assert upper[k] >= low * (1 - 1e-12)


def test_nothing_depends_on_its_neighbours() -> None:
    """Bit for bit: in another order, doubled, and alone."""
    columns = settings(60, 8)
    lower, upper = epsilon_bounds(*columns)
    order = np.random.default_rng(0).permutation(60)
    for chosen in (order, np.repeat(order, 2), order[:1], order[1:4]):
        some = epsilon_bounds(*columns[:, chosen])
        assert np.array_equal(some.lower, lower[chosen])
        assert np.array_equal(some.upper, upper[chosen])


def test_extreme_settings_beside_ordinary_ones() -> None:
    """q of 0 and 1, one step, a million steps, δ down to 1e-15, heavy tails, in one call."""
    z = np.array([1.0, 1.0, 1.0, 50.0, 0.35, 2.0, 2.0, 1.0])
    q = np.array([0.0, 1.0, 0.3, 0.01, 1e-5, 0.02, 0.02, 1e-6])
    times = np.array([10, 10, 1, 10**6, 500, 1465, 1465, 10**6])
    delta = np.array([1e-5, 1e-15, 1e-9, 1e-10, 1e-9, 1e-3, 1e-15, 1e-12])
    names = ("noise_multiplier", "sampling_probability", "steps", "delta")
    together = epsilons(**dict(zip(names, (z, q, times, delta), strict=True)))
    assert together.upper[0] == 0
    assert (together.upper - together.lower <= 1e-3 * np.maximum(together.upper, 0.01)).all()
    for k, entry in enumerate(zip(z, q, times, delta, strict=True)):
        alone = epsilons(**dict(zip(names, entry, strict=True)))
        assert (alone.lower, alone.upper) == (together.lower[k], together.upper[k])


def test_many_values_of_delta_share_a_curve() -> None:
    """From 32 on; both ways give bounds on the same number."""
    delta = np.geomspace(1e-9, 1e-4, 40)
    setting = {"noise_multiplier": 1.0, "sampling_probability": 0.02, "steps": 300}
    many, few = epsilons(delta=delta, **setting), epsilons(delta=delta[::4], **setting)
    assert (few.lower <= many.upper[::4]).all()
    assert (many.lower[::4] <= few.upper).all()
    assert (few.upper - few.lower <= 1e-5 * few.upper).all()
