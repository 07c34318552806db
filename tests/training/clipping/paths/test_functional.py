"""torch.func and the plain loop give the same gradients, whatever the model shares."""

import pytest
import torch
from torch import nn

from apiece.training.clipping import clip_and_sum
from apiece.training.clipping.guards import trainable
from apiece.training.clipping.paths import functional
from apiece.training.clipping.records import Batch

B = 5


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.table, self.out = nn.Embedding(5, 4), nn.Linear(4, 5, bias=False)
        self.out.weight = self.table.weight

    def forward(self, x):
        return self.out(self.table(x).mean(1))


def layers():
    return nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3))


MODELS = {"layers": (layers, lambda: torch.randn(B, 4)),
          "tied": (Tied, lambda: torch.randint(0, 5, (B, 3)))}  # fmt: skip


def batch_of(name):
    torch.manual_seed(0)
    make, draw = MODELS[name]
    model = make().double()
    inputs = draw()
    inputs = inputs.double() if inputs.is_floating_point() else inputs
    loss = nn.CrossEntropyLoss(reduction="none")
    bounds = torch.linspace(0.05, 2, B).double()
    return Batch(model, trainable(model), loss, inputs, torch.randint(0, 3, (B,)), bounds)


@pytest.mark.parametrize("name", MODELS)
def test_per_record_gradients_are_the_loop_s(name):
    batch = batch_of(name)
    (found, losses), (wanted, alone) = functional.per_record(batch), functional.one_by_one(batch)
    torch.testing.assert_close(losses, alone)
    assert found.keys() == wanted.keys()
    for key, value in wanted.items():
        torch.testing.assert_close(found[key], value)


@pytest.mark.parametrize("name", MODELS)
def test_the_sum_is_clipped_record_by_record(name):
    batch = batch_of(name)
    rows, _ = functional.one_by_one(batch)
    norms = torch.stack([r.flatten(1).square().sum(1) for r in rows.values()]).sum(0).sqrt()
    factors = (batch.clip_norms / norms).clamp(max=1)
    for clip in (functional.clip_vectorised, functional.clip_one_by_one):
        found = clip(batch)
        torch.testing.assert_close(found.norms, norms)
        for key, value in rows.items():
            total = torch.einsum("b,b...->...", factors, value)
            torch.testing.assert_close(found.gradients[key], total)


def test_in_slices_it_is_the_same(monkeypatch):
    batch = batch_of("layers")
    whole = functional.clip_vectorised(batch)
    monkeypatch.setattr(functional, "width_of", lambda batch: 2)
    for key, value in functional.clip_vectorised(batch).gradients.items():
        torch.testing.assert_close(value, whole.gradients[key])


def test_what_is_not_finite_never_enters_a_sum():
    gradients = torch.tensor([[1.0, 2.0], [torch.nan, 1.0], [3.0, torch.inf]])
    good = torch.tensor([True, False, False])
    total = functional.weighted_sum(gradients, torch.tensor([0.5, 0.0, 0.0]), good)
    assert total.tolist() == [0.5, 1.0]


def test_places_are_all_that_hold_a_parameter():
    model = Tied()
    places = functional.places_of(model, trainable(model))
    assert places == {"table.weight": "table.weight", "out.weight": "table.weight"}


class Skips(nn.Module):
    """Uses its layer for some records only."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 1)

    def forward(self, x):
        return self.layer(x)[:, 0] if x.shape[1] == 4 else x.sum(1)


@pytest.mark.parametrize("method", ["auto", "book-keeping", "functional", "loop"])
def test_losses_that_depend_on_no_parameter_give_zeros(method):
    loss = lambda out, y: (out - y).square()  # noqa: E731
    for people in (None, [0, 0, 0, 1, 1]):
        found = clip_and_sum(Skips(), loss, torch.randn(B, 3), torch.randn(B), 1.0, method=method,
                             people=people, physical_batch_size=2)  # fmt: skip
        assert not any(g.any() for g in found.gradients.values())
        assert not found.norms.any()
        assert found.losses.all()
