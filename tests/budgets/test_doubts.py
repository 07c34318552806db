"""Budgets that look like a mistake: what is said of which, and nothing of sound ones."""

import numpy as np
import pytest

from apiece.budgets import Budgets
from apiece.budgets.groups import describe_cap, list_doubts, list_value_doubts, refuse_absurd
from apiece.errors import BudgetError


def test_nothing_is_said_of_sound_budgets() -> None:
    assert list_doubts(Budgets(np.repeat([0.1, 1.0, 10.0], 50), 1e-5).groups) == []


@pytest.mark.parametrize(
    ("epsilon", "delta", "words"),
    [
        ([25.0] * 100, 1e-5, "divide by 100"),
        ([1.0] * 100, 0.01, "give 0.001 or less"),
        ([1.0] * 100, [0.01] + [1e-5] * 99, "delta = 0.01 is at least 1/n = 0.01"),
        ([1.0] * 99, 1e-5, "99 records"),
        ([1.0] * 100 + [2.0] * 9, 1e-5, "1 of 2 groups have fewer than 10 records, the smallest 9"),
        (np.linspace(1, 2, 100), 1e-5, "100 of 100 groups"),
    ],
)
def test_what_is_said(epsilon: list[float], delta: float, words: str) -> None:
    assert any(words in one for one in list_doubts(Budgets(epsilon, delta).groups))


@pytest.mark.parametrize("records", [100, 345, 1000, 12_345, 10**6])
def test_the_delta_that_is_advised_draws_no_warning(records: int) -> None:
    groups = Budgets(np.ones(records), 0.5).groups
    advised = float(list_value_doubts(groups)[0].split("give ")[1].split()[0])
    assert list_value_doubts(Budgets(np.ones(records), advised).groups) == []
    assert advised >= 0.01 / records


@pytest.mark.parametrize("epsilon", [1000.5, 1e6, 1e300])
def test_what_promises_nothing_is_refused(epsilon: float) -> None:
    for check in (
        lambda: refuse_absurd(epsilon),
        lambda: list_doubts(Budgets([1.0, epsilon], 1e-5).groups),
    ):
        with pytest.raises(BudgetError, match="no_limit_cap=8"):
            check()


def test_the_note_names_the_cap() -> None:
    assert "epsilon = 2.5" in describe_cap(2.5)
