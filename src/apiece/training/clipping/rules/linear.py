"""Linear layers: an outer product a record, or a product over positions."""

from __future__ import annotations

from torch import nn

from apiece.training.clipping.rules.contributions import Outer, Rows, products
from apiece.training.clipping.rules.rule import Contributions, LayerRule, LayerUse, trains


def linear(module: nn.Linear, use: LayerUse) -> Contributions:
    """Return gradient ⊗ input for the weight, and the gradient for the bias."""
    right, left = use.input, use.gradient
    flat = left.dim() == 2
    if not flat:
        right, left = right.flatten(1, -2), left.flatten(1, -2)
    found: Contributions = {}
    if trains(module, "weight"):
        found["weight"] = Outer(left, right) if flat else products(left, right)
    if trains(module, "bias"):
        found["bias"] = Rows(left if flat else left.sum(1))
    return found


LINEAR = LayerRule(linear, positions=True)
