"""Published values of accounting, each with its source."""

import math

import pytest

from apiece.accounting import EpsilonBudget, calibrate, privacy_curve
from apiece.accounting import exact as gdp
from apiece.assignment import Sample, assign
from apiece.budgets import Budgets
from apiece.mechanisms import Gaussian, Mechanism, Repeated, Sampled


def dp_sgd(z: float, q: float, steps: int) -> Mechanism:
    return Repeated(Sampled(Gaussian(z), q), steps)


def test_fast_accountants() -> None:
    """σ=1.5, q=.04, T=2250, δ=1e-5: RDP ε = 7.32911; PRV 6.77740, which adds its error of .01."""
    curve = privacy_curve(dp_sgd(1.5, 0.04, 2250))
    tight = curve.epsilon(1e-5)
    assert 6.77740 - 0.01 <= tight.upper <= 6.77740
    assert tight.lower <= tight.upper <= tight.lower * (1 + 1e-3)
    loose = privacy_curve(dp_sgd(1.5, 0.04, 2250), method="rdp").epsilon(1e-5).upper
    assert tight.upper < loose == pytest.approx(7.32911, rel=2e-4)


def test_noise_saved_by_a_tight_accountant() -> None:
    """ε=1, δ=1e-5, q=.00853, T=9375: z = 3.4375 by RDP, 3.208 by an accountant of error .01.

    What is needed for ε = 1 is 3.178 (the next test asks dp-accounting).
    """
    found = {
        method: calibrate(
            EpsilonBudget(1.0, 1e-5),
            sampling_probability=0.00853,
            steps=9375,
            method=method,
            precision=1e-4,
        ).value
        for method in ("pld", "rdp")
    }
    assert found["pld"] == pytest.approx(3.178, rel=1e-3)
    assert privacy_curve(dp_sgd(3.208, 0.00853, 9375)).epsilon(1e-5).upper == pytest.approx(
        0.98884, rel=1e-3
    )
    assert found["rdp"] == pytest.approx(3.4375, rel=2e-3)


def test_the_published_noise_is_more_than_is_needed() -> None:
    """dp-accounting on a finer grid, which bounds ε from above: z = 3.208 costs .9889, not 1."""
    pld = pytest.importorskip("dp_accounting.pld")
    dp = pytest.importorskip("dp_accounting")

    def theirs(z: float) -> float:
        event = dp.PoissonSampledDpEvent(0.00853, dp.GaussianDpEvent(z))
        accountant = pld.PLDAccountant(value_discretization_interval=2e-5)
        return float(accountant.compose(event, 9375).get_epsilon(1e-5))

    at_published = theirs(3.208)
    assert at_published == pytest.approx(0.9888, abs=2e-4)
    ours = privacy_curve(dp_sgd(3.208, 0.00853, 9375)).epsilon(1e-5)
    assert ours.lower <= at_published * (1 + 1e-6)
    assert at_published <= ours.upper * (1 + 2e-4)
    assert theirs(3.181) <= 1.0


def test_full_batch_gaussian_by_three_accountants() -> None:
    """Fifty steps at σ = 10.6147: μ = .66616; ε(1e-5) = 2.7510 (GDP), 2.9822 (RDP)."""
    mechanism = Repeated(Gaussian(10.614652581338738), 50)
    assert gdp.mu(mechanism) == pytest.approx(0.66616, abs=1e-5)
    exact = privacy_curve(mechanism, method="gdp").epsilon(1e-5)
    assert exact.upper == pytest.approx(2.7510, abs=5e-5)
    assert privacy_curve(mechanism).epsilon(1e-5) == exact
    assert privacy_curve(mechanism, method="rdp").epsilon(1e-5).upper == pytest.approx(
        2.9822, abs=3e-4
    )


def test_advantage_of_a_victim_when_all_ask_the_same() -> None:
    """Kaiser et al. 2026 Fig. 3: ε=8, δ=1e-12, n=50000, B=128, 5 epochs: advantage .15."""
    found = calibrate(
        EpsilonBudget(8.0, 1e-12),
        sampling_probability=128 / 50000,
        steps=round(5 * 50000 / 128),
        precision=1e-4,
    )
    assert found.achieved <= 8.0
    advantage = privacy_curve(found.mechanism).advantage()
    assert round(advantage.lower, 2) == round(advantage.upper, 2) == 0.15


def test_textbook_gaussian() -> None:
    """Balle and Wang 2018: calibration by the exact curve needs less noise than the textbook."""
    delta = 1e-5
    found = calibrate(
        EpsilonBudget(0.5, delta), sampling_probability=1.0, steps=1, method="gdp"
    ).value
    assert found < math.sqrt(2 * math.log(1.25 / delta)) / 0.5
    assert found == pytest.approx(7.0262, rel=1e-3)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("share", "others", "advantage"), [(0.2, 2.0, 0.17), (0.8, 2.0, 0.31), (0.2, 32.0, 0.06)]
)
def test_advantage_of_a_victim_depends_on_others(
    share: float, others: float, advantage: float
) -> None:
    """Kaiser et al. 2026: .17 with 20 % at ε=2, .31 with 80 % at ε=2, .06 with 20 % at ε=32."""
    budgets = Budgets.from_groups(
        [("victim", 8.0, 1 - share), ("others", others, share)], 50000, 1e-12
    )
    plan = assign(
        budgets, Sample(), steps=round(5 * 50000 / 128), expected_batch_size=128, clip_norm=1.0
    )
    assert round(plan.curve("victim").advantage().upper, 2) == advantage
