"""A private step as an optimizer's step."""

import contextlib

import pytest
import torch

from apiece.adapters.stepping import PrivateStep
from apiece.errors import StateError

from .small import trainer


def test_a_step_of_the_optimizer_is_a_step_of_the_trainer():
    one, other = trainer(), trainer()
    optimizer = PrivateStep(one)
    for _ in range(7):
        one.model(torch.ones(1, 3)).sum().backward()  # gradients of a loop have no part in it
        optimizer.step()
    other.fit()
    for mine, wanted in zip(one.model.parameters(), other.model.parameters(), strict=True):
        assert torch.equal(mine, wanted)
    assert optimizer.progress.step == 7
    assert optimizer.param_groups is one.optimizer.param_groups
    with pytest.raises(StateError, match="all 7 steps"):
        optimizer.step()
    assert optimizer.state_dict() == {}
    with pytest.raises(StateError, match=r"Trainer\.resume"):
        optimizer.load_state_dict({"state": {}})
    optimizer.load_state_dict({})


def test_each_step_is_taken_in_its_context():
    entered = []

    @contextlib.contextmanager
    def around():
        entered.append("in")
        yield
        entered.append("out")

    PrivateStep(trainer(), around=around).step()
    assert entered == ["in", "out"]
