"""A small stack of models, and the same models one by one."""

import copy

import torch
from torch import nn

from apiece.training.stacked import StackedMlp

MLP = StackedMlp((7, 6, 5, 3))


def mlp_module() -> nn.Module:
    layers = [nn.Linear(7, 6), nn.ReLU(), nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 3)]
    return nn.Sequential(*layers)


def load(module: nn.Module, row: torch.Tensor) -> nn.Module:
    module = copy.deepcopy(module)
    nn.utils.vector_to_parameters(row.clone(), module.parameters())
    return module


def loop_sum(
    module: nn.Module, row: torch.Tensor, x: torch.Tensor, y: torch.Tensor, c: torch.Tensor
) -> torch.Tensor:
    """One model, one record at a time, by autograd."""
    total = torch.zeros_like(row)
    own = load(module, row)
    for i in range(len(y)):
        if c[i] == 0:
            continue
        loss = nn.functional.cross_entropy(own(x[i : i + 1]), y[i : i + 1])
        grads = torch.autograd.grad(loss, list(own.parameters()))
        g = torch.cat([t.reshape(-1) for t in grads])
        norm = g.norm()
        if torch.isfinite(norm):
            total += g * torch.clamp(c[i] / norm, max=1.0)
    return total
