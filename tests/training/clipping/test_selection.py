"""Which path a model takes, that it is kept, and what happens where it cannot be taken."""

import numpy as np
import pytest
import torch
from torch import nn

from apiece.errors import UnsupportedError
from apiece.training import clip_and_sum
from apiece.training.clipping import selection
from apiece.training.clipping.guards import trainable
from apiece.training.clipping.paths import functional
from apiece.training.clipping.records import Batch
from apiece.training.clipping.rules.rule import NotBookable


def squares(out, y):
    return (out[:, 0] - y).square()


class Turned(nn.Module):
    """Its layer sees the records in another order, which book-keeping takes for theirs."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 1)

    def forward(self, x):
        return self.layer(x.flip(0)).flip(0)


class Looking(Turned):
    """Decides by values besides, which vmap cannot run."""

    def forward(self, x):
        return super().forward(x) * (2.0 if float(x.sum()) > 1e9 else 1.0)


PATHS = {
    "book-keeping": lambda: nn.Linear(3, 1),
    "functional": Turned,
    "loop": Looking,
}


def clip(model, **options):
    torch.manual_seed(0)
    return clip_and_sum(model, squares, torch.randn(6, 3), torch.randn(6), 0.3, **options)


@pytest.mark.parametrize("path", PATHS)
def test_the_path_is_found_out_and_kept(path):
    model = PATHS[path]()
    assert selection.chosen(model) == []
    found = clip(model)
    ((how, taken),) = selection.chosen(model)
    assert taken == path
    assert how[0] is True
    other = PATHS[path]()
    other.load_state_dict(model.state_dict())
    selection.choose(other, [(how, path)])
    assert selection.chosen(other) == [(how, path)]
    again = clip(other)
    for name, value in found.gradients.items():
        assert torch.equal(again.gradients[name], value)


def test_an_unknown_path_is_not_chosen():
    model = nn.Linear(3, 1)
    selection.choose(model, [((True, False, "weight", "bias"), "by magic")])
    assert selection.chosen(model) == []


def test_a_path_that_is_insisted_on_is_not_left():
    with pytest.raises(UnsupportedError, match="does not give this model's gradients"):
        clip(Turned(), method="book-keeping")
    with pytest.raises(UnsupportedError, match=r"torch.func cannot run"):
        clip(Looking(), method="functional")


@pytest.mark.parametrize("vmap", [True, False])
def test_another_path_starts_from_the_same_draws(vmap, monkeypatch):
    model = nn.Sequential(nn.Linear(3, 3), nn.Dropout(0.5), nn.Linear(3, 1))
    inputs, targets, bounds = torch.randn(6, 3), torch.randn(6), torch.full((6,), 0.3).double()
    batch = Batch(model, trainable(model), squares, inputs, targets, bounds)
    plain = functional.clip_vectorised if vmap else functional.clip_one_by_one
    torch.manual_seed(5)
    wanted = plain(batch)

    def drawing(batch):
        torch.rand(50)
        raise NotBookable("not this time")

    def failing(batch):
        torch.rand(50)
        raise RuntimeError("vmap")

    monkeypatch.setitem(selection._PATHS, "book-keeping", drawing)
    if not vmap:
        monkeypatch.setattr(functional, "clip_vectorised", failing)
    torch.manual_seed(5)
    found = selection._take("book-keeping", batch, free=True)
    for name, value in wanted.gradients.items():
        assert torch.equal(found.gradients[name], value)
    with pytest.raises(UnsupportedError, match="not this time"):
        selection._take("book-keeping", batch, free=False)


def cross_entropy(outputs, targets):
    return nn.functional.cross_entropy(outputs, targets, reduction="none")


class TimeFirst(nn.Module):
    """Layers see (time, records, …): what stands first is now and then as long as the batch."""

    def __init__(self, last, *, free):
        super().__init__()
        self.body, self.head, self.last = nn.Linear(4, 6), nn.Linear(6, 3), last
        if free:  # parameters that the model uses as it likes
            self.gamma, self.scale = nn.Parameter(torch.ones(6)), nn.Parameter(torch.ones(()))

    def forward(self, x):
        found = torch.tanh(self.body(x.transpose(0, 1)))
        if hasattr(self, "gamma"):
            found = found * self.gamma + self.scale
        return self.last(self.head(found))


LAST = {"mean": lambda t: t.mean(0), "sum": lambda t: t.sum(0), "last": lambda t: t[-1]}
SHAPES = [(1, 1), (8, 7), (5, 5), (5, 1), (6, 6), (3, 1), (1, 3), (2, 2)]


@pytest.mark.filterwarnings("ignore::apiece.errors.SlowPathWarning")
@pytest.mark.parametrize("last", LAST)
@pytest.mark.parametrize("free", [False, True])
@pytest.mark.parametrize("seed", [0, 1, *(pytest.param(k, marks=pytest.mark.slow) for k in (2, 3))])
def test_time_first_is_never_taken_for_records_first(last, free, seed):
    """A first batch of one record with one token let book-keeping count tokens as records."""
    torch.manual_seed(seed)
    random = np.random.default_rng(seed)
    model = TimeFirst(LAST[last], free=free)
    shapes = SHAPES if seed == 0 else random.permutation(SHAPES).tolist()
    for size, time in [(1, 1), *shapes]:
        x, y = 3 * torch.randn(size, time, 4), torch.randint(0, 3, (size,))
        found = clip_and_sum(model, cross_entropy, x, y, 0.1)
        wanted = clip_and_sum(model, cross_entropy, x, y, 0.1, method="loop")
        for name, gradient in wanted.gradients.items():
            assert torch.allclose(found.gradients[name], gradient, atol=1e-5), (size, time)
