"""LSTM, GRU and RNN against a loop: layers, both ways, outputs and last states."""

import pytest
import torch
from torch import nn

from apiece.training.clipping.rules import RULES, LayerUse, rule_for
from apiece.training.clipping.rules.rule import NotBookable

from .oracle import RECORDS, frozen, hold

KINDS = {"lstm": nn.LSTM, "gru": nn.GRU, "rnn": nn.RNN}
SHAPES = {
    "plain": {},
    "two layers": {"num_layers": 2},
    "both ways": {"bidirectional": True},
    "no bias": {"bias": False},
    "all": {"num_layers": 2, "bidirectional": True},
}


def outputs(layer, values, _where):
    out, state = layer(values)
    return (out, *state) if isinstance(state, tuple) else (out, state)


def made(kind, **options):
    torch.manual_seed(0)
    return KINDS[kind](3, 4, batch_first=True, **options)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("kind", KINDS)
def test_is_the_loop(kind, shape):
    hold(made(kind, **SHAPES[shape]), torch.randn(RECORDS, 5, 3), call=outputs)


@pytest.mark.parametrize("kind", KINDS)
def test_with_the_last_states(kind):
    hold(made(kind), torch.randn(RECORDS, 4, 3), call=outputs, states=True)


def test_by_another_activation_and_with_frozen_parts():
    hold(made("rnn", nonlinearity="relu"), torch.randn(RECORDS, 5, 3), call=outputs)
    layer = frozen(made("gru"), "weight_ih_l0", "bias_hh_l0")
    found = hold(layer, torch.randn(RECORDS, 5, 3), call=outputs)
    assert found.keys() == {"weight_hh_l0", "bias_ih_l0"}


def test_another_output_is_not_booked():
    layer, values = made("gru"), torch.randn(RECORDS, 5, 3)
    out = torch.ones(RECORDS, 5, 4)
    use = LayerUse("layer", values, [out, None], {}, out)
    with pytest.raises(NotBookable, match="another output"):
        RULES[nn.GRU].gives(layer, use)


def test_others_have_no_rule():
    assert rule_for(made("lstm", proj_size=2)) is None
    assert rule_for(made("lstm", num_layers=2, dropout=0.1)) is None
    assert rule_for(made("lstm", num_layers=2, dropout=0.1).eval()) is RULES[nn.LSTM]


def test_states_of_one_s_own_are_not_taken():
    values, state = torch.randn(RECORDS, 5, 3), torch.zeros(1, RECORDS, 4)
    takes = RULES[nn.GRU].takes
    assert takes(made("gru"), (values,), {}, [None])
    assert not takes(made("gru"), (values, state), {}, [None])
    assert not takes(made("gru"), (values,), {"hx": state}, [None])
    assert not takes(made("gru"), (values[0],), {}, [None])
    assert not takes(nn.GRU(3, 4), (values,), {}, [None])
