"""What each record asked for: checks at the door, groups, names."""

import dataclasses
from collections.abc import Callable

import numpy as np
import pytest

from apiece.budgets import BudgetGroups, BudgetLevels, Budgets
from apiece.errors import BudgetError, DataError, InputError
from refusals import refused


@pytest.mark.parametrize("bad", [0.0, -1.0, float("nan"), float("inf"), "much", None])
def test_epsilon_out_of_bounds(bad: object) -> None:
    with refused(BudgetError, "epsilon"):
        Budgets([1.0, bad], 1e-5)  # type: ignore[list-item]


@pytest.mark.parametrize("bad", [0.0, 1.0, 2.0, -1e-5, float("nan")])
def test_delta_out_of_bounds(bad: float) -> None:
    with refused(BudgetError, "delta"):
        Budgets([1.0, 2.0], bad)


@pytest.mark.parametrize("bad", [-0.1, 1.1, float("nan")])
def test_excess_out_of_bounds(bad: float) -> None:
    with refused(BudgetError, "excess"):
        Budgets([1.0, 2.0], 1e-5, excess=bad)


def test_lengths_must_agree() -> None:
    with refused(BudgetError, "epsilon", 2, "delta", 3):
        Budgets([1.0, 2.0], [1e-5] * 3)
    with pytest.raises(BudgetError, match="at least 1"):
        Budgets([], 1e-5)


def test_ids_are_unique() -> None:
    with refused(DataError, 7, 2):
        Budgets([1.0, 2.0, 3.0], 1e-5, ids=[7, 7, 8])


def test_arrays_are_read_only() -> None:
    budgets = Budgets([1.0, 2.0], 1e-5, excess=0.1)
    groups = budgets.groups
    assert groups.excess is not None
    for array in (budgets.epsilon, budgets.delta, budgets.ids, groups.epsilon, groups.excess):
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 5
    values = np.array([1.0, 2.0])
    frozen = Budgets(values, 1e-5)
    values[0] = 9.0
    assert frozen.epsilon[0] == 1.0


@pytest.mark.parametrize("name", ["ids", "epsilon", "delta", "excess"])
def test_who_holds_the_memory_of_a_column_cannot_change_a_consent(name: str) -> None:
    consents = Budgets([1.0, 2.0], [1e-5, 1e-6], excess=[0.1, 0.2], ids=[3, 4]).consents
    column = getattr(consents, name).copy()
    view = column[:]
    view.flags.writeable = False
    held = dataclasses.replace(consents, **{name: view})
    column[:] = 0
    assert getattr(held, name).tolist() == getattr(consents, name).tolist()
    assert getattr(dataclasses.replace(held), name) is getattr(held, name)


def test_from_groups_shares_and_counts() -> None:
    by_share = Budgets.from_groups([("s", 1, 0.34), ("m", 2, 0.43), ("w", 3, 0.23)], 101, 1e-5)
    assert by_share.groups.records.sum() == 101
    by_count = Budgets.from_groups([("s", 1, 30), ("w", 3, 70)], 100, 1e-5)
    assert by_count.groups.records.tolist() == [30, 70]
    shuffled = Budgets.from_groups([("s", 1, 0.5), ("w", 3, 0.5)], 100, 1e-5, seed=0)
    assert shuffled.groups.records.tolist() == [50, 50]
    assert (np.diff(shuffled.epsilon) != 0).sum() > 1


@pytest.mark.parametrize(
    ("groups", "message"),
    [
        ([], "none given"),
        ([("a", 1, 0.5), ("a", 2, 0.5)], "'a' is given twice"),
        ([("a", 1, 0.5), ("b", 2, 0.6)], "sum to 1.1"),
        ([("a", 0.4, 1), ("b", 0.6, 3)], r"sum to 4; .* the order is \(name, epsilon, share\)"),
        ([("a", 1, 0.999), ("b", 2, 0.001)], "group b: 10 records leave it empty"),
        ([("a", -1, 1.0)], "epsilon of a"),
    ],
)
def test_from_groups_refuses(groups: list[tuple[str, float, float]], message: str) -> None:
    with pytest.raises(InputError, match=message):
        Budgets.from_groups(groups, 10, 1e-5)


def test_consent_is_an_upper_bound() -> None:
    budgets = Budgets([1.0, 5.0], 1e-5, ids=["x", "y"])
    assert budgets.at_most(2.0).epsilon.tolist() == [1.0, 2.0]
    with pytest.raises(BudgetError, match=r"record x allows 1\.0"):
        budgets.lowered_to([1.5, 2.0])
    with pytest.raises(InputError, match="for 2 records"):
        budgets.lowered_to([0.5, 0.5, 0.5])


@pytest.mark.parametrize("bad", [1.0, 0.5, 0.0, -1.0, float("nan"), float("inf")])
@pytest.mark.parametrize("name", ["epsilon", "delta"])
def test_a_factor_of_rounding_is_above_one(name: str, bad: float) -> None:
    with pytest.raises(InputError, match=name):
        Budgets([1.0, 3.0], 1e-5).rounded_down(**{name: bad})


NO_EPSILON = [0.0, -1.0, float("inf"), float("nan")]


@pytest.mark.parametrize(
    ("call", "name", "wrong"),
    [
        (lambda value: Budgets([2.0], 1e-5).at_most(value), "epsilon", NO_EPSILON),
        (lambda value: BudgetLevels(Budgets([2.0], 1e-5).groups).at_most(value), "epsilon",
         NO_EPSILON),
        (lambda value: Budgets.from_groups([("a", value, 1.0)], 10, 1e-5), "epsilon of a",
         NO_EPSILON),
        (lambda value: Budgets.from_groups([("a", 1.0, value)], 10, 1e-5), "share of a",
         NO_EPSILON),
        (lambda value: Budgets.from_groups([("a", 1.0, 1.0)], 10, value), "delta",
         [0.0, 1.0, 1.5, float("nan")]),
        (lambda value: BudgetGroups(np.array(["a"]), np.array([value]), np.array([1e-5]), None,
                                    np.array([1])), "epsilon", NO_EPSILON),
        (lambda value: BudgetGroups(np.array(["a"]), np.array([1.0]), np.array([value]), None,
                                    np.array([1])), "delta", [0.0, 1.0, 1.5, float("nan")]),
        (lambda value: BudgetGroups(np.array(["a"]), np.array([1.0]), np.array([1e-5]),
                                    np.array([value]), np.array([1])), "excess",
         [-0.1, 1.1, float("nan")]),
    ],
)  # fmt: skip
def test_every_way_to_a_budget_refuses_what_is_none_as_such(
    call: Callable[[float], object], name: str, wrong: list[float]
) -> None:
    for value in wrong:
        with pytest.raises(BudgetError, match=f"^{name}") as caught:
            call(value)
        assert repr(value) in str(caught.value)
