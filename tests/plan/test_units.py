"""The unit of privacy: a plan says whose presence it hides, and no number follows from it."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from apiece import Budgets, Scale, assign, contract
from apiece.errors import InputError
from apiece.plan import Plan
from apiece.training import Trainer

BUDGETS = Budgets(np.resize([0.5, 2.0], 20), 1e-3, ids=np.arange(20), excess=0.3)
PLAN = assign(BUDGETS, Scale(), steps=2, expected_batch_size=4, clip_norm=1.0)
OF_PERSONS = replace(PLAN, unit="person")


def test_a_plan_says_whose_presence_it_hides() -> None:
    assert PLAN.unit == "record"
    assert "20 records in" in repr(PLAN)
    assert "20 persons in" in repr(OF_PERSONS)
    assert OF_PERSONS.public().unit == "person"
    again = Plan.from_json(OF_PERSONS.to_json())
    assert (again.unit, again.bind(BUDGETS).unit) == ("person", "person")
    assert "unit" not in PLAN.to_dict()  # files of records are as they were
    assert OF_PERSONS.hash() != PLAN.hash()
    with pytest.raises(InputError, match="did you mean 'person'"):
        replace(PLAN, unit="persons")


def test_no_number_follows_from_the_unit() -> None:
    left, right = OF_PERSONS.to_dict(), PLAN.to_dict()
    assert left.pop("unit") == "person"
    assert left == right
    assert contract.check(OF_PERSONS, BUDGETS).to_dict() == contract.check(PLAN, BUDGETS).to_dict()
    both = [plan.curve(0).statement(people=100) for plan in (OF_PERSONS, PLAN)]
    assert both[0] == both[1]


def test_a_plan_of_persons_is_not_run_on_rows() -> None:
    model = nn.Linear(2, 1)
    given = (
        model,
        torch.optim.SGD(model.parameters(), lr=0.1),
        lambda out, y: (out[:, 0] - y).square(),
    )
    data = torch.randn(20, 2), torch.randn(20)
    with pytest.raises(InputError, match="people: the plan is for persons"):
        Trainer(*given, OF_PERSONS, data, seed=0)
    Trainer(*given, OF_PERSONS, data, seed=0, people=np.arange(20)).fit()
