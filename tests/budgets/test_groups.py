"""The distinct budgets of a population, and their names."""

import numpy as np
import pytest

from apiece.budgets import BudgetGroups, Budgets
from apiece.errors import BudgetError


def test_groups_are_the_distinct_budgets_strictest_first() -> None:
    budgets = Budgets([3, 1, 3, 1, 1], [1e-5, 1e-5, 1e-5, 1e-6, 1e-5])
    groups = budgets.groups
    assert groups.epsilon.tolist() == [1, 1, 3]
    assert groups.delta.tolist() == [1e-6, 1e-5, 1e-5]
    assert groups.records.tolist() == [1, 2, 2]
    assert (groups.epsilon[budgets.group_index] == budgets.epsilon).all()
    assert (groups.delta[budgets.group_index] == budgets.delta).all()


def test_budgets_that_print_alike_have_distinct_names() -> None:
    names = Budgets([1.0, 1.0 + 1e-12, 2.0], 1e-5).groups.name
    assert len(set(names.tolist())) == 3
    names = Budgets([1.0, 1.0], [1e-5, 1e-6]).groups.name
    assert names.tolist() == ["epsilon=1 delta=1e-06", "epsilon=1 delta=1e-05"]
    many = Budgets(np.linspace(1, 2, 5000), 1e-5).groups.name
    assert np.unique(many).size == 5000


def test_labels_name_and_separate_groups() -> None:
    budgets = Budgets.from_groups([("a", 2.0, 0.5), ("b", 2.0, 0.5)], 10, 1e-5)
    assert budgets.groups.name.tolist() == ["a", "b"]
    assert budgets.groups.records.tolist() == [5, 5]
    mixed = Budgets([1.0, 2.0], 1e-5, labels=["x", "x"]).groups.name
    assert mixed.tolist() == ["x epsilon=1", "x epsilon=2"]


def test_groups_check_themselves() -> None:
    good = {"name": np.array(["a"]), "epsilon": np.array([1.0]), "delta": np.array([0.1])}
    with pytest.raises(BudgetError, match="group a: no records"):
        BudgetGroups(**good, excess=None, records=np.array([0]))
    with pytest.raises(BudgetError, match="one entry a group"):
        BudgetGroups(**good, excess=None, records=np.array([1, 2]))
