"""Budgets for all, for each row and for each person."""

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone

from apiece.adapters.fitting import read_budgets, read_people
from apiece.errors import BudgetError, DataError, InputError
from sample_estimators import ROWS, classifier, features, people


def test_one_for_all_or_one_a_row() -> None:
    found = read_budgets([1.0, 2.0], 1e-5, None, 2)
    assert found.epsilon.tolist() == [1.0, 2.0]
    assert found.delta.tolist() == [1e-5, 1e-5]
    assert len(read_budgets(3, [1e-5, 1e-6, 1e-5], None, 3).groups) == 2


def test_a_person_has_one_budget_and_is_one_record() -> None:
    people = read_people(["b", "a", "b"], 3)
    found = read_budgets([2.0, 1.0, 2.0], 1e-5, people, 3)
    assert found.ids.tolist() == ["a", "b"]
    assert found.epsilon.tolist() == [1.0, 2.0]


@pytest.mark.parametrize(
    ("epsilon", "delta"),
    [([2.0, 1.0, 2.1], 1e-5), (1.0, [1e-5, 1e-5, 1e-6]), ([1.0, 1.0, 1 + 1e-12], 1e-5)],
)
def test_rows_of_one_person_agree(epsilon: object, delta: object) -> None:
    people = read_people(np.array([7, 3, 7]), 3)
    with pytest.raises(BudgetError, match="rows of one person differ"):
        read_budgets(epsilon, delta, people, 3)


@pytest.mark.parametrize(
    ("epsilon", "delta"),
    [
        (None, 1e-5),
        ([1.0, 2.0], 1e-5),
        ([[1.0], [2.0], [3.0]], 1e-5),
        (np.nan, 1e-5),
        ([1.0, np.nan, 1.0], 1e-5),
        (0.0, 1e-5),
        (-1.0, 1e-5),
        (np.inf, 1e-5),
        ("one", 1e-5),
        (1.0, 1.0),
        (1.0, [1e-5, 1e-5]),
        (1.0, None),
    ],
)
def test_what_is_no_budget_is_refused(epsilon: object, delta: object) -> None:
    with pytest.raises(InputError):
        read_budgets(epsilon, delta, None, 3)


@pytest.mark.parametrize("people", [["a"], [["a"], ["b"]], [1.0, np.nan], ["a", None], ["a", 1]])
def test_ids_are_of_one_kind_and_one_a_row(people: object) -> None:
    if people == ["a", 1]:
        people = np.array(["a", 1], dtype=object)
    with pytest.raises(
        DataError, match=r"give (one for each of 2 rows|a flat list of ids|whole numbers or text)"
    ):
        read_people(people, 2)


def test_words_are_budgets_and_name_the_promises() -> None:
    """A column of words goes through fit, a clone and a search's folds; gaps in it are counted."""
    words = pd.Series(np.resize(["low", "high", "low", "medium"], ROWS))
    levels = {"low": 1, "medium": 3, "high": 8}
    model = clone(classifier(steps=2, levels=levels))
    model.fit(features(), people()["label"], epsilon=words)
    assert [(p.name, p.epsilon) for p in model.promises_] == [
        ("low", 1.0), ("medium", 3.0), ("high", 8.0),
    ]  # fmt: skip
    told = model.statement()["guarantee"]["levels"]
    assert [each["name"] for each in told] == ["low", "medium", "high"]
    assert "epsilon=" not in model.report().html
    whose = np.arange(ROWS) // 4
    by_person = classifier(steps=2, levels=levels, epsilon="low", rows_per_person=2)
    by_person.fit(features(), people()["label"], people=whose)
    assert [(group.name, group.records) for group in by_person.plan_.groups] == [("low", 100)]
    with pytest.raises(BudgetError, match="rows of one person differ"):
        by_person.fit(features(), people()["label"], epsilon=words, people=whose)
    words[3] = None
    said = "epsilon: 1 of 400 rows name no declared level .1 of them empty"
    with pytest.raises(BudgetError, match=said):
        model.fit(features(), people()["label"], epsilon=words)
    with pytest.raises(BudgetError, match="epsilon: words; declare what they stand for"):
        classifier().fit(features(), people()["label"], epsilon=words)
