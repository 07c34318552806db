"""Per-record convolution gradients: every way of making them gives autograd's, record by record."""

import pytest
import torch
from torch import nn

from apiece.training.clipping.convolution import Convolution, Kernel, convolution

CASES = {
    "stride and padding": (nn.Conv2d(1, 16, 8, stride=2, padding=3), "patches"),
    "three channels": (nn.Conv2d(3, 8, 3, padding=1), "patches"),
    "oblong": (nn.Conv2d(2, 9, (2, 5), stride=(1, 3), padding=(2, 1)), "patches"),
    "dilated": (nn.Conv2d(3, 8, (3, 2), dilation=(2, 3), padding=(1, 2)), "patches"),
    "groups": (nn.Conv2d(4, 16, 3, groups=2, stride=2), "patches"),
    "reflected": (nn.Conv2d(2, 8, 3, padding=2, padding_mode="reflect"), "patches"),
    "narrow kernel": (nn.Conv2d(3, 8, (5, 1)), "patches"),
    "few outputs": (nn.Conv2d(3, 6, 3), "patches"),
    "one dimension": (nn.Conv1d(4, 8, 3), "patches"),
    "depthwise": (nn.Conv2d(4, 4, 3, padding=1, groups=4), "by channel"),
    "depthwise, strided": (nn.Conv2d(3, 9, 4, stride=3, padding=2, groups=3), "by channel"),
    "depthwise, dilated": (
        nn.Conv2d(3, 6, (3, 2), stride=2, dilation=(2, 3), padding=(1, 2), groups=3),
        "by channel",
    ),
    "depthwise, one dimension": (nn.Conv1d(4, 8, 5, stride=2, groups=4), "by channel"),
    "depthwise, reflected": (
        nn.Conv2d(2, 2, 3, padding=2, padding_mode="reflect", groups=2),
        "by channel",
    ),
    "many channels": (nn.Conv2d(8, 8, 3, padding=1), "grouped"),
}
WAYS = {
    "by channel": "_gradients_by_channel",
    "grouped": "_gradients_by_group",
    "patches": "_gradients_by_product",
}


def kernel_of(layer, inputs):
    """The arithmetic of a layer, and its inputs with what is not padded by plain zeros."""
    ends, padding = layer._reversed_padding_repeated_twice, layer.padding
    if layer.padding_mode != "zeros" or isinstance(padding, str):
        mode = "constant" if layer.padding_mode == "zeros" else layer.padding_mode
        inputs = nn.functional.pad(inputs, ends, mode=mode)
        padding = (0,) * (inputs.dim() - 2)
    steps = layer.stride, padding, layer.dilation, layer.groups
    return Kernel(tuple(layer.weight.shape), *steps), inputs


def one_by_one(layer, inputs, outputs):
    rows = []
    for x, g in zip(inputs, outputs, strict=True):
        out = layer(x.unsqueeze(0))
        rows.append(torch.autograd.grad(out, layer.weight, g.unsqueeze(0))[0])
    return torch.stack(rows)


@pytest.mark.parametrize("name", CASES)
def test_is_autograd_s(name, monkeypatch):
    torch.manual_seed(0)
    layer, way = CASES[name]
    shape = (5, layer.in_channels, 13, 12)[: layer.weight.dim()]
    inputs = torch.randn(shape)
    outputs = torch.randn_like(layer(inputs))
    taken = []
    method = getattr(Convolution, WAYS[way])
    monkeypatch.setattr(
        Convolution, WAYS[way], lambda *a: taken.append(a[1:]) or method(*a), raising=True
    )
    found = convolution(*kernel_of(layer, inputs), outputs)
    wanted = one_by_one(layer, inputs, outputs)
    torch.testing.assert_close(found.per_record(), wanted, rtol=1e-4, atol=1e-4)
    squares = wanted.double().flatten(1).square().sum(1)
    torch.testing.assert_close(found.squares().double(), squares, rtol=1e-5, atol=1e-5)
    weights = torch.rand(5)
    total = (weights.view(-1, *[1] * (wanted.dim() - 1)) * wanted).sum(0)
    torch.testing.assert_close(found.weighted_sum(weights), total, rtol=1e-4, atol=1e-4)
    assert taken == [(0, 5)]


LAYERS = {
    "1d": (lambda: nn.Conv1d(3, 4, 3, padding=1), (3, 9)),
    "2d": (lambda: nn.Conv2d(3, 4, 3, stride=2, padding=1), (3, 7, 6)),
    "2d, many channels": (lambda: nn.Conv2d(8, 8, 3), (8, 6, 6)),
    "2d, few places": (lambda: nn.Conv2d(16, 16, 3), (16, 3, 4)),
    "3d in groups": (lambda: nn.Conv3d(4, 4, 2, groups=2), (4, 3, 3, 3)),
    "same": (lambda: nn.Conv2d(2, 3, (2, 3), padding="same", dilation=2), (2, 6, 5)),
    "circular": (lambda: nn.Conv2d(2, 3, 3, padding=1, padding_mode="circular"), (2, 6, 5)),
    "no bias": (lambda: nn.Conv2d(2, 3, 3, bias=False), (2, 6, 5)),
}


def hold(layer, inputs):
    """Hold squares, sums and gradients, with and without some, to autograd's; return the form."""
    torch.manual_seed(1)
    outputs = torch.randn_like(layer(inputs))
    found = convolution(*kernel_of(layer, inputs), outputs)
    exact = one_by_one(layer.double(), inputs.double(), outputs.double())
    squares = exact.flatten(1).square().sum(1)
    torch.testing.assert_close(found.per_record().double(), exact, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(found.squares().double(), squares, rtol=2e-4, atol=1e-5)
    assert bool((found.squares().double() >= squares * (1 - 2.0**-17)).all())
    weights = torch.rand(len(inputs))
    total = torch.einsum("b,b...->...", weights.double(), exact)
    torch.testing.assert_close(found.weighted_sum(weights).double(), total, rtol=1e-4, atol=1e-3)
    bad = torch.arange(len(inputs)) == 1
    without = found.without(bad).per_record()
    assert not without[1].any()
    torch.testing.assert_close(without[0], found.per_record()[0])
    return found


@pytest.mark.parametrize("name", LAYERS)
def test_every_form_is_autograd_s(name):
    make, shape = LAYERS[name]
    hold(make(), torch.randn(5, *shape))


@pytest.mark.parametrize("name", LAYERS)
def test_so_it_is_where_gradients_are_not_kept(name, monkeypatch):
    monkeypatch.setattr("apiece.training.clipping.convolution.KEEP", 0)
    make, shape = LAYERS[name]
    assert isinstance(hold(make(), torch.randn(5, *shape)), Convolution)
