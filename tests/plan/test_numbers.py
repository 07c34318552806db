"""What is read off a plan's numbers: mechanisms, a reference of its own, and whether they fit."""

from dataclasses import replace

import numpy as np
import pytest

from apiece.assignment import assign
from apiece.budgets import Budgets
from apiece.errors import InputError
from apiece.mechanisms import Composed, Gaussian, Repeated, Sampled
from apiece.plan import Plan
from apiece.plan.parts import Stage

BUDGETS = Budgets([1.0] * 60 + [3.0] * 40, 1e-5)
PLAN: Plan = assign(BUDGETS, "scale", steps=8, expected_batch_size=20, clip_norm=1.0).public()
FIRST = PLAN.stages[0]


def test_stages_are_composed_and_those_without_the_group_left_out() -> None:
    only_weak = Stage(3, 8.0, 2.0, np.array([0.0, 0.2]), np.array([1.0, 1.0]))
    both = replace(PLAN, stages=(FIRST, only_weak))
    assert both.steps == 11
    assert both.mechanism_at(0) == PLAN.mechanism_at(0)
    own = Repeated(Sampled(Gaussian(2.0), 0.2), 3)
    assert both.mechanism_at(1) == Composed(PLAN.mechanism_at(1), own)


def test_on_a_worst_path_no_coin_hides_anything() -> None:
    tossed = replace(FIRST, participation=np.array([0.5, 1.0]), expected_batch_size=0.2 * (30 + 40))
    hidden = replace(PLAN, stages=(tossed,))
    revealed = replace(
        hidden, worst_paths=np.array([[True], [False]]), objections=("coins are revealed",)
    )
    assert hidden.mechanism_at(0) == Sampled(PLAN.mechanism_at(0), 0.5)
    assert revealed.mechanism_at(0) == PLAN.mechanism_at(0)
    assert revealed.mechanism_at(1) == Composed()


def test_the_reference_of_a_plan_that_nobody_requested_is_its_mean_rate() -> None:
    assert PLAN.own_reference().sampling_probability == pytest.approx(0.2)
    assert PLAN.own_reference().steps == 8


@pytest.mark.parametrize(
    ("stages", "says"),
    [
        ((), "no stages"),
        ((Stage(1, 1.0, 1.0, np.ones(1), np.ones(1)),), "arrays of 1 for 2 groups"),
        ((replace(FIRST, expected_batch_size=20.1),), "must agree"),
    ],
)
def test_what_does_not_fit_is_named(stages: tuple[Stage, ...], says: str) -> None:
    with pytest.raises(InputError, match=says):
        replace(PLAN, stages=stages)
