"""Book-keeping: the same sum in parts, by rules and by torch.func, and when it steps aside."""

import pytest
import torch
from torch import nn

from apiece.training.clipping.guards import trainable
from apiece.training.clipping.paths import bookkeeping, functional, pace
from apiece.training.clipping.records import Batch
from apiece.training.clipping.rules.rule import NotBookable

B = 7


class Scaled(nn.Module):
    """A layer with a rule inside a module with a parameter of its own, used twice."""

    def __init__(self):
        super().__init__()
        self.layer, self.scale = nn.Linear(4, 4), nn.Parameter(torch.full((4,), 0.7))

    def forward(self, x):
        return self.layer(self.layer(x).tanh()) * self.scale


class Places(nn.Module):
    """A layer that takes each record apart, into two rows."""

    def __init__(self):
        super().__init__()
        self.layer, self.out = nn.Linear(2, 3), nn.Linear(6, 3)

    def forward(self, x):
        return self.out(self.layer(x.view(-1, 2)).view(len(x), -1))


class Odd(Places):
    """It leaves out a row of all records' together."""

    def forward(self, x):
        rows = self.layer(x.view(-1, 2)[1:])
        return self.out(nn.functional.pad(rows, (0, 0, 1, 0)).view(len(x), -1))


def batch_of(model, dtype=torch.float64):
    torch.manual_seed(0)
    model = model.to(dtype)
    inputs, targets = torch.randn(B, 4, dtype=dtype), torch.randint(0, 3, (B,))
    loss = nn.CrossEntropyLoss(reduction="none")
    bounds = torch.linspace(0.01, 2, B).double()
    return Batch(model, trainable(model), loss, inputs, targets, bounds)


MODELS = {
    "rules": lambda: nn.Sequential(nn.Linear(4, 6), nn.LayerNorm(6), nn.GELU(), nn.Linear(6, 3)),
    "by torch.func": lambda: nn.Sequential(Scaled(), nn.Linear(4, 3)),
    "rows apart": Places,
    "unused": lambda: nn.ModuleDict({"a": nn.Linear(4, 3), "b": nn.Linear(4, 3)}),
}


class First(nn.Module):
    def __init__(self, parts):
        super().__init__()
        self.parts = parts

    def forward(self, x):
        return self.parts["a"](x)


def model_of(name):
    torch.manual_seed(0)
    made = MODELS[name]()
    return First(made) if name == "unused" else made


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("parts", [1, 3])
def test_is_the_loop(name, parts, monkeypatch):
    batch = batch_of(model_of(name))
    if parts > 1:
        monkeypatch.setattr(bookkeeping, "records_at_a_time", lambda *_: 3)
    assert len(list(bookkeeping.parts_of(batch))) == parts
    found, wanted = bookkeeping.clip_in_parts(batch), functional.clip_one_by_one(batch)
    torch.testing.assert_close(found.losses, wanted.losses)
    torch.testing.assert_close(found.norms, wanted.norms)
    for key, value in wanted.gradients.items():
        torch.testing.assert_close(found.gradients[key], value)


def test_a_layer_with_rows_that_are_nobody_s_is_not_booked():
    with pytest.raises(NotBookable, match="whose row is whose"):
        bookkeeping.clip_in_parts(batch_of(Odd()))


def test_the_most_that_run_together(monkeypatch):
    batch = batch_of(model_of("rules"))
    assert bookkeeping.most_together(batch) > B
    monkeypatch.setattr(pace, "_CACHE", 1)
    monkeypatch.setattr(pace, "_WORTH", 0)
    monkeypatch.setattr(pace, "_EACH", 0)
    assert bookkeeping.most_together(batch) == 1
    assert [len(part) for part in bookkeeping.parts_of(batch)] == [1] * B


def test_a_record_that_is_not_finite_adds_nothing():
    batch = batch_of(model_of("rules"))
    batch.inputs[2] = torch.nan
    found = bookkeeping.clip_in_parts(batch)
    assert found.rejected == 1
    assert all(bool(torch.isfinite(g).all()) for g in found.gradients.values())


def test_a_loss_without_a_gradient_gives_zeros():
    batch = batch_of(model_of("rules"))
    found = bookkeeping.clip_batch(
        Batch(batch.model, batch.parameters, lambda out, y: torch.ones(len(y)), batch.inputs,
              batch.targets, batch.clip_norms)
    )  # fmt: skip
    assert not any(bool(g.any()) for g in found.gradients.values())
