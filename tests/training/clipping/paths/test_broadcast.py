"""What is made once for all records and added by broadcasting is book-kept, record by record."""

import copy

import pytest
import torch
from torch import nn

from apiece.errors import UnsupportedError
from apiece.training import clip_and_sum
from apiece.training.clipping.paths.broadcast import frees
from apiece.training.clipping.paths.tape import Unit, units_of
from apiece.training.clipping.selection import chosen


class Tokens(nn.Module):
    """A class token and learned positions, as vision transformers have them."""

    def __init__(self):
        super().__init__()
        self.token = nn.Parameter(torch.randn(1, 1, 4))
        self.places = nn.Parameter(torch.randn(1, 6, 4))
        self.body, self.head = nn.Linear(4, 4), nn.Linear(4, 3)

    def forward(self, x):
        x = torch.cat([self.token.expand(x.shape[0], -1, -1), x], 1) + self.places
        return self.head(torch.tanh(self.body(x))[:, 0] + self.token.mean((0, 1)))


class Fair(Tokens):
    """The same, without a use that takes the mean over records."""

    def forward(self, x):
        x = torch.cat([self.token.expand(x.shape[0], -1, -1), x], 1) + self.places
        return self.head(torch.tanh(self.body(x))[:, 0])


class Positions(nn.Module):
    """A table that is looked up once for all records, and a layer on what comes out."""

    def __init__(self):
        super().__init__()
        self.places, self.shape = nn.Embedding(9, 4), nn.Linear(4, 4)
        self.norm, self.head = nn.LayerNorm(4), nn.Linear(4, 3)

    def forward(self, x):
        places = self.norm(self.shape(self.places(torch.arange(x.shape[1]).unsqueeze(0))))
        return self.head(torch.tanh(x + places).mean(1))


class Repeated(Positions):
    """It repeats by hand what is made for all, which cannot be made for each."""

    def forward(self, x):
        places = self.places(torch.arange(x.shape[1]).unsqueeze(0)).repeat(x.shape[0], 1, 1)
        return self.head(torch.tanh(x + places).mean(1))


class First(Fair):
    """It picks the parameter's only row, which is record 0's where each has one."""

    def forward(self, x):
        return self.head(torch.tanh(self.body(x + self.places[0, :5] + self.token[0]))[:, 0])


MODELS = {"tokens": Fair, "positions": Positions, "repeated": Repeated, "first": First}


def loss(outputs, targets):
    return nn.functional.cross_entropy(outputs, targets, reduction="none")


def in_double(model, x, y, clip_norm):
    model = copy.deepcopy(model).double()
    tensors = list(model.parameters())
    total = [torch.zeros_like(p) for p in tensors]
    for row, label in zip(x.double(), y, strict=True):
        found = torch.autograd.grad(
            loss(model(row.unsqueeze(0)), label.unsqueeze(0)).sum(), tensors, allow_unused=True,
            materialize_grads=True,
        )  # fmt: skip
        norm = torch.stack([g.square().sum() for g in found]).sum().sqrt()
        for t, g in zip(total, found, strict=True):
            t += g * min(1.0, clip_norm / float(norm))
    return total


@pytest.mark.parametrize("size", [1, 2, 5, 8])
@pytest.mark.parametrize("name", MODELS)
def test_the_sum_is_that_of_a_loop(name, size):
    torch.manual_seed(0)
    model = MODELS[name]()
    x, y = torch.randn(size, 5, 4), torch.randint(0, 3, (size,))
    clip_and_sum(model, loss, torch.randn(4, 5, 4), torch.randint(0, 3, (4,)), 1.0)  # path chosen
    found = clip_and_sum(model, loss, x, y, 0.3)
    wanted = in_double(model, x, y, 0.3)
    for g, w in zip(found.gradients.values(), wanted, strict=True):
        assert torch.allclose(g.double(), w, atol=1e-5)
    book_kept = {path for _, path in chosen(model)} == {"book-keeping"}
    assert book_kept == (name in ("tokens", "positions"))
    assert all(isinstance(p, nn.Parameter) for p in model.parameters())


def test_what_cannot_be_made_for_each_is_not_book_kept():
    x, y = torch.randn(4, 5, 4), torch.randint(0, 3, (4,))
    for kind in (Repeated, First):
        with pytest.raises(UnsupportedError, match="book-keeping"):
            clip_and_sum(kind(), loss, x, y, 1.0, method="book-keeping")


def test_a_mean_over_what_was_made_for_each_is_not_taken_for_a_mixture():
    """The mean over copies of one token is the token: exact by another path, or by this one."""
    torch.manual_seed(0)
    model, x, y = Tokens(), torch.randn(4, 5, 4), torch.randint(0, 3, (4,))
    found = clip_and_sum(model, loss, x, y, 0.3)
    for g, w in zip(found.gradients.values(), in_double(model, x, y, 0.3), strict=True):
        assert torch.allclose(g.double(), w, atol=1e-5)


def test_the_parameters_are_put_back_whatever_is_raised():
    model = Fair()

    def broken(outputs, targets):
        raise ZeroDivisionError

    before = dict(model.named_parameters())
    with pytest.raises(ZeroDivisionError):
        clip_and_sum(model, broken, torch.randn(4, 5, 4), torch.zeros(4).long(), 1.0)
    assert all(p is before[name] for name, p in model.named_parameters())


def test_which_parameters_are_free():
    assert [f.name for f in frees("", Tokens())] == ["token", "places"]
    model = Tokens()
    model.scale = nn.Parameter(torch.ones(4))
    assert frees("", model) == []
    (unit,) = units_of(model)
    assert isinstance(unit, Unit)
    assert unit.module is model
