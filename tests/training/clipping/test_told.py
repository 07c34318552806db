"""A model that is not book-kept is told so once, and every part can be asked for its path."""

import warnings

import numpy as np
import pytest
import torch
from torch import nn

from apiece import Budgets, assign
from apiece.errors import SlowPathWarning
from apiece.training import Trainer, clip_and_sum
from apiece.training.clipping.selection import paths_of


class Sideways(nn.Module):
    """A layer that sees time first, which cannot be told from records."""

    def __init__(self):
        super().__init__()
        self.body, self.head = nn.Linear(4, 4), nn.Linear(4, 3)

    def forward(self, x):
        return self.head(self.body(x.transpose(0, 1)).mean(0))


class Looks(Sideways):
    """The same, with a forward that looks at values: torch.func cannot run it."""

    def forward(self, x):
        return super().forward(x) * (1.0 if float(x.detach().sum()) > -1e9 else 2.0)


class Scaled(nn.Module):
    """A scale of its own, a token of its own, and a layer."""

    def __init__(self):
        super().__init__()
        self.token, self.inner = nn.Parameter(torch.zeros(1, 4)), Scale()
        self.head = nn.Linear(4, 3)

    def forward(self, x):
        return self.head(self.inner(x.mean(1) + self.token))


class Scale(nn.Module):
    def __init__(self):
        super().__init__()
        self.by = nn.Parameter(torch.ones(4))

    def forward(self, x):
        return x * self.by


def loss(outputs, targets):
    return nn.functional.cross_entropy(outputs, targets, reduction="none")


def batch(size=5):
    return torch.randn(size, 6, 4), torch.randint(0, 3, (size,))


@pytest.mark.parametrize(("kind", "path"), [(Sideways, "functional"), (Looks, "loop")])
def test_a_fall_back_is_told_once_with_the_reason_and_the_remedy(kind, path):
    torch.manual_seed(0)
    model = kind()
    assert paths_of(model) == ()
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        for _ in range(4):
            clip_and_sum(model, loss, *batch(), 1.0)
    (warning,) = [w for w in seen if w.category is SlowPathWarning]
    text = str(warning.message)
    assert f"clipped by {path}" in text
    assert "body: the first dimension is not the records" in text
    assert "records first" in text
    assert "\n" not in text
    (part,) = paths_of(model)
    assert (part.name, part.kind, part.path) == ("", kind.__name__, path)
    assert "body" in part.why


def test_the_remedy_works():
    class Mended(Sideways):
        def forward(self, x):
            return self.head(self.body(x).mean(1))

    model = Mended()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        clip_and_sum(model, loss, *batch(), 1.0)
    assert {part.path for part in paths_of(model)} == {"book-keeping"}


@pytest.mark.parametrize("method", ["functional", "loop"])
def test_who_asks_for_a_path_is_not_warned(method):
    model = Sideways()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        clip_and_sum(model, loss, *batch(), 1.0, method=method)
    (part,) = paths_of(model, method)
    assert (part.path, part.why) == (method, "asked for by method")


def test_a_trainer_says_it_for_every_part():
    model, (x, y) = Scaled(), batch(40)
    plan = assign(Budgets(np.full(40, 8.0), 1e-3), "uniform", steps=2, expected_batch_size=20,
                  clip_norm=1.0)  # fmt: skip
    data = torch.utils.data.TensorDataset(x, y)
    trainer = Trainer(model, torch.optim.SGD(model.parameters(), 0.1), loss, plan, data, seed=0)
    assert trainer.paths == ()
    trainer.fit()
    told = {part.name: (part.kind, part.path) for part in trainer.paths}
    assert told == {
        "token": ("parameter", "book-keeping"),
        "inner.by": ("parameter", "book-keeping"),
        "head": ("Linear", "book-keeping"),
    }
    assert trainer.paths[1].why == "followed to where it meets the records"
