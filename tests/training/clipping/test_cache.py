"""The cache of engines: nothing is held for longer than its model, and no length is lost."""

import gc
import weakref

import torch
from torch import nn

from apiece.training import clip_and_sum
from apiece.training.clipping import cache


def squares(out, y):
    return (out.squeeze(1) - y).square()


class Turned(nn.Module):
    """A model that its own layer leads to, and with a loss of its own."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 1)
        self.layer.owner = [self]

    def forward(self, x):
        return self.layer(x)

    def loss(self, out, y):
        return squares(out, y)


class Summed(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 1)

    def forward(self, x):
        return self.layer(x.sum(1))


def clip(model, loss_fn=squares, size=4, shape=(3,)):
    clip_and_sum(model, loss_fn, torch.randn(size, *shape), torch.randn(size), 0.1)


def test_a_model_is_collected_with_its_engines():
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))
    clip(model)
    store = weakref.ref(cache.ENGINES._stores[model].forms.popitem()[1].watch)
    clip(model)
    parameter = weakref.ref(model[0].weight)
    del model
    gc.collect()
    assert parameter() is None
    assert store() is None


def test_of_models_that_their_own_layers_lead_to_the_last_ones_are_held(monkeypatch):
    monkeypatch.setattr(cache, "_MODELS_KEPT", 2)
    models = [Turned() for _ in range(4)]
    for model in models:
        clip(model, model.loss)
    references = [weakref.ref(model) for model in models]
    del model, models
    gc.collect()
    assert [reference() is None for reference in references] == [True, True, False, False]


def test_more_lengths_than_forms_are_each_built_once(monkeypatch):
    built = []
    build = cache.build_engine
    monkeypatch.setattr(cache, "build_engine", lambda *args: built.append(1) or build(*args))
    model = Summed()
    lengths = range(2, 2 + cache._FORMS_OF_MODEL + 5)
    for length in (*lengths, *lengths):
        clip(model, shape=(length, 3))
    assert len(built) == len(lengths)


def test_of_too_many_operators_the_oldest_form_goes(monkeypatch):
    monkeypatch.setattr(cache, "_FORMS_OF_MODEL", 2)
    monkeypatch.setattr(cache, "_OPERATORS_OF_MODEL", 3 * cache._OPERATORS_OF_FORM)
    model = Summed()
    for length in range(2, 9):
        clip(model, shape=(length, 3))
    forms = cache.ENGINES._stores[model].forms.values()
    lengths = [shape[0] for form in forms for shape, *_ in form.signature[0] if shape]
    assert lengths == [6, 7, 8]
