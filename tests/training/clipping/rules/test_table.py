"""The table of rules: exactly the layers that it names, as they come."""

import pytest
import torch
from torch import nn

from apiece.training.clipping.rules import RULES, LayerRule, rule_for

MADE = {
    nn.Linear: lambda: nn.Linear(2, 2),
    nn.Conv1d: lambda: nn.Conv1d(2, 2, 1),
    nn.Conv2d: lambda: nn.Conv2d(2, 2, 1),
    nn.Conv3d: lambda: nn.Conv3d(2, 2, 1),
    nn.Embedding: lambda: nn.Embedding(2, 2),
    nn.EmbeddingBag: lambda: nn.EmbeddingBag(2, 2),
    nn.LayerNorm: lambda: nn.LayerNorm(2),
    nn.RMSNorm: lambda: nn.RMSNorm(2),
    nn.GroupNorm: lambda: nn.GroupNorm(1, 2),
    nn.InstanceNorm1d: lambda: nn.InstanceNorm1d(2, affine=True),
    nn.InstanceNorm2d: lambda: nn.InstanceNorm2d(2, affine=True),
    nn.InstanceNorm3d: lambda: nn.InstanceNorm3d(2, affine=True),
    nn.MultiheadAttention: lambda: nn.MultiheadAttention(2, 1, batch_first=True),
    nn.LSTM: lambda: nn.LSTM(2, 2, batch_first=True),
    nn.GRU: lambda: nn.GRU(2, 2, batch_first=True),
    nn.RNN: lambda: nn.RNN(2, 2, batch_first=True),
}


def test_every_kind_is_here():
    assert set(RULES) >= set(MADE)
    assert all(isinstance(rule, LayerRule) for rule in RULES.values())


@pytest.mark.parametrize("kind", MADE, ids=lambda kind: kind.__name__)
def test_a_layer_as_it_comes_has_its_rule(kind):
    assert rule_for(MADE[kind]()) is RULES[kind]


@pytest.mark.parametrize("kind", MADE, ids=lambda kind: kind.__name__)
def test_one_that_was_changed_has_none(kind):
    hooked = MADE[kind]()
    hooked.register_forward_hook(lambda *_: None)
    assert rule_for(hooked) is None
    other = MADE[kind]()
    other.forward = other.forward
    assert rule_for(other) is None
    child = MADE[kind]()
    child.__class__ = type("Child", (kind,), {})
    assert rule_for(child) is None


def test_a_parameter_that_is_computed_has_none():
    layer = nn.utils.parametrizations.weight_norm(nn.Linear(2, 2))
    assert rule_for(layer) is None
    assert rule_for(nn.ReLU()) is None
    more = nn.Linear(2, 2)
    more.scale = nn.Parameter(torch.ones(1))
    assert rule_for(more) is None
