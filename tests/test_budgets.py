"""What each record asked for: checks at the door, groups, names."""

import numpy as np
import pytest

from apiece.budgets import BudgetGroups, Budgets
from apiece.errors import BudgetError, DataError, InputError


@pytest.mark.parametrize("bad", [0.0, -1.0, float("nan"), float("inf"), "much", None])
def test_epsilon_out_of_bounds(bad: object) -> None:
    with pytest.raises(BudgetError, match="epsilon"):
        Budgets([1.0, bad], 1e-5)  # type: ignore[list-item]


@pytest.mark.parametrize("bad", [0.0, 1.0, 2.0, -1e-5, float("nan")])
def test_delta_out_of_bounds(bad: float) -> None:
    with pytest.raises(BudgetError, match="delta"):
        Budgets([1.0, 2.0], bad)


@pytest.mark.parametrize("bad", [-0.1, 1.1, float("nan")])
def test_excess_out_of_bounds(bad: float) -> None:
    with pytest.raises(BudgetError, match="excess"):
        Budgets([1.0, 2.0], 1e-5, excess=bad)


def test_lengths_must_agree() -> None:
    with pytest.raises(BudgetError, match="epsilon has 2, delta has 3"):
        Budgets([1.0, 2.0], [1e-5] * 3)
    with pytest.raises(BudgetError, match="at least 1"):
        Budgets([], 1e-5)


def test_ids_are_unique() -> None:
    with pytest.raises(DataError, match="7 occurs 2 times"):
        Budgets([1.0, 2.0, 3.0], 1e-5, ids=[7, 7, 8])


def test_groups_are_the_distinct_budgets_strictest_first() -> None:
    budgets = Budgets([3, 1, 3, 1, 1], [1e-5, 1e-5, 1e-5, 1e-6, 1e-5])
    groups = budgets.groups
    assert groups.epsilon.tolist() == [1, 1, 3]
    assert groups.delta.tolist() == [1e-6, 1e-5, 1e-5]
    assert groups.records.tolist() == [1, 2, 2]
    assert (groups.epsilon[budgets.group_index] == budgets.epsilon).all()
    assert (groups.delta[budgets.group_index] == budgets.delta).all()


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


def test_budgets_that_print_alike_have_distinct_names() -> None:
    names = Budgets([1.0, 1.0 + 1e-12, 2.0], 1e-5).groups.name
    assert len(set(names.tolist())) == 3
    names = Budgets([1.0, 1.0], [1e-5, 1e-6]).groups.name
    assert names.tolist() == ["epsilon=1 delta=1e-06", "epsilon=1 delta=1e-05"]
    many = Budgets(np.linspace(1, 2, 5000), 1e-5).groups.name
    assert np.unique(many).size == 5000


def test_labels_name_and_separate_groups() -> None:
    budgets = Budgets.from_groups([("a", 0.5, 2.0), ("b", 0.5, 2.0)], 10, 1e-5)
    assert budgets.groups.name.tolist() == ["a", "b"]
    assert budgets.groups.records.tolist() == [5, 5]
    mixed = Budgets([1.0, 2.0], 1e-5, labels=["x", "x"]).groups.name
    assert mixed.tolist() == ["x epsilon=1", "x epsilon=2"]


def test_from_groups_shares_and_counts() -> None:
    by_share = Budgets.from_groups([("s", 0.34, 1), ("m", 0.43, 2), ("w", 0.23, 3)], 101, 1e-5)
    assert by_share.groups.records.sum() == 101
    by_count = Budgets.from_groups([("s", 30, 1), ("w", 70, 3)], 100, 1e-5)
    assert by_count.groups.records.tolist() == [30, 70]
    shuffled = Budgets.from_groups(
        [("s", 0.5, 1), ("w", 0.5, 3)], 100, 1e-5, generator=np.random.default_rng(0)
    )
    assert shuffled.groups.records.tolist() == [50, 50]
    assert (np.diff(shuffled.epsilon) != 0).sum() > 1


@pytest.mark.parametrize(
    ("groups", "message"),
    [
        ([], "none given"),
        ([("a", 0.5, 1), ("a", 0.5, 2)], "'a' is given twice"),
        ([("a", 0.5, 1), ("b", 0.6, 2)], "sum to 1.1"),
        ([("a", 0.999, 1), ("b", 0.001, 2)], "group b: 10 records leave it empty"),
        ([("a", 1.0, -1)], "epsilon of a"),
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


def test_from_frame(tmp_path) -> None:
    import pandas as pd

    frame = pd.DataFrame({"who": ["a", "b"], "eps": [1.0, 2.0], "d": [1e-5, 1e-6]})
    budgets = Budgets.from_frame(frame, epsilon="eps", delta="d", ids="who")
    assert budgets.ids.tolist() == ["a", "b"]
    assert budgets.delta.tolist() == [1e-5, 1e-6]
    for name in ("t.csv", "t.parquet"):
        path = tmp_path / name
        frame.to_csv(path, index=False) if name.endswith("csv") else frame.to_parquet(path)
        assert Budgets.from_frame(path, epsilon="eps", delta=1e-5).epsilon.tolist() == [1.0, 2.0]
    with pytest.raises(DataError, match="did you mean 'eps'"):
        Budgets.from_frame(frame, epsilon="epss", delta=1e-5)
    with pytest.raises(DataError, match="cannot be read"):
        Budgets.from_frame(tmp_path / "none.csv", epsilon="eps", delta=1e-5)
    with pytest.raises(DataError, match="no rows"):
        Budgets.from_frame(frame.iloc[:0], epsilon="eps", delta=1e-5)
    with pytest.raises(BudgetError, match=r"'eps', row 2 = '': empty"):
        Budgets.from_frame(frame.assign(eps=[1.0, None]), epsilon="eps", delta=1e-5)


def test_groups_check_themselves() -> None:
    good = {"name": np.array(["a"]), "epsilon": np.array([1.0]), "delta": np.array([0.1])}
    with pytest.raises(BudgetError, match="group a: no records"):
        BudgetGroups(**good, excess=None, records=np.array([0]))
    with pytest.raises(BudgetError, match="one entry a group"):
        BudgetGroups(**good, excess=None, records=np.array([1, 2]))
