"""What the tape notes of a forward pass, and which modules are one unit."""

import pytest
import torch
from torch import nn

from apiece.training.clipping.paths.tape import free_of, recording, units_of
from apiece.training.clipping.rules.rule import NotBookable


class Own(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale, self.inner = nn.Parameter(torch.ones(3)), nn.Linear(3, 3)

    def forward(self, x):
        return self.inner(x) * self.scale


def paths(model):
    return {unit.path: unit.rule is not None for unit in units_of(model)}


def test_a_unit_for_each_module_with_parameters():
    model = nn.Sequential(nn.Linear(2, 3), nn.ReLU(), Own(), nn.Sequential(nn.LayerNorm(3)))
    assert paths(model) == {"0": True, "2.inner": True, "3.0": True}
    assert list(free_of(model)) == ["2.scale"]


def test_frozen_modules_are_no_units():
    model = nn.Sequential(nn.Linear(2, 2).requires_grad_(False), nn.Linear(2, 2))
    assert paths(model) == {"1": True}


def test_modules_that_read_their_children_s_parameters_are_one():
    attend = nn.MultiheadAttention(4, 2, batch_first=True)
    assert paths(nn.Sequential(attend)) == {"0": True}
    for parameter in (attend.in_proj_weight, attend.in_proj_bias):
        parameter.requires_grad_(False)
    assert paths(nn.Sequential(attend)) == {"0": True}
    assert paths(nn.Sequential(attend.requires_grad_(False))) == {}
    computed = nn.utils.parametrizations.weight_norm(nn.Linear(2, 2))
    assert paths(nn.Sequential(computed)) == {}
    assert len(free_of(computed)) == 3


def test_one_module_at_two_places_is_one_unit_with_two_calls():
    layer = nn.Linear(3, 3)
    model = nn.Sequential(layer, nn.ReLU(), layer)
    with recording(model, 2) as tape:
        model(torch.randn(2, 3))
    assert len(units_of(model)) == 1
    assert [call.unit.path for call in tape.calls] == ["0", "0"]


def test_outputs_are_kept_where_a_unit_is_run_again():
    model = nn.Sequential(nn.Linear(3, 3), nn.LSTM(3, 3, batch_first=True))
    with recording(model, 2) as tape:
        model(torch.randn(2, 4, 3))
    plain, other = tape.calls
    assert plain.outputs is None
    assert other.outputs is not None
    assert not model[0]._forward_hooks


def test_without_a_gradient_nothing_is_noted():
    model = nn.Linear(3, 3)
    with recording(model, 2) as tape, torch.no_grad():
        model(torch.randn(2, 3))
    assert not tape.calls


def test_an_input_that_is_overwritten_later_is_refused():
    model = nn.Linear(3, 3)
    values = torch.randn(2, 3)
    with recording(model, 2) as tape:
        model(values)
    tape.calls[0].check()
    values.mul_(2)
    with pytest.raises(NotBookable, match="in place"):
        tape.calls[0].check()


def test_a_layer_called_by_keyword_is_not_booked():
    model = nn.Linear(3, 3)
    with recording(model, 2), pytest.raises(NotBookable, match="0 arguments"):
        model(input=torch.randn(2, 3))
