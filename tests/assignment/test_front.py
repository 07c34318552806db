"""The door of assignment: settings, names, verification."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from apiece.assignment import Hybrid, Sample, Scale, Sequential, Strategy, Uniform, assign
from apiece.assignment.front import STRATEGIES, make_strategy
from apiece.budgets import Budgets
from apiece.contract import enforce
from apiece.errors import InputError, OptionError, VerificationError
from apiece.plan import Plan

BUDGETS = Budgets.from_groups([("strict", 1.0, 0.4), ("weak", 3.0, 0.6)], 100, 1e-5)
GOOD = {"steps": 5, "expected_batch_size": 10, "clip_norm": 1.0}


@pytest.mark.parametrize(
    ("setting", "value", "message"),
    [
        ("steps", 0, "steps = 0"),
        ("steps", 2.5, "steps = 2.5"),
        ("expected_batch_size", 101, "there are 100 records"),
        ("expected_batch_size", 0, "expected_batch_size = 0"),
        ("expected_batch_size", float("nan"), "expected_batch_size = nan"),
        ("clip_norm", -1, "clip_norm = -1"),
        ("clip_norm", float("inf"), "clip_norm = inf"),
        ("method", "pdl", "did you mean 'pld'"),
    ],
)
def test_settings_out_of_bounds(setting: str, value: object, message: str) -> None:
    with pytest.raises(InputError, match=message):
        assign(BUDGETS, Scale(), **(GOOD | {setting: value}))  # type: ignore[arg-type]


def test_unknown_names_carry_the_nearest() -> None:
    with pytest.raises(OptionError, match="did you mean 'sample'"):
        assign(BUDGETS, "sampel", **GOOD)
    with pytest.raises(OptionError, match="did you mean 'noise'"):
        make_strategy("sample", nois="mean")
    with pytest.raises(OptionError, match="did you mean 'strictest'"):
        Uniform("strictes")
    with pytest.raises(OptionError):
        assign(BUDGETS, Scale, **GOOD)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="give Budgets"):
        assign([1.0, 2.0], Scale(), **GOOD)  # type: ignore[arg-type]


def test_names_are_those_of_the_strategies() -> None:
    for name, strategy in STRATEGIES.items():
        assert make_strategy(name) == strategy()


EPSILON = np.repeat([1.0, 3.0], [30, 10])
FEW = {"steps": 4, "expected_batch_size": 8, "clip_norm": 1.0}


def notes(strategy: Strategy | str, bound: float | None) -> tuple[str, ...]:
    budgets = Budgets(EPSILON, 1e-4, excess=bound)
    plan = assign(budgets, strategy, **FEW)  # type: ignore[arg-type]
    assert Plan.from_json(plan.to_json()).notes == plan.notes
    return plan.notes


@pytest.mark.parametrize(
    "strategy", [pytest.param(Sample(), marks=pytest.mark.slow), Sequential(), "threshold"]
)
def test_what_pays_no_heed_says_so(strategy: Strategy | str) -> None:
    assert any("pays no heed to the bounds" in note for note in notes(strategy, 0.01))
    assert not any("bounds" in note for note in notes(strategy, None))
    assert not any("bounds" in note for note in notes(strategy, 1.0))


@pytest.mark.parametrize(
    "strategy", [Scale(), pytest.param(Hybrid(), marks=pytest.mark.slow), Uniform()]
)
def test_what_keeps_them_says_nothing(strategy: Strategy) -> None:
    assert not any("bounds" in note for note in notes(strategy, 0.01))


def test_what_the_contract_took_is_not_said_to_pay_no_heed() -> None:
    plan = enforce(Budgets(EPSILON, 1e-4, excess=0.9), **FEW)  # type: ignore[arg-type]
    assert plan.strategy == "sample"
    assert len(plan.notes) == 1


class Own:
    """A strategy of a user's own, that does what it is told."""

    name = "own"

    def __init__(self, plan: Any) -> None:
        self.plan = plan


@pytest.mark.parametrize(
    ("plan", "says"),
    [
        (lambda request: None, "returned a NoneType; return a Plan"),
        (lambda request: request.one_stage("own", 50.0, [0.1] * 3), r"shape \(3,\); give one"),
        (lambda request: request.one_stage("own", 50.0, [0.1]), r"shape \(1,\); give one"),
        (lambda request: request.one_stage("own", 50.0, [0.1, np.nan]), "NaN or infinite"),
        (lambda request: request.one_stage("own", np.nan, 0.1), "noise_stddev = nan"),
        (lambda request: request.one_stage("own", 50.0, [0.1, 1.2]), r"= 1.2: must be in \[0, 1\]"),
        (lambda request: request.one_stage("own", 50.0, 0.1, [1.0, -1]), r"clip_norm\[1\] = -1"),
        (lambda request: request.one_stage("own", 50.0, 0.0), "0 in every group; give some"),
        (lambda request: 1 / 0, r"raised ZeroDivisionError \(division by zero\); mend"),
        (lambda: None, "raised TypeError"),
        (
            lambda request: Scale().plan(replace(request, steps=4)),
            "4 steps and 2 groups, not",
        ),
    ],
)
def test_mistakes_in_a_strategy_of_ones_own_are_named(plan: Any, says: str) -> None:
    with pytest.raises(InputError, match=rf"^strategy own: .*{says}") as caught:
        assign(BUDGETS, Own(plan), **GOOD)
    assert "\n" not in str(caught.value)


def test_noise_that_is_too_low_is_the_strategys_and_not_the_budgets() -> None:
    with pytest.raises(VerificationError, match=r"^strategy own: .* find its noise for request"):
        assign(BUDGETS, Own(lambda request: request.one_stage("own", 0.5, 0.1)), **GOOD)


@pytest.mark.parametrize(
    ("strategy", "says"),
    [
        (Scale, r"a class; give an instance, as Scale\(\)"),
        (None, "a NoneType; give one of uni"),
    ],
)
def test_what_is_no_strategy(strategy: Any, says: str) -> None:
    with pytest.raises(InputError, match=says):
        assign(BUDGETS, strategy, **GOOD)
