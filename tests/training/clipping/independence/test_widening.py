"""A model in double precision for a moment, and everything back afterwards."""

import pytest
import torch
from torch import nn

from apiece.training.clipping.guards import trainable
from apiece.training.clipping.independence.widening import as_it_is, widened
from apiece.training.clipping.records import Batch


class Casting(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 1)
        self.register_buffer("shift", torch.ones(1))
        self.seen = None

    def forward(self, x):
        h = self.layer(x).float() + self.shift + torch.zeros(1)
        self.seen = h.dtype
        return h


def batch_of(model, dtype=torch.float32):
    model = model.to(dtype)
    x, y = torch.randn(4, 3, dtype=dtype), torch.randint(0, 2, (4,))
    return Batch(model, trainable(model), nn.MSELoss(reduction="none"), x, y, torch.ones(4))


def test_all_of_it_is_double_and_then_as_before():
    model = Casting()
    batch = batch_of(model)
    before = dict(model.named_parameters()) | dict(model.named_buffers())
    with widened(batch) as wide:
        assert wide.inputs.dtype == torch.float64
        assert wide.targets.dtype == torch.int64
        assert wide.parameters["layer.weight"] is model.layer.weight
        assert model.layer.weight.dtype == model.shift.dtype == torch.float64
        assert torch.get_default_dtype() == torch.float64
        model(wide.inputs)
        assert model.seen == torch.float64  # though the model says float()
    assert torch.get_default_dtype() == torch.float32
    after = dict(model.named_parameters()) | dict(model.named_buffers())
    assert all(after[name] is tensor for name, tensor in before.items())


def test_it_is_put_back_after_an_error():
    model = Casting()
    weight = model.layer.weight
    with pytest.raises(ZeroDivisionError), widened(batch_of(model)):
        _ = 1 / 0
    assert model.layer.weight is weight
    assert torch.get_default_dtype() == torch.float32


def test_double_needs_no_widening():
    with widened(batch_of(Casting(), torch.float64)) as wide:
        assert wide is None


def test_tied_parameters_stay_tied():
    model = nn.ModuleList([nn.Linear(3, 3), nn.Linear(3, 3)])
    model[1].weight = model[0].weight
    with widened(batch_of(model)):
        assert model[1].weight is model[0].weight


@pytest.mark.parametrize(
    ("dtype", "relative"),
    [(torch.float64, 1e-6), (torch.float32, 1e-3), (torch.bfloat16, 0.1)],
)
def test_tolerances(dtype, relative):
    assert as_it_is(batch_of(Casting(), dtype)).relative == relative


def test_the_tolerance_under_autocast():
    batch = batch_of(Casting())
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert as_it_is(batch).relative == 0.1
