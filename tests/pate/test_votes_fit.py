"""Votes that do not fit the plan are refused before anything is counted."""

import numpy as np
import pytest
import torch
from torch import nn

from apiece import Budgets
from apiece.errors import DataError, VerificationError
from apiece.pate import plan_votes, teach
from apiece.pate.teaching import Lessons, count_votes
from apiece.training.stacked import StackedMlp, StackedModule
from refusals import refused

WEIGHTS = np.ones(3)


def test_counts_of_votes_that_fit() -> None:
    votes = np.array([[0, 1], [1, 1], [0, 0]])
    assert count_votes(votes, WEIGHTS, 2).tolist() == [[2, 1], [1, 2]]


@pytest.mark.parametrize(
    "votes",
    [
        np.array([[0, 2], [1, 1], [0, 0]]),  # would count for the next question
        np.array([[0, -1], [1, 1], [0, 0]]),  # would count for the one before
        np.array([[0, 1], [1, 1]]),
        np.array([0, 1, 1]),
    ],
)
def test_votes_that_do_not_fit_are_refused(votes: np.ndarray) -> None:
    with refused(VerificationError, "votes"):
        count_votes(votes, WEIGHTS, 2)


@pytest.mark.parametrize(
    "model",
    [
        StackedMlp((1, 3)),
        StackedMlp((1, 1)),
        StackedModule(nn.Linear(1, 4)),
        StackedModule(nn.Sequential(nn.Linear(1, 4), nn.Unflatten(1, (2, 2)))),
    ],
    ids=["more", "fewer", "module", "matrix"],
)
def test_a_model_with_other_outputs_than_classes_is_refused_before_it_learns(model: object) -> None:
    inputs = torch.rand(200, 1)
    labels = (inputs[:, 0] > 0.5).long()
    plan = plan_votes(Budgets([2.0] * 200, 1e-5), "uniform", teachers=10, questions=20)
    steps = []
    with refused(DataError, "classes"):
        teach(
            plan, model, (inputs, labels), torch.rand(20, 1), classes=2,
            lessons=Lessons(steps=2), seed=0, progress=lambda *step: steps.append(step),
        )  # fmt: skip
    assert not steps


@pytest.mark.parametrize("included", [np.ones(3, dtype=bool), np.full(200, 2), [None] * 200])
def test_who_takes_part_is_read_as_a_mask(included: object) -> None:
    inputs = torch.rand(200, 1)
    labels = (inputs[:, 0] > 0.5).long()
    plan = plan_votes(Budgets([2.0] * 200, 1e-5), "uniform", teachers=10, questions=20)
    with refused(DataError, "included"):
        teach(
            plan, StackedMlp((1, 2)), (inputs, labels), torch.rand(20, 1), classes=2,
            lessons=Lessons(steps=2), seed=0, included=included,
        )  # fmt: skip
