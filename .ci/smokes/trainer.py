"""A small training, for the smokes of what is told of its steps."""

import torch
from torch import nn

from apiece import Budgets, Scale, Trainer, assign

BUDGETS = Budgets.from_groups([("strict", 1.0, 10), ("weak", 3.0, 30)], 40, 1e-3)
PLAN = assign(BUDGETS, Scale(), steps=4, expected_batch_size=10, clip_norm=1.0)


def trainer(**options: object) -> Trainer:
    """Return the trainer of a line through forty points."""
    model = nn.Linear(3, 2)
    data = torch.randn(40, 3), torch.randint(0, 2, (40,))
    sgd = torch.optim.SGD(model.parameters(), lr=0.1)
    return Trainer(model, sgd, nn.CrossEntropyLoss(reduction="none"), PLAN, data, **options)
