"""Rare large losses, which the accountant takes out of its convolution, against one that does not.

The oracle shares no code with it: plain masses of a connect-the-dots lattice, composed by direct
convolution, in which every term is positive, so that every digit holds in the farthest tail. No
tilt, no FFT, no cut. Its own discretisation is a dominating one, whose error is seen by halving.
"""

import math

import numpy as np
import pytest
from scipy.special import log_ndtr, ndtr

from apiece._types import Floats
from apiece.accounting import privacy_curve
from apiece.mechanisms import Gaussian, Repeated, Sampled


def normal_masses(edges: Floats) -> Floats:
    """Masses of a standard normal between edges, from the tail on the side where they are small."""
    upper = edges[:-1] > 0
    with np.errstate(invalid="ignore"):
        near = np.where(upper, np.exp(log_ndtr(-edges[:-1])), ndtr(edges[1:]))
        far = np.where(upper, np.exp(log_ndtr(-edges[1:])), ndtr(edges[:-1]))
    return np.asarray(near - far)


def one_step(z: float, q: float, step: float, points: int) -> tuple[Floats, float]:
    """P-masses at log(1 − q) + k·step, mean-preserving, and the P-mass beyond the last."""
    ratio = np.exp(math.log1p(-q) + step * np.arange(points))
    with np.errstate(divide="ignore"):
        x = z * z * np.log(np.maximum(np.expm1(step * np.arange(points)) * (1 - q) / q, 0)) + 0.5
    edges = np.append(x, np.inf)
    mass_q, mass_1 = normal_masses(edges / z), normal_masses((edges - 1) / z)
    mass_p = (1 - q) * mass_q + q * mass_1
    high = np.clip((mass_p - ratio * mass_q)[:-1] / np.diff(ratio), 0.0, mass_q[:-1])
    q_mass = np.append(mass_q[:-1] - high, 0.0)
    q_mass[1:] += high
    return q_mass * ratio, float(mass_p[-1])


def convolve(one: tuple[Floats, float], other: tuple[Floats, float]) -> tuple[Floats, float]:
    """Compose, dropping what lies beyond the last point into the second member."""
    (a, lost_a), (b, lost_b) = one, other
    beyond = np.append(np.cumsum(b[::-1])[::-1][1:], 0.0)[::-1]  # b-mass above n − 1 − i
    lost = lost_a + lost_b - lost_a * lost_b + float(a @ beyond)
    return np.convolve(a, b)[: a.size], lost


def delta(z: float, q: float, steps: int, epsilon: float, step: float, points: int) -> float:
    power, result = one_step(z, q, step, points), None
    left = steps
    while True:
        if left & 1:
            result = power if result is None else convolve(result, power)
        left >>= 1
        if not left:
            break
        power = convolve(power, power)
    mass, lost = result
    above = steps * math.log1p(-q) + step * np.arange(points) - epsilon
    return float(mass @ -np.expm1(-np.maximum(above, 0.0))) + lost


def between(z: float, q: float, steps: int, epsilon: float, reach: float) -> tuple[float, float]:
    """δ(ε) from below and above: the error falls at least by half when the step does."""
    coarse, fine = (
        delta(z, q, steps, epsilon, reach / points, points) for points in (1 << 13, 1 << 14)
    )
    return 2 * fine - coarse, fine


@pytest.mark.parametrize(
    ("z", "q", "steps", "target", "reach"),
    [
        pytest.param(0.5, 1e-5, 300, 1e-9, 3.0, marks=pytest.mark.slow),
        pytest.param(0.35, 3e-6, 800, 1e-7, 8.0, marks=pytest.mark.slow),
        pytest.param(0.9, 1e-4, 500, 1e-12, 0.9, marks=pytest.mark.slow),
    ],
)
def test_heavy_tails_over_hundreds_of_steps(
    z: float, q: float, steps: int, target: float, reach: float
) -> None:
    lower, upper = privacy_curve(Repeated(Sampled(Gaussian(z), q), steps)).epsilon(target)
    assert upper - lower <= 1e-3 * upper
    assert between(z, q, steps, lower, reach)[1] >= target
    assert between(z, q, steps, upper, reach)[0] <= target
    # the oracle is sharp enough to refuse bounds that are 0.2 % off
    assert between(z, q, steps, lower * 1.002, reach)[1] < target
    assert between(z, q, steps, upper * 0.998, reach)[0] > target


def test_the_oracle_knows_one_step() -> None:
    """One sampled step has q times the Gaussian's δ at log(1 + (e^ε − 1)/q)."""
    z, q, epsilon = 0.5, 1e-3, 0.2
    level = math.log1p(math.expm1(epsilon) / q)
    exact = q * (ndtr(0.5 / z - level * z) - math.exp(level) * ndtr(-0.5 / z - level * z))
    low, high = between(z, q, 1, epsilon, 6.0)
    assert low * (1 - 1e-9) <= exact <= high * (1 + 1e-9)
    assert high - low < 1e-4 * exact
