"""Linear layers: an outer product a record, or a product over positions."""

from __future__ import annotations

import torch
from torch import nn

from apiece.training.clipping.rules.contributions import Outer, Rows, products
from apiece.training.clipping.rules.rule import Contributions, LayerRule, LayerUse, trains


def linear(module: nn.Linear, use: LayerUse) -> Contributions:
    """Return gradient ⊗ input for the weight, and the gradient for the bias."""
    return dense(module, use.gradient, use.input, use.gradient)


def dense(
    module: nn.Module, left: torch.Tensor, right: torch.Tensor, gradient: torch.Tensor
) -> Contributions:
    """Return left ⊗ right for the weight, and the gradient for the bias, summed over positions."""
    flat = gradient.dim() == 2
    if not flat:
        left, right, gradient = (each.flatten(1, -2) for each in (left, right, gradient))
    found: Contributions = {}
    if trains(module, "weight"):
        found["weight"] = Outer(left, right) if flat else products(left, right)
    if trains(module, "bias"):
        found["bias"] = Rows(gradient if flat else gradient.sum(1))
    return found


LINEAR = LayerRule(linear, positions=True)
