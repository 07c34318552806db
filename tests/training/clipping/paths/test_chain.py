"""Chains of linear layers walked by hand: the same sums as a loop of one record at a time."""

import copy

import pytest
import torch
from torch import nn

from apiece.training import clip_and_sum
from apiece.training.clipping.paths import chain
from apiece.training.clipping.records import Batch
from apiece.training.clipping.rules import kernels


def loss_fn(outputs, targets):
    return (outputs.square() * (1 + targets.unsqueeze(1))).sum(1)


def shared():
    layer = nn.Linear(12, 12)
    return nn.Sequential(layer, nn.Tanh(), layer, nn.Linear(12, 3))


def frozen():
    model = nn.Sequential(nn.Linear(12, 9), nn.ReLU(), nn.Linear(9, 8), nn.Linear(8, 3))
    model[0].requires_grad_(False)
    model[2].bias.requires_grad_(False)
    return model


CHAINS = {
    "relu": lambda: nn.Sequential(nn.Linear(12, 16), nn.ReLU(inplace=True), nn.Linear(16, 3)),
    "nested": lambda: nn.Sequential(
        nn.Sequential(nn.Linear(12, 8, bias=False), nn.Tanh()), nn.Linear(8, 4), nn.Sigmoid()
    ),
    "activation first": lambda: nn.Sequential(nn.Tanh(), nn.Linear(12, 4), nn.ReLU()),
    "twice": lambda: nn.Sequential(nn.Linear(12, 6), nn.Tanh(), nn.ReLU(), nn.Linear(6, 3)),
    "wide": lambda: nn.Sequential(nn.Linear(12, 300), nn.Tanh(), nn.Linear(300, 300)),
    "shared": shared,
    "frozen": frozen,
}


def problem(make, size=9):
    torch.manual_seed(0)
    model = make()
    return model, torch.randn(size, 12), torch.rand(size), torch.linspace(0.5, 8, size)


def taken(model, inputs, targets, bounds, loss=loss_fn):
    parameters = {n: p for n, p in model.named_parameters() if p.requires_grad}
    return chain.chain_of(Batch(model, parameters, loss, inputs, targets, bounds.double()))


def the_loop(model, inputs, targets, bounds):
    wide = copy.deepcopy(model).double()
    return clip_and_sum(
        wide, loss_fn, inputs.double(), targets.double(), bounds.double(), method="loop"
    )


@pytest.mark.parametrize("threshold", [0, 1 << 21])
@pytest.mark.parametrize("name", CHAINS)
def test_equals_the_loop(name, threshold, monkeypatch):
    monkeypatch.setattr(kernels, "_SMALL", threshold)  # 0: every product by oneDNN
    model, inputs, targets, bounds = problem(CHAINS[name])
    assert taken(model, inputs, targets, bounds) is not None
    expected = the_loop(model, inputs, targets, bounds)
    for _ in range(2):  # first with the check against autograd, then without
        clipped = clip_and_sum(model, loss_fn, inputs, targets, bounds)
        assert clipped.gradients.keys() == expected.gradients.keys()
        for key, value in expected.gradients.items():
            torch.testing.assert_close(clipped.gradients[key].double(), value, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(clipped.norms.double(), expected.norms, rtol=1e-5, atol=1e-6)


def test_first_batch_and_later_ones_agree_to_the_bit():
    model, inputs, targets, bounds = problem(CHAINS["relu"])
    first = clip_and_sum(model, loss_fn, inputs, targets, bounds)
    second = clip_and_sum(model, loss_fn, inputs, targets, bounds)
    assert all(torch.equal(first.gradients[n], second.gradients[n]) for n in first.gradients)


@pytest.mark.parametrize("name", ["relu", "wide", "shared", "frozen"])
def test_rows_of_no_record_are_not_seen(name, monkeypatch):
    model, inputs, targets, bounds = problem(CHAINS[name], size=9)
    clip_and_sum(model, loss_fn, inputs, targets, bounds)
    found = []
    for rows in (1, 9, 32):  # none, none, and 23 more
        monkeypatch.setattr(chain, "_ROWS", rows)
        monkeypatch.setattr(kernels, "_SMALL", 0)
        found.append(clip_and_sum(model, loss_fn, inputs, targets, bounds))
    for other in found[1:]:
        assert other.norms.shape == other.losses.shape == (9,)
        torch.testing.assert_close(other.norms, found[0].norms)
        torch.testing.assert_close(other.losses, found[0].losses)
        for key, value in found[0].gradients.items():
            torch.testing.assert_close(other.gradients[key], value, rtol=1e-5, atol=1e-5)


def test_parameters_that_are_not_finite_give_zero_whatever_the_rows(monkeypatch):
    model, inputs, targets, bounds = problem(CHAINS["relu"], size=9)
    clip_and_sum(model, loss_fn, inputs, targets, bounds)
    monkeypatch.setattr(kernels, "_SMALL", 0)
    with torch.no_grad():
        model[2].weight[0, 0] = torch.inf
    clipped = clip_and_sum(model, loss_fn, inputs, targets, bounds)
    for value in clipped.gradients.values():
        assert torch.isfinite(value).all()


def test_a_bad_record_contributes_nothing():
    model, inputs, targets, bounds = problem(CHAINS["relu"])
    good = clip_and_sum(model, loss_fn, inputs[1:], targets[1:], bounds[1:])
    inputs[0, 3] = torch.nan
    clipped = clip_and_sum(model, loss_fn, inputs, targets, bounds)
    assert clipped.rejected == 1
    for name, value in good.gradients.items():
        torch.testing.assert_close(clipped.gradients[name], value)


@pytest.mark.parametrize("name", ["frozen", "shared", "activation first"])
def test_a_bad_record_contributes_nothing_whatever_the_chain(name):
    model, inputs, targets, bounds = problem(CHAINS[name])
    good = clip_and_sum(model, loss_fn, inputs[1:], targets[1:], bounds[1:])
    inputs[0] = torch.inf
    clipped = clip_and_sum(model, loss_fn, inputs, targets, bounds)
    assert clipped.rejected in (0, 1)  # what saturates is finite
    if clipped.rejected:
        for key, value in good.gradients.items():
            torch.testing.assert_close(clipped.gradients[key], value)


def test_inputs_and_targets_are_left_alone():
    model, inputs, _, bounds = problem(CHAINS["relu"])
    targets = torch.rand(9, 3)

    def linear_loss(outputs, targets):
        return (outputs * targets).sum(1)  # whose gradient is `targets` itself

    before = inputs.clone(), targets.clone()
    first = clip_and_sum(model, linear_loss, inputs, targets, bounds)
    second = clip_and_sum(model, linear_loss, inputs, targets, bounds)
    assert torch.equal(before[0], inputs)
    assert torch.equal(before[1], targets)
    assert all(torch.equal(first.gradients[n], second.gradients[n]) for n in first.gradients)


def test_no_record_exceeds_its_bound():
    model, inputs, targets, _ = problem(CHAINS["relu"], size=200)
    for i in range(200):
        one = slice(i, i + 1)
        clipped = clip_and_sum(model, loss_fn, inputs[one], targets[one], 1e-3)
        share = torch.sqrt(sum(g.double().square().sum() for g in clipped.gradients.values()))
        assert share <= 1e-3


def test_what_is_no_chain():
    model, inputs, targets, bounds = problem(CHAINS["relu"])
    given = (inputs, targets, bounds)
    hooked = copy.deepcopy(model)
    hooked[0].register_forward_hook(lambda *_: None)
    for other in (
        hooked,
        nn.Sequential(model, nn.Dropout(0.5)),
        nn.Sequential(model, nn.Softmax()),
    ):
        assert taken(other, *given) is None
    assert taken(model.double(), *given) is None
    assert taken(model.float(), inputs.unsqueeze(1), targets, bounds) is None
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert taken(model, *given) is None
