"""What a forward leaves behind: taken where nothing depends on it, refused where something may."""

import pytest
import torch
from torch import nn

from apiece.errors import UnsupportedError
from apiece.training import clip_and_sum

from .test_front import assert_same, loss_fn


class Keeps(nn.Module):
    """A layer, and something that is kept from one forward to the next."""

    def __init__(self, forward):
        super().__init__()
        self.layer, self.kept, self.calls = nn.Linear(4, 3), None, 0
        self.how = (forward,)

    def forward(self, x):
        return self.how[0](self, x)


def counts(self, x):
    self.calls += 1
    return self.layer(x)


def counts_by_halves(self, x):
    self.calls = 2.0 * self.calls + 0.5
    return self.layer(x)


def positions(self, x):
    if self.kept is None or self.calls < x.shape[1]:
        self.kept, self.calls = torch.linspace(0, 1, x.shape[1]), x.shape[1]
    return self.layer(x + self.kept)


def mask(self, x):
    if self.kept is None or self.kept.shape[0] != x.shape[0]:
        self.kept = torch.ones(x.shape[0], 1)
    return self.layer(x * self.kept)


def flag(self, x):
    self.kept = True
    return self.layer(x)


SETTLED = [counts, counts_by_halves, positions, mask, flag]


@pytest.mark.parametrize("forward", SETTLED, ids=lambda f: f.__name__)
def test_what_nothing_depends_on_is_taken_and_left(forward):
    torch.manual_seed(0)
    model, x = Keeps(forward), torch.randn(9, 4)
    found = clip_and_sum(model, loss_fn, x, torch.ones(9), 0.1, method="proved")
    assert (model.kept, model.calls) == (None, 0)
    assert_same(found, model, loss_fn, x, torch.ones(9), tolerance=2e-4)


def anneals(self, x):
    self.calls += 1
    return self.layer(x) / self.calls


def warms_up(self, x):
    self.calls += 1
    return self.layer(x) if self.calls < 100 else -self.layer(x)


def every_tenth(self, x):
    self.calls = (self.calls + 1) % 10
    return self.layer(x)


def fills(self, x):
    self.calls += 1
    return self.layer(x) + torch.full((3,), 1.0 * self.calls)


def once(self, x):
    self.kept, before = True, self.kept
    return self.layer(x) if before else -self.layer(x)


def running(self, x):
    self.kept = x.detach().mean(0) + (0 if self.kept is None else self.kept)
    return self.layer(x)


def own_rows(self, x):
    if self.kept is None:
        self.kept = x.detach()
    return self.layer(x + self.kept)


def own_rows_by_a_view(self, x):
    if self.kept is None:
        self.kept = torch.zeros(x.shape)
        self.kept[:, 0] = x.detach()[:, 0]
    return self.layer(x + self.kept)


def of_the_parameters(self, x):
    if self.kept is None:
        self.kept = self.layer.weight.detach().square().sum()
    return self.layer(x) / self.kept


def chance(self, x):
    if self.kept is None:
        self.kept = torch.rand(x.shape)
    return self.layer(x + self.kept)


def grows(self, x):
    self.kept = torch.zeros(1) if self.kept is None else torch.cat([self.kept, torch.zeros(1)])
    return self.layer(x)


def lists(self, x):
    self.kept = [*(self.kept or []), 1]
    return self.layer(x)


MOVING = [anneals, warms_up, every_tenth, fills, once, running, own_rows, own_rows_by_a_view,
          of_the_parameters, chance, grows, lists]  # fmt: skip


@pytest.mark.parametrize("forward", MOVING, ids=lambda f: f.__name__)
def test_what_something_may_depend_on_is_refused(forward):
    torch.manual_seed(0)
    model, x = Keeps(forward), torch.randn(9, 4)
    with pytest.raises(UnsupportedError, match=r"(kept|calls): changes in a forward"):
        clip_and_sum(model, loss_fn, x, torch.ones(9), 0.1, method="proved")
    assert (model.kept, model.calls) == (None, 0)
