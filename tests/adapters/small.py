"""A small training that several adapters take."""

import torch
from torch import nn

from apiece import Budgets, Sample, Trainer, assign

BUDGETS = Budgets.from_groups([("strict", 1.0, 10), ("weak", 3.0, 30)], 40, 1e-3)
PLAN = assign(BUDGETS, Sample(), steps=7, expected_batch_size=10, clip_norm=1.0, method="rdp")


def trainer(**options):
    torch.manual_seed(4)
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))
    data = torch.randn(40, 3), torch.randint(0, 2, (40,))
    adam = torch.optim.Adam(model.parameters(), lr=0.1)
    loss = nn.CrossEntropyLoss(reduction="none")
    return Trainer(model, adam, loss, PLAN, data, seed=3, **options)
