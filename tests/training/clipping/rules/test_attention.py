"""Self-attention against a loop, with its masks; what is not plain has no rule, or is not taken."""

import pytest
import torch
from torch import nn

from apiece.training.clipping.rules import RULES, LayerUse, rule_for
from apiece.training.clipping.rules.rule import NotBookable

from .oracle import RECORDS, frozen, hold

LENGTH, WIDTH = 6, 8


def made(**options):
    torch.manual_seed(0)
    return nn.MultiheadAttention(WIDTH, 2, batch_first=True, **options)


def of_itself(**masks):
    def call(layer, values, where):
        given = {
            name: mask[where] if name == "key_padding_mask" else mask
            for name, mask in masks.items()
        }
        given = {n: m.to(values.dtype) if m.is_floating_point() else m for n, m in given.items()}
        return (layer(values, values, values, need_weights=False, **given)[0],)

    return call


CAUSAL = nn.Transformer.generate_square_subsequent_mask(LENGTH)
PADDED = torch.arange(LENGTH) >= torch.tensor([6, 4, 3, 5, 2])[:, None]
MASKS = {
    "none": {},
    "causal": {"attn_mask": CAUSAL},
    "causal, as booleans": {"attn_mask": CAUSAL < 0},
    "padding": {"key_padding_mask": PADDED},
    "both": {"attn_mask": CAUSAL < 0, "key_padding_mask": PADDED},
}


@pytest.mark.parametrize("mask", MASKS)
def test_is_the_loop(mask):
    masks = MASKS[mask]
    hold(made(), torch.randn(RECORDS, LENGTH, WIDTH), call=of_itself(**masks), kwargs=masks)


def test_without_biases_or_with_frozen_parts():
    values = torch.randn(RECORDS, LENGTH, WIDTH)
    hold(made(bias=False), values, call=of_itself())
    found = hold(frozen(made(), "in_proj_weight", "out_proj.bias"), values, call=of_itself())
    assert found.keys() == {"in_proj_bias", "out_proj.weight"}


def test_another_output_is_not_booked():
    layer, values = made(), torch.randn(RECORDS, LENGTH, WIDTH)
    use = LayerUse("layer", values, [torch.ones_like(values)], {}, torch.zeros_like(values))
    with pytest.raises(NotBookable, match="another output"):
        RULES[nn.MultiheadAttention].gives(layer, use)


@pytest.mark.parametrize(
    "layer",
    [made(dropout=0.1), made(add_bias_kv=True), made(add_zero_attn=True), made(kdim=4, vdim=4),
     nn.MultiheadAttention(WIDTH, 2)],
)  # fmt: skip
def test_others_have_no_rule(layer):
    assert rule_for(layer) is None


def test_only_self_attention_is_taken():
    takes = RULES[nn.MultiheadAttention].takes
    a, b = torch.randn(2, RECORDS, LENGTH, WIDTH)
    gradient = torch.ones_like(a)
    assert takes(made(), (a, a, a), {}, [gradient, None])
    assert not takes(made(), (a, b, b), {}, [gradient, None])
    assert not takes(made(), (a, a, a), {}, [gradient, gradient])  # the weights are used
    assert not takes(made(), (a, a, a), {}, [None, gradient])
    assert not takes(made(), (a, a, a), {"surprise": 1}, [gradient])
    assert not takes(made(), (a, a, a), {"attn_mask": torch.zeros(10, 6, 6)}, [gradient])
