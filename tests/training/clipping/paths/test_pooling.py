"""Max pooling by way of another memory layout is PyTorch's own to the bit."""

import contextlib

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from apiece.training import clip_and_sum
from apiece.training.clipping.paths import pooling

SHAPES = {
    "overlapping": ((3, 16, 9, 9), {"kernel_size": 2, "stride": 1}),
    "padded": ((3, 8, 9, 11), {"kernel_size": (3, 2), "stride": 2, "padding": (1, 0)}),
    "dilated": ((2, 16, 13, 9), {"kernel_size": 3, "dilation": 2, "ceil_mode": True}),
    "few channels": ((2, 3, 8, 8), {"kernel_size": 2}),
    "no batch": ((16, 8, 8), {"kernel_size": 2}),
    "one place": ((4, 16, 2, 2), {"kernel_size": 2}),
}


def pooled(images, layer):
    images = images.clone().requires_grad_()
    out = layer(images)
    weights = torch.linspace(-1, 1, out.numel()).view(out.shape)
    return out.detach(), torch.autograd.grad((out.nan_to_num() * weights).sum(), images)[0]


@pytest.mark.parametrize("name", SHAPES)
def test_the_same_to_the_bit(name):
    torch.manual_seed(0)
    shape, options = SHAPES[name]
    images = torch.randn(shape).round(decimals=0)  # many ties
    images.view(-1)[::37] = torch.nan
    images.view(-1)[5::41] = -torch.inf
    layer = nn.MaxPool2d(**options)
    wanted = pooled(images, layer)
    with pooling.fast_pooling(layer):
        found = pooled(images, layer)
    for one, other in zip(found, wanted, strict=True):
        assert torch.equal(one.nan_to_num(nan=7e7), other.nan_to_num(nan=7e7))
        assert one.is_contiguous()


class Seen(TorchFunctionMode):
    """Notes the layouts in which pooling is called; entered first, it is asked last."""

    def __init__(self):
        super().__init__()
        self.layouts = []

    def __torch_function__(self, func, types, args=(), kwargs=None):
        if func is functional.max_pool2d:
            self.layouts.append(args[0].is_contiguous(memory_format=torch.channels_last))
        return func(*args, **(kwargs or {}))


def test_the_other_layout_is_taken_only_where_it_is_faster():
    layer, images = nn.MaxPool2d(2), torch.randn(2, 16, 6, 6)
    last = images.contiguous(memory_format=torch.channels_last)
    with Seen() as seen, pooling.fast_pooling(layer):
        assert layer(images).is_contiguous()
        layer(images[:, :3])
        layer(images.double())
        assert not layer(last).is_contiguous()  # which stays as it is
    assert seen.layouts == [True, False, False, True]
    assert type(pooling.fast_pooling(nn.Linear(2, 2))) is contextlib.nullcontext


def test_the_caller_sees_nothing_of_it():
    model = nn.Sequential(nn.Conv2d(1, 8, 3), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(72, 3))
    loss = nn.CrossEntropyLoss(reduction="none")
    inputs, targets = torch.randn(5, 1, 8, 8), torch.randint(0, 3, (5,))
    for _ in range(2):
        clip_and_sum(model, loss, inputs, targets, 1.0)
    images = torch.randn(2, 8, 6, 6)
    assert torch.equal(functional.max_pool2d(images, 2), model[1](images))
    assert not torch.overrides._get_current_function_mode_stack()
