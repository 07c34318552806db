"""A private step as an optimizer's step."""

import contextlib

import pytest
import torch
from torch import nn

from apiece import Budgets, Sample, Trainer, assign
from apiece.adapters.stepping import PrivateStep
from apiece.errors import StateError

BUDGETS = Budgets.from_groups([("strict", 1.0, 10), ("weak", 3.0, 30)], 40, 1e-3)
PLAN = assign(BUDGETS, Sample(), steps=7, expected_batch_size=10, clip_norm=1.0, method="rdp")


def trainer(**options):
    torch.manual_seed(4)
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))
    data = torch.randn(40, 3), torch.randint(0, 2, (40,))
    adam = torch.optim.Adam(model.parameters(), lr=0.1)
    loss = nn.CrossEntropyLoss(reduction="none")
    return Trainer(model, adam, loss, PLAN, data, seed=3, **options)


def test_a_step_of_the_optimizer_is_a_step_of_the_trainer():
    one, other = trainer(), trainer()
    optimizer = PrivateStep(one)
    for _ in range(7):
        one.model(torch.ones(1, 3)).sum().backward()  # gradients of a loop have no part in it
        optimizer.step()
    other.fit()
    for mine, wanted in zip(one.model.parameters(), other.model.parameters(), strict=True):
        assert torch.equal(mine, wanted)
    assert optimizer.done.step == 7
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
