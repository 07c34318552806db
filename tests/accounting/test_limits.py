"""What each kind of budget takes for spent: an upper bound on the number that it limits."""

import math
from typing import Any

import pytest
from scipy.stats import norm

from apiece.accounting import (
    AdvantageBudget,
    EpsilonBudget,
    ExcessBudget,
    MuBudget,
    PowerBudget,
    excess,
    privacy_curve,
)
from apiece.errors import InputError
from apiece.mechanisms import Gaussian, Repeated, Sampled

BASELINE = privacy_curve(Gaussian(2.0), method="gdp")


@pytest.mark.parametrize("mu", [0.05, 0.5, 2.0])
def test_each_number_of_a_gaussian(mu: float) -> None:
    """All of them have closed forms: the power Φ(Φ⁻¹(α) + μ), the advantage 2Φ(μ/2) − 1."""
    curve = privacy_curve(Gaussian(1 / mu), method="gdp")
    assert MuBudget(1.0).spent(curve) == pytest.approx(mu, rel=1e-14)
    spent, wanted = AdvantageBudget(0.5).spent(curve), 2 * norm.cdf(mu / 2) - 1
    assert wanted <= spent <= wanted * (1 + 1e-9)
    assert EpsilonBudget(1.0, 1e-5).spent(curve) == curve.epsilon(1e-5).upper
    assert ExcessBudget(0.5, BASELINE).spent(curve) == excess(BASELINE, curve).forward.upper


@pytest.mark.parametrize("rate", [1e-6, 1e-3, 0.2, 0.7])
@pytest.mark.parametrize("mu", [0.05, 0.5, 2.0])
def test_a_power_is_never_below_the_truth_and_close_about_its_limit(mu: float, rate: float) -> None:
    power = float(norm.cdf(norm.ppf(rate) + mu))
    for limit in (power, (power + rate) / 2, (1 + power) / 2):
        spent = PowerBudget(limit, rate).spent(privacy_curve(Gaussian(1 / mu), method="gdp"))
        assert power * (1 - 1e-12) <= spent <= 1
        if limit >= power:
            assert spent <= power * (1 + 1e-4)


def test_a_power_is_that_of_the_curve() -> None:
    curve = privacy_curve(Repeated(Sampled(Gaussian(1.0), 0.01), 500))
    for rate in (1e-3, 0.1):
        whole = float(curve.true_positive_rate(rate))
        assert PowerBudget(whole, rate).spent(curve) == pytest.approx(whole, rel=1e-4)


@pytest.mark.parametrize(
    "make",
    [
        lambda: EpsilonBudget(0.0, 1e-5),
        lambda: EpsilonBudget(1.0, 1.0),
        lambda: EpsilonBudget(math.nan, 1e-5),
        lambda: AdvantageBudget(0.0),
        lambda: AdvantageBudget(1.5),
        lambda: PowerBudget(0.1, 0.2),
        lambda: MuBudget(math.inf),
        lambda: ExcessBudget(-0.1, BASELINE),
    ],
)
def test_bad_budgets(make: Any) -> None:
    with pytest.raises(InputError):
        make()
