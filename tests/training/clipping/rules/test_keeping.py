"""Per-record gradients are kept up to a number of entries over all layers, then made again."""

import pytest
import torch
from torch import nn

from apiece.training.clipping import clip_and_sum
from apiece.training.clipping.rules import contributions, convolution, keeping

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
        found = keeping.may_keep(cells, most)
        kept.append(cells if found else 0)
        return found

    monkeypatch.setattr(contributions, "may_keep", counted)
    monkeypatch.setattr(convolution, "may_keep", counted)
    model, x = deep(kind)
    loss = lambda out, y: (out[:, 0] - y).square()  # noqa: E731

    def summed(total):
        monkeypatch.setattr(keeping, "TOTAL", total)
        for _ in range(3):  # looks at the batch come in the first ones
            kept.clear()
            found = clip_and_sum(model, loss, x, torch.ones(5), 0.01, method="book-keeping")
        return sum(kept[-LAYERS:]), found.gradients

    everything, wanted = summed(1 << 26)
    some, part = summed(everything // 2)
    nothing, none = summed(0)
    assert everything // 2 >= some > nothing == 0
    for name, value in wanted.items():
        assert torch.allclose(part[name], value, rtol=1e-4, atol=1e-7)
        assert torch.allclose(none[name], value, rtol=1e-4, atol=1e-7)


def test_without_a_step_only_a_layer_s_own_limit_counts():
    assert keeping.may_keep(10, 10)
    assert not keeping.may_keep(11, 10)
