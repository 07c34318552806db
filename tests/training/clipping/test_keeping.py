"""Per-record gradients are kept up to a number of entries over all layers, then made again."""

import pytest
import torch
from torch import nn

from apiece.training.clipping import clip_and_sum, contributions, convolution, kernels

LAYERS = 6


def deep(kind):
    """Return layers of whose per-record gradients the keeping is asked, and records for them."""
    torch.manual_seed(0)
    if kind == "convolutions":
        layers = [nn.Conv2d(4, 4, 3, padding=1) for _ in range(LAYERS)]
        return nn.Sequential(*layers, nn.Flatten(), nn.Linear(64, 1)), torch.randn(5, 4, 4, 4)
    layers = [nn.Linear(6, 6) for _ in range(LAYERS)]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(120, 1)), torch.randn(5, 20, 6)


@pytest.mark.parametrize("kind", ["convolutions", "positions"])
def test_no_more_is_kept_than_the_total_and_the_sum_is_the_same(kind, monkeypatch):
    kept = []

    def counted(cells, most):
        found = kernels.may_keep(cells, most)
        kept.append(cells if found else 0)
        return found

    monkeypatch.setattr(contributions, "may_keep", counted)
    monkeypatch.setattr(convolution, "may_keep", counted)
    model, x = deep(kind)
    loss = lambda out, y: (out[:, 0] - y).square()  # noqa: E731

    def summed(total):
        monkeypatch.setattr(kernels, "TOTAL", total)
        kept.clear()
        found = clip_and_sum(model, loss, x, torch.ones(5), 0.01)
        return sum(kept[-LAYERS:]), found.gradients

    everything, wanted = summed(1 << 26)
    some, part = summed(everything // 2)
    nothing, none = summed(0)
    assert everything // 2 >= some > nothing == 0
    for name, value in wanted.items():
        assert torch.allclose(part[name], value, rtol=1e-4, atol=1e-7)
        assert torch.allclose(none[name], value, rtol=1e-4, atol=1e-7)


def test_without_a_step_only_a_layer_s_own_limit_counts():
    assert kernels.may_keep(10, 10)
    assert not kernels.may_keep(11, 10)
