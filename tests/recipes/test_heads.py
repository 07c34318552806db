"""Heads: shapes, a start that knows nothing, and clipping without a slow path."""

import pytest
import torch
from torch import nn

from apiece.recipes.recipe import HEADS
from apiece.training import clip_and_sum


@pytest.mark.parametrize("name", sorted(HEADS))
def test_each_head_is_clipped_by_its_layers(name: str) -> None:
    head = HEADS[name]((6, 5, 5), 4)
    x, y = torch.randn(7, 6, 5, 5), torch.arange(7) % 4
    assert head(x).shape == (7, 4)
    loss = nn.CrossEntropyLoss(reduction="none")
    bounds = torch.full((7,), 0.1)
    clipped = clip_and_sum(head, loss, x, y, bounds)
    looped = clip_and_sum(head, loss, x, y, bounds, method="alone")
    for key, value in looped.gradients.items():
        assert torch.allclose(clipped.gradients[key], value, atol=1e-5)


def test_the_linear_head_starts_from_zero() -> None:
    assert HEADS["linear"]((2, 1, 1), 3)(torch.ones(1, 2, 1, 1)).tolist() == [[0, 0, 0]]
