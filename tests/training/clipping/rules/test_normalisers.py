"""Scales and shifts of normalised values against a loop."""

import pytest
import torch
from torch import nn

from apiece.training.clipping.rules import rule_for

from .oracle import RECORDS, frozen, hold, smooth


def still(layer):
    """A layer that normalises by running statistics, which are not the usual 0 and 1."""
    layer.running_mean.normal_()
    layer.running_var.uniform_(0.2, 3)
    return layer.eval()


LAYERS = {
    "layer norm": (lambda: nn.LayerNorm(6), (6,)),
    "layer norm, places": (lambda: nn.LayerNorm(6), (4, 6)),
    "layer norm, two dimensions": (lambda: nn.LayerNorm((4, 6)), (3, 4, 6)),
    "layer norm, no bias": (lambda: nn.LayerNorm(6, bias=False), (4, 6)),
    "rms norm": (lambda: nn.RMSNorm(6), (4, 6)),
    "group norm": (lambda: nn.GroupNorm(2, 6), (6,)),
    "group norm, images": (lambda: nn.GroupNorm(2, 6), (6, 3, 4)),
    "batch norm, running": (lambda: still(nn.BatchNorm1d(6)), (6,)),
    "batch norm, images": (lambda: still(nn.BatchNorm2d(6)), (6, 3, 4)),
    "batch norm, volumes": (lambda: still(nn.BatchNorm3d(4)), (4, 2, 3, 2)),
    "instance norm": (lambda: nn.InstanceNorm1d(6, affine=True), (6, 4)),
    "instance norm, images": (lambda: nn.InstanceNorm2d(6, affine=True), (6, 4, 3)),
}


def made(name):
    torch.manual_seed(0)
    make, shape = LAYERS[name]
    layer = make()
    for parameter in layer.parameters():
        nn.init.normal_(parameter)
    return layer, shape


@pytest.mark.parametrize("name", LAYERS)
def test_is_the_loop(name):
    layer, shape = made(name)
    hold(layer, torch.randn(RECORDS, *shape))


@pytest.mark.parametrize("name", LAYERS)
def test_is_smooth(name):
    layer, shape = made(name)
    smooth(layer, torch.randn(2, *shape))


def test_what_is_frozen_is_left_out():
    layer, shape = made("layer norm")
    assert hold(frozen(layer, "bias"), torch.randn(RECORDS, *shape)).keys() == {"weight"}


def test_running_statistics_that_still_run_have_no_rule():
    assert rule_for(nn.BatchNorm2d(6)) is None
    assert rule_for(nn.BatchNorm2d(6, track_running_stats=False).eval()) is None
    kept = nn.InstanceNorm1d(6, affine=True, track_running_stats=True)
    assert rule_for(kept) is None
