"""Linear layers against a loop, over no, one and several positions."""

import pytest
import torch
from torch import nn

from apiece.training.clipping.rules import RULES, LayerRule, LayerUse, Outer, Products, rule_for

from .oracle import RECORDS, frozen, hold, smooth


@pytest.mark.parametrize("shape", [(6,), (1, 6), (3, 6), (40, 6), (2, 3, 6)])
@pytest.mark.parametrize("bias", [True, False])
def test_is_the_loop(shape, bias):
    hold(nn.Linear(6, 4, bias=bias), torch.randn(RECORDS, *shape))


def test_of_many_features_over_few_places():
    found = hold(nn.Linear(40, 30), torch.randn(RECORDS, 3, 40))
    assert isinstance(found["weight"], Products)
    assert isinstance(hold(nn.Linear(6, 4), torch.randn(RECORDS, 6))["weight"], Outer)


@pytest.mark.parametrize("name", ["weight", "bias"])
def test_what_is_frozen_is_left_out(name):
    assert name not in hold(frozen(nn.Linear(6, 4), name), torch.randn(RECORDS, 3, 6))


@pytest.mark.parametrize("shape", [(6,), (3, 6)])
def test_is_smooth(shape):
    smooth(nn.Linear(6, 4), torch.randn(2, *shape))


def test_a_fault_is_seen(monkeypatch):
    layer = nn.Linear(6, 4)
    plain = rule_for(layer).gives

    def twice(module, use):
        return plain(module, LayerUse(use.path, 2 * use.input, use.gradients, use.kwargs))

    monkeypatch.setitem(RULES, nn.Linear, LayerRule(twice))
    with pytest.raises(AssertionError):
        hold(layer, torch.randn(RECORDS, 6))
