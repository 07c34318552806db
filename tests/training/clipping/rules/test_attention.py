"""Self-attention against a loop, with its masks; what is not plain has no rule, or is not taken.

Where it only attends it is written out, and gives what torch's own function gives.
"""

import pytest
import torch
from torch import nn

from apiece import clip_and_sum
from apiece.training.clipping.paths.tape import recording
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
    [made(add_bias_kv=True), made(add_zero_attn=True), made(kdim=4, vdim=4),
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
    assert not takes(made(dropout=0.1), (a, a, a), {}, [gradient, None])
    assert takes(made(dropout=0.1).eval(), (a, a, a), {}, [gradient, None])
    assert not takes(made(), (a, a, a), {}, [gradient, gradient])  # the weights are used
    assert not takes(made(), (a, a, a), {}, [None, gradient])
    assert not takes(made(), (a, a, a), {"surprise": 1}, [gradient])
    assert not takes(made(), (a, a, a), {"attn_mask": torch.zeros(10, 6, 6)}, [gradient])


def ran(layer, *given, **masks):
    """Return what the layer gives as it is, what it gives on a tape, and the tape."""
    torch.manual_seed(1)
    plain = layer(*given, need_weights=False, **masks)
    torch.manual_seed(1)
    with recording(layer, RECORDS) as tape:
        found = layer(*given, need_weights=False, **masks)
    return plain[0], found[0], tape


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("dropout", [0.0, 0.3])
def test_written_out_is_what_the_layer_gives(mask, dropout):
    values = torch.randn(RECORDS, LENGTH, WIDTH)
    plain, found, tape = ran(made(dropout=dropout), values, values, values, **MASKS[mask])
    torch.testing.assert_close(found, plain)
    assert [use.shared.dim() for use in tape.follow.uses] == [2, 1, 2, 1]
    assert not tape.calls


@pytest.mark.parametrize(
    ("layer", "times", "masks"),
    [(made(), 2, {}),
     (made(add_bias_kv=True), 1, {}),
     (made(add_zero_attn=True), 1, {}),
     (nn.MultiheadAttention(WIDTH, 2), 1, {}),
     (made(), 1, {"attn_mask": torch.zeros(2 * RECORDS, LENGTH, LENGTH)})],
)  # fmt: skip
def test_what_is_not_plain_is_not_written_out(layer, times, masks):
    values = torch.randn(RECORDS, LENGTH, WIDTH)
    given = [values.clone() for _ in range(3)] if times > 1 else [values] * 3
    plain, found, tape = ran(layer, *given, **masks)
    torch.testing.assert_close(found, plain)
    assert len(tape.calls) == 1
    assert not tape.follow.uses


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.TransformerEncoderLayer(WIDTH, 2, 16, dropout=0.2, batch_first=True)

    def forward(self, values):
        return self.body(values).flatten(1)


def test_dropout_is_that_of_the_step():
    torch.manual_seed(0)
    model, values = Encoder(), torch.randn(RECORDS, LENGTH, WIDTH)
    clip_and_sum(model, squares, values, values[:, 0, 0], 0.5)  # with its look
    torch.manual_seed(2)
    total = clip_and_sum(model, squares, values, values[:, 0, 0], 0.5, method="book-keeping")
    torch.manual_seed(2)
    losses = squares(model(values), None)
    wanted = [torch.zeros_like(p) for p in model.parameters()]
    for one in losses:
        each = torch.autograd.grad(one, list(model.parameters()), retain_graph=True)
        norm = torch.stack([g.square().sum() for g in each]).sum().sqrt()
        for sum_, g in zip(wanted, each, strict=True):
            sum_ += g * min(1.0, 0.5 / float(norm))
    for found, sum_ in zip(total.gradients.values(), wanted, strict=True):
        torch.testing.assert_close(found, sum_, rtol=1e-3, atol=1e-5)


def squares(outputs, _targets):
    return outputs.square().sum(1)
