"""The error names the first module in which records meet, or the loss."""

import pytest
import torch
from torch import nn

from apiece.errors import InputError, UnsupportedError
from apiece.training.clipping.guards import trainable
from apiece.training.clipping.independence.blame import blame
from apiece.training.clipping.records import Batch


class Mixing(nn.Module):
    def forward(self, x):
        return x - x.mean(0)


class Turned(nn.Module):
    """Puts the records second, as a module within a model may."""

    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, x):
        return self.inner(x.t()).t()


class Along(nn.Module):
    def forward(self, x):
        return x - x.mean(1, keepdim=True)


def squares(out, y):
    return (out[:, 0] - y).square()


def centred(out, y):
    losses = squares(out, y)
    return losses / losses.mean()


def found(model, loss=squares):
    torch.manual_seed(0)
    batch = Batch(model, trainable(model), loss, torch.randn(6, 3), torch.randn(6), torch.ones(6))
    return blame(batch, 2, 1e-3)


@pytest.mark.parametrize(
    ("model", "path"),
    [(nn.Sequential(nn.Linear(3, 3), Mixing(), nn.Linear(3, 1)), "1"),
     (nn.Sequential(nn.Linear(3, 3), nn.Sequential(nn.ReLU(), Mixing()), nn.Linear(3, 1)), "1.1"),
     (nn.Sequential(nn.Linear(3, 3), Turned(Along()), nn.Linear(3, 1)), "1.inner")],
)  # fmt: skip
def test_the_first_module_in_which_they_meet(model, path):
    error = found(model)
    assert isinstance(error, UnsupportedError)
    assert str(error).startswith(f"model.{path}: the output for one record depends")


def test_the_loss():
    error = found(nn.Linear(3, 1), centred)
    assert type(error) is InputError
    assert str(error).startswith("loss_fn: ")


def test_neither_is_the_backward():
    error = found(nn.Linear(3, 1))
    assert isinstance(error, UnsupportedError)
    assert "backward passes or hooks" in str(error)


def test_no_hook_is_left():
    model = nn.Sequential(nn.Linear(3, 1), Mixing())
    found(model)
    assert not any(module._forward_hooks for module in model.modules())
