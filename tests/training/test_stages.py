"""Stages: where a step lies, and plans whose stages each start again and are averaged."""

import copy

import numpy as np
import pytest
import torch
from torch import nn

from apiece.budgets import Budgets
from apiece.errors import InputError
from apiece.plan import Plan
from apiece.plan.parts import Stage
from apiece.training.batches import find_stage
from apiece.training.updates import OutputAverage, Restarts, Updates


def plan(*steps):
    budgets = Budgets(np.ones(5), 1e-5)
    stages = tuple(Stage(k, 1.0, 1.0, np.array([0.2]), np.array([1.0])) for k in steps)
    return Plan("t", 1.0, budgets.groups, stages)


def test_every_step_lies_in_one_stage():
    found = [find_stage(plan(2, 1, 3), step) for step in range(6)]
    assert found == [(0, 0), (0, 1), (1, 0), (2, 0), (2, 1), (2, 2)]
    with pytest.raises(InputError, match="beyond the last"):
        find_stage(plan(2, 1), 3)


def parts():
    torch.manual_seed(0)
    model = nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9)
    return model, Updates(optimizer, None, None)


def moved(model, updates, by=1.0):
    named = dict(model.named_parameters())
    updates.apply(0, named, {name: torch.full_like(p, by) for name, p in named.items()})


def test_entering_a_stage_puts_the_model_aside_and_the_first_state_back_once():
    model, updates = parts()
    first = copy.deepcopy(model.state_dict())
    restarts = Restarts(model, updates)
    restarts.enter(0)
    assert restarts.finished == []
    moved(model, updates)
    after = copy.deepcopy(model.state_dict())
    for _ in range(3):  # each step says where it is
        restarts.enter(1)
        assert torch.equal(restarts.finished[0]["weight"], after["weight"])
        assert len(restarts.finished) == 1
    assert torch.equal(model.weight, first["weight"])
    moved(model, updates)
    assert torch.equal(model.weight, after["weight"])  # the momentum started again too
    moved(model, updates)
    assert torch.equal(restarts.finished[0]["weight"], after["weight"])  # a copy


def test_restarts_go_on_from_what_a_checkpoint_kept():
    model, updates = parts()
    restarts = Restarts(model, updates)
    moved(model, updates)
    restarts.enter(1)
    kept = copy.deepcopy(restarts.state_dict())
    other, again = parts()
    moved(other, again, by=7.0)
    resumed = Restarts(other, again)
    resumed.load_state_dict(kept)
    resumed.enter(2)
    assert torch.equal(other.weight, model.weight)
    assert len(resumed.finished) == 2


def test_the_average_weighs_outputs_and_not_parameters():
    one, other = nn.Linear(3, 2), nn.Linear(3, 2)
    x = torch.randn(4, 3)
    whole = OutputAverage([one, nn.Sequential(other, nn.Tanh())], [3.0, 1.0])
    torch.testing.assert_close(whole(x), 0.75 * one(x) + 0.25 * other(x).tanh())
    with pytest.raises(InputError, match="2 of them, 1 weights"):
        OutputAverage([one, other], [1.0])
    with pytest.raises(InputError, match="0 of them"):
        OutputAverage([], [])
    for bad in (0.0, -1.0, float("nan")):
        with pytest.raises(InputError, match="weight"):
            OutputAverage([one], [bad])
