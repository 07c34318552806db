"""What code reads of Python's is frozen in no capture: a change is seen, or the model refused."""

import array
import collections
import contextlib
import contextvars
import enum
import functools
import itertools
import os
import sys
import threading
import types
import weakref

import numpy as np
import pytest
import torch
from torch import nn

from apiece.errors import UnsupportedError
from apiece.training import clip_and_sum

from .test_front import assert_same, loss_fn

SIZE = 9
CONTEXT = contextvars.ContextVar("CONTEXT", default=1.0)
LOCAL = threading.local()
ARRAY, DOUBLES, BYTES = np.ones(3), array.array("d", [1.0]), bytearray(b"\x01")
ALIVE = threading.local()  # of what can be referred to weakly
WEAK, WEAKLY = weakref.ref(ALIVE), weakref.WeakValueDictionary(one=ALIVE)
QUEUE, COUNTS = collections.deque([1.0]), collections.Counter(one=1)
HOLDER = types.ModuleType("holder_of_a_scale")
DEEP = types.SimpleNamespace(scale=1.0)
for _ in range(9):
    DEEP = types.SimpleNamespace(inner=DEEP)


class Slots:
    __slots__ = ("scale",)


SLOTS = Slots()


class Kind(enum.Enum):
    ONE = 1


class Holds:
    """A class with a scale of its own, and ways to come by it."""

    scale = 1.0

    @property
    def asked(self):
        return SCALE

    def called(self):
        return SCALE

    @staticmethod
    def called_of_none():
        return SCALE

    @classmethod
    def called_of_class(cls):
        return cls.scale

    def __mul__(self, other):
        return SCALE * other


HOLDS = Holds()


class Meta(type):
    @property
    def asked(cls):
        return SCALE


class OfMeta(metaclass=Meta):
    pass


class Told:
    def __get__(self, one, kind=None):
        return Holds.scale


class Reversed(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        return -SCALE * gradient


def read_attribute():
    return read_attribute.scale


def default(scale=1.0):
    return scale


def default_by_name(*, scale=1.0):
    return scale


def code():
    return 1.0


def other_code():
    return 3.0


@functools.lru_cache
def cached():
    return SCALE


@contextlib.contextmanager
def within():
    yield SCALE


def imported():
    import holder_of_a_scale

    return holder_of_a_scale.scale


def deepest(value):
    while hasattr(value, "inner"):
        value = value.inner
    return value


class Model(nn.Module):
    """A layer whose outputs are scaled by what is read."""

    told = Told()
    SCALE = 1.0

    def __init__(self, read):
        super().__init__()
        self.layer, self.read = nn.Linear(4, 3), (read,)
        self.register_buffer("buffer", torch.ones(3))

    def forward(self, x):
        return self.layer(x) * self.read[0](self)

    def in_a_method(self):
        return SCALE


class Inherits(Model):
    def forward(self, x):
        return super().forward(x) + 0


class Asked(Model):
    def __getattr__(self, name):
        return SCALE if name == "unknown" else super().__getattr__(name)


class Called(Model):
    def __call__(self, *given):
        return super().__call__(*given) * SCALE


def put(holder, name="scale", value=3.0):
    """Return what sets an attribute, whatever the model."""
    return lambda _model: setattr(holder, name, value)


def item(holder, key, value):
    return lambda _model: holder.__setitem__(key, value)


HERE = sys.modules[__name__]
SCALE = 1.0
SCALED = put(HERE, "SCALE")
CHANGES = {  # what is read, and how it changes
    "a global": (lambda _: SCALE, SCALED),
    "a global by its dict": (lambda _: globals()["SCALE"], SCALED),
    "in a comprehension": (lambda _: sum(SCALE for _ in range(2)), SCALED),
    "in a lambda": (lambda _: (lambda: SCALE)(), SCALED),
    "in a method": (lambda model: model.in_a_method(), SCALED),
    "in a context": (lambda _: within().__enter__(), SCALED),
    "cached": (lambda _: cached(), lambda _: (cached.cache_clear(), SCALED(_))),
    "an environment": (lambda _: float(os.getenv("A_SCALE")), item(os.environ, "A_SCALE", "3")),
    "a module": (lambda _: HOLDER.scale, put(HOLDER)),
    "a module by name": (lambda _: getattr(HOLDER, "sca" + "le"), put(HOLDER)),
    "an import": (lambda _: imported(), put(HOLDER)),
    "a class": (lambda _: Holds.scale, put(Holds)),
    "a class by its dict": (lambda _: vars(Holds)["scale"], put(Holds)),
    "the model's class": (lambda model: model.SCALE, put(Model, "SCALE")),
    "a class method": (lambda _: Holds.called_of_class(), put(Holds)),
    "a static method": (lambda _: HOLDS.called_of_none(), SCALED),
    "an object's class": (lambda _: HOLDS.scale, put(Holds)),
    "an object's method": (lambda _: HOLDS.called(), SCALED),
    "an object's property": (lambda _: HOLDS.asked, SCALED),
    "an object's operator": (lambda _: HOLDS * 1.0, SCALED),
    "a class's property": (lambda _: OfMeta.asked, SCALED),
    "a descriptor": (lambda model: model.told, put(Holds)),
    "slots": (lambda _: SLOTS.scale, put(SLOTS)),
    "an enum": (lambda _: Kind.ONE.scale, put(Kind.ONE)),
    "a function's attribute": (lambda _: read_attribute(), put(read_attribute)),
    "a default": (lambda _: default(), put(default, "__defaults__", (3.0,))),
    "a default by name": (
        lambda _: default_by_name(),
        lambda _: default_by_name.__kwdefaults__.update(scale=3.0),
    ),
    "code": (lambda _: code(), put(code, "__code__", other_code.__code__)),
    "an array": (lambda _: float(ARRAY[1]), item(ARRAY, 1, 3.0)),
    "doubles": (lambda _: DOUBLES[0], item(DOUBLES, 0, 3.0)),
    "bytes": (lambda _: BYTES[0], item(BYTES, 0, 3)),
    "a queue": (lambda _: QUEUE[-1], lambda _: QUEUE.append(3.0)),
    "a counter": (lambda _: COUNTS["one"], lambda _: COUNTS.update(one=2)),
    "a weak reference": (lambda _: WEAK().scale, put(ALIVE)),
    "a weak dict": (lambda _: WEAKLY["one"].scale, put(ALIVE)),
    "a context variable": (lambda _: CONTEXT.get(), lambda _: CONTEXT.set(3.0)),
    "a thread's own": (lambda _: LOCAL.scale, put(LOCAL)),
    "deep within": (lambda _: deepest(DEEP).scale, put(deepest(DEEP))),
    "an attribute's name": (
        lambda model: 1 if hasattr(model, "first") else 3,
        lambda model: (delattr(model, "first"), setattr(model, "last", None)),
    ),
    "a key": (lambda model: 1 if 1 in model.kept else 3, lambda model: model.kept.update({2: 1})
              or model.kept.pop(1)),
    "a buffer's size": (
        lambda model: model.buffer.numel(), lambda model: setattr(model, "buffer", torch.ones(9))
    ),
    "a buffer left out": (
        lambda model: 3 if model.buffer is None else model.buffer,
        lambda model: setattr(model, "buffer", None),
    ),
    "a hook of all modules": (lambda _: 1, lambda _: HOOKS.append(
        nn.modules.module.register_module_forward_hook(
            lambda part, _given, out: out * 3 if isinstance(part, nn.Linear) else None))),
    "the default type": (
        lambda _: 1 if torch.get_default_dtype() == torch.float32 else 3,
        lambda _: torch.set_default_dtype(torch.float64),
    ),
    "in the base class": (lambda _: SCALE, SCALED, Inherits),
    "an unknown name": (lambda model: model.unknown, SCALED, Asked),
    "in the call": (lambda _: 1.0, SCALED, Called),
}  # fmt: skip
HOOKS = []
EARLY = ("a global", "an object's method", "an array")


@pytest.fixture
def _as_new(monkeypatch):
    monkeypatch.setitem(sys.modules, HOLDER.__name__, HOLDER)
    monkeypatch.setenv("A_SCALE", "1")
    for holder in (HOLDER, Holds, SLOTS, Kind.ONE, read_attribute, ALIVE, LOCAL, deepest(DEEP)):
        holder.scale = 1.0
    monkeypatch.setattr(Model, "SCALE", 1.0)
    monkeypatch.setattr(HERE, "SCALE", 1.0)
    monkeypatch.setattr(code, "__code__", code.__code__)
    yield
    torch.set_default_dtype(torch.float32)
    for hook in HOOKS:
        hook.remove()


@pytest.mark.usefixtures("_as_new")
@pytest.mark.parametrize(
    "name", [n if n in EARLY else pytest.param(n, marks=pytest.mark.slow) for n in CHANGES]
)
def test_wherever_code_reads_a_value_its_change_is_seen(name):
    read, change, *made = CHANGES[name]
    torch.manual_seed(0)
    model, x, y = (made or [Model])[0](read), torch.randn(SIZE, 4), torch.ones(SIZE)
    model.first, model.kept = None, {1: 1}
    first = clip_and_sum(model, loss_fn, x, y, 1e6, method="proved")
    change(model)
    second = clip_and_sum(model, loss_fn, x, y, 1e6, method="proved")
    assert_same(second, model, loss_fn, x, y, tolerance=2e-4)
    assert not torch.allclose(first.gradients["layer.bias"], second.gradients["layer.bias"])


@pytest.mark.usefixtures("_as_new")
@pytest.mark.parametrize("kind", [pytest.param("loss", marks=pytest.mark.slow), "backward"])
def test_a_change_is_seen_in_a_loss_and_in_a_backward(kind):
    def loss(out, y):
        return loss_fn(Reversed.apply(out), y) if kind == "backward" else HOLDS * loss_fn(out, y)

    torch.manual_seed(0)
    model, x, y = nn.Linear(4, 3), torch.randn(SIZE, 4), torch.ones(SIZE)
    first = clip_and_sum(model, loss, x, y, 1e6, method="proved")
    HERE.SCALE = 3.0
    second = clip_and_sum(model, loss, x, y, 1e6, method="proved")
    torch.testing.assert_close(second.gradients["bias"], 3 * first.gradients["bias"])


CALLS = 0
NUMBER = torch.tensor(2.0)


class Counts(Model):
    calls = 0


def a_global_counter(_model):
    global CALLS
    CALLS += 1
    return 1 if CALLS < 50 else 3


def a_class_s_counter(_model):
    Counts.calls += 1
    return 1 if Counts.calls < 50 else 3


STREAM = np.random.default_rng(0)


def frozen():
    """Return what moves, and what is said of it."""
    return {
        "a global counter": (a_global_counter, "CALLS: changes in a forward"),
        "a class's counter": (a_class_s_counter, "Counts.calls: changes in a forward"),
        "an iterator": (
            functools.partial(lambda held, _: next(held), itertools.chain([1] * 50, [3])),
            "a chain is held, which moves",
        ),
        "a rare coin": (lambda _: 3 if np.random.rand() < 1e-9 else 1, "a coin of Python's"),  # noqa: NPY002
        "a rare coin of its own": (
            lambda _: 3 if STREAM.random() < 1e-9 else 1,
            "a generator that",
        ),
        "a tensor's number": (lambda _: float(NUMBER), "no buffer becomes a number"),
        "a tensor's truth": (
            lambda _: 1 if NUMBER > 1 else 3,
            "no buffer becomes a number|decides",
        ),
    }


@pytest.mark.parametrize(
    "name",
    [n if k < 1 else pytest.param(n, marks=pytest.mark.slow) for k, n in enumerate(frozen())],
)
def test_what_moves_unseen_is_refused_and_put_back(name):
    read, message = frozen()[name]
    with pytest.raises(UnsupportedError, match=message):
        clip_and_sum(
            Model(read), loss_fn, torch.randn(SIZE, 4), torch.ones(SIZE), 0.1, method="proved"
        )
    assert CALLS == Counts.calls == 0


LEGACY = np.random.RandomState(0)
TWISTER = np.random.Generator(np.random.MT19937(0))


@pytest.mark.parametrize(
    ("draw", "message"),
    [
        (np.random.random_sample, "a coin of Python's"),
        (LEGACY.random_sample, "a RandomState that|a stream"),
        (TWISTER.random, "a generator that"),
    ],
    ids=["global", "legacy", "generator"],
)
def test_a_coin_is_seen_however_numpy_prints_its_arrays(draw, message):
    """A draw of 312 doubles fills the state anew, and leaves the place in it where it was."""
    before = np.random.get_state()  # noqa: NPY002
    np.random.seed(0)  # noqa: NPY002
    draw(312)
    model = Model(lambda _: 3 if draw(312).min() < 0 else 1)
    hidden = np.printoptions(formatter={"int": lambda _: "0"})
    with hidden, pytest.raises(UnsupportedError, match=message):
        clip_and_sum(model, loss_fn, torch.randn(SIZE, 4), torch.ones(SIZE), 0.1, method="proved")
    np.random.set_state(before)  # noqa: NPY002
