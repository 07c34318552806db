"""Looked-up rows against a loop: padding, bags, means, the same row several times."""

import pytest
import torch
from torch import nn

from apiece.training.clipping.rules import rule_for

from .oracle import RECORDS, hold

LAYERS = {
    "table": lambda: nn.Embedding(7, 4),
    "padded": lambda: nn.Embedding(7, 4, padding_idx=2),
    "mean": lambda: nn.EmbeddingBag(7, 4),
    "sum": lambda: nn.EmbeddingBag(7, 4, mode="sum"),
    "padded mean": lambda: nn.EmbeddingBag(7, 4, padding_idx=2),
}


@pytest.mark.parametrize("name", LAYERS)
def test_is_the_loop(name):
    hold(LAYERS[name](), torch.randint(0, 7, (RECORDS, 9)))


def test_several_dimensions_of_places():
    hold(nn.Embedding(3, 4), torch.randint(0, 3, (RECORDS, 2, 4)))


def test_others_have_no_rule():
    assert rule_for(nn.Embedding(7, 4, max_norm=1.0)) is None
    assert rule_for(nn.Embedding(7, 4, scale_grad_by_freq=True)) is None
    assert rule_for(nn.EmbeddingBag(7, 4, mode="max")) is None
