"""Moments of complex order: nodes, quadrature and tail, against arithmetic in 30 digits."""

import math

import mpmath as mp
import numpy as np
import pytest

from apiece.accounting.contour.moments import Steps, gauss_legendre, log_modulus


def steps(z: float, q: float, reach: float = 7.5, count: int = 224, panels: int = 1) -> Steps:
    columns = [np.array([[value]]) for value in (z, q, -reach, reach + 1 / z)]
    return Steps.of(*columns, count, panels)  # type: ignore[call-arg]


def exact_rule(count: int, about: float) -> tuple[float, float]:
    """The distance from 1 of the node nearest to 1 − `about`, and its weight, in 30 digits."""
    with mp.workdps(30):
        x = 1 - mp.mpf(about)
        for _ in range(3):
            before, value = mp.mpf(1), x
            for k in range(1, count):
                before, value = value, ((2 * k + 1) * x * value - k * before) / (k + 1)
            slope = count * (before - x * value) / (1 - x * x)
            x, at = x - value / slope, x
        return float(1 - x), float(2 / ((1 - at * at) * slope**2))


@pytest.mark.parametrize("count", [40, 900, 2560])
def test_gauss_legendre(count: int) -> None:
    """Moments to order 60; nodes and weights from the end to the middle."""
    end, weight = gauss_legendre(count)
    x = np.concatenate([end - 1, 1 - end])
    for power in (0, 2, 20, 60):
        assert np.tile(weight, 2) @ x**power == pytest.approx(2 / (power + 1), rel=1e-13)
    for place in (0, *range(3, count // 2, count // 12)):
        node, wanted = exact_rule(count, end[place])
        assert end[place] == pytest.approx(node, rel=1e-14, abs=0)
        assert weight[place] == pytest.approx(wanted, rel=5e-14, abs=0)


def moment(z: float, q: float, order: complex, ends: tuple[float, float]) -> complex:
    """The truncated moment in 30 digits."""
    with mp.workdps(30):

        def integrand(u: mp.mpf) -> mp.mpc:
            ratio = 1 - q + q * mp.exp(u / z - mp.mpf(1) / (2 * mp.mpf(z) ** 2))
            return mp.npdf(u) * ratio ** mp.mpmathify(order)

        return complex(mp.quad(integrand, mp.linspace(ends[0], ends[1], 17)))


@pytest.mark.parametrize(("z", "q"), [(1.0, 0.01), (0.6, 0.1), (4.0, 0.7), (0.4, 1e-4)])
@pytest.mark.parametrize("order", [5.0, -4.0])
@pytest.mark.parametrize(
    ("count", "panels", "y"), [(56, 1, 4.0), (160, 1, 4.0), (64, 8, 4.0), (320, 8, 40.0)]
)
def test_moments_are_within_their_error(
    z: float, q: float, order: float, count: int, panels: int, y: float
) -> None:
    """For few nodes too, where the error is large and must be said to be."""
    step = steps(z, q, count=count, panels=panels)
    column = np.array([[order]])
    law = step.weights(column)
    error, phase = step.error(column, np.array([[y]]), law)
    for imaginary in (0.0, y):
        turned = (law.share * np.exp(1j * imaginary * step.ratio)).sum()
        found = complex(turned) * math.exp(float(law.log_total[0, 0]))
        exact = moment(z, q, complex(order, imaginary), (step.edge[0, 0], step.edge[0, -1]))
        off = abs(found - exact) / math.exp(float(law.log_total[0, 0]))
        assert off <= float(error[0, 0] + imaginary * phase[0, 0])
    if count >= 160 and z >= 1 and y < 10:
        assert float(error[0, 0]) < 1e-8


@pytest.mark.parametrize("panels", [1, 4])
def test_too_few_nodes_are_off_by_more_than_rounding(panels: int) -> None:
    """Negative control: without the bound on quadrature the error bound would not hold."""
    step, column = steps(0.4, 0.1, count=24, panels=panels), np.array([[-4.0]])
    law = step.weights(column)
    exact = moment(0.4, 0.1, -4.0, (step.edge[0, 0], step.edge[0, -1]))
    off = abs(math.exp(float(law.log_total[0, 0])) / exact.real - 1)
    assert 1e-11 < off < float(step.error(column, np.zeros((1, 1)), law)[0][0, 0])


@pytest.mark.parametrize(("z", "q"), [(1.0, 0.01), (0.5, 1e-3), (20.0, 0.3), (1.3, 1e-6)])
@pytest.mark.parametrize("order", [2.0, -6.0])
@pytest.mark.parametrize(("count", "panels"), [(900, 1), (1280, 8)])
def test_slabs_bound_the_modulus(z: float, q: float, order: float, count: int, panels: int) -> None:
    """From each frequency on, over five decades; and not trivially."""
    step, column = steps(z, q, count=count, panels=panels), np.array([[order]])
    law = step.weights(column)
    mass, width = step.slabs(column, law.log_total + 1e-12)
    assert 0.45 < mass.sum() <= 1
    y = np.geomspace(0.1, 30, 60)[None, :] / np.sqrt(law.variance)
    bound = log_modulus((mass, width), y)[0]
    turned = np.exp(1j * y[0][:, None] * step.ratio) @ law.share[0]
    assert (np.log(np.abs(turned)) <= bound + 1e-9).all()
    assert bound[-1] < -0.09
