"""Pools, copies and weights: who teaches whom."""

import numpy as np
import pytest

from apiece.budgets import Budgets
from apiece.errors import InfeasibleError, InputError, OptionError
from apiece.pate.strategies import GRID, Seats, Strictest, Upsample, Weight, find_voters
from refusals import refused

MU = np.array([0.27, 0.51, 0.74])
GROUPS = Budgets([1.0] * 340 + [2.0] * 430 + [3.0] * 230, 1e-5).groups


def test_strictest_gives_everyone_one_teacher() -> None:
    seats = Strictest().seats(GROUPS, MU, 50)
    assert seats.reach.tolist() == [1, 1, 1]
    assert seats.teachers.tolist() == [50]


@pytest.mark.parametrize(("base", "copies"), [(1, [1, 2, 3]), (5, [5, 9, 14])])
def test_copies_follow_the_budgets(base: int, copies: list[int]) -> None:
    assert Upsample(base).seats(GROUPS, MU, 50).copies.tolist() == copies


def test_weights_follow_the_budgets_and_add_up_to_the_teachers() -> None:
    seats = Weight().seats(GROUPS, MU, 50)
    assert seats.teachers.tolist() == [17, 22, 11]
    assert seats.weight / seats.weight[0] == pytest.approx(MU / MU[0], rel=1e-5)
    assert seats.teachers @ seats.weight == pytest.approx(50, abs=1e-3)
    assert (seats.weight / GRID == np.round(seats.weight / GRID)).all()


@pytest.mark.parametrize("teachers", [3, 7, 50, 333, 1000])
def test_every_teacher_is_dealt_out(teachers: int) -> None:
    own = Weight().seats(GROUPS, MU, teachers).teachers
    assert own.sum() == teachers
    assert own.min() >= 1
    assert (own <= GROUPS.records).all()


def test_a_group_too_small_for_a_teacher_is_named() -> None:
    groups = Budgets([1.0] * 3 + [2.0] * 997, 1e-5).groups
    with pytest.raises(InfeasibleError, match=r"group .*: its 3 records are too few for a teacher"):
        Weight().seats(groups, MU[:2], 50)


def test_more_copies_than_teachers() -> None:
    with refused(InfeasibleError, "teachers", 2, 3):
        Upsample().seats(GROUPS, MU, 2)


@pytest.mark.parametrize("base", [0, -1, 1.5, float("nan")])
def test_a_base_that_is_none(base: float) -> None:
    with refused(InputError, "base"):
        Upsample(base)  # type: ignore[arg-type]


def test_unknown_names_get_the_nearest() -> None:
    assert find_voters("upsample") == Upsample()
    with pytest.raises(OptionError, match="did you mean 'weight'"):
        find_voters("wieght")


def test_reach_counts_every_copy() -> None:
    seats = Seats(np.array([0, 1]), np.array([3, 2]), np.array([4, 5]), np.array([0.5, 2.0]))
    assert seats.reach.tolist() == [1.5, 4.0]
