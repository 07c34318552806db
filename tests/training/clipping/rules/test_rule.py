"""What a rule is given, and what it says of layers."""

import pytest
import torch
from torch import nn

from apiece.training.clipping.rules import LayerUse
from apiece.training.clipping.rules.rule import (
    NotBookable,
    own_weight_and_bias,
    same_output,
    trains,
)


def test_the_first_gradient():
    one, other = torch.ones(2, 3), torch.zeros(2)
    assert LayerUse("a", one, [one, other], {}).gradient is one
    with pytest.raises(NotBookable, match="a: nothing depends"):
        _ = LayerUse("a", one, [None, other], {}).gradient


def test_a_use_prints_nothing_of_people():
    assert "0.25" not in repr(LayerUse("a", torch.full((2,), 0.25), [torch.full((2,), 0.25)], {}))


def test_what_a_layer_trains():
    layer = nn.Linear(2, 2, bias=False)
    assert trains(layer, "weight")
    assert not trains(layer, "bias")
    assert not trains(layer.requires_grad_(False), "weight")
    assert own_weight_and_bias(layer)
    layer.more = nn.Parameter(torch.ones(1))
    assert not own_weight_and_bias(layer)


@pytest.mark.parametrize(
    ("dtype", "apart", "same"),
    [(torch.float32, 1e-4, True), (torch.float32, 1e-2, False), (torch.bfloat16, 1e-2, True),
     (torch.bfloat16, 0.2, False)],
)  # fmt: skip
def test_an_output_made_again(dtype, apart, same):
    made = torch.ones(3, dtype=dtype)
    again = torch.ones(3) * (1 + apart)
    if same:
        same_output("a", made, again)
    else:
        with pytest.raises(NotBookable, match="a: gives another output"):
            same_output("a", made, again)
