"""Calibration returns the safe end, closely, for every parameter and kind of budget."""

import dataclasses
from typing import Any

import pytest

from apiece.accounting import (
    AdvantageBudget,
    EpsilonBudget,
    ExcessBudget,
    MuBudget,
    PowerBudget,
    PrivacyCurve,
    calibrate,
    privacy_curve,
)
from apiece.accounting.calibration import Budget
from apiece.errors import InfeasibleError, InputError, RangeError, UnsupportedError
from apiece.mechanisms import Gaussian, Repeated, Sampled

BASELINE = privacy_curve(Gaussian(2.0), method="gdp")
BUDGETS: list[Budget] = [
    EpsilonBudget(1.0, 1e-5),
    EpsilonBudget(1e-3, 1e-12),
    EpsilonBudget(12.0, 1e-15),
    AdvantageBudget(0.1),
    PowerBudget(0.01, 1e-3),
    PowerBudget(0.9, 0.2),
    MuBudget(0.5),
    ExcessBudget(0.05, BASELINE),
]


@pytest.mark.parametrize("budget", BUDGETS, ids=lambda b: f"{type(b).__name__}-{b.limit:g}")
@pytest.mark.parametrize("parameter", ["noise_multiplier", "steps"])
def test_safe_and_close_for_every_budget(budget: Budget, parameter: str) -> None:
    given_ = {"noise_multiplier": {"steps": 100}, "steps": {"noise_multiplier": 100.0}}[parameter]
    try:
        found = calibrate(budget, sampling_probability=1.0, method="gdp", **given_)  # type: ignore[arg-type]
    except InfeasibleError:
        # One step of z = 100 is too much.
        assert (budget.limit, parameter) == (1e-3, "steps")
        return
    curve = privacy_curve(found.mechanism, method="gdp")
    assert budget.spent(curve) == found.achieved <= budget.limit
    assert not found.saturated
    bolder: dict[str, Any] = {
        "noise_multiplier": Repeated(Gaussian(found.value * (1 - 3e-6)), 100),
        "steps": Repeated(Gaussian(100.0), int(found.value) + 1),
    }
    assert budget.spent(privacy_curve(bolder[parameter], method="gdp")) > budget.limit


@pytest.mark.parametrize(
    ("parameter", "start"),
    [
        ("noise_multiplier", {"sampling_probability": 0.02, "steps": 500}),
        ("sampling_probability", {"noise_multiplier": 1.0, "steps": 500}),
        ("steps", {"noise_multiplier": 1.0, "sampling_probability": 0.02}),
    ],
)
def test_every_parameter_of_the_subsampled_gaussian(
    parameter: str, start: dict[str, float]
) -> None:
    budget = EpsilonBudget(2.0, 1e-6)
    found = calibrate(budget, method="rdp", **start)  # type: ignore[arg-type]
    assert found.parameter == parameter
    assert found.achieved <= 2.0
    if parameter == "steps":
        step = Sampled(Gaussian(1.0), 0.02)
        more = privacy_curve(Repeated(step, int(found.value) + 1), method="rdp")
        assert budget.spent(more) > 2.0
    else:
        assert found.achieved == pytest.approx(2.0, rel=1e-5)


def test_plain_gaussian_in_closed_form() -> None:
    assert calibrate(
        MuBudget(0.5), noise_multiplier=100.0, sampling_probability=1.0, method="gdp"
    ).value == pytest.approx(2500, abs=1)


def test_saturation_is_said() -> None:
    found = calibrate(EpsilonBudget(8.0, 1e-5), noise_multiplier=30.0, steps=10, method="rdp")
    assert (found.value, found.saturated) == (1.0, True)
    assert found.achieved < 8.0


@dataclasses.dataclass(frozen=True)
class Clouded:
    """Grows with the steps, and is past the numerical range from some number on."""

    last: int
    limit: float = 1.0

    def spent(self, curve: PrivacyCurve) -> float:
        assert isinstance(curve.mechanism, Repeated)
        if curve.mechanism.times > self.last:
            raise RangeError("losses are past the numerical range")
        return 0.2 * curve.mechanism.times / self.last


@pytest.mark.parametrize("last", [1, 7, 5000, 62_390_272])
def test_an_end_of_the_numerical_range_is_said(last: int) -> None:
    """A fifth of the budget was spent in silence, after minutes beside the end of the range."""
    found = calibrate(
        Clouded(last),  # type: ignore[arg-type]
        noise_multiplier=1.0,
        sampling_probability=1.0,
        method="gdp",
    )
    assert last * (1 - 1e-3) - 1 <= found.value <= last
    assert (found.saturated, found.achieved <= 0.2) == (True, True)


@pytest.mark.parametrize("power", [0.5, 1.0, 2.5])
@pytest.mark.parametrize("most", [1, 2, 3, 1000, 999_999, 31_415_926])
def test_the_last_step_within_the_limit(most: int, power: float) -> None:
    looks = []

    @dataclasses.dataclass(frozen=True)
    class Exactly:
        limit: float = 1.0

        def spent(self, curve: PrivacyCurve) -> float:
            assert isinstance(curve.mechanism, Repeated)
            looks.append(curve.mechanism.times)
            return float((curve.mechanism.times / (most + 0.5)) ** power)

    found = calibrate(
        Exactly(),  # type: ignore[arg-type]
        noise_multiplier=1.0,
        sampling_probability=1.0,
        method="gdp",
    )
    assert (found.value, found.saturated) == (most, False)
    assert len(looks) <= 30


def test_infeasible_names_the_end_that_was_tried() -> None:
    with pytest.raises(InfeasibleError, match="one step already spends"):
        calibrate(
            EpsilonBudget(0.1, 1e-5), noise_multiplier=1.0, sampling_probability=1.0, method="gdp"
        )
    with pytest.raises(InfeasibleError, match="even noise_multiplier"):
        calibrate(EpsilonBudget(1e-9, 1e-12), sampling_probability=1.0, steps=10**7, method="gdp")


@pytest.mark.parametrize(
    "arguments",
    [{}, {"steps": 1}, {"steps": 1, "noise_multiplier": 1.0, "sampling_probability": 0.5}],
)
def test_just_one_is_missing(arguments: dict[str, float]) -> None:
    with pytest.raises(InputError, match="leave out just one"):
        calibrate(MuBudget(1.0), **arguments)  # type: ignore[arg-type]


def test_bad_parameters_are_named() -> None:
    for bad in ({"noise_multiplier": -1.0, "steps": 1}, {"sampling_probability": 2.0, "steps": 1}):
        with pytest.raises(InputError, match=next(iter(bad))):
            calibrate(AdvantageBudget(0.1), method="gdp", **bad)  # type: ignore[arg-type]
    with pytest.raises(UnsupportedError, match="not a plain Gaussian"):
        calibrate(MuBudget(1.0), sampling_probability=0.5, steps=10, method="rdp")
