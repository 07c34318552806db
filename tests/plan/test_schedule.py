"""Schedules: factors by step, and plans that carry one."""

import dataclasses
import json

import pytest

from apiece import Budgets, Plan, assign
from apiece.errors import InputError, OptionError
from apiece.plan import Schedule
from refusals import refused


@pytest.mark.parametrize(
    ("between", "middle"),
    [("hold", 4.0), ("linear", 2.5), ("cosine", 2.5), ("exponential", 2.0)],
)
def test_between_two_points(between: str, middle: float) -> None:
    schedule = Schedule(((2, 4.0), (6, 1.0)), between)
    assert [schedule.at(step) for step in (0, 2, 6, 99)] == [4.0, 4.0, 1.0, 1.0]
    assert schedule.at(4) == pytest.approx(middle)


def test_half_a_wave_starts_and_ends_flat() -> None:
    wave = Schedule(((0, 1.0), (1000, 0.0)), "cosine")
    assert 1 - wave.at(1) < 1e-5
    assert wave.at(500) - wave.at(501) > 1e-3


@pytest.mark.parametrize(
    "points",
    [(), ((3, 1.0), (3, 2.0)), ((-1, 1.0),), ((0, -1.0),), ((0, float("nan")),), ((0, 1.0, 2.0),)],
)
def test_refuses(points: tuple[tuple[int, float], ...]) -> None:
    with pytest.raises(InputError):
        Schedule(points)


def test_refuses_names_and_an_exponential_zero() -> None:
    with refused(OptionError, "linear"):
        Schedule(((0, 1.0),), "linaer")
    with refused(InputError, "exponential"):
        Schedule(((0, 1.0), (5, 0.0)), "exponential")


def test_a_plan_keeps_its_learning_rate_in_json_and_hash() -> None:
    budgets = Budgets.from_groups([("a", 1.0, 0.5), ("b", 2.0, 0.5)], 100, 1e-5)
    plain = assign(budgets, "uniform", steps=10, expected_batch_size=10, clip_norm=1.0)
    schedule = Schedule(((0, 1.0), (10, 1 / 3)), "cosine")
    plan = dataclasses.replace(plain, learning_rate=schedule)
    again = Plan.from_json(plan.to_json())
    assert again.learning_rate == schedule
    assert again.hash() == plan.hash() != plain.hash()
    assert "learning_rate" not in json.loads(plain.to_json())
    assert Plan.from_json(plain.to_json()).learning_rate is None
    broken = plan.to_dict() | {"learning_rate": {"points": 3, "shape": "linear"}}
    with refused(InputError, "learning_rate"):
        Plan.from_dict(broken)
