"""The door of assignment: settings, names, verification."""

import pytest

from apiece.assignment import STRATEGIES, Scale, Threshold, Uniform, assign, strategy_named
from apiece.budgets import Budgets
from apiece.errors import InfeasibleError, InputError, OptionError

BUDGETS = Budgets.from_groups([("strict", 0.4, 1.0), ("weak", 0.6, 3.0)], 100, 1e-5)
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
        strategy_named("sample", nois="mean")
    with pytest.raises(OptionError, match="did you mean 'strictest'"):
        Uniform("strictes")
    with pytest.raises(OptionError):
        assign(BUDGETS, Scale, **GOOD)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="give Budgets"):
        assign([1.0, 2.0], Scale(), **GOOD)  # type: ignore[arg-type]


def test_names_are_those_of_the_strategies() -> None:
    for name, strategy in STRATEGIES.items():
        assert strategy_named(name) == strategy()


def test_threshold_that_keeps_too_few_names_the_nearest() -> None:
    with pytest.raises(InfeasibleError, match="use at most 3"):
        assign(BUDGETS, Threshold(5.0), **GOOD)
    with pytest.raises(InfeasibleError, match="use at most 1"):
        assign(BUDGETS, Threshold(2.0), **(GOOD | {"expected_batch_size": 80}))
