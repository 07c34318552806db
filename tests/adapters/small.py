"""A small training that several adapters take."""

import numpy as np
import torch
from torch import nn

from apiece import Budgets, Plan, Sample, Trainer, assign
from apiece.plan.parts import Stage

BUDGETS = Budgets.from_groups([("strict", 1.0, 10), ("weak", 3.0, 30)], 40, 1e-3)
PLAN = assign(BUDGETS, Sample(), steps=7, expected_batch_size=10, clip_norm=1.0, method="rdp")


def trainer(**options):
    torch.manual_seed(4)
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))
    data = torch.randn(40, 3), torch.randint(0, 2, (40,))
    adam = torch.optim.Adam(model.parameters(), lr=0.1)
    loss = nn.CrossEntropyLoss(reduction="none")
    return Trainer(model, adam, loss, PLAN, data, seed=3, **options)


def quiet_plan(records: int, steps: int) -> Plan:
    """Return a plan in which everyone takes part in each step, and nothing is clipped or noisy.

    Its run is full-batch descent, which any framework does by itself.
    """
    budgets = Budgets(np.ones(records), 1e-5)
    everyone, no_clip = np.array([1.0]), np.array([1e4])
    stage = Stage(steps, float(records), 1e-9, everyone, no_clip)
    return Plan("quiet", 1e4, budgets.groups, (stage,)).bind(budgets)


def network(freeze: tuple[str, ...] = ()) -> nn.Sequential:
    """Return a small network, parts of which are frozen by the beginnings of their names."""
    torch.manual_seed(4)
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(not name.startswith(freeze or "none"))
    return model


def points() -> tuple[torch.Tensor, torch.Tensor]:
    """Return forty points and their classes."""
    made = torch.Generator().manual_seed(9)
    x = torch.randn(40, 3, generator=made)
    return x, (x[:, 0] > 0).long()


def trained_on(model: nn.Module) -> nn.Module:
    """Return a model after a few public steps, from which fine-tuning begins."""
    sgd = torch.optim.SGD(model.parameters(), lr=0.5)
    for _ in range(5):
        sgd.zero_grad()
        nn.functional.cross_entropy(model(points()[0]), 1 - points()[1]).backward()
        sgd.step()
    return model
