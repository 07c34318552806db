"""Sampled Laplace: one to three steps against exact values, longer runs against dp-accounting."""

import math
from fractions import Fraction

import mpmath as mp
import numpy as np
import pytest

from apiece.accounting import privacy_curve
from apiece.mechanisms import Gaussian, Laplace, Repeated, Sampled
from tests.reference.sampled_laplace import SampledLaplace

SLACK = 1e-9  # of the quadrature, in δ
ENDS = np.array([1 + 1e-14, 1 - 1e-14])  # of 64-bit arithmetic, in ε


def settings(seed: int, count: int) -> list[tuple[float, float, int, float]]:
    """Random (b, q, steps, δ): rare coins, coins near 1 and none."""
    random, found = np.random.default_rng(seed), []
    for _ in range(count):
        coins = (
            10 ** random.uniform(-6, 0),
            10 ** random.uniform(-6, 0),
            1 - 10 ** random.uniform(-12, -0.3),
            1.0,
        )
        q, b = coins[int(random.integers(4))], 10 ** random.uniform(-1.2, 2.5)
        found.append((b, q, int(random.integers(1, 4)), 10 ** random.uniform(-15, -1)))
    return found


def assert_brackets(b: float, q: float, steps: int, delta: float) -> float:
    """Both ends of ε, and δ at two ε, against exact values; return the relative gap in ε."""
    curve, exact = privacy_curve(Repeated(Sampled(Laplace(b), q), steps)), SampledLaplace(b, q)
    lower, upper = curve.epsilon(delta)
    at_upper, at_lower = exact.larger(np.array([upper, lower]) * ENDS, steps)
    assert at_upper <= delta * (1 + SLACK)
    assert lower == 0 or at_lower * (1 + SLACK) >= delta
    assert upper <= steps * exact.loss(exact.end) * (1 + 1e-12)
    for at in (0.0, float(upper) / 2):
        low, high = curve.delta(at)
        value = float(exact.larger(np.array([at]), steps)[0])
        assert low <= value * (1 + SLACK) + 1e-300
        assert value <= high * (1 + SLACK)
    return float((upper - lower) / upper) if upper >= 0.01 else 0.0


FOUND = [
    (1.5, 1 - 1e-9, 2, 1e-14),  # the topmost atom was lost from above
    (1.5, 1 - 1e-9, 3, 1e-12),
    (0.7, 1 - 1e-7, 2, 1e-13),
    (3.0, 0.999, 2, 1e-10),
    (3.59, 9.5e-6, 3, 1.6e-15),  # few cells: half the mass at one end
    (50.7, 2.2e-4, 3, 9.6e-6),
    (182.7, 6.2e-6, 3, 9.4e-6),
    (0.1, 1e-6, 3, 1e-7),
]


@pytest.mark.parametrize(("b", "q", "steps", "delta"), FOUND)
def test_what_was_wrong_once(b: float, q: float, steps: int, delta: float) -> None:
    assert assert_brackets(b, q, steps, delta) <= 1e-3


@pytest.mark.parametrize("count", [8, pytest.param(2000, marks=pytest.mark.slow)])
def test_exact_values_are_contained(count: int) -> None:
    gaps = np.array([assert_brackets(*setting) for setting in settings(count, count)])
    assert gaps.max() <= 1e-3


@pytest.mark.parametrize("add", [False, True])
def test_the_oracle_itself(add: bool) -> None:
    """Two steps against 20-digit quadrature of what its definition says; and it can fail."""
    b, q, epsilon = mp.mpf("0.3"), mp.mpf("0.001"), mp.mpf("0.01")
    end = 1 / b

    def ratio(rho: mp.mpf) -> mp.mpf:
        return 1 + q * mp.expm1(rho)

    def expected(gain, split: list[mp.mpf]):  # type: ignore[no-untyped-def]
        atoms = gain(-end) / 2 + mp.exp(-end) / 2 * gain(end)
        inside = sorted({-end, end, *(s for s in split if -end < s < end)})
        return atoms + mp.quad(lambda rho: mp.exp(-(rho + end) / 2) / 4 * gain(rho), inside)

    def place(at: mp.mpf) -> mp.mpf:
        level = mp.expm1(at) / q + 1
        return mp.log(level) if level > 0 else -end

    def left(at: mp.mpf) -> mp.mpf:
        if add:
            return expected(lambda rho: max(1 - mp.exp(at) * ratio(rho), 0), [place(-at)])
        return expected(lambda rho: max(ratio(rho) - mp.exp(at), 0), [place(at)])

    def gain(rho: mp.mpf) -> mp.mpf:
        loss = mp.log(ratio(rho))
        return left(epsilon + loss) if add else ratio(rho) * left(epsilon - loss)

    with mp.workdps(20):
        ends = [mp.log(ratio(e)) for e in (-end, end)]
        exact = expected(gain, [place(-e - epsilon if add else epsilon - e) for e in ends])
    found = SampledLaplace(0.3, 0.001).delta(np.array([0.01], np.longdouble), 2, add=add)[0]
    assert float(found) == pytest.approx(float(exact), rel=1e-9, abs=1e-30)
    other = SampledLaplace(0.3, 0.00101).larger(np.array([0.01]), 2)[0]
    assert abs(other / float(found or 1) - 1) > 1e-3


def by_dp_accounting(b: float, q: float, steps: int, delta: float) -> tuple[float, float]:
    """ε from above (connect the dots) and its optimistic end, a thousandth of the loss a cell."""
    from dp_accounting.pld import privacy_loss_distribution as pld

    ends = [
        pld.from_laplace_mechanism(
            b,
            sampling_prob=q,
            value_discretization_interval=math.log1p(q * math.expm1(1 / b)) / 1000,
            pessimistic_estimate=pessimistic,
            use_connect_dots=pessimistic,
        )
        .self_compose(steps)
        .get_epsilon_for_delta(delta)
        for pessimistic in (True, False)
    ]
    return ends[0], ends[1]


@pytest.mark.parametrize("count", [2, pytest.param(200, marks=pytest.mark.slow)])
def test_longer_runs_agree_with_dp_accounting(count: int) -> None:
    """Its upper end is close to the truth. The other is no bound where that or Rényi refutes it.

    At b = 1.1714, q = .035459, 49 steps, δ = 1.394e-4 it is .5992 and its upper end .5978.
    """
    random = np.random.default_rng(count)
    for _ in range(count):
        b, q = 10 ** random.uniform(-0.3, 1.5), 10 ** random.uniform(-2.5, 0)
        steps, delta = int(10 ** random.uniform(0.6, 3)), 10 ** random.uniform(-8, -3)
        mechanism = Repeated(Sampled(Laplace(b), q), steps)
        lower, upper = privacy_curve(mechanism).epsilon(delta)
        above, below = by_dp_accounting(b, q, steps, delta)
        assert lower <= above * (1 + 1e-6), (b, q, steps, delta)
        assert above <= upper * (1 + 2e-3) + 1e-4, (b, q, steps, delta)
        if below <= min(above, privacy_curve(mechanism, method="rdp").epsilon(delta).upper):
            assert below <= upper * (1 + 1e-6), (b, q, steps, delta)
        assert upper < 0.01 or upper - lower <= 1e-3 * upper, (b, q, steps, delta)


def test_useless_bounds() -> None:
    lower, upper = privacy_curve(Repeated(Sampled(Laplace(2.0), 0.01), 1000)).epsilon(1e-5)
    assert 0.530 < lower <= upper < 0.531


def test_one_step_costs_no_more_than_its_pure_epsilon() -> None:
    """To the last bit: 1/b where that is rounded up, else the number after it."""
    for b in (0.01, 0.3, 1.0, 3.0, 7.0, 49.0, 1e6):
        upper = privacy_curve(Laplace(b)).epsilon(1e-25).upper
        assert Fraction(upper) * Fraction(b) >= 1
        assert Fraction(math.nextafter(upper, 0.0)) * Fraction(b) < 1


def test_pure_bounds_and_tiny_losses() -> None:
    """No upper ε above the pure one; a lower one below the truth where 10⁸ losses are 1e-6."""
    for b, steps in ((2.0, 4), (0.3, 7), (5.0, 100)):
        upper = privacy_curve(Repeated(Laplace(b), steps)).epsilon(1e-15).upper
        assert upper <= steps / b * (1 + 1e-14)
    total = privacy_curve(Gaussian(100.0)).advantage()  # the limit, to far less than 1e-4 of it
    lower, upper = privacy_curve(Repeated(Laplace(1e6), 10**8)).advantage()
    assert lower <= total.upper * (1 + 1e-4)
    assert total.lower <= upper * (1 + 1e-4)
    quiet = privacy_curve(Repeated(Sampled(Gaussian(1e6), 0.01), 1000)).advantage()
    exact = math.sqrt(1000 / (2 * math.pi)) * 1e-8  # one Gaussian, to far less than 1e-6 of it
    assert 1e-8 < quiet.lower <= exact * (1 + 1e-6)
    assert exact * (1 - 1e-6) <= quiet.upper < 1e-5
